"""The loop of a scene as a process of its own, for faults that kill it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flywheel import daemon
from flywheel.clock import SystemClock
from flywheel.display import Display
from flywheel.selftest.scene import LEVER, Scene


def main(words: Sequence[str]) -> int:
    """``ROOT BUDGET_RUNS [ENGINE OPTION ...]``."""
    root, budget_runs, *options = words
    order = Scene(Path(root)).order(*options, budget_runs=int(budget_runs))
    session = daemon.run(order, [LEVER], clock=SystemClock(), display=Display(Console()))
    return 1 if session.failed else 0
