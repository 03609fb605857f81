"""A whole night on the fake engine: real ledger, real processes, real lease."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import PROMPTS, checkpoint, fake_command
from rich.console import Console

from flywheel.box.clock import SystemClock
from flywheel.display.panel import Display
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import plan, planned
from flywheel.loop.attend import Wishes
from flywheel.loop.night import Night
from flywheel.loop.order import Order, plan_manifest
from flywheel.run.manifest import Manifest
from flywheel.statistics.campaign import Settings

SMALL = Settings(label="test", budget=8, calibration=2, anchor_blocks=1, canary_every=50,
                 backoff_s=(0.0,))  # fmt: skip


def lever(field: str = "threads", value: object = 2, **fields: Any) -> Lever:
    """A lever of the fake engine."""
    body = {
        "name": f"{field}-{value}",
        "kind": "config",
        "change": {field: value},
        "claim": "it is faster",
        "falsify": "it is not",
        "predicted_gain": 0.05,
        **fields,
    }
    return Lever(**body)


def order(root: Path, *options: str, **fields: Any) -> Order:
    """What `flywheel run` is asked for in these tests."""
    suite = root / "suite.json"
    suite.write_text("{}")
    body: dict[str, Any] = {
        "ledger": root / "ledger.db",
        "checkpoint": checkpoint(root / "checkpoint"),
        "suite": suite,
        "prompts": PROMPTS,
        "max_new_tokens": 40,
        "settings": SMALL,
        "timeout_s": 30.0,
        "command": fake_command(*options),
        "cwd": root,
        "patience_s": 0.2,
        **fields,
    }
    return Order(**body)


@contextmanager
def opened(asked: Order) -> Iterator[Ledger]:
    """The ledger of an order, closed afterwards."""
    ledger = Ledger.open(asked.ledger)
    try:
        yield ledger
    finally:
        ledger.close()


def night(asked: Order, ledger: Ledger, levers: Sequence[Lever], output: io.StringIO) -> Night:
    """A night that writes what it says to ``output``."""
    clock = SystemClock()
    deadline = None if asked.budget_s is None else clock.monotonic_s() + asked.budget_s
    return Night(
        asked,
        ledger,
        lambda view: (*levers, *(row.lever for row in view.proposals)),
        clock=clock,
        display=Display(Console(file=output, width=200)),
        wishes=Wishes(asked.ledger, clock, deadline_s=deadline),
    )


def view(ledger: Ledger) -> views.View:
    """The whole history."""
    with ledger.reading() as connection:
        return views.load(connection)


def only_planned(asked: Order, ledger: Ledger) -> Manifest:
    """A run that is in the ledger but was never launched, as after a crash in between."""
    planned.open_campaign(ledger, asked.settings, start={}, box="b", now_utc="2026-01-01T00:00:00Z")
    step = plan.next_step(view(ledger), [])
    assert isinstance(step, plan.NextBlock)
    planned.plan_block(ledger, step, now_utc="2026-01-01T00:00:00Z")
    manifest = plan_manifest(asked, step, step.loads()[0], None, now_utc="2026-01-01T00:00:00Z")
    planned.start_run(ledger, manifest, slot=0, now_utc="2026-01-01T00:00:00Z")
    return manifest
