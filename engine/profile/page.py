"""A profile for people: the tree, then what is left to gain."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.profile.profile import Profile

WIDE = 76  # columns of a terminal that hold the whole ranking
SPARED = ("MB each", "ceiling")  # of it on a narrower one
MARK = "PROFILE: its times are its own and never count as a measurement."


def show(profile: Profile, console: Console) -> None:
    """Print everything, the mark first."""
    console.print(f"[bold yellow]{MARK}[/]")
    console.print(f"{profile.step}; mean of {profile.steps} steps", highlight=False)
    if profile.synthetic:
        console.print("Synthetic weights: acceptance means nothing here.")
    console.print(_tree(profile))
    console.print(_ranking(profile, console.width))
    ceiling = profile.ceiling
    shown = ", ".join(f"{size / 2**20:g}: {rate:,.0f}" for size, rate in ceiling.points)
    console.print(f"Ceiling, GB/s by MiB of a launch ({ceiling.source}): {shown}", highlight=False)


def _tree(profile: Profile) -> Table:
    table = _table("Phases of a step")
    for heading in ("phase", "ms", "share", "launches", "MB"):
        _column(table, heading)
    whole = profile.root.ms
    for phase in profile.root.walk():
        indent = "  " * len(phase.path)
        table.add_row(
            indent + (phase.path[-1] if phase.path else phase.name),
            f"{phase.ms:.4f}", f"{phase.ms / whole:.1%}", f"{phase.launches:g}",
            f"{phase.bytes / 1e6:,.2f}",
        )  # fmt: skip
    return table


def _ranking(profile: Profile, width: int) -> Table:
    table = _table("Left to gain: ms x (1 - achieved / ceiling)")
    headings = ("phase", "gain ms", "ms", "MB each", "GB/s", "ceiling", "of it")
    shown = [i for i, heading in enumerate(headings) if width >= WIDE or heading not in SPARED]
    for i in shown:
        _column(table, headings[i])
    for residual in profile.ranking:
        each = residual.bytes / max(residual.launches, 1.0) / 1e6
        cells = (
            residual.name, f"{residual.ms_to_gain:.4f}", f"{residual.ms:.4f}", f"{each:,.2f}",
            f"{residual.achieved_gb_s:,.1f}", f"{residual.ceiling_gb_s:,.1f}",
            "impossible" if residual.impossible else f"{residual.of_ceiling:.1%}",
        )  # fmt: skip
        table.add_row(*(cells[i] for i in shown))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )


def _column(table: Table, heading: str) -> None:
    """Names may be folded on a narrow terminal; figures stay whole."""
    named = heading == "phase"
    table.add_column(
        heading, justify="left" if named else "right", overflow="fold", no_wrap=not named
    )
