"""One lever: every variant, block and verdict, and what closed or reopened it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.ledger.rows import DecisionRow, VariantRow, View
from flywheel.lever import Lever, fingerprint
from flywheel.report import glyphs
from flywheel.report.compose import block_line, label_of, looked_at
from flywheel.report.document import BlockLine
from flywheel.report.headline import fractions
from flywheel.report.tables import Line, Page, wrapped
from flywheel.report.words import ends, ms, sample, stamp
from flywheel.statistics.decide import two_digits


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision as recorded, superseded ones too. Gains are fractions of time saved."""

    number: int
    created_utc: str
    ending: str
    code: str
    sentence: str
    mean: float | None
    low: float | None
    high: float | None
    unbounded: bool
    blocks: int
    e_value: float
    alpha_t: float
    rule: str
    supersedes: int | None
    superseded_by: int | None
    conditions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """The lever against one incumbent, with the conditions that its verdict holds under."""

    variant: str
    campaign: int
    name: str
    label: str
    opened_utc: str
    why: str
    predicted: float
    measured: float | None
    incumbent: str
    from_decision: int | None
    rulers: tuple[str, ...]
    source: str | None
    box: str
    blocks: tuple[BlockLine, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeverPage:
    """Everything about one lever; `state` is whether it may run now, and why not.

    `others` are the standing verdicts on the same field's other values, its reverse among them.
    """

    name: str
    identity: str
    kind: str
    label: str
    claim: str
    falsify: str
    predicted: float
    ceiling: float | None
    family: str
    state: str
    trials: tuple[Trial, ...]
    others: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def lever_page(view: View, lever: Lever, state: str) -> LeverPage:
    """The page of one lever; variants under another name for the same change are its own too."""
    mine = [v for v in view.variants if not v.null and v.lever.identity == lever.identity]
    return LeverPage(
        lever.name, lever.identity, lever.kind, lever.label(), lever.claim, lever.falsify,
        lever.predicted_gain, lever.ceiling, lever.family, state,
        tuple(_trial(view, v) for v in mine),
        tuple(_other(v) for v in view.variants if _beside(v, lever)),
    )


def _beside(variant: VariantRow, lever: Lever) -> bool:
    same_field = variant.lever.field_name == lever.field_name and not variant.null
    return same_field and variant.lever.identity != lever.identity and bool(variant.decision)


def _other(variant: VariantRow) -> str:
    made = variant.decision
    assert made is not None
    name = f"D{made.number} {variant.lever.name} ({label_of(variant)})"
    return f"{name}: {made.ending}, {made.sentence}"


def _trial(view: View, variant: VariantRow) -> Trial:
    verdicts = tuple(_verdict(d) for d in view.decisions if d.variant_id == variant.id)
    standing = [v for v in verdicts if v.superseded_by is None]
    last = variant.measured[-1] if variant.measured else None
    box = next(c.box for c in view.campaigns if c.id == variant.campaign_id)
    rulers = dict.fromkeys(b.ruler_id for b in variant.measured if b.ruler_id is not None)
    return Trial(
        variant=variant.id,
        campaign=variant.campaign_id,
        name=variant.lever.name,
        label=label_of(variant),
        opened_utc=variant.created_utc,
        why=variant.why,
        predicted=variant.predicted_gain,
        measured=standing[-1].mean if standing else None,
        incumbent=fingerprint(dict(variant.incumbent))[:12],
        from_decision=variant.from_decision,
        rulers=tuple(view.rulers[r].label for r in rulers),
        source=last.source_sha256[:12] if last and last.source_sha256 else None,
        box=box,
        blocks=tuple(block_line(b) for b in looked_at(view, variant)),
        verdicts=verdicts,
        findings=tuple(
            f"F{f.number} {f.created_utc[:10]} {f.sentence}"
            for f in view.findings if f.variant_id == variant.id
        ),
    )


def _verdict(row: DecisionRow) -> Verdict:
    mean = low = high = None
    if row.band is not None:
        mean, low, high = fractions(row.band)
    return Verdict(
        row.number, row.created_utc, row.ending, row.code, row.sentence, mean, low, high,
        row.band is not None and (low is None or high is None), row.n, row.e_value, row.alpha_t,
        row.rule_version, row.supersedes, row.superseded_by, row.details.get("conditions", {}),
    )


def lines(page: LeverPage, paper: Page) -> Iterator[Line]:
    """The page on a terminal."""
    yield from wrapped(paper, "", f"{page.name}: {page.label}", style="bold")
    for head, text in (
        ("claim", page.claim), ("falsified by", page.falsify),
        ("predicted", f"{page.predicted * 100:.3g} % of the time saved"),
        ("ceiling", "" if page.ceiling is None else f"{page.ceiling * 100:.3g} %"),
        ("state", page.state), ("identity", f"{page.identity[:16]}  {page.kind}, {page.family}"),
    ):  # fmt: skip
        if text:
            yield from wrapped(paper, head, text)
    if not page.trials:
        yield from wrapped(paper, "measured", "never")
    for trial in page.trials:
        yield Line()
        yield from _trial_lines(trial, paper)
    if page.others:
        yield Line()
        yield from wrapped(paper, "", "others on the same field", style="bold")
    for other in page.others:
        yield from wrapped(paper, "", other, indent=2)


def _trial_lines(trial: Trial, paper: Page) -> Iterator[Line]:
    named = f"{trial.variant}  {trial.label}, opened {stamp(trial.opened_utc)} UTC"
    yield from wrapped(paper, "", named, style="bold")
    if trial.why:
        yield from wrapped(paper, "why", trial.why)
    made = f"made by D{trial.from_decision}" if trial.from_decision else "the first"
    where = [f"incumbent {trial.incumbent} ({made})", f"campaign {trial.campaign}",
             f"box {trial.box}", *(f"ruler {r}" for r in trial.rulers)]
    if trial.source:
        where.append(f"engine {trial.source}")
    yield from wrapped(paper, "conditions", " · ".join(where))
    yield from wrapped(paper, "gain", _against(trial))
    for block in trial.blocks:
        yield from wrapped(paper, block.id, block_text(block))
    yield from _forest(trial, paper)
    for verdict in trial.verdicts:
        yield from wrapped(paper, f"D{verdict.number}", verdict_text(verdict))
    for finding in trial.findings:
        number, _, said = finding.partition(" ")
        yield from wrapped(paper, number, said)


def _against(trial: Trial) -> str:
    if trial.measured is None:
        return f"predicted {trial.predicted * 100:.3g} %, not measured to the end"
    return f"predicted {trial.predicted * 100:.3g} %, measured {trial.measured * 100:.2f} %"


def block_text(block: BlockLine) -> str:
    """One block in words."""
    runs = ", ".join(block.runs)
    if block.void_code is not None:
        detail = f", {block.void_detail}" if block.void_detail else ""
        return f"void: {block.void_code}{detail}; {runs}"
    if block.screened:
        return f"screen: {'; '.join(block.screened)}; {runs}"
    if block.gain is None or block.within is None or block.level is None:
        return f"open; {runs or 'no run yet'}"
    unit = f"tau {block.level:.2f}" if block.metric == "tau" else f"{ms(block.level)} ms/token"
    kind = "hot" if block.hot else "cold"
    return (
        f"{block.gain * 100:+.2f} %, within {two_digits(block.within)}, {kind}, "
        f"against {unit}; {runs}"
    )


def verdict_text(verdict: Verdict) -> str:
    """One decision in words."""
    parts = [f"{stamp(verdict.created_utc)}  {verdict.ending}: {verdict.sentence}"]
    if verdict.mean is not None:
        band = ends(verdict.low, verdict.high)
        stands_on = sample(verdict.blocks, measured=True)
        parts.append(f"{verdict.mean * 100:.1f} % {band} from {stands_on}")
        if verdict.blocks:
            parts.append(f"E {verdict.e_value:.3g} at alpha {verdict.alpha_t:.3g}")
    parts.append(f"rule {verdict.rule}")
    if verdict.superseded_by is not None:
        parts.append(f"superseded by D{verdict.superseded_by}")
    return " · ".join(parts)


def _forest(trial: Trial, paper: Page) -> Iterator[Line]:
    """The blocks' own gains and each verdict's band, on one scale."""
    rows: list[tuple[str, float, float | None, float | None]] = [
        (b.id, b.gain, b.gain, b.gain) for b in trial.blocks if b.gain is not None
    ]
    rows += [(f"D{v.number}", v.mean, v.low, v.high) for v in trial.verdicts if v.mean is not None]
    if len(rows) < 2:
        return
    scale = glyphs.axis([row[1:] for row in rows])
    for name, mean, low, high in rows:
        drawn = glyphs.bar(mean, low, high, scale, max(8, paper.width - 24), paper.pens)
        yield Line(f"  {name:<8} {mean * 100:>+8.2f} %  {drawn}")
