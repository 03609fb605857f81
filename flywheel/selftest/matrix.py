"""The fault matrix: every fault that the loop must survive, as data."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from flywheel.selftest.fault import Fault, NotPermitted
from flywheel.selftest.faults import (
    arms,
    clocks,
    deaths,
    device,
    disks,
    inputs,
    logs,
    memory,
    numbers,
    processes,
)
from flywheel.selftest.scene import Missed, Scene
from flywheel.selftest.verdict import Verdict, verdict

MATRIX: tuple[Fault, ...] = (
    *deaths.FAULTS,
    *logs.FAULTS,
    *numbers.FAULTS,
    *arms.FAULTS,
    *clocks.FAULTS,
    *inputs.FAULTS,
    *disks.FAULTS,
    *processes.FAULTS,
    *memory.FAULTS,
    *device.FAULTS,
)


def named(name: str) -> Fault:
    """The fault of that name; KeyError when there is none."""
    for fault in MATRIX:
        if fault.name == name:
            return fault
    raise KeyError(name)


def inject(fault: Fault, root: Path | None = None) -> Verdict:
    """Inject one fault in a scene of its own and look at what it did."""
    if root is None:
        with tempfile.TemporaryDirectory(prefix="flywheel-selftest-") as folder:
            return inject(fault, Path(folder))
    began_s = time.monotonic()
    with Scene(root, fault.hot_pattern) as scene:
        try:
            fault.inject(scene)
        except NotPermitted as error:
            return _without(fault, "skipped", skipped=str(error))
        except Missed as error:
            return _without(fault, "missed", wrong=f"{error}; {scene.last_words()}")
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            return _without(fault, "crashed", wrong=f"{said}; {scene.last_words()}")
        return verdict(fault, scene, time.monotonic() - began_s)


def _without(fault: Fault, outcome: str, wrong: str = "", skipped: str = "") -> Verdict:
    expected = f"{fault.outcome} {' | '.join(fault.codes)}".strip()
    return Verdict(fault.name, fault.noun, fault.injected, outcome, "", expected, wrong,
                   skipped=skipped)
