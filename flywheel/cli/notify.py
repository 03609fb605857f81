"""`flywheel notify`: does a notice arrive where `flywheel run --notify` would send it?"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from flywheel.box.clock import utc_text
from flywheel.cli.terminal import FAILED, JsonOption, LedgerOption, console, emit, ledger_path
from flywheel.errors import UsageError

VARIABLE = "FLYWHEEL_NOTIFY"
# A person waits for the answer: two attempts, and no minutes between them.
PAUSES_S = (1.0,)

TargetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        help="Tell it of promotions, halts, guard kills and the end: https://..., "
        "text+https://... (plain text), or a command; may be repeated. Also FLYWHEEL_NOTIFY, one a "
        "line.",
    ),
]


def targets(asked: list[str] | None) -> tuple[str, ...]:
    """What was asked for and what FLYWHEEL_NOTIFY names, each once; UsageError for a bad one."""
    from flywheel.notify.target import parse

    lines = (line.strip() for line in os.environ.get(VARIABLE, "").splitlines())
    found = tuple(dict.fromkeys([*(asked or ()), *(line for line in lines if line)]))
    for one in found:
        parse(one)
    return found


def notify(
    notify: TargetsOption = None,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Send a test notice to every target and say whether it arrived.

    Example: flywheel notify --notify https://hooks.example.org/flywheel
    """
    from flywheel.notify.__main__ import deliver
    from flywheel.notify.notice import TEST, Notice
    from flywheel.notify.target import parse

    wanted = [parse(text) for text in targets(notify)]
    if not wanted:
        raise UsageError(f"--notify or {VARIABLE} must name an address or a command.")
    told = Notice(TEST, "this is a test", socket.gethostname(), str(ledger_path(ledger)),
                  utc_text())  # fmt: skip
    found = [(target.name, deliver(target, told, PAUSES_S)) for target in wanted]
    if json_:
        emit({"targets": [{"target": name, "delivered": why is None, "why": why}
                          for name, why in found]})  # fmt: skip
    else:
        for name, why in found:
            console().print(Text(f"{name}: {'delivered' if why is None else why}"))
    return FAILED if any(why is not None for _, why in found) else 0
