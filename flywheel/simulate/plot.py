"""The study as standalone SVG pictures."""

from __future__ import annotations

from collections.abc import Sequence

from flywheel.simulate.outcome import Summary
from flywheel.simulate.shapes import curves, pairs

STYLE = """
text{font:12px system-ui,sans-serif;fill:#333}line.axis{stroke:#999}
.c0{stroke:#1668b8;fill:none}.c1{stroke:#c2571a;fill:none}.c2{stroke:#3a8a3e;fill:none}
.c0,.c1,.c2{stroke-width:2}text.c0{fill:#1668b8;stroke:none}text.c1{fill:#c2571a;stroke:none}
text.c2{fill:#3a8a3e;stroke:none}rect.true{fill:#3a8a3e}rect.claimed{fill:#c2571a}
line.whisker{stroke:#999}
@media(prefers-color-scheme:dark){text{fill:#ddd}line.axis{stroke:#777}}
"""


def power(summaries: Sequence[Summary]) -> str:
    """Power by true gain, with exact intervals, for each rule that was asked."""
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for s in summaries:
        if s.truth in ("mixed", "null") or s.box != "base" or s.power is None:
            continue
        low, high = s.power_low or 0.0, s.power_high or 1.0
        lines.setdefault(s.rule, []).append((float(s.truth), s.power, low, high))
    return standalone(curves("power: share of levers of this true gain promoted", lines))


def claims(summaries: Sequence[Summary]) -> str:
    """True beside claimed gain of a whole campaign, for each rule on the base box."""
    found = [
        (s.rule, s.true_gain, s.claimed_gain)
        for s in summaries
        if s.truth == "mixed" and s.box == "base"
    ]
    return standalone(pairs("summed gain of a campaign: true and claimed", found))


def standalone(svg: str) -> str:
    """An inline plot as a file of its own: with its name space and its style."""
    return svg.replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    ).replace("<title>", f"<style>{STYLE}</style><title>", 1) + "\n"
