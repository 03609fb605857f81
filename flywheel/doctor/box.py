"""The box around the device: memory, disk, load, processor, clock, logins."""

from __future__ import annotations

import ctypes
import getpass
import os
import shutil
import subprocess
import time
from datetime import datetime
from pathlib import Path

from flywheel.box import admission, cpu, host
from flywheel.box.admission import Need
from flywheel.box.cpu import Use
from flywheel.box.host import Host
from flywheel.doctor.check import FAIL, WARN, Check, fine
from flywheel.guard.limits import MB, limits
from flywheel.ledger import place

GIB = 2.0**30
DISK_WANTED_BYTES = 1 << 30
SAMPLE_S = 0.3
_PROC = Path("/proc")
_SYSTEMD = Path("/run/systemd/system")
# What adjtimex answers when no time source has set the clock.
_CLOCK_ERROR = 5
_TIMEX_BYTES = 512


def check_disk(free: int | None) -> Check:
    """Below the floor no run starts, below the wish it may not last a night."""
    if free is None:
        return Check("disk", WARN, "free space is unknown", "look with df")
    said = f"{free / GIB:.1f} GiB free beside the ledger"
    advice = "free some space, or keep the ledger elsewhere: --ledger"
    if free < host.DISK_FLOOR_BYTES:
        return Check("disk", FAIL, f"{said}; a run wants {host.DISK_FLOOR_BYTES >> 20} MiB", advice)
    return fine("disk", said) if free >= DISK_WANTED_BYTES else Check("disk", WARN, said, advice)


def check_file_system(ledger: Path, kind: str | None) -> Check:
    """SQLite's locks and syncs hold on a local disk alone."""
    if kind in place.NETWORK:
        allowed = os.environ.get(place.ALLOW_VARIABLE) == "1"
        return Check(
            "file system", WARN if allowed else FAIL,
            f"{ledger.parent} is on a network file system ({kind}), whose locks cannot be trusted",
            "keep the ledger on a local disk",
        )  # fmt: skip
    if kind in ("tmpfs", "ramfs"):
        return Check(
            "file system", WARN, f"{ledger.parent} is in memory ({kind}) and gone after a restart",
            "keep the ledger on a disk",
        )  # fmt: skip
    return fine("file system", kind or "of an unknown kind")


def check_memory(look: Host, need: Need) -> Check:
    """Whether a run of this checkpoint fits, the host's memory and the device's."""
    free, total = look.mem_available_bytes, look.mem_total_bytes
    if free is None:
        return Check("memory", WARN, "available memory is unknown", "look with free -m")
    wanted = need.host_bytes + admission.margin_bytes(total)
    of = "" if total is None else f" of {total / GIB:.1f}"
    said = (
        f"{free / GIB:.1f}{of} GiB available; a run wants {wanted / GIB:.1f} GiB, by {need.basis}"
    )
    found = admission.admit(look, need)
    if found.code in ("memory", "device_memory"):
        return Check(
            "memory", FAIL, said if found.code == "memory" else found.reason,
            "end what uses it, or choose a smaller checkpoint",
        )  # fmt: skip
    return fine("memory", said)


def check_guard(total: int | None, low_water: int | None) -> Check:
    """Where the guard would end a run on this box."""
    if total is None:
        return Check("guard", WARN, "the size of memory is unknown", "look with free -m")
    found = limits(total, low_water)
    known = "" if low_water is None else f" (healthy runs left {low_water // MB} MB)"
    said = (
        f"ends a run under {found.floor_bytes // MB} MB available, or under "
        f"{found.danger_bytes // MB} MB and falling by {found.fall_bytes_per_s // MB} MB/s{known}"
    )
    if found.note is not None:
        return Check("guard", WARN, f"{said}; {found.note}", "give the engine less memory")
    return fine("guard", said)


def check_swap(meminfo: str) -> Check:
    """Memory in swap is slow memory."""
    total, free = (_meminfo_bytes(meminfo, name) for name in ("SwapTotal", "SwapFree"))
    if total is None or free is None:
        return fine("swap", "unknown")
    if total == 0:
        return fine("swap", "none")
    said = f"{(total - free) / GIB:.1f} of {total / GIB:.1f} GiB in use"
    if total - free > total // 10:
        return Check(
            "swap", WARN, f"{said}; a run that swaps measures the disk",
            "free memory, then swapoff -a and swapon -a",
        )  # fmt: skip
    return fine("swap", said)


def _meminfo_bytes(text: str, name: str) -> int | None:
    rows = (line.split() for line in text.splitlines())
    return next((int(row[1]) << 10 for row in rows if len(row) > 1 and row[0] == f"{name}:"), None)


def check_overcommit(proc: Path = _PROC) -> Check:
    """Strict accounting refuses memory that is free."""
    try:
        mode = (proc / "sys/vm/overcommit_memory").read_text().strip()
    except OSError:
        return fine("overcommit", "unknown")
    if mode == "2":
        return Check(
            "overcommit", WARN, "strict: large allocations fail while memory is free",
            "sysctl vm.overcommit_memory=0",
        )  # fmt: skip
    return fine("overcommit", {"0": "heuristic", "1": "always"}.get(mode, mode))


def check_cgroup(look: Host) -> Check:
    """A container or a systemd slice may have less than the box."""
    if look.cgroup_limit_bytes is None:
        return fine("cgroup", "no memory limit")
    return fine("cgroup", f"memory is limited to {look.cgroup_limit_bytes / GIB:.1f} GiB")


def others_use() -> Use | None:
    """Cores that others keep busy at this moment, over a fraction of a second."""
    before = cpu.sample()
    time.sleep(SAMPLE_S)
    after = cpu.sample()
    if before is None or after is None:
        return None
    return cpu.by_others(before, after, lambda pid, _: pid == os.getpid())


def check_load(look: Host, others: Use | None) -> Check:
    """Other work on the box ends up in the measurements."""
    cores = look.cores or 1
    said = "load unknown" if look.load_1m is None else f"load {look.load_1m:.1f}"
    said += f" on {cores} cores"
    if others is not None:
        by = "" if others.busiest is None else f", most by {others.busiest}"
        said += f"; others use {others.cores:.1f} of them{by}"
    if stalls := look.pressure.get("cpu", 0.0):
        said += f"; tasks wait for a core {stalls:.0f} % of the time"
    if look.load_1m is not None and look.load_1m > host.load_limit(cores):
        return Check(
            "load", WARN, f"{said}; flywheel run would wait",
            f"end the other work, or raise {host.LOAD_VARIABLE}",
        )  # fmt: skip
    if others is not None and others.cores > max(0.5, cores / 4):
        return Check("load", WARN, f"{said}; runs will be noisy", "end the other work")
    return fine("load", said)


def check_processor(found: cpu.Cpu) -> Check:
    """Clocks that follow the load or the battery move the numbers."""
    words = [found.model or "an unknown processor"]
    if found.mhz is not None:
        top = "" if found.max_mhz is None else f" of {found.max_mhz:.0f}"
        words.append(f"{found.mhz:.0f}{top} MHz")
    words.append(f"governor {found.governor or 'not shown'}")
    if found.throttle_count:
        words.append(f"throttled by heat {found.throttle_count} times since boot")
    said = ", ".join(words)
    if found.on_battery:
        return Check(
            "processor", WARN, f"{said}, on battery ({found.battery_percent} %)", "plug it in"
        )
    if found.governor in ("powersave", "conservative", "ondemand", "schedutil"):
        return Check(
            "processor", WARN, f"{said}: clocks follow the load",
            "cpupower frequency-set -g performance",
        )  # fmt: skip
    return fine("processor", said)


def clock_synchronised() -> bool | None:
    """Whether a time source keeps the clock; None where the kernel does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        answer = int(libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _CLOCK_ERROR


def check_clock(synchronised: bool | None) -> Check:
    """Durations do not depend on the wall clock; windows and dates do."""
    zone = datetime.now().astimezone().strftime("%Z, UTC%z")
    if synchronised is False:
        return Check(
            "clock", WARN, f"{zone}; no time source keeps it right",
            "timedatectl set-ntp true; --window goes by this clock, measurements do not",
        )  # fmt: skip
    known = "synchronised" if synchronised else "its synchronisation is unknown"
    return fine("clock", f"{zone}; {known}")


def check_login(systemd: Path = _SYSTEMD) -> Check:
    """A systemd user unit ends with the last login, unless its user lingers."""
    if not systemd.is_dir() or shutil.which("loginctl") is None:
        return fine("login", "no systemd here; flywheel run --detach outlives its terminal")
    user = getpass.getuser()
    try:
        answer = subprocess.run(
            ["loginctl", "show-user", user, "-p", "Linger", "--value"],
            capture_output=True, text=True, timeout=2.0, check=False, stdin=subprocess.DEVNULL,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if answer == "yes":
        return fine("login", f"{user} lingers: a user unit outlives the login")
    if answer == "no":
        return Check(
            "login", WARN, f"{user} does not linger: systemd ends a user unit at logout",
            "loginctl enable-linger, if flywheel runs as a user unit",
        )  # fmt: skip
    return fine("login", "loginctl does not say; flywheel run --detach outlives its terminal")
