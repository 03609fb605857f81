"""What is chosen next, in which order, and why: pure functions of the view."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import NOW, World, drive, lever, play

from flywheel import best as best_of
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.ledger.views import View
from flywheel.lever import KINDS, Lever, null_lever
from flywheel.loop import judge, plan, planned
from flywheel.loop.eligible import admit
from flywheel.loop.ranking import ranked
from flywheel.statistics.campaign import QUICK, Settings

FAST = {'{"threads":2}': -0.05}


def fresh(path: Path, settings: Settings = QUICK, **start: object) -> Ledger:
    """A ledger with one campaign."""
    ledger = Ledger.open(path / "ledger.db")
    planned.open_campaign(ledger, settings, start=start, box="box", now_utc=NOW)
    return ledger


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def calibrated(path: Path, **options: object) -> Ledger:
    """A ledger whose nulls are measured."""
    ledger = fresh(path, **options)  # type: ignore[arg-type]
    for _ in range(QUICK.calibration):
        step = plan.next_step(see(ledger), [lever()])
        assert isinstance(step, plan.NextBlock)
        assert step.purpose == "null"
        assert step.incumbent == step.candidate
        play(ledger, step, World())
    return ledger


def test_only_what_is_judged_by_time_needs_the_best_measured_at_the_end() -> None:
    head = lever("head", {"head": {}}, kind="head", metric="tau")
    assert plan.by_time([head, lever()])
    assert plan.by_time([])
    assert not plan.by_time([head])


def test_nulls_come_first_and_say_so(tmp_path: Path) -> None:
    step = plan.next_step(see(fresh(tmp_path)), [lever()])
    assert isinstance(step, plan.NextBlock)
    assert (step.purpose, step.null, step.new_variant) == ("null", True, True)
    assert step.why == "null 1 of 4: the spread that a lever must beat"


def test_a_hot_block_is_one_load_and_a_cold_block_four(tmp_path: Path) -> None:
    ledger = calibrated(tmp_path)
    levers = [lever("cold", {"compile": "step"}, hot=False)]
    step = _lever_step(ledger, levers)
    assert not step.hot
    loads = step.loads()
    assert [load.slot for load in loads] == [0, 1, 2, 3]
    assert "".join(load.arms[0][0] for load in loads) == step.pattern
    assert all(set(load.order) == {load.arms[0][0]} for load in loads)
    hot = replace(step, hot=True).loads()
    assert len(hot) == 1
    assert dict(hot[0].arms) == {"A": {}, "B": {"compile": "step"}}
    assert hot[0].order == tuple(step.pattern)


def _lever_step(ledger: Ledger, levers: list[Lever]) -> plan.NextBlock:
    """The next lever block, past a canary if that comes first."""
    while True:
        step = plan.next_step(see(ledger), levers)
        assert isinstance(step, plan.NextBlock)
        if step.purpose == "lever":
            return step
        play(ledger, step, World())


def test_the_same_view_gives_the_same_choice(tmp_path: Path) -> None:
    view = see(calibrated(tmp_path))
    levers = [lever("a", {"x": 1}), lever("b", {"y": 1})]
    assert plan.next_step(view, levers) == plan.next_step(view, list(reversed(levers)))


def test_an_interrupted_block_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    ledger = calibrated(tmp_path)
    levers = [lever("cold", {"compile": "step"}, hot=False)]
    step = _lever_step(ledger, levers)
    planned.plan_block(ledger, step, now_utc=NOW)
    again = plan.next_step(see(ledger), levers)
    assert isinstance(again, plan.NextBlock)
    assert (again.block_id, again.new_block, again.new_variant) == (step.block_id, False, False)
    assert again.loads() == step.loads()
    planned.plan_block(ledger, again, now_utc=NOW)
    play_one = replace(step, new_block=False)
    world, load = World(), step.loads()[0]
    from records import manifest_of, text_of

    from flywheel.run.parse import parse

    made = world.run(play_one, load)
    manifest = manifest_of(made, block_id=step.block_id)
    planned.start_run(ledger, manifest, slot=0, now_utc=NOW)
    text = text_of(made)
    end = judge.RunEnd("ok", "", "", NOW, NOW, 1)
    entered = judge.enter(ledger, made.run_id, end, text, parse(text, manifest), now_utc=NOW)  # type: ignore[arg-type]
    assert entered.estimate is None
    left = plan.next_step(see(ledger), levers)
    assert isinstance(left, plan.NextBlock)
    assert [load.slot for load in left.loads()] == [1, 2, 3]


def test_the_best_gain_per_minute_goes_first(tmp_path: Path) -> None:
    view = see(calibrated(tmp_path))
    best = best_of.fold(view)
    levers = [
        lever("small", {"a": 1}, predicted_gain=0.01),
        lever("large", {"b": 1}, predicted_gain=0.04),
        lever("cold", {"c": 1}, predicted_gain=0.10, hot=False),
    ]
    ready, _ = admit(view, levers, best, {}, KINDS)
    order = ranked(view, ready)
    assert [one.candidate.lever.name for one in order] == ["large", "cold", "small"]
    assert order[0].why == "P(win) 0.33 x 4 % / 3 min"


def test_a_family_that_loses_falls_back(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    losers = [lever(f"l{i}", {f"f{i}": 1}, family="tiles", predicted_gain=0.09) for i in range(3)]
    drive(ledger, losers, World())
    view = see(ledger)
    ready, _ = admit(
        view, [lever("t", {"t": 1}, family="tiles"), lever("u", {"u": 1}, family="cache")],
        best_of.fold(view), {}, KINDS,
    )
    assert [one.candidate.lever.name for one in ranked(view, ready)] == ["u", "t"]


def test_one_change_under_two_names_is_one_lever(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    drive(ledger, [lever("first", {"x": 1})], World())
    view = see(ledger)
    twins = [lever("second", {"x": 1}), lever("third", {"x": 1})]
    ready, refused = admit(view, twins, best_of.fold(view), {}, KINDS)
    assert ready == ()
    decision = next(v.decision for v in view.variants if v.lever.name == "first")
    assert f"by D{decision.number} as first: rejected, worth less than" in refused[0].reason
    assert refused[1].reason == "third is the same change as second"


def test_what_the_incumbent_has_is_skipped(tmp_path: Path) -> None:
    ledger = fresh(tmp_path, moe="loop")
    play(ledger, plan.next_step(see(ledger), []), World())  # type: ignore[arg-type]
    view = see(ledger)
    with ledger.reading() as connection:
        effective = views.effective_configs(connection)
    levers = [lever("asked", {"moe": "loop"}), lever("default", {"draft_width": 3}),
              lever("new", {"draft_width": 4}), null_lever(),
              lever("head", {"head": {}}, kind="head", metric="tau")]
    ready, refused = admit(view, levers, best_of.fold(view), effective, ("config",))
    assert [c.lever.name for c in ready] == ["new"]
    assert [r.reason for r in refused] == [
        "asked is already in the incumbent",
        "default is already in the incumbent",
        "null changes nothing; canaries are placed by the plan",
        "head: this run handles no levers of kind head",
    ]


def test_a_closed_lever_stays_closed_while_nothing_changed(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    drive(ledger, [lever("flat", {"x": 1})], World())
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    drive(ledger, [], World(seed=2))
    view = see(ledger)
    ready, refused = admit(view, [lever("flat", {"x": 1})], best_of.fold(view), {}, KINDS)
    assert ready == ()
    assert "flat was closed by D" in refused[0].reason


def test_a_changed_condition_reopens_at_lower_odds(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    drive(ledger, [lever("flat", {"x": 1})], World())
    planned.open_campaign(ledger, QUICK, start={"moe": "gather"}, box="box", now_utc=NOW)
    view = see(ledger)
    ready, _ = admit(view, [lever("flat", {"x": 1})], best_of.fold(view), {}, KINDS)
    assert ready[0].discount < 1
    assert "reopened: the incumbent changed (moe) since D" in ready[0].note
    last = next(v for v in view.variants if v.lever.name == "flat")

    def moved(_step: plan.NextBlock, made: object) -> object:
        head = made.header  # type: ignore[attr-defined]
        other = replace(head, device=replace(head.device, cores=8),
                        engine=replace(head.engine, source_sha256="cd" * 32))
        return replace(made, header=other)  # type: ignore[type-var]

    play(ledger, plan.next_step(view, []), World(bend=moved))  # type: ignore[arg-type]
    from flywheel.loop.eligible import conditions_changed

    view = see(ledger)
    assert conditions_changed(view, last, best_of.fold(view)) == (
        "the incumbent changed (moe)", "the ruler changed", "the engine's code changed",
    )


def test_a_deferred_lever_may_be_tried_in_the_next_campaign(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    world = World(fails=lambda s: ("timeout", "slow") if s.purpose == "lever" else None)
    drive(ledger, [lever("dead", {"x": 1})], world)
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    view = see(ledger)
    ready, _ = admit(view, [lever("dead", {"x": 1})], best_of.fold(view), {}, KINDS)
    assert "again after D" in ready[0].note


def test_a_lever_that_cannot_reach_the_bar_is_closed_without_a_run(tmp_path: Path) -> None:
    ledger = calibrated(tmp_path)
    drive(ledger, [lever("capped", {"x": 1}, ceiling=0.001)], World())
    variant = next(v for v in see(ledger).variants if v.lever.name == "capped")
    assert (variant.decision.code, variant.decision.n, variant.blocks) == ("priced_out", 0, ())
    assert variant.decision.test is None


def test_no_head_is_trained_where_the_prompts_could_see_nothing_of_it(tmp_path: Path) -> None:
    head = lever("head", {"head": {}}, kind="head", metric="tau")
    ledger = fresh(tmp_path, replace(QUICK, budget=150))
    drive(ledger, [lever("timed", {"x": 1}), head], World(), kinds=(*KINDS, "head"),
          head_prompts=2)  # fmt: skip
    variant = next(v for v in see(ledger).variants if v.lever.name == "head")
    assert (variant.decision.code, variant.blocks) == ("unresolvable", ())
    assert variant.decision.sentence == "unresolvable here: 2 prompts could see nothing of a head"
    assert variant.decision.test is None
    # It stays closed under that suite, and comes back with more prompts.
    for prompts, again in ((2, False), (None, False), (48, True)):
        step = plan.next_step(see(ledger), [head], kinds=(*KINDS, "head"), head_prompts=prompts)
        assert isinstance(step, plan.NextBlock if again else plan.Stop)
    assert "judged by more prompts than D" in step.why


@pytest.mark.parametrize("seed", range(2))
def test_every_stretch_of_the_queue_has_its_canary(tmp_path: Path, seed: int) -> None:
    settings = replace(QUICK, seed=seed, budget=60, canary_every=4)
    ledger = fresh(tmp_path, settings)
    drive(ledger, [lever(f"l{i}", {f"f{i}": 1}) for i in range(6)], World(seed=seed))
    items = [v.purpose for v in see(ledger).variants if v.purpose in ("lever", "canary")]
    assert items.count("canary") in (2, 3)
    assert "canary" in items[:4]


def test_canary_places_are_drawn() -> None:
    from flywheel.ledger.views import CampaignRow

    def place(seed: int) -> int:
        row = CampaignRow(1, replace(QUICK, seed=seed), {}, {}, "b", NOW)
        items: list[object] = []
        while not plan._canary_due(row, items, 20 - len(items)):  # type: ignore[arg-type]
            items.append(_Item("lever"))
        return len(items)

    assert len({place(seed) for seed in range(40)}) > 6


class _Item:
    def __init__(self, purpose: str) -> None:
        self.purpose = purpose


def test_even_a_campaign_without_levers_has_its_canary(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    stop = drive(ledger, [], World())
    assert [v.purpose for v in see(ledger).variants] == ["null", "canary"]
    assert stop.reason == "no lever is left to try"


def test_a_promoted_canary_halts(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)

    def favours_b(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "canary":
            return made
        points = tuple(replace(p, decode_ns=round(p.decode_ns * 0.9)) if p.arm == "B" else p
                       for p in made.points)  # type: ignore[attr-defined]
        return replace(made, points=points)  # type: ignore[type-var]

    stop = drive(ledger, [], World(sd=0.002, bend=favours_b))  # type: ignore[arg-type]
    view = see(ledger)
    assert stop.halt
    assert "was promoted" in stop.reason
    assert (view.canaries().promoted, view.canaries().decided) == (1, 1)
    assert best_of.fold(view).promotions == ()
    assert "wrongly" in view.findings[-1].sentence


def test_a_campaign_of_canaries_tries_nothing_else_and_counts_on(tmp_path: Path) -> None:
    ledger = fresh(tmp_path, QUICK.of_canaries(3))

    def favours_b(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "canary":
            return made
        points = tuple(replace(p, decode_ns=round(p.decode_ns * 0.9)) if p.arm == "B" else p
                       for p in made.points)  # type: ignore[attr-defined]
        return replace(made, points=points)  # type: ignore[type-var]

    stop = drive(ledger, [lever("fast")], World(sd=0.002, bend=favours_b))  # type: ignore[arg-type]
    view = see(ledger)
    assert stop.reason == "all 3 canaries are decided"
    assert not stop.halt
    assert [v.purpose for v in view.variants] == ["null", "canary", "canary", "canary"]
    assert (view.canaries().promoted, view.canaries().decided) == (3, 3)
    assert best_of.fold(view).promotions == ()


def test_a_spent_budget_stops_after_the_headline(tmp_path: Path) -> None:
    ledger = fresh(tmp_path, replace(QUICK, budget=2))
    levers = [lever("fast"), lever("b", {"b": 1}), lever("c", {"c": 1}), lever("d", {"d": 1})]
    stop = drive(ledger, levers, World(FAST))
    assert "the error budget of this epoch, 2 tests, is spent" in stop.reason


def test_closing_measures_the_headline_and_starts_nothing_new(tmp_path: Path) -> None:
    ledger = calibrated(tmp_path)
    levers = [lever("fast"), lever("other", {"o": 1})]
    while not best_of.fold(see(ledger)).promotions:
        step = plan.next_step(see(ledger), levers)
        assert isinstance(step, plan.NextBlock)
        play(ledger, step, World(FAST))
    stop = drive(ledger, levers, World(FAST), closing=True)
    view = see(ledger)
    assert stop.reason == "closing: told to finish"
    assert best_of.headline(view, best_of.fold(view)) is not None


def test_closing_an_empty_campaign_runs_nothing(tmp_path: Path) -> None:
    assert isinstance(plan.next_step(see(fresh(tmp_path)), [lever()], closing=True), plan.Stop)


def test_an_anchor_that_cannot_be_measured_is_given_up(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    world = World(FAST, fails=lambda s: ("timeout", "x") if s.purpose == "anchor" else None)
    stop = drive(ledger, [lever("fast")], world)
    assert not stop.halt
    assert best_of.headline(see(ledger), best_of.fold(see(ledger))) is None


def test_every_few_promotions_the_sum_is_measured(tmp_path: Path) -> None:
    settings = replace(QUICK, anchor_every=2, anchor_blocks=1)
    effects = {f'{{"f{i}":1}}': -0.05 for i in range(4)}
    ledger = fresh(tmp_path, settings)
    drive(ledger, [lever(f"l{i}", {f"f{i}": 1}) for i in range(4)], World(effects))
    purposes = [v.purpose for v in see(ledger).variants]
    assert purposes.count("anchor") == 2
    assert purposes[-1] != "null"


def test_best_without_and_with_promotions(tmp_path: Path) -> None:
    ledger = fresh(tmp_path, moe="loop")
    before = best_of.fold(see(ledger))
    assert (before.config, before.decision, before.promotions) == ({"moe": "loop"}, None, ())
    assert best_of.level(see(ledger), before.config, 1) is None
    drive(ledger, [lever("fast")], World(FAST))
    after = best_of.fold(see(ledger))
    assert after.decision == after.promotions[-1]
    assert after.fingerprint != before.fingerprint
    band, sessions = best_of.level(see(ledger), after.config, 1)
    assert band.n >= 2 + QUICK.anchor_blocks
    assert sessions == 1


def test_a_new_campaign_goes_on_from_the_best(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    drive(ledger, [lever("fast")], World(FAST))
    best = best_of.fold(see(ledger))
    planned.open_campaign(ledger, QUICK, start=best.config, box="box", now_utc=NOW)
    view = see(ledger)
    again = best_of.fold(view)
    assert (again.config, again.promotions) == (best.config, best.promotions)
    assert again.first_config == {}
    drive(ledger, [lever("more", {"x": 1})], World({**FAST, '{"x":1}': -0.04}, seed=3))
    assert best_of.fold(see(ledger)).config == {"threads": 2, "x": 1}
    planned.open_campaign(ledger, QUICK, start={"y": 1}, box="box", now_utc=NOW)
    assert best_of.fold(see(ledger)).promotions == ()
