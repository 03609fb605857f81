"""A harmless patch through `flywheel run` to its decision: the real engine, the real gates.

Asked for by name, `pytest -m night`: the tests of the gates and some ten loads take ten minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flywheel.ledger import views
from flywheel.ledger.store import Ledger

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.night, pytest.mark.timeout(3600)]


def said(root: Path, *words: str) -> str:
    done = subprocess.run(
        words, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_harmless_patch_is_gated_measured_and_decided(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    for folder in ("engine", "kernels", "tests"):
        shutil.copytree(ROOT / folder, repo / folder,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    shutil.copy(ROOT / "pyproject.toml", repo)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    (repo / ".gitignore").write_text("__pycache__/\n")
    said(repo, *git, "init", "-q", "-b", "main")
    said(repo, *git, "add", "-A")
    said(repo, *git, "commit", "-qm", "the engine")
    file = repo / "engine" / "residual.py"
    text = file.read_text()
    file.write_text(text.replace("Enters and leaves sublayers", "Enters and leaves the sublayers"))
    (tmp_path / "words.diff").write_text(said(repo, *git, "diff"))
    file.write_text(text)
    flywheel = (sys.executable, "-m", "flywheel")
    ledger = ("--ledger", str(tmp_path / "ledger.db"))
    said(repo, *flywheel, "levers", "add", "--patch", str(tmp_path / "words.diff"), *ledger)
    told = said(repo, *flywheel, "run", "--quick", "--only", "words", "--budget-hours", "0.9",
                *ledger)  # fmt: skip
    opened = Ledger.read(tmp_path / "ledger.db")
    with opened.reading() as connection:
        view = views.load(connection)
    opened.close()
    (variant,) = [v for v in view.variants if v.purpose == "lever"]
    assert [row.outcome for row in view.patches] == ["admitted"], told
    assert variant.measured, told
    assert variant.decision is None or variant.decision.ending in ("rejected", "inconclusive"), told
    assert said(repo, *git, "worktree", "list").count("\n") == 1
    assert said(repo, *git, "status", "--porcelain") == ""
