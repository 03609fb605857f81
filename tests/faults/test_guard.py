"""The real guard process on a stand-in for meminfo: what it ends, what it spares, what it says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import manifest_for, wait_for

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease, holder
from flywheel.guard import link, replay
from flywheel.guard.journal import Journal
from flywheel.guard.limits import MB, Limits
from flywheel.guard.memory import HostMemory
from flywheel.guard.traces import traces
from flywheel.guard.victim import Victim
from flywheel.guard.watch import Charge, Guard
from flywheel.guard.word import GuardWord, read_sealed
from flywheel.run import launch, supervise
from flywheel.run.exit_status import ExitStatus
from flywheel.run.manifest import Manifest
from flywheel.run.parse import Refusal, parse
from flywheel.run.record import RunRecord

FAMILY = Path(__file__).with_name("family.py")


class Meminfo:
    """A file that stands in for /proc/meminfo."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self.set(8000)

    def set(self, available_mb: float) -> None:
        kib = int(available_mb * MB) // 1024
        os.pwrite(self._fd, f"MemAvailable: {kib:16d} kB\n".encode(), 0)

    def spoil(self) -> None:
        os.ftruncate(self._fd, 0)

    def limits(self, **changes: Any) -> Limits:
        one = Limits(
            1500 * MB, 2000 * MB, 400 * MB, poll_s=0.05, close_poll_s=0.02,
            meminfo=str(self.path), cgroup="/nowhere", back_patience_s=10.0,
        )  # fmt: skip
        return replace(one, **changes)


@pytest.fixture
def meminfo(tmp_path: Path) -> Meminfo:
    return Meminfo(tmp_path / "meminfo")


class Run:
    """A run under its real supervisor and guard."""

    def __init__(
        self, root: Path, limits: Limits, script: Path | None, *options: str, **fields: Any
    ) -> None:
        manifest = manifest_for(root, options=options, guard=limits.to_json(), **fields)
        if script is not None:
            argv = [sys.executable, str(script), str(root / "pids")]
            manifest = Manifest.from_json({**manifest.to_json(), "argv": argv})
        self.root, self.manifest = root, manifest
        self.dir = root / "runs" / manifest.run_id
        launch.prepare(self.dir, manifest)

    def start(self, lease_fds: Sequence[int] = ()) -> Run:
        self.supervisor = launch.start(self.dir, lease_fds=lease_fds)
        return self

    def watched(self) -> Run:
        """Wait until the guard has its engine."""
        wait_for(lambda: "watching" in self.log())
        return self

    def log(self) -> str:
        path = self.dir / "guard.log"
        return path.read_text() if path.exists() else ""

    def guard(self) -> Identity:
        pid = int(self.log().split("guard ", 1)[1].split(":")[0])
        found = identity.of(pid)
        assert found is not None
        return found

    def family(self) -> list[Identity]:
        wait_for((self.root / "pids").exists)
        found = [identity.of(int(pid)) for pid in (self.root / "pids").read_text().split()]
        assert None not in found
        return [one for one in found if one is not None]

    def left(self) -> ExitStatus:
        wait_for(lambda: self.supervisor.poll() is not None)
        status = ExitStatus.read(self.dir)
        assert status is not None
        assert status.guard is not None
        return status

    def word(self) -> GuardWord:
        word = self.left().guard
        assert word is not None
        return word

    def code(self) -> str:
        status = self.left()
        result = parse(launch.log_text(self.dir), self.manifest, status)
        return result.code if isinstance(result, Refusal) else "ok"


# -- the gate: recorded falls of memory ------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, replay.Played]:
    """Every trace, in real time; again where the box paused and so proved nothing."""
    left, done = list(traces()), {}
    for attempt in range(3):
        for one in replay.play(tmp_path_factory.mktemp(f"gate{attempt}"), left):
            done[one.trace] = one
        left = [
            trace for trace in left
            if not done[trace.name].as_expected and done[trace.name].stalled
        ]  # fmt: skip
        if not left:
            break
    return done


@pytest.mark.parametrize("trace", traces(), ids=lambda trace: trace.name)
def test_a_recorded_fall_ends_as_it_must(trace: Any, played: dict[str, replay.Played]) -> None:
    one = played[trace.name]
    assert one.as_expected, one
    assert one.verdict == trace.verdict
    if trace.verdict == "killed":
        assert one.left_bytes is not None
        assert (one.left_bytes > 0) == trace.in_time
        assert one.memory_back
    else:
        assert one.reaction_s is None


def test_the_replay_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["--json", "--seconds", "0.3", "steady"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["as_expected"]
    assert body["traces"][0]["verdict"] == "left"
    assert body["cost"]["verdict"] == "left"
    assert body["cost"]["cpu_s"] < 0.3


# -- a run under a guard -----------------------------------------------------------------------


def test_a_healthy_run_is_measured_and_its_low_water_kept(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    run = Run(tmp_path, meminfo.limits(), None, "--sleep", "0.4").start().watched()
    meminfo.set(2400)
    time.sleep(0.2)
    meminfo.set(7900)
    assert run.code() == "ok", run.left()
    word = run.word()
    assert word.verdict == "left"
    assert word.memory_back
    assert word.low_water_bytes is not None
    assert 2399 * MB < word.low_water_bytes <= 2400 * MB
    assert word.polls > 3
    assert word == read_sealed(run.dir, run.manifest.run_id, run.manifest.nonce)
    assert "left by itself: low water 2400 MB" in run.log()


def test_a_deaf_engine_with_scattered_children_is_ended_whole_and_the_device_kept_until_then(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    lease = Lease.acquire(tmp_path / "device.lock", "test")
    run = Run(tmp_path, meminfo.limits(), FAMILY).start(lease.fds).watched()
    lease.release()
    family = run.family()
    assert len(family) == 4
    meminfo.set(1000)
    wait_for(lambda: "KILLED" in run.log())
    assert not [one for one in family if identity.is_alive(one)]
    # The engine is gone, but its memory is not back: the device stays taken.
    time.sleep(0.2)
    assert run.supervisor.poll() is None
    assert holder(tmp_path / "device.lock") is not None
    meminfo.set(7950)
    assert run.code() == "guard_killed"
    assert holder(tmp_path / "device.lock") is None
    word = run.word()
    assert (word.trigger, word.memory, word.memory_back, word.stuck) == ("level", "host", True, ())
    assert word.killed == 4
    assert word.killed_at_bytes is not None
    assert word.killed_at_bytes <= 1000 * MB
    assert word.reaction_s is not None
    assert word.reaction_s < 1.0
    assert run.left().signal == signal.SIGKILL


def test_memory_that_does_not_come_back_is_said(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(back_patience_s=0.2), FAMILY).start().watched()
    meminfo.set(900)
    assert run.code() == "guard_killed"
    assert run.word().memory_back is False
    assert "DID NOT COME BACK" in run.log()


def test_a_stopped_engine_is_ended_all_the_same(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY).start().watched()
    family = run.family()
    os.killpg(family[0].pid, signal.SIGSTOP)
    meminfo.set(1000)
    wait_for(lambda: "KILLED" in run.log())
    meminfo.set(8000)
    assert run.code() == "guard_killed"
    assert not [one for one in family if identity.is_alive(one)]


def test_hangup_and_term_do_not_reach_the_guard(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), None, "--sleep", "0.5").start().watched()
    guard = run.guard()
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.kill(guard.pid, signum)
    os.kill(run.supervisor.pid, signal.SIGHUP)
    assert run.code() == "ok"


def test_a_run_whose_folder_was_deleted_does_not_keep_the_device(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY, grace_s=0.2).start().watched()
    family = run.family()
    shutil.rmtree(run.dir)
    run.supervisor.terminate()
    run.supervisor.wait(10.0)
    assert not [one for one in family if identity.is_alive(one)]


def test_an_engine_that_lost_its_guard_is_ended(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY, grace_s=0.2).start().watched()
    family = run.family()
    os.kill(run.guard().pid, signal.SIGKILL)
    assert run.code() == "guard_lost"
    assert "status -9" in run.word().reason
    assert not [one for one in family if identity.is_alive(one)]
    assert not run.left().timed_out
    assert not run.left().stopped


def test_a_guard_that_goes_blind_is_a_lost_guard(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY, grace_s=0.2).start().watched()
    meminfo.spoil()
    assert run.code() == "guard_lost"
    assert "no MemAvailable" in run.word().reason


def test_without_a_guard_no_engine_is_started(tmp_path: Path, meminfo: Meminfo) -> None:
    lines = meminfo.limits()
    for place, (limits, words) in enumerate(
        (
            (replace(lines, meminfo="/nowhere/meminfo"), "/nowhere/meminfo cannot be read"),
            (replace(lines, danger_bytes=9000 * MB), "end something first"),
        )
    ):
        run = Run(tmp_path / str(place), limits, None).start()
        assert run.code() == "not_started"
        assert words in (run.left().error or "")
        assert run.left().engine is None
        assert not (run.dir / "run.log").exists()


def test_the_guard_ends_the_engine_of_a_dead_supervisor(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY).start().watched()
    family = run.family()
    os.kill(run.supervisor.pid, signal.SIGKILL)
    run.supervisor.wait()
    wait_for(lambda: (run.dir / "guard.json").exists())
    # The double-forked child in a session of its own was the supervisor's heir and is nobody's now.
    assert not [one for one in family[:3] if identity.is_alive(one)]
    word = read_sealed(run.dir, run.manifest.run_id, run.manifest.nonce)
    assert (word.verdict, word.memory_back) == ("orphaned", True)
    assert launch.look(run.dir).phase == "lost"
    identity.send(family[3], signal.SIGKILL)


def test_what_a_dead_supervisor_and_a_dead_guard_left_is_buried(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    run = Run(tmp_path, meminfo.limits(), FAMILY).start().watched()
    family = run.family()
    # Stopped first, or it would end the run for want of a guard.
    os.kill(run.supervisor.pid, signal.SIGSTOP)
    os.kill(run.guard().pid, signal.SIGKILL)
    os.kill(run.supervisor.pid, signal.SIGKILL)
    run.supervisor.wait()
    assert [one for one in family if identity.is_alive(one)] == family
    assert launch.end(run.dir, 0.2).phase == "lost"
    assert not [one for one in family[:3] if identity.is_alive(one)]
    identity.send(family[3], signal.SIGKILL)


def test_a_stopped_supervisor_can_still_be_ended(tmp_path: Path, meminfo: Meminfo) -> None:
    run = Run(tmp_path, meminfo.limits(), None, "--fault", "hang").start().watched()
    os.kill(run.supervisor.pid, signal.SIGSTOP)
    state = launch.end(run.dir, 1.0)
    assert state.phase == "left"
    assert run.code() == "stopped"


def test_a_run_without_limits_has_its_guard_off(tmp_path: Path) -> None:
    manifest = manifest_for(tmp_path)
    run_dir = tmp_path / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    assert launch.start(run_dir).wait(20) == 0
    status = ExitStatus.read(run_dir)
    assert status is not None
    assert status.guard == GuardWord("off")
    assert isinstance(parse(launch.log_text(run_dir), manifest, status), RunRecord)


# -- the guard in this process -------------------------------------------------------------------


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    two = [subprocess.Popen(["sleep", "60"], process_group=0) for _ in range(2)]
    yield two
    for one in two:
        one.kill()
        one.wait()


def reaped(one: subprocess.Popen[bytes]) -> int:
    return one.wait(5)


def known(one: subprocess.Popen[bytes]) -> Identity:
    found = identity.of(one.pid)
    assert found is not None
    return found


def test_a_supervisor_that_slept_past_the_limit_is_woken_and_then_done_without(
    tmp_path: Path, meminfo: Meminfo, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    engine, supervisor = sleepers
    os.kill(supervisor.pid, signal.SIGSTOP)
    wait_for(lambda: identity.processes()[supervisor.pid].state == "T")
    limits = meminfo.limits(back_patience_s=0.1)
    guard = Guard(limits, HostMemory(limits.meminfo, "/"), None, Journal(tmp_path))
    charge = Charge(known(engine), known(supervisor), False, timeout_s=0.1, slack_s=0.1)
    reader, writer = os.pipe()
    # The engine is this test's child: dead is dead for the guard, reaped or not.
    word = guard.watch(charge, reader)
    os.close(reader)
    os.close(writer)
    assert (word.verdict, word.trigger) == ("killed", "overtime")
    assert identity.processes()[supervisor.pid].state == "S"
    assert reaped(engine) == -signal.SIGKILL


class Gpu:
    """A device whose free memory runs out look by look, and is whole again once asked for that."""

    total_bytes = 64_000 * MB
    why_not = None

    def __init__(self, *free_mb: int) -> None:
        self.free_mb = list(free_mb)

    def read(self) -> int | None:
        free = self.free_mb.pop(0) if self.free_mb else 60_000
        return None if free < 0 else free * MB


def test_device_memory_that_runs_short_ends_the_run_too(
    tmp_path: Path, meminfo: Meminfo, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    limits = meminfo.limits()
    # 60 GB free before the launch; once the driver does not answer, which is no reason to strike.
    gpu = Gpu(60_000, 2000, -1, 200, 190, 180)
    guard = Guard(limits, HostMemory(limits.meminfo, "/"), gpu, Journal(tmp_path))  # type: ignore[arg-type]
    reader, writer = os.pipe()
    word = guard.watch(Charge(known(sleepers[0]), None, False, 60.0, 10.0), reader)
    os.close(reader)
    os.close(writer)
    assert (word.verdict, word.memory, word.memory_back) == ("killed", "device", True)
    assert word.device_before_bytes == 60_000 * MB
    assert word.device_low_water_bytes in (190 * MB, 180 * MB)
    assert reaped(sleepers[0]) == -signal.SIGKILL


def test_a_guard_never_strikes_a_reused_pid(sleepers: list[subprocess.Popen[bytes]]) -> None:
    real = known(sleepers[0])
    victim = Victim(replace(real, start_ticks=real.start_ticks - 1), None, alone=False)
    assert not victim.leads()
    assert victim.members() == ()
    assert victim.kill().killed == 0
    assert sleepers[0].poll() is None


def test_identity_is_enough_where_the_kernel_has_no_pidfd(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    victim = Victim(known(sleepers[0]), None, alone=False)
    assert victim.wakeup_fd == -1
    assert victim.leads()
    assert victim.kill().stuck == ()
    assert reaped(sleepers[0]) == -signal.SIGKILL
    assert not identity.send(victim.engine, signal.SIGKILL)


# -- the supervisor's own trials -------------------------------------------------------------------


def in_process(root: Path, *options: str, **fields: Any) -> Path:
    manifest = manifest_for(root, options=options, **fields)
    run_dir = root / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    return run_dir


@pytest.mark.usefixtures("signals_as_before")
def test_a_guard_that_does_not_answer_is_a_lost_guard(
    tmp_path: Path, meminfo: Meminfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "WORD_PATIENCE_S", 0.3)
    tell = link.GuardLink.tell

    def tell_and_stop(self: link.GuardLink, *args: Any, **named: Any) -> None:
        tell(self, *args, **named)
        os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(link.GuardLink, "tell", tell_and_stop)
    run_dir = in_process(tmp_path, guard=meminfo.limits(back_patience_s=0.1).to_json())
    assert supervise.supervise(run_dir) == 0
    status = ExitStatus.read(run_dir)
    assert status is not None
    assert status.guard is not None
    assert status.guard.verdict == "lost"
    assert "did not end within" in status.guard.reason


@pytest.mark.usefixtures("signals_as_before")
def test_a_box_that_slept_during_the_run_voids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [supervise.Clocks(0, 0, 0), supervise.Clocks(10**9, 31 * 10**9, 91 * 10**9)]
    monkeypatch.setattr(supervise.Clocks, "now", lambda: moments.pop(0))
    run_dir = in_process(tmp_path)
    assert supervise.supervise(run_dir) == 0
    status = ExitStatus.read(run_dir)
    assert status is not None
    assert (status.suspended_s, status.wall_step_s) == (30.0, 60.0)
    result = parse(launch.log_text(run_dir), Manifest.read(run_dir), status)
    assert isinstance(result, Refusal)
    assert result.code == "suspended"


@pytest.mark.usefixtures("signals_as_before")
def test_an_engine_that_survives_sigkill_is_given_up_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "KILL_PATIENCE_S", 0.2)
    monkeypatch.setattr(supervise, "_reap", lambda _: None)
    run_dir = in_process(tmp_path, "--fault", "hang_early", timeout_s=0.3, grace_s=0.1)
    assert supervise.supervise(run_dir) == 0
    status = ExitStatus.read(run_dir)
    assert status is not None
    assert status.stuck
    assert status.engine is not None
    wait_for(lambda: not identity.is_alive(status.engine))
    refused = parse("", Manifest.read(run_dir), replace(status, timed_out=False))
    assert isinstance(refused, Refusal)
    assert refused.code == "engine_stuck"
