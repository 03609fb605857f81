"""Where a run comes from: its campaign, its lever and its block, as JSON in its manifest.

The ledger has all of this in rows. The run's directory holds it too, so that run directories alone
are enough to make a lost ledger again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from flywheel.errors import RecordError
from flywheel.ledger.rows import CampaignRow, PatchRow
from flywheel.lever import Lever
from flywheel.loop.step import Choice, Mate, NextBlock
from flywheel.patch import record
from flywheel.statistics.campaign import Settings

# What the ledger at hand decides: whether rows are there already.
_OF_THE_LEDGER = ("new_variant", "new_block", "from_decision", "done")


@dataclass(frozen=True, slots=True)
class Lineage:
    """A block as planned, the campaign that it was planned in, and the patch that it measures."""

    campaign: CampaignRow
    step: NextBlock
    patch: PatchRow | None = None


def to_json(
    campaign: CampaignRow, step: NextBlock, patch: PatchRow | None = None
) -> dict[str, Any]:
    """The lineage of every run of a block."""
    planned = {f.name: getattr(step, f.name) for f in fields(step) if f.name not in _OF_THE_LEDGER}
    if (mate := step.mate) is not None:
        planned["mate"] = {
            "variant_id": mate.variant_id, "lever": _lever(mate.lever),
            "candidate": dict(mate.candidate),
        }
    if step.choice is not None:
        planned["choice"] = asdict(step.choice)
    return ({} if patch is None else {"patch": record.to_json(patch)}) | {
        "campaign": {
            "number": campaign.id,
            "settings": asdict(campaign.settings),
            "first_config": dict(campaign.first_config),
            "start_config": dict(campaign.start_config),
            "box": campaign.box,
            "created_utc": campaign.created_utc,
        },
        "block": {
            **planned,
            "lever": _lever(step.lever),
            "incumbent": dict(step.incumbent),
            "candidate": dict(step.candidate),
        },
    }


def _lever(lever: Lever) -> dict[str, Any]:
    told = {f.name: getattr(lever, f.name) for f in fields(lever) if f.init}
    return {**told, "change": dict(lever.change)}


def from_json(value: Mapping[str, Any]) -> Lineage:
    """Inverse of `to_json`; RecordError when something is missing or of another shape."""
    try:
        told, planned = value["campaign"], dict(value["block"])
        campaign = CampaignRow(
            int(told["number"]), Settings.from_dict(told["settings"]), dict(told["first_config"]),
            dict(told["start_config"]), str(told["box"]), str(told["created_utc"]),
        )
        planned["lever"] = Lever(**planned["lever"])
        if planned.get("mate") is not None:
            mate = dict(planned["mate"])
            planned["mate"] = Mate(**{**mate, "lever": Lever(**mate["lever"])})
        if (choice := planned.get("choice")) is not None:
            over = tuple((str(name), float(worth)) for name, worth in choice["runners_up"])
            planned["choice"] = Choice(float(choice["value"]), dict(choice["terms"]), over)
        step = NextBlock(**planned, new_variant=False, new_block=False)
        patch = value.get("patch")
        return Lineage(campaign, step, None if patch is None else record.from_json(patch))
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise RecordError(f"a run's lineage is incomplete: {error}") from error
