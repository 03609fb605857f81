"""The levers of sweeps: a grid's all at once, a search's as far as it has come.

A search lives in no store of its own: what is known of it is rebuilt from the ledger for every
question, so there is one truth, and the same history gives the same answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from flywheel.ledger.rows import VariantRow, View
from flywheel.lever import Lever, canonical
from flywheel.sweep import Sweep

# An answer that was tried already is asked again so often, each time with other dice.
_ASKS = 24
# A cold lever is screened with another one: a search asks for two at a time.
_AT_ONCE = {True: 1, False: 2}


def expand(sweeps: Sequence[Sweep], view: View | None) -> tuple[Lever, ...]:
    """Every lever that the sweeps have come to; in a search the ones to be tried now are last."""
    found: list[Lever] = []
    for sweep in sweeps:
        values = _searched(sweep, view) if sweep.search else sweep.values
        found += [sweep.lever(value) for value in values]
    return tuple(found)


def _searched(sweep: Sweep, view: View | None) -> tuple[object, ...]:
    tried = _tried(sweep, view)
    values: list[object] = [value for value, _ in tried]
    seen = {canonical(value) for value in values}
    waiting = sum(outcome is None for _, outcome in tried)
    for _ in range(min(_AT_ONCE[sweep.hot] - waiting, sweep.trials - len(values))):
        value = _ask(sweep, tried, seen, view)
        if value is None:
            break
        values.append(value)
        seen.add(canonical(value))
    return tuple(values)


def _tried(sweep: Sweep, view: View | None) -> list[tuple[Any, float | str | None]]:
    """Each value tried, with its log gain; None while it is open, "void" where there is none."""
    if view is None or view.campaign is None:
        return []
    found: dict[str, tuple[Any, float | str | None]] = {}
    for variant in view.variants:
        if variant.lever.sweep == sweep.name and variant.lever.field_name == sweep.field:
            value = variant.lever.change[sweep.field]
            found[canonical(value)] = value, _outcome(variant)
    return list(found.values())


def _outcome(variant: VariantRow) -> float | str | None:
    """What a variant came to; a dead run is no number, and so no bad one."""
    if variant.screened is not None:
        return variant.screened.answer.gain
    if variant.decision is None:
        return None
    return "void" if variant.decision.mean is None else variant.decision.mean


def _ask(
    sweep: Sweep,
    tried: Sequence[tuple[Any, float | str | None]],
    seen: set[str],
    view: View | None,
) -> object | None:
    """A value that was not tried yet; None when the search finds no other."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ends: Any = (sweep.low, sweep.high)
    kind = "IntDistribution" if sweep.whole else "FloatDistribution"
    space: Mapping[str, Any] = {
        sweep.field: getattr(optuna.distributions, kind)(*ends, log=sweep.log)
    }
    seed = 0 if view is None or view.campaign is None else view.campaign.settings.seed
    for again in range(_ASKS):
        dice = zlib.crc32(f"{seed} {sweep.name} {len(seen)} {again}".encode())
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=dice, n_startup_trials=sweep.trials // 2),
        )
        for value, outcome in tried:
            if _between(sweep, value):
                study.add_trial(_trial(sweep.field, value, outcome, space))
        value = study.ask(dict(space)).params[sweep.field]
        if canonical(value) not in seen:
            return value
    return None


def _between(sweep: Sweep, value: object) -> bool:
    """Whether a search could have asked for it: its ends may have been others at that time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    assert sweep.low is not None
    assert sweep.high is not None
    return sweep.low <= value <= sweep.high and (isinstance(value, int) or not sweep.whole)


def _trial(
    field: str, value: Any, outcome: float | str | None, space: Mapping[str, Any]
) -> optuna.trial.FrozenTrial:
    states = optuna.trial.TrialState
    if isinstance(outcome, float):
        return optuna.trial.create_trial(
            params={field: value}, distributions=dict(space), value=outcome
        )
    state = states.FAIL if outcome == "void" else states.RUNNING
    return optuna.trial.create_trial(
        params={field: value}, distributions=dict(space), state=state
    )
