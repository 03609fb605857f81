"""Is a head better than the one it would replace? Pure.

Decoding repeats itself, so a second load says nothing new: the prompt is the sample. A head must
beat the bar on the suite, beyond doubt between prompts, and must not regress on the hold-out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from flywheel import release
from flywheel.heads.numbers import mean
from flywheel.statistics.band import (
    Band,
    Pool,
    e_value,
    effect_band,
    log_gain,
    needed_t,
    spread,
)
from flywheel.statistics.block import BlockEstimate, PromptRounds
from flywheel.statistics.decide import Rule, Verdict, detectable

_NOTHING = Pool(0.0, 0.0)  # other heads differ in their own ways: no spread is borrowed from them


def verdict(estimates: Sequence[BlockEstimate], alpha_t: float, rule: Rule) -> Verdict:
    """The verdict on a head from its newest measurement; never asks for another.

    Promoted when the suite's mean tau exceeds the bar and the e-value over prompts reaches
    1 / alpha_t; a regression on the hold-out or in a category vetoes, and has its own word.
    """
    rows = estimates[-1].by_prompt
    suite = [r for r in rows if not r.held_out]
    gains = [r.gain for r in suite]
    band = effect_band(gains, _NOTHING, alpha=rule.alpha_band)
    used = spread(gains, _NOTHING)
    e = e_value(len(gains), band.mean - log_gain(rule.delta_min), used.variance, used.nu)
    ruling = release.rule(_tau(suite, candidate=True), _tau(suite, candidate=False))
    lost = regressions(rows, rule)
    seen = detectable(len(gains), used.variance, used.nu, alpha_t, log_gain(rule.delta_min))
    least = least_rise(seen)
    said = (
        f"tau {float(ruling.incumbent):.3f} to {float(ruling.candidate):.3f}, "
        f"{math.expm1(band.mean) * 100:+.1f} % a prompt [{_span(band)}]"
    )

    def ended(ending: str, code: str, sentence: str) -> Verdict:
        return Verdict(
            ending,
            code,
            sentence,
            len(estimates),
            band,
            e,
            alpha_t,
            detectable=seen,
            regressions=lost,
            sd=math.sqrt(used.variance) if used.nu > 0 else math.nan,
        )

    if lost:
        return ended("rejected", "regression", f"regression in {', '.join(lost)}; {said}")
    if all(gain == 0 for gain in gains):
        return ended("rejected", "no_difference", f"the same rounds on every prompt; {said}")
    if ruling.promoted and alpha_t > 0 and e >= 1 / alpha_t:
        return ended("promoted", "promoted", said)
    if band.high < math.log1p(float(release.MARGIN)):
        return ended("rejected", "bounded", f"under the bar of {_bar()}; {said}")
    word = "nothing" if least is None else f"{least:.1f} %"
    spoken = f"{len(gains)} prompts could have seen {word}; {said}"
    return ended("inconclusive", "prompts", spoken)


def sees_nothing(prompts: int, alpha_t: float) -> bool:
    """Whether no gain of a head, however large, could be told over so few prompts."""
    return not math.isfinite(needed_t(prompts, prompts - 1, alpha_t))


def regressions(rows: Sequence[PromptRounds], rule: Rule) -> tuple[str, ...]:
    """The hold-out and the suite's categories that got worse beyond doubt."""
    groups: dict[str, list[PromptRounds]] = defaultdict(list)
    for row in rows:
        groups["the hold-out" if row.held_out else row.category].append(row)
    found = []
    for name, members in sorted(groups.items()):
        change = _tau(members, candidate=True) - _tau(members, candidate=False)
        if name == "the hold-out" and release.holdout(change) == "REGRESSED":
            found.append(name)
            continue
        band = effect_band([r.gain for r in members], _NOTHING, alpha=rule.alpha_band)
        if band.high < 0 and band.mean < -log_gain(rule.guard):
            found.append(name)
    return tuple(found)


def _tau(rows: Sequence[PromptRounds], *, candidate: bool) -> Fraction:
    return mean(Fraction(r.made, r.candidate if candidate else r.incumbent) for r in rows)


def least_rise(saved: float | None) -> float | None:
    """The least rise of tau that could have been told, in per cent, from the detectable share of
    forwards saved: never under the bar. None where nothing could."""
    return None if saved is None else max((1 / (1 - saved) - 1), float(release.MARGIN)) * 100


def _span(band: Band) -> str:
    return ", ".join(
        f"{math.expm1(end) * 100:+.1f}" if math.isfinite(end) else "?"
        for end in (band.low, band.high)
    )


def _bar() -> str:
    return f"{float(release.MARGIN) * 100:g} %"
