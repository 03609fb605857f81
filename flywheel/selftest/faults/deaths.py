"""Deaths of the engine: signals, statuses, silence."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "death")
_SHORT: dict[str, Any] = {"timeout_s": 1.0, "grace_s": 0.3}


def _stop_from_outside(scene: Scene) -> None:
    def stop() -> None:
        scene.held()
        scene.signal(scene.claimed("engine.json"), signal.SIGSTOP)
        scene.release()

    scene.loop("--hold", "middle", during=stop, **_SHORT)


def _kill_from_outside(scene: Scene) -> None:
    def kill() -> None:
        scene.held()
        scene.signal(scene.claimed("engine.json"))

    scene.loop("--hold", "middle", during=kill)


def _missing_program(scene: Scene) -> None:
    scene.loop(command=("/nonexistent/engine",))


def _not_a_program(scene: Scene) -> None:
    file = scene.root / "engine"
    file.write_text("this is no program")
    file.chmod(0o755)
    scene.loop(command=(str(file),))


FAULTS = (
    _fault("dies_loading", "leaves with status 2 while it loads", "void", "exit_status"),
    _fault("truncated", "leaves with 0 after the last measurement, before the seal", "void",
           "seal_missing"),
    _fault("fails_late", "leaves with 1 after the last measurement, before the seal", "void",
           "exit_status"),
    _fault("exit_status", "leaves with 7 after a perfect log", "void", "exit_status"),
    _fault("sigkill", "SIGKILL after the last measurement", "killed", "exit_signal"),
    _fault("sigkill_sealed", "SIGKILL after the seal", "killed", "exit_signal"),
    Fault("killed_from_outside", "death", "SIGKILL from outside in mid-run", "killed",
          ("exit_signal",), _kill_from_outside),
    _fault("segfault", "reads address 8: a real SIGSEGV", "killed", "exit_signal"),
    _fault("abort", "calls abort(): a real SIGABRT", "killed", "exit_signal"),
    _fault("bus_error", "touches a mapped page that is gone: a real SIGBUS", "killed",
           "exit_signal"),
    _fault("sigill", "SIGILL", "killed", "exit_signal", "--signal", str(int(signal.SIGILL)),
           fault="signal"),
    _fault("sigfpe", "SIGFPE", "killed", "exit_signal", "--signal", str(int(signal.SIGFPE)),
           fault="signal"),
    _fault("sigterm_by_another", "SIGTERM that the loop did not send", "killed", "exit_signal",
           "--signal", str(int(signal.SIGTERM)), fault="signal"),
    _fault("stops", "stops itself with SIGSTOP", "timeout", "timeout", order=_SHORT),
    Fault("stopped_from_outside", "death", "SIGSTOP from outside in mid-run", "timeout",
          ("timeout",), _stop_from_outside),
    _fault("hang", "hangs without heartbeats", "timeout", "timeout", order=_SHORT),
    _fault("hang_beating", "hangs with heartbeats", "timeout", "timeout", order=_SHORT),
    _fault("hang_early", "hangs right after its start event", "timeout", "timeout", order=_SHORT),
    _fault("hang_sealed", "hangs after a perfect log", "timeout", "timeout", order=_SHORT),
    _fault("deaf", "hangs and ignores SIGTERM", "timeout", "timeout", order=_SHORT),
    _fault("memory_limit", "runs into RLIMIT_AS and dies of MemoryError", "void", "exit_status",
           "--bytes", str(256 << 20)),
    Fault("missing_program", "death", "the engine's program does not exist", "blocked",
          ("not_started",), _missing_program),
    Fault("not_a_program", "death", "the engine's program is no program", "blocked",
          ("not_started",), _not_a_program),
)  # fmt: skip
