"""Plots as inline SVG text: no library, no script, colours from the page's own style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from flywheel.report.document import Row
from flywheel.report.glyphs import Axis
from flywheel.report.trace import Level, Noise, Trace
from flywheel.report.words import ms, seconds_between, stamp
from flywheel.statistics.decide import two_digits

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 16, 28
# Most places that a time axis names, and dots that a plot shows.
TIMES, MOST_POINTS = 4, 600
Point = TypeVar("Point")


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lies: `x` of a place in time (0 to 1), `y` of a value."""

    y: Callable[[float], float]

    @staticmethod
    def x(share: float) -> float:
        """Left edge to right edge."""
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def forest_cell(row: Row, scale: Axis) -> str:
    """One lever's band on the common scale; it stretches to the width of its cell."""
    low = scale.low if row.low is None else row.low
    high = scale.high if row.high is None else row.high
    x1, x2, zero = (100 * scale.share(v) for v in (low, high, 0.0))
    mean = row.mean or 0.0
    words = "no band" if row.mean is None else _band_words(row)
    parts = [f'<line class="zero" x1="{zero:.2f}" y1="-99" x2="{zero:.2f}" y2="199"/>']
    if row.mean is not None:
        parts.append(f'<line class="band" x1="{x1:.2f}" y1="8" x2="{x2:.2f}" y2="8"/>')
        if low <= scale.low:
            parts.append('<path class="open" d="M0 8L2 3V13Z"/>')
        if row.high is None or row.high > scale.high:
            parts.append('<path class="open" d="M100 8L98 3V13Z"/>')
        if scale.low <= mean <= scale.high:
            at = 100 * scale.share(mean)
            parts.append(f'<line class="dot" x1="{at:.2f}" y1="8" x2="{at:.2f}" y2="8"/>')
    return (
        '<svg viewBox="0 0 100 16" preserveAspectRatio="none" role="img">'
        f"<title>{escape(row.label)}: {words}</title>{''.join(parts)}</svg>"
    )


def _band_words(row: Row) -> str:
    ends = ("unbounded" if e is None else f"{e * 100:.1f} %" for e in (row.low, row.high))
    return f"saves {(row.mean or 0.0) * 100:.1f} % of the time, band {' to '.join(ends)}"


def incumbent(trace: Trace, href: Callable[[str], str | None]) -> str:
    """The incumbent's ms/token block by block, each epoch's band behind it, promotions marked."""
    levels = trace.levels
    if not levels:
        return ""
    values = [level.ms for level in levels]
    near = [e for p in trace.epochs for e in (p.low_ms, p.high_ms)
            if e is not None and min(values) / 1.6 <= e <= max(values) * 1.6]
    low, high = _padded(min(values + near), max(values + near))
    frame = Frame(lambda v: _linear(v, low, high))
    places = _places([level.at_utc for level in levels])
    parts = _y_grid(frame, _ticks(low, high), lambda v: f"{v:g}") + _x_axis(levels, places)
    for number, epoch in enumerate(trace.epochs):
        mine = [p for p, level in zip(places, levels, strict=True) if level.epoch == number]
        if not mine:
            continue
        x1, x2 = frame.x(min(mine)) - 3, frame.x(max(mine)) + 3
        top = frame.y(min(high, epoch.high_ms or high))
        bottom = frame.y(max(low, epoch.low_ms or low))
        parts.append(f'<rect class="area" x="{x1:.1f}" y="{top:.1f}" width="{x2 - x1:.1f}" '
                     f'height="{max(0.0, bottom - top):.1f}"/>')
        parts.append(_line("mean", x1, frame.y(epoch.mean_ms), x2, frame.y(epoch.mean_ms)))
        if epoch.decision is not None:
            parts.append(_line("mark", x1, TOP, x1, HEIGHT - BOTTOM))
            parts.append(_text(x1 + 3, TOP + 8, f"D{epoch.decision}", "start"))
    for place, level in _thinned(list(zip(places, levels, strict=True))):
        said = f"{ms(level.ms)} ms/token, block {level.block}, {stamp(level.at_utc)} UTC"
        at = frame.x(place), frame.y(level.ms)
        parts.append(_point("load", at, said, href(level.run), len(levels)))
    said = f"{len(levels)} blocks under ruler {trace.ruler}, from {ms(values[0])} to "
    return _svg("Incumbent over time, ms per token", said + f"{ms(values[-1])} ms/token", parts)


def noise(trace: Trace, href: Callable[[str], str | None]) -> str:
    """Spread within each load (rings) and between loads as pooled so far (line), in per cent."""
    points = [n for n in trace.noise if n.within > 0]
    pooled = [n for n in trace.noise if n.between]
    if not points and not pooled:
        return ""
    values = [n.within for n in points] + [n.between for n in pooled if n.between]
    low, high = min(values) / 1.5, max(values) * 1.5
    frame = Frame(lambda v: _linear(math.log10(v), math.log10(low), math.log10(high)))
    places = dict(zip([n.block for n in trace.noise], _places([n.at_utc for n in trace.noise]),
                      strict=True))
    decades = [m * 10.0**k for k in range(-8, 3) for m in (1, 3) if low <= m * 10.0**k <= high]
    parts = _y_grid(frame, decades, lambda v: f"{v * 100:.6g} %")
    parts += _x_axis(trace.noise, list(places.values()))
    path = " ".join(f"{frame.x(places[n.block]):.1f},{frame.y(n.between or low):.1f}"
                    for n in pooled)
    for one in _thinned(points):
        said = f"{two_digits(one.within)} within the load, block {one.block}"
        at = frame.x(places[one.block]), frame.y(one.within)
        parts.append(_point("within", at, said, href(one.run), len(points)))
    if len(pooled) > 1:
        parts.append(f'<polyline class="between" points="{path}"/>')
    said = f"{len(points)} blocks; per cent on a logarithmic scale"
    return _svg("Noise over time, within a load and between loads", said, parts)


def bars(title: str, values: Sequence[tuple[str, float, str]], *, top: float | None = None) -> str:
    """Labelled bars from zero: (name, value, text). `top` fixes the height of a full bar."""
    full = top if top is not None else max((v for _, v, _ in values), default=0.0)
    if not values or full <= 0:
        return ""
    base, tallest = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP - 14
    step = min(84.0, (WIDTH - 20) / len(values))
    parts = [_line("grid", 10, base, 10 + step * len(values), base)]
    for i, (name, value, text) in enumerate(values):
        tall = max(0.0, min(1.0, value / full)) * tallest
        middle = 10 + (i + 0.5) * step
        parts.append(f'<rect class="bar" x="{middle - step * 0.3:.1f}" y="{base - tall:.1f}" '
                     f'width="{step * 0.6:.1f}" height="{tall:.1f}"/>')
        parts.append(_text(middle, base - tall - 5, text, "middle", "strong"))
        parts.append(_text(middle, base + 17, name, "middle"))
    said = ", ".join(f"{name}: {text}" for name, _, text in values)
    return _svg(title, said, parts)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most as many as a plot can show, evenly over the whole."""
    step = math.ceil(len(points) / MOST_POINTS)
    return points[::step] if step > 1 else points


def _point(kind: str, at: tuple[float, float], said: str, href: str | None, of: int) -> str:
    """One dot with its words, a link where the page has a place for its run; small among many."""
    kind, radius = (f"{kind} many", 1.6) if of > 150 else (kind, 2.5)
    dot = (f'<circle class="{kind}" r="{radius}" cx="{at[0]:.1f}" cy="{at[1]:.1f}">'
           f"<title>{escape(said)}</title></circle>")
    return dot if href is None else f'<a href="{escape(href)}">{dot}</a>'


def _linear(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low)
    return HEIGHT - BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - BOTTOM - TOP)


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _places(times: Sequence[str]) -> list[float]:
    """Shares of the time axis; evenly spread where all times are one."""
    if not times:
        return []
    whole = seconds_between(min(times), max(times)) if all(times) else 0.0
    if whole <= 0:
        return [i / max(1, len(times) - 1) for i in range(len(times))]
    first = min(times)
    return [seconds_between(first, t) / whole for t in times]


def _x_axis(points: Sequence[Level | Noise], places: Sequence[float]) -> list[str]:
    times = [p.at_utc for p in points]
    days = len({t[:10] for t in times}) > 1
    parts = [_line("grid", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM)]
    named, last = -1.0, ""
    for place, time in sorted(zip(places, times, strict=True)):
        word = time[5:10] if days else time[11:16]
        if (place - named < 1 / TIMES and named >= 0) or word == last:
            continue
        named, last = place, word
        anchor = "start" if place < 0.05 else "end" if place > 0.95 else "middle"
        parts.append(_text(Frame.x(place), HEIGHT - BOTTOM + 17, word, anchor))
    return parts


def _y_grid(
    frame: Frame, ticks: Sequence[float], word: Callable[[float], str]
) -> list[str]:
    parts = []
    for tick in ticks:
        y = frame.y(tick)
        parts.append(_line("grid", LEFT, y, WIDTH - RIGHT, y))
        parts.append(_text(LEFT - 6, y + 4, word(tick), "end"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Round values inside a range, three to six of them."""
    unit = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(m * unit for m in (10, 5, 2, 1) if (high - low) / (m * unit) >= 3 or m == 1)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, desc: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>'
        f"<desc>{escape(desc)}</desc>{''.join(parts)}</svg>"
    )
