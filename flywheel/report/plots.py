"""Plots as inline SVG text: no library, no script, colours from the page's own style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from flywheel.report.document import Row, Step

WIDTH = 720
LABEL = 230
ROW = 22


def forest(rows: Sequence[Row]) -> str:
    """The band of every decided lever: gain in per cent of time saved, zero as a line."""
    shown = [r for r in rows if r.mean is not None]
    if not shown:
        return ""
    # An unbounded end would squash every other band, so the axis follows the means and known ends.
    ends = [abs(x) for r in shown for x in (r.mean, r.low, r.high) if x is not None]
    reach = max(0.01, min(max(ends), 4 * max(abs(r.mean or 0.0) for r in shown) + 0.02))
    height = ROW * len(shown) + 40

    def x(gain: float) -> float:
        inside = max(-reach, min(reach, gain))
        return LABEL + (inside + reach) / (2 * reach) * (WIDTH - LABEL - 16)

    parts = [_line(x(0), 8, x(0), height - 28, "axis")]
    for tick in _ticks(reach):
        parts.append(_text(x(tick), height - 10, f"{tick * 100:+.3g} %" if tick else "0", "middle"))
        parts.append(_line(x(tick), height - 28, x(tick), height - 23, "axis"))
    for i, row in enumerate(shown):
        y = ROW * i + 20
        low = -reach if row.low is None else row.low
        high = reach if row.high is None else row.high
        kind = "null" if row.null else row.ending
        title = f"{row.label}: {row.said}, {row.blocks} blocks"
        parts.append(
            f'<a href="#d{row.decision}"><title>{escape(title)}</title>'
            + _text(LABEL - 10, y + 4, _cut(row.label), "end")
            + _line(x(low), y, x(high), y, f"band {kind}")
            + f'<circle class="dot {kind}" cx="{x(row.mean or 0):.1f}" cy="{y}" r="4"/></a>'
        )
    return _svg(height, "bands of all decided levers", parts)


def timeline(steps: Sequence[Step]) -> str:
    """The incumbent over time: per cent of time saved after each promotion, as a staircase."""
    if not steps:
        return ""
    gains = [0.0, *(-math.expm1(-s.gain) for s in steps)]
    top = max(*gains, 0.01)
    height, left, right = 190, 60, WIDTH - 20
    step = (right - left) / len(gains)

    def y(gain: float) -> float:
        return 150 - gain / top * 120

    parts = [_line(left, 150, right, 150, "axis")]
    path = ""
    for i, gain in enumerate(gains):
        move = "L" if i else "M"
        path += f"{move}{left + i * step:.1f} {y(gain):.1f}H{left + (i + 1) * step:.1f}"
        parts.append(_text(left + (i + 0.5) * step, y(gain) - 6, f"{gain * 100:.1f} %", "middle"))
        name = "first" if i == 0 else f"D{steps[i - 1].decision}"
        parts.append(_text(left + (i + 0.5) * step, 168, name, "middle"))
    parts.append(f'<path class="stair" d="{path}"/>')
    return _svg(height, "time saved after each promotion, summed (the headline is measured)", parts)


def bars(title: str, values: Sequence[tuple[str, float, str]], *, top: float | None = None) -> str:
    """Labelled bars from zero: (name, value, text). `top` fixes the height of a full bar."""
    if not values:
        return ""
    full = top if top is not None else max(v for _, v, _ in values)
    if full <= 0:
        return ""
    step = min(90.0, (WIDTH - 40) / len(values))
    parts = [_line(20, 140, 20 + step * len(values), 140, "axis")]
    for i, (name, value, text) in enumerate(values):
        tall = max(0.0, min(1.0, value / full)) * 110
        left = 20 + i * step
        parts.append(
            f'<rect class="bar" x="{left + step * 0.15:.1f}" y="{140 - tall:.1f}" '
            f'width="{step * 0.7:.1f}" height="{tall:.1f}"/>'
        )
        parts.append(_text(left + step / 2, 134 - tall, text, "middle"))
        parts.append(_text(left + step / 2, 157, name, "middle"))
    return _svg(168, title, parts)


def _ticks(reach: float) -> list[float]:
    unit = 10 ** math.floor(math.log10(reach))
    step = next((m * unit for m in (0.5, 1.0, 2.0, 5.0) if reach / (m * unit) <= 3), unit)
    count = int(reach / step + 1e-9)
    return [k * step for k in range(-count, count + 1)]


def _cut(label: str) -> str:
    return label if len(label) <= 34 else label[:33] + "…"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
