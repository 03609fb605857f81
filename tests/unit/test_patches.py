"""A patch as it is declared: read, identified, admitted; and worktrees that are never left."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from repositories import MODEL, branch, edited, git, repository

from flywheel.box import identity
from flywheel.cli import commands
from flywheel.cli.app import main
from flywheel.errors import LeverError, PatchError, UsageError
from flywheel.files import dump, write_atomic
from flywheel.patch import admission, gates, prompts, source, worktree
from flywheel.patch.paths import forbidden
from flywheel.patch.prompts import Shape
from flywheel.patch.repository import REFS, Repository
from flywheel.propose import gathering
from flywheel.propose.answer import Patch as Proposed

TWICE = (MODEL, "return x + x\n", "return 2 * x\n")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return repository(tmp_path / "repo")


# -- reading -------------------------------------------------------------------------------


def test_a_branch_and_a_file_that_say_the_same_are_the_same_patch(
    repo: Repository, tmp_path: Path
) -> None:
    branch(repo, "double", *TWICE)
    file = tmp_path / "a.diff"
    file.write_text(git(repo.root, "diff", "-U1", "main", "double"))
    from_branch = source.read(repo, "double", tmp_path)
    from_file = source.read(repo, str(file), tmp_path)
    assert from_branch.sha256 == from_file.sha256
    assert from_branch.files == (MODEL,)


def test_a_patch_is_the_same_after_lines_above_it_came_in(repo: Repository, tmp_path: Path) -> None:
    text = edited(repo, MODEL, "return x + x + x", "return 3 * x")
    before = source.onto(repo, repo.head(), text)
    (repo.root / MODEL).write_text("NEW = 0\n" + (repo.root / MODEL).read_text())
    git(repo.root, "commit", "-qam", "above")
    assert source.onto(repo, repo.head(), text).sha256 == before.sha256


def test_the_same_change_at_another_place_is_another_patch(repo: Repository) -> None:
    (repo.root / MODEL).write_text("def a():\n    return 1\n\n\n\n\n\ndef b():\n    return 1\n")
    git(repo.root, "commit", "-qam", "two places")
    body = (repo.root / MODEL).read_text()
    (repo.root / MODEL).write_text(body.replace("return 1", "return 2", 1))
    first = git(repo.root, "diff")
    (repo.root / MODEL).write_text(body[:-9] + "return 2\n")
    second = git(repo.root, "diff")
    git(repo.root, "checkout", "-q", MODEL)
    found = [source.onto(repo, repo.head(), one).sha256 for one in (first, second)]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nobody", "neither a file nor a branch"),
        ("n" * 300, "neither a file nor a branch"),
        ("main", "changes nothing"),
        ("stale.diff", "does not apply"),
        ("noise.diff", "does not apply"),
        ("empty.diff", "changes nothing"),
        ("bytes.diff", "cannot be read as a diff"),
    ],
)
def test_what_is_no_patch_is_refused_in_one_sentence(
    repo: Repository, tmp_path: Path, given: str, said: str
) -> None:
    stale = edited(repo, *TWICE).replace(" def twice", " def once").replace("index ", "index 0")
    (tmp_path / "stale.diff").write_text(stale)
    (tmp_path / "noise.diff").write_text("hello\n")
    (tmp_path / "empty.diff").write_text("")
    (tmp_path / "bytes.diff").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=said):
        source.read(repo, given, tmp_path)


def test_the_users_own_settings_change_no_identity(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = edited(repo, *TWICE)
    plain = source.onto(repo, repo.head(), text)
    odd = {"diff.noprefix": "true", "diff.mnemonicPrefix": "true", "color.ui": "always",
           "diff.context": "9", "core.pager": "false"}
    for name, value in odd.items():
        git(repo.root, "config", name, value)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert source.onto(repo, repo.head(), text) == plain


def test_a_kept_diff_that_was_changed_is_no_longer_the_patch(
    repo: Repository, tmp_path: Path
) -> None:
    patch = source.onto(repo, repo.head(), edited(repo, *TWICE))
    ledger = tmp_path / "ledger.db"
    path = source.keep(ledger, patch)
    assert source.kept(ledger, patch.sha256) == patch.diff
    path.write_text(patch.diff.replace("2 * x", "4 * x"))
    with pytest.raises(PatchError, match="not the patch that was declared"):
        source.kept(ledger, patch.sha256)


# -- commits of ours -----------------------------------------------------------------------


def test_a_revision_is_the_same_whenever_it_is_made_and_outlives_a_collection(
    repo: Repository,
) -> None:
    patch = source.onto(repo, repo.head(), edited(repo, *TWICE))
    made = [repo.commit(patch.base, patch.tree, "x") for _ in range(2)]
    assert made[0] == made[1]
    repo.keep(made[0])
    git(repo.root, "gc", "-q", "--prune=now")
    assert repo.commit_of(f"{REFS}/{made[0]}") == made[0]
    repo.let_go(made[0])
    git(repo.root, "gc", "-q", "--prune=now")
    assert repo.commit_of(made[0]) is None


def test_no_hook_of_the_users_is_run(repo: Repository, tmp_path: Path) -> None:
    for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction"):
        hook = repo.root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\nexit 1\n")
        hook.chmod(0o755)
    patch = source.onto(repo, repo.head(), edited(repo, *TWICE))
    revision = repo.commit(patch.base, patch.tree, "x")
    repo.keep(revision)
    tree = worktree.add(repo, tmp_path / "trees", revision)
    worktree.remove(repo, tree.path)
    assert not (tmp_path / "ran").exists()


# -- admission -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "tests/cpu/test_state.py", "engine/measure/program.py", "engine/suite.py",
        "engine/engine.py", "engine/assets/suites/tiny-v1.json", "kernels/oracle/rotary.py",
        "kernels/bench/clock.py",
        "flywheel/run/admit.py", "experiments/knobs.py", "engine/config.py", "engine/sampling.py",
        "conftest.py", "pyproject.toml", ".gitattributes", "kernels/deeper/new.py", "engine/new.py",
        "../engine/model.py", "engine/model.py/../suite.py", "kernels/rotary.so",
        "sitecustomize.py", "torch.py", "engine/__init__.py", "engine/server/app.py",
    ],
)  # fmt: skip
def test_files_that_measure_or_judge_are_out_of_reach(path: str) -> None:
    assert forbidden([path])


def test_files_that_compute_are_within_reach() -> None:
    assert forbidden([MODEL, "kernels/rotary.py", "kernels/new.py", "engine/device/seat.py"]) == ()


def test_a_patch_of_a_forbidden_file_names_it(repo: Repository) -> None:
    patch = source.onto(repo, repo.head(), edited(repo, "engine/config.py", "A = 1", "A = 2"))
    (reason,) = source.reasons(repo, patch)
    assert str(reason).startswith("engine/config.py: no patch may touch it, for it says what is")


def test_a_link_is_not_admitted(repo: Repository) -> None:
    (repo.root / "kernels/link.py").symlink_to("/etc/passwd")
    git(repo.root, "add", "-A")
    text = git(repo.root, "diff", "--cached")
    git(repo.root, "reset", "-q", "--hard")
    patch = source.onto(repo, repo.head(), text)
    assert "no plain file" in str(source.reasons(repo, patch)[0])


BAD = {
    "import time": "it would read the clock",
    "from time import perf_counter_ns as x": "it would read the clock",
    "import torch.utils.benchmark": "it would read the clock",
    "x = torch.cuda.Event(enable_timing=True)": "it would read the clock",
    "from torch.cuda import Event": "it would read the clock",
    "x = tl.extra.cuda.globaltimer()": "it would read the clock",
    "x = 'mov.u64 $0, %clock64;'": "the device's clock",
    "import engine.engine\nengine.engine.time.time()": "it would read the clock",
    "x = torch.os.environ": "it would read or write files",
    "open('/tmp/x')": "it would read or write files",
    "from pathlib import Path": "it would read or write files",
    "torch.save(x, y)": "it would read or write files",
    "import subprocess": "start something beside the run",
    "import threading": "start something beside the run",
    "import socket": "use the network",
    "import sys": "look into the program that measures it",
    "import importlib": "look into the program that measures it",
    "from engine.suite import Suite": "measures or judges",
    "from engine import measure": "measures or judges",
    "import engine\nx = engine.measure": "measures or judges",
    "from . import suite": "relative name",
    "import random": "draw what nobody can draw again",
    "import yaml": "not among the modules",
    "eval('1')": "run code not shown here",
    "setattr(x, 'y', 1)": "reach into other code",
    "getattr(x, name)": "reach into other code",
    "getattr(x, '__dict__')": "reach into other code",
    "x.__dict__['y'] = 1": "reach into other code",
    "type(x).y = f": "replace other modules' things",
    "torch.matmul = f": "replace other modules' things",
    "from engine.state import State\nState.commit = f": "replace other modules' things",
    "from functools import lru_cache": "remember",
    "import functools\n@functools.cache\ndef f(): ...": "remember",
    "SEEN = {}\ndef f(x):\n    SEEN[x] = 1": "remember",
    "class A:\n    seen = []\n    def f(self, x):\n        self.seen.append(x)": "remember",
    "def f(x, seen={}): ...": "remember",
    "def f():\n    global N\n    N = 1": "remember",
    f"T = {list(range(100))}": "table of more than",
    f"T = {'x' * 500!r}": "text of more than",
    f"N = {10**40}": "number of more than 64 bits",
    "def f(:": "it is no Python",
}  # fmt: skip


@pytest.mark.parametrize("code", BAD)
def test_what_a_patch_may_not_do_is_said_with_its_line(code: str) -> None:
    found = admission.reasons("kernels/x.py", "", f"import torch\n{code}\n")
    assert any(BAD[code] in str(one) for one in found), found
    assert all((one.line or 0) > 1 for one in found)


@pytest.mark.parametrize("code", [f"X = {'-' * 20_000}1", f"X = {'+'.join('1' * 20_000)}"])
def test_code_that_is_nested_without_end_is_refused(code: str) -> None:
    (found,) = admission.reasons("kernels/x.py", "", f"{code}\n")
    assert "nested too deeply" in str(found)


def test_what_a_file_did_before_is_not_held_against_a_patch() -> None:
    old = "import time\n\n\ndef f():\n    return time.time()\n"
    assert admission.reasons("kernels/x.py", old, old.replace("f()", "g()")) == ()
    assert admission.reasons("kernels/x.py", old, old + "\n\nx = time.monotonic()\n")


def test_ordinary_code_is_admitted() -> None:
    code = (
        '"""A kernel."""\n\nfrom __future__ import annotations\n\nimport torch\nimport triton\n'
        "import triton.language as tl\nfrom kernels.launch import launch\n\nBLOCK = 64\n\n\n"
        "class Model:\n    def __init__(self) -> None:\n        self.parts = [1, 2]\n\n\n"
        "@triton.jit\ndef kernel(x, y, n: tl.constexpr):\n    tl.store(y, tl.load(x))\n\n\n"
        "def run(x: torch.Tensor) -> torch.Tensor:\n    out = []\n    out.append(x)\n"
        "    launch(kernel, (1,), x)\n    return torch.cat(out)\n"
    )
    assert admission.reasons("kernels/x.py", "", code) == ()


# -- worktrees -----------------------------------------------------------------------------


def test_a_worktree_is_swept_when_its_owner_is_gone_or_is_this_process(
    repo: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "worktrees"
    tree = worktree.add(repo, folder, repo.head())
    (tree.path / "left.bin").write_bytes(b"x")
    assert worktree.sweep(repo, folder, spare=[tree.path]) == ()
    assert worktree.sweep(repo, folder) == (tree.path.name,)
    assert not folder.exists()
    assert worktree.registered(repo) == (str(repo.root),)


def test_a_worktree_of_a_living_loop_is_left_alone(repo: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "worktrees"
    tree = worktree.add(repo, folder, repo.head())
    parent = identity.of(os.getppid())
    assert parent is not None
    write_atomic(tree.path.with_name(f"{tree.path.name}.json"), dump(parent.to_json()))
    assert worktree.sweep(repo, folder) == ()
    worktree.remove(repo, tree.path)


def test_a_worktree_whose_folder_was_deleted_or_locked_leaves_gits_books(
    repo: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "worktrees"
    path = worktree.add(repo, folder, repo.head()).path
    git(repo.root, "worktree", "lock", str(path))
    git(repo.root, "clean", "-fdx")
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink() if not file.is_dir() else file.rmdir()
    path.rmdir()
    worktree.sweep(repo, folder)
    assert worktree.registered(repo) == (str(repo.root),)


def test_a_worktree_of_the_users_own_is_never_touched(repo: Repository, tmp_path: Path) -> None:
    git(repo.root, "worktree", "add", "-q", "--detach", str(tmp_path / "mine"))
    worktree.add(repo, tmp_path / "worktrees", repo.head())
    worktree.sweep(repo, tmp_path / "worktrees")
    assert worktree.registered(repo) == (str(repo.root), str(tmp_path / "mine"))


# -- gates ---------------------------------------------------------------------------------


def test_the_device_comes_after_the_processor_and_only_where_there_is_one() -> None:
    names = [one.name for one in gates.chosen(gates.TESTS, ["kernels/rotary.py"], device=True)]
    assert names[-2:] == ["gpu", "backend"]
    assert names[:-2] == [
        one.name for one in gates.chosen(gates.TESTS, ["kernels/rotary.py"], device=False)
    ]
    assert [one.name for one in gates.chosen(gates.TESTS, [MODEL], device=True)] == [
        "state", "oracles",
    ]  # fmt: skip


def test_every_file_of_the_gates_is_in_this_repository() -> None:
    root = Path(__file__).parents[2]
    assert all((root / file).is_file() for one in gates.TESTS for file in one.files)


def test_tests_are_spread_over_processes_but_for_those_that_fill_the_device() -> None:
    kernels, gpu, backend = (
        next(one for one in gates.TESTS if one.name == name)
        for name in ("kernels", "gpu", "backend")
    )
    spread = [gates.argv(("t",), one, workers=4) for one in (kernels, gpu, backend)]
    assert [words[: -len(one.files)] for words, one in
            zip(spread, (kernels, gpu, backend), strict=True)] == [
        (*gates.INTERPRETED, "t", "-n", "4"), ("t", "-n", "4"), ("t",),
    ]  # fmt: skip


def test_only_what_runs_on_the_device_can_be_narrowed() -> None:
    for one in gates.TESTS:
        words = gates.argv(("t",), one, device_tests="rings or moe")
        assert ("rings or moe" in words) == one.device


@pytest.mark.parametrize(
    ("text", "why"),
    [("moe and (", "got end of input"), ("it's", "closing quote"), ("-x", "expected one argument")],
)
def test_an_expression_that_pytest_does_not_take_is_refused_before_the_night(
    text: str, why: str
) -> None:
    with pytest.raises(UsageError, match="is no expression of pytest's -k") as refused:
        commands.patch_order(1, 60.0, text)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_expression_that_pytest_takes_is_kept_as_it_is_said() -> None:
    assert commands.patch_order(1, 1.0, " moe or not rings ").device_tests == "moe or not rings"


def test_whatever_needs_the_interpreter_beside_a_device_is_given_it() -> None:
    root = Path(__file__).parents[2]
    for one in gates.TESTS:
        if any("gates.interpreter()" in (root / file).read_text() for file in one.files):
            assert one.interpreted, one.name


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        ("..\n2 passed in 0.01s", True),
        ("SKIPPED [3] x.py: no CUDA device\n683 passed, 3 skipped in 92.10s (0:01:32)", True),
        ("SKIPPED [3] x.py: 9 passed\n3 skipped in 0.01s", False),
        ("", False),
    ],
)
def test_a_run_that_only_skipped_ran_nothing(said: str, ran: bool) -> None:
    assert gates.ran(said) is ran


def test_a_gate_asks_around_every_page_of_the_model_and_is_drawn_anew() -> None:
    model = {"sliding_window": 128, "compress_ratios": [0, 4, 128], "max_position_embeddings": 2048}
    shape = Shape()
    found = prompts.lengths(model, {}, shape, random.Random(1))
    assert {3, 4, 5, 63, 64, 65, 127, 128, 129} <= set(found)
    assert max(found) == 2048 - shape.new_tokens - 1
    assert found != prompts.lengths(model, {}, shape, random.Random(2))


def test_a_gates_suite_is_in_the_order_of_categories_and_says_new_text() -> None:
    root = Path(__file__).parents[2]
    suite = json.loads((root / "engine/assets/suites/tiny-v1.json").read_text())
    made = [prompts.gate_suite(suite, [], (3, 128), Shape(), seed) for seed in (1, 2)]
    kinds = [entry["id"].partition("/")[0] for entry in made[0]["prompts"]]
    assert kinds == ["edge"] * 2 + ["fresh"] * 4 + ["suite"] * 4
    places = list(dict.fromkeys(entry["category"] for entry in suite["prompts"]))
    order = [places.index(entry["category"]) for entry in made[0]["prompts"]]
    assert order == sorted(order)
    said = [[m["messages"][0]["content"] for m in one["prompts"][:6]] for one in made]
    assert not set(said[0]) & set(said[1])


# -- the command ---------------------------------------------------------------------------


def test_levers_add_patch_declares_it_and_refuses_its_twin(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    branch(repo, "double", *TWICE, said="one multiplication, no addition")
    monkeypatch.chdir(repo.root)
    ledger = str(tmp_path / "ledger.db")
    add = ["levers", "add", "--ledger", ledger, "--json"]
    before = git(repo.root, "status", "--porcelain", "--branch")
    assert main([*add, "--patch", "double"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["kind"], told["files"]) == ("double", "patch", [MODEL])
    assert told["claim"] == "one multiplication, no addition"
    assert not told["hot"]
    assert Path(told["diff"]).read_text().startswith("diff --git")
    file = tmp_path / "other.diff"
    file.write_text(git(repo.root, "diff", "main", "double"))
    assert main([*add, "another", "--patch", str(file)]) == 2
    assert "the same change as double" in capsys.readouterr().err
    assert git(repo.root, "status", "--porcelain", "--branch") == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --set FIELD=VALUE or --patch"),
        (("--patch", "a", "--set", "b=1"), "one of the two"),
        (("--patch", "nobody"), "neither a file nor a branch"),
        (("--patch", "n" * 300), "neither a file nor a branch"),
        (("x", "--set", "b=1"), "needs --claim"),
        (("--patch", "ruler"), "no patch may touch it"),
    ],
)
def test_levers_add_says_what_is_wrong(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    branch(repo, "ruler", "engine/config.py", "A = 1", "A = 2")
    monkeypatch.chdir(repo.root)
    assert main(["levers", "add", *words, "--ledger", str(tmp_path / "ledger.db")]) == 2
    assert said in capsys.readouterr().err


def test_a_patch_that_a_program_proposes_becomes_the_lever_that_a_person_would_declare(
    repo: Repository, tmp_path: Path
) -> None:
    ledger, text = tmp_path / "ledger.db", edited(repo, *TWICE)
    take = gathering.taker(ledger, repo.root)
    made = take(Proposed("p", text, "one product", "it is not", 0.03, ceiling=0.1))
    assert made.change == {"patch": source.onto(repo, repo.head(), text).sha256}
    assert (made.kind, made.hot, made.ceiling) == ("patch", False, 0.1)
    assert source.kept(ledger, str(made.change["patch"]))
    for bad, said in ((edited(repo, MODEL, "LIMIT = 1", "import time"), "read the clock"),
                      (text.replace("def twice", "def once"), "does not apply")):  # fmt: skip
        with pytest.raises(LeverError, match=said):
            take(Proposed("q", bad, "c", "f", 0.03))
