"""A git repository with a few lines of engine, for tests of patches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from flywheel.patch.repository import Repository

MODEL = "engine/model.py"
TEXT = "LIMIT = 1\n\n\ndef twice(x):\n    return x + x\n\n\ndef thrice(x):\n    return x + x + x\n"


def git(root: Path, *words: str) -> str:
    """What git says."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ("git", "-C", str(root), *who, *words), env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout


def repository(root: Path) -> Repository:
    """A repository of one commit on the branch main."""
    told = {
        "engine/__init__.py": "", MODEL: TEXT, "engine/config.py": "A = 1\n",
        "kernels/__init__.py": "", "kernels/rotary.py": "B = 2\n", "tests/cpu/test_state.py": "",
    }  # fmt: skip
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for name, text in told.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "the engine")
    return Repository(root)


def edited(repo: Repository, path: str, old: str, new: str) -> str:
    """A diff that replaces text in a file, which is left as it was."""
    file = repo.root / path
    before = file.read_text()
    file.write_text(before.replace(old, new, 1))
    try:
        return git(repo.root, "diff")
    finally:
        file.write_text(before)


def branch(repo: Repository, name: str, path: str, old: str, new: str, said: str = "x + x") -> None:
    """A branch of one commit, while main stays checked out."""
    git(repo.root, "checkout", "-qb", name)
    file = repo.root / path
    file.write_text(file.read_text().replace(old, new, 1))
    git(repo.root, "commit", "-qam", said)
    git(repo.root, "checkout", "-q", "main")
