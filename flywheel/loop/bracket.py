"""A screen's first incumbent: a load of its own, or the one that closed the last screen. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from flywheel.ledger.rows import RunRow, View
from flywheel.loop.step import NextBlock

# An incumbent's load stays fresh for as long as this many loads take, and for a minute at least:
# with loads of seconds most of the time passes between them.
FRESH_LOADS = 2.0
FRESH_S = 60.0


def opened(view: View, step: NextBlock, now_utc: str | None) -> NextBlock:
    """The step; a cold screen begins with the incumbent that closed the screen before it.

    That must have been the very last block, with the same incumbent, booted alike, and its load
    must be fresh: a box may drift while nothing is measured. Without `now_utc` it has just ended.
    """
    before = max(view.blocks(), key=lambda b: b.serial, default=None)
    if step.mate is None or before is None or before.mate_id is None or not before.answers:
        return step
    earlier, closing = view.variant(before.variant_id), before.runs[-1]
    alike = (
        earlier.campaign_id == view.campaigns[-1].id
        and dict(earlier.incumbent) == dict(step.incumbent)
        and earlier.lever.boot == step.lever.boot
    )
    if not alike or (now_utc is not None and not _fresh(closing, now_utc)):
        return step
    return replace(step, opens_with=closing.id)


def outdated(view: View, step: NextBlock, now_utc: str) -> bool:
    """Whether a planned screen waited so long for its turn that it must pay for its first load."""
    if step.opens_with is None or not step.new_block:
        return False
    return opened(view, replace(step, opens_with=None), now_utc).opens_with is None


def _fresh(run: RunRow, now_utc: str) -> bool:
    now, ended = (datetime.fromisoformat(t) for t in (now_utc, run.ended_utc))
    return 0 <= (now - ended).total_seconds() <= max(FRESH_S, FRESH_LOADS * run.wall_s)
