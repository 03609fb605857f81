"""How a sublayer reads the residual streams and writes back to them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.norm import normalise
from engine.state import TILE, VECTOR
from engine.weights import HyperWeights
from kernels.oracle import hyper

Array = np.ndarray[Any, np.dtype[np.float32]]


class Entry(NamedTuple):
    """A sublayer's normalised input and what its output needs to be written back."""

    x: Tensor  # [rows, hidden]
    post: Tensor  # [rows, m]
    comb: Tensor  # [rows, m, m]


class Mix(NamedTuple):
    """How one sublayer reads and writes the streams; float32."""

    pre: Tensor  # [rows, m]
    post: Tensor
    comb: Tensor


class Residual:
    """Enters and leaves sublayers for one geometry and configuration.

    `hyper` says how the mixing weights are computed: `loop`, Sinkhorn's row and column sums in
    turn; `matrix`, each sum as a product with a constant matrix; `host`, the latter in NumPy,
    whose calls on such small arrays cost a fraction of PyTorch's.
    """

    def __init__(self, geometry: Geometry, config: EngineConfig) -> None:
        self._g = geometry
        self._mix = self._mix_on_host if config.hyper == "host" else self._mix_in_tensors
        self._sinkhorn = _sinkhorn_by_products if config.hyper == "matrix" else hyper.sinkhorn
        self._host: dict[int, _HostConstants] = {}

    def start(self, embedded: Tensor) -> Tensor:
        """Streams [rows, m, hidden]: copies of the embedding."""
        return embedded[:, None, :].expand(-1, self._g.hc_mult, -1).contiguous()

    def enter(self, streams: Tensor, w: HyperWeights, norm: Tensor) -> Entry:
        """Mix the streams into a sublayer's normalised input."""
        mix = self._mix(streams.float(), w)
        u = torch.bmm(mix.pre[:, None, :], streams.float()).squeeze(1).to(streams.dtype)
        return Entry(normalise(u, norm, self._g.rms_norm_eps), mix.post, mix.comb)

    def leave(self, streams: Tensor, output: Tensor, entry: Entry) -> Tensor:
        """Streams after the sublayer."""
        written = entry.post[:, :, None] * output[:, None, :]
        mixed = torch.baddbmm(written, entry.comb.transpose(1, 2), streams.float())
        return mixed.to(streams.dtype)

    def collapse(self, streams: Tensor, w: HyperWeights) -> Tensor:
        """One vector a row [rows, hidden], before the final norm."""
        g = self._g
        raw = hyper.project(streams, w.fn, g.rms_norm_eps)
        return hyper.read(streams, _sigmoid(raw * w.scale + w.base) + g.hc_eps)

    def _mix_in_tensors(self, streams: Tensor, w: HyperWeights) -> Mix:
        g, m = self._g, self._g.hc_mult
        raw = hyper.project(streams, w.fn, g.rms_norm_eps)
        gates = _sigmoid(
            raw[..., : 2 * m].unflatten(-1, (2, m)) * w.scale[:2, None]
            + w.base[: 2 * m].unflatten(0, (2, m))
        )
        logits = (raw[..., 2 * m :] * w.scale[2] + w.base[2 * m :]).unflatten(-1, (m, m))
        comb = self._sinkhorn(logits, g.hc_sinkhorn_iters, g.hc_eps)
        return Mix(gates[..., 0, :] + g.hc_eps, 2.0 * gates[..., 1, :], comb)

    def _mix_on_host(self, streams: Tensor, w: HyperWeights) -> Mix:
        g, m = self._g, self._g.hc_mult
        constants = self._host.get(id(w))
        if constants is None:
            constants = self._host[id(w)] = _HostConstants.of(w, g)
        flat = streams.flatten(1)
        raw: Array = linear(flat, w.fn).numpy()
        size = np.hypot(torch.linalg.vector_norm(flat, dim=-1, keepdim=True).numpy(), constants.eps)
        raw = raw / size
        raw *= constants.scale
        raw += constants.base
        gates = np.tanh(raw[:, : 2 * m])
        gates *= constants.spread
        gates += constants.centre
        logits = raw[:, 2 * m :].reshape(-1, m, m)
        comb = _sinkhorn_on_host(logits, g.hc_sinkhorn_iters, constants.rows, constants.columns)
        pre, post = torch.from_numpy(gates).split(m, 1)
        return Mix(pre, post, torch.from_numpy(comb)[:, :-1].unflatten(1, (m, m)))


class _HostConstants(NamedTuple):
    """Constants of one sublayer's mix: sigmoid(z) is tanh(z / 2) / 2 + 1 / 2."""

    eps: Array  # the norm's, times the width
    scale: Array  # [(2 + m) m], halved for the gates; times sqrt(width), which `size` lacks
    base: Array
    spread: Array  # [2 m]
    centre: Array
    rows: Array  # what `_sinkhorn_on_host` multiplies by
    columns: Array

    @classmethod
    def of(cls, w: HyperWeights, g: Geometry) -> _HostConstants:
        m, width = g.hc_mult, g.hc_mult * g.hidden_size
        half = torch.ones((2 + m) * m)
        half[: 2 * m] = 0.5
        scale = w.scale.repeat_interleave(torch.tensor([m, m, m * m])) * half
        spread = torch.tensor([0.5] * m + [1.0] * m)
        centre = torch.tensor([0.5 + g.hc_eps] * m + [1.0] * m)
        rows, columns = (_with_floor(matrix, g.hc_eps).numpy() for matrix in _summing(m))
        return cls(
            np.asarray((width * g.rms_norm_eps) ** 0.5, np.float32),
            (scale * width**0.5).numpy(),
            (w.base * half).numpy(),
            spread.numpy(),
            centre.numpy(),
            rows,
            columns,
        )


def _sigmoid(x: Tensor) -> Tensor:
    """Sigmoid of a small `x`, padded to pairs of vectors, which its loop takes at once."""
    flat = x.flatten()
    return torch.sigmoid(pad(flat, (0, -flat.numel() % (2 * VECTOR))))[: flat.numel()].view_as(x)


def _sinkhorn_by_products(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """`hyper.sinkhorn` with every sum of a row or column as one small matrix product."""
    m = logits.shape[-1]
    rows, columns = _summing(m)
    c = (torch.softmax(logits, -1) + eps).flatten(-2)
    floor = c.new_full((1, 1), eps)
    c = c / torch.addmm(floor, c, columns)
    for _ in range(iterations - 1):
        c = c / torch.addmm(floor, c, rows)
        c = c / torch.addmm(floor, c, columns)
    return c.unflatten(-1, (m, m))


def _sinkhorn_on_host(logits: Array, iterations: int, rows: Array, columns: Array) -> Array:
    """The same for `logits` [t, m, m], as [t, m m + 1] whose last column is 1 (`_with_floor`).

    Products are padded to whole tiles, or a row's sums could depend on its place.
    """
    count, m, _ = logits.shape
    c = np.ones((-(-count // TILE) * TILE, m * m + 1), np.float32)
    sums = np.empty_like(c)
    mass = np.exp(logits - logits.max(-1, keepdims=True))
    mass /= mass.sum(-1, keepdims=True)
    mass += rows[-1, 0]
    c[:count, :-1] = mass.reshape(count, -1)
    np.divide(c, np.dot(c, columns, sums), c)
    for _ in range(iterations - 1):
        np.divide(c, np.dot(c, rows, sums), c)
        np.divide(c, np.dot(c, columns, sums), c)
    return c[:count]


@functools.cache
def _summing(m: int) -> tuple[Tensor, Tensor]:
    """Matrices [m m, m m] that replace each entry by the sum of its row, and of its column."""
    one, eye = torch.ones(m, m), torch.eye(m)
    return torch.kron(eye, one), torch.kron(one, eye)


def _with_floor(matrix: Tensor, eps: float) -> Tensor:
    """`matrix` with one more row and column: a trailing 1 of its input adds `eps` to every sum."""
    wide = pad(matrix, (0, 1, 0, 1))
    wide[-1, :-1] = eps
    wide[-1, -1] = 1.0
    return wide
