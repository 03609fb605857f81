"""A git repository with a few lines of engine, patches of it, and nights that try them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nights import lever, night, opened, order, view
from repositories import git

from flywheel import declared
from flywheel.ledger.rows import View
from flywheel.lever import Lever
from flywheel.loop.order import Order, PatchOrder, Session
from flywheel.patch import source
from flywheel.patch.gates import GateTests
from flywheel.patch.prompts import Shape
from flywheel.patch.repository import Repository

MODEL = "engine/model.py"
SHAPE = Shape(fresh=2, suite=2, random_lengths=1, new_tokens=12, longest=96)
LINES = ["FACTOR = 1.0", "", "", "def twice(x):", "    return x + x", ""]


def repository(root: Path, files: dict[str, str] | None = None) -> Path:
    """A repository of one commit on the branch main."""
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    told = {"engine/__init__.py": "", MODEL: "\n".join(LINES), "kernels/__init__.py": "",
            ".gitignore": "__pycache__/\n", **(files or {})}
    for name, text in told.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "the engine")
    return root


def diff(root: Path, old: str, new: str, path: str = MODEL) -> str:
    """A diff that replaces text in a file; the file is left as it was."""
    before = (root / path).read_text()
    assert old in before
    (root / path).write_text(before.replace(old, new, 1))
    try:
        return git(root, "diff")
    finally:
        (root / path).write_text(before)


def faster(root: Path, factor: float = 0.7) -> str:
    """A diff that makes the scripted engine faster."""
    return diff(root, "FACTOR = 1.0", f"FACTOR = {factor}")


def patched(asked: Order, text: str, name: str = "faster", **fields: Any) -> Lever:
    """The lever of a diff, declared as `flywheel levers add` does."""
    repo = Repository.at(asked.cwd)
    patch = source.onto(repo, repo.head(), text)
    source.keep(asked.ledger, patch)
    made = lever("patch", patch.sha256, kind="patch", hot=False, name=name, **fields)
    declared.add(asked.ledger, made, declared.read(asked.ledger))
    return made


def order_in(
    root: Path,
    *options: str,
    files: dict[str, str] | None = None,
    tests: tuple[GateTests, ...] = (),
    **fields: Any,
) -> Order:
    """An order whose engine takes its code from a repository of its own."""
    repo = root / "repo"
    if not repo.exists():
        repository(repo, files)
    asked = order(root, "--speed", MODEL, *options, cwd=repo, **fields)
    return replace(asked, patches=PatchOrder(shape=SHAPE, tests=tests))


def session(asked: Order, levers: Sequence[Lever]) -> tuple[Session, View, str]:
    """A night to its end: what it did, the history, and what it said."""
    said = io.StringIO()
    with opened(asked) as ledger:
        done = night(asked, ledger, levers, said).run()
        return done, view(ledger), said.getvalue()


def worktrees(asked: Order) -> list[str]:
    """Worktrees beside the user's own, on the disk or in git's books."""
    listed = git(asked.cwd, "worktree", "list", "--porcelain").split("\n\n")
    lying = asked.ledger.parent / "worktrees"
    return [*listed[1:-1], *([str(p) for p in lying.iterdir()] if lying.exists() else [])]
