"""Hyper-connections: the residual is `m` streams, mixed before and after every sublayer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.oracle.norm import rms_norm


class Mix(NamedTuple):
    """How one sublayer reads and writes the streams; float32."""

    pre: Tensor  # [..., m]
    post: Tensor  # [..., m]
    comb: Tensor  # [..., m, m]


def mix(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> Mix:
    """Mixing weights of `streams` [..., m, d].

    `fn` [(2 + m) m, m d], `base` [(2 + m) m], `scale` [3], all float32.
    """
    m = streams.shape[-2]
    raw = project(streams, fn, norm_eps)
    pre = torch.sigmoid(raw[..., :m] * scale[0] + base[:m]) + eps
    post = 2.0 * torch.sigmoid(raw[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    logits = (raw[..., 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
    return Mix(pre, post, sinkhorn(logits, iterations, eps))


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Near doubly stochastic matrix [..., m, m]; the softmax counts as the first row step."""
    floor = logits.new_tensor(eps)  # a tensor: a Python number would be converted at every use
    c = torch.softmax(logits, -1) + floor
    c = c / (c.sum(-2, keepdim=True) + floor)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + floor)
        c = c / (c.sum(-2, keepdim=True) + floor)
    return c


def read(streams: Tensor, pre: Tensor) -> Tensor:
    """Sublayer input [..., d]: the streams weighted by `pre`."""
    return (pre[..., None] * streams.float()).sum(-2).to(streams.dtype)


def write(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams [..., m, d]: k gets post_k * output + sum_j comb_jk * stream_j.

    `output` [..., d], or its float32 parts [..., p, d]: their sum is rounded to the streams' dtype.
    """
    if output.dim() == streams.dim():
        output = output.sum(-2).to(streams.dtype)
    mixed = comb.transpose(-1, -2) @ streams.float()
    return (mixed + post[..., None] * output.float()[..., None, :]).to(streams.dtype)


def collapse(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, eps: float
) -> Tensor:
    """One vector [..., d] out of the streams, before the final norm; `fn` [m, m d], `scale` [1]."""
    pre = torch.sigmoid(project(streams, fn, norm_eps) * scale + base) + eps
    return read(streams, pre)


def project(streams: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    """Raw mixing logits [..., n]: the flattened, RMS-scaled streams times `fn` [n, m d]."""
    flat = streams.flatten(-2).float()
    size = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    return torch.nn.functional.linear(flat, fn) * size


class Entry(NamedTuple):
    """A sublayer's normalised input and what its output needs to be written back."""

    x: Tensor  # [..., d]
    post: Tensor  # float32 [..., m]
    comb: Tensor  # float32 [..., m, m]


def enter(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> Entry:
    """What a sublayer reads from `streams` [..., m, d], normalised with the weight `norm` [d]."""
    mixed = mix(streams, fn, base, scale, iterations=iterations, norm_eps=norm_eps, eps=eps)
    x = rms_norm(read(streams, mixed.pre), norm, norm_eps)
    return Entry(x, mixed.post, mixed.comb)


def advance(
    streams: Tensor,
    output: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
    taps: Tensor | None = None,
) -> tuple[Tensor, Entry]:
    """`write` a sublayer's `output` [..., d] or its parts [..., p, d], then `enter` the next one.

    `taps` [..., d] gets the mean of the new streams.
    """
    written = write(streams, output, post, comb)
    if taps is not None:
        taps.copy_(written.float().mean(-2))
    return written, enter(
        written, fn, base, scale, norm, iterations=iterations, norm_eps=norm_eps, eps=eps
    )


def finish(
    streams: Tensor,
    output: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    norm_eps: float,
    eps: float,
    taps: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`write` the last `output`, `collapse` and normalise: new streams, vector, normalised.

    `output` and `taps` are those of `advance`.
    """
    written = write(streams, output, post, comb)
    if taps is not None:
        taps.copy_(written.float().mean(-2))
    vector = collapse(written, fn, base, scale, norm_eps=norm_eps, eps=eps)
    return written, vector, rms_norm(vector, norm, norm_eps)
