"""Which campaign a night belongs to: the open one, or a new one that it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flywheel import best
from flywheel.box import host
from flywheel.ledger import views
from flywheel.ledger.rows import CampaignRow, View
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.loop.halting import NEW_RULER, Evidence
from flywheel.loop.order import Order


def ends(
    view: View,
    campaign: CampaignRow,
    order: Order,
    box: str,
    settled: frozenset[Evidence],
    last: Mapping[str, Any] | None = None,
) -> str | None:
    """Why the open campaign cannot go on under this order on this box; None when it can. Pure.

    ``last`` is the engine configuration of its last run.
    """
    if order.new_campaign:
        return "a new campaign was declared"
    if campaign.settings != order.settings:
        return f"a campaign {order.settings.label} was declared"
    if campaign.box != box:
        return f"it was measured on another box ({campaign.box}), and this is {box}"
    for what, asked in (("checkpoint", order.checkpoint), ("suite", order.suite)):
        if last is not None and last.get(f"of_{what}", last.get(what)) != str(asked):
            return f"another {what} was asked for: {asked}"
    # Only where a head was the last that ran: to others it is all the same.
    judged = None if last is None else last.get("of_judges")
    if judged is not None and list(judged) != list(order.judges):
        return f"heads are to be judged by another suite or hold-out: {order.head_suite}"
    mine = {run.id for v in view.of_campaign(campaign.id) for b in v.blocks for run in b.runs}
    changed = [code for code, run_id in settled if code in NEW_RULER and run_id in mine]
    return f"a person resumed after {changed[0]}" if changed else None


def declare(
    ledger: Ledger,
    view: View,
    order: Order,
    settled: frozenset[Evidence],
    *,
    now_utc: str,
    start_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> str | None:
    """Go on with the open campaign, or declare the one that this order asks for.

    `start_of` makes of the best configuration the one that a new campaign starts from. Returns why
    the one before was closed, if it was.
    """
    campaign, here = view.campaign, box()
    said = None
    if campaign is not None and campaign.ended is None:
        said = ends(view, campaign, order, here, settled, _last(ledger, view, campaign))
        if said is None:
            return None
        planned.close_campaign(ledger, campaign.id, said, now_utc=now_utc)
    start = start_of(best.fold(view).config) if campaign is not None else order.first_config
    planned.open_campaign(ledger, order.settings, start=dict(start), box=here, now_utc=now_utc)
    return said


def _last(ledger: Ledger, view: View, campaign: CampaignRow) -> Mapping[str, Any] | None:
    """The engine configuration of a campaign's last run; None before there is one."""
    blocks = [block for v in view.of_campaign(campaign.id) for block in v.blocks if block.runs]
    if not blocks:
        return None
    newest = max(blocks, key=lambda block: block.serial).runs[-1]
    with ledger.reading() as connection:
        config = views.manifest(connection, newest.id).get("config")
    return config if isinstance(config, dict) else None


def box() -> str:
    """This box as a campaign names it: what its rulers would tell apart."""
    look = host.probe(Path("/"))
    names = [gpu.name for gpu in look.gpus if gpu.name]
    return names[0] if names else f"{_processor()}, {look.cores or '?'} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "cpu")
