"""The memory guard at work, and the guard itself killed, stopped, blinded.

What is available is a file of the fault's own, in the form of /proc/meminfo: no box is driven out
of memory to see whether it would have been saved.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flywheel.guard.limits import Limits
from flywheel.selftest.fault import Fault
from flywheel.selftest.scene import Scene

MB = 1_000_000
CALM_MB, DANGER_MB, FLOOR_MB = 8000, 1000, 700


class Gauge:
    """A file that reads like /proc/meminfo and says what it is told to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text(self._text(CALM_MB))

    @staticmethod
    def _text(available_mb: float) -> str:
        known = {"MemTotal": 2 * CALM_MB, "MemFree": available_mb, "MemAvailable": available_mb}
        return "".join(f"{name}: {int(mb * MB / 1024):12d} kB\n" for name, mb in known.items())

    def say(self, available_mb: float) -> None:
        """Written in place: whoever has the file open reads the new figure."""
        with self.file.open("r+") as stream:
            stream.write(self._text(available_mb))

    def fall(self, to_mb: float, seconds: float, from_mb: float = CALM_MB) -> None:
        """Down evenly by the clock, however late a step comes on a busy box."""
        began = time.monotonic()
        while (share := (time.monotonic() - began) / seconds) < 1:
            self.say(from_mb + (to_mb - from_mb) * share)
            time.sleep(0.02)
        self.say(to_mb)


def _limits(gauge: Gauge, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "floor_bytes": FLOOR_MB * MB, "danger_bytes": DANGER_MB * MB,
        "fall_bytes_per_s": DANGER_MB * MB // 5, "poll_s": 0.05, "back_patience_s": 5.0,
        "meminfo": str(gauge.file), "cgroup": str(gauge.file.parent / "none"), **changes,
    }  # fmt: skip
    return Limits(**fields).to_json()


def _under_guard(
    scene: Scene, act: Callable[[Gauge], object], *options: str, **changes: Any
) -> None:
    """A run under a guard that watches the gauge; ``act`` begins when the engine is half way."""
    gauge = Gauge(scene.root / "meminfo")
    scene.launch("--hold", "middle", *options, guard=_limits(gauge, **changes))

    def go() -> None:
        scene.held()
        act(gauge)

    scene.resume(during=go)


def _kill_and_give_back(scene: Scene, fall: Callable[[Gauge], None]) -> Callable[[Gauge], None]:
    def act(gauge: Gauge) -> None:
        engine = scene.of_role("engine")
        fall(gauge)
        scene.wait_dead(engine)
        gauge.say(CALM_MB)

    return act


def _level(scene: Scene) -> None:
    _under_guard(scene, _kill_and_give_back(scene, lambda gauge: gauge.fall(FLOOR_MB - 50, 1.0)),
                 fall_polls=0)  # fmt: skip


def _slope(scene: Scene) -> None:
    """Without a floor, so that only the fall can be what is noticed; long enough for late polls."""

    def fall(gauge: Gauge) -> None:
        gauge.fall(DANGER_MB, 0.5)
        gauge.fall(50, 2.5, from_mb=DANGER_MB)

    _under_guard(scene, _kill_and_give_back(scene, fall), floor_bytes=0)


def _deaf_runaway(scene: Scene) -> None:
    """The engine of the guard's victim ignores SIGTERM."""

    def act(gauge: Gauge) -> None:
        scene.release()
        time.sleep(0.3)
        _kill_and_give_back(scene, lambda g: g.fall(FLOOR_MB - 50, 0.5))(gauge)

    _under_guard(scene, act, "--fault", "deaf")


def _not_back(scene: Scene) -> None:
    """The memory does not come back: whatever comes next would start on a box without room."""
    _under_guard(scene, lambda gauge: gauge.fall(FLOOR_MB - 50, 0.5), back_patience_s=0.5)
    said = "" if scene.error is None else str(scene.error)
    session = scene.session
    halted = "halted" in said or (session is not None and session.halted)
    scene.expect(halted, "the loop goes on although the memory is not back")


def _healthy_dip(scene: Scene) -> None:
    """A load that stops just above the danger line is healthy."""

    def act(gauge: Gauge) -> None:
        gauge.fall(DANGER_MB + 100, 0.4)
        scene.release()

    _under_guard(scene, act)


def _guard_killed(scene: Scene) -> None:
    def kill() -> None:
        scene.held()
        scene.signal(scene.of_role("guard"))

    scene.loop("--hold", "middle", during=kill)


def _guard_stopped_briefly(scene: Scene) -> None:
    def stop() -> None:
        scene.held()
        guard = scene.of_role("guard")
        scene.signal(guard, signal.SIGSTOP)
        time.sleep(1.0)
        scene.signal(guard, signal.SIGCONT)
        scene.release()

    scene.loop("--hold", "middle", during=stop)


def _guard_stopped(scene: Scene) -> None:
    """Stopped for good; the supervisor waits for its word, but not for ever."""
    gauge = Gauge(scene.root / "meminfo")
    scene.launch("--hold", "middle", guard=_limits(gauge, back_patience_s=0.0))

    def stop() -> None:
        scene.held()
        scene.signal(scene.of_role("guard"), signal.SIGSTOP)
        scene.release()

    scene.resume(during=stop)


def _guard_blinded(scene: Scene) -> None:
    """What it reads holds no figure any more."""
    _under_guard(scene, lambda gauge: os.truncate(gauge.file, 0))


def _guard_without_eyes(scene: Scene) -> None:
    """There was nothing to read from the start, so the engine is not started at all."""
    gauge = Gauge(scene.root / "meminfo")
    guard = _limits(gauge)
    gauge.file.unlink()
    scene.launch(guard=guard)
    scene.resume()


def _guard_lies(scene: Scene) -> None:
    """The supervisor's copy of the guard's word is bent to nothing."""
    file = scene.left() / "exit.json"
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "guard": None}))
    scene.resume()


def _suspended(scene: Scene) -> None:
    """The box slept: the boot clock ran on, and the supervisor wrote down by how much."""
    file = scene.left() / "exit.json"
    body = json.loads(file.read_text())
    scene.expect(abs(body["suspended_s"]) < 1.0, "the box seems to have slept during the test")
    file.write_text(json.dumps({**body, "suspended_s": 3600.0}))
    scene.resume()


def _fault(name: str, injected: str, outcome: str, code: str, inject: Callable[[Scene], None],
           *, slow: bool = False) -> Fault:  # fmt: skip
    return Fault(name, "memory", injected, outcome, (code,), inject, slow=slow)


FAULTS = (
    _fault("memory_level", "available memory sinks under the floor and stays", "killed",
           "guard_killed", _level),
    _fault("memory_slope", "available memory falls fast under the danger line", "killed",
           "guard_killed", _slope),
    _fault("memory_deaf", "memory runs out under an engine that ignores SIGTERM", "killed",
           "guard_killed", _deaf_runaway),
    _fault("memory_not_back", "memory does not come back after the kill", "killed",
           "guard_killed", _not_back),
    _fault("memory_dip", "a healthy load that stops just above the danger line", "ok", "",
           _healthy_dip),
    _fault("guard_killed", "the guard is killed in mid-run", "void", "guard_lost", _guard_killed),
    _fault("guard_stopped_briefly", "the guard is stopped for a second", "ok", "",
           _guard_stopped_briefly),
    _fault("guard_stopped", "the guard is stopped for good", "void", "guard_lost",
           _guard_stopped, slow=True),
    _fault("guard_blinded", "the guard's source goes empty in mid-run", "void", "guard_lost",
           _guard_blinded),
    _fault("guard_without_eyes", "the guard cannot read the memory at all", "blocked",
           "not_started", _guard_without_eyes),
    _fault("guard_without_word", "the guard's word is missing from exit.json", "void",
           "guard_lost", _guard_lies),
    _fault("suspended", "the box slept for an hour in mid-run", "void", "suspended", _suspended),
)  # fmt: skip
