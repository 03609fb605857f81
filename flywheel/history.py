"""What past blocks lend to the next decision: series for the variance pool. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.band import Series
from flywheel.ledger.rows import BlockRow, VariantRow, View
from flywheel.lever import canonical


def series(
    view: View,
    upto: BlockRow,
    *,
    exclude: Collection[str] = (),
    category: str | None = None,
    metric: str | None = None,
) -> tuple[Series, ...]:
    """Effects of all variants measured under the same ruler, metric and kind as block `upto`.

    Only blocks planned before or with it count, so that a later look gives the same answer. The
    effects of excluded variants stay out; their treatment-free contrasts do not. With `category`
    or `metric`, the effects within that category or on that guarded metric.
    """
    assert upto.estimate is not None
    assert upto.ruler_id is not None
    kind = Kind(upto.ruler_id, upto.estimate.metric, upto.estimate.hot)
    return series_of(view, kind, upto.serial, exclude=exclude, category=category, metric=metric)


@dataclass(frozen=True, slots=True)
class Kind:
    """What blocks must share to lend each other their spread."""

    ruler_id: int
    metric: str
    hot: bool


def series_of(
    view: View,
    kind: Kind,
    serial: int,
    *,
    exclude: Collection[str] = (),
    category: str | None = None,
    metric: str | None = None,
) -> tuple[Series, ...]:
    """As `series`, for a kind of block and all blocks up to that serial number."""
    found = []
    for variant in view.variants:
        blocks = [b for b in variant.measured if b.serial <= serial and kind_of(b) == kind]
        code = "" if variant.decision is None else variant.decision.code
        # Arms that were one and the same are no information about noise.
        if not blocks or code == "arms_probably_identical":
            continue
        effects: list[float] = []
        contrasts: list[float] = []
        for block in blocks:
            estimate = block.estimate
            assert estimate is not None
            if category is not None:
                effects += [e for name, e in estimate.categories if name == category]
            elif metric is not None:
                effects += [e for name, e in estimate.guards if name == metric]
            else:
                effects.append(estimate.effect)
                if estimate.contrast is not None:
                    contrasts.append(estimate.contrast)
        if variant.id in exclude:
            effects = []
        found.append(
            Series(tuple(effects), blocks[0].serial, tuple(contrasts), variant.null)
        )
    return tuple(found)


def kind_of(block: BlockRow) -> Kind | None:
    """The kind of a measured block; None of any other."""
    if block.estimate is None or block.ruler_id is None:
        return None
    return Kind(block.ruler_id, block.estimate.metric, block.estimate.hot)


def level_history(
    view: View, config: Mapping[str, Any], ruler_id: int
) -> tuple[list[tuple[float, int]], tuple[Series, ...]]:
    """Levels (log cost, session) of one configuration, and all other configurations' as series.

    Every block gives its incumbent's level, and with its effect the candidate's.
    """
    wanted = canonical(dict(config))
    levels: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for variant in view.variants:
        for block in variant.measured:
            if block.ruler_id != ruler_id or block.estimate is None:
                continue
            for name, value in _levels(variant, block):
                levels[name].append((value, variant.campaign_id, block.serial))
    mine = [(value, session) for value, session, _ in levels.pop(wanted, [])]
    others = tuple(
        Series(tuple(value for value, _, _ in rows), rows[0][2])
        for _, rows in sorted(levels.items())
    )
    return mine, others


def _levels(variant: VariantRow, block: BlockRow) -> list[tuple[str, float]]:
    estimate = block.estimate
    assert estimate is not None
    found = [(canonical(dict(variant.incumbent)), estimate.level_log_ms)]
    # In a null both arms are one configuration in one load: one sample, not two.
    if not variant.null:
        found.append((canonical(dict(variant.candidate)), estimate.level_log_ms + estimate.effect))
    return found
