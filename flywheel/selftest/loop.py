"""The loop of a self-test as a process of its own: ``ROOT KIND RUNS [ENGINE OPTION ...]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flywheel.box.clock import SystemClock
from flywheel.display.panel import Display
from flywheel.lever import Lever
from flywheel.loop import daemon
from flywheel.selftest.scene import LEVER, SETTINGS, Scene
from flywheel.statistics.campaign import Settings

# A campaign that no number of deaths brings to an end, and that waits for nothing.
LONG = Settings(
    label="crash", budget=1000, calibration=1, canary_every=500, attempts=1000, anchor_blocks=1,
    backoff_s=(0.0,),
)  # fmt: skip


def many_levers(count: int = 400) -> tuple[Lever, ...]:
    """More levers than a self-test can try; none of them does anything."""
    return tuple(
        Lever(
            name=f"chunk-{n}", kind="config", change={"prefill_chunk": 1000 + n},
            claim="it is faster", falsify="it is not", predicted_gain=0.05,
        )
        for n in range(count)
    )


def main(words: Sequence[str]) -> int:
    """One session: ``scene`` is a fault's single block, ``long`` a campaign without an end."""
    root, kind, budget_runs, *options = words
    scene = Scene(Path(root))
    settings, levers = (SETTINGS, (LEVER,)) if kind == "scene" else (LONG, many_levers())
    order = scene.order(*options, budget_runs=int(budget_runs), settings=settings)
    session = daemon.run(
        order, lambda _view: levers, clock=SystemClock(), display=Display(Console())
    )
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
