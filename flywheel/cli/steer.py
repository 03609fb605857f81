"""`flywheel levers price | defer | reopen | why-next`: what a person says of the queue, and why."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flywheel import priority
from flywheel.box.clock import utc_text
from flywheel.cli import levers
from flywheel.cli.terminal import (
    JsonOption,
    LedgerOption,
    console,
    emit,
    ledger_path,
    one_line,
    open_ledger,
    who,
)
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from flywheel.loop.ranking import Ranked

NameArgument = Annotated[str, typer.Argument(help="The lever's name.")]
WhyOption = Annotated[str, typer.Option("--why", help="The reason; recorded in the ledger.")]
SHOWN = 5


def price(
    name: NameArgument,
    ceiling: Annotated[
        float,
        typer.Option("--ceiling", help="The most it can save, as a fraction: 0.03 is 3 %."),
    ],
    why: WhyOption,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Put a measured ceiling on a lever: too low a one closes it before it is built.

    Example: flywheel levers price moe.fused --ceiling 0.002 --why "the calls are 0.2 % of a step"
    """
    if not 0 <= ceiling < 1:
        raise UsageError(f"--ceiling wants a fraction from 0 to under 1, not {ceiling}.")
    return _steer(ledger, name, "priced", why, json_=json_, ceiling=ceiling)


def defer(
    name: NameArgument,
    why: WhyOption,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Keep a lever back until it is reopened.

    Example: flywheel levers defer moe.dense --why "waits for the new kernel"
    """
    return _steer(ledger, name, "deferred", why, json_=json_)


def reopen(
    name: NameArgument,
    why: WhyOption,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Let a deferred or closed lever be tried again; a closed one at lower odds.

    Example: flywheel levers reopen threads.2 --why "the box has more cores now"
    """
    return _steer(ledger, name, "reopened", why, json_=json_)


def _steer(
    ledger: Path, name: str, word: str, why: str, *, json_: bool, ceiling: float | None = None
) -> int:
    path, reason = ledger_path(ledger), one_line(why)
    if not reason:
        raise UsageError("--why wants the reason in words: it is recorded.")
    lever = levers.named(path, name)
    opened = open_ledger(path, writing=True)
    from flywheel.ledger import steering

    try:
        steering.steer(
            opened, lever, word, f"{who()}: {reason}", now_utc=utc_text(), ceiling=ceiling
        )
    finally:
        opened.close()
    if json_:
        emit({"name": name, "word": word, "ceiling": ceiling, "why": reason,
              "state": levers.states(path, levers.known(path))[name]})  # fmt: skip
    else:
        at = "" if ceiling is None else f" at {ceiling * 100:.3g} %"
        console().print(Text(f"{name} is {word}{at}; the loop sees it at its next choice"))
    return 0


def why_next(
    ledger: LedgerOption = Path("ledger.db"),
    top: Annotated[
        int, typer.Option("--top", min=1, max=1000, help="How many of the queue to show.")
    ] = SHOWN,
    json_: JsonOption = False,
) -> int:
    """What the loop would do now and why, and the terms of the levers that come after it.

    Example: flywheel levers why-next --top 10
    """
    path = ledger_path(ledger)
    from flywheel import best
    from flywheel.ledger import halts, views
    from flywheel.loop import plan
    from flywheel.loop.eligible import admit
    from flywheel.loop.order import KINDS
    from flywheel.loop.ranking import ranked
    from flywheel.report.gather import asking_of, describe

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            view = views.load(connection)
            effective, settled = views.effective_configs(connection), halts.known(connection)
    finally:
        opened.close()
    known, first = levers.known(path), priority.read(path)
    step = plan.next_step(
        view, known, first=first, profiles=True, effective=effective, kinds=KINDS, settled=settled,
        asking=asking_of(view),
    )
    ready, _ = admit(view, known, best.fold(view), effective, KINDS)
    queue = [_queued(one) for one in ranked(view, ready, first)[:top]]
    phase = view.phases[-1] if view.phases else None
    if json_:
        emit({
            "next": describe(step), "phase": None if phase is None else asdict(phase),
            "waiting": len(ready), "first": list(first), "queue": queue,
        })  # fmt: skip
        return 0
    if phase is not None:
        console().print(Text(f"phase {phase.phase}, since {phase.created_utc}: {phase.why}"))
    _print_queue(describe(step), queue, len(ready))
    return 0


def _queued(one: Ranked) -> dict[str, Any]:
    """A lever that waits, as JSON: its name, the line that explains it, and the line's terms."""
    return {
        "name": one.candidate.lever.name,
        "label": one.candidate.lever.label(),
        "gain_per_hour": one.priority.value * 60,
        "why": one.why,
        **asdict(one.priority),
    }


def _print_queue(next_: str, queue: list[dict[str, Any]], waiting: int) -> None:
    out = console()
    out.print(Text(f"next: {next_}"))
    if not queue:
        return
    out.print(Text(f"\n{waiting} wait; by expected gain for each hour of engine time:"))
    rows = [(f"{one['gain_per_hour'] * 100:.2g} %/h", one["name"], one["why"]) for one in queue]
    if out.width < levers.NARROW:
        # Squeezed into columns, a name would lose its end.
        for gain, name, why in rows:
            out.print(Text(f"{gain}  {name}"))
            out.print(Padding(Text(why), (0, 0, 0, 2)))
        return
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)
