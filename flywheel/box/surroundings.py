"""The box around a run while it measures: who joined it, how busy and how fast it was.

What makes a run's numbers worthless is its contamination; the rest is evidence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Any

from flywheel.box import cpu, device, host, identity, tenants
from flywheel.box.cpu import Cpu, Sample, Spent
from flywheel.box.device import Gpu
from flywheel.run.launch import RunState

EVERY_S = 5.0
# A GPU that looks stuck once may be between two kernels; three times in a row it is stuck.
STUCK_LOOKS = 3
# Throttling by heat or by the board, as opposed to a power limit that is part of the ruler.
HARD_THROTTLES = ("hardware slowdown", "hardware thermal slowdown", "hardware power brake")


class _Range:
    """Least and most of the figures seen."""

    def __init__(self) -> None:
        self.least: float | None = None
        self.most: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)

    def json(self) -> list[float] | None:
        return None if self.least is None or self.most is None else [self.least, self.most]


class Surroundings:
    """Samples of one run.  ``code`` and ``contamination`` are set once, by the first finding."""

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        gpus: Callable[[], tuple[Gpu, ...]] = host.gpus,
        processor: Callable[[], Cpu] = cpu.state,
        sample: Callable[[], Sample | None] = cpu.sample,
    ) -> None:
        self.code = ""
        self.contamination: str | None = None
        self._every_s, self._at_s = every_s, 0.0
        self._gpus, self._processor, self._sample = gpus, processor, sample
        self._before: Sample | None = None
        self._cores = host.cores()
        self._looks = self._over = self._stuck = 0
        self._foreign_cores, self._load, self._mhz = _Range(), _Range(), _Range()
        self._sm_mhz, self._power_w = _Range(), _Range()
        self._throttle_counts = _Range()
        self._throttles: set[str] = set()
        self._busiest: str | None = None
        self._hidden = False
        # A driver lists a process until its memory is given back, when it may be dead already.
        self._own: set[int] = set()

    @property
    def limit_cores(self) -> float:
        """Cores in use by others above which a sample counts as busy: half of ours, at least one
        where there are several."""
        return max(1.0, 0.5 * self._cores) if self._cores > 1 else 0.5

    def look(self, state: RunState) -> None:
        """Take a sample if one is due."""
        now_s = time.monotonic()
        if state.phase != "running" or state.engine is None or now_s < self._at_s:
            return
        self._at_s = now_s + self._every_s
        self._looks += 1
        self._look_at_processor(state)
        self._own.update((state.engine.pid, *identity.group_members(state.engine)))
        self._look_at_device(self._own)

    def _look_at_processor(self, state: RunState) -> None:
        seen = self._processor()
        self._mhz.add(seen.mhz)
        self._throttle_counts.add(seen.throttle_count)
        self._load.add(os.getloadavg()[0])
        session = None if state.supervisor is None else state.supervisor.pid

        def own(pid: int, spent: Spent) -> bool:
            return spent.session == session or pid == os.getpid()

        now, before = self._sample(), self._before
        self._before = now
        used = None if now is None or before is None else cpu.by_others(before, now, own)
        if used is None:
            return
        if self._foreign_cores.most is None or used.cores > self._foreign_cores.most:
            self._busiest = used.busiest
        self._foreign_cores.add(used.cores)
        self._over += used.cores > self.limit_cores

    def _look_at_device(self, own: Collection[int]) -> None:
        found = self._gpus()
        self._found("foreign_process", tenants.during_run(found, own))
        gpu = device.mine(found)
        if gpu is None:
            return
        self._hidden |= not gpu.processes
        self._sm_mhz.add(gpu.sm_clock_mhz)
        self._power_w.add(gpu.power_w)
        self._throttles.update(gpu.throttles)
        why = device.stuck(gpu)
        self._stuck = 0 if why is None else self._stuck + 1
        if self._stuck >= STUCK_LOOKS:
            self._found("throttled", why)
        for word in HARD_THROTTLES:
            if word in gpu.throttles:
                self._found("throttled", f"GPU {gpu.index} was throttled: {word}.")

    def _found(self, code: str, said: str | None) -> None:
        if said is not None and self.contamination is None:
            self.code, self.contamination = code, said

    def evidence(self) -> dict[str, Any]:
        """What was seen, as JSON: ranges are [least, most], None where nothing was."""
        grown = self._throttle_counts.json()
        return {
            "looks": self._looks,
            "foreign_cores": self._foreign_cores.json(),
            "foreign_cores_limit": self.limit_cores,
            "looks_over_limit": self._over,
            "busiest_other": self._busiest,
            "load_1m": self._load.json(),
            "cpu_mhz": self._mhz.json(),
            "cpu_throttle_events": None if grown is None else grown[1] - grown[0],
            "sm_clock_mhz": self._sm_mhz.json(),
            "power_w": self._power_w.json(),
            "throttles": sorted(self._throttles),
            "process_list_hidden": self._hidden,
        }
