"""How a head is made: rehearsed before the real stages, and not begun where that fails."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from harness import wait_for
from nights import night, opened, order, view
from rich.console import Console

from flywheel import suite
from flywheel.box.clock import SystemClock
from flywheel.box.lease import Lease, daemon_path, device_path
from flywheel.cli.daemon import _end_live_runs
from flywheel.display.panel import Display
from flywheel.errors import HeadError, LeaseBusy, UsageError
from flywheel.heads import archive, record
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import given, handover, judge, plan, planned, rehearsal
from flywheel.loop.attend import Attended, Wish, Wishes, attend
from flywheel.loop.forge import Forge, running
from flywheel.loop.order import HeadOrder, Order
from flywheel.loop.result import Failure
from flywheel.loop.stages import Stage, stages
from flywheel.loop.workshop import Workshop
from flywheel.run import launch
from flywheel.statistics.campaign import HEADS

TRAINER = """
import json, sys, time
from pathlib import Path
words = sys.argv
stage, out = words[1], Path(words[words.index("--out") + 1])
with Path("TOLD").open("a") as told:
    told.write(json.dumps([stage, "--capture" in words]) + "\\n")
out.mkdir(parents=True, exist_ok=True)
recipe = words[words.index("--recipe") + 1] if "--recipe" in words else "{}"
bad = stage == "rehearse" and json.loads(recipe).get("anchor") == 9.0
card = {"stage": stage, "outcome": "refused" if bad else "ok", "seconds": 1.5,
        "reason": "The loss of step 1 is not finite." if bad else None, "facts": {"tried": stage}}
(out / "card.json").write_text(json.dumps(card))
if bad:
    raise SystemExit(2)
if stage == "train" and json.loads(recipe).get("seed") == 7:
    # Two trainings that can only end together.
    marks = Path("TOLD").parent / "marks"
    marks.mkdir(exist_ok=True)
    (marks / out.name).touch()
    until = time.monotonic() + 30
    while len(list(marks.iterdir())) < 2:
        if time.monotonic() > until:
            raise SystemExit(2)
        time.sleep(0.02)
if stage == "train":
    (out / "model.safetensors").write_text("weights")
    (out / "train_metrics.json").write_text("{}")
"""


def head(name: str, **recipe: Any) -> Lever:
    return Lever(
        name, "head", {"head": recipe}, "it drafts better", "it does not", 0.1, metric="tau",
        slow=True,
    )  # fmt: skip


class Box:
    """A forge whose trainer only notes what it is asked for."""

    def __init__(self, root: Path, ledger: Ledger, asked: Order) -> None:
        self.told, self.ledger = root / "told", ledger
        clock = SystemClock()
        self.wishes = Wishes(asked.ledger, clock)
        self.forge = Forge(Workshop(
            asked, ledger, clock, Display(Console(file=io.StringIO())),
            self.wishes, lease=lambda: None, do=lambda *_: None,
        ))  # fmt: skip

    def make(
        self, name: str, others: Sequence[Lever] = (), **recipe: Any
    ) -> Failure | None:
        """Have the head of a lever made; None when it is archived."""
        lever = head(name, **recipe)
        step = plan.next_step(view(self.ledger), [lever])
        assert isinstance(step, plan.NextBlock)
        planned.plan_block(self.ledger, step, now_utc="2026-11-28T22:00:00Z")
        found = self.forge.make(step, others)
        assert found is None or isinstance(found, Failure)
        # So that the next lever's turn comes: nothing is measured here.
        judge.forgo(self.ledger, step.block_id, "test", "enough", now_utc="2026-11-28T22:00:00Z")
        return found

    def stages(self) -> list[str]:
        """What the trainer was asked for since the last time; `+` where a capture was given."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        self.told.unlink(missing_ok=True)
        return [f"{stage}{'+' * given}" for stage, given in map(json.loads, lines)]


@contextmanager
def begun(root: Path, asked: Order) -> Iterator[Box]:
    """A forge, in a ledger with a campaign that has just begun."""
    with opened(asked) as ledger:
        planned.open_campaign(ledger, asked.settings, start={}, box="b", now_utc="2026-11-28")
        yield Box(root, ledger, asked)


@pytest.fixture
def asked(tmp_path: Path) -> Order:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER.replace("TOLD", str(tmp_path / "told")))
    heads = HeadOrder(command=(sys.executable, str(trainer)))
    return order(tmp_path, heads=heads, settings=replace(HEADS, attempts=1))


def test_a_corpus_is_of_what_heads_are_judged_by_and_learn_from(
    tmp_path: Path, asked: Order
) -> None:
    judged, chats = tmp_path / "judged.json", tmp_path / "chats.jsonl"
    judged.write_text("{}")
    chats.write_text("hello\n")
    mine = replace(asked, heads=replace(asked.heads, suite=judged, chats=chats))
    first = stages(mine, head("a"), {}).shared[0]
    words = list(first.words)
    assert words[words.index("--chats") + 1] == str(chats)
    named = [words[i + 1] for i, word in enumerate(words) if word == "--suite"]
    assert named == [str(judged), str(asked.suite)]
    # What is made of other text lies elsewhere.
    places = {first.out, stages(asked, head("a"), {}).shared[0].out}
    for changed in (judged, chats):
        changed.write_text("{} ")
        places.add(stages(mine, head("a"), {}).shared[0].out)
    assert len(places) == 4
    chats.unlink()
    with pytest.raises(HeadError, match=r"cannot read .*chats.jsonl"):
        stages(mine, head("a"), {})


def test_a_head_changes_one_thing_of_the_recipe_of_the_incumbent(
    tmp_path: Path, asked: Order
) -> None:
    def trained_by(lever: Lever, incumbent: str | None) -> dict[str, Any]:
        words = stages(mine, lever, {} if incumbent is None else {"head": incumbent}).train.words
        recipe = json.loads(words[words.index("--recipe") + 1])
        assert isinstance(recipe, dict)
        return recipe

    mine = replace(asked, heads=replace(asked.heads, recipe={"steps": 9, "batch": 2}))
    files = {kind: tmp_path / kind for kind in archive.FILES}
    for path in files.values():
        path.write_text("{}")
    for name, lever in (
        ("second", {"base": {"share": 1.0}, "recipe": {"steps": 50, "start": "incumbent"}}),
        ("by-hand", None),
    ):
        archive.archive(asked.archive, name, files, {"lever": lever}, now_utc="2026-11-28")
    assert trained_by(head("a", rate=0.5), None) == {"steps": 9, "batch": 2, "rate": 0.5}
    assert trained_by(head("a", rate=0.5), "second") == {
        "steps": 50, "batch": 2, "share": 1.0, "rate": 0.5,
    }  # fmt: skip
    assert trained_by(head("a", steps=7), "second")["steps"] == 7
    assert trained_by(head("a", rate=0.5), "by-hand") == trained_by(head("a", rate=0.5), None)
    with pytest.raises(HeadError, match="holds no readable head gone"):
        trained_by(head("a"), "gone")


def judged_by(path: Path, text: str) -> Path:
    path.write_text(json.dumps({"name": "mine", "prompts": [{"id": text, "category": text}]}))
    return path


def test_what_a_night_is_given_for_its_heads_stays_as_it_was(tmp_path: Path, asked: Order) -> None:
    judged, chats = judged_by(tmp_path / "judged.json", "a"), tmp_path / "chats.jsonl"
    chats.write_text("hello\n")
    heads = replace(asked.heads, suite=judged, chats=chats)
    mine = replace(asked, heads=heads, holdout=judged_by(tmp_path / "held.json", "b"))
    kept = given.kept(mine)
    before = stages(kept, head("a"), {})
    assert kept.judges == mine.judges
    judged.write_text("{}")
    chats.unlink()
    (tmp_path / "held.json").unlink()
    assert stages(kept, head("a"), {}) == before
    assert suite.beside(kept.head_suite, kept.holdout, tmp_path)[1] == ("a", "holdout/b")
    with pytest.raises(UsageError, match="has no prompts"):
        given.kept(mine)
    # The suite of the other levers judges heads where they have none of their own.
    own = given.kept(replace(asked, suite=judged_by(tmp_path / "own.json", "c")))
    assert own.suite == tmp_path / "own.json"
    assert own.head_suite.parent == asked.forge_dir / given.FOLDER
    # What the engine ships needs no copy.
    shipped = replace(asked, suite=suite.embedded(suite.DEFAULT_SUITE))
    assert given.kept(shipped) == shipped


@pytest.mark.parametrize("entered", [True, False])
def test_a_head_is_judged_by_nothing_that_its_corpus_was_not_kept_apart_from(
    tmp_path: Path, asked: Order, entered: bool
) -> None:
    lever = head("one")
    mine = replace(asked, holdout=judged_by(tmp_path / "held.json", "b"),
                   suite=judged_by(tmp_path / "own.json", "a"))  # fmt: skip
    with begun(tmp_path, mine) as box:
        step = plan.next_step(view(box.ledger), [lever])
        assert isinstance(step, plan.NextBlock)
        planned.plan_block(box.ledger, step, now_utc="2026-11-28T22:00:00Z")
        if entered:
            assert box.forge.make(step) is None
        else:  # a crash between the two
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(record, "enter", lambda *_: None)
                assert box.forge.make(step) is None
        # The same content elsewhere is the same suite, and less than it guards no worse.
        for suite_, held in ((mine.suite, None), (judged_by(tmp_path / "x.json", "a"), None)):
            later = Box(tmp_path, box.ledger, replace(mine, suite=suite_, holdout=held))
            if entered:
                assert later.forge.make(step) is None
        other = replace(mine, suite=judged_by(tmp_path / "other.json", "z"))
        failure = Box(tmp_path, box.ledger, other).forge.make(step)
        assert isinstance(failure, Failure)
        assert failure.code == ("other_suites" if entered else "not_archived")


def test_no_head_begins_at_one_that_may_have_seen_what_judges_it(
    tmp_path: Path, asked: Order
) -> None:
    mine = replace(asked, suite=judged_by(tmp_path / "own.json", "a"))
    files = {kind: tmp_path / kind for kind in archive.FILES}
    for path in files.values():
        path.write_text("{}")
    for name, apart in (("clean", list(mine.judges)), ("seen", ["another"])):
        archive.archive(mine.archive, name, files, {"apart": apart}, now_utc="2026-11-28")
    with begun(tmp_path, mine) as box:
        for name, code, rate in (("clean", None, 0.1), ("seen", "other_suites", 0.2)):
            lever = head(f"on.{name}", start="incumbent", rate=rate)
            step = plan.next_step(view(box.ledger), [lever])
            assert isinstance(step, plan.NextBlock)
            planned.plan_block(box.ledger, step, now_utc="2026-11-28T22:00:00Z")
            failure = box.forge.make(replace(step, incumbent={"head": name}))
            assert (None if failure is None else failure.code) == code
            judge.forgo(box.ledger, step.block_id, "t", "enough", now_utc="2026-11-28T22:00:00Z")


def test_a_head_is_rehearsed_once_before_its_real_stages(tmp_path: Path, asked: Order) -> None:
    with begun(tmp_path, asked) as box:
        assert box.make("first", anchor=0.0) is None
        assert box.stages() == ["rehearse", "corpus", "regenerate", "capture", "train+"]
        # Another recipe is rehearsed on what is captured; the same one was.
        assert box.make("second", anchor=0.5) is None
        assert box.stages() == ["rehearse+", "train+"]
        cards = {row.name.partition("-")[0]: row.card for row in view(box.ledger).heads}
        assert cards["first"]["stages"]["rehearse"] == {"seconds": 1.5, "tried": "rehearse"}
        assert cards["second"]["stages"]["rehearse"]["seconds"] == 1.5


def test_what_fails_at_toy_scale_is_not_begun(tmp_path: Path, asked: Order) -> None:
    with begun(tmp_path, asked) as box:
        failure = box.make("diverges", anchor=9.0)
        assert failure == Failure("rehearse_failed", "The loss of step 1 is not finite.")
        assert box.stages() == ["rehearse"]


def test_heads_are_trained_side_by_side_and_archived_in_their_turn(
    tmp_path: Path, asked: Order
) -> None:
    with begun(tmp_path, asked) as box:
        assert box.make("one", [head("two", seed=7, decay=2.0)], seed=7) is None
        assert sorted(box.stages()[4:]) == ["rehearse+", "train+", "train+"]
        assert [row.name for row in view(box.ledger).heads] == ["one-v0001"]
        # Its turn: what was trained is archived, and nothing runs again.
        assert box.make("two", seed=7, decay=2.0) is None
        assert box.stages() == []
        second = view(box.ledger).heads[1]
        assert second.name == "two-v0002"
        assert second.card["lever"]["recipe"] == {"seed": 7, "decay": 2.0}


def test_what_is_trained_needs_neither_its_capture_nor_others_beside_it(
    tmp_path: Path, asked: Order
) -> None:
    with begun(tmp_path, asked) as box:
        assert box.make("one", [head("two", seed=7, decay=2.0)], seed=7) is None
        box.stages()
        step = plan.next_step(view(box.ledger), [head("two", seed=7, decay=2.0)])
        assert isinstance(step, plan.NextBlock)
        for shared in stages(asked, step.lever, step.incumbent).shared:
            shutil.rmtree(shared.out)
        # A third waits for its own turn, when as many as may be are trained with it.
        assert box.make("two", [head("three", anchor=0.5)], seed=7, decay=2.0) is None
        assert box.stages() == []
        assert [row.name for row in view(box.ledger).heads] == ["one-v0001", "two-v0002"]


def test_what_fails_beside_a_head_is_its_own_failure(tmp_path: Path, asked: Order) -> None:
    with begun(tmp_path, asked) as box:
        assert box.make("good", [head("diverges", anchor=9.0)], anchor=0.0) is None
        assert box.stages()[4:] == ["rehearse+", "train+"]
        failure = box.make("diverges", anchor=9.0)
        assert failure == Failure("rehearse_failed", "The loss of step 1 is not finite.")
        assert box.stages() == ["rehearse+"]


def test_an_archived_head_is_entered_only_where_it_is_the_one_that_was_trained(
    tmp_path: Path, asked: Order
) -> None:
    """A crash leaves a head archived and not entered; so does a ledger that was lost."""
    with begun(tmp_path, asked) as box:
        assert box.make("one", anchor=0.0) is None
    archived = asked.archive / "one-v0001"
    before = (archived / "head_card.json").read_bytes()
    asked.ledger.unlink()
    with begun(tmp_path, asked) as box:
        box.stages()
        failure = box.make("one", anchor=0.5)
        assert failure is not None
        assert failure.code == "not_archived"
        assert "another head one-v0001, which this ledger never trained" in failure.detail
        assert [row.name for row in view(box.ledger).heads] == []
        assert box.stages() == []
    asked.ledger.unlink()
    with begun(tmp_path, asked) as box:
        assert box.make("one", anchor=0.0) is None
        assert [row.name for row in view(box.ledger).heads] == ["one-v0001"]
    assert (archived / "head_card.json").read_bytes() == before


def test_the_target_speaks_as_the_incumbent_runs(asked: Order) -> None:
    lever = head("x", anchor=0.0)
    plain, on_gpu, tiled = (
        stages(asked, lever, incumbent) for incumbent in (
            {}, {"backend": "triton", "numerics": "exact"},
            {"backend": "triton", "numerics": "exact", "tile_down": "columns=16"},
        )
    )  # fmt: skip
    for name in (1, 2):  # regenerate, capture
        words = on_gpu.shared[name].words
        assert json.loads(words[words.index("--config") + 1]) == {
            "backend": "triton", "numerics": "exact",
        }  # fmt: skip
    assert on_gpu.rehearsal.words[on_gpu.rehearsal.words.index("--config") + 1] != "{}"
    regenerate = on_gpu.shared[1].words
    assert regenerate[regenerate.index("--workers") + 1] == "1"
    # Another backend may say something else; what is only faster says the same.
    assert plain.shared[1].out != on_gpu.shared[1].out == tiled.shared[1].out


def test_a_rehearsal_answers_for_inputs_recipe_box_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rehearsal.Inputs("model", HeadOrder(), {"anchor": 0.1}, None)
    keys = {
        one.key(None), one.key(tmp_path),
        replace(one, checkpoint="other").key(None), replace(one, recipe={}).key(None),
        replace(one, start=tmp_path).key(None),
        replace(one, heads=HeadOrder(temperature=0.5)).key(None),
        replace(one, engine={"backend": "triton"}).key(None),
    }  # fmt: skip
    assert len(keys) == 7
    assert one.key(None) == replace(one, heads=HeadOrder(prompts=3)).key(None)
    monkeypatch.setattr(rehearsal, "code_sha256", lambda: "other code")
    assert one.key(None) not in keys


SLOW = """
import sys, time
from pathlib import Path
(Path(sys.argv[sys.argv.index("--out") + 1])).mkdir(parents=True, exist_ok=True)
time.sleep(60)
"""


@pytest.fixture
def slow(tmp_path: Path, asked: Order) -> Iterator[Order]:
    """Every stage lasts for ever; none is left when the test ends."""
    trainer = tmp_path / "slow.py"
    trainer.write_text(SLOW)
    heads = replace(asked.heads, command=(sys.executable, str(trainer)))
    mine = replace(asked, heads=heads, patience_s=1.0)
    yield mine
    for run_dir in running(mine):
        launch.end(run_dir)


def left_running(tmp_path: Path, ledger: Ledger, mine: Order, count: int) -> list[Path]:
    """Stages of a loop that is gone."""
    box = Box(tmp_path, ledger, mine)
    for number in range(count):
        stage = Stage("train", mine.forge_dir / f"arm{number}", ("--out", str(tmp_path / "out")))
        assert not isinstance(box.forge._begin(stage), Failure)
    wait_for(lambda: len(running(mine)) == count)
    return running(mine)


def test_an_adopted_training_and_those_beside_it_end_together(
    tmp_path: Path, slow: Order
) -> None:
    with opened(slow) as ledger:
        left_running(tmp_path, ledger, slow, 3)
        box = Box(tmp_path, ledger, slow)
        box.wishes.interrupt("Ctrl-C")
        wish = box.forge.adopt()
        assert wish is not None
        assert wish.end_run
        assert running(slow) == []


def test_a_stop_leaves_all_that_run_side_by_side_within_one_patience(
    tmp_path: Path, slow: Order
) -> None:
    with opened(slow) as ledger:
        runs = left_running(tmp_path, ledger, slow, 4)
        box = Box(tmp_path, ledger, slow)
        (tmp_path / "STOP").touch()
        began_s = time.monotonic()
        wish = box.forge.adopt()
        assert time.monotonic() - began_s < 2.5
        assert wish is not None
        assert running(slow) == runs


def test_heads_of_one_recipe_are_rehearsed_once(tmp_path: Path, asked: Order) -> None:
    with begun(tmp_path, asked) as box:
        assert box.make("zero", anchor=0.0) is None
        box.stages()
        assert box.make("one", [head("two", anchor=0.5)], anchor=0.5) is None
        assert sorted(box.stages()) == ["rehearse+", "train+", "train+"]


def test_a_supervisor_that_is_just_letting_go_of_the_device_is_waited_for(
    tmp_path: Path, slow: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer was attended to its end: nobody else has the device."""
    monkeypatch.setenv("FLYWHEEL_LEASE", str(tmp_path / "device.lock"))
    monkeypatch.setattr("flywheel.box.lease._PATIENCE_S", 0.0)
    held = Lease.acquire(device_path(), "flywheel run")
    held.tell("flywheel run, train-001", slow.forge_dir / "runs" / "arm" / "train-001")
    wishes = Wishes(slow.ledger, SystemClock())
    with pytest.raises(LeaseBusy):
        handover.take((slow.runs_dir,), wishes, SystemClock())
    Timer(0.5, held.release).start()
    taken = handover.take((slow.runs_dir, slow.forge_dir), wishes, SystemClock())
    assert isinstance(taken, Lease)
    taken.release()


def test_stop_now_ends_trainings_also_when_the_loop_is_gone(tmp_path: Path, slow: Order) -> None:
    with opened(slow) as ledger:
        left_running(tmp_path, ledger, slow, 2)
        with Lease.acquire(daemon_path(tmp_path / "other.db"), "flywheel run"):
            assert _end_live_runs(slow.ledger) == []
        assert _end_live_runs(slow.ledger) == ["arm0/train-001", "arm1/train-001"]
        assert running(slow) == []


def test_a_stage_that_was_ended_for_a_late_loop_did_not_fail(
    tmp_path: Path, asked: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(asked) as ledger:
        box = Box(tmp_path, ledger, asked)

        def late(run_dir: Path, *words: Any, **more: Any) -> Attended:
            wait_for(lambda: launch.look(run_dir).phase == "left")
            box.wishes.interrupt("flywheel stop --now")
            return attend(run_dir, *words, **more)

        monkeypatch.setattr("flywheel.loop.forge.attend", late)
        out = tmp_path / "out"
        words = ("--out", str(out), "--recipe", json.dumps({"anchor": 9.0}))
        found = box.forge._run([Stage("rehearse", out, words)])
        assert isinstance(found, Wish)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"budget_runs": 0}, "the budget of 0 runs is spent"),
        ({"budget_s": 0.0}, "the time budget is spent"),
    ],
)
def test_a_head_that_was_measured_is_settled_though_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any], reason: str
) -> None:
    asked = order(tmp_path, **budget)
    steps: list[plan.Step] = [plan.Prove("v0001", head("one")), plan.Stop("no lever is left")]
    settled: list[str] = []
    with opened(asked) as ledger:
        whole = night(asked, ledger, [], io.StringIO())
        monkeypatch.setattr(plan, "next_step", lambda *_, **__: steps.pop(0))
        monkeypatch.setattr(whole.stage, "settle", lambda step: settled.append(step.variant_id))
        session = whole.run()
    assert settled == ["v0001"]
    assert session.reason == reason
