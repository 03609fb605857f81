"""Probes are optional, refusals are sentences, and a strange driver cannot crash the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from flywheel.box import host
from flywheel.box.host import Host

IDLE = Host(0.5, 2, 16 << 30, 8 << 30, 50 << 30, ())


def test_this_box_can_be_looked_at(tmp_path: Path) -> None:
    look = host.probe(tmp_path)
    assert look.cores
    assert look.disk_free_bytes
    assert host.cores() == look.cores
    assert look.to_json()["gpus"] is not None


def test_the_load_limit_is_the_boxs_or_the_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_MAX_LOAD", raising=False)
    assert host.load_limit(2) == 7.0
    monkeypatch.setenv("FLYWHEEL_MAX_LOAD", "50")
    assert host.load_limit(2) == 50.0
    for wrong in ("lots", "-1", "nan"):
        monkeypatch.setenv("FLYWHEEL_MAX_LOAD", wrong)
        assert host.load_limit(2) == 7.0


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_tightest_memory_limit_above_this_process_counts(tmp_path: Path) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    group(proc / "self", cgroup="0::/user/box")
    group(root, memory__max="max", memory__current="9")
    group(root / "user", memory__max="4000", memory__current="3000",
          memory__stat="inactive_file 500")  # fmt: skip
    group(root / "user/box", memory__max="9000", memory__current="100")
    assert host.cgroup_limit(root, proc) == (4000, 2500)
    group(proc / "self", cgroup="3:cpu:/x\n4:memory:/somewhere/in/the/host\n0::/nowhere")
    assert host.cgroup_limit(root, proc) is None
    group(root / "memory", memory__limit_in_bytes="8000", memory__usage_in_bytes="1000",
          memory__stat="cache 7\ntotal_inactive_file 400")  # fmt: skip
    assert host.cgroup_limit(root, proc) == (8000, 600)
    group(root / "memory", memory__limit_in_bytes="9223372036854771712")
    assert host.cgroup_limit(root, proc) is None
    assert host.cgroup_limit(tmp_path / "none", tmp_path / "none") is None


def test_pressure_is_read_where_the_kernel_keeps_it(tmp_path: Path) -> None:
    group(tmp_path / "pressure", cpu="some avg10=61.25 avg60=3.55\nfull avg10=0.00", io="garbage")
    assert host.pressure(tmp_path) == {"cpu": 61.25}
    assert host.pressure(tmp_path / "none") == {}
