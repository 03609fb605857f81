"""The processor's clocks from a made-up /sys, and whose time it was from made-up samples."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.box import cpu
from flywheel.box.cpu import Sample, Spent


def test_clocks_power_and_throttling_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for core, (khz, count) in enumerate(((2_000_000, 3), (3_000_000, 4))):
        for name, value in {
            "cpufreq/scaling_cur_freq": khz, "cpufreq/cpuinfo_max_freq": 4_000_000,
            "cpufreq/scaling_governor": "powersave", "thermal_throttle/core_throttle_count": count,
        }.items():  # fmt: skip
            path = tmp_path / f"devices/system/cpu/cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    for name, value in {"AC/type": "Mains", "AC/online": 0, "BAT0/type": "Battery",
                        "BAT0/capacity": 61}.items():  # fmt: skip
        path = tmp_path / "class/power_supply" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Chip\n")
    assert cpu.state(tmp_path, tmp_path) == cpu.Cpu(
        "A Chip", "powersave", 2500.0, 4000.0, 7, True, 61
    )
    (tmp_path / "class/power_supply/AC/online").write_text("1")
    assert cpu.state(tmp_path, tmp_path).on_battery is False
    assert cpu.state(tmp_path / "none", tmp_path / "none") == cpu.Cpu()
    assert cpu.cores() == 2


def test_time_of_others_is_what_is_left_of_all() -> None:
    idle = {1: Spent("init", 1, 5.0)}
    then = {7: Spent("engine", 6, 10.0), 8: Spent("miner", 8, 1.0)}
    now = {7: Spent("engine", 6, 19.0), 9: Spent("thread", 6, 1.0), 8: Spent("miner", 8, 15.0)}
    before, after = Sample(0.0, 100.0, idle | then, 4), Sample(10.0, 125.0, idle | now, 4)
    used = cpu.by_others(before, after, lambda _, spent: spent.session == 6)
    assert used is not None
    assert used.cores == 1.5
    assert used.busiest == "process 8 (miner)"
    assert cpu.by_others(after, after, lambda *_: True) is None
    alone = cpu.by_others(before, after, lambda *_: True)
    assert alone is not None
    assert (alone.cores, alone.busiest) == (0.1, None)
    single = Sample(0.0, 100.0, idle | then), Sample(10.0, 125.0, idle | now)
    cramped = cpu.by_others(*single, lambda *_: False)
    assert cramped is not None
    assert cramped.cores == 1.0


def test_children_that_ended_count_as_ours_but_make_nobody_the_busiest() -> None:
    before = Sample(0.0, 0.0, {5: Spent("make", 5, 0.0), 6: Spent("engine", 6, 0.0)}, 4)
    after = Sample(10.0, 30.0, {5: Spent("make", 5, 0.1, 9.0), 6: Spent("engine", 6, 1.0, 19.0)}, 4)
    used = cpu.by_others(before, after, lambda pid, _: pid == 6)
    assert used == cpu.Use(1.0, "process 5 (make)")
    quiet = replace(after, by_pid={**after.by_pid, 5: Spent("make", 5, 0.0, 9.0)})
    assert cpu.by_others(before, quiet, lambda pid, _: pid == 6) == cpu.Use(1.0, None)


def test_a_real_process_is_seen_to_spend(tmp_path: Path) -> None:
    assert cpu.sample(tmp_path) is None
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            seen = cpu.sample()
            if seen is not None and busy.pid in seen.by_pid and seen.by_pid[busy.pid].cpu_s > 0.05:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("no time was counted")
    finally:
        busy.kill()
        busy.wait()
