"""The end of a verify step on the device: how many drafts are confirmed, and what follows them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import DECODE_ROWS, output, require, require_contiguous

# Where the report of a round has what; the committed tokens come last, -1 after their end.
COUNT, FINITE, POSITION, ANCHOR, COMMITTED = range(5)


def accept(
    tokens: Tensor,
    targets: Tensor,
    finite: Tensor,
    position: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Report int64 [4 + m] of a step over `tokens` int64 [m], an anchor and the drafts after it.

    `targets` int64 [m] are the target's choices after each of them, greedy or drawn, `finite` bool
    [m] whether their scores are numbers, `position` int64 [1] that of the anchor. The report holds
    the number of confirmed drafts a, whether all is finite, the next position, the next anchor, and
    the a + 1 committed tokens. `tokens[0]` becomes the next anchor, `position` grows by a + 1.
    Raises ValueError for operands that do not fit or an `out` that shares memory with one.
    """
    m = tokens.shape[0]
    require(1 <= m <= DECODE_ROWS, f"{m} rows are no step")
    for name, given, shape, dtype in (
        ("tokens", tokens, (m,), torch.int64),
        ("targets", targets, (m,), torch.int64),
        ("finite", finite, (m,), torch.bool),
        ("position", position, (1,), torch.int64),
    ):
        require(
            given.shape == shape and given.dtype == dtype,
            f"{name}: {given.dtype} {tuple(given.shape)}, not {dtype} {shape}",
        )
    require_contiguous(tokens=tokens, targets=targets, finite=finite)
    report = output(out, (COMMITTED + m,), torch.int64, tokens, targets, finite, position)
    _accept[(1,)](
        tokens, targets, finite.view(torch.uint8), position, report, m,
        ROWS=DECODE_ROWS, num_warps=1,
    )  # fmt: skip
    return report


@triton.jit(do_not_specialize=["m"])
def _accept(  # type: ignore[no-untyped-def]
    tokens, targets, finite, position, report, m, ROWS: tl.constexpr
):
    slot = tl.arange(0, ROWS)
    target = tl.load(targets + slot, mask=slot < m, other=0)
    draft = tl.load(tokens + 1 + slot, mask=slot + 1 < m, other=0)
    good = tl.min(tl.load(finite + slot, mask=slot < m, other=1), 0)
    confirmed = (slot + 1 < m) & (draft == target)
    count = tl.min(tl.where(confirmed, ROWS, slot), 0)
    anchor = tl.sum(tl.where(slot == count, target, 0), 0)
    following = tl.load(position) + count + 1
    tl.store(report, count.to(tl.int64))
    tl.store(report + 1, good.to(tl.int64))
    tl.store(report + 2, following)
    tl.store(report + 3, anchor)
    tl.store(report + 4 + slot, tl.where(slot <= count, target, -1), mask=slot < m)
    tl.store(position, following)
    tl.store(tokens, anchor)
