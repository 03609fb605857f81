"""Whole campaigns on a fabricated box, through the real plan, judge and ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import NOW, World, drive, lever, manifest_of, play, record, text_of

from flywheel import best as best_of
from flywheel.errors import LedgerError
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.store import Ledger
from flywheel.ledger.views import VariantRow, View
from flywheel.loop import judge, plan, planned
from flywheel.loop.readjudicate import readjudicate
from flywheel.statistics.campaign import QUICK

FAST = {'{"threads":2}': -0.05}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with a quick campaign."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={"moe": "loop"}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def found(ledger: Ledger, name: str) -> VariantRow:
    return next(v for v in see(ledger).variants if v.lever.name == name)


def sentences(ledger: Ledger) -> str:
    return "\n".join(f.sentence for f in see(ledger).findings)


def test_a_campaign_from_nulls_to_headline(ledger: Ledger) -> None:
    levers = [lever("fast"), lever("slow", {"moe": "gather"}), lever("same", {"attention": "bmm"})]
    world = World({**FAST, '{"moe":"gather"}': 0.04})
    stop = drive(ledger, levers, world)
    assert not stop.halt
    view = see(ledger)
    assert [v.purpose for v in view.variants].count("canary") == 1
    assert view.variants[0].purpose == "null"
    assert view.variants[-1].purpose == "anchor"
    endings = {v.lever.name: v.decision.ending for v in view.variants
               if v.decision is not None and v.purpose == "lever"}
    assert endings == {"fast": "promoted", "slow": "rejected", "same": "rejected"}
    best = best_of.fold(view)
    assert best.config == {"moe": "loop", "threads": 2}
    band, blocks = best_of.headline(view, best)
    assert band.low < 0.05 < band.high
    assert len(blocks) == QUICK.anchor_blocks
    assert view.canaries().promoted == 0
    assert "the null reads null" in sentences(ledger)
    assert "the best configuration saves" in sentences(ledger)
    budget = view.budget(1)
    assert (budget.tests, budget.promotions) == (4, 1)


def test_the_budget_is_stored_with_each_verdict(ledger: Ledger) -> None:
    drive(ledger, [lever("fast"), lever("also", {"attention": "bmm"})], World(FAST))
    tests = [d for d in see(ledger).decisions if d.test is not None]
    assert [d.test for d in tests] == [1, 2, 3]
    promotions = 0
    for decision in tests:
        assert decision.promotions_before == promotions
        assert decision.alpha_t == pytest.approx(0.2 / 16 * (promotions + 1))
        promotions += decision.promoted


def test_later_levers_are_compared_with_the_new_incumbent(ledger: Ledger) -> None:
    drive(ledger, [lever("fast"), lever("late", {"attention": "x"}, predicted_gain=0.001)],
          World(FAST))
    late = found(ledger, "late")
    assert late.incumbent == {"moe": "loop", "threads": 2}
    assert late.from_decision == found(ledger, "fast").decision.number


def test_rebuilding_from_the_logs_gives_the_same_best(ledger: Ledger) -> None:
    levers = [lever("fast"), lever("cold", {"compile": "step"}, hot=False),
              lever("slow", {"moe": "gather"}), lever("capped", {"x": 1}, ceiling=0.001)]
    drive(ledger, levers, World({**FAST, '{"compile":"step"}': -0.06, '{"moe":"gather"}': 0.04}))
    made = rebuild(ledger)
    assert made.same, made.differences
    assert made.best == best_of.fold(see(ledger))
    assert made.best.config == {"moe": "loop", "threads": 2, "compile": "step"}
    assert made.logs == sum(r.outcome == "ok" for b in see(ledger).blocks() for r in b.runs)


def test_a_rebuild_that_reads_logs_differently_says_where(ledger: Ledger) -> None:
    drive(ledger, [lever("fast")], World(FAST))

    def slower(text: str, manifest: object) -> object:
        made = judge.parse(text, manifest)  # type: ignore[arg-type]
        points = tuple(
            replace(p, decode_ns=2 * p.decode_ns) if p.arm == "B" else p for p in made.points
        )
        return replace(made, points=points)

    made = rebuild(ledger, reread=slower)  # type: ignore[arg-type]
    assert not made.same
    assert "the best configuration differs" in made.differences
    assert made.best.config == {"moe": "loop"}

    def refuse(text: str, manifest: object) -> object:
        return judge.Refusal("seal_wrong", "x")

    assert "its log now reads" in rebuild(ledger, reread=refuse).differences[0]  # type: ignore[arg-type]


def test_a_stricter_rule_flips_verdicts_without_measuring(ledger: Ledger) -> None:
    drive(ledger, [lever("fast"), lever("flat", {"attention": "x"})], World(FAST))
    runs = sum(len(b.runs) for b in see(ledger).blocks())
    rule = replace(QUICK.rule, delta_min=0.2, useful=0.2, version="e2")
    flips = readjudicate(ledger, lambda campaign: rule, now_utc=NOW).flips
    assert [(f.lever, f.before, f.after) for f in flips] == [("fast", "promoted", "rejected")]
    view = see(ledger)
    assert sum(len(b.runs) for b in view.blocks()) == runs
    old = next(d for d in view.decisions if d.ending == "promoted")
    new = next(d for d in view.decisions if d.supersedes == old.number)
    assert (old.superseded_by, new.test, new.rule_version) == (new.number, old.test, "e2")
    assert best_of.fold(view).config == {"moe": "loop"}
    assert "promoted became rejected under rule e2" in sentences(ledger)
    assert readjudicate(ledger, lambda campaign: rule, now_utc=NOW).flips == ()
    assert rebuild(ledger).same


def test_readjudication_never_promotes_what_it_would_have_measured_on(ledger: Ledger) -> None:
    drive(ledger, [lever("fast")], World(FAST))
    rule = replace(QUICK.rule, n_min=6, n_max=8, version="e3")
    flips = readjudicate(ledger, lambda campaign: rule, now_utc=NOW).flips
    assert ("fast", "inconclusive") in [(f.lever, f.after) for f in flips]


def test_a_failed_gate_closes_the_lever_at_once(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        detail = "lossless, arm B, prompt 5: token 212 is 1, plain says 2"
        return ("gate_failed", detail) if step.purpose == "lever" else None

    stop = drive(ledger, [lever("wrong")], World(FAST, fails=fails))
    variant = found(ledger, "wrong")
    assert variant.decision.ending == "incorrect"
    assert "token 212" in variant.decision.sentence
    assert len(variant.blocks) == 1
    assert variant.decision.test is None
    assert not stop.halt


def test_a_gate_that_fails_on_the_incumbent_halts(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        return ("gate_failed", "lossless, arm A, prompt 5") if step.purpose == "lever" else None

    stop = drive(ledger, [lever("fast")], World(FAST, fails=fails))
    assert stop.halt
    assert "a gate failed on the incumbent" in stop.reason
    assert found(ledger, "fast").decision is None


def test_a_gate_that_fails_on_a_null_halts(ledger: Ledger) -> None:
    stop = drive(ledger, [], World(fails=lambda _step: ("gate_failed", "lossless, arm B")))
    assert stop.halt
    assert "null block b00001" in stop.reason


def test_three_void_runs_defer_a_lever_with_its_reason(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        return ("seal_missing", "the log stops") if step.purpose == "lever" else None

    drive(ledger, [lever("dead")], World(FAST, fails=fails))
    variant = found(ledger, "dead")
    assert variant.decision.ending == "void"
    assert variant.decision.sentence == "deferred after 3 void runs: seal_missing, the log stops"
    assert len(variant.blocks) == 3
    assert variant.decision.test is None


@pytest.mark.parametrize("code", ["arm_not_live", "arms_identical"])
def test_what_comes_to_the_same_again_is_tried_once(ledger: Ledger, code: str) -> None:
    """Such as a value that another one of the incumbent's rules out."""

    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        return (code, "arm B") if step.purpose == "lever" else None

    drive(ledger, [lever("ruled out"), lever("fast")], World(FAST, fails=fails))
    variant = found(ledger, "ruled out")
    assert variant.decision.sentence == f"deferred after 1 void run: {code}, arm B"
    assert len(variant.blocks) == 1


def test_a_void_run_is_retried_and_worth_nothing(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        first = step.purpose == "lever" and step.number == 1
        return ("killed_by_guard", "1.9 GB free") if first else None

    drive(ledger, [lever("fast")], World(FAST, fails=fails))
    variant = found(ledger, "fast")
    assert variant.decision.promoted
    assert variant.decision.n == len(variant.measured) == len(variant.blocks) - 1
    assert "retry 1 of 2 after killed_by_guard" in variant.blocks[1].why


def test_a_full_disk_is_not_the_lever_s_fault(ledger: Ledger) -> None:
    def fails(step: plan.NextBlock) -> tuple[str, str] | None:
        early = step.purpose == "lever" and step.number <= 5
        return ("disk_full", "no room") if early else None

    drive(ledger, [lever("fast")], World(FAST, fails=fails))
    variant = found(ledger, "fast")
    assert variant.decision.promoted
    assert [b.void_code for b in variant.blocks[:5]] == ["blocked"] * 5


def test_nulls_that_cannot_be_measured_end_the_campaign(ledger: Ledger) -> None:
    stop = drive(ledger, [lever()], World(fails=lambda _step: ("timeout", "too slow")))
    assert stop.reason == (
        "the ruler cannot be calibrated: 3 null blocks void in a row (timeout); "
        "put that right, then flywheel run --new-campaign"
    )


def test_a_null_that_does_not_read_null_halts(ledger: Ledger) -> None:
    def favours_b(_step: plan.NextBlock, made: object) -> object:
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, decode_ns=round(p.decode_ns * 0.98)) if p.arm == "B" else p
            for p in made.points))  # type: ignore[attr-defined]

    stop = drive(ledger, [lever("fast")], World(sd=0.001, bend=favours_b))  # type: ignore[arg-type]
    assert stop.halt
    assert "the null does not read null: +" in stop.reason
    assert stop.reason in sentences(ledger)
    assert all(v.purpose == "null" for v in see(ledger).variants)


def test_a_changed_ruler_halts_and_names_the_field(ledger: Ledger) -> None:
    def moved(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "lever":
            return made
        head = made.header  # type: ignore[attr-defined]
        return replace(made, header=replace(head, device=replace(head.device, cores=4)))  # type: ignore[type-var]

    stop = drive(ledger, [lever("fast")], World(FAST, bend=moved))  # type: ignore[arg-type]
    assert stop.halt
    assert "cores: 2 is not 4" in stop.reason


def test_code_that_changes_between_blocks_defers_the_lever(ledger: Ledger) -> None:
    def edited(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "lever" or step.number != 2:
            return made
        head = made.header  # type: ignore[attr-defined]
        engine = replace(head.engine, source_sha256="cd" * 32)
        return replace(made, header=replace(head, engine=engine))  # type: ignore[type-var]

    drive(ledger, [lever("fast", predicted_gain=0.9)], World(FAST, bend=edited))  # type: ignore[arg-type]
    decision = found(ledger, "fast").decision
    assert (decision.ending, decision.code) == ("void", "code_changed")


def test_a_regression_has_its_own_louder_word(ledger: Ledger) -> None:
    def chat_slower(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "lever":
            return made
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, decode_ns=round(p.decode_ns * (1.08 if p.category == "prose" else 0.8)))
            if p.arm == "B" else p for p in made.points  # type: ignore[attr-defined]
        ))

    drive(ledger, [lever("mixed")], World(bend=chat_slower))  # type: ignore[arg-type]
    decision = found(ledger, "mixed").decision
    assert decision.code == "regression"
    assert decision.details["regressions"] == ["prose"]
    assert "REGRESSION in prose" in sentences(ledger)


def test_a_prediction_off_by_more_than_2x_is_a_finding_of_its_own(ledger: Ledger) -> None:
    drive(ledger, [lever("hyped", {"attention": "x"}, predicted_gain=0.3),
                   lever("modest", predicted_gain=0.01)], World(FAST))
    said = sentences(ledger)
    assert "predicted 30 %, worth less than" in said
    assert "predicted 1 %, worth over" in said


def test_uncountable_prompts_void_the_block(ledger: Ledger) -> None:
    def looped(step: plan.NextBlock, made: object) -> object:
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, counted=False, excluded="loop") for p in made.points))  # type: ignore[attr-defined]

    stop = drive(ledger, [], World(bend=looped))  # type: ignore[arg-type]
    assert "no_block" in stop.reason


def test_loads_of_one_cold_block_must_share_ruler_and_code(ledger: Ledger) -> None:
    def other_code(step: plan.NextBlock, made: object) -> object:
        if step.hot or not made.run_id.endswith("3"):  # type: ignore[attr-defined]
            return made
        head = made.header  # type: ignore[attr-defined]
        engine = replace(head.engine, source_sha256="cd" * 32)
        return replace(made, header=replace(head, engine=engine))  # type: ignore[type-var]

    drive(ledger, [lever("cold", {"compile": "step"}, hot=False)], World(bend=other_code))  # type: ignore[arg-type]
    assert "changed between the loads" in found(ledger, "cold").decision.sentence


def test_entering_nonsense_is_refused(ledger: Ledger) -> None:
    ok = judge.RunEnd("ok", "", "", NOW, NOW, 1)
    with pytest.raises(LedgerError, match="only a good run has a record"):
        judge.enter(ledger, "r1", ok, "x", None, now_utc=NOW)
    with pytest.raises(LedgerError, match="planned no run"):
        judge.enter(ledger, "r1", ok, "x", record(), now_utc=NOW)


def test_a_late_load_of_a_void_block_changes_nothing(ledger: Ledger) -> None:
    levers = [lever("cold", {"compile": "step"}, hot=False)]
    step = plan.next_step(see(ledger), levers)
    while isinstance(step, plan.NextBlock) and step.purpose != "lever":
        play(ledger, step, World())
        step = plan.next_step(see(ledger), levers)
    assert isinstance(step, plan.NextBlock)
    planned.plan_block(ledger, step, now_utc=NOW)
    dead = judge.RunEnd("killed", "guard_kill", "x", NOW, NOW, 1)
    for load in step.loads()[:2]:
        manifest = manifest_of(World().run(step, load), block_id=step.block_id)
        planned.start_run(ledger, manifest, slot=load.slot, now_utc=NOW)
        entered = judge.enter(ledger, manifest.run_id, dead, None, None, now_utc=NOW)
        assert entered.void == "guard_kill"
    assert see(ledger).block(step.block_id).void_code == "guard_kill"


def test_a_run_is_entered_once(ledger: Ledger) -> None:
    step = plan.next_step(see(ledger), [])
    assert isinstance(step, plan.NextBlock)
    play(ledger, step, World())
    made = World().run(step, replace(step, done=()).loads()[0])
    end = judge.RunEnd("ok", "", "", NOW, NOW, 1)
    with pytest.raises(LedgerError, match="refused"):
        judge.enter(ledger, made.run_id, end, text_of(made), made, now_utc=NOW)
    planned.plan_block(ledger, replace(step, new_block=False), now_utc=NOW)
    assert manifest_of(made).run_id == made.run_id


def test_a_ledger_without_a_campaign_says_so(tmp_path: Path) -> None:
    empty = Ledger.open(tmp_path / "empty.db")
    step = plan.PricedOut(lever(), "v0001", {}, {}, "x")
    with pytest.raises(LedgerError, match="no campaign"):
        planned.price_out(empty, step, now_utc=NOW)
    with pytest.raises(LedgerError, match="no campaign"):
        plan.next_step(views.View(), [])
