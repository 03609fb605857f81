"""A run starts only where it fits; what is missing is one sentence; waiting is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nvml import gpu

from flywheel.box import admission
from flywheel.box.admission import Admission, Entrance, Need
from flywheel.box.host import Host

GIB = 1 << 30
BOX = Host(0.5, 2, 16 * GIB, 8 * GIB, 50 * GIB, (), mem_reclaimable_bytes=8 * GIB)
NEED = Need(2 * GIB, 0, GIB, "the size of the checkpoint")
UNIFIED = gpu(name="NVIDIA GB10", unified=True)


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_known_peak_goes_before_the_size_of_the_checkpoint() -> None:
    assert Need.of(3 * GIB, GIB).host_bytes == 3 * GIB
    assert "earlier runs" in Need.of(3 * GIB, GIB).basis
    guess = Need.of(None, GIB)
    assert guess.host_bytes > 8 * GIB
    assert guess.device_bytes == 0
    discrete = Need.of(3 * GIB, 100 * GIB, gpu(mem_total_bytes=140 * GIB))
    assert discrete.host_bytes == 3 * GIB
    assert 104 * GIB < discrete.device_bytes < 106 * GIB
    # On a unified box the peak of the process leaves out what it has on the device.
    unified = Need.of(3 * GIB, 100 * GIB, UNIFIED)
    assert unified.host_bytes > 104 * GIB
    assert unified.device_bytes == 0


def test_what_does_not_fit_is_one_sentence() -> None:
    assert admission.admit(BOX, NEED).admitted
    assert admission.admit(Host(None, None, None, None, None, ()), NEED, max_load=1.0).admitted
    foreign = admission.admit(BOX, NEED, foreign="process 7 (x) is using GPU 0.")
    assert (foreign.code, foreign.reason) == ("foreign_process", "process 7 (x) is using GPU 0.")
    low = admission.admit(replace(BOX, mem_available_bytes=2 * GIB), NEED)
    assert low.code == "memory"
    assert low.reason.startswith("only 2.00 GiB of memory is free, and a run wants 2.32 GiB")
    assert admission.admit(replace(BOX, disk_free_bytes=5), NEED).code == "disk"
    device = gpu(mem_total_bytes=140 * GIB, mem_used_bytes=40 * GIB)
    wants = replace(NEED, device_bytes=105 * GIB)
    assert admission.admit(replace(BOX, gpus=(device,)), wants).code == "device_memory"
    empty = replace(device, mem_used_bytes=0)
    assert admission.admit(replace(BOX, gpus=(empty,)), wants).admitted


def test_a_busy_host_says_why() -> None:
    busy = replace(BOX, load_1m=9.0, pressure={"cpu": 61.2, "io": 3.0})
    assert admission.admit(busy, NEED, max_load=7.0).reason == (
        "the load of the last minute is 9.0, over 7.0; tasks are stalled on cpu 61 %, io 3 % "
        "of the time."
    )
    assert admission.admit(busy, NEED).admitted


def test_waiting_is_bounded_and_only_a_busy_host_is_waited_for_at_once() -> None:
    busy, memory = Admission(NEED, "busy", "x"), Admission(NEED, "memory", "x")
    assert busy.waits(first_run=True, waited_s=10.0)
    assert not busy.waits(first_run=True, waited_s=1800.0)
    assert not memory.waits(first_run=True, waited_s=0.0)
    assert memory.waits(first_run=False, waited_s=10.0)


def test_the_cache_is_dropped_only_where_that_helps() -> None:
    short = admission.admit(replace(BOX, mem_available_bytes=GIB), NEED)
    assert admission.dropping_helps(replace(BOX, mem_available_bytes=GIB), short)
    full = replace(BOX, mem_available_bytes=GIB, mem_reclaimable_bytes=GIB)
    assert not admission.dropping_helps(full, short)
    assert admission.dropping_helps(replace(full, gpus=(UNIFIED,)), short)
    limited = replace(BOX, mem_available_bytes=GIB, cgroup_limit_bytes=4 * GIB)
    assert not admission.dropping_helps(limited, short)
    assert not admission.dropping_helps(BOX, Admission(NEED, "disk", "x"))


def test_dropping_needs_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission.os, "sync", lambda: None)
    target = tmp_path / "drop_caches"
    assert admission.drop_page_cache(target)
    assert target.read_text() == "1\n"
    assert not admission.drop_page_cache(tmp_path / "none" / "drop_caches")


def test_the_entrance_drops_once_waits_and_leaves_evidence(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    assert admission.checkpoint_bytes(tmp_path) == 1000
    looks = [replace(BOX, load_1m=99.0), replace(BOX, mem_available_bytes=GIB // 2), BOX]
    drops: list[int] = []
    entrance = Entrance(
        tmp_path, tmp_path, probe=lambda _: looks.pop(0), foreign=lambda _: None,
        drop=lambda: not drops.append(1),  # type: ignore[func-returns-value]
        now_s=iter((100.0, 103.0, 110.0)).__next__,
    )  # fmt: skip
    assert entrance.enter() == {}
    assert entrance.look(None).code == "busy"
    assert entrance.look(None).admitted
    assert drops == [1]
    told = entrance.enter()
    assert told["waited_for"] == ["busy"]
    assert told["waited_s"] == 3.0
    assert told["dropped_cache"] == {"before_bytes": GIB // 2, "after_bytes": 8 * GIB}
    assert told["need"]["basis"] == "the size of the checkpoint"
    assert told["host"]["cpu"] is not None
    assert entrance.waited_s == 0.0


def test_no_permission_to_drop_changes_nothing(tmp_path: Path) -> None:
    entrance = Entrance(
        tmp_path, tmp_path, probe=lambda _: replace(BOX, mem_available_bytes=GIB // 2),
        foreign=lambda _: None, drop=lambda: False,
    )  # fmt: skip
    assert entrance.look(None).code == "memory"
    assert entrance.enter()["dropped_cache"] is None
