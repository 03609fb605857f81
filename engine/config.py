"""The engine's configuration: every field is a lever, resolved once, echoed and fingerprinted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from engine.geometry import Geometry

CHOICES: dict[str, tuple[str, ...]] = {
    "backend": ("torch", "triton"),
    "verify_policy": ("fixed", "margin", "confidence"),
    "cache_format": ("float32", "packed"),
    "moe": ("loop", "fused", "dense"),
    "attention": ("split", "joined"),
    "hyper": ("host", "loop", "matrix"),
    "markov": ("step", "table"),
    "compile": ("off", "blocks"),
    "verify_rows": ("together", "apart"),
    "acceptance": ("exact", "typical"),
    "numerics": ("exact", "cache", "reference"),
    "dtype": ("float32", "bfloat16"),
    "graph": ("on", "off"),
    "key_format": ("plain", "packed"),
    "shared_expert": ("experts", "router", "stream"),
}
# What only one backend does. Under the other these fields keep their defaults and are no part of
# the canonical form, where they would tell apart what is the same.
OF_TORCH = (
    "row_tile",
    "verify_rows",
    "draft_tree",
    "acceptance",
    "cache_format",
    "moe",
    "attention",
    "hyper",
    "markov",
    "compile",
)
# Launches of the triton backend's kernels: fields of a kernel's tile, such as "columns=64,warps=4";
# empty is the kernel's own.
TILES = (
    "tile_hyper",
    "tile_project",
    "tile_intake",
    "tile_queries",
    "tile_heads",
    "tile_attend",
    "tile_wo_a",
    "tile_wo_b",
    "tile_router",
    "tile_gate_up",
    "tile_down",
    "tile_head",
    "tile_markov",
)
OF_TRITON = ("graph", "key_format", "shared_expert", *TILES)
_ONE = r"[a-z_][a-z_0-9]*=(0|[1-9][0-9]{0,5})"
_TILE = re.compile(f"{_ONE}(,{_ONE})*")
_TREE = re.compile(r"[1-8](,[1-8]){0,7}")
MOST_PATHS = 8  # of a tree of drafts
RANGES: dict[str, tuple[float, float]] = {
    "draft_width": (0, 8),
    "row_tile": (1, 8),
    "threads": (0, 1024),
    "prefill_chunk": (1, 8192),
    "context": (0, 1 << 20),
    "margin_threshold": (0.0, 1e6),
    "confidence_threshold": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine does. Field values are requests; `effective` resolves them for a model."""

    draft_width: int = 5  # drafted tokens verified a round; 0 decodes plainly
    verify_policy: str = "fixed"  # how many of them are offered to the target
    margin_threshold: float = 1.0  # "margin": stop before a slot whose top two logits are closer
    confidence_threshold: float = 0.4  # "confidence": stop when the survival product falls below
    threads: int = 1  # intra-op threads; 0 takes every core
    prefill_chunk: int = 64  # prompt tokens a forward
    row_tile: int = 8  # rows that a shorter step is padded to, so that products keep their order
    verify_rows: str = "together"  # the rows of a verify step in one forward, or one by one
    draft_tree: str = ""  # children a draft by depth, such as "2,2"; further on, and empty, one
    acceptance: str = "exact"  # "typical" is LOSSY: above temperature 0 it changes what is said
    cache_format: str = "float32"  # storage of window and compressed rows
    moe: str = "loop"  # how routed experts are evaluated
    attention: str = "split"  # window and compressed keys apart or gathered into one
    hyper: str = "loop"  # how the mixing weights of the residual streams are computed
    markov: str = "step"  # draft bias by one product a token, or from a table made at load
    compile: str = "off"  # compile each block's arithmetic; its experts are then dense
    numerics: str = "cache"  # exact | cache | reference roundings
    dtype: str = "float32"  # activations and dequantised weights
    context: int = 0  # longest sequence; 0 takes the checkpoint's
    backend: str = "torch"  # plain PyTorch on the CPU, or Triton kernels on a GPU
    graph: str = "on"  # replay each round as a CUDA graph, or launch its kernels one by one
    key_format: str = "plain"  # storage of compressed rows and index keys; the windows stay plain
    shared_expert: str = "experts"  # its first product beside theirs, the router, or on a stream
    tile_hyper: str = ""  # mixing of the residual streams
    tile_project: str = ""  # first products of a layer
    tile_intake: str = ""  # norms, rounding and rings
    tile_queries: str = ""  # wq_b, the indexer's beside it
    tile_heads: str = ""  # rotation of queries, pooling
    tile_attend: str = ""  # sum over keys
    tile_wo_a: str = ""
    tile_wo_b: str = ""
    tile_router: str = ""
    tile_gate_up: str = ""  # of routed and shared experts
    tile_down: str = ""
    tile_head: str = ""  # output head
    tile_markov: str = ""  # bias of a draft

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> EngineConfig:
        """Validate a JSON object of fields; absent ones keep their default."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in raw.items():
            if name not in known:
                raise ConfigError(
                    f"Unknown configuration field {name!r}; "
                    f"known fields: {', '.join(sorted(known))}."
                )
            _check(name, value)
        values: dict[str, Any] = {
            name: float(value) if name in ("margin_threshold", "confidence_threshold") else value
            for name, value in raw.items()
        }
        return cls(**values)

    def effective(self, geometry: Geometry, cores: int) -> EngineConfig:
        """Defaults resolved against a model and a machine; impossible requests are refused."""
        self._check_backend()
        if self.draft_width > geometry.dspark_block_size:
            raise ConfigError(
                f"draft_width {self.draft_width} exceeds the head's trained block of "
                f"{geometry.dspark_block_size}; ask for at most that."
            )
        if self.draft_width + 1 > RANGES["row_tile"][1]:
            raise ConfigError(
                f"draft_width {self.draft_width} needs a verify step of {self.draft_width + 1} "
                f"rows; one has at most {RANGES['row_tile'][1]:g}."
            )
        if len(self.branches) > self.draft_width:
            raise ConfigError(
                f"draft_tree {self.draft_tree!r} is deeper than draft_width {self.draft_width}."
            )
        if self.draft_tree and (self.compile != "off" or self.verify_rows != "together"):
            raise ConfigError(
                f"draft_tree {self.draft_tree!r} needs its rows in one plain forward: "
                "verify_rows 'together' and compile 'off'."
            )
        if self.context > geometry.max_position_embeddings:
            raise ConfigError(
                f"context {self.context} exceeds the checkpoint's "
                f"max_position_embeddings {geometry.max_position_embeddings}."
            )
        for name in ("cache_format", "key_format"):
            if getattr(self, name) == "packed" and self.numerics == "exact":
                raise ConfigError(
                    f"{name} 'packed' stores rounded rows, which numerics 'exact' forbids."
                )
        quantised = (
            geometry.hidden_size,
            geometry.q_lora_rank,
            geometry.o_groups * geometry.o_lora_rank,
            geometry.moe_intermediate_size,
        )
        if self.numerics == "reference" and any(size % 128 for size in quantised):
            raise ConfigError(
                "numerics 'reference' rounds activations in groups of 128, which the widths "
                f"{', '.join(map(str, quantised))} of this checkpoint do not fill."
            )
        return dataclasses.replace(
            self,
            threads=self.threads or cores,
            context=self.context or geometry.max_position_embeddings,
            moe="dense" if self.compile == "blocks" else self.moe,
            hyper="loop" if self.compile == "blocks" and self.hyper == "host" else self.hyper,
        )

    @property
    def branches(self) -> tuple[int, ...]:
        """Children of each draft by depth, as far as `draft_tree` says."""
        return tuple(int(part) for part in self.draft_tree.split(",")) if self.draft_tree else ()

    def _check_backend(self) -> None:
        """Refuse what the chosen backend does not do: no field may be without effect."""
        for name in self._foreign():
            if getattr(self, name) != _DEFAULTS[name]:
                other = "torch" if self.backend == "triton" else "triton"
                raise ConfigError(
                    f"{name} is a choice of the {other} backend; this configuration asks for "
                    f"backend {self.backend!r}."
                )
        if self.backend == "triton" and self.numerics == "reference":
            raise ConfigError(
                "numerics 'reference' rounds activations, which the triton backend does not; "
                "ask for 'cache' or 'exact', or for backend 'torch'."
            )

    def _foreign(self) -> tuple[str, ...]:
        return OF_TORCH if self.backend == "triton" else OF_TRITON

    def canonical(self) -> dict[str, Any]:
        """The fields that the backend knows as plain JSON values, in declaration order."""
        foreign = self._foreign()
        return {n: v for n, v in dataclasses.asdict(self).items() if n not in foreign}

    def fingerprint(self) -> str:
        """sha256 over the canonical JSON: two arms with one fingerprint are one arm."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(EngineConfig)}


def _check(name: str, value: Any) -> None:
    if name in TILES:
        if not isinstance(value, str) or (value and not _TILE.fullmatch(value)):
            raise ConfigError(
                f"{name} must be empty or fields of a tile such as columns=64,warps=4; "
                f"got {value!r}."
            )
        return
    if name == "draft_tree":
        if not isinstance(value, str) or (value and not _is_tree(value)):
            raise ConfigError(
                f"draft_tree must be empty or children by depth such as 2,2, with at most "
                f"{MOST_PATHS} paths in all; got {value!r}."
            )
        return
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise ConfigError(f"{name} must be one of {', '.join(CHOICES[name])}; got {value!r}.")
        return
    low, high = RANGES[name]
    whole = name not in ("margin_threshold", "confidence_threshold")
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        kind = "an integer" if whole else "a number"
        limits = f"{low:.12g} to {high:.12g}"
        raise ConfigError(f"{name} must be {kind} from {limits}; got {value!r}.")


def _is_tree(text: str) -> bool:
    if not _TREE.fullmatch(text):
        return False
    return math.prod(int(part) for part in text.split(",")) <= MOST_PATHS
