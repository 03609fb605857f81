"""Every check says ok, warn or fail with a reason, and changes nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flywheel import doctor, host
from flywheel.host import Gpu, GpuProcess, Host
from flywheel.lease import Lease, device_path
from flywheel.ledger.store import Ledger


@pytest.fixture
def healthy(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "deepseek_v4"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({"name": "s", "prompts": [{"id": "a", "category": "b"}]}))
    return {"ledger": tmp_path / "ledger.db", "checkpoint": folder, "suite_path": suite,
            "torch_probe": lambda: ("ok", "2.13 cpu only")}


def states(**arguments: Any) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.diagnose(**arguments).checks}


def test_a_fit_box_is_healthy_and_untouched(healthy: dict[str, Any]) -> None:
    found = doctor.diagnose(**healthy)
    assert found.healthy, found
    assert not healthy["ledger"].exists()
    assert found.to_json()["healthy"]
    Console(quiet=True).print(found.table())
    said = {check.name: check.said for check in found.checks}
    assert "deepseek_v4, 1 shards" in said["checkpoint"]
    assert "sha256" in said["checkpoint"]


def test_what_is_missing_fails(healthy: dict[str, Any], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    assert states(**{**healthy, "checkpoint": broken})["checkpoint"].state == "fail"
    (broken / "config.json").write_text("{")
    assert "not JSON" in states(**{**healthy, "checkpoint": broken})["checkpoint"].said
    (broken / "config.json").write_text("[]")
    assert "no .safetensors" in states(**{**healthy, "checkpoint": broken})["checkpoint"].said
    assert states(**{**healthy, "suite_path": broken})["suite"].state == "fail"
    nowhere = {**healthy, "ledger": tmp_path / "no" / "ledger.db"}
    assert states(**nowhere)["ledger"].state == "fail"


def test_a_ledger_is_opened_and_a_foreign_file_refused(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    Ledger.open(healthy["ledger"]).close()
    assert "is whole" in states(**healthy)["ledger"].said
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database at all" * 100)
    assert states(**{**healthy, "ledger": other})["ledger"].state == "fail"


def test_a_held_device_and_a_stop_file_are_warnings(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "STOP").touch()
    with Lease.acquire(device_path(), "a server"):
        found = states(**healthy)
    assert found["lease"].state == "warn"
    assert "a server" in found["lease"].said
    assert found["stop"].state == "warn"


def test_versions_room_load_and_device_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_python((3, 10, 1)).state == "fail"
    assert doctor.check_sqlite((3, 30, 0)).state == "fail"
    assert doctor.check_room("disk", None, 2, 1).state == "warn"
    assert doctor.check_room("disk", 0, 2, 1).state == "fail"
    assert doctor.check_room("disk", 1, 2, 1).state == "warn"
    blank = Host(None, None, None, None, None, ())
    assert doctor.check_load(blank).state == "warn"
    assert doctor.check_load(Host(9.0, 2, None, None, None, ())).state == "warn"
    assert doctor.check_device(blank).state == "ok"

    def with_gpu(processes: tuple[GpuProcess, ...] | None) -> Host:
        gpu = Gpu(0, "H200", "600", None, None, None, None, None, None, None, processes)
        return Host(0.1, 2, 1, 1, 1, (gpu,))

    assert doctor.check_device(with_gpu(())).state == "ok"
    assert doctor.check_device(with_gpu(None)).state == "warn"
    assert doctor.check_device(with_gpu((GpuProcess(9, "x", 1),))).state == "fail"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert doctor.check_compiler().state == "warn"


def test_torch_is_probed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(code: int, out: str, err: str) -> None:
        done = subprocess.CompletedProcess([], code, out, err)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    answer(0, "2.13 cpu only\n", "")
    assert doctor.probe_torch() == ("ok", "2.13 cpu only")
    answer(1, "", "Traceback\nModuleNotFoundError: No module named 'torch'\n")
    assert doctor.probe_torch()[1].endswith("No module named 'torch'")
    answer(1, "", "")
    assert doctor.probe_torch()[0] == "fail"

    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", slow)
    assert doctor.probe_torch()[0] == "fail"


def test_a_large_checkpoint_is_not_hashed_here(
    healthy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "HASH_LIMIT_BYTES", 3)
    assert "hashed by every run" in states(**healthy)["checkpoint"].said
    assert host.DISK_FLOOR_BYTES > 0
