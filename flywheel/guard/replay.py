"""The guard's gate: ``python -m flywheel.guard.replay [--json] [--seconds S] [TRACE ...]``.

Starts the real guard process on a file that stands in for ``/proc/meminfo`` and lets memory fall
there as in the recorded traces, in real time, with a sleeping process as the victim.  Prints what
each guard did, how fast, and what was left; and the cost of a guard on this box's own memory.
Example: ``python -m flywheel.guard.replay --json runaway healthy_load``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flywheel.box import identity
from flywheel.files import dump
from flywheel.guard.limits import CGROUP, MB, MEMINFO, Limits, limits
from flywheel.guard.link import GuardLink
from flywheel.guard.memory import HostMemory
from flywheel.guard.traces import Trace, traces
from flywheel.guard.word import GuardWord

_WRITE_S = 0.004
# Nothing can be said of a guard while the box did not run it, or did not move the trace on.
_STALL_S = 0.05


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one trace.

    ``crossed_s`` is when memory really crossed the line of the trigger, ``reaction_s`` from there
    to the signal, ``left_bytes`` what was really left then (negative: the box would have died).
    ``stalled``: the box paused this program or the guard, so a failure proves nothing.
    """

    trace: str
    what: str
    verdict: str
    trigger: str | None
    reaction_s: float | None
    left_bytes: int | None
    low_water_bytes: int | None
    peak_fall_bytes_per_s: int | None
    memory_back: bool | None
    polls: int
    worst_gap_s: float
    cpu_s: float
    as_expected: bool
    stalled: bool


class _Stage:
    """A guard on a stand-in for meminfo, with a victim that sleeps."""

    def __init__(self, folder: Path, trace: Trace) -> None:
        self.trace = trace
        self._folder = folder
        folder.mkdir(parents=True)
        meminfo = folder / "meminfo"
        self._fd = os.open(meminfo, os.O_RDWR | os.O_CREAT, 0o644)
        self._write(trace.before_bytes)
        chosen = replace(trace.limits, meminfo=str(meminfo), cgroup=str(folder / "no-cgroup"))
        manifest = write_manifest(folder, chosen)
        self._link = GuardLink(folder, manifest)
        self.victim = subprocess.Popen(["sleep", "600"], process_group=0)
        engine = identity.of(self.victim.pid)
        assert engine is not None
        self._link.tell(engine, identity.current(), alone=False)
        self.began_ns = time.monotonic_ns()
        self._moved_ns = self.began_ns
        self.worst_write_s = 0.0
        self.ended = False

    def _write(self, level_bytes: float) -> None:
        kib = max(0, int(level_bytes)) // 1024
        os.pwrite(self._fd, f"MemTotal: {2**37:16d} kB\nMemAvailable: {kib:16d} kB\n".encode(), 0)

    def move(self) -> None:
        """Bring the stand-in to where the trace is now."""
        now_ns = time.monotonic_ns()
        passed_s = (now_ns - self.began_ns) / 1e9
        if self.victim.poll() is not None:
            self._end()
        elif passed_s >= self.trace.lasts_s:
            self.victim.send_signal(signal.SIGTERM)
            self.victim.wait()
            self._end()
        else:
            self.worst_write_s = max(self.worst_write_s, (now_ns - self._moved_ns) / 1e9)
            self._moved_ns = now_ns
            self._write(self.trace.level_bytes(passed_s))

    def _end(self) -> None:
        self._write(self.trace.before_bytes)
        self.ended = True

    def played(self) -> Played:
        """What the guard said, beside what was true."""
        word = self._link.word()
        os.close(self._fd)
        return _judge(self.trace, word, self.began_ns, self.worst_write_s)


def write_manifest(folder: Path, chosen: Limits) -> dict[str, Any]:
    """Leave a manifest that holds what a guard needs; the manifest."""
    manifest = {
        "run_id": folder.name, "nonce": "0" * 32, "timeout_s": 600.0, "guard": chosen.to_json(),
    }  # fmt: skip
    (folder / "manifest.json").write_text(dump(manifest), encoding="utf-8")
    return manifest


def _crossed_s(trace: Trace, line_bytes: int, until_s: float) -> float:
    """When the trace last went under a line before a moment."""
    s = until_s
    while s > 0 and trace.level_bytes(s) < line_bytes:
        s -= 0.0005
    return max(0.0, s)


def _judge(trace: Trace, word: GuardWord, began_ns: int, worst_write_s: float) -> Played:
    reaction_s, left_bytes = None, None
    if word.signalled_ns is not None:
        at_s = (word.signalled_ns - began_ns) / 1e9
        slope = word.trigger == "slope"
        line = trace.limits.danger_bytes if slope else trace.limits.floor_bytes
        reaction_s = at_s - _crossed_s(trace, line, at_s)
        left_bytes = int(trace.level_bytes(at_s))
    right = word.verdict == trace.verdict and trace.trigger in (None, word.trigger)
    if left_bytes is not None:
        right = right and (left_bytes > 0) == trace.in_time and word.memory_back is True
    return Played(
        trace=trace.name,
        what=trace.what,
        verdict=word.verdict,
        trigger=word.trigger,
        reaction_s=reaction_s,
        left_bytes=left_bytes,
        low_water_bytes=word.low_water_bytes,
        peak_fall_bytes_per_s=word.peak_fall_bytes_per_s,
        memory_back=word.memory_back,
        polls=word.polls,
        worst_gap_s=word.worst_gap_s,
        cpu_s=word.cpu_s,
        as_expected=right,
        stalled=max(word.worst_gap_s - trace.limits.poll_s, worst_write_s) > _STALL_S,
    )


def play(folder: Path, chosen: Sequence[Trace]) -> tuple[Played, ...]:
    """Play traces side by side, in real time."""
    stages = [_Stage(folder / trace.name, trace) for trace in chosen]
    # All begin together, once every guard is there.
    began_ns = time.monotonic_ns()
    for stage in stages:
        stage.began_ns = began_ns
    while not all(stage.ended for stage in stages):
        for stage in stages:
            if not stage.ended:
                stage.move()
        time.sleep(_WRITE_S)
    return tuple(stage.played() for stage in stages)


def idle(folder: Path, seconds: float) -> GuardWord:
    """A guard on this box's own memory, with nothing to do, for a while."""
    folder.mkdir(parents=True)
    memory = HostMemory(MEMINFO, CGROUP)
    chosen = limits(memory.total_bytes(), memory.read())
    link = GuardLink(folder, write_manifest(folder, chosen))
    victim = subprocess.Popen(["sleep", str(seconds)], process_group=0)
    engine = identity.of(victim.pid)
    assert engine is not None
    link.tell(engine, identity.current(), alone=False)
    victim.wait()
    return link.word()


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1m": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def _text(played: Sequence[Played], cost: GuardWord | None) -> str:
    lines = []
    for one in played:
        mark = "as expected" if one.as_expected else "WRONG"
        line = f"{one.trace:20s} {one.verdict:7s} {one.trigger or '-':6s}"
        if one.left_bytes is not None and one.reaction_s is not None:
            line += f" after {one.reaction_s * 1000:5.0f} ms, {one.left_bytes / MB:7.0f} MB left"
        else:
            line += f" low water {(one.low_water_bytes or 0) / MB:5.0f} MB" + " " * 12
        lines.append(f"{line}  {mark}  ({one.what})")
    if cost is not None:
        share = 100 * cost.cpu_s / cost.watched_s
        lines.append(
            f"cost on this box: {cost.cpu_s * 1000:.1f} ms of processor time in "
            f"{cost.watched_s:.1f} s ({share:.3f} %), {cost.polls} polls, worst gap "
            f"{cost.worst_gap_s * 1000:.0f} ms, {(cost.rss_bytes or 0) / 2**20:.0f} MiB"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the traces; 0 when every guard did what it must."""
    known = {trace.name: trace for trace in traces()}
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.guard.replay",
        description="Drive the real memory guard with recorded falls of memory.",
        epilog="example: python -m flywheel.guard.replay --json runaway healthy_load",
    )
    parser.add_argument("trace", nargs="*", choices=[[], *known], help="default: all of them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long to measure the cost; 0: not at all"
    )
    asked = parser.parse_args(arguments)
    chosen = [known[name] for name in asked.trace] or list(known.values())
    with tempfile.TemporaryDirectory(prefix="guard-replay-") as name:
        played = play(Path(name), chosen)
        cost = idle(Path(name) / "idle", asked.seconds) if asked.seconds > 0 else None
    good = all(one.as_expected for one in played)
    if asked.json:
        body = {
            "command": "python -m flywheel.guard.replay --json",
            "machine": _machine(),
            "limits": chosen[0].limits.to_json(),
            "traces": [asdict(one) for one in played],
            "cost": None if cost is None else cost.to_json(),
            "as_expected": good,
        }
        print(json.dumps(body, indent=1))
    else:
        print(_text(played, cost))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
