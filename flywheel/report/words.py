"""Numbers as the report prints them: one place, so that every form says the same."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from flywheel.box.clock import count


def seconds_between(first_utc: str, last_utc: str) -> float:
    """Seconds from one ISO time to another."""
    return (datetime.fromisoformat(last_utc) - datetime.fromisoformat(first_utc)).total_seconds()


def minutes(seconds: float) -> str:
    """`9 h 12 min`, `14 min`, or `7 s` under a minute."""
    whole = round(seconds / 60)
    if whole >= 60:
        return f"{whole // 60} h {whole % 60} min"
    return f"{whole} min" if seconds >= 60 else f"{seconds:.0f} s"


def stamp(utc: str) -> str:
    """An ISO time to the minute: `2026-11-28 22:00`."""
    return utc[:16].replace("T", " ")


def ends(low: float | None, high: float | None) -> str:
    """The ends of a band of fractions, in per cent; `?` where nothing bounds it."""
    return f"[{', '.join('?' if x is None else f'{x * 100:.1f}' for x in (low, high))}]"


def time_ends(low: float | None, high: float | None) -> str:
    """The same band as change in time: the other way round, signed."""
    texts = ("?" if x is None else f"{-x * 100:+.1f}" for x in (high, low))
    return f"[{', '.join(texts)}]"


def bound(high: float | None) -> str:
    """The most that a rejected lever can be worth, a fraction of time saved."""
    if high is None:
        return "not bounded"
    return f"less than {high * 100:.1f} %" if high >= 0 else f"costs over {-high * 100:.1f} %"


def sample(blocks: int, *, measured: bool) -> str:
    """What a verdict stands on: `3 blocks`; without one a screen, if anything was measured."""
    if blocks:
        return count(blocks, "block")
    return "a screen" if measured else "no block"


def ms(value: float) -> str:
    """Milliseconds to three digits or a hundredth, never in powers of ten."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def predicted(gain: float, metric: str) -> str:
    """A predicted gain as change in time, `-3 %` saves time; of a head in the forwards it takes."""
    return f"{-gain * 100:.3g} %" + (" forwards" if metric == "tau" else "")


def saved(metrics: Collection[str]) -> str:
    """What gains of these metrics are fractions of."""
    timed = any(metric != "tau" for metric in metrics)
    kinds = [*(["time"] if timed else []), *(["forwards"] if "tau" in metrics else [])]
    return " or ".join(kinds)
