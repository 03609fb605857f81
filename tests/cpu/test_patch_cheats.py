"""Every cheat of docs/patches.md against the gates: real patches, the real engine, real processes.

Each is one load of a small random checkpoint in a worktree, about four seconds of a core, and there
is no cheaper way to show that a patched engine is caught: together they take a minute.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import pytest
from cheats import CHEATS, Cheat, row
from rich.console import Console

from engine.config import EngineConfig
from engine.engine import Engine
from engine.suite import ASSETS, Suite
from engine.tokenizer import Tokenizer
from flywheel.box.clock import SystemClock
from flywheel.display.panel import Display
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop.gating import Gating, Question, verdict
from flywheel.loop.order import Order, PatchOrder
from flywheel.loop.step import NextBlock
from flywheel.loop.wishes import Wishes
from flywheel.loop.workshop import Workshop
from flywheel.patch import source, worktree
from flywheel.patch.prompts import Shape
from flywheel.patch.repository import Repository
from flywheel.patch.worktree import Tree
from flywheel.run.record import RunRecord

ROOT = Path(__file__).parents[2]
CONFIG = {"draft_width": 5, "threads": 1, "prefill_chunk": 128, "moe": "dense"}
SHAPE = Shape(fresh=2, suite=2, random_lengths=1, new_tokens=12, longest=260)
MODEL = checkpoints.QUICK | {
    "vocab_size": 4096, "num_hidden_layers": 3, "compress_ratios": [4, 128, 0, 0],
    "sliding_window": 128, "dspark_noise_token_id": 4000,
}  # fmt: skip
pytestmark = pytest.mark.timeout(600)


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(("git", "-C", str(root), *who, *words), check=True, text=True,
                          capture_output=True).stdout  # fmt: skip


def engine_repository(root: Path) -> Repository:
    """The engine's code as it is here, as one commit."""
    for package in ("engine", "kernels"):
        shutil.copytree(
            ROOT / package, root / package,
            ignore=lambda folder, names: [n for n in names if n in ("assets", "__pycache__")],
        )  # fmt: skip
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "the engine")
    return Repository(root)


def short_suite(path: Path) -> Suite:
    """The shortest prompt of each of six categories."""
    whole = json.loads((ASSETS / "suites" / "tiny-v1.json").read_text())
    best: dict[str, dict[str, object]] = {}
    for entry in whole["prompts"]:
        held = best.get(entry["category"])
        if held is None or len(json.dumps(entry)) < len(json.dumps(held)):
            best[entry["category"]] = entry
    path.write_text(json.dumps({**whole, "prompts": list(best.values())[-6:]}))
    return Suite.load(path)


@dataclass
class Bench:
    """The incumbent's answers, and all that it takes to get a patch's."""

    repository: Repository
    gating: Gating
    step: NextBlock
    folder: Path
    base: str
    greedy: Question
    sampled: Question
    known: dict[str, RunRecord]
    answers: dict[int, tuple[int, ...]]

    def tree(self, cheat: Cheat) -> Tree:
        """The worktree of a cheat, which may be admitted or not."""
        return worktree.add(self.repository, self.folder, self.commit(cheat))

    def commit(self, cheat: Cheat) -> str:
        """The revision of a cheat."""
        patch = self.patch(cheat)
        return self.repository.commit(self.base, patch.tree, cheat.name)

    def patch(self, cheat: Cheat) -> source.Patch:
        """A cheat as a patch."""
        root = self.repository.root
        before = {path: (root / path).read_text() for path, _, _ in cheat.edits}
        try:
            for path, old, new in cheat.edits:
                text = (root / path).read_text()
                assert old in text, (cheat.name, path, old)
                told = new.replace("{}  # ANSWERS", repr(self.answers))
                (root / path).write_text(text.replace(old, told, 1))
            return source.onto(self.repository, self.base, git(root, "diff"))
        finally:
            for path, text in before.items():
                (root / path).write_text(text)

    def caught(self, cheat: Cheat) -> str:
        """What the gates say of a cheat; empty when it passes them."""
        question = self.sampled if cheat.sampled else self.greedy
        tree = self.tree(cheat)
        try:
            got = self.gating.answer(self.step, question, "B", CONFIG, tree)
        finally:
            worktree.remove(self.repository, tree.path)
        if isinstance(got, RunRecord):
            wrong = verdict(self.known[question.name], got)
            return f"{wrong[0].word}: {wrong[0].sentence}" if wrong else ""
        assert isinstance(got, str), got
        return got


def common_token(engine: Engine, ids: list[list[int]]) -> int:
    """A token in the middle of several answers: as the end of the text it cuts them short."""
    seen: dict[int, int] = {}
    for one in ids:
        commits = engine.generate(one, max_new_tokens=SHAPE.new_tokens, speculative=False)
        tokens = [t for commit in commits for t in commit.tokens]
        for token in {*tokens[4:10]} - {*tokens[:4]}:
            seen[token] = seen.get(token, 0) + 1
    return max(seen, key=lambda token: seen[token])


@pytest.fixture(scope="module", autouse=True)
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server that other tests of this process left running shares no device with these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLYWHEEL_LEASE", str(tmp_path_factory.mktemp("cheats") / "device.lock"))
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("patches")
    model = checkpoints.random_checkpoint(folder / "model", MODEL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ASSETS / "tiny-v4" / name, model)
    suite = short_suite(folder / "suite.json")
    ids = [p.encode(Tokenizer.load(model)) for p in suite.prompts]
    engine = Engine.load(model, EngineConfig.parse(CONFIG))
    config = {**MODEL, "eos_token_id": common_token(engine, ids)}
    (model / "config.json").write_text(json.dumps(config))
    engine = Engine.load(model, EngineConfig.parse(CONFIG))

    def answer(one: list[int]) -> tuple[int, ...]:
        commits = engine.generate(one, max_new_tokens=SHAPE.new_tokens)
        return tuple(t for commit in commits for t in commit.tokens)

    (folder / "repo").mkdir()
    repository = engine_repository(folder / "repo")
    order = Order(
        ledger=folder / "ledger.db", checkpoint=model, suite=folder / "suite.json",
        prompts=(), max_new_tokens=64, cwd=repository.root, patches=PatchOrder(shape=SHAPE),
        command=(sys.executable, "-m", "engine.measure"), timeout_s=240.0,
    )  # fmt: skip
    clock = SystemClock()
    ledger = Ledger.open(order.ledger)
    gating = Gating(Workshop(
        order, ledger, clock, Display(Console(file=io.StringIO())),
        Wishes(order.ledger, clock, deadline_s=None), lease=lambda: None,
        do=lambda doing, run_id: None,
    ))  # fmt: skip
    lever = Lever(name="p", kind="patch", change={"patch": "0" * 64}, claim="c", falsify="f",
                  predicted_gain=0.1, hot=False)  # fmt: skip
    step = NextBlock("b00001", "v0001", "lever", lever, CONFIG, CONFIG, False, "ABBA", 1, 1, "",
                     True, True)  # fmt: skip
    greedy, sampled = gating.questions(step, 7)
    made = Bench(repository, gating, step, folder / "worktrees", repository.head(), greedy, sampled,
                 {}, {hash(tuple(one)): answer(one) for one in ids})  # fmt: skip
    tree = worktree.add(repository, made.folder, made.base)
    for question in (greedy, sampled):
        got = gating.answer(step, question, "A", CONFIG, tree)
        assert isinstance(got, RunRecord), got
        made.known[question.name] = got
    worktree.remove(repository, tree.path)
    yield made
    ledger.close()
    assert worktree.registered(repository) == (str(repository.root),)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_caught(bench: Bench, cheat: Cheat) -> None:
    said = [str(reason) for reason in source.reasons(bench.repository, bench.patch(cheat))]
    assert any(cheat.static in one for one in said) if cheat.static else said == []
    caught = bench.caught(cheat)
    assert any(word in caught for word in cheat.words), caught


HARMLESS = (("engine/model.py", "one definition for prefill", "one and the same for prefill"),)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_harmless_patch_passes(bench: Bench, sampled: bool) -> None:
    patch = Cheat("harmless", "", HARMLESS, sampled=sampled)
    assert source.reasons(bench.repository, bench.patch(patch)) == ()
    assert bench.caught(patch) == ""


def test_the_table_of_cheats_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs" / "patches.md").read_text()
    shown = [line for line in page.splitlines() if "test_patch_cheats.py" in line]
    assert shown == [row(cheat) for cheat in CHEATS]
