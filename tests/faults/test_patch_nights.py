"""Whole nights with patches, on the scripted engine: git, processes, lease and ledger are real.

A patch takes four loads of gates and four a block, so the night that several tests look at takes
half a minute of two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from boxes import SUITE, Box
from harness import wait_for
from patches import MODEL, diff, faster, git, order_in, patched, repository, session, worktrees

from flywheel import best
from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.cli.app import main
from flywheel.files import dump, read_json
from flywheel.ledger import store
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import replay
from flywheel.ledger.rows import VariantRow, View
from flywheel.ledger.store import Ledger
from flywheel.loop.order import Order
from flywheel.patch.gates import GateTests
from flywheel.run.manifest import Manifest


def state_of_user(repo: Path) -> tuple[str, ...]:
    """All that is the user's: what is checked out, the branches, the index, the stash."""
    return tuple(git(repo, *words) for words in (
        ("rev-parse", "HEAD"), ("symbolic-ref", "HEAD"), ("status", "--porcelain"),
        ("for-each-ref", "refs/heads", "refs/tags"), ("stash", "list"), ("ls-files", "--stage"),
    ))  # fmt: skip


def ending(history: View, name: str) -> VariantRow:
    """What became of a lever."""
    (found,) = [v for v in history.variants if v.lever.name == name and v.purpose == "lever"]
    return found


Lived = tuple[Order, View, str, tuple[str, ...]]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """A night with a patch that wins, and one that then changes nothing on top of it."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("lived")
    for name, value in (("LEASE", str(root / "device.lock")), ("MAX_LOAD", "1000")):
        patch.setenv(f"FLYWHEEL_{name}", value)
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    # No power is cut here.
    patch.setattr(store, "SYNCHRONOUS", "OFF")
    asked = order_in(root)
    before = state_of_user(asked.cwd)
    levers = [
        patched(asked, faster(asked.cwd), predicted_gain=0.3),
        patched(asked, diff(asked.cwd, "x + x", "2 * x"), "null", predicted_gain=0.1),
    ]
    _, history, said = session(asked, levers)
    yield asked, history, said, before
    patch.undo()


def test_a_patch_that_is_faster_is_promoted_by_its_revision_alone(lived: Lived) -> None:
    asked, history, said, before = lived
    won = ending(history, "faster")
    assert won.decision is not None, said
    assert won.decision.ending == "promoted"
    assert won.decision.mean is not None
    row = history.patches[0]
    assert best.fold(history).config == {"patch": row.name}
    ref = f"refs/flywheel/patches/{row.revision}"
    assert git(asked.cwd, "rev-parse", ref).strip() == row.revision
    assert "FACTOR = 0.7" in git(asked.cwd, "show", f"{row.revision}:{MODEL}")
    assert state_of_user(asked.cwd) == before


def test_no_worktree_and_no_ref_of_a_loser_is_left(lived: Lived) -> None:
    asked, history, _, _ = lived
    assert worktrees(asked) == []
    refs = git(asked.cwd, "for-each-ref", "--format=%(objectname)", "refs/flywheel").split()
    assert refs == [history.patches[0].revision]


def test_the_next_patch_is_measured_on_top_of_the_one_that_won(lived: Lived) -> None:
    _, history, said, _ = lived
    second = ending(history, "null")
    assert second.decision is not None, said
    assert second.decision.ending in ("rejected", "inconclusive")
    first, row = history.patches
    assert row.base == first.revision
    assert row.base_source_sha256 == first.source_sha256


def test_every_load_runs_the_code_of_its_arm_and_says_so(lived: Lived) -> None:
    asked, history, _, _ = lived
    row = history.patches[0]
    seen = set()
    for run in (run for b in ending(history, "faster").measured for run in b.runs):
        manifest = Manifest.read(asked.runs_dir / run.id)
        (arm,) = manifest.arm_names
        seen.add((arm, manifest.source_sha256(arm), Path(manifest.cwd).name))
    assert seen == {("A", row.base_source_sha256, row.base[:12]),
                    ("B", row.source_sha256, row.revision[:12])}  # fmt: skip


def test_the_sum_is_measured_from_two_revisions(lived: Lived) -> None:
    _, history, _, _ = lived
    (anchor,) = [v for v in history.variants if v.purpose == "anchor"]
    (gain,) = [e.gain for e in anchor.estimates]
    assert 0.25 < gain < 0.5


def test_the_gates_are_on_record_with_the_diff(lived: Lived) -> None:
    _, history, _, _ = lived
    row = history.patches[0]
    assert row.outcome == "admitted"
    assert "+FACTOR = 0.7" in row.diff
    kinds = {prompt.partition("/")[0] for prompt in row.gates["prompts"]}
    assert kinds == {"edge", "fresh"}


def test_the_ledger_is_derived_again_from_logs_and_from_run_directories(
    lived: Lived, tmp_path: Path
) -> None:
    asked, history, _, _ = lived
    ledger = Ledger.read(asked.ledger)
    assert rebuild(ledger).differences == ()
    ledger.close()
    made = replay(asked.runs_dir, tmp_path / "again.db")
    assert made.best == best.fold(history)


def test_best_checkout_tells_how_to_take_it_and_takes_nothing(
    lived: Lived, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, history, _, before = lived
    monkeypatch.chdir(asked.cwd)
    row = history.patches[0]
    words = ["best", "--checkout", "--ledger", str(asked.ledger)]
    assert main(words) == 0
    assert f"git merge --ff-only {row.revision}" in capsys.readouterr().out
    assert state_of_user(asked.cwd) == before
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["revision"] for one in told["patches"]] == [row.revision]
    git(asked.cwd, "checkout", "-q", "-b", "mine")
    try:
        git(asked.cwd, "commit", "-q", "--allow-empty", "-m", "mine")
        assert main(words) == 0
        assert f"git cherry-pick {row.base}..{row.revision}" in capsys.readouterr().out
        git(asked.cwd, "cherry-pick", f"{row.base}..{row.revision}")
        assert main(words) == 0
        assert "has them all already" in capsys.readouterr().out
        # A new campaign then starts from the branch, and no longer from our revision.
        again = replace(asked, new_campaign=True, budget_runs=1)
        shutil.copy(asked.ledger, asked.ledger.with_name("taken.db"))
        _, after, said = session(replace(again, ledger=asked.ledger.with_name("taken.db")), [])
        assert after.campaign is not None
        assert after.campaign.start_config == {}, said
    finally:
        git(asked.cwd, "checkout", "-q", "main")
        git(asked.cwd, "branch", "-qD", "mine")


# -- patches that do not get that far ------------------------------------------------------


def only(asked: Order, text: str) -> tuple[VariantRow, View, str]:
    """A night with one patch that is not to be measured."""
    _, history, said = session(asked, [patched(asked, text, "p")])
    assert worktrees(asked) == []
    assert git(asked.cwd, "for-each-ref", "refs/flywheel") == ""
    assert best.fold(history).config == asked.first_config
    return ending(history, "p"), history, said


def test_a_patch_that_takes_no_time_is_incorrect_and_leaves_no_worktree(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    variant, history, said = only(order_in(tmp_path), faster(repo, 0.0))
    assert variant.decision is not None, said
    assert (variant.decision.ending, variant.decision.code) == ("incorrect", "gate_failed")
    assert "impossible_rate" in variant.decision.sentence
    assert history.patches[0].outcome == "refused"


def test_a_patch_that_reads_the_clock_is_refused_before_any_gate(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    text = diff(repo, "FACTOR = 1.0", "import time\nFACTOR = 0.5")
    variant, history, said = only(order_in(tmp_path), text)
    assert variant.decision is not None, said
    assert variant.decision.sentence.startswith(f"not admitted: {MODEL}:1: it imports time")
    assert history.patches[0].gates["admission"]
    assert not (tmp_path / "forge" / "gates").exists()


def test_a_patch_that_fails_a_test_is_incorrect_and_names_it(tmp_path: Path) -> None:
    files = {
        "tests/test_twice.py": "from engine.model import twice\n\n\ndef test_two():\n"
        "    assert twice(1) == 2\n",
    }
    repo = repository(tmp_path / "repo", files)
    tests = (GateTests("own", ("engine/*",), ("tests/test_twice.py",)),)
    asked = order_in(tmp_path, tests=tests)
    variant, _, said = only(asked, diff(repo, "x + x", "x + x + x"))
    assert variant.decision is not None, said
    assert variant.decision.ending == "incorrect"
    assert "the tests of own: FAILED tests/test_twice.py::test_two" in variant.decision.sentence


def test_tests_that_the_incumbent_fails_are_not_held_against_a_patch(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"tests/test_no.py": "def test_no():\n    assert 0\n"})
    tests = (GateTests("own", ("engine/*",), ("tests/test_no.py",)),)
    variant, _, said = only(order_in(tmp_path, tests=tests), faster(repo))
    assert variant.decision is not None, said
    assert (variant.decision.ending, variant.decision.code) == ("void", "gate_broken")


ON_DEVICE = (GateTests("gpu", ("engine/*",), ("tests/test_gpu.py",), device=True),)
SEES_NONE = """import pytest


@pytest.mark.parametrize("rows", [1, 6])
def test_rows(rows):
    pytest.skip("no CUDA device")
"""
SEES_ONE = """from engine.model import twice


def test_one():
    assert twice(1) == 2


def test_long():
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("file", "narrowed", "code", "said"),
    [
        (SEES_NONE, "", "gate_skipped", "the tests of gpu all skip: no device is seen"),
        (SEES_ONE, "rings", "gate_empty", "no test on the device matches 'rings'"),
    ],
)
def test_a_patch_that_no_test_tried_on_the_device_is_not_measured(
    tmp_path: Path, file: str, narrowed: str, code: str, said: str
) -> None:
    repo = repository(tmp_path / "repo", {"tests/test_gpu.py": file})
    asked = order_in(tmp_path, tests=ON_DEVICE, first_config={"backend": "triton"})
    asked = replace(asked, patches=replace(asked.patches, device_tests=narrowed))
    variant, history, told = only(asked, faster(repo))
    assert variant.decision is not None, told
    assert (variant.decision.ending, variant.decision.code) == ("void", code)
    assert said in variant.decision.sentence
    assert history.patches == ()


def test_the_tests_on_the_device_may_be_narrowed_which_is_kept_with_the_patch(
    tmp_path: Path,
) -> None:
    repo = repository(tmp_path / "repo", {"tests/test_gpu.py": SEES_ONE})
    asked = order_in(tmp_path, tests=ON_DEVICE, first_config={"backend": "triton"}, budget_runs=4)
    asked = replace(asked, patches=replace(asked.patches, device_tests="one", workers=2))
    harmful = diff(repo, "x + x", "x + x + x")
    _, history, told = only(asked, harmful)
    assert "the tests of gpu: FAILED tests/test_gpu.py::test_one" in told
    assert [row.outcome for row in history.patches] == ["refused"]
    made = patched(asked, faster(repo), "narrow")
    _, history, told = session(asked, [made])
    row = history.patches[-1]
    assert (row.outcome, row.gates["tests"], row.gates["device_tests"]) == (
        "admitted", ["gpu"], "one",
    ), told  # fmt: skip


def test_a_patch_that_no_longer_applies_is_deferred_at_once(tmp_path: Path) -> None:
    asked = order_in(tmp_path)
    made = patched(asked, faster(asked.cwd), "p")
    (asked.cwd / MODEL).write_text("FACTOR = 2.0\n")
    git(asked.cwd, "commit", "-qam", "moved on")
    _, history, said = session(asked, [made])
    variant = ending(history, "p")
    assert variant.decision is not None, said
    assert (variant.decision.ending, variant.decision.code) == ("void", "patch_stale")
    assert len(variant.blocks) == 1
    assert worktrees(asked) == []


def test_patches_wait_while_the_code_is_not_that_of_a_commit(tmp_path: Path) -> None:
    asked = order_in(tmp_path)
    made = patched(asked, faster(asked.cwd), "p")
    (asked.cwd / MODEL).write_text("FACTOR = 1.0\n# mine\n")
    _, history, said = session(asked, [made])
    assert f"patches wait: {MODEL} is not as its revision has it" in said
    assert not [v for v in history.variants if v.purpose == "lever"]
    assert (asked.cwd / MODEL).read_text() == "FACTOR = 1.0\n# mine\n"


def test_what_a_killed_loop_left_is_swept_by_the_next(box: Box) -> None:
    """Kill -9 in the middle of a gate: it is attended to its end, and its worktrees go."""
    names = ("test_state", "test_verify", "test_prefix", "test_row_independence", "test_oracles")
    files = {f"tests/cpu/{name}.py": "def test_nothing():\n    pass\n" for name in names}
    slow = "import time\n\n\ndef test_nothing():\n    time.sleep(12)\n"
    repo = repository(box.root / "repo", {**files, "tests/cpu/test_state.py": slow})
    asked = order_in(box.root)
    (box.root / "suite.json").write_text(json.dumps(SUITE))
    patched(asked, faster(repo), "p")
    words = box.command(*box.run_words("--only", "p"))
    engine = box.environment("--speed", MODEL)
    first = subprocess.Popen(words, cwd=repo, env=engine, text=True, stdout=subprocess.DEVNULL)
    box.started.append(first)
    (told,) = wait_for(lambda: list(box.root.glob("forge/runs/*-tests-state/*/engine.json")), 120.0)
    assert len(worktrees(asked)) > 0
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert len(worktrees(asked)) > 0
    done = subprocess.run([*words, "--budget-hours", "0.001"], cwd=repo, env=engine, text=True,
                          capture_output=True, timeout=120, check=False)  # fmt: skip
    assert "adopted, still running" in done.stdout, done.stdout + done.stderr
    assert worktrees(asked) == []
    assert not identity.is_alive(Identity.from_json(read_json(told)))


def test_a_worktree_of_a_loop_that_is_gone_goes_with_the_next(tmp_path: Path) -> None:
    asked = order_in(tmp_path, budget_runs=1)
    lying = asked.ledger.parent / "worktrees" / "0123456789ab"
    git(asked.cwd, "worktree", "add", "-q", "--detach", str(lying))
    child = subprocess.Popen(["sleep", "0"])
    owner = identity.of(child.pid, zombie=True)
    child.wait()
    assert owner is not None
    lying.with_name(f"{lying.name}.json").write_text(dump(owner.to_json()))
    session(asked, [])
    assert worktrees(asked) == []
