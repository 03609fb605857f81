"""The parent of one engine run: ``python -m flywheel.supervise RUNDIR``.

It lives in a session of its own, so that no terminal, logout or daemon crash touches it; starts
the engine in a process group of its own, reaps it, enforces the time limit on the whole group and
leaves ``exit.json``.  It holds the device lease that it inherited until the group is empty.  It
reads ``manifest.json`` and knows nothing of logs, levers or the ledger.  Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel import identity
from flywheel.exit_status import ExitStatus
from flywheel.files import create_whole, dump, read_json, write_atomic

CLAIM_FILE = "supervisor.json"
ENGINE_FILE = "engine.json"
LOG_FILE = "run.log"
STDERR_FILE = "stderr.log"
EXIT_WRITE_PATIENCE_S = 30.0


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Wakeup:
    """Sleep that a signal ends: SIGCHLD when the engine dies, SIGTERM when the run must end."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _stop(self, *_: object) -> None:
        self.stop_asked = True

    def sleep(self, seconds: float) -> None:
        select.select([self._reader], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)


@dataclass(slots=True)
class _Reaped:
    status: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None
    timed_out: bool = False
    stopped: bool = False


def _reap(child: subprocess.Popen[bytes]) -> _Reaped | None:
    """The child's end if it has ended; never blocks."""
    pid, word, usage = os.wait4(child.pid, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(word)
    child.returncode = code
    return _Reaped(
        status=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        peak_rss_bytes=usage.ru_maxrss * 1024,
    )


def _watch(
    child: subprocess.Popen[bytes], wakeup: _Wakeup, *, timeout_s: float, grace_s: float
) -> _Reaped:
    """Wait for the engine; TERM its group at the limit or on request, KILL after the grace."""
    deadline = time.monotonic() + timeout_s
    kill_at: float | None = None
    timed_out = stopped = False
    while True:
        reaped = _reap(child)
        if reaped is not None:
            reaped.timed_out, reaped.stopped = timed_out, stopped
            return reaped
        now = time.monotonic()
        if kill_at is None and (wakeup.stop_asked or now >= deadline):
            stopped, timed_out = wakeup.stop_asked, not wakeup.stop_asked
            kill_at = now + grace_s
            # The child is not reaped, so its pid, and hence its group, cannot be anybody else's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        elif kill_at is not None and now >= kill_at:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            kill_at = now + 1.0
        until = kill_at if kill_at is not None else deadline
        # Capped: should a SIGCHLD be lost, the end is still seen within ten seconds.
        wakeup.sleep(min(10.0, max(0.01, until - now)))


def _digest(path: Path) -> tuple[int | None, str | None]:
    """Length and SHA-256 of the log as it was when the run ended."""
    digest, length = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                length += len(chunk)
    except OSError:
        return None, None
    return length, digest.hexdigest()


def _leave(run_dir: Path, status: ExitStatus) -> bool:
    """Write exit.json; a full disk may clear, so try for a while."""
    deadline = time.monotonic() + EXIT_WRITE_PATIENCE_S
    while True:
        try:
            status.write(run_dir)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.5)


def _start(run_dir: Path, manifest: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("FLYWHEEL_LEASE_FD", None)
    with (run_dir / STDERR_FILE).open("ab") as stderr:
        # close_fds is the default: the engine does not inherit the lease.
        return subprocess.Popen(
            manifest["argv"],
            cwd=manifest["cwd"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            process_group=0,
        )


def supervise(run_dir: Path) -> int:
    """Run one engine to its end; 0 when exit.json was left, 3 when the run is another's."""
    manifest = read_json(run_dir / "manifest.json")
    if manifest is None:
        print(f"{run_dir}: no readable manifest.json", file=sys.stderr)
        return 2
    me = identity.current()
    if not create_whole(run_dir / CLAIM_FILE, dump(me.to_json())):
        print(f"{run_dir}: this run was already claimed", file=sys.stderr)
        return 3
    wakeup = _Wakeup()
    started_ns, started_utc = time.monotonic_ns(), _utc()
    error: str | None = None
    engine: identity.Identity | None = None
    leftovers, empty = 0, True
    reaped = _Reaped()
    try:
        child = _start(run_dir, manifest)
    except OSError as failure:
        error = f"the engine could not be started: {failure}"
    else:
        # Not reaped yet, so the pid is the engine's even if it has died already.
        engine = identity.of(child.pid, zombie=True)
        if engine is not None:
            with contextlib.suppress(OSError):
                write_atomic(run_dir / ENGINE_FILE, dump(engine.to_json()))
        grace_s = float(manifest.get("grace_s", 5.0))
        reaped = _watch(child, wakeup, timeout_s=float(manifest["timeout_s"]), grace_s=grace_s)
        if engine is not None:
            session = os.getsid(0)
            leftovers = len(identity.group_members(engine, session))
            empty = identity.end_group(engine, grace_s, session)
    log_bytes, log_sha256 = _digest(run_dir / LOG_FILE)
    status = ExitStatus(
        run_id=str(manifest.get("run_id")),
        status=reaped.status,
        signal=reaped.signal,
        timed_out=reaped.timed_out,
        stopped=reaped.stopped,
        duration_ns=time.monotonic_ns() - started_ns,
        started_utc=started_utc,
        ended_utc=_utc(),
        leftovers=leftovers,
        group_empty=empty,
        peak_rss_bytes=reaped.peak_rss_bytes,
        log_bytes=log_bytes,
        log_sha256=log_sha256,
        engine=engine,
        supervisor=me,
        error=error,
    )
    return 0 if _leave(run_dir, status) else 1


def main() -> int:
    """Entry point; the daemon is the only caller, so the usage is one line."""
    if len(sys.argv) != 2:
        print("usage: python -m flywheel.supervise RUNDIR", file=sys.stderr)
        return 2
    return supervise(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
