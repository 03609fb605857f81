"""How kernels are launched, by configuration: `columns=64,warps=4` changes that of a kernel's tile.

An empty choice is the kernel's own. Every choice holds for all rows of a step alike, so rows stay
independent of each other; one that changes the order of sums changes tokens, and a run says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from triton.errors import TritonError

from engine.config import TILES, EngineConfig
from engine.errors import ConfigError
from engine.geometry import Geometry
from kernels import attention, fp8_linear
from kernels.launch import DECODE_ROWS

# Fields of the configuration by the functions that take the tile.
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tile_hyper": ("hyper", ("enter", "advance", "finish")),
    "tile_project": ("project", ("project",)),
    "tile_intake": ("intake", ("store",)),
    "tile_heads": ("heads", ("prepare",)),
    "tile_attend": ("attention", ("attend",)),
    "tile_router": ("router", ("route",)),  # or beside.route, whichever is launched
    "tile_gate_up": ("moe", ("gate_up", "begin")),
    "tile_down": ("moe", ("down",)),
    "tile_head": ("lm_head", ("scores",)),
    "tile_markov": ("markov", ("step",)),
}
# The FP8 products share a function and are told apart by the shape of their weight.
_PRODUCTS = ("tile_queries", "tile_wo_a", "tile_wo_b")
assert {*_FUNCTIONS, *_PRODUCTS} == set(TILES)

Groups = Mapping[str, SimpleNamespace]


@dataclass(frozen=True, slots=True)
class Tiles:
    """What a configuration asks of the launches of one geometry's kernels."""

    config: EngineConfig
    geometry: Geometry

    @property
    def any(self) -> bool:
        """Whether it asks for anything."""
        return any(getattr(self.config, name) for name in TILES)

    def apply(self, groups: Groups) -> None:
        """Let the functions of `groups` launch as asked; ConfigError for a field no tile has."""
        for name, (module, functions) in _FUNCTIONS.items():
            if text := getattr(self.config, name):
                if name == "tile_router" and self.config.shared_expert == "router":
                    module = "beside"
                for function in functions:
                    call = getattr(groups[module], function)
                    tile = changed(self._own(name, call), name, text)
                    setattr(groups[module], function, partial(call, tile=tile))
        products = self._products()
        if products:
            linear = groups["fp8_linear"]
            linear.multiply = _by_shape(linear.multiply, products)

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Inside, what a kernel, compiler or driver refuses is a ConfigError with the tiles.

        Where none was asked for it is a defect, and stays what it is.
        """
        try:
            yield
        except (ValueError, ArithmeticError, RuntimeError, TritonError) as error:
            asked = {name: text for name in TILES if (text := getattr(self.config, name))}
            if not asked:
                raise
            said = ", ".join(f"{name} {text!r}" for name, text in asked.items())
            why = str(error).strip().partition("\n")[0]
            raise ConfigError(f"A kernel cannot run as asked ({said}): {why}.") from error

    def _own(self, name: str, call: Callable[..., Any]) -> Any:
        """The tile that a function takes where none is asked for."""
        if name == "tile_attend":
            return attention.EXACT if self.config.dtype == "float32" else attention.STEP
        return inspect.signature(call).parameters["tile"].default

    def _products(self) -> dict[tuple[int, ...], fp8_linear.Tile]:
        g, found = self.geometry, dict[tuple[int, ...], fp8_linear.Tile]()
        heads = g.num_attention_heads * g.head_dim
        indexed = heads + g.index_n_heads * g.index_head_dim
        latent = g.o_groups * g.o_lora_rank
        shapes = {
            "tile_queries": ((heads, g.q_lora_rank), (indexed, g.q_lora_rank)),
            "tile_wo_a": ((latent, heads // g.o_groups),),
            "tile_wo_b": ((g.hidden_size, latent),),
        }
        for name in _PRODUCTS:
            if text := getattr(self.config, name):
                for n, k in shapes[name]:
                    found[n, k] = changed(fp8_linear.decode_tile(n, k), name, text)
        return found


def changed(tile: Any, name: str, text: str) -> Any:
    """`tile` with the fields that `text` names; ConfigError for any that none may have."""
    kinds = {field.name: field.type for field in fields(tile)}
    values: dict[str, int | bool] = {}
    for one in text.split(","):
        field, _, number = one.partition("=")
        if field not in kinds:
            raise ConfigError(f"{name} has no {field!r}; known: {', '.join(kinds)}.")
        if field in values:
            raise ConfigError(f"{name} names {field} twice.")
        choice = kinds[field] == "bool"
        if choice and number not in ("0", "1"):
            raise ConfigError(f"{name} takes {field}=0 or {field}=1, not {field}={number}.")
        if not choice and int(number) == 0:
            raise ConfigError(f"{name} takes {field} of at least 1.")
        values[field] = bool(int(number)) if choice else int(number)
    return replace(tile, **values)


def _by_shape(
    multiply: Callable[..., torch.Tensor], tiles: Mapping[tuple[int, ...], fp8_linear.Tile]
) -> Callable[..., torch.Tensor]:
    def chosen(
        x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, **named: Any
    ) -> torch.Tensor:
        tile = tiles.get(tuple(weight.shape)) if x.shape[0] <= DECODE_ROWS else None
        return multiply(x, weight, scale, **named, **({"tile": tile} if tile else {}))

    return chosen
