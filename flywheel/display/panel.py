"""What the person at the terminal sees while the loop runs.

One live panel on a terminal; plain, dated lines in a pipe, a CI log or with ``--json`` (then on
stderr).  A terminal that goes away is no reason to stop measuring.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flywheel.box.clock import span_text
from flywheel.display.progress import Progress

REFRESH_S = 1.0
KEPT_LINES = 8
STYLES = {
    "promoted": "bold green",
    "rejected": "yellow",
    "inconclusive": "cyan",
    "void": "magenta",
    "incorrect": "bold red",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is on show; the loop replaces it whenever something changes.

    ``notes`` are the last lines that were said, of ``said`` in all.
    """

    headline: str = "starting"
    lever: str = ""
    why: str = ""
    band: str = ""
    block: str = ""
    run: str = ""
    budget: str = ""
    time_left_s: float | None = None
    run_started_s: float | None = None
    run_expected_s: float | None = None
    progress: Progress = field(default_factory=Progress)
    notes: tuple[str, ...] = ()
    said: int = 0


def plain(console: Console) -> bool:
    """Whether a live panel would be noise: no terminal, a dumb one, or a CI log."""
    return not console.is_terminal or bool(os.environ.get("CI")) or console.is_dumb_terminal


@contextlib.contextmanager
def forgiven() -> Iterator[None]:
    """Let nothing that goes wrong in drawing reach the loop: it is only the picture of it.

    Not even SystemExit, with which rich answers a reader that closed the pipe.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit):
        return


class Display:
    """Shows scenes; ``say`` adds a line that stays."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.scene = Scene()
        self._plain = plain(console)
        self._quiet = quiet
        self._live: Live | None = None
        self._drawn_s = 0.0

    @contextlib.contextmanager
    def open(self) -> Iterator[Display]:
        """Show the panel until the block is left."""
        if self._plain or self._quiet:
            yield self
            return
        # No refresh thread: the loop draws at most once a second, which keeps it under 2 % CPU.
        live = Live(self.render(), console=self.console, auto_refresh=False, transient=True)
        with forgiven():
            live.start()
            self._live = live
        try:
            yield self
        finally:
            self._live = None
            with forgiven():
                live.stop()

    def show(self, **changes: object) -> None:
        """Change parts of the scene and draw it if a second has passed."""
        self.scene = replace(self.scene, **changes)  # type: ignore[arg-type]
        now = time.monotonic()
        if self._live is not None and now - self._drawn_s >= REFRESH_S:
            self._drawn_s = now
            with forgiven():
                self._live.update(self.render(), refresh=True)

    def say(self, text: str, style: str = "") -> None:
        """A line worth keeping: a launch, an ending, a refusal."""
        stamp = time.strftime("%H:%M:%S  ")
        notes = (*self.scene.notes, stamp + text)[-KEPT_LINES:]
        self.scene = replace(self.scene, notes=notes, said=self.scene.said + 1)
        self._print(Text(stamp), Text(text, style=style))

    def repeat(self, note: str) -> None:
        """A line that another process said, with the time at which it did."""
        self._print(Text(note))

    def _print(self, *parts: Text) -> None:
        if self._quiet:
            return
        with forgiven():
            self.console.print(*parts, sep="", end="\n", soft_wrap=True)

    def render(self) -> Panel:
        """The scene as a panel."""
        scene = self.scene
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        for name, value in (
            ("lever", scene.lever),
            ("why", scene.why),
            ("block", scene.block),
            ("so far", scene.band),
            ("run", scene.run),
            ("budget", scene.budget),
        ):
            if value:
                rows.add_row(name, value)
        if scene.time_left_s is not None:
            rows.add_row("time left", span_text(scene.time_left_s))
        if scene.run_started_s is not None:
            rows.add_row("engine", self._engine_line())
        return Panel(Group(rows), title=scene.headline, title_align="left", border_style="dim")

    def _engine_line(self) -> Table:
        scene, line = self.scene, Table.grid(padding=(0, 1))
        assert scene.run_started_s is not None
        spent_s = time.monotonic() - scene.run_started_s
        share = scene.progress.share
        words = f"{scene.progress.phase} {scene.progress.done}/{scene.progress.total or '?'}"
        expected = "" if scene.run_expected_s is None else f" of about {scene.run_expected_s:.0f} s"
        bar = ProgressBar(total=1.0, completed=share or 0.0, width=28, pulse=share is None)
        line.add_row(bar, f"{words} · {spent_s:.0f} s{expected}")
        return line
