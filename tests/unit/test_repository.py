"""What the repository itself promises: history that rebuilds, documents that are not stale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "ledger.db"


def flywheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flywheel", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_committed_ledger_is_whole() -> None:
    done = flywheel("ledger", "verify", "--ledger", str(LEDGER), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["whole"] is True


def test_the_committed_history_rebuilds_to_the_same_best() -> None:
    done = flywheel("ledger", "rebuild", "--ledger", str(LEDGER), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["same"] is True
    assert found["logs"] > 10
    assert found["decisions"] >= 8


def test_levers_md_is_what_the_ledger_says() -> None:
    done = flywheel("levers", "write", "--check", "--ledger", str(LEDGER))
    assert done.returncode == 0, "LEVERS.md is stale: run `flywheel levers write`"


def test_at_least_ten_levers_are_declared_each_with_what_would_falsify_it() -> None:
    import experiments

    levers = experiments.discover()
    assert len(levers) >= 10
    assert len({lever.identity for lever in levers}) == len(levers)
    assert all(lever.claim and lever.falsify for lever in levers)


def test_the_working_rules_stay_short() -> None:
    assert len((ROOT / "CLAUDE.md").read_text().splitlines()) <= 80


def test_the_readme_names_the_two_commands_that_the_makefile_has() -> None:
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in ("run", "test"):
        assert f"make {target}" in readme
        assert f"\n{target}:" in makefile


def test_the_checkpoint_is_what_its_card_says() -> None:
    import hashlib

    folder = ROOT / "engine/assets/tiny-v4"
    card = json.loads((folder / "card.json").read_text())
    for name, file in card["files"].items():
        content = (folder / name).read_bytes()
        assert len(content) == file["bytes"], name
        assert hashlib.sha256(content).hexdigest() == file["sha256"], name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 16_000_000


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_tree_stays_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    files = [ROOT / name.decode() for name in listed if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 40 * 2**20
