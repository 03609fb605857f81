"""The guard of one engine run: ``python -m flywheel.guard RUNDIR``, started by its supervisor.

It says ``ready`` on stdout once it can see the memory, then waits on stdin for the identity of the
engine.  Standard library only, and pynvml where the manifest names a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from flywheel.box.identity import Identity
from flywheel.files import read_json
from flywheel.guard.journal import Journal
from flywheel.guard.limits import Limits
from flywheel.guard.memory import BlindError, DeviceMemory, HostMemory
from flywheel.guard.watch import Charge, Guard
from flywheel.guard.word import GuardWord

_WRITE_PATIENCE_S = 20.0
_MCL_CURRENT = 1
_OWN_OOM_SCORE = -900
_ENGINE_OOM_SCORE = 500


def _privileges() -> tuple[bool, int | None]:
    """Take what the box allows: stay in memory, be spared by the kernel, run before others."""
    locked = False
    with contextlib.suppress(OSError, AttributeError):
        # Only what is mapped now: a limit on future mappings would fail the guard itself.
        locked = ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT) == 0
    _write_oom_score("self", _OWN_OOM_SCORE)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    try:
        return locked, int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return locked, None


def _write_oom_score(pid: object, score: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score), encoding="ascii")


def _charge(said: str, run_dir: Path, manifest: dict[str, Any]) -> Charge | None:
    """What the supervisor handed over; None when it gave up before it had an engine."""
    # One that died on the way may have started the engine all the same.
    value = json.loads(said or "{}") or {"engine": read_json(run_dir / "engine.json")}
    engine = Identity.from_json(value.get("engine"))
    if engine is None:
        return None
    return Charge(
        engine,
        Identity.from_json(value.get("supervisor")),
        bool(value.get("alone")),
        timeout_s=float(manifest["timeout_s"]),
        slack_s=2 * float(manifest.get("grace_s", 5.0)) + 10.0,
    )


def _prepare(run_dir: Path) -> tuple[dict[str, Any], Journal, Guard]:
    manifest = read_json(run_dir / "manifest.json")
    if manifest is None or not isinstance(manifest.get("guard"), dict):
        raise ValueError(f"{run_dir} holds no manifest with limits for a guard.")
    limits = Limits.from_json(manifest["guard"])
    host = HostMemory(limits.meminfo, limits.cgroup)
    device = None if limits.device is None else DeviceMemory(limits.device)
    journal = Journal(run_dir)
    guard = Guard(limits, host, device, journal)
    if guard.before_bytes < limits.danger_bytes:
        raise ValueError(
            f"only {guard.before_bytes / 1e6:.0f} MB are available, less than the danger line of "
            f"{limits.danger_bytes / 1e6:.0f} MB; end something first."
        )
    journal.say(
        f"guard {os.getpid()}: floor {limits.floor_bytes / 1e6:.0f} MB x{limits.floor_polls}, "
        f"danger {limits.danger_bytes / 1e6:.0f} MB falling {limits.fall_bytes_per_s / 1e6:.0f} "
        f"MB/s x{limits.fall_polls}, poll {limits.poll_s:g} s, {limits.close_poll_s:g} s near it; "
        f"{guard.before_bytes / 1e6:.0f} MB available, {host.limits_seen} cgroups"
    )
    if device is not None:
        journal.say(f"device {limits.device}: {device.why_not or 'its own memory counts too'}")
    if limits.note:
        journal.say(limits.note)
    return manifest, journal, guard


def _leave(run_dir: Path, word: GuardWord) -> bool:
    """Write guard.json; a full disk may clear, so try for a while."""
    deadline = time.monotonic() + _WRITE_PATIENCE_S
    while True:
        try:
            word.write(run_dir)
            return True
        except OSError:
            # A directory that was deleted does not come back, and the device waits for this end.
            if time.monotonic() >= deadline or not run_dir.is_dir():
                return False
            time.sleep(0.25)


def guard(run_dir: Path, line_fd: int, out_fd: int) -> int:
    """Guard one run to its end; 0 when ``guard.json`` was left."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # It ends with its run and with nothing else.
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        manifest, journal, watcher = _prepare(run_dir)
    except (ValueError, BlindError, OSError) as error:
        os.write(out_fd, f"refused: {error}\n".encode())
        return 3
    locked, oom_score_adj = _privileges()
    gc.collect()
    gc.disable()
    with contextlib.suppress(OSError):
        os.write(out_fd, b"ready\n")
    os.close(out_fd)
    charge = _charge(_line(line_fd), run_dir, manifest)
    if charge is None:
        journal.say("no engine was handed over")
        return 0
    _write_oom_score(charge.engine.pid, _ENGINE_OOM_SCORE)
    journal.say(f"watching engine {charge.engine.pid}, started at tick {charge.engine.start_ticks}")
    word = watcher.watch(charge, line_fd)
    journal.say(
        f"{word.polls} polls in {word.watched_s:.1f} s, 99 in 100 within "
        f"{word.p99_gap_s * 1000:.0f} ms, worst gap {word.worst_gap_s * 1000:.0f} ms; "
        f"{word.cpu_s:.3f} s of processor time, {(word.rss_bytes or 0) / 2**20:.0f} MiB"
    )
    sealed = replace(
        word,
        run_id=str(manifest.get("run_id")),
        nonce=str(manifest.get("nonce")),
        locked=locked,
        oom_score_adj=oom_score_adj,
        log_bytes=journal.length,
        log_sha256=journal.close(),
    )
    return 0 if _leave(run_dir, sealed) else 1


def _line(fd: int) -> str:
    """One line from the supervisor; empty when it is gone."""
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(fd, 4096)
        if not piece:
            return ""
        text += piece
    return text.decode("utf-8", "replace")


def main() -> int:
    """Entry point; the supervisor is the only caller, so the usage is one line."""
    if len(sys.argv) != 2:
        print("usage: python -m flywheel.guard RUNDIR", file=sys.stderr)
        return 2
    return guard(Path(sys.argv[1]), 0, 1)


if __name__ == "__main__":
    sys.exit(main())
