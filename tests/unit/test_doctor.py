"""Every check says ok, warn or fail with a reason and what to do, and changes nothing."""

from __future__ import annotations

import io
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvml import gpu, on_device
from rich.console import Console

from flywheel import doctor
from flywheel.box import host, lease, tenants
from flywheel.box.admission import Need
from flywheel.box.cpu import Cpu, Use
from flywheel.box.device import Gpu, GpuProcess
from flywheel.box.holder import Holder
from flywheel.box.host import Host
from flywheel.box.lease import Lease, device_path
from flywheel.doctor import box, software, tenancy, work
from flywheel.doctor.check import Check, fine
from flywheel.files import dump
from flywheel.ledger import backup, halts, takeovers
from flywheel.ledger.store import Ledger

GIB = 1 << 30
NOW = "2026-11-28T22:00:00Z"
BLANK = Host(None, None, None, None, None, ())
BOX = Host(0.5, 4, 16 * GIB, 8 * GIB, 50 * GIB, ())
NEED = Need(2 * GIB, 0, GIB, "the size of the checkpoint")
H200 = gpu(name="NVIDIA H200", driver="600.1", uuid="GPU-1", mem_total_bytes=140 * GIB,
           mem_used_bytes=0, processes=(), persistence=True, ecc=True, mig=False,
           sm_clock_mhz=1980, max_sm_clock_mhz=1980, power_w=80.0, power_limit_w=700.0,
           performance_state=0, busy_percent=0)  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_box(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "FLYWHEEL_MAX_LOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "gpus", lambda: ())


@pytest.fixture
def healthy(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "deepseek_v4"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({"name": "s", "prompts": [{"id": "a", "category": "b"}]}))
    return {"ledger": tmp_path / "ledger.db", "checkpoint": folder, "suite_path": suite,
            "torch_probe": lambda: Check("torch", "ok", "2.13 cpu only")}  # fmt: skip


def states(**arguments: Any) -> dict[str, Check]:
    return {check.name: check for check in doctor.diagnose(**arguments).checks}


def is_finding(check: Check, state: str, *words: str) -> None:
    """Not ok, says so, and says what to do."""
    assert check.state == state, check
    assert check.advice, check
    for word in words:
        assert word in check.said, check


def with_gpu(one: Gpu) -> Host:
    return replace(BOX, gpus=(one,))


def test_a_fit_box_is_healthy_and_untouched(healthy: dict[str, Any]) -> None:
    before = sorted(healthy["ledger"].parent.rglob("*"))
    found = doctor.diagnose(**healthy)
    assert found.healthy, found
    assert sorted(healthy["ledger"].parent.rglob("*")) == before
    told = found.to_json()
    assert told["healthy"]
    assert 0 < told["took_s"] < 10
    said = {check.name: check.said for check in found.checks}
    assert len(said) == len(found.checks)
    assert "deepseek_v4, 1 shard," in said["checkpoint"]
    assert "sha256" in said["checkpoint"]
    for check in found.checks:
        assert bool(check.advice) == (check.state != "ok"), check


def test_the_table_fits_a_narrow_terminal_and_shows_the_advice() -> None:
    found = doctor.Diagnosis((Check("file system", "warn", "word " * 30, "do this"),))
    out = io.StringIO()
    Console(file=out, width=40).print(found.table())
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert "to do: do this" in lines[-1]


def test_torch_is_imported_beside_the_other_checks(healthy: dict[str, Any]) -> None:
    seen: list[float] = []

    def slow() -> Check:
        time.sleep(0.5)
        seen.append(time.monotonic())
        return Check("torch", "ok", "")

    began = time.monotonic()
    found = doctor.diagnose(**{**healthy, "torch_probe": slow})
    assert [check.name for check in found.checks][2] == "torch"
    assert found.took_s < seen[0] - began + 1.0


def test_what_is_missing_fails(healthy: dict[str, Any], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    is_finding(work.check_checkpoint(broken), "fail", "no readable config.json")
    (broken / "config.json").write_text("{")
    is_finding(work.check_checkpoint(broken), "fail", "not JSON")
    (broken / "config.json").write_text("[]")
    is_finding(work.check_checkpoint(broken), "fail", "no .safetensors")
    is_finding(work.check_suite(broken), "fail")
    nowhere = states(**{**healthy, "ledger": tmp_path / "no" / "ledger.db"})
    is_finding(nowhere["ledger"], "fail", "cannot be created")


def test_a_large_checkpoint_is_not_hashed_here(
    healthy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "HASH_LIMIT_BYTES", 3)
    assert "hashed by every run" in work.check_checkpoint(healthy["checkpoint"]).said


def test_a_ledger_is_proved_and_a_foreign_file_refused(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    path = healthy["ledger"]
    Ledger.open(path).close()
    found = states(**healthy)
    assert found["ledger"].state == "ok"
    assert "journal mode delete, whole" in found["ledger"].said
    assert (found["halts"].state, found["takeovers"].said) == ("ok", "none")
    is_finding(found["backups"], "warn", "no copy")
    backup.back_up(path, NOW)
    assert work.check_backups(path).state == "ok"
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database at all" * 100)
    (refused,) = work.check_ledger(other)
    is_finding(refused, "fail")
    assert work.journal_mode(other) == "unknown"


def test_a_large_ledger_is_not_proved_here(
    healthy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open(healthy["ledger"]).close()
    monkeypatch.setattr(work, "PROOF_LIMIT_BYTES", 3)
    assert "flywheel ledger verify" in work.check_ledger(healthy["ledger"])[0].said


def test_halts_and_takeovers_are_told_from_the_ledger(healthy: dict[str, Any]) -> None:
    ledger = Ledger.open(healthy["ledger"])
    halts.halt(ledger, "gate_failed", "the incumbent fails its gate", None, NOW)
    halts.halt(ledger, "guard_killed_incumbent", "x", None, NOW)
    takeovers.record(ledger, path="/l", device="cpu", previous={}, proof="gone", now_utc=NOW)
    ledger.close()
    found = {check.name: check for check in work.check_ledger(healthy["ledger"])}
    is_finding(found["halts"], "fail", "gate_failed: the incumbent fails its gate (and 1 more)")
    assert "resume" in found["halts"].advice
    assert found["takeovers"].said == f"1, the last at {NOW}"


def test_a_held_device_and_a_stop_file_are_warnings(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "STOP").touch()
    with Lease.acquire(device_path(), "a server"):
        found = states(**healthy)
    is_finding(found["lease"], "warn", "a server")
    is_finding(found["stop"], "warn")
    assert tenancy.check_lease(device_path()).state == "ok"
    device_path().write_text(dump(Holder(None, "a server", NOW).to_json()))
    is_finding(tenancy.check_lease(device_path()), "warn", "never given back", "names no process")


def test_a_lock_that_cannot_be_opened_fails(tmp_path: Path) -> None:
    is_finding(tenancy.check_lease(tmp_path), "fail", "cannot be opened")
    is_finding(tenancy.check_lease(Path("/proc/1/lease")), "fail", "cannot be opened")
    assert tenancy.check_lease(tmp_path / "not" / "yet").state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_runs_without_an_end_are_leftovers_unless_they_live(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert work.check_runs(ledger).said == "none is running"
    for name in ("r1", "r2", "r3", "r4", "r5"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "r1" / "exit.json").write_text("{}")
    (tmp_path / "runs" / "r0").mkdir()
    is_finding(work.check_runs(ledger), "warn", "r3, r4, r5 and 1 more")
    with Lease.acquire(lease.daemon_path(ledger), "flywheel run"):
        assert work.check_runs(ledger).state == "ok"


def test_a_run_that_the_ledger_has_ended_is_no_leftover(tmp_path: Path) -> None:
    """A killed supervisor leaves no exit.json, ever; the ledger knows the run's end."""
    ledger = tmp_path / "ledger.db"
    Ledger.open(ledger).close()
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    (tmp_path / "runs" / "r1" / "manifest.json").write_text("{}")
    assert work.check_runs(ledger) == fine("runs", "none is running")


def test_versions_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    is_finding(software.check_python((3, 10, 1)), "fail", "3.11")
    is_finding(software.check_sqlite((3, 37, 2)), "fail", "3.38")
    is_finding(software.check_open_files(256), "warn", "256")
    assert software.check_open_files(-1).said == "no limit"
    monkeypatch.setattr("shutil.which", lambda _: None)
    is_finding(software.check_compiler(), "warn")


def test_torch_is_probed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(code: int, out: str, err: str) -> None:
        done = subprocess.CompletedProcess([], code, out, err)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    answer(0, "2.13 cpu only\n", "")
    assert software.probe_torch() == Check("torch", "ok", "2.13 cpu only")
    answer(1, "", "Traceback\nModuleNotFoundError: No module named 'torch'\n")
    is_finding(software.probe_torch(), "fail", "No module named 'torch'")
    answer(1, "", "")
    is_finding(software.probe_torch(), "fail", "no message")

    def raising(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(subprocess, "run", fail)

    raising(subprocess.TimeoutExpired("python", 8))
    is_finding(software.probe_torch(), "warn", "8 s")
    raising(OSError("no memory"))
    is_finding(software.probe_torch(), "fail", "no memory")


def test_room_on_disk_and_in_memory_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    is_finding(box.check_disk(None), "warn")
    is_finding(box.check_disk(1), "fail", "256 MiB")
    is_finding(box.check_disk(GIB // 2), "warn")
    assert box.check_disk(GIB).state == "ok"
    path = Path("/x/ledger.db")
    is_finding(box.check_file_system(path, "nfs4"), "fail", "nfs4")
    monkeypatch.setenv("FLYWHEEL_ALLOW_NETWORK_LEDGER", "1")
    is_finding(box.check_file_system(path, "nfs4"), "warn")
    is_finding(box.check_file_system(path, "tmpfs"), "warn")
    assert box.check_file_system(path, None).state == "ok"
    is_finding(box.check_memory(BLANK, NEED), "warn")
    is_finding(box.check_memory(replace(BOX, mem_available_bytes=GIB), NEED), "fail", "1.0 of 16.0")
    assert "by the size of the checkpoint" in box.check_memory(BOX, NEED).said
    full = with_gpu(replace(H200, mem_used_bytes=139 * GIB))
    is_finding(box.check_memory(full, replace(NEED, device_bytes=9 * GIB)), "fail", "device memory")
    assert box.check_cgroup(BOX).said == "no memory limit"
    assert "4.0 GiB" in box.check_cgroup(replace(BOX, cgroup_limit_bytes=4 * GIB)).said


def test_the_guards_lines_are_told() -> None:
    is_finding(box.check_guard(None, None), "warn")
    assert "ends a run under" in box.check_guard(16 * GIB, None).said
    assert "healthy runs left 9000 MB" in box.check_guard(16 * GIB, 9_000_000_000).said
    is_finding(box.check_guard(16 * GIB, 1_000_000), "warn", "healthy runs left only")


def test_swap_and_overcommit_are_judged(tmp_path: Path) -> None:
    assert box.check_swap("SwapTotal: 0 kB\nSwapFree: 0 kB").said == "none"
    assert box.check_swap("").said == "unknown"
    assert box.check_swap("SwapTotal: 100 kB\nSwapFree: 95 kB").state == "ok"
    is_finding(box.check_swap("SwapTotal: 100 kB\nSwapFree: 5 kB"), "warn", "swaps")
    assert box.check_overcommit(tmp_path).said == "unknown"
    (tmp_path / "sys/vm").mkdir(parents=True)
    for text, state in (("0", "ok"), ("1", "ok"), ("2", "warn")):
        (tmp_path / "sys/vm/overcommit_memory").write_text(f"{text}\n")
        assert box.check_overcommit(tmp_path).state == state


def test_a_busy_box_names_who_is_busy() -> None:
    assert box.check_load(BLANK, None).state == "ok"
    is_finding(box.check_load(replace(BOX, load_1m=99.0), None), "warn", "would wait")
    noisy = replace(BOX, pressure={"cpu": 40.0})
    said = ("others use 2.5 of them", "process 9 (make)", "40 %")
    is_finding(box.check_load(noisy, Use(2.5, "process 9 (make)")), "warn", *said)
    assert box.check_load(BOX, Use(0.2, None)).state == "ok"
    measured = box.others_use()
    assert measured is None or measured.cores >= 0


def test_processor_clock_and_login_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert box.check_processor(Cpu()).state == "ok"
    is_finding(box.check_processor(Cpu(governor="powersave", mhz=1, max_mhz=2)), "warn", "1 of 2")
    is_finding(box.check_processor(Cpu(on_battery=True, battery_percent=61)), "warn", "61 %")
    assert "3 times" in box.check_processor(Cpu(throttle_count=3)).said
    assert box.clock_synchronised() in (True, False, None)
    is_finding(box.check_clock(False), "warn", "UTC")
    assert box.check_clock(True).said.endswith("synchronised")
    assert box.check_clock(None).state == "ok"
    assert "no systemd" in box.check_login(tmp_path / "none").said
    monkeypatch.setattr("shutil.which", lambda _: "/bin/loginctl")

    def answer(text: str) -> Check:
        done = subprocess.CompletedProcess([], 0, text, "")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        return box.check_login(tmp_path)

    assert "lingers" in answer("yes\n").said
    is_finding(answer("no\n"), "warn")
    assert answer("").state == "ok"


def test_a_device_is_described_and_its_traps_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no NVIDIA driver" in tenancy.check_device(BLANK).said
    said = tenancy.check_device(with_gpu(H200)).said
    assert said == (
        "NVIDIA H200, 140 GiB, driver 600.1, GPU-1, ECC on, MIG off, persistence on"
    )
    unified = replace(H200, mem_total_bytes=None, unified=True, ecc=None)
    assert "unified with the host's memory" in tenancy.check_device(with_gpu(unified)).said
    is_finding(tenancy.check_device(with_gpu(replace(H200, persistence=False))), "warn", "unloads")
    is_finding(tenancy.check_device(with_gpu(replace(H200, mig=True))), "warn", "divided")
    unlike = replace(BOX, gpus=(H200, replace(H200, index=1, name="T4", uuid="GPU-2")))
    is_finding(tenancy.check_device(unlike), "warn", "unlike")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    assert tenancy.check_device(unlike).state == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no GPU is visible" in tenancy.check_device(unlike).said


def test_clocks_are_told_and_a_stuck_or_hot_gpu_found() -> None:
    assert tenancy.check_clocks(BLANK).state == "ok"
    assert tenancy.check_clocks(with_gpu(H200)).said == "1980 of 1980 MHz, 80 W of 700 W, P0"
    assert "set by the owner" in tenancy.check_clocks(with_gpu(replace(H200, throttle_bits=2))).said
    hot = replace(H200, throttle_bits=0x40)
    is_finding(tenancy.check_clocks(with_gpu(hot)), "warn", "hardware thermal slowdown")
    stuck = replace(H200, busy_percent=99, sm_clock_mhz=345)
    is_finding(tenancy.check_clocks(with_gpu(stuck)), "fail", "stuck at low power")


def test_foreign_processes_fail_unless_the_lease_explains_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tenants, "engines", lambda *_: ())
    monkeypatch.setattr(tenancy, "_CONTAINER_MARKS", ())
    busy = with_gpu(on_device(GpuProcess(2**22, "x", GIB), uuid="GPU-1"))
    is_finding(tenancy.check_tenants(busy), "fail", "process")
    with Lease.acquire(device_path(), "flywheel run"):
        is_finding(tenancy.check_tenants(busy), "warn", "flywheel run")
    assert tenancy.check_tenants(with_gpu(H200)).state == "ok"
    hidden = with_gpu(replace(H200, processes=None))
    is_finding(tenancy.check_tenants(hidden), "warn", "only device memory tells")
    blind = with_gpu(replace(H200, processes=None, mem_used_bytes=None))
    is_finding(tenancy.check_tenants(blind), "warn", "nothing tells")
    monkeypatch.setattr(tenancy, "_CONTAINER_MARKS", (tmp_path,))
    is_finding(tenancy.check_tenants(with_gpu(H200)), "warn", "may be hidden")
    unseen = with_gpu(replace(H200, mem_used_bytes=3 * GIB))
    is_finding(tenancy.check_tenants(unseen), "fail", "this container cannot see")
