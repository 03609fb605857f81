"""A profile for people: the tree, then what is left to gain."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from engine.profile.profile import Profile

MARK = "PROFILE: its times are its own and never count as a measurement."


def show(profile: Profile, console: Console) -> None:
    """Print everything, the mark first."""
    console.print(f"[bold yellow]{MARK}[/]")
    console.print(f"{profile.step}; mean of {profile.steps} steps", highlight=False)
    if profile.synthetic:
        console.print("Synthetic weights: acceptance means nothing here.")
    console.print(_tree(profile))
    console.print(_ranking(profile))
    ceiling = profile.ceiling
    shown = ", ".join(f"{size / 2**20:g}: {rate:,.0f}" for size, rate in ceiling.points)
    console.print(f"Ceiling, GB/s by MiB of a launch ({ceiling.source}): {shown}", highlight=False)


def _tree(profile: Profile) -> Table:
    table = Table(title="Phases of a step", title_justify="left")
    for heading in ("phase", "ms", "of the step", "launches", "MB"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    whole = profile.root.ms
    for phase in profile.root.walk():
        indent = "  " * len(phase.path)
        table.add_row(
            indent + (phase.path[-1] if phase.path else phase.name),
            f"{phase.ms:.4f}", f"{phase.ms / whole:.1%}", f"{phase.launches:g}",
            f"{phase.bytes / 1e6:,.2f}",
        )  # fmt: skip
    return table


def _ranking(profile: Profile) -> Table:
    table = Table(title="Left to gain: ms x (1 - achieved / ceiling)", title_justify="left")
    columns = ("phase", "to gain ms", "ms", "MB a launch", "GB/s", "ceiling", "of ceiling")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for residual in profile.ranking:
        each = residual.bytes / max(residual.launches, 1.0) / 1e6
        table.add_row(
            residual.name, f"{residual.ms_to_gain:.4f}", f"{residual.ms:.4f}", f"{each:,.2f}",
            f"{residual.achieved_gb_s:,.1f}", f"{residual.ceiling_gb_s:,.1f}",
            f"{residual.of_ceiling:.1%}" + (" impossible" if residual.impossible else ""),
        )  # fmt: skip
    return table
