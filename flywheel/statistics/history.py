"""What past blocks lend to the next decision: series for the variance pool. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.ledger.rows import BlockRow, View
from flywheel.lever import canonical
from flywheel.statistics.band import Series

# Of each configuration, by its canonical JSON: (log cost, session, serial number of the block).
Levels = Mapping[str, Sequence[tuple[float, int, int]]]


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


def newest_source(view: View, ruler_id: int) -> str | None:
    """The engine's code in the newest measured block under one ruler; None before the first."""
    newest = max((b for b in view.blocks() if b.ruler_id == ruler_id and b.estimate is not None),
                 key=lambda b: b.serial, default=None)  # fmt: skip
    return None if newest is None else newest.source_sha256


def levels(view: View, ruler_id: int, source: str | None) -> Levels:
    """Every configuration's levels under one ruler and the engine's code, by its canonical JSON.

    Every block gives its incumbent's level, and with its effect the candidate's.
    """
    found: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for variant in view.variants:
        blocks = [b for b in variant.measured
                  if b.ruler_id == ruler_id and b.source_sha256 == source]
        if not blocks:
            continue
        incumbent = found[canonical(dict(variant.incumbent))]
        # In a null both arms are one configuration in one load: one sample, not two.
        candidate = None if variant.null else found[canonical(dict(variant.candidate))]
        for block in blocks:
            estimate = block.estimate
            assert estimate is not None
            place = variant.campaign_id, block.serial
            incumbent.append((estimate.level_log_ms, *place))
            if candidate is not None:
                candidate.append((estimate.level_log_ms + estimate.effect, *place))
    return found


def level_history(
    known: Levels, config: Mapping[str, Any]
) -> tuple[list[tuple[float, int]], tuple[Series, ...]]:
    """Levels (log cost, session) of one configuration, and all other configurations' as series."""
    wanted = canonical(dict(config))
    mine = [(value, session) for value, session, _ in known.get(wanted, ())]
    others = tuple(
        Series(tuple(value for value, _, _ in rows), rows[0][2])
        for name, rows in sorted(known.items()) if name != wanted
    )
    return mine, others
