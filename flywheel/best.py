"""The best configuration: a fold of the decisions, never a stored opinion. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.errors import LedgerError
from flywheel.ledger.rows import BlockRow, VariantRow, View
from flywheel.lever import canonical, fingerprint
from flywheel.statistics.band import Band, effect_band, level_band, pool
from flywheel.statistics.history import Levels, level_history, levels, newest_source, series


@dataclass(frozen=True, slots=True)
class Best:
    """`promotions` are the numbers of the decisions that made `config` out of `first_config`."""

    config: Mapping[str, Any]
    first_config: Mapping[str, Any]
    promotions: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of the configuration's canonical JSON."""
        return fingerprint(dict(self.config))

    @property
    def decision(self) -> int | None:
        """The decision that made it; None while nothing was promoted."""
        return self.promotions[-1] if self.promotions else None


def engine_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration the engine is asked for as such.

    Its head is a folder beside it, and its patch a revision of the code that it is run from.
    """
    return {name: value for name, value in config.items() if name not in ("head", "patch")}


def fold(view: View) -> Best:
    """Apply every standing promotion, oldest first. Canaries promote no configuration.

    Raises LedgerError when there is no campaign yet.
    """
    campaign = view.campaign
    if campaign is None:
        raise LedgerError("the ledger has no campaign yet; run `flywheel run` first")
    config: dict[str, Any] = dict(view.campaigns[0].first_config)
    promotions: list[int] = []
    variants = {v.id: v for v in view.variants}
    by_campaign = {c.id: c for c in view.campaigns}
    current = view.campaigns[0].id
    for decision in view.standing():
        variant = variants[decision.variant_id]
        if variant.campaign_id != current:
            current = variant.campaign_id
            config = _start(config, by_campaign[current].start_config, promotions)
        if decision.promoted and variant.purpose == "lever":
            config.update({name: variant.candidate[name] for name in variant.lever.change})
            promotions.append(decision.number)
    if current != campaign.id:
        config = _start(config, campaign.start_config, promotions)
    return Best(config, dict(campaign.first_config), tuple(promotions))


def _start(
    config: dict[str, Any], declared: Mapping[str, Any], promotions: list[int]
) -> dict[str, Any]:
    """A campaign begins where it declares to; promotions before a different start are history."""
    if canonical(dict(declared)) != canonical(config):
        promotions.clear()
    return dict(declared)


def anchors(view: View, best: Best) -> tuple[VariantRow, ...]:
    """Variants that measured this very configuration against the frozen first one."""
    wanted = (canonical(dict(best.first_config)), canonical(dict(best.config)))
    return tuple(
        v
        for v in view.variants
        if v.purpose == "anchor"
        and (canonical(dict(v.incumbent)), canonical(dict(v.candidate))) == wanted
    )


def headline(view: View, best: Best) -> tuple[Band, tuple[BlockRow, ...]] | None:
    """The measured log gain of the best over the frozen first, with its blocks; None if unmeasured.

    Never a sum of promotions: gains do not add.
    """
    blocks = tuple(b for v in anchors(view, best) for b in v.measured)
    if not blocks:
        return None
    last = blocks[-1]
    blocks = tuple(b for b in blocks if b.ruler_id == last.ruler_id and b.hot == last.hot)
    gains = [b.estimate.gain for b in blocks if b.estimate is not None]
    past = pool(series(view, blocks[-1], exclude={b.variant_id for b in blocks}))
    return effect_band(gains, past), blocks


def level(view: View, config: Mapping[str, Any], ruler_id: int) -> tuple[Band, int] | None:
    """Where the next load of a configuration should fall (log ms/token) and from how many sessions.

    Loads of other configurations lend their spread, never their level. A level expires with the
    engine's code: only blocks of the code that ran last count. None if never measured.
    """
    return level_of(levels(view, ruler_id, newest_source(view, ruler_id)), config)


def level_of(known: Levels, config: Mapping[str, Any]) -> tuple[Band, int] | None:
    """The same from levels that were gathered already."""
    mine, others = level_history(known, config)
    if not mine:
        return None
    band = level_band([value for value, _ in mine], pool(others))
    return band, len({session for _, session in mine})
