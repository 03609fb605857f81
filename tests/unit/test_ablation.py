"""Old promotions looked at again, ceilings that no box could see, and baselines that expire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from records import NOW, World, drive, lever, play

from flywheel import best as best_of
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.rows import VariantRow, View
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import plan, planned
from flywheel.loop.ablation import AFTER, ablation
from flywheel.statistics.campaign import QUICK

START = {f"f{i}": "off" for i in range(5)}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a quick campaign whose incumbent has five switches, all off."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start=START, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def switches(count: int) -> list[Lever]:
    return [lever(f"l{i}", {f"f{i}": "on"}) for i in range(count)]


def world(count: int, gain: float = 0.05, **more: float) -> World:
    effects = {f'{{"f{i}":"on"}}': -gain for i in range(count)}
    return World({**effects, **more}, sd=0.002)


def ablations(ledger: Ledger) -> list[VariantRow]:
    return [v for v in see(ledger).variants if v.lever.name.startswith("without.")]


def test_an_old_win_is_taken_back_once_others_stand_on_it(ledger: Ledger) -> None:
    drive(ledger, switches(AFTER + 1), world(AFTER + 1))
    looked = ablations(ledger)
    assert [v.lever.change for v in looked] == [{"f0": "off"}]
    assert looked[0].incumbent["f0"] == "on"
    assert looked[0].decision.ending == "rejected"
    assert looked[0].decision.details["worth_less_than"] < 0
    assert best_of.fold(see(ledger)).config["f0"] == "on"
    assert rebuild(ledger).same


def test_a_win_that_later_ones_made_worthless_is_undone(ledger: Ledger) -> None:
    class Crowded(World):
        def level(self, config: object) -> float:
            done = sum(config[f"f{i}"] == "on" for i in (1, 2, 3))  # type: ignore[index]
            spoilt = 0.15 if done == 3 and config["f0"] == "on" else 0.0  # type: ignore[index]
            return super().level(config) + spoilt  # type: ignore[arg-type]

    effects = {f'{{"f{i}":"on"}}': -gain for i, gain in enumerate((0.05, 0.05, 0.05, 0.3))}
    drive(ledger, switches(AFTER + 1), Crowded(effects, sd=0.002))
    assert ablations(ledger)[0].decision.promoted
    best = best_of.fold(see(ledger)).config
    assert (best["f0"], best["f1"]) == ("off", "on")


def test_no_win_is_looked_at_before_others_stand_on_it_nor_twice(ledger: Ledger) -> None:
    drive(ledger, switches(AFTER), world(AFTER))
    assert ablations(ledger) == []
    drive(ledger, switches(AFTER + 1), world(AFTER + 1))
    assert len(ablations(ledger)) == 1
    view = see(ledger)
    assert ablation(view, best_of.fold(view), {}) is None


def test_what_was_there_before_must_be_known(ledger: Ledger) -> None:
    drive(ledger, switches(AFTER), world(AFTER))
    view = see(ledger)
    best = best_of.fold(view)
    assert ablation(view, best, {}, after=2).change == {"f0": "off"}
    bare = replace(view, variants=tuple(replace(v, incumbent={}) for v in view.variants))
    assert ablation(bare, best, {}, after=2) is None
    assert ablation(bare, best, {"{}": {"f0": "default"}}, after=2).change == {"f0": "default"}


def test_a_ceiling_that_this_box_cannot_see_leaves_the_lever_open(ledger: Ledger) -> None:
    loud = World({}, sd=0.02)
    stop = drive(ledger, [lever("small", {"f0": "on"}, ceiling=0.012)], loud)
    small = next(v for v in see(ledger).variants if v.lever.name == "small")
    assert (small.decision.ending, small.decision.code) == ("inconclusive", "unresolvable")
    assert "blocks could see" in small.decision.sentence
    assert small.blocks == ()
    assert small.decision.test is None
    assert not stop.halt


def test_a_ceiling_that_a_quiet_box_can_see_is_measured(ledger: Ledger) -> None:
    drive(ledger, [lever("small", {"f0": "on"}, ceiling=0.06)], world(1))
    assert next(v for v in see(ledger).variants if v.lever.name == "small").measured


def test_verdicts_keep_the_conditions_they_hold_under(ledger: Ledger) -> None:
    drive(ledger, switches(2), world(1))
    for variant in see(ledger).variants:
        if variant.purpose != "lever" or variant.decision is None:
            continue
        kept = variant.decision.details["conditions"]
        assert kept["source_sha256"] == variant.measured[-1].source_sha256
        assert kept["ruler_id"] == variant.measured[-1].ruler_id
        assert len(kept["incumbent"]) == 64


def test_the_incumbent_band_expires_with_the_engines_code(ledger: Ledger) -> None:
    drive(ledger, switches(1), world(1))
    best = best_of.fold(see(ledger))
    band, _ = best_of.level(see(ledger), best.config, 1)
    assert band.n > 3

    def newer(_step: plan.NextBlock, made: object) -> object:
        head = made.header  # type: ignore[attr-defined]
        return replace(made, header=replace(  # type: ignore[type-var]
            head, engine=replace(head.engine, source_sha256="cd" * 32)))

    planned.open_campaign(ledger, QUICK, start=dict(best.config), box="box", now_utc=NOW)
    step = plan.next_step(see(ledger), [])
    play(ledger, step, World(bend=newer))  # type: ignore[arg-type]
    band, sessions = best_of.level(see(ledger), best.config, 1)
    assert (band.n, sessions) == (1, 1)
