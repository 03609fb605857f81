"""What halts the loop, by which evidence, and that a resumed halt is not raised again by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from records import NOW, World, drive, lever, manifest_of, play

from flywheel.ledger import halts, views
from flywheel.ledger.rows import View
from flywheel.ledger.store import Ledger
from flywheel.loop import judge, plan, planned
from flywheel.loop.halting import Alarm, alarms
from flywheel.report.gather import gather
from flywheel.statistics.campaign import QUICK

FAST = {'{"threads":2}': -0.05}
Fails = Callable[[plan.NextBlock], tuple[str, str] | None]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={"moe": "loop"}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def found(ledger: Ledger, settled: frozenset[tuple[str, str | None]] = frozenset()) -> list[Alarm]:
    view = see(ledger)
    assert view.campaign is not None
    return list(alarms(view, view.campaign, settled))


def on_lever(code: str, detail: str) -> Fails:
    return lambda step: (code, detail) if step.purpose == "lever" else None


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (on_lever("gate_failed", "lossless, arm A, prompt 5"), "incumbent_incorrect"),
        (on_lever("changed_underfoot", "the checkpoint changed during the run"),
         "checkpoint_changed"),
        (lambda _: ("gate_failed", "lossless, arm B"), "incumbent_incorrect"),
        (lambda _: ("guard_killed", "1.9 GB free"), "guard_killed_incumbent"),
    ],
)  # fmt: skip
def test_each_reason_halts_and_names_its_run(ledger: Ledger, fails: Fails, code: str) -> None:
    drive(ledger, [lever("fast")], World(FAST, fails=fails), most=20)
    first = found(ledger)[0]
    assert first.code == code
    runs = {run.id for block in see(ledger).blocks() for run in block.runs}
    assert first.run_id in runs
    assert first not in found(ledger, frozenset([first.evidence]))


@pytest.mark.parametrize("code", ["seal_missing", "guard_killed", "exit_signal"])
def test_what_may_be_the_candidates_fault_halts_nothing(ledger: Ledger, code: str) -> None:
    drive(ledger, [lever("fast")], World(FAST, fails=on_lever(code, "it died")))
    assert found(ledger) == []


def test_a_guard_kill_of_a_cold_load_blames_whoever_was_loaded(ledger: Ledger) -> None:
    world = World(fails=on_lever("guard_killed", "1.9 GB free"))
    seen: set[str] = set()
    for _ in range(12):
        step = plan.next_step(see(ledger), [lever("cold", {"compile": "step"}, hot=False)])
        if not isinstance(step, plan.NextBlock):
            break
        play(ledger, step, world)
        if step.purpose == "lever":
            seen.add(step.pattern)
            halted = step.pattern == "ABBA"
            assert bool(found(ledger)) == halted
            if halted:
                break
    assert seen


def test_memory_that_did_not_come_back_halts(ledger: Ledger) -> None:
    step = plan.next_step(see(ledger), [])
    assert isinstance(step, plan.NextBlock)
    made = World().run(step, step.loads()[0])
    planned.plan_block(ledger, step, now_utc=NOW)
    planned.start_run(ledger, manifest_of(made, block_id=step.block_id), slot=0, now_utc=NOW)
    evidence = {"exit": {"guard": {"memory_back": False}}}
    end = judge.RunEnd("killed", "exit_signal", "SIGKILL", NOW, NOW, 1, -9, evidence)
    judge.enter(ledger, made.run_id, end, None, None, now_utc=NOW)
    assert [one.code for one in found(ledger)] == ["memory_not_back"]


def moved(field: str, value: object) -> World:
    def bend(step: plan.NextBlock, made: object) -> object:
        if step.purpose != "lever":
            return made
        head = made.header  # type: ignore[attr-defined]
        part = {"cores": "device", "sha256": "checkpoint"}[field]
        changed = replace(getattr(head, part), **{field: value})
        return replace(made, header=replace(head, **{part: changed}))  # type: ignore[type-var]

    return World(FAST, bend=bend)  # type: ignore[arg-type]


def test_a_ruler_that_changed_halts_by_what_changed(ledger: Ledger) -> None:
    drive(ledger, [lever("fast")], moved("cores", 4), most=20)
    assert [one.code for one in found(ledger)] == ["ruler_changed"]


def test_nulls_after_a_resume_are_judged_by_themselves(ledger: Ledger) -> None:
    def favours_b(_step: plan.NextBlock, made: object) -> object:
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, decode_ns=round(p.decode_ns * 0.98)) if p.arm == "B" else p
            for p in made.points))  # type: ignore[attr-defined]

    drive(ledger, [lever("fast")], World(sd=0.001, bend=favours_b))  # type: ignore[arg-type]
    alarm = found(ledger)[0]
    assert alarm.code == "null_not_null"
    settled = frozenset([alarm.evidence])
    assert found(ledger, settled) == []
    stop = drive(ledger, [lever("fast")], World(FAST), settled=settled)
    assert not stop.halt, stop.reason
    assert [v.decision.ending for v in see(ledger).variants if v.lever.name == "fast"
            and v.decision] == ["promoted"]  # fmt: skip


def test_a_bias_far_under_what_is_useful_raises_the_bar_and_halts_nothing(ledger: Ledger) -> None:
    """Where the second arm's memory lies may cost it a thousandth, load after load."""

    def favours_b(_step: plan.NextBlock, made: object) -> object:
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, decode_ns=round(p.decode_ns * 0.994)) if p.arm == "B" else p
            for p in made.points))  # type: ignore[attr-defined]

    drive(ledger, [lever("fast")], World(FAST, sd=0.0002, bend=favours_b))  # type: ignore[arg-type]
    assert found(ledger) == []
    assert [v.decision.ending for v in see(ledger).variants if v.lever.name == "fast"
            and v.decision] == ["promoted"]  # fmt: skip
    assert "nulls are off zero by 0.6" in gather(ledger, ()).canaries.text


def test_hot_and_cold_nulls_are_judged_apart(ledger: Ledger) -> None:
    """A small bias of hot blocks must not drown in the wider spread of cold ones."""

    def biased(step: plan.NextBlock, made: object) -> object:
        if not (step.hot and step.purpose == "null"):
            return made
        return replace(made, points=tuple(  # type: ignore[type-var]
            replace(p, decode_ns=round(p.decode_ns * 0.98)) if p.arm == "B" else p
            for p in made.points))  # type: ignore[attr-defined]

    levers = [lever(name, {name: "on"}, hot=False) for name in ("x", "y")]
    world = World(sd=0.001, load_sd=0.05, bend=biased)  # type: ignore[arg-type]
    seen = frozenset([("null_not_null", "r000040")])
    drive(ledger, levers, world, settled=seen)
    assert {b.hot for v in see(ledger).variants if v.purpose == "null" for b in v.measured} == {
        True, False,
    }
    assert [alarm.code for alarm in found(ledger)] == ["null_not_null"]


def test_a_halt_is_written_once_stands_and_is_lifted_with_a_reason(ledger: Ledger) -> None:
    alarm = Alarm("canary_promoted", "a canary won", None)
    for _ in range(2):
        halts.halt(ledger, alarm.code, alarm.reason, alarm.run_id, NOW)
    with ledger.reading() as connection:
        assert [one.reason for one in halts.standing(connection)] == ["a canary won"]
    assert len(halts.resume(ledger, "me: a backup ran", NOW)) == 1
    with ledger.reading() as connection:
        assert halts.standing(connection) == ()
        assert halts.known(connection) == {alarm.evidence}
    assert halts.resume(ledger, "me: again", NOW) == ()
