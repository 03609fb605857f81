"""May a run be started on this box now?  What it needs is compared with what there is.

``admit`` is pure; ``Entrance`` looks at the box for it and keeps what it saw as the run's evidence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel import synthetic
from flywheel.box import device, host, tenants
from flywheel.box.device import Gpu
from flywheel.box.host import Host

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
# Unknown peaks: weights are held unpacked on a CPU, packed on a GPU; the base is the runtime's.
CPU_FACTOR, CPU_BASE_BYTES = 8.0, 768 << 20
GPU_FACTOR, GPU_BASE_BYTES = 1.03, 2 << 30
GPU_HOST_BYTES = 4 << 30
MARGIN_BYTES, MARGIN_SHARE = 256 << 20, 0.02
# How long a night waits for each kind of room.  A busy host is also waited for before the first
# run; everything else is then told to the person who is still there.
PATIENCE_S = 1800.0
WAITS_AT_ONCE = ("busy",)


@dataclass(frozen=True, slots=True)
class Need:
    """What one run needs, in bytes, and where the figure comes from."""

    host_bytes: int
    device_bytes: int
    disk_bytes: int
    basis: str

    @classmethod
    def of(
        cls, peak_bytes: int | None, checkpoint_bytes: int, gpu: Gpu | None = None
    ) -> Need:
        """From the highest peak of earlier runs on this checkpoint, else from its size."""
        on_device = int(checkpoint_bytes * GPU_FACTOR) + GPU_BASE_BYTES
        basis = "the size of the checkpoint"
        if gpu is None:
            guess, on_device = int(checkpoint_bytes * CPU_FACTOR) + CPU_BASE_BYTES, 0
        elif gpu.unified:
            # The peak of a process does not count what it allocated on such a device.
            guess, on_device, peak_bytes = on_device + GPU_BASE_BYTES, 0, None
        else:
            guess = GPU_HOST_BYTES
        if peak_bytes is not None:
            guess, basis = peak_bytes, "the highest peak of earlier runs"
        return cls(guess, on_device, host.DISK_FLOOR_BYTES, basis)


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer: ``code`` is empty when the run may start, and ``reason`` one sentence if not."""

    need: Need
    code: str = ""
    reason: str = ""

    @property
    def admitted(self) -> bool:
        """Whether the run may start."""
        return not self.code

    def waits(self, *, first_run: bool, waited_s: float) -> bool:
        """Whether to look again later rather than give up."""
        return waited_s < PATIENCE_S and (not first_run or self.code in WAITS_AT_ONCE)


def margin_bytes(total_bytes: int | None) -> int:
    """What must stay free beyond the expected peak."""
    return max(MARGIN_BYTES, int((total_bytes or 0) * MARGIN_SHARE))


def admit(
    look: Host, need: Need, *, foreign: str | None = None, max_load: float | None = None
) -> Admission:
    """Whether ``need`` fits ``look``.  Pure; missing figures refuse nothing.

    ``foreign`` is the sentence that names another user of the device, if there is one.
    """
    if foreign is not None:
        return Admission(need, "foreign_process", foreign)
    gpu = device.mine(look.gpus)
    total, used = (None, None) if gpu is None else (gpu.mem_total_bytes, gpu.mem_used_bytes)
    on_device = None if total is None or used is None else total - used
    for code, what, free, wanted in (
        ("disk", "disk space", look.disk_free_bytes, need.disk_bytes),
        ("memory", "memory", look.mem_available_bytes,
         need.host_bytes + margin_bytes(look.mem_total_bytes)),
        ("device_memory", "device memory", on_device,
         need.device_bytes + margin_bytes(total) if need.device_bytes else 0),
    ):  # fmt: skip
        if free is not None and free < wanted:
            why = "" if code == "disk" else f" (margin included, by {need.basis})"
            return Admission(
                need,
                code,
                f"only {free / 2**30:.2f} GiB of {what} is free, and a run wants "
                f"{wanted / 2**30:.2f} GiB{why}.",
            )
    if max_load is not None and look.load_1m is not None and look.load_1m > max_load:
        waiting = ", ".join(f"{name} {share:.0f} %" for name, share in look.pressure.items())
        stalled = f"; tasks are stalled on {waiting} of the time" if waiting else ""
        return Admission(
            need,
            "busy",
            f"the load of the last minute is {look.load_1m:.1f}, over {max_load:.1f}{stalled}.",
        )
    return Admission(need)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The page cache was dropped: available memory before and after, in bytes."""

    before_bytes: int
    after_bytes: int


def dropping_helps(look: Host, admission: Admission) -> bool:
    """Whether a dropped page cache could make the room that is missing.  Pure.

    On a unified-memory box the device cannot take what the cache holds; elsewhere it helps only
    where the kernel's estimate leaves out cache that can in fact go.
    """
    if admission.code != "memory":
        return False
    gpu = device.mine(look.gpus)
    if gpu is not None and gpu.unified:
        return True
    wanted = admission.need.host_bytes + margin_bytes(look.mem_total_bytes)
    cgroup_binds = look.cgroup_limit_bytes is not None and (
        look.cgroup_limit_bytes < (look.mem_total_bytes or 0)
    )
    return not cgroup_binds and (look.mem_reclaimable_bytes or 0) >= wanted


def drop_page_cache(path: Path = DROP_CACHES) -> bool:
    """Write back and drop the page cache; False where that is not allowed."""
    try:
        os.sync()
        path.write_text("1\n")
    except OSError:
        return False
    return True


def checkpoint_bytes(folder: Path) -> int:
    """The size of a checkpoint's weights on disk, or of a synthetic model's; 0 when unknown."""
    if (name := synthetic.name_of(folder)) is not None:
        return synthetic.weights_bytes(name)
    try:
        return sum(one.stat().st_size for one in folder.glob("*.safetensors"))
    except OSError:
        return 0


class Entrance:
    """Looks at the box before each launch; what it saw goes into the run's evidence."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Path,
        *,
        probe: Callable[[Path], Host] = host.probe,
        foreign: Callable[[tuple[Gpu, ...]], str | None] = tenants.before_launch,
        drop: Callable[[], bool] = drop_page_cache,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._checkpoint = folder, checkpoint
        self._probe, self._foreign, self._drop, self._now_s = probe, foreign, drop, now_s
        self._since_s: float | None = None
        self._waited_s = 0.0
        self._waited_for: list[str] = []
        self._dropped: Dropped | None = None
        self._last: tuple[Host, Admission] | None = None

    def look(self, peak_bytes: int | None) -> Admission:
        """Whether a run may start now; ``peak_bytes`` is the ledger's figure, if it has one."""
        seen, admission = self._judge(peak_bytes)
        if self._dropped is None and dropping_helps(seen, admission) and self._drop():
            before = seen.mem_available_bytes or 0
            seen, admission = self._judge(peak_bytes)
            self._dropped = Dropped(before, seen.mem_available_bytes or 0)
        self._last = (seen, admission)
        if admission.admitted:
            self._waited_s, self._since_s = self.waited_s, None
            return admission
        if self._since_s is None:
            self._since_s = self._now_s()
        if admission.code not in self._waited_for:
            self._waited_for.append(admission.code)
        return admission

    def _judge(self, peak_bytes: int | None) -> tuple[Host, Admission]:
        seen = self._probe(self._folder)
        gpu = device.mine(seen.gpus)
        need = Need.of(peak_bytes, checkpoint_bytes(self._checkpoint), gpu)
        limit = host.load_limit(seen.cores or host.cores())
        return seen, admit(seen, need, foreign=self._foreign(seen.gpus), max_load=limit)

    @property
    def waited_s(self) -> float:
        """How long there has been no room since the last run began."""
        waiting_s = 0.0 if self._since_s is None else self._now_s() - self._since_s
        return self._waited_s + waiting_s

    def enter(self) -> dict[str, Any]:
        """The run starts: what was seen, as JSON; the next wait counts from nothing."""
        if self._last is None:
            return {}
        seen, admission = self._last
        told = {
            "host": seen.to_json(),
            "need": asdict(admission.need),
            "waited_s": round(self.waited_s, 3),
            "waited_for": list(self._waited_for),
            "dropped_cache": None if self._dropped is None else asdict(self._dropped),
        }
        self._since_s, self._waited_s, self._waited_for, self._dropped = None, 0.0, [], None
        return told
