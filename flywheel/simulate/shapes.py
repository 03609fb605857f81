"""The two plots of a study as inline SVG text; colours come from the picture's own style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 720
LABEL = 230


def curves(title: str, lines: Mapping[str, Sequence[tuple[float, float, float, float]]]) -> str:
    """Shares in [0, 1] over a fraction: for each line its (x, y, low, high), with whiskers."""
    if not lines:
        return ""
    xs = sorted({point[0] for points in lines.values() for point in points})
    left, right, bottom, top = 60, WIDTH - 190, 210, 30

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
        parts.append(
            f'<text class="c{i}" x="{right + 12}" y="{top + 20 * i + 4}">{escape(name)}</text>'
        )
    return _svg(bottom + 30, title, parts)


def pairs(title: str, values: Sequence[tuple[str, float, float]]) -> str:
    """Two bars a row, (name, true, claimed) as fractions; what is off the scale says its number."""
    if not values:
        return ""
    full = max(abs(true) for _, true, _ in values) * 1.6 or 1.0
    parts = []
    for i, (name, true, claimed) in enumerate(values):
        top = 14 + 44 * i
        parts.append(_text(LABEL + 30, top + 18, name, "end"))
        for k, (kind, value) in enumerate((("true", true), ("claimed", claimed))):
            wide = max(0.0, min(1.0, value / full)) * (WIDTH - LABEL - 150)
            parts.append(
                f'<rect class="{kind}" x="{LABEL + 40}" y="{top + 16 * k}" '
                f'width="{wide:.1f}" height="12"/>'
            )
            said = f"{kind} {value * 100:.0f} %"
            parts.append(_text(LABEL + 46 + wide, top + 16 * k + 11, said, "start"))
    return _svg(44 * len(values) + 20, title, parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
