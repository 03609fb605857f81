"""A model of any geometry with random weights, made on the device in the checkpoint's own formats.

For timing and for tests of arithmetic: its matrices keep the size of what they multiply near one,
its tokens mean nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from engine.device.weights import E8M0, FP4, FP8, Places, Weights, allocate
from engine.errors import ConfigError
from engine.geometry import Geometry
from kernels.mxfp4 import Bank
from kernels.narrow import E2M1_BIAS
from kernels.oracle.rounding import E2M1_VALUES

_NAN_CODE = 127  # of E4M3, beside its negative
_BIAS = 127  # of E8M0
_TABLE_ROWS = 1 << 14  # of a table of experts, made at once


def geometry(name: str, layers: int | None = None) -> Geometry:
    """The geometry called `name`, maybe with fewer `layers`: the first ones, of every kind.

    Raises CheckpointError for an unknown name, ConfigError for more layers than the model has.
    """
    whole = Geometry.named(name)
    every = whole.num_hidden_layers
    count = every if layers is None else layers
    if not 1 <= count <= every:
        raise ConfigError(f"Geometry {name} has 1 to {every} layers; got {count}.")
    taps = len(whole.dspark_target_layer_ids)
    return replace(
        whole,
        num_hidden_layers=count,
        num_hash_layers=min(whole.num_hash_layers, count),
        compress_ratios=(*whole.layer_ratios[:count], *whole.compress_ratios[every:]),
        dspark_target_layer_ids=tuple(max(0, i) for i in range(count - taps, count)),
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
