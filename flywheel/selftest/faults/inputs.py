"""What a run depends on, changed while it runs or between two runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from flywheel.selftest.fault import Fault
from flywheel.selftest.scene import Scene


def _rewrite(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"!")


def _in_mid_run(scene: Scene, change: Callable[[], object], *options: str) -> None:
    def act() -> None:
        scene.held()
        change()
        scene.release()

    scene.loop("--hold", "middle", *options, during=act)


def _checkpoint(scene: Scene) -> None:
    _in_mid_run(scene, lambda: _rewrite(scene.checkpoint / "weights"))


def _checkpoint_file_added(scene: Scene) -> None:
    _in_mid_run(scene, lambda: (scene.checkpoint / "more").write_text("x"))


def _checkpoint_gone(scene: Scene) -> None:
    _in_mid_run(scene, (scene.checkpoint / "weights").unlink)


def _suite(scene: Scene) -> None:
    _in_mid_run(scene, lambda: _rewrite(scene.suite))


def _repository(scene: Scene) -> Path:
    """A real git repository with a source file that the engine hashes, and a document."""
    tree = scene.root / "tree"
    tree.mkdir()
    (tree / "model.py").write_text("WIDTH = 3\n")
    (tree / "notes.md").write_text("notes\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(
            ["git", "-c", "user.name=selftest", "-c", "user.email=selftest@localhost",
             "-C", str(tree), *words],
            check=True, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return tree


def _git_source(scene: Scene) -> None:
    source = _repository(scene) / "model.py"
    _in_mid_run(scene, lambda: _rewrite(source), "--source", str(source))


def _git_document(scene: Scene) -> None:
    tree = _repository(scene)
    _in_mid_run(scene, lambda: _rewrite(tree / "notes.md"), "--source", str(tree / "model.py"))


def _git_commit(scene: Scene) -> None:
    tree = _repository(scene)

    def commit() -> None:
        _rewrite(tree / "model.py")
        subprocess.run(
            ["git", "-c", "user.name=selftest", "-c", "user.email=selftest@localhost",
             "-C", str(tree), "commit", "-qam", "second"], check=True, capture_output=True,
        )  # fmt: skip

    _in_mid_run(scene, commit, "--source", str(tree / "model.py"))


_CHANGED = ("changed_underfoot",)

FAULTS = (
    Fault("checkpoint_rewritten", "input", "a checkpoint file is rewritten in mid-run", "void",
          _CHANGED, _checkpoint),
    Fault("checkpoint_grown", "input", "a file joins the checkpoint in mid-run", "void",
          _CHANGED, _checkpoint_file_added),
    Fault("checkpoint_gone", "input", "a checkpoint file is deleted in mid-run", "void",
          _CHANGED, _checkpoint_gone),
    Fault("suite_changed", "input", "the suite is rewritten in mid-run", "void", _CHANGED, _suite),
    Fault("git_source_dirtied", "input", "the engine's source is dirtied in mid-run", "void",
          _CHANGED, _git_source),
    Fault("git_commit", "input", "another revision is committed in mid-run", "void", _CHANGED,
          _git_commit),
    Fault("git_document_dirtied", "input", "a document beside the source is dirtied in mid-run",
          "ok", ("",), _git_document),
)  # fmt: skip
