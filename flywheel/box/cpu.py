"""The processor: its clocks, its power supply, and who spends its time; figures are optional."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_SYS, _PROC = Path("/sys"), Path("/proc")
_TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True, slots=True)
class Cpu:
    """Clocks and power of the processor.

    ``mhz`` is the mean over the cores that this process may use; ``throttle_count`` sums the
    thermal events since boot, so only its growth means anything.
    """

    model: str | None = None
    governor: str | None = None
    mhz: float | None = None
    max_mhz: float | None = None
    throttle_count: int | None = None
    on_battery: bool | None = None
    battery_percent: int | None = None


def cores() -> int:
    """Cores that this process may use."""
    return len(_allowed())


def _allowed() -> frozenset[int]:
    with contextlib.suppress(OSError, AttributeError):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def state(sys: Path = _SYS, proc: Path = _PROC) -> Cpu:
    """Clocks and power as ``/sys`` and ``/proc`` show them now."""
    folders = [sys / f"devices/system/cpu/cpu{core}" for core in sorted(_allowed())]
    info = _read(proc / "cpuinfo") or ""
    current = [_number(one / "cpufreq/scaling_cur_freq") for one in folders]
    known = [value / 1000.0 for value in current if value is not None]
    known = known or [float(value) for value in _named(info, "cpu MHz")]
    top = _number(folders[0] / "cpufreq/cpuinfo_max_freq") if folders else None
    counts = [_number(one / "thermal_throttle/core_throttle_count") for one in folders]
    on_battery, percent = _supply(sys / "class/power_supply")
    counted = [count for count in counts if count is not None]
    return Cpu(
        model=next(iter(_named(info, "model name")), None),
        governor=_read(folders[0] / "cpufreq/scaling_governor") if folders else None,
        mhz=round(sum(known) / len(known), 1) if known else None,
        max_mhz=None if top is None else top / 1000.0,
        throttle_count=sum(counted) if counted else None,
        on_battery=on_battery,
        battery_percent=percent,
    )


def _named(info: str, field: str) -> list[str]:
    rows = (line.partition(":") for line in info.splitlines())
    return [value.strip() for name, _, value in rows if name.strip() == field]


def _supply(folder: Path) -> tuple[bool | None, int | None]:
    """Whether the box runs on a battery, and how full that is."""
    online: list[int] = []
    percent: int | None = None
    with contextlib.suppress(OSError):
        for one in sorted(folder.iterdir()):
            if _read(one / "type") == "Battery" and _read(one / "scope") != "Device":
                percent = _number(one / "capacity")
            elif (plugged := _number(one / "online")) is not None:
                online.append(plugged)
    return None if percent is None else not any(online), percent


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time of one process so far, in seconds, and its session.

    ``reaped_s`` is that of its children that have ended, which the kernel keeps apart.
    """

    name: str
    session: int
    cpu_s: float
    reaped_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Processor time spent so far on the ``cores`` that this process may use."""

    at_s: float
    busy_s: float
    by_pid: Mapping[int, Spent]
    cores: int = 1


def sample(proc: Path = _PROC) -> Sample | None:
    """One look at who spent what; None where ``/proc`` does not say."""
    text = _read(proc / "stat")
    if text is None:
        return None
    wanted = {f"cpu{core}" for core in _allowed()}
    rows = [line.split() for line in text.splitlines() if line.split(" ", 1)[0] in wanted]
    # user nice system idle iowait irq softirq steal: all but the two idle ones; guest time is
    # already part of user.  Stolen time is another guest's use of our cores.
    busy = sum(sum(map(int, row[1:4])) + sum(map(int, row[6:9])) for row in rows)
    return Sample(time.monotonic(), busy / _TICKS_PER_S, _by_pid(proc), len(rows))


def _by_pid(proc: Path) -> dict[int, Spent]:
    found = {}
    for entry in os.listdir(proc):
        if entry.isdigit() and (text := _read(proc / entry / "stat")) is not None:
            name, fields = text[text.find("(") + 1 : text.rfind(")")], text[text.rfind(")") + 2 :]
            row = fields.split()
            if len(row) > 14:
                own, reaped = (sum(map(int, row[i : i + 2])) / _TICKS_PER_S for i in (11, 13))
                found[int(entry)] = Spent(name, int(row[3]), own, reaped)
    return found


@dataclass(frozen=True, slots=True)
class Use:
    """Cores kept busy by others between two samples, and the busiest of them."""

    cores: float
    busiest: str | None


def by_others(before: Sample, after: Sample, own: Callable[[int, Spent], bool]) -> Use | None:
    """What processes that are not our ``own`` (by pid and what is known of it) used.  Pure."""
    span_s = after.at_s - before.at_s
    if span_s <= 0:
        return None
    ours, busiest, most_s = 0.0, None, 0.0
    for pid, now in after.by_pid.items():
        then = before.by_pid.get(pid)
        spent_s = now.cpu_s - (then.cpu_s if then is not None else 0.0)
        if own(pid, now):
            ours += spent_s + now.reaped_s - (then.reaped_s if then is not None else 0.0)
        elif then is not None and spent_s > most_s:
            busiest, most_s = f"process {pid} ({now.name})", spent_s
    # The kernel counts in ticks, so a short span may come out a little over the whole.
    foreign = (after.busy_s - before.busy_s - ours) / span_s
    return Use(round(min(max(0.0, foreign), float(after.cores)), 3), busiest)
