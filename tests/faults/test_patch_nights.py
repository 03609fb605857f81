"""Whole nights with patches, on the scripted engine: git, processes, lease and ledger are real."""

from __future__ import annotations

from pathlib import Path

from patches import faster, git, order_in, patched, session, worktrees

from flywheel import best


def state_of_user(repo: Path) -> tuple[str, ...]:
    return tuple(git(repo, *words) for words in (
        ("rev-parse", "HEAD"), ("symbolic-ref", "HEAD"), ("status", "--porcelain"),
        ("for-each-ref", "refs/heads"), ("stash", "list"),
    ))  # fmt: skip


def test_a_patch_that_is_faster_is_promoted_by_its_revision_alone(tmp_path: Path) -> None:
    asked = order_in(tmp_path)
    before = state_of_user(asked.cwd)
    done, history, said = session(asked, [patched(asked, faster(asked.cwd))])
    print(said)
    decided = [v for v in history.variants if v.purpose == "lever"]
    assert [v.decision.ending for v in decided if v.decision] == ["promoted"]
    (row,) = history.patches
    assert best.fold(history).config == {"patch": row.name}
    assert git(asked.cwd, "rev-parse", f"refs/flywheel/patches/{row.revision}").strip() == (
        row.revision
    )
    assert "FACTOR = 0.7" in git(asked.cwd, "show", f"{row.revision}:engine/model.py")
    assert state_of_user(asked.cwd) == before
    assert worktrees(asked) == []
    assert not done.failed
    # The sum is measured from two revisions, too.
    anchors = [v for v in history.variants if v.purpose == "anchor"]
    assert anchors
    assert all(v.measured for v in anchors)
