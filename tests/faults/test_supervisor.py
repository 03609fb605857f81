"""The supervisor itself, in this process: claims, limits, requests and the word it leaves."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from harness import manifest_for, wait_for

from flywheel.box import identity
from flywheel.run import launch, supervise
from flywheel.run.exit_status import ExitStatus

pytestmark = pytest.mark.usefixtures("signals_as_before")


def prepared(root: Path, *options: str, **fields: float) -> Path:
    manifest = manifest_for(root, options=options, **fields)  # type: ignore[arg-type]
    run_dir = root / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    return run_dir


def left(run_dir: Path) -> ExitStatus:
    status = ExitStatus.read(run_dir)
    assert status is not None
    return status


def test_a_run_is_reaped_and_its_log_hashed(tmp_path: Path) -> None:
    run_dir = prepared(tmp_path)
    assert supervise.supervise(run_dir) == 0
    status = left(run_dir)
    assert status.clean
    assert status.group_empty
    assert status.log_bytes == (run_dir / "run.log").stat().st_size
    assert status.peak_rss_bytes
    assert status.duration_ns > 0
    assert supervise.supervise(run_dir) == 3
    assert launch.look(run_dir).phase == "left"
    assert not launch.disown(run_dir)


def test_the_engine_inherits_neither_terminal_nor_lease(tmp_path: Path) -> None:
    run_dir = prepared(tmp_path)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        code = "import os,sys; open(sys.argv[1],'w').write(str(os.listdir('/proc/self/fd')))"
        body = launch.read_json(run_dir / "manifest.json")
        assert body is not None
        seen = tmp_path / "fds"
        body["argv"] = [sys.executable, "-c", code, str(seen)]
        (run_dir / "manifest.json").write_text(launch.dump(body))
        assert supervise.supervise(run_dir) == 0
        assert f"'{writer}'" not in seen.read_text()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_request_ends_the_run_as_stopped(tmp_path: Path) -> None:
    run_dir = prepared(tmp_path, "--fault", "hang")

    def ask() -> None:
        wait_for(lambda: (run_dir / "run.log").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    thread.start()
    assert supervise.supervise(run_dir) == 0
    thread.join()
    status = left(run_dir)
    assert status.stopped
    assert not status.timed_out
    assert status.signal == signal.SIGTERM


def test_the_limit_kills_what_is_deaf_and_what_it_left_behind(tmp_path: Path) -> None:
    run_dir = prepared(tmp_path, "--fault", "deaf", timeout_s=1.0, grace_s=0.3)
    assert supervise.supervise(run_dir) == 0
    status = left(run_dir)
    assert status.timed_out
    assert status.signal == signal.SIGKILL
    other = prepared(tmp_path / "other", "--fault", "grandchild")
    assert supervise.supervise(other) == 0
    assert left(other).leftovers == 1
    assert left(other).engine is not None
    assert identity.group_members(left(other).engine) == ()  # type: ignore[arg-type]


def test_what_cannot_start_leaves_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = prepared(tmp_path)
    body = launch.read_json(run_dir / "manifest.json")
    assert body is not None
    (run_dir / "manifest.json").write_text(launch.dump({**body, "argv": ["/nonexistent"]}))
    monkeypatch.setattr(sys, "argv", ["supervise", str(run_dir)])
    assert supervise.main() == 0
    assert "could not be started" in (left(run_dir).error or "")
    assert left(run_dir).log_bytes is None
    monkeypatch.setattr(sys, "argv", ["supervise"])
    assert supervise.main() == 2
    assert supervise.supervise(tmp_path) == 2
    assert "no readable manifest" in capsys.readouterr().err


def test_a_full_disk_is_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = prepared(tmp_path)
    monkeypatch.setattr(supervise, "EXIT_WRITE_PATIENCE_S", 0.6)
    write, failures = ExitStatus.write, [1]

    def full_once(status: ExitStatus, folder: Path) -> None:
        if failures:
            failures.pop()
            raise OSError(28, "No space left on device")
        write(status, folder)

    monkeypatch.setattr(ExitStatus, "write", full_once)
    assert supervise.supervise(run_dir) == 0
    failures.extend([1] * 99)
    other = prepared(tmp_path / "other")
    assert supervise.supervise(other) == 1
    assert ExitStatus.read(other) is None
