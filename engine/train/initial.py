"""Starting values: at step 0 the network is a plain residual stack with quiet branches."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from engine.geometry import Geometry
from engine.tensors import Entry, entries

_EMBED_STD = 0.1
_HEAD_STD = 0.02
_MIX_STD = 2e-3  # times sqrt(m d) = 32: the input moves a mixing logit by about 0.06
_ASYMMETRY_STD = 0.2  # sets the streams apart; equal streams would stay equal
_IDENTITY_LOGIT = 4.0


def tables(g: Geometry, seed: int) -> dict[str, Tensor]:
    """tid2eid, int64 [vocab, k], of every hash-routed layer: k distinct experts a token."""
    found: dict[str, Tensor] = {}
    for entry in entries(g):
        if entry.format == "i64":
            draw = torch.rand(g.vocab_size, g.n_routed_experts, generator=_stream(seed, entry.name))
            chosen = draw.argsort(-1)[:, : g.num_experts_per_tok]
            found[entry.name] = chosen.sort(-1).values.contiguous()
    return found


def values(g: Geometry, seed: int) -> dict[str, Tensor]:
    """Float32 starting value of every other tensor, by native name; each has its own stream."""
    return {
        name: _value(g, entry, name, _stream(seed, name))
        for entry in entries(g)
        if entry.format != "i64"
        for name in entry.native
    }


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _value(g: Geometry, entry: Entry, name: str, random: torch.Generator) -> Tensor:
    shape, last = entry.shape, name.rsplit(".", 1)[-1]

    def normal(std: float) -> Tensor:
        return torch.randn(shape, generator=random) * std

    if last.endswith("_fn"):
        return normal(_MIX_STD)
    if last.endswith("_scale"):
        return torch.ones(shape)
    if last.endswith("_base"):
        return _mixing_base(g, shape[0], random)
    if last in ("attn_sink", "ape", "bias"):
        return torch.zeros(shape)
    if "norm" in name.rsplit(".", 2)[-2] and len(shape) == 1:
        return torch.ones(shape)
    if name == "embed.weight":
        return normal(_EMBED_STD)
    if name == "head.weight" or "markov_w2" in name:
        return normal(_HEAD_STD)
    if "confidence" in name:
        return torch.zeros(shape)
    fan_in = g.dspark_markov_rank if "markov_w1" in name else shape[-1]
    quiet = name.endswith(("wo_b.weight", ".w2.weight"))
    return normal(fan_in**-0.5 * ((2.0 * g.num_hidden_layers) ** -0.5 if quiet else 1.0))


def _mixing_base(g: Geometry, size: int, random: torch.Generator) -> Tensor:
    """pre = 1 / m, post = 1, comb = identity, each a little off."""
    m = g.hc_mult
    base = torch.randn(size, generator=random) * _ASYMMETRY_STD
    base[:m] += math.log(1 / (m - 1)) if m > 1 else 4.0
    if size > m:
        base[2 * m :] = (torch.eye(m) * _IDENTITY_LOGIT).flatten() + base[2 * m :] / 2
    return base
