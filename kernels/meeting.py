"""How the programs of one launch add up a split sum, without a second launch and in fixed order.

Every program leaves its part in a workspace and announces itself; the last to come adds up all
parts from the first to the last and leaves the count at zero, ready for the next launch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finish(  # type: ignore[no-untyped-def]
    total, y, parts, arrivals, tile, split, m, n, SPLITS: tl.constexpr
):
    """Add `total` [columns, rows], part `split` of a tile of `y` [m, n]; the last stores the sum.

    `parts` and `arrivals` are the whole product's; tiles stand in them one after the other.
    """
    last = True
    if SPLITS > 1:
        parts += tile * SPLITS * total.shape[0] * total.shape[1]
        leave(total, parts, split)
        last = arrive(arrivals + tile) == SPLITS - 1
    if last:
        if SPLITS > 1:
            total = add_up(total, parts, SPLITS)
            tl.store(arrivals + tile, 0)
        column = tile * total.shape[0] + tl.arange(0, total.shape[0])
        row = tl.arange(0, total.shape[1])
        keep = (column < n)[:, None] & (row < m)[None, :]
        y_at = y + row[None, :] * n + column[:, None]
        tl.store(y_at, total.to(y.dtype.element_ty), mask=keep)


@triton.jit
def arrive(arrivals):  # type: ignore[no-untyped-def]
    """How many programs announced themselves before; what they had written can now be read."""
    # The barrier puts every thread's writes before the one thread's announcement.
    tl.debug_barrier()
    return tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")


@triton.jit
def leave(part, parts, split):  # type: ignore[no-untyped-def]
    """Store `part` [a, b], number `split` of the sum whose parts start at `parts`."""
    tl.store(parts + split * part.shape[0] * part.shape[1] + _places(part), part)


@triton.jit
def add_up(like, parts, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all parts, shaped as `like`, in their order."""
    at = parts + _places(like)
    total = tl.zeros_like(like)
    for split in tl.static_range(SPLITS):
        # Past the first cache, which knows nothing of what other processors wrote.
        total += tl.load(at + split * like.shape[0] * like.shape[1], cache_modifier=".cg")
    return total


@triton.jit
def _places(part):  # type: ignore[no-untyped-def]
    row = tl.arange(0, part.shape[0])
    return row[:, None] * part.shape[1] + tl.arange(0, part.shape[1])[None, :]
