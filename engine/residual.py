"""How a sublayer reads the residual streams and writes back to them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.weights import HyperWeights
from kernels.oracle import hyper
from kernels.oracle.norm import rms_norm


class Entry(NamedTuple):
    """A sublayer's normalised input and what its output needs to be written back."""

    x: Tensor  # [rows, hidden]
    post: Tensor
    comb: Tensor


class Residual:
    """Enters and leaves sublayers for one geometry and configuration.

    `hyper` says how the Sinkhorn iterations are written: `loop`, row and column sums in turn, or
    `matrix`, each sum as a product with a constant matrix.
    """

    def __init__(self, geometry: Geometry, config: EngineConfig) -> None:
        self._g = geometry
        self._sinkhorn = _sinkhorn_by_products if config.hyper == "matrix" else hyper.sinkhorn

    def start(self, embedded: Tensor) -> Tensor:
        """Streams [rows, m, hidden]: copies of the embedding."""
        return embedded[:, None, :].expand(-1, self._g.hc_mult, -1).contiguous()

    def enter(self, streams: Tensor, w: HyperWeights, norm: Tensor) -> Entry:
        """Mix the streams into a sublayer's normalised input."""
        g, m = self._g, self._g.hc_mult
        raw = hyper.project(streams, w.fn, g.rms_norm_eps)
        gates = torch.sigmoid(
            raw[..., : 2 * m].unflatten(-1, (2, m)) * w.scale[:2, None]
            + w.base[: 2 * m].unflatten(0, (2, m))
        )
        logits = (raw[..., 2 * m :] * w.scale[2] + w.base[2 * m :]).unflatten(-1, (m, m))
        u = hyper.read(streams, gates[..., 0, :] + g.hc_eps)
        return Entry(
            rms_norm(u, norm, g.rms_norm_eps),
            2.0 * gates[..., 1, :],
            self._sinkhorn(logits, g.hc_sinkhorn_iters, g.hc_eps),
        )

    def leave(self, streams: Tensor, output: Tensor, entry: Entry) -> Tensor:
        """Streams after the sublayer."""
        return hyper.write(streams, output, entry.post, entry.comb)

    def collapse(self, streams: Tensor, w: HyperWeights) -> Tensor:
        """One vector a row [rows, hidden], before the final norm."""
        g = self._g
        return hyper.collapse(streams, w.fn, w.base, w.scale, norm_eps=g.rms_norm_eps, eps=g.hc_eps)


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


@functools.cache
def _summing(m: int) -> tuple[Tensor, Tensor]:
    """Matrices [m m, m m] that replace each entry by the sum of its row, and of its column."""
    one, eye = torch.ones(m, m), torch.eye(m)
    return torch.kron(eye, one), torch.kron(one, eye)
