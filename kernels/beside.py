"""The router's choice and the shared expert's first product in one launch, for a step.

Neither waits for the other, and the router alone leaves most of a processor's bandwidth unused: it
reads little, and spends its time on its programs' meeting and on the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, moe, router
from kernels.launch import dot_type, require
from kernels.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; every number but the stages is a power of two."""

    columns: int = 16  # experts of a program of the router
    splits: int = 4  # programs that share their channels
    step: int = 128  # channels of a warp at once
    shared: int = 8  # hidden channels of a program of the shared expert, 8 or more
    warps: int = 8  # of either kind: they share the channels
    stages: int = 3
    early: bool = True  # load the gate before the launch before has ended


TILE = Tile()


def route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    tokens: Tensor | None,
    table: Tensor | None,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    count: int,
    scale: float,
    limit: float,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Experts and weights as `router.route`, rows [m, count + 1, i] as `moe.begin` leaves them.

    Raises ValueError for operands that do not fit.
    """
    routing = router.prepare(
        x, gate, bias, tokens, table, count, scale,
        router.Tile(tile.columns, tile.splits, tile.step, tile.warps, tile.stages, tile.warps,
                    tile.early),
        workspace,
    )  # fmt: skip
    hidden = moe.begun_rows(x, shared, shared_scale, count)
    inner, d = hidden.shape[2], x.shape[1]
    require(tile.shared >= 8, f"a program of {tile.shared} hidden channels is too small")
    if x.shape[0]:
        _beside[(routing.programs + triton.cdiv(inner, tile.shared),)](
            *routing.operands, shared.view(torch.uint8), shared_scale.view(torch.uint8), hidden,
            routing.tiles, routing.programs, inner, limit,
            **routing.constants, SHARED=tile.shared, BLOCKS=shared_scale.shape[1],
            WHOLE_SHARED=moe.whole(inner, d, tile.shared, 128 * tile.warps),
            DOT_SHARED=dot_type(x),
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=routing.constants["EARLY"],
        )  # fmt: skip
    return routing.chosen, routing.weights, hidden


@triton.jit(do_not_specialize=["m"])
def _beside(  # type: ignore[no-untyped-def]
    x, gate, bias, tokens, table, chosen, weights, parts, arrivals, m, x_stride, experts, d, scale,
    shared, shared_scale, hidden, tiles, programs, inner, limit,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, SPLITS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr, COUNT: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    BY_BIAS: tl.constexpr, EARLY: tl.constexpr, SHARED: tl.constexpr, BLOCKS: tl.constexpr,
    WHOLE_SHARED: tl.constexpr, DOT_SHARED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < programs:
        router.share(
            x, gate, bias, tokens, table, chosen, weights, parts, arrivals, m, x_stride, experts, d,
            scale, program % tiles, program // tiles, tiles,
            ROWS, COLUMNS, PARTS, STEP, TURNS, SPLITS, WHOLE, DOT, COUNT, SLOTS, BLOCK,
            BY_BIAS, EARLY,
        )  # fmt: skip
    else:
        if EARLY:
            ahead.wait()
        moe.shared_hidden(
            x, shared, shared_scale, hidden, program - programs, m, d, inner, limit,
            COUNT, ROWS, SHARED, PARTS, BLOCKS, WHOLE_SHARED, DOT_SHARED,
        )  # fmt: skip
