"""The study as standalone SVG pictures: no library, no script, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from flywheel.simulate.outcome import Summary

WIDTH, LABEL = 720, 260
STYLE = """
text{font:12px system-ui,sans-serif;fill:#333}line.axis{stroke:#999}
.c0{stroke:#1668b8;fill:none}.c1{stroke:#c2571a;fill:none}.c2{stroke:#3a8a3e;fill:none}
.c0,.c1,.c2{stroke-width:2}text.c0{fill:#1668b8;stroke:none}text.c1{fill:#c2571a;stroke:none}
text.c2{fill:#3a8a3e;stroke:none}rect.true{fill:#3a8a3e}rect.claimed{fill:#c2571a}
@media(prefers-color-scheme:dark){text{fill:#ddd}line.axis{stroke:#777}}
"""
# Gain, power and the ends of its exact interval.
Point = tuple[float, float, float, float]


def power(summaries: Sequence[Summary]) -> str:
    """Power on the base box by true gain, with exact intervals, for each rule that was asked."""
    lines: dict[str, list[Point]] = {}
    for s in summaries:
        if s.truth in ("mixed", "null") or s.box != "base" or s.power is None:
            continue
        low, high = s.power_low or 0.0, s.power_high or 1.0
        lines.setdefault(s.rule, []).append((float(s.truth), s.power, low, high))
    return _curves("power: share of levers of this true gain promoted", lines)


def claims(summaries: Sequence[Summary]) -> str:
    """True beside claimed gain of a whole campaign, for each rule on the base box."""
    found = [
        (s.rule, s.true_gain, s.claimed_gain)
        for s in summaries
        if s.truth == "mixed" and s.box == "base"
    ]
    return _pairs("summed gain of a campaign: true and claimed", found)


def _curves(title: str, lines: Mapping[str, Sequence[Point]]) -> str:
    left, right, bottom, top = 60, WIDTH - 190, 210, 30
    xs = sorted({point[0] for points in lines.values() for point in points})

    def x(value: float) -> float:
        return left + (right - left) * value / max(xs)

    def y(share: float) -> float:
        return bottom - (bottom - top) * share

    parts = [_line(left, y(s), right, y(s), "axis") for s in (0.0, 0.5, 1.0)]
    parts += [_text(left - 8, y(s) + 4, f"{s:.1f}", "end") for s in (0.0, 0.5, 1.0)]
    parts += [_text(x(v), bottom + 18, f"{v * 100:.3g} %", "middle") for v in xs]
    for i, (name, points) in enumerate(lines.items()):
        path = "M" + "L".join(f"{x(p[0]):.1f} {y(p[1]):.1f}" for p in points)
        parts.append(f'<path class="c{i}" d="{path}"/>')
        parts += [_line(x(p[0]), y(p[2]), x(p[0]), y(p[3]), f"c{i}") for p in points]
        parts.append(_text(right + 12, top + 20 * i + 4, name, "start", f"c{i}"))
    return _svg(bottom + 30, title, parts)


def _pairs(title: str, values: Sequence[tuple[str, float, float]]) -> str:
    """Two bars a row; a bar that leaves the scale is cut, its number is not."""
    full = max((abs(true) for _, true, _ in values), default=0.0) * 1.6 or 1.0
    parts = []
    for i, (name, true, claimed) in enumerate(values):
        top = 14 + 44 * i
        parts.append(_text(LABEL, top + 18, name, "end"))
        for k, (kind, value) in enumerate((("true", true), ("claimed", claimed))):
            wide = max(0.0, min(1.0, value / full)) * (WIDTH - LABEL - 120)
            parts.append(
                f'<rect class="{kind}" x="{LABEL + 10}" y="{top + 16 * k}" '
                f'width="{wide:.1f}" height="12"/>'
            )
            said = f"{kind} {value * 100:.0f} %"
            parts.append(_text(LABEL + 16 + wide, top + 16 * k + 11, said, "start"))
    return _svg(44 * len(values) + 20, title, parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<style>{STYLE}</style><title>{escape(title)}</title>{''.join(parts)}</svg>\n"
    )
