"""A model of any geometry with random weights, made on the device in the checkpoint's own formats.

For timing and for tests of arithmetic: its matrices keep the size of what they multiply near one,
its tokens mean nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.device.weights import E8M0, FP4, FP8, Places, Weights, allocate
from engine.errors import ConfigError
from engine.geometry import Geometry, Yarn
from kernels.mxfp4 import Bank
from kernels.narrow import E2M1_BIAS
from kernels.oracle.rounding import E2M1_VALUES

_NAN_CODE = 127  # of E4M3, beside its negative
_BIAS = 127  # of E8M0
_GEOMETRIES = ("k160",)
_TABLE_ROWS = 1 << 14  # of a table of experts, made at once


def geometry(name: str, layers: int | None = None) -> Geometry:
    """The geometry called `name`, maybe with fewer `layers`: the first ones, of every kind.

    Raises ConfigError for an unknown name or a number of layers that the model does not have.
    """
    if name not in _GEOMETRIES:
        raise ConfigError(f"Unknown geometry {name!r}; known: {', '.join(_GEOMETRIES)}.")
    ratios = (0, 0, *(4, 128) * 20, 4)
    count = len(ratios) if layers is None else layers
    if not 1 <= count <= len(ratios):
        raise ConfigError(f"Geometry {name} has 1 to {len(ratios)} layers; got {count}.")
    return Geometry(
        vocab_size=129280,
        hidden_size=4096,
        moe_intermediate_size=2048,
        num_hidden_layers=count,
        num_hash_layers=min(3, count),
        num_attention_heads=64,
        n_routed_experts=160,
        num_experts_per_tok=6,
        routed_scaling_factor=1.5,
        swiglu_limit=10.0,
        rms_norm_eps=1e-6,
        q_lora_rank=1024,
        head_dim=512,
        qk_rope_head_dim=64,
        o_groups=8,
        o_lora_rank=1024,
        sliding_window=128,
        compress_ratios=(*ratios[:count], 0, 0, 0),
        compress_rope_theta=160000.0,
        rope_theta=10000.0,
        yarn=Yarn(16.0, 65536, 32.0, 1.0),
        index_n_heads=64,
        index_head_dim=128,
        index_topk=512,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        dspark_block_size=5,
        dspark_noise_token_id=128799,
        dspark_target_layer_ids=tuple(max(0, i) for i in range(count - 3, count)),
        dspark_markov_rank=256,
        bos_token_id=0,
        eos_token_id=1,
        max_position_embeddings=1 << 20,
        weight_block=128,
    )


def generate(
    geometry: Geometry, *, device: torch.device | str, banked: bool = True, seed: int = 0
) -> Weights:
    """Random weights of `geometry`; the same for one seed on one kind of device.

    `banked` experts are in the order of the kernels; their oracles take them as stored.
    """
    weights, places = allocate(geometry, device, banked=banked)
    random = torch.Generator(device).manual_seed(seed)
    for block in (*weights.layers, *weights.draft.stages):
        for experts in (block.moe.w13, block.moe.w2):
            if isinstance(experts, Bank):
                _fill_bank(experts, random)
    for name, place in places.items():
        if place.stored == FP8:
            _fill_fp8(place.target, _scale_of(name, places), random)
        elif place.stored == FP4:
            _fill_fp4(place.target, _scale_of(name, places), random)
        elif place.stored != E8M0:
            _fill_plain(name, place.target, geometry, random)
    for place in places.values():
        for copy in place.copies:
            copy.copy_(place.target)
    return weights


def _scale_of(name: str, places: Places) -> Tensor:
    return places[name.removesuffix("weight") + "scale"].target.view(torch.uint8)


def _fill_fp8(codes: Tensor, scale: Tensor, random: torch.Generator) -> None:
    """Any codes but NaN."""
    raw = codes.view(torch.uint8).random_(0, 2 * _NAN_CODE, generator=random)
    raw += raw >= _NAN_CODE
    scale.fill_(_exponent(_FP8_SQUARE, codes.shape[-1]))


def _fill_fp4(packed: Tensor, scale: Tensor, random: torch.Generator) -> None:
    """Any codes; scales vary by a factor of two around the one that keeps sizes."""
    packed.view(torch.uint8).random_(0, 256, generator=random)
    middle = _exponent(_FP4_SQUARE, 2 * packed.shape[-1])
    scale.random_(middle - 1, middle + 2, generator=random)


def _fill_bank(bank: Bank, random: torch.Generator) -> None:
    """The same in a bank without padding, where every word is eight codes."""
    bank.codes.random_(-(1 << 31), (1 << 31) - 1, generator=random)
    middle = _exponent(_FP4_SQUARE, bank.channels) + E2M1_BIAS
    bank.scales.view(torch.uint8).random_(middle - 1, middle + 2, generator=random)


def _exponent(square: float, channels: int) -> int:
    """E8M0 byte that makes a product over `channels` of codes with that mean square keep sizes."""
    return _BIAS - round(math.log2(square * channels) / 2)


def _mean_square(values: Tensor) -> float:
    return float(values.double().square().mean())


_FP4_SQUARE = _mean_square(torch.tensor(E2M1_VALUES))
_FP8_SQUARE = _mean_square(torch.arange(_NAN_CODE, dtype=torch.uint8).view(FP8).float())


def _fill_plain(name: str, tensor: Tensor, geometry: Geometry, random: torch.Generator) -> None:
    """By kind: ones for norms, different experts for every token, else normal numbers."""
    if tensor.dtype == torch.int64:
        _fill_table(tensor, geometry.n_routed_experts, random)
    elif "norm" in name or name.endswith("_scale"):
        tensor.fill_(1.0)
    elif tensor.dim() == 1:  # bases, biases and sinks
        tensor.normal_(0.0, 0.1, generator=random)
    elif name.endswith(("embed.weight", "ape", "markov_w1.weight")):
        tensor.normal_(0.0, 1.0, generator=random)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=random)


def _fill_table(table: Tensor, experts: int, random: torch.Generator) -> None:
    """Rows of different experts: the first of a random order."""
    for part in table.split(_TABLE_ROWS):
        keys = torch.rand(len(part), experts, generator=random, device=table.device)
        part.copy_(keys.topk(table.shape[1], -1).indices)
