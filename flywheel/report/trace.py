"""The incumbent and the noise over time, as numbers to be plotted. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flywheel import best as best_of
from flywheel.ledger.rows import BlockRow, ScreenRow, VariantRow, View
from flywheel.lever import canonical
from flywheel.statistics import history
from flywheel.statistics.band import Band, pool

# The pooled spread moves slowly; more places would only cost time.
NOISE_PLACES = 24


@dataclass(frozen=True, slots=True)
class Level:
    """The incumbent's time per token in one block, and which epoch the block belongs to."""

    at_utc: str
    ms: float
    block: str
    run: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """One incumbent: the decision that made it (None for the first) and its band in ms/token."""

    decision: int | None
    label: str
    mean_ms: float
    low_ms: float | None
    high_ms: float | None
    loads: int


@dataclass(frozen=True, slots=True)
class Noise:
    """Spread of one block within its load, and between loads as pooled so far; fractions."""

    at_utc: str
    block: str
    run: str
    within: float
    between: float | None


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything over time, under one ruler, oldest first."""

    ruler: str = ""
    levels: tuple[Level, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    noise: tuple[Noise, ...] = ()


def trace(view: View, *, since_utc: str | None = None) -> Trace:
    """Blocks of the newest ruler that times tokens; only those that ended since, if given."""
    newest = newest_timed(view)
    if newest is None or newest.ruler_id is None:
        return Trace()
    pairs = _timed(view, newest.ruler_id, since_utc)
    # Another build of the engine is another epoch, whatever its configuration.
    known = {source: history.levels(view, newest.ruler_id, source)
             for source in {block.source_sha256 for _, block in pairs}}
    epochs: dict[tuple[str, str | None], Epoch] = {}
    points = []
    for variant, block in pairs:
        config = variant.candidate if variant.purpose == "anchor" else variant.incumbent
        key = canonical(dict(config)), block.source_sha256
        if key not in epochs:
            found = best_of.level_of(known[block.source_sha256], config)
            epochs[key] = _epoch(view, variant, found)
        points.append(_level(variant, block, list(epochs).index(key)))
    label = view.rulers[newest.ruler_id].label
    noise = _noise(view, [block for _, block in pairs])
    return Trace(label, tuple(points), tuple(epochs.values()), noise)


def _level(variant: VariantRow, block: BlockRow, epoch: int) -> Level:
    estimate = block.estimate
    assert estimate is not None
    # An anchor's candidate is the incumbent: it was measured against the frozen first.
    moved = estimate.effect if variant.purpose == "anchor" else 0.0
    return Level(
        ended(block), math.exp(estimate.level_log_ms + moved), block.id, block.runs[0].id, epoch
    )


def _epoch(view: View, variant: VariantRow, found: tuple[Band, int] | None) -> Epoch:
    assert found is not None, "a measured configuration has a level"
    band, made_by = found[0], variant.from_decision
    maker = next((v for v in view.variants
                  if v.decision is not None and v.decision.number == made_by), None)
    label = "the first configuration" if maker is None else maker.lever.label()
    return Epoch(
        made_by if maker is not None else None, label, math.exp(band.mean),
        bounded_exp(band.low), bounded_exp(band.high), band.n,
    )


def newest_timed(view: View) -> BlockRow | None:
    """The newest block that timed tokens; rulers of tau and of lossy text are others."""
    timed = (b for b in reversed(view.blocks())
             if b.estimate and b.estimate.metric == "ms_per_token")
    return next(timed, None)


def of_synthetic(view: View, block: BlockRow | ScreenRow | None) -> bool:
    """Whether a block, or a screen, was measured with random weights."""
    if block is None or block.ruler_id is None:
        return False
    return view.rulers[block.ruler_id].synthetic


def ended(block: BlockRow) -> str:
    """When a block's last run ended, or was planned."""
    return max((r.ended_utc or r.created_utc for r in block.runs), default="")


def _timed(
    view: View, ruler_id: int, since_utc: str | None
) -> list[tuple[VariantRow, BlockRow]]:
    pairs = [
        (variant, block)
        for variant in view.variants
        for block in variant.measured
        if block.ruler_id == ruler_id
        and block.runs
        and (since_utc is None or ended(block) >= since_utc)
    ]
    return sorted(pairs, key=lambda pair: pair[1].serial)


def bounded_exp(value: float) -> float | None:
    """exp of a band's end, None where the end is infinite or beyond any real time."""
    return math.exp(value) if math.isfinite(value) and abs(value) < 700.0 else None


def _noise(view: View, blocks: Sequence[BlockRow]) -> tuple[Noise, ...]:
    step = max(1, math.ceil(len(blocks) / NOISE_PLACES))
    out = []
    for i, block in enumerate(blocks):
        estimate = block.estimate
        assert estimate is not None
        between = None
        if i % step == 0 or block is blocks[-1]:
            between = spread_between(view, block)
        out.append(Noise(ended(block), block.id, block.runs[0].id, estimate.within_sd, between))
    return tuple(out)


def spread_between(view: View, upto: BlockRow) -> float | None:
    """The sd of one block's effect as pooled up to that block; None while nothing says."""
    known = pool(history.series(view, upto))
    return known.sd if known.nu > 0 and math.isfinite(known.sd) else None
