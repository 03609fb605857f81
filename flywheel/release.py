"""Two gates for a draft head, pure: promotion on the suite, and release of the artefact.

Promotion asks for a margin over the incumbent at the same draft width; release also holds every
category to a floor, and the held-out text to a paired control. All numbers are exact fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from flywheel.errors import DecisionError

MARGIN = Fraction(35, 1000)
# Text that is mostly copied from the prompt may lose this much against the stock head.
SLACK = Fraction(2, 10)
RECONSTRUCTIVE = ("long_context", "agentic_format", "code_edit")
CONSTRUCTIVE = ("explanation", "code_gen", "reasoning")
# A held-out change beyond this, either way, is one; within it nothing was seen.
SEEN = Fraction(15, 100)
IMPROVED = Fraction(35, 100)


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a candidate is promoted: `needs` must be exceeded, a tie goes to the incumbent."""

    candidate: Fraction
    incumbent: Fraction
    needs: Fraction

    @property
    def promoted(self) -> bool:
        """Strictly above what it needs."""
        return self.candidate > self.needs

    @property
    def gain(self) -> Fraction:
        """Relative to the incumbent."""
        return self.candidate / self.incumbent - 1

    def sentence(self) -> str:
        """The ruling in one line."""
        word = "promoted" if self.promoted else "refused"
        return (
            f"{word}: {float(self.candidate):.4f} against {float(self.incumbent):.4f} "
            f"({float(self.gain) * 100:+.2f} %), needs more than {float(self.needs):.4f}"
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """What one category must not fall under."""

    category: str
    kind: str
    candidate: Fraction
    least: Fraction

    @property
    def shortfall(self) -> Fraction:
        """How much is missing; zero when the floor is kept."""
        return max(self.least - self.candidate, Fraction())

    @property
    def kept(self) -> bool:
        """Not under the floor."""
        return not self.shortfall

    def sentence(self) -> str:
        """The floor in one line."""
        said = "kept" if self.kept else f"short by {exact(self.shortfall)}"
        return (f"{self.category} ({self.kind}): {exact(self.candidate)} against "
                f"{exact(self.least)}, {said}")


def rule(candidate: Fraction, incumbent: Fraction, margin: Fraction = MARGIN) -> Ruling:
    """The promotion gate; both numbers must be of one ruler and one width."""
    return Ruling(candidate, incumbent, incumbent * (1 + margin))


def floors(
    candidate: Mapping[str, Fraction],
    stock: Mapping[str, Fraction],
    incumbent: Mapping[str, Fraction],
) -> tuple[Floor, ...]:
    """Every category's floor. Raises DecisionError when a number that it needs is not there."""
    for needed, taus in ((RECONSTRUCTIVE, stock), (CONSTRUCTIVE, incumbent)):
        if missing := [c for c in needed if c not in taus or c not in candidate]:
            raise DecisionError(f"no floor without a number for {', '.join(missing)}")
    copied = (
        Floor(c, "reconstructive", candidate[c], stock[c] - SLACK) for c in RECONSTRUCTIVE
    )
    made = (Floor(c, "constructive", candidate[c], incumbent[c]) for c in CONSTRUCTIVE)
    return (*copied, *made)


def holdout(change: Fraction) -> str:
    """The class of a held-out change against a paired control: a loss has a word of its own."""
    if change < -SEEN:
        return "REGRESSED"
    if change < SEEN:
        return "saturated"
    return "improved" if change >= IMPROVED else "small"


def against_release(
    ruling: Ruling, kept: tuple[Floor, ...], held_out: Fraction | None
) -> tuple[str, ...]:
    """Every reason why the artefact must not be released; empty when it may be."""
    out = [] if ruling.promoted else [f"it is not promoted: {ruling.sentence()}"]
    out += [f.sentence() for f in kept if not f.kept]
    if held_out is None:
        out.append("the held-out text was not measured beside a control")
    elif holdout(held_out) == "REGRESSED":
        out.append(f"REGRESSED on held-out text by {exact(-held_out)}")
    return tuple(out)


def exact(value: Fraction) -> str:
    """A decimal without rounding where there is one, else four places."""
    for places in range(2, 7):
        if (value * 10**places).denominator == 1:
            return f"{float(value):.{places}f}"
    return f"{float(value):.4f}"
