"""The box around a run on a real GPU: its name, its other tenants, its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flywheel.box import device, host, lease, tenants
from flywheel.guard.limits import MB, device_lines, limits
from flywheel.run import launch
from flywheel.run.exit_status import ExitStatus
from flywheel.run.manifest import Manifest, engine_config, new_nonce

pytestmark = pytest.mark.gpu
HOG = Path(__file__).with_name("hog.py")
GIB = 1 << 30


@contextmanager
def holding(amount: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds so much of the device."""
    words = [sys.executable, str(HOG), str(amount), "0", str(amount)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("alone")
def test_another_process_on_the_device_refuses_a_run_and_is_named_or_said_to_be_hidden() -> None:
    assert tenants.before_launch(device.gpus()) is None
    with holding(2 * GIB) as hog:
        said = tenants.before_launch(device.gpus())
    assert said is not None
    assert str(hog.pid) in said or "cannot see" in said


def test_the_lease_is_named_after_the_device_that_torch_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.delenv("FLYWHEEL_LEASE", raising=False)
    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    assert uuid in device.key()
    assert uuid in lease.device_path().name


def test_the_device_tells_its_memory_and_its_clocks() -> None:
    gpu = device.mine(device.gpus())
    assert gpu is not None
    assert gpu.mem_total_bytes is not None
    assert gpu.mem_total_bytes > GIB
    assert gpu.sm_clock_mhz is not None
    assert gpu.power_w is not None


def test_a_runaway_on_the_device_is_killed_while_memory_is_left(tmp_path: Path) -> None:
    gpu = device.mine(device.gpus())
    assert gpu is not None
    assert gpu.mem_total_bytes is not None
    run_id, nonce = "r1", new_nonce()
    run_dir = tmp_path / "runs" / run_id
    memory = host.probe(tmp_path).mem_total_bytes
    assert memory is not None
    config = engine_config(
        run_id=run_id, nonce=nonce, checkpoint=str(tmp_path), head=None, suite="s", prompts=("p",),
        arms={"A": {}, "B": {"threads": 2}}, order=("A", "B", "B", "A"), plain_arms=("A",),
        max_new_tokens=1, seed=1,
    )  # fmt: skip
    piece = 64 * MB
    words = (sys.executable, str(HOG), str(piece), "0.002", str(2 * gpu.mem_total_bytes))
    manifest = Manifest(
        run_id=run_id, nonce=nonce, config=config, argv=words, cwd=str(tmp_path),
        created_utc="2026-11-29T22:00:00Z", timeout_s=120.0,
        guard=limits(memory, device=device.key()).to_json(),
    )  # fmt: skip
    launch.prepare(run_dir, manifest)
    assert launch.start(run_dir).wait(150) == 0
    status = ExitStatus.read(run_dir)
    assert status is not None
    word = status.guard
    assert word is not None
    print(f"\nguard on the device: {word}")
    assert (word.verdict, word.memory) == ("killed", "device")
    assert word.killed_at_bytes is not None
    assert 0 < word.killed_at_bytes < device_lines(gpu.mem_total_bytes).danger_bytes
    assert word.memory_back is True
