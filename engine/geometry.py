"""The shape of a model, read from a checkpoint's `config.json`. No constant is invented here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

# Fields that describe the file or the library that wrote it and cannot change the mathematics.
_DESCRIPTIVE = frozenset(
    {
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "use_cache",
        "initializer_range",
        "attention_bias",
        "attention_dropout",
        "num_nextn_predict_layers",
        "pad_token_id",
        "topk_method",
        "n_group",
        "topk_group",
        "auto_map",
        "_name_or_path",
    }
)
# Fields with the one value whose mathematics is implemented.
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "expert_dtype": "fp4",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "topk_method": "noaux_tc",
}

# What may be nothing; every other number is a size, a rate or a limit, and so above zero.
_FROM_ZERO = frozenset(
    {
        "num_hash_layers",
        "compress_ratios",
        "dspark_target_layer_ids",
        "bos_token_id",
        "eos_token_id",
        "dspark_noise_token_id",
        "hc_eps",
    }
)
_LARGEST = 2**31 - 1
_TRAINED = "original_max_position_embeddings"

# Each folder here that holds a config.json is a geometry with a name.
ASSETS = Path(__file__).parent / "assets"
# A model without weights: what a step costs depends on shapes alone.
SYNTHETIC = "synthetic:"


@dataclass(frozen=True, slots=True)
class Yarn:
    """Rotary interpolation of the compressed layers."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class Geometry:
    """Every number of the architecture; names are those of `config.json`."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_hash_layers: int
    num_attention_heads: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    rms_norm_eps: float
    q_lora_rank: int
    head_dim: int
    qk_rope_head_dim: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    compress_rope_theta: float
    rope_theta: float
    yarn: Yarn
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    bos_token_id: int
    eos_token_id: int
    max_position_embeddings: int
    weight_block: int

    @property
    def draft_stages(self) -> int:
        """DSpark blocks: the ratios past the backbone; `num_nextn_predict_layers` is unreliable."""
        return len(self.compress_ratios) - self.num_hidden_layers

    @property
    def layer_ratios(self) -> tuple[int, ...]:
        """Compression ratio of each backbone layer: 0 window only, 4 with indexer, else without."""
        return self.compress_ratios[: self.num_hidden_layers]

    def layers_with_ratio(self, *, indexed: bool) -> tuple[int, ...]:
        """Backbone layers that compress, with an indexer or without."""
        return tuple(i for i, r in enumerate(self.layer_ratios) if r and (r == 4) == indexed)

    @classmethod
    def named(cls, name: str) -> Geometry:
        """A geometry that ships with the engine, as `k160`: the config.json without its weights.

        Raises CheckpointError, with the names there are, for any other.
        """
        if name not in named_geometries():
            raise CheckpointError(
                f"There is no geometry named {name!r}; known: {', '.join(named_geometries())}."
            )
        return cls.load(ASSETS / name)

    @classmethod
    def load(cls, checkpoint: Path) -> Geometry:
        """Read `checkpoint/config.json`, or the geometry that a `synthetic:NAME` asks for.

        Unknown or unsupported fields are refused by name.
        """
        if (name := synthetic_name(checkpoint)) is not None:
            return cls.named(name)
        path = checkpoint / "config.json"
        try:
            raw = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                f"{checkpoint} is not a checkpoint: it has no config.json."
            ) from None
        except OSError as error:
            raise CheckpointError(f"Cannot read {path}: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}.") from None
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path} must hold a JSON object.")
        return cls.parse(raw)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Geometry:
        """Validate the fields of a `config.json`."""
        left = dict(raw)
        for name, value in _FIXED.items():
            if name in left and left.pop(name) != value:
                raise CheckpointError(
                    f"config.json: {name} = {raw[name]!r} is not implemented; only {value!r} is."
                )
        yarn = _parse_yarn(left)
        block = _parse_quantisation(left)
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in ("yarn", "weight_block"):
                continue
            if field.name not in left:
                raise CheckpointError(f"config.json lacks the field {field.name}.")
            values[field.name] = _coerce(field.name, str(field.type), left.pop(field.name))
        unknown = sorted(set(left) - _DESCRIPTIVE)
        if unknown:
            raise CheckpointError(
                f"config.json has fields this engine does not know: {', '.join(unknown)}. "
                "They may change the mathematics, so the checkpoint is refused."
            )
        geometry = cls(**values, yarn=yarn, weight_block=block)
        geometry._check()
        return geometry

    def _check(self) -> None:
        problems = [
            (
                len(self.compress_ratios) <= self.num_hidden_layers,
                "compress_ratios must cover every layer and at least one DSpark block",
            ),
            (
                any(r not in (0, 4) and r < 4 for r in self.layer_ratios),
                "compress_ratios may hold 0, 4 or a larger ratio",
            ),
            (
                any(self.compress_ratios[self.num_hidden_layers :]),
                "DSpark blocks must be window-only (ratio 0)",
            ),
            (
                self.qk_rope_head_dim % 2 != 0 or self.qk_rope_head_dim >= self.head_dim,
                "qk_rope_head_dim must be even and smaller than head_dim",
            ),
            (
                (self.head_dim - self.qk_rope_head_dim) % 64 != 0,
                "head_dim - qk_rope_head_dim must be a multiple of 64",
            ),
            (
                self.index_head_dim & (self.index_head_dim - 1) != 0,
                "index_head_dim must be a power of two",
            ),
            (
                self.num_attention_heads % self.o_groups != 0,
                "num_attention_heads must be a multiple of o_groups",
            ),
            (
                self.num_experts_per_tok > self.n_routed_experts,
                "num_experts_per_tok exceeds n_routed_experts",
            ),
            (
                any(i >= self.num_hidden_layers for i in self.dspark_target_layer_ids),
                "dspark_target_layer_ids must name backbone layers",
            ),
            (
                self.dspark_noise_token_id >= self.vocab_size,
                "dspark_noise_token_id is outside the vocabulary",
            ),
            (self.bos_token_id >= self.vocab_size, "bos_token_id is outside the vocabulary"),
            (self.eos_token_id >= self.vocab_size, "eos_token_id is outside the vocabulary"),
        ]
        for wrong, sentence in problems:
            if wrong:
                raise CheckpointError(f"config.json: {sentence}.")


def synthetic_name(checkpoint: Path) -> str | None:
    """The geometry that `synthetic:NAME` asks for with random weights; None for a folder."""
    text = str(checkpoint)
    return text.removeprefix(SYNTHETIC) if text.startswith(SYNTHETIC) else None


def named_geometries() -> tuple[str, ...]:
    """The names that `Geometry.named` knows."""
    return tuple(sorted(path.parent.name for path in ASSETS.glob("*/config.json")))


def _coerce(name: str, kind: str, value: Any) -> Any:
    """A value as its field's kind: finite, and no smaller than the field allows."""
    try:
        if kind.startswith("tuple"):
            return tuple(_integer(name, item) for item in value)
        return _integer(name, value) if kind == "int" else _real(name, value)
    except (TypeError, ValueError, OverflowError):
        raise CheckpointError(f"config.json: {name} = {value!r} is not a valid {kind}.") from None


def _integer(name: str, value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or number != value or number > _LARGEST:
        raise ValueError(value)
    _check_sign(name, number)
    return number


def _real(name: str, value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(value)
    _check_sign(name, number)
    return number


def _check_sign(name: str, number: float) -> None:
    zero = name in _FROM_ZERO
    if number < 0 or (number == 0 and not zero):
        least = "at least 0" if zero else "at least 1" if isinstance(number, int) else "above 0"
        raise CheckpointError(f"config.json: {name} must be {least}; got {number!r}.")


def _parse_yarn(left: dict[str, Any]) -> Yarn:
    scaling = left.pop("rope_scaling", None)
    if not isinstance(scaling, dict):
        raise CheckpointError("config.json lacks rope_scaling, which the compressed layers need.")
    scaling = dict(scaling)
    kind = scaling.pop("type", scaling.pop("rope_type", None))
    if kind != "yarn":
        raise CheckpointError(f"config.json: rope_scaling of type {kind!r} is not implemented.")
    try:
        yarn = Yarn(
            factor=_real("factor", scaling.pop("factor")),
            original_max_position_embeddings=_integer(_TRAINED, scaling.pop(_TRAINED)),
            beta_fast=_real("beta_fast", scaling.pop("beta_fast", 32)),
            beta_slow=_real("beta_slow", scaling.pop("beta_slow", 1)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"config.json: rope_scaling is incomplete or malformed: {error}."
        ) from None
    if scaling:
        raise CheckpointError(f"config.json: rope_scaling has unknown fields {sorted(scaling)}.")
    return yarn


def _parse_quantisation(left: dict[str, Any]) -> int:
    quantisation = left.pop("quantization_config", None)
    if not isinstance(quantisation, dict):
        raise CheckpointError("config.json lacks quantization_config.")
    expected = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
    }
    for name, value in expected.items():
        if quantisation.get(name, value) != value:
            raise CheckpointError(
                f"config.json: quantization_config.{name} = {quantisation[name]!r} "
                "is not implemented."
            )
    block = quantisation.get("weight_block_size", [128, 128])
    if block != [128, 128]:
        raise CheckpointError(
            f"config.json: weight_block_size {block} is not implemented; only [128, 128]."
        )
    return 128
