"""A child is nobody until it is released, and leaves with a parent that never releases it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from flywheel.box import identity
from flywheel.run.child import Child

SAY = "import os, sys; print('ran', os.getpgid(0) == os.getpid(), len(os.listdir('/proc/self/fd')))"


def held(root: Path, *argv: str, cwd: str = "/") -> Child:
    return Child(argv, cwd=cwd, environment={**os.environ, "A": "b"}, output=root / "said")


def test_a_held_child_runs_only_once_released(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    child = held(tmp_path, sys.executable, "-c", SAY)
    before = identity.of(child.pid)
    assert before is not None
    assert not (tmp_path / "said").exists()
    assert child.release() is None
    assert identity.of(child.pid, zombie=True) == before
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 0
    # Three descriptors and the one that lists them.
    assert (tmp_path / "said").read_text() == "ran True 4\n"
    os.close(reader)
    os.close(writer)


def test_what_cannot_run_says_why_and_is_reaped(tmp_path: Path) -> None:
    for child in (held(tmp_path, "/no/such"), held(tmp_path, sys.executable, cwd="/no/such")):
        assert "No such file" in (child.release() or "")
        assert identity.of(child.pid, zombie=True) is None


def test_a_child_whose_parent_died_leaves_without_having_run(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom flywheel.run.child import Child\n"
        "child = Child([sys.executable, '-c', 'print(1)'], cwd='/', environment=os.environ,"
        " output=Path(sys.argv[1]))\nprint(child.pid, flush=True)\nos._exit(0)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    said = subprocess.check_output(
        [sys.executable, "-c", code, str(tmp_path / "said")],
        env={**os.environ, "PYTHONPATH": root},
    )
    deadline = time.monotonic() + 10.0
    while identity.of(int(said)) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert identity.of(int(said)) is None
    assert not (tmp_path / "said").exists()
