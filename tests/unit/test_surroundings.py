"""While a run measures, whoever joins it and whatever slows it down is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from nvml import gpu, on_device

from flywheel.box import identity, tenants
from flywheel.box.cpu import Cpu, Sample, Spent
from flywheel.box.device import Gpu, GpuProcess
from flywheel.box.surroundings import Surroundings
from flywheel.run.launch import RunState

RUNNING = RunState("running", identity.current(), identity.current(), None)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tenants, "engines", lambda *_: ())


def around(gpus: Sequence[Gpu] = (), samples: Sequence[Sample] = ()) -> Surroundings:
    left, devices = list(samples), list(gpus)
    counts = iter(range(5, 50))
    return Surroundings(
        every_s=0.0,
        gpus=lambda: (devices.pop(0),) if devices else (),
        processor=lambda: Cpu(mhz=2000.0, throttle_count=next(counts)),
        sample=lambda: left.pop(0) if left else None,
    )


def test_a_quiet_run_leaves_ranges_and_no_contamination() -> None:
    samples = [Sample(0.0, 0.0, {}, 8), Sample(10.0, 3.0, {9: Spent("cron", 9, 3.0)}, 8),
               Sample(20.0, 63.0, {9: Spent("cron", 9, 63.0)}, 8)]  # fmt: skip
    quiet = around(samples=samples)
    for _ in range(3):
        quiet.look(RUNNING)
    told = quiet.evidence()
    assert quiet.contamination is None
    assert told["looks"] == 3
    assert told["foreign_cores"] == [0.3, 6.0]
    assert told["looks_over_limit"] == (1 if quiet.limit_cores < 6.0 else 0)
    assert told["busiest_other"] == "process 9 (cron)"
    assert told["cpu_mhz"] == [2000.0, 2000.0]
    assert told["cpu_throttle_events"] == 2
    assert told["sm_clock_mhz"] is None


def test_our_own_session_is_not_foreign() -> None:
    mine = identity.current().pid
    samples = [Sample(0.0, 0.0, {7: Spent("engine", mine, 0.0)}),
               Sample(10.0, 20.0, {7: Spent("engine", mine, 20.0)})]  # fmt: skip
    alone = around(samples=samples)
    alone.look(RUNNING)
    alone.look(RUNNING)
    assert alone.evidence()["foreign_cores"] == [0.0, 0.0]


def test_nothing_is_looked_at_before_the_engine_runs_or_too_soon() -> None:
    early = around()
    early.look(RunState("unclaimed", None, None, None))
    early.look(RunState("left", None, None, None))
    assert early.evidence()["looks"] == 0
    slow = Surroundings(every_s=60.0, gpus=lambda: (), sample=lambda: None)
    slow.look(RUNNING)
    slow.look(RUNNING)
    assert slow.evidence()["looks"] == 1


def test_a_foreign_process_contaminates_and_the_first_finding_stays() -> None:
    joined = around((on_device(GpuProcess(2**22, "miner", 5)), gpu(throttle_bits=0x40)))
    joined.look(RUNNING)
    joined.look(RUNNING)
    assert joined.code == "foreign_process"
    assert "miner" in (joined.contamination or "")
    assert joined.evidence()["throttles"] == ["hardware thermal slowdown"]


def test_an_engine_that_has_ended_and_is_still_on_the_device_is_our_own() -> None:
    gone = replace(identity.current(), pid=2**22, start_ticks=1)
    ended = around((on_device(GpuProcess(2**22, "python3", 6 << 30)),))
    ended.look(RunState("running", identity.current(), gone, None))
    assert ended.contamination is None


def test_heat_voids_a_run_and_a_power_limit_does_not() -> None:
    capped = around((gpu(throttle_bits=0x04, sm_clock_mhz=1500, power_w=700.0),))
    capped.look(RUNNING)
    assert capped.contamination is None
    told = capped.evidence()
    assert (told["throttles"], told["process_list_hidden"]) == (["software power cap"], True)
    assert (told["sm_clock_mhz"], told["power_w"]) == ([1500, 1500], [700.0, 700.0])
    hot = around((gpu(throttle_bits=0x40),))
    hot.look(RUNNING)
    assert (hot.code, hot.contamination) == (
        "throttled", "GPU 0 was throttled: hardware thermal slowdown."
    )  # fmt: skip


def test_a_stuck_gpu_is_believed_at_the_third_look_in_a_row() -> None:
    stuck = gpu(busy_percent=96, sm_clock_mhz=800, max_sm_clock_mhz=2400, power_w=20.0)
    fine = replace(stuck, power_w=90.0)
    once = around((stuck, stuck, fine, stuck, stuck))
    for _ in range(5):
        once.look(RUNNING)
    assert once.contamination is None
    always = around((stuck, stuck, stuck))
    for _ in range(3):
        always.look(RUNNING)
    assert always.code == "throttled"
    assert "stuck at low power" in (always.contamination or "")
