"""May a head be released? The floors of the release gate over what the ledger holds. Pure."""

from __future__ import annotations

from flywheel import release
from flywheel.errors import DecisionError
from flywheel.heads.numbers import Standing, stock_beside
from flywheel.ledger.rows import View


def shortfalls(view: View, head: Standing) -> tuple[str, ...]:
    """Every reason why the head must not be released, with the exact figure; empty if it may be."""
    mine = head.measured
    if mine is None:
        return ("it was never measured",)
    candidate, incumbent = mine.candidate, mine.before
    out = []
    if head.decision is None or not head.decision.promoted:
        word = "undecided" if head.decision is None else head.decision.ending
        out.append(f"it was not promoted by the loop: {word}")
    elif head.stage != "live":
        out.append("it was never proved in service")
    stock = stock_beside(view, mine)
    if stock is None:
        out.append("the stock head was not measured under its ruler and code")
        kept: tuple[release.Floor, ...] = ()
    else:
        try:
            kept = release.floors(candidate.categories, stock.categories, incumbent.categories)
        except DecisionError as error:
            kept = ()
            out.append(str(error))
    held = None
    if candidate.held_out is not None and incumbent.held_out is not None:
        held = candidate.held_out - incumbent.held_out
    ruling = release.rule(candidate.suite, incumbent.suite)
    return (*out, *release.against_release(ruling, kept, held))
