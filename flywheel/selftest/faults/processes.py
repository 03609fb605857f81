"""Processes killed, stopped, doubled, left behind or mistaken for others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from flywheel.box import identity
from flywheel.run import launch
from flywheel.selftest.engine.command import scripted
from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "process")
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def _supervisor_killed(scene: Scene) -> None:
    def kill() -> None:
        scene.held()
        scene.signal(scene.claimed("supervisor.json"))

    scene.loop("--hold", "middle", during=kill)


def _supervisor_killed_unseen(scene: Scene) -> None:
    """Supervisor and loop are both gone, and the engine lives on."""
    scene.leave()
    scene.signal(scene.claimed("supervisor.json"))
    scene.resume()


def _supervisor_stopped(scene: Scene) -> None:
    """Stopped for a second: nobody but a person would notice."""

    def stop() -> None:
        scene.held()
        who = scene.claimed("supervisor.json")
        scene.signal(who, signal.SIGSTOP)
        scene.release()
        time.sleep(1.0)
        scene.signal(who, signal.SIGCONT)

    scene.loop("--hold", "middle", during=stop)


def _never_launched(scene: Scene) -> None:
    scene.planned()
    scene.resume()


def _never_prepared(scene: Scene) -> None:
    """In the ledger, but the loop died before the run's directory was made."""
    _, run_dir = scene.planned()
    for file in run_dir.iterdir():
        file.unlink()
    run_dir.rmdir()
    scene.resume()


def _dead_before_the_claim(scene: Scene) -> None:
    """The supervisor cannot read the manifest, so it dies without having claimed the run."""
    _, run_dir = scene.planned()
    (run_dir / "manifest.json").write_text('{"run_id": "r')
    child = launch.start(run_dir)
    scene.expect(child.wait(20) == 2, "the supervisor took a run without a manifest")
    scene.resume()


def _claimed_by_another(scene: Scene, **changes: object) -> None:
    """The claim names a live process that has nothing to do with the run."""
    _, run_dir = scene.planned()
    stranger = scene.bystander()
    said = {**stranger.to_json(), **changes}
    if "start_ticks" not in changes and "boot_id" not in changes:
        raise ValueError("the claim must differ from the process that it names")
    for name in ("supervisor.json", "engine.json"):
        (run_dir / name).write_text(json.dumps(said))
    scene.resume()
    scene.expect(identity.is_alive(stranger), "a process that had nothing to do with it was ended")


def _pid_reused(scene: Scene) -> None:
    _claimed_by_another(scene, start_ticks=12345)


def _another_boot(scene: Scene) -> None:
    _claimed_by_another(scene, boot_id=OTHER_BOOT)


def _loop_killed(scene: Scene) -> None:
    child = scene.process("--hold", "middle")
    scene.held()
    child.kill()
    child.wait()
    scene.release()
    scene.resume()


def _loop_killed_run_ends_alone(scene: Scene) -> None:
    child = scene.process("--hold", "middle")
    run_dir = scene.held()
    child.kill()
    child.wait()
    scene.release()
    scene.wait((run_dir / "exit.json").exists, "exit.json")
    scene.resume()


def _second_engine(scene: Scene) -> None:
    """Somebody starts the run's own command by hand; both write one log."""

    def double() -> None:
        run_dir = scene.held()
        command = (*scripted(), "--config", str(run_dir / "config.json"),
                   "--log", str(run_dir / "run.log"))  # fmt: skip
        root = Path(launch.__file__).resolve().parents[2]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, check=True)
        scene.release()

    scene.loop("--hold", "middle", during=double)


def _second_supervisor(scene: Scene) -> None:
    """Somebody starts the run's supervisor again by hand; it must refuse."""

    def double() -> None:
        run_dir = scene.held()
        status = launch.start(run_dir).wait(20)
        scene.expect(status == 3, f"the second supervisor left with {status}")
        scene.release()

    scene.loop("--hold", "middle", during=double)


def _second_loop(scene: Scene) -> None:
    """A second loop on the same ledger must be refused while the first runs."""

    def double() -> None:
        scene.held()
        child = scene.process()
        said = "a second loop ran beside the first"
        scene.expect(child.wait(30) != 0, said)
        scene.release()

    scene.loop("--hold", "middle", during=double)


FAULTS = (
    _fault("grandchild", "a child outlives the engine in its group", "void", "group_left_behind"),
    _fault("daemon_left", "a child outlives it in a session of its own", "void",
           "group_left_behind"),
    _fault("daemonises", "the engine leaves and goes on in a session of its own", "void",
           "seal_missing group_left_behind"),
    Fault("supervisor_killed", "process", "the supervisor is killed, its engine lives", "killed",
          ("supervisor_lost",), _supervisor_killed),
    Fault("supervisor_killed_unseen", "process",
          "the supervisor is killed while no loop is there, its engine lives", "killed",
          ("supervisor_lost",), _supervisor_killed_unseen),
    Fault("supervisor_stopped", "process", "the supervisor is stopped for a second", "ok", ("",),
          _supervisor_stopped),
    Fault("never_prepared", "process", "the loop dies between the ledger and the run's directory",
          "blocked", ("never_started",), _never_prepared),
    Fault("never_launched", "process", "the loop dies between the run's directory and its launch",
          "blocked", ("never_started",), _never_launched),
    Fault("dead_before_the_claim", "process", "the manifest is corrupt, the supervisor dies of it",
          "blocked", ("never_started",), _dead_before_the_claim),
    Fault("pid_reused", "process", "the claim names a live process with other start ticks",
          "killed", ("supervisor_lost",), _pid_reused),
    Fault("another_boot", "process", "the claim names a live pid, but of another boot", "killed",
          ("supervisor_lost",), _another_boot),
    Fault("loop_killed", "process", "the loop is killed; the next one adopts the live run", "ok",
          ("",), _loop_killed),
    Fault("loop_killed_run_ends_alone", "process",
          "the loop is killed and the run ends before the next one comes", "ok", ("",),
          _loop_killed_run_ends_alone),
    Fault("second_engine", "process", "a second engine is started by hand on the same log", "void",
          ("seal_wrong", "malformed_event", "seq_broken", "event_after_end", "start_misplaced",
           "clock_backwards", "log_empty", "truncated", "seal_missing"), _second_engine),
    Fault("second_supervisor", "process", "a second supervisor is started by hand", "ok", ("",),
          _second_supervisor),
    Fault("second_loop", "process", "a second loop is started on the same ledger", "ok", ("",),
          _second_loop),
)  # fmt: skip
