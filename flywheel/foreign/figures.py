"""The figures of an admitted decode log, as exact fractions. Pure.

Three means of one table, and they differ: of the printed two-decimal values, of the exact ratios,
and pooled (tokens over forwards). None is a tau where generation went past the end of sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flywheel.foreign import suite
from flywheel.foreign.record import DecodeLog, Point


@dataclass(frozen=True, slots=True)
class Figures:
    """`first_eos` maps a prompt to the first end-of-sequence index among its printed tokens.

    None there means only that it was not among them: the engine did not stop, and the log does not
    print the rest.
    """

    points: int
    prompts: int
    mean_of_exact: Fraction
    mean_of_printed: Fraction
    pooled: Fraction
    tok_s: Fraction
    tokens: int
    forwards: int
    base_tok_s: Fraction
    first_eos: tuple[tuple[int, int | None], ...]

    @property
    def past_eos(self) -> int:
        """How many prompts are known to have been decoded past their end."""
        return sum(at is not None for _, at in self.first_eos)

    def as_dict(self) -> dict[str, object]:
        """Plain JSON; ratios as floats beside the integers that they come from."""
        return {
            "points": self.points,
            "suite_prompts": self.prompts,
            "tokens_per_forward_mean_of_exact_ratios": float(self.mean_of_exact),
            "tokens_per_forward_mean_of_printed_2dp": float(self.mean_of_printed),
            "tokens_per_forward_pooled": float(self.pooled),
            "tok_s_mean_of_printed_2dp": float(self.tok_s),
            "tokens": self.tokens,
            "target_forwards": self.forwards,
            "ar_tok_s": float(self.base_tok_s),
            "first_eos_within_printed_40_tokens": {str(n): at for n, at in self.first_eos},
            "decodes_past_eos": self.past_eos,
            "is_a_tau": False,
            "why_not": why_no_tau(self),
        }


def figures(log: DecodeLog) -> Figures:
    """The figures of an admitted log over the suite's prompts, the control left out."""
    mine = [p for p in log.complete_points if p.prompt != suite.CONTROL.number]
    tokens, forwards = sum(p.generated or 0 for p in mine), sum(p.verifies for p in mine)
    return Figures(
        points=len(log.complete_points),
        prompts=len(mine),
        mean_of_exact=_mean([p.exact_tau for p in mine]),
        mean_of_printed=_mean([p.tau or Fraction() for p in mine]),
        pooled=Fraction(tokens, forwards),
        tok_s=_mean([p.tok_s or Fraction() for p in mine]),
        tokens=tokens,
        forwards=forwards,
        base_tok_s=log.base.tok_s or Fraction(),
        first_eos=tuple((p.prompt, first_eos(p)) for p in mine),
    )


def first_eos(point: Point) -> int | None:
    """Where the first end of sequence is among the printed tokens."""
    tokens = point.first_tokens
    return tokens.index(suite.EOS_ID) if suite.EOS_ID in tokens else None


def why_no_tau(found: Figures) -> str:
    """One sentence on what the numbers are."""
    return (
        f"{found.past_eos} of {found.prompts} prompts were decoded past their end of sequence "
        f"(id {suite.EOS_ID} among the first {suite.PRINTED_TOKENS} tokens) and the engine never "
        "stops there, so these are tokens per forward over junk, not a tau"
    )


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction()) / len(values)
