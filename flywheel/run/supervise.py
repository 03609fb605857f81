"""The parent of one engine run: ``python -m flywheel.run.supervise RUNDIR``.

It lives in a session of its own, so that no terminal, logout or daemon crash touches it; starts
the guard, then the engine in a process group of its own, reaps it, enforces the time limit on all
that came of it and leaves ``exit.json``.  It holds the device lease that it inherited until nobody
of the run is left and, after a kill by the guard, the memory is back.  It reads ``manifest.json``
and knows nothing of logs, levers or the ledger.  Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.files import create_whole, dump, free_bytes, read_json, write_atomic
from flywheel.guard.link import GuardLink, GuardRefused
from flywheel.guard.word import OFF, GuardWord
from flywheel.run.child import Child
from flywheel.run.exit_status import ExitStatus

CLAIM_FILE = "supervisor.json"
ENGINE_FILE = "engine.json"
LOG_FILE = "run.log"
STDERR_FILE = "stderr.log"
EXIT_WRITE_PATIENCE_S = 30.0
# A process that SIGKILL does not end within this is in the kernel's hands, perhaps for ever.
KILL_PATIENCE_S = 30.0
_PR_SET_CHILD_SUBREAPER = 36


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


@dataclass(frozen=True, slots=True)
class Clocks:
    """The kernel's clocks at one moment: only the boot clock runs while the box sleeps."""

    monotonic_ns: int
    boot_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Clocks:
        """The clocks now."""
        return cls(
            time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns()
        )

    def suspended_s(self, later: Clocks) -> float:
        """How long the box slept between this moment and a later one."""
        awake_ns = later.monotonic_ns - self.monotonic_ns
        return round((later.boot_ns - self.boot_ns - awake_ns) / 1e9, 3) + 0.0

    def wall_step_s(self, later: Clocks) -> float:
        """How far the wall clock was set between this moment and a later one."""
        passed_ns = later.boot_ns - self.boot_ns
        return round((later.wall_ns - self.wall_ns - passed_ns) / 1e9, 3) + 0.0


@dataclass(slots=True)
class _Reaped:
    status: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None
    timed_out: bool = False
    stopped: bool = False
    stuck: bool = False


def _reap(child: Child) -> _Reaped | None:
    """The child's end if it has ended; never blocks."""
    pid, word, usage = os.wait4(child.pid, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(word)
    return _Reaped(
        status=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        peak_rss_bytes=usage.ru_maxrss * 1024,
    )


def _watch(
    child: Child,
    wakeup: _Wakeup,
    guard: GuardLink | None,
    *,
    timeout_s: float,
    grace_s: float,
) -> _Reaped:
    """Wait for the engine; TERM its group at the limit, on request or when nobody guards it any
    more, KILL after the grace, and give up on one that not even that ends."""
    deadline = time.monotonic() + timeout_s
    kill_at: float | None = None
    give_up_at = float("inf")
    timed_out = stopped = False
    while True:
        reaped = _reap(child)
        now = time.monotonic()
        if reaped is None and now >= give_up_at:
            reaped = _Reaped(stuck=True)
        if reaped is not None:
            reaped.timed_out, reaped.stopped = timed_out, stopped
            return reaped
        unguarded = guard is not None and guard.dead()
        if kill_at is None and (wakeup.stop_asked or now >= deadline or unguarded):
            stopped = wakeup.stop_asked
            timed_out = now >= deadline and not stopped
            kill_at = now + grace_s
            give_up_at = kill_at + KILL_PATIENCE_S
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
            # A directory that was deleted does not come back.
            if time.monotonic() >= deadline or not run_dir.is_dir():
                return False
            time.sleep(0.5)


def _hold(run_dir: Path, manifest: dict[str, Any]) -> Child:
    """The engine's process, born but not let loose."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("FLYWHEEL_LEASE_FD", None)
    return Child(
        manifest["argv"],
        cwd=manifest["cwd"],
        environment=environment,
        output=(run_dir / STDERR_FILE).resolve(),
    )


@dataclass(slots=True)
class _Run:
    """What the supervisor learns of its run."""

    engine: Identity | None = None
    reaped: _Reaped = field(default_factory=_Reaped)
    leftovers: int = 0
    empty: bool = True
    guard: GuardWord | None = None
    error: str | None = None
    disk_free_bytes: int | None = None


def _run(
    run_dir: Path, manifest: dict[str, Any], wakeup: _Wakeup, me: Identity, *, alone: bool
) -> _Run:
    """Guard, engine, end: the whole life of a run, up to the word that is left of it."""
    run = _Run(guard=GuardWord(OFF))
    link: GuardLink | None = None
    try:
        if manifest.get("guard") is not None:
            link = GuardLink(run_dir, manifest)
        child = _hold(run_dir, manifest)
        # Not reaped yet, so the pid is the engine's even if it has died already.
        engine = identity.of(child.pid, zombie=True)
        run.error = _release(run_dir, child, engine, link, me, alone=alone)
    except (GuardRefused, OSError) as failure:
        refused = isinstance(failure, GuardRefused)
        run.error = str(failure) if refused else f"the engine could not be started: {failure}"
    if run.error is not None:
        if link is not None:
            link.end()
        return run
    run.engine = engine
    grace_s = float(manifest.get("grace_s", 5.0))
    run.reaped = _watch(
        child, wakeup, link, timeout_s=float(manifest["timeout_s"]), grace_s=grace_s
    )
    run.disk_free_bytes = free_bytes(run_dir)
    if run.engine is not None:
        root, spare = (me if alone else None), (os.getpid(), 0 if link is None else link.pid)
        run.leftovers = len(identity.family(run.engine, root, spare))
        run.empty = identity.end_family(run.engine, root, grace_s, spare=spare)
    if link is not None:
        run.guard = link.word()
    return run


def _release(
    run_dir: Path,
    child: Child,
    engine: Identity | None,
    link: GuardLink | None,
    me: Identity,
    *,
    alone: bool,
) -> str | None:
    """Write down who the engine is, hand it to the guard, then let it loose; why it did not run.

    In this order: whoever dies on the way, the engine is known to somebody or was never there.
    """
    if engine is not None:
        with contextlib.suppress(OSError):
            write_atomic(run_dir / ENGINE_FILE, dump(engine.to_json()))
        if link is not None:
            link.tell(engine, me, alone=alone)
    failure = child.release()
    return None if failure is None else f"the engine could not be started: {failure}"


def supervise(run_dir: Path, *, alone: bool = False) -> int:
    """Run one engine to its end; 0 when exit.json was left, 3 when the run is another's.

    ``alone`` says that this process leads a session that holds nothing but this run, so that
    whatever is in that session or descends from this process may be ended with the run.
    """
    manifest = read_json(run_dir / "manifest.json")
    if manifest is None:
        print(f"{run_dir}: no readable manifest.json", file=sys.stderr)
        return 2
    me = identity.current()
    if not create_whole(run_dir / CLAIM_FILE, dump(me.to_json())):
        print(f"{run_dir}: this run was already claimed", file=sys.stderr)
        return 3
    wakeup = _Wakeup()
    began, started_utc = Clocks.now(), _utc()
    run = _run(run_dir, manifest, wakeup, me, alone=alone)
    log_bytes, log_sha256 = _digest(run_dir / LOG_FILE)
    ended = Clocks.now()
    status = ExitStatus(
        run_id=str(manifest.get("run_id")),
        status=run.reaped.status,
        signal=run.reaped.signal,
        timed_out=run.reaped.timed_out,
        stopped=run.reaped.stopped,
        duration_ns=ended.monotonic_ns - began.monotonic_ns,
        started_utc=started_utc,
        ended_utc=_utc(),
        leftovers=run.leftovers,
        group_empty=run.empty,
        peak_rss_bytes=run.reaped.peak_rss_bytes,
        log_bytes=log_bytes,
        log_sha256=log_sha256,
        engine=run.engine,
        supervisor=me,
        error=run.error,
        stuck=run.reaped.stuck,
        suspended_s=began.suspended_s(ended),
        wall_step_s=began.wall_step_s(ended),
        guard=run.guard,
        disk_free_bytes=run.disk_free_bytes,
    )
    return 0 if _leave(run_dir, status) else 1


def _inherit_orphans() -> None:
    """Become the parent of whatever the run's processes leave behind, so that it can be found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    """Entry point; the daemon is the only caller, so the usage is one line."""
    if len(sys.argv) != 2:
        print("usage: python -m flywheel.run.supervise RUNDIR", file=sys.stderr)
        return 2
    alone = os.getsid(0) == os.getpid()
    if alone:
        _inherit_orphans()
    return supervise(Path(sys.argv[1]), alone=alone)


if __name__ == "__main__":
    sys.exit(main())
