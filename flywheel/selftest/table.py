"""The self-test's figures: one row a fault, one line of counts each for faults, crashes, health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from flywheel.selftest.healthy import Healthy
from flywheel.selftest.lanes import Crashes
from flywheel.selftest.verdict import Verdict

_ZERO = ("lost", "recorded_twice", "launched_twice", "accepted_wrongly", "open", "orphans",
         "damaged")  # fmt: skip


def table(verdicts: Sequence[Verdict]) -> Table:
    """Every fault with what became of run, lever, device and ledger."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("fault", "injected", "recorded", "lever", "device", "ledger", "ok"):
        made.add_column(column, overflow="fold")
    for one in verdicts:
        recorded = f"{one.outcome} {one.code}".strip()
        cells = [one.fault, one.injected, recorded, one.lever, one.device, one.ledger]
        if one.skipped:
            cells[3:] = ["-", "-", "-"]
        elif one.wrong and one.outcome in ("missed", "crashed"):
            cells[3:] = ["?", "?", "?"]
        else:
            cells[3:] = [cell or "unharmed" for cell in cells[3:]]
            cells[4] = one.device or "free"
            cells[5] = one.ledger or "intact"
        made.add_row(*(Text(cell) for cell in cells), _mark(one))
    return made


def _mark(one: Verdict) -> Text:
    if one.skipped:
        return Text(f"skipped: {one.skipped}", style="yellow")
    return Text("ok", style="green") if one.ok else Text(f"MISS {one.wrong}", style="bold red")


def counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The figures of the matrix."""
    injected = [one for one in verdicts if not one.skipped]
    bad = [one for one in injected if not one.expected.startswith("ok")]
    good = [one for one in injected if one.expected.startswith("ok")]
    return {
        "faults": len(verdicts),
        "injected": len(injected),
        "skipped": len(verdicts) - len(injected),
        "refused_rightly": sum(one.ok for one in bad),
        "survived_rightly": sum(one.ok for one in good),
        "false_accepts": sum(one.false_accept for one in injected),
        "misses": sum(not one.ok for one in injected),
    }


def fault_line(verdicts: Sequence[Verdict]) -> str:
    """The figures of the matrix in one line."""
    found = counts(verdicts)
    return (
        f"{found['injected']} faults injected: {found['refused_rightly']} refused rightly, "
        f"{found['survived_rightly']} survived, {found['false_accepts']} false accepts, "
        f"{found['misses']} misses, {found['skipped']} skipped"
    )


def crash_line(found: Crashes) -> str:
    """The crash test in one line."""
    lanes = found.lanes
    return (
        f"{found.kills} kills of a running loop: {found.total('lost')} measurements lost, "
        f"{found.total('recorded_twice')} recorded twice, {found.total('launched_twice')} runs "
        f"launched twice, {found.total('orphans')} orphans; {found.total('runs')} runs, "
        f"{found.total('ok')} good, {sum(lane.daemons for lane in lanes)} daemons"
    )


def healthy_line(found: Healthy) -> str:
    """The healthy runs in one line."""
    return (
        f"{found.runs} healthy runs under mild disturbance: {found.accepted} accepted, "
        f"{len(found.refused)} refused"
    )


def as_json(
    verdicts: Sequence[Verdict], crashed: Crashes | None, well: Healthy | None
) -> dict[str, Any]:
    """Everything, for a file."""
    rows = [{**asdict(one), "ok": one.ok, "seconds": round(one.seconds, 2)} for one in verdicts]
    told: dict[str, Any] = {}
    if verdicts:
        told["faults"] = {**counts(verdicts), "rows": rows}
    if crashed is not None:
        told["crash"] = {
            "kills": crashed.kills, "good": crashed.good,
            **{name: crashed.total(name) for name in ("runs", "ok", "measurements", *_ZERO)},
            "lanes": [asdict(lane) for lane in crashed.lanes],
        }  # fmt: skip
    if well is not None:
        told["healthy"] = {**asdict(well), "good": well.good, "false_refusals": len(well.refused)}
    return told
