"""A campaign that looks for levers by itself: phases, profiles, and what comes of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clocks import FakeClock
from records import NOW, World, drive, lever, play

from flywheel.errors import DecisionError, LeverError, RecordError
from flywheel.knob import Knob
from flywheel.ledger import phases as record_of, views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.store import Ledger
from flywheel.ledger.views import View
from flywheel.lever import Lever
from flywheel.loop import plan, planned, profiler, residuals
from flywheel.loop.order import Order
from flywheel.loop.wishes import Wish, Wishes
from flywheel.statistics.campaign import QUICK, Phases, Settings

SETTINGS = replace(QUICK, phases=Phases())
KNOBS = (
    Knob("head", "threads", (2, 4), "cores stand idle"),
    Knob("experts", "tile_down", (32, 64), "fuller", part="columns", needs=("triton",)),
    Knob("experts", "moe", ("fused",), "fewer calls", needs=("torch",)),
)


def profile(*ranking: tuple[str, float, float], **config: object) -> dict[str, Any]:
    """A profile of a step of 10 ms; each (phase, ms, ms to gain)."""
    return {
        "config": {"backend": "torch", "threads": 1, "moe": "loop", **config},
        "phases": [{"path": "step", "ms": 10.0}],
        "ranking": [{"name": n, "ms": ms, "ms_to_gain": left} for n, ms, left in ranking],
    }


HEAD = profile(("head", 4.0, 3.0), ("experts/down", 3.0, 1.0))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a campaign that has phases."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, SETTINGS, start={}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


class Night:
    """Drives the plan as the loop would, with a fabricated box and profiles that the test chose."""

    def __init__(self, ledger: Ledger, levers: list[Lever], *documents: Mapping[str, Any] | str):
        self.ledger, self.declared, self.documents = ledger, levers, list(documents)
        self.world, self.profiled = World(), []

    def until(self, *kinds: type, most: int = 200) -> plan.Step:
        """Go on until a step of one of these kinds comes; it is returned and not done."""
        for _ in range(most):
            view = see(self.ledger)
            levers = [*self.declared, *(row.lever for row in view.proposals)]
            with self.ledger.reading() as connection:
                effective = views.effective_configs(connection)
            step = plan.next_step(view, levers, profiles=True, effective=effective)
            if isinstance(step, (*kinds, plan.Stop)):
                return step
            self.do(step, levers)
        raise AssertionError("the plan never came to it")

    def do(self, step: plan.Step, levers: list[Lever]) -> None:
        if isinstance(step, plan.PhaseChange):
            record_of.enter(self.ledger, step.phase, step.why, step.decisions, now_utc=NOW)
        elif isinstance(step, plan.TakeProfile):
            self.profiled.append(step)
            document = self.documents.pop(0)
            if isinstance(document, str):
                record_of.not_profiled(self.ledger, step.config, document, now_utc=NOW)
                return
            tried = [v.lever for v in see(self.ledger).variants]
            found = residuals.levers(document, KNOBS, [*levers, *tried])
            top = residuals.ranked(document)[0].phase
            record_of.profiled(self.ledger, step.config, document, top, found, now_utc=NOW)
        elif isinstance(step, plan.PricedOut):
            planned.price_out(self.ledger, step, now_utc=NOW)
        else:
            assert isinstance(step, plan.NextBlock)
            play(self.ledger, step, self.world)

    @property
    def phases(self) -> list[str]:
        return [row.phase for row in see(self.ledger).phases]


def flat(count: int) -> list[Lever]:
    return [lever(f"flat{n}", {f"flat{n}": 1}, predicted_gain=0.01) for n in range(count)]


def test_poor_results_in_a_row_end_the_exploitation_of_a_queue_that_is_not_dry(
    ledger: Ledger,
) -> None:
    night = Night(ledger, flat(5))
    change = night.until(plan.PhaseChange)
    assert isinstance(change, plan.PhaseChange)
    assert change.phase == "exhaust"
    named = ", ".join(f"D{number}" for number in change.decisions)
    assert change.why == f"3 results in a row under 0.5 % ({named})"
    tried = [v for v in see(ledger).variants if v.purpose == "lever" and v.decision]
    assert len(tried) == len(change.decisions) == 3


def test_a_good_result_begins_the_count_again(ledger: Ledger) -> None:
    good = lever("good", {"good": 1}, predicted_gain=0.02)
    night = Night(ledger, [good, *flat(2)])
    night.world = World({'{"good":1}': -0.06})
    change = night.until(plan.PhaseChange)
    assert change == plan.PhaseChange("exhaust", "no lever is left to try")
    assert sum(d.promoted for d in see(ledger).decisions) == 1


def test_the_profile_is_of_the_incumbent_at_the_rows_of_a_round(ledger: Ledger) -> None:
    night = Night(ledger, flat(3))
    step = night.until(plan.TakeProfile)
    assert isinstance(step, plan.TakeProfile)
    # The fabricated engine drafts three tokens a round.
    assert (step.config, step.rows) == ({}, 4)


def test_levers_come_of_the_residuals_and_are_tried(ledger: Ledger) -> None:
    night = Night(ledger, flat(1), HEAD, HEAD)
    night.world = World({'{"threads":2}': -0.06})
    stop = night.until()
    assert isinstance(stop, plan.Stop)
    assert night.phases == ["exhaust", "exploit", "exhaust", "propose", "done"]
    found = {v.lever.name: v.decision for v in see(ledger).variants if v.purpose == "lever"}
    assert found["threads.2"].promoted
    assert {"flat0", "threads.2", "threads.4", "moe.fused"} <= set(found)
    assert stop.reason.endswith("; done: nobody is there to propose a lever")
    assert [(p.lever.name, p.origin, p.because) for p in see(ledger).proposals] == [
        ("threads.2", "residual", "head"), ("threads.4", "residual", "head"),
        ("moe.fused", "residual", "experts/down"),
    ]  # fmt: skip


def test_every_change_of_phase_is_a_finding_that_says_why(ledger: Ledger) -> None:
    night = Night(ledger, flat(1), HEAD, HEAD)
    night.until()
    view = see(ledger)
    said = {f.number: f for f in view.findings}
    assert [said[row.finding].sentence for row in view.phases] == [
        "exhaust: no lever is left to try",
        "exploit: the profile, with head on top, led to 3 new levers",
        view.phases[2].phase + ": " + view.phases[2].why,
        "propose: head tops the profile again (0 new levers from it)",
        "done: nobody is there to propose a lever",
    ]
    assert all(said[row.finding].evidence["phase"] == row.phase for row in view.phases)
    assert rebuild(ledger).same


def test_a_profile_without_a_new_lever_or_without_an_answer_ends_the_search(
    ledger: Ledger,
) -> None:
    night = Night(ledger, [], profile(("somewhere", 4.0, 3.0)))
    night.until()
    assert night.phases == ["exhaust", "propose", "done"]
    assert "somewhere on top, led to no new lever" in see(ledger).phases[1].why


def test_a_profile_that_fails_is_recorded_and_the_loop_goes_on(ledger: Ledger) -> None:
    night = Night(ledger, [], "it left with status 2: no such model")
    stop = night.until()
    assert isinstance(stop, plan.Stop)
    assert not stop.halt
    (row,) = see(ledger).profiles
    assert (row.top, row.levers) == ("", 0)
    assert "could not be profiled: it left with status 2" in see(ledger).phases[1].why


def test_a_gain_after_the_end_of_the_search_begins_it_again(ledger: Ledger) -> None:
    night = Night(ledger, flat(1), "no", "no")
    night.until()
    night.declared.append(lever("late", {"late": 1}))
    night.world = World({'{"late":1}': -0.06})
    night.until()
    assert night.phases[:4] == ["exhaust", "propose", "done", "exploit"]
    assert "changed what there is to gain" in see(ledger).phases[3].why


def test_a_session_that_may_not_profile_ends_with_the_declared_levers(ledger: Ledger) -> None:
    night = Night(ledger, flat(1))
    stop = drive(ledger, night.declared, World())
    assert stop.reason.startswith("no lever is left to try")
    assert "exhaust" not in stop.reason
    assert see(ledger).phases == ()


def test_settings_with_phases_survive_json_and_refuse_nonsense() -> None:
    told = json.loads(json.dumps(SETTINGS.as_dict()))
    assert Settings.from_dict(told) == SETTINGS
    without = {key: value for key, value in told.items() if key != "phases"}
    assert Settings.from_dict(without) == QUICK
    with pytest.raises(DecisionError):
        Phases(poor_results=0)


# ---------------------------------------------------------------- levers from residuals


def test_the_largest_residuals_come_first_and_bound_what_is_expected() -> None:
    found = residuals.levers(HEAD, KNOBS, ())
    assert [(x.name, phase) for x, phase in found] == [
        ("threads.2", "head"), ("threads.4", "head"), ("moe.fused", "experts/down"),
    ]  # fmt: skip
    first = found[0][0]
    assert first.predicted_gain == pytest.approx(0.3 * 0.1)
    assert first.ceiling == pytest.approx(0.4 * 1.25)
    assert "30 % of a step is left to gain in head" in first.claim


def test_no_knob_is_turned_to_where_it_stands_nor_to_what_is_known() -> None:
    stands = profile(("head", 4.0, 3.0), threads=2)
    assert [x.name for x, _ in residuals.levers(stands, KNOBS, ())] == ["threads.4"]
    other_name = lever("cores", {"threads": 4})
    assert residuals.levers(stands, KNOBS, [other_name]) == ()


def test_a_part_of_a_tile_is_set_beside_what_the_incumbent_has_there() -> None:
    stands = profile(("experts/down", 4.0, 3.0), backend="triton", tile_down="stages=6,columns=32")
    (found,) = [x for x, _ in residuals.levers(stands, KNOBS, ())]
    assert dict(found.change) == {"tile_down": "columns=64,stages=6"}
    assert found.family == "tile.down"


@pytest.mark.parametrize(
    "document",
    [{}, {"phases": [], "ranking": []}, {"phases": [{"ms": 1.0}], "ranking": []},
     {"phases": [{"ms": 0.0}], "ranking": [{"name": "a", "ms": 1, "ms_to_gain": 1}]},
     {"phases": [{"ms": "soon"}], "ranking": []}],
)  # fmt: skip
def test_what_is_no_profile_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        residuals.ranked(document)


def test_a_knob_says_what_it_turns_and_why() -> None:
    with pytest.raises(LeverError):
        Knob("head", "threads", (), "x")
    with pytest.raises(LeverError):
        Knob("head", "threads", (1,), "x", share=1.0)


# ---------------------------------------------------------------- the process


def order(folder: Path, program: str, **more: Any) -> Order:
    script = folder / "program.py"
    script.write_text(program)
    return Order(
        folder / "ledger.db", folder, folder / "suite.json", ("p",), 8,
        profile=(sys.executable, str(script)), cwd=folder, **more,
    )  # fmt: skip


def take(asked: Order, clock: FakeClock | None = None) -> Mapping[str, Any] | Wish:
    used = clock or FakeClock()
    wishes = Wishes(asked.ledger, used)  # type: ignore[arg-type]
    config = {"threads": 2, "head": "good-v0001"}
    return profiler.take(
        asked, config, 6, lease_fds=(), wishes=wishes, clock=used  # type: ignore[arg-type]
    )


def test_the_program_is_told_the_configuration_and_locks_a_file_of_its_own(tmp_path: Path) -> None:
    echo = (
        "import json, os, sys\n"
        "config = json.load(open(sys.argv[sys.argv.index('--config') + 1]))\n"
        "print(json.dumps({'argv': sys.argv[1:], 'config': config, "
        "'lease': os.environ['FLYWHEEL_LEASE']}))\n"
    )
    told = take(order(tmp_path, echo))
    assert isinstance(told, dict)
    assert told["config"] == {"threads": 2}  # a head is no field of the engine's
    assert told["argv"][told["argv"].index("--rows") + 1] == "6"
    assert told["argv"][-2:] == ["--checkpoint", str(tmp_path)]
    assert told["lease"].startswith(str(tmp_path / profiler.FOLDER))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.stderr.write('note\\nno such model\\n'); sys.exit(2)", "no such model"),
        ("print('{')", "no JSON document"),
        ("print('[1]')", "no JSON object"),
    ],
)
def test_a_profile_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, program: str, said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        take(order(tmp_path, program))


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="longer than 1 s"):
        take(order(tmp_path, "import time; time.sleep(600)", timeout_s=1.0))


def test_a_wish_to_stop_ends_it(tmp_path: Path) -> None:
    (tmp_path / "STOP").touch()
    found = take(order(tmp_path, "import time; time.sleep(600)"))
    assert isinstance(found, Wish)
