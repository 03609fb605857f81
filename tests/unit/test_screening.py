"""Screens in whole campaigns: what they save, what they close, and what they never lend."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever, manifest_of, play

from flywheel import best as best_of
from flywheel.errors import LedgerError
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.rows import BlockRow, VariantRow, View
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import bracket, judge, plan, planned
from flywheel.run import lineage
from flywheel.run.record import RunRecord
from flywheel.statistics.campaign import QUICK

GAINS = {'{"fast":"on"}': -0.06, '{"slow":"on"}': 0.06}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a quick campaign."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={"moe": "loop"}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def found(ledger: Ledger, name: str) -> VariantRow:
    return [v for v in see(ledger).variants if v.lever.name == name][-1]


def cold(name: str, **more: object) -> Lever:
    return lever(name, {name: "on"}, hot=False, **more)


def tiles(*values: int) -> list[Lever]:
    return [lever(f"tile{n}", {"row_tile": n}) for n in values]


def screens(ledger: Ledger) -> list[tuple[str, str | None]]:
    return [(b.variant_id, b.mate_id) for b in see(ledger).blocks() if b.screen]


def test_two_cold_levers_share_the_loads_of_one_screen(ledger: Ledger) -> None:
    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004))
    fast, slow = found(ledger, "fast"), found(ledger, "slow")
    assert screens(ledger) == [(fast.id, slow.id)]
    block = next(b for b in see(ledger).blocks() if b.screen)
    arms = []
    with ledger.reading() as connection:
        for run in block.runs:
            arms += [a["name"] for a in views.manifest(connection, run.id)["config"]["arms"]]
    assert arms == ["A", "B", "C", "A"]
    assert fast.decision.promoted
    assert fast.screened.answer.gain == pytest.approx(0.06, abs=0.02)
    assert (slow.decision.ending, slow.decision.code) == ("rejected", "screened_out")
    assert slow.decision.details["worth_less_than"] < 0
    assert not slow.blocks


def test_a_screen_spends_no_test_and_lends_no_estimate(ledger: Ledger) -> None:
    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004))
    fast, slow = found(ledger, "fast"), found(ledger, "slow")
    assert slow.decision.test is None
    assert fast.decision.test is not None
    assert len(fast.blocks) == fast.decision.n + 1
    assert fast.blocks[0].screen
    assert fast.blocks[0].estimate is None
    with closing(sqlite3.connect(ledger.path)) as raw:
        other = fast.measured[0].id
        columns = [r[1] for r in raw.execute("PRAGMA table_info(block)")]
        listed = ", ".join("?" if c == "block_id" else c for c in columns)
        with pytest.raises(sqlite3.IntegrityError, match="lends no estimate"):
            raw.execute(f"INSERT INTO block SELECT {listed} FROM block WHERE block_id = ?",
                        (fast.blocks[0].id, other))


def test_the_spread_of_cold_loads_is_learnt_before_the_first_screen(ledger: Ledger) -> None:
    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004))
    nulls = [v for v in see(ledger).variants if v.purpose == "null"]
    assert [(v.blocks[0].hot, len(v.measured)) for v in nulls] == [(True, 4), (False, 2)]


def test_a_lone_cold_lever_goes_straight_to_its_blocks(ledger: Ledger) -> None:
    drive(ledger, [cold("fast")], World(GAINS, load_sd=0.004))
    assert screens(ledger) == []
    assert found(ledger, "fast").decision.promoted


def test_levers_that_are_built_apart_are_not_screened_together(ledger: Ledger) -> None:
    drive(ledger, [cold("fast"), cold("slow", slow=True)], World(GAINS, load_sd=0.004))
    assert screens(ledger) == []


def test_a_family_sends_one_member_to_its_confirmation(ledger: Ledger) -> None:
    gains = {'{"row_tile":3}': -0.03, '{"row_tile":2}': -0.06, '{"row_tile":1}': 0.02}
    drive(ledger, tiles(3, 2, 1), World(gains))
    chosen, second, last = (found(ledger, f"tile{n}") for n in (2, 3, 1))
    assert chosen.decision.promoted
    assert (second.decision.ending, second.decision.code) == ("inconclusive", "family")
    assert "row_tile -> 2" in second.decision.sentence
    assert last.decision.code == "screened_out"
    assert [len(v.measured) for v in (second, last)] == [0, 0]
    assert [v.decision.test for v in (second, last)] == [None, None]
    assert best_of.fold(see(ledger)).config == {"moe": "loop", "row_tile": 2}
    assert rebuild(ledger).same


def test_a_family_is_screened_without_others_in_between(ledger: Ledger) -> None:
    later = replace(tiles(3)[0], predicted_gain=0.001)
    others = [lever(f"x{i}", {f"x{i}": "on"}, predicted_gain=0.02) for i in range(2)]
    drive(ledger, [*tiles(1), later, *others], World({'{"row_tile":1}': -0.06}))
    order = [v.lever.name for v in see(ledger).variants if v.purpose == "lever"]
    assert order[:2] == ["tile1", "tile3"]


def test_levers_are_screened_when_tests_are_scarce(ledger: Ledger) -> None:
    planned.close_campaign(ledger, 1, "small", now_utc=NOW)
    scarce = replace(QUICK, budget=5)
    planned.open_campaign(ledger, scarce, start={"moe": "loop"}, box="box", now_utc=NOW)
    many = [lever(f"x{i}", {f"x{i}": "on"}) for i in range(7)]
    drive(ledger, [*many, lever("fast", {"fast": "on"}, predicted_gain=0.001)], World(GAINS))
    assert found(ledger, "fast").decision.promoted
    assert len(screens(ledger)) >= 3


def test_a_void_screen_sends_both_to_confirmation(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        return ("dead", "x") if step.screen else None

    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004, fails=fails))
    assert len(screens(ledger)) == 1
    assert found(ledger, "fast").decision.promoted
    slow = found(ledger, "slow").decision
    assert (slow.ending, slow.n > 1) == ("rejected", True)


def test_a_gate_that_fails_in_a_screen_closes_the_lever_whose_load_it_was(ledger: Ledger) -> None:
    runs = []

    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        runs.append(step.screen)
        if step.screen and runs.count(True) == 3:
            return "gate_failed", "lossless, arm C, prompt 5: token 212 is 1, plain says 2"
        return None

    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004, fails=fails))
    assert found(ledger, "slow").decision.ending == "incorrect"
    assert found(ledger, "fast").decision.promoted


def test_a_screen_that_was_cut_short_goes_on_where_it_stopped(ledger: Ledger) -> None:
    world, levers = World(GAINS, load_sd=0.004), [cold("fast"), cold("slow")]
    step = None
    for _ in range(40):
        step = plan.next_step(see(ledger), levers)
        if step.screen:
            break
        play(ledger, step, world)
    assert isinstance(step, plan.NextBlock)
    planned.plan_block(ledger, step, now_utc=NOW)
    load = step.loads()[0]
    made = world.run(step, load)
    planned.start_run(ledger, manifest_of(made, block_id=step.block_id), slot=0, now_utc=NOW)
    again = plan.next_step(see(ledger), levers)
    assert again.block_id == step.block_id
    assert again.screen
    assert again.mate == step.mate
    assert [(x.slot, x.arms[0][0]) for x in again.loads()] == [(1, "B"), (2, "C"), (3, "A")]


def test_the_lineage_of_a_screen_holds_its_mate(ledger: Ledger) -> None:
    world, levers = World(GAINS, load_sd=0.004), [cold("fast"), cold("slow")]
    while not (step := plan.next_step(see(ledger), levers)).screen:
        play(ledger, step, world)
    campaign = see(ledger).campaign
    told = json.loads(json.dumps(lineage.to_json(campaign, step)))
    again = lineage.from_json(told)
    assert again.campaign == campaign
    assert again.step == replace(step, new_variant=False, new_block=False)


def test_what_passed_against_an_older_incumbent_is_confirmed_against_the_new_one(
    ledger: Ledger,
) -> None:
    gains = {**GAINS, '{"also":"on"}': -0.05}
    drive(ledger, [cold("fast"), cold("also")], World(gains, load_sd=0.004))
    also = [v for v in see(ledger).variants if v.lever.name == "also"]
    assert also[0].decision.code == "incumbent_moved"
    assert also[0].decision.test is None
    assert also[1].incumbent == {"moe": "loop", "fast": "on"}
    assert also[1].decision.promoted
    assert len(screens(ledger)) == 1
    assert best_of.fold(see(ledger)).config == {"moe": "loop", "fast": "on", "also": "on"}


def test_a_waiting_lever_is_not_tried_a_second_time(ledger: Ledger) -> None:
    world, levers = World({'{"row_tile":1}': -0.06}), tiles(2, 1)
    for _ in range(40):
        step = plan.next_step(see(ledger), levers)
        play(ledger, step, world)
        if found_waiting := [v for v in see(ledger).variants if v.waiting]:
            break
    with ledger.reading() as connection:
        effective = views.effective_configs(connection)
    view = see(ledger)
    from flywheel.loop.eligible import admit

    ready, refused = admit(view, levers, best_of.fold(view), effective, ("config",))
    name = found_waiting[0].lever.name
    assert name not in [c.lever.name for c in ready]
    assert any("waits to be confirmed" in r.reason for r in refused if r.lever.name == name)


def test_closing_confirms_nothing_and_the_next_night_goes_on(ledger: Ledger) -> None:
    world, levers = World({'{"row_tile":1}': -0.06}), tiles(2, 1)
    while not any(v.waiting for v in see(ledger).variants):
        play(ledger, plan.next_step(see(ledger), levers), world)
    assert isinstance(plan.next_step(see(ledger), levers, closing=True), plan.Stop)
    drive(ledger, levers, world)
    assert found(ledger, "tile1").decision.promoted


def test_a_rebuild_notices_a_screen_that_reads_differently(ledger: Ledger) -> None:
    drive(ledger, [cold("fast"), cold("slow")], World(GAINS, load_sd=0.004))
    assert rebuild(ledger).same

    def slower(text: str, manifest: object) -> object:
        made = judge.parse(text, manifest)  # type: ignore[arg-type]
        points = tuple(
            replace(p, decode_ns=2 * p.decode_ns) if p.arm == "C" else p for p in made.points
        )
        return replace(made, points=points)

    differences = rebuild(ledger, reread=slower).differences  # type: ignore[arg-type]
    assert any("now screens" in d for d in differences)


def test_cold_canaries_stand_among_cold_levers(ledger: Ledger) -> None:
    levers = [cold(f"c{i}") for i in range(6)]
    drive(ledger, levers, World({}, load_sd=0.004))
    canaries = [v for v in see(ledger).variants if v.purpose == "canary"]
    assert canaries
    assert all(not b.hot for v in canaries for b in v.blocks)
    assert not any(b.screen for v in canaries for b in v.blocks)


def test_guarded_metrics_are_stored_with_the_block(ledger: Ledger) -> None:
    drive(ledger, [cold("fast")], World(GAINS, load_sd=0.004))
    blocks = found(ledger, "fast").measured
    assert all(dict(b.estimate.guards) == {"memory": 0.0, "tau": 0.0} for b in blocks)


def test_a_run_of_no_block_is_still_refused(ledger: Ledger) -> None:
    end = judge.RunEnd("void", "x", "y", NOW, NOW, 1, 1)
    with pytest.raises(LedgerError, match="planned no run"):
        judge.enter(ledger, "r9", end, None, None, now_utc=NOW)


def test_a_lever_that_lowers_tau_unasked_is_a_regression_and_one_that_trades_it_is_not(
    ledger: Ledger,
) -> None:
    def fewer_accepted(step: plan.NextBlock, made: RunRecord) -> RunRecord:
        if step.purpose != "lever":
            return made
        points = tuple(
            replace(p, rounds=20, forwards=20, accepted_by_position=(8, 3, 1),
                    offered_by_position=(20, 20, 20)) if p.arm == "B" else p
            for p in made.points
        )
        return replace(made, points=points)

    gains = {'{"x":"on"}': -0.06, '{"verify_policy":"margin"}': -0.06}
    levers = [lever("x", {"x": "on"}), lever("margin", {"verify_policy": "margin"})]
    drive(ledger, levers, World(gains, bend=fewer_accepted))
    made = found(ledger, "x").decision
    assert (made.ending, made.code) == ("rejected", "regression")
    assert made.details["regressions"] == ["tau"]
    assert found(ledger, "margin").decision.promoted
    assert rebuild(ledger).same


def in_a_row(ledger: Ledger, **more: Any) -> tuple[BlockRow, BlockRow]:
    """Two screens that followed each other at once, in a campaign of cold levers that all lose."""
    levers = [cold(f"x{i}") for i in range(6)]
    world = World({f'{{"x{i}":"on"}}': 0.2 for i in range(6)}, load_sd=0.004)
    drive(ledger, levers, world, **more)
    blocks = see(ledger).blocks()
    return next((a, b) for a, b in pairwise(blocks) if a.screen and b.screen)


def test_a_screen_that_follows_another_begins_with_its_closing_incumbent(ledger: Ledger) -> None:
    first, second = in_a_row(ledger)
    assert first.opening is None
    assert second.opening == replace(first.runs[3], slot=0)
    assert [r.slot for r in second.runs] == [1, 2, 3]
    assert len(second.answers) == 2
    again = rebuild(ledger)
    assert again.same
    with closing(sqlite3.connect(ledger.path)) as raw:
        assert again.logs == raw.execute("SELECT count(*) FROM log").fetchone()[0]


@pytest.mark.parametrize("now_utc", ["2026-11-28T22:02:01Z", "2026-11-28T21:59:59Z"])
def test_a_screen_pays_for_its_first_incumbent_when_the_last_one_is_not_fresh(
    ledger: Ledger, now_utc: str
) -> None:
    first, second = in_a_row(ledger, now_utc=now_utc)
    assert (first.opening, second.opening) == (None, None)
    assert [r.slot for r in second.runs] == [0, 1, 2, 3]


def test_a_screen_after_any_other_block_pays_for_its_first_incumbent(ledger: Ledger) -> None:
    levers = [cold("fast"), *(cold(f"x{i}") for i in range(3))]
    drive(ledger, levers, World(GAINS, load_sd=0.004))
    blocks = see(ledger).blocks()
    assert sum(b.screen for b in blocks) == 2
    assert all(b.opening is None for b in blocks)


def test_the_lineage_of_a_screen_names_the_load_that_it_begins_with(ledger: Ledger) -> None:
    first, second = in_a_row(ledger)
    with ledger.reading() as connection:
        mine = views.load(connection)
    assert mine.campaign is not None
    step = plan._again(mine, mine.variant(second.variant_id), second)
    told = json.loads(json.dumps(lineage.to_json(mine.campaign, step)))
    assert lineage.from_json(told).step.opens_with == first.runs[3].id


def test_a_load_knows_the_fingerprints_of_the_loads_before_it(ledger: Ledger) -> None:
    block = in_a_row(ledger)[1]
    with ledger.reading() as connection:
        assert set(views.fingerprints(connection, block.id)) == {"A", "B", "C"}


def test_a_screen_that_waited_for_its_turn_is_planned_again(ledger: Ledger) -> None:
    levers = [cold(f"x{i}") for i in range(6)]
    world = World({f'{{"x{i}":"on"}}': 0.2 for i in range(6)}, load_sd=0.004)
    while not isinstance(step := plan.next_step(see(ledger), levers), plan.NextBlock) or (
        step.opens_with is None
    ):
        play(ledger, step, world)
    soon, late = "2026-11-28T22:01:00Z", "2026-11-29T22:00:00Z"
    assert not bracket.outdated(see(ledger), step, soon)
    assert bracket.outdated(see(ledger), step, late)
    again = plan.next_step(see(ledger), levers, now_utc=late)
    assert isinstance(again, plan.NextBlock)
    assert (again.lever, again.opens_with) == (step.lever, None)
    assert not bracket.outdated(see(ledger), again, late)
    planned.plan_block(ledger, step, now_utc=soon)
    going = plan.next_step(see(ledger), levers, now_utc=late)
    assert isinstance(going, plan.NextBlock)
    assert going.opens_with == step.opens_with
    assert not bracket.outdated(see(ledger), going, late)
