"""The width analysis as one page: lines for the terminal, a section of HTML, plain JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from flywheel.box.clock import count
from flywheel.report import plots
from flywheel.report.frame import frame
from flywheel.width import analysis, calibration
from flywheel.width.analysis import Ceilings, Choice, Position, PromptWidths
from flywheel.width.calibration import Calibration
from flywheel.width.evidence import Evidence

# A cost model further off than this cannot rank widths that differ by less.
_BAD_MODEL = 0.15
_HINDSIGHT = "ceiling, chosen with hindsight"


@dataclass(frozen=True, slots=True)
class WidthPage:
    """Everything that the report says about widths; `missing` is what the log did not tell."""

    label: str
    sources: tuple[str, ...]
    width: int
    policy: str
    step_ms: tuple[tuple[int, float], ...]
    rough: tuple[int, ...]
    beside_ms: float
    positions: tuple[Position, ...]
    choices: tuple[Choice, ...]
    prompts: tuple[PromptWidths, ...]
    ceilings: Ceilings | None
    calibration: Calibration | None
    target_ceiling: float | None
    missing: tuple[str, ...]
    caveats: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def width_page(evidence: Evidence) -> WidthPage:
    """The analysis of one configuration."""
    found = analysis.positions(evidence.prompts)
    return WidthPage(
        label=evidence.label,
        sources=evidence.sources,
        width=evidence.width,
        policy=evidence.policy,
        step_ms=tuple((rows, ns / 1e6) for rows, ns in sorted(evidence.costs.step_ns.items())),
        rough=evidence.costs.rough,
        beside_ms=evidence.costs.draft_ns / 1e6,
        positions=found,
        choices=analysis.choices(found, evidence.costs),
        prompts=analysis.by_prompt(evidence),
        ceilings=analysis.ceilings(evidence),
        calibration=calibration.calibrate(evidence.score, evidence.scores),
        target_ceiling=analysis.target_ceiling(evidence.target_top, evidence.width),
        missing=tuple(_missing(evidence)),
        caveats=(*evidence.caveats, *_caveats(evidence)),
    )


def _missing(evidence: Evidence) -> Iterator[str]:
    profile = "engine.measure in profile mode prints it, see docs/log-contract.md"
    if not evidence.scores:
        yield f"calibration: no confidence of the draft head by round ({profile})"
    if not evidence.target_top:
        yield f"entropy ceiling: no top probability of the target by token ({profile})"
    if not evidence.costs.step_ns:
        yield "cost by width: the runs have no step costs"


def _caveats(evidence: Evidence) -> Iterator[str]:
    error = analysis.model_error(evidence)
    if error is not None and abs(error) > _BAD_MODEL:
        yield (
            f"the cost model is {error * 100:+.0f} % off the measured rounds: the machine was busy "
            "or steps cost more in company, and no width here is to be believed"
        )
    if evidence.policy != "fixed":
        yield (
            f"widths were chosen by {evidence.policy}: late positions were reached where the head "
            "was sure, so what is said of a fixed width is at best a bound"
        )
    if len(evidence.prompts) < 8:
        counted = count(len(evidence.prompts), "prompt")
        yield f"{counted}: best widths by prompt say nothing of others"


def lines(page: WidthPage) -> Iterator[tuple[str, str]]:
    """(head, text) pairs for a terminal; an empty head continues the one above."""
    yield "width", f"{page.label} · width {page.width}, {page.policy}"
    yield "cost", ", ".join(cost_words(page)) or "-"
    if page.beside_ms:
        yield "", f"{page.beside_ms:.3g} ms a round beside the verify step"
    yield from _position_lines(page.positions)
    for i, one in enumerate(page.choices):
        yield "at width" if i == 0 else "", f"{one.width}  {one.ms_per_token:8.4g} ms/token"
    if page.prompts:
        yield "prompts", f"tokens/round, then the best width ({_HINDSIGHT})"
    for row in page.prompts:
        yield "", prompt_words(row)
    yield from _ceiling_lines(page)
    yield from _calibration_lines(page.calibration)
    for text in page.missing:
        yield "missing", text
    for text in page.caveats:
        yield "caveat", text


def cost_words(page: WidthPage) -> Iterator[str]:
    """`C(k)` in milliseconds and beside C(1), as printed."""
    first = dict(page.step_ms).get(1)
    for rows, ms in page.step_ms:
        beside = f" ({ms / first:.2f}x)" if first and rows > 1 else ""
        yield f"C({rows}) {'>= ' if rows in page.rough else ''}{ms:.3g} ms{beside}"


def prompt_words(row: PromptWidths) -> str:
    """One prompt as printed."""
    gain = 1 - row.best.ms_per_token / row.used_ms
    return (
        f"{row.name} {row.category}: {row.tau:.2f}, best width {row.best.width} at "
        f"{row.best.ms_per_token:.4g} ms/token ({gain * 100:+.1f} % over {row.used_ms:.4g}; "
        f"measured {row.measured_ms:.4g})"
    )


def _position_lines(found: Sequence[Position]) -> Iterator[tuple[str, str]]:
    for i, p in enumerate(found):
        yield "accepted" if i == 0 else "", (
            f"{p.position}: {p.share * 100:5.1f} % [{p.low * 100:.0f}, {p.high * 100:.0f}] of "
            f"{p.reached} that got there; {p.survival * 100:.1f} % of all rounds"
        )


def _ceiling_lines(page: WidthPage) -> Iterator[tuple[str, str]]:
    c = page.ceilings
    if c is not None:
        yield "best fixed", (
            f"width {c.best_fixed.width}: {c.fixed_gain * 100:+.1f} % over the rounds as they were "
            f"({c.used_ms:.4g} ms/token by this cost model)"
        )
        yield "oracle", (
            f"{c.prompt_gain * 100:.1f} % more by the best width of each prompt ({_HINDSIGHT})"
        )
        yield "", (
            f"{c.round_gain * 100:.1f} % over the rounds as they were by offering what each was to "
            f"accept ({_HINDSIGHT})"
        )
        yield "", f"{c.perfect_gain * 100:.1f} % if every draft were right (a perfect head)"
    if page.target_ceiling is not None:
        yield "realistic", (
            f"{page.target_ceiling:.2f} tokens/round at width {page.width} and temperature 1 for a "
            "head that knows the target's distribution but not its draw"
        )


def _calibration_lines(found: Calibration | None) -> Iterator[tuple[str, str]]:
    if found is None:
        return
    auc = "-" if found.auc is None else f"{found.auc:.3f}"
    errors = "" if found.error is None else (
        f", calibration error {found.error:.3f}, Brier {found.brier:.3f}")
    yield found.score, (
        f"AUC {auc} over {found.count} reached slots ({found.accepted} accepted){errors}"
    )
    for one in found.bins:
        bar = "#" * round(one.came * 30)
        yield "", f"{one.said:8.3f}  {one.came * 100:5.1f} %  {bar} ({one.count})"


def section(page: WidthPage) -> str:
    """The page as an HTML fragment, with its plots as inline SVG."""
    cost, accepted = "cost of a step by rows", "accepted by position, of the rounds that got there"
    drawn = (
        (cost, plots.bars(cost, [(f"C({rows})", ms, f"{ms:.3g} ms") for rows, ms in page.step_ms])),
        (accepted, plots.bars(
            accepted,
            [(str(p.position), p.share, f"{p.share * 100:.0f} %") for p in page.positions], top=1.0,
        )),
        by_width(page), by_score(page),
    )  # fmt: skip
    figures = "".join(
        f"<figure><figcaption><b>{escape(title.capitalize())}</b></figcaption>{plot}</figure>"
        for title, plot in drawn if plot
    )
    rows = "".join(f"<dt>{escape(h)}</dt><dd>{escape(t)}</dd>" for h, t in lines(page))
    return f'<section><div class="plots">{figures}</div><dl>{rows}</dl></section>'


def by_width(page: WidthPage) -> tuple[str, str]:
    """Title and plot of the time per token that each width would take."""
    title = "time per token by width"
    values = [(str(c.width), c.ms_per_token, f"{c.ms_per_token:.3g} ms") for c in page.choices]
    return title, plots.bars(title, values)


def by_score(page: WidthPage) -> tuple[str, str]:
    """Title and reliability plot of what the head said of its drafts; no plot without scores."""
    found = page.calibration
    if found is None:
        return "", ""
    title = f"accepted by {found.score}"
    values = [(f"{b.said:.2f}", b.came, f"{b.came * 100:.0f} %") for b in found.bins]
    return title, plots.bars(title, values, top=1.0)


def html(page: WidthPage) -> str:
    """The fragment as a page of its own: nothing fetched, light and dark, phone and paper."""
    title = f"Widths: {page.label}"
    return frame(title, f"<header><h1>{escape(title)}</h1></header>{section(page)}")
