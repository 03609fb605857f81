"""Start a run's supervisor, look at a run from outside, and end one.

The run directory is the whole interface: ``manifest.json`` and ``config.json`` go in;
``supervisor.json``, ``engine.json``, ``run.log``, ``stderr.log`` and ``exit.json`` come out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.errors import LaunchError
from flywheel.files import create_whole, dump, read_json, sync_folder, write_atomic
from flywheel.run.exit_status import ExitStatus
from flywheel.run.manifest import Manifest
from flywheel.run.supervise import CLAIM_FILE, ENGINE_FILE, LOG_FILE, STDERR_FILE

CONFIG_FILE = "config.json"
SUPERVISOR_LOG = "supervisor.log"
ENGINE_COMMAND = (sys.executable, "-m", "engine.measure")
# How long exit.json may lag behind the death of its supervisor: the time of one rename.
_SETTLE_S = 0.2


@dataclass(frozen=True, slots=True)
class RunState:
    """A run seen from outside.

    ``phase`` is ``unclaimed`` (no supervisor took it), ``running``, ``left`` (exit.json is
    there) or ``lost`` (the supervisor is gone and left no word).
    """

    phase: str
    supervisor: Identity | None
    engine: Identity | None
    exit_status: ExitStatus | None


def engine_argv(run_dir: Path, command: tuple[str, ...] = ENGINE_COMMAND) -> tuple[str, ...]:
    """The command that measures one run."""
    return (*command, "--config", str(run_dir / CONFIG_FILE), "--log", str(run_dir / LOG_FILE))


def prepare(run_dir: Path, manifest: Manifest) -> None:
    """Write the run directory's inputs; LaunchError when the disk will not have them."""
    try:
        run_dir.mkdir(parents=True, exist_ok=False)
        write_atomic(run_dir / CONFIG_FILE, dump(manifest.to_json()["config"]))
        manifest.write(run_dir)
        sync_folder(run_dir)
        sync_folder(run_dir.parent)
    except OSError as error:
        raise LaunchError(f"the run directory {run_dir} cannot be written: {error}.") from error


def start(run_dir: Path, *, lease_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own; it alone inherits the lease (``Lease.fds``)."""
    root = Path(__file__).resolve().parent.parent.parent
    environment = dict(os.environ)
    # The supervisor's code must come from here, whatever folder or worktree the engine runs in.
    paths = [str(root), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    try:
        with (run_dir / SUPERVISOR_LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flywheel.run.supervise", str(run_dir.resolve())],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=tuple(lease_fds),
            )
    except OSError as error:
        raise LaunchError(f"the supervisor could not be started: {error}.") from error


def look(run_dir: Path) -> RunState:
    """The state of a run now."""
    supervisor = _identity(run_dir / CLAIM_FILE)
    engine = _identity(run_dir / ENGINE_FILE)
    left = ExitStatus.read(run_dir)
    if left is not None:
        return RunState("left", supervisor, engine, left)
    if supervisor is None:
        return RunState("unclaimed" if _free(run_dir) else "lost", None, engine, None)
    if identity.is_alive(supervisor):
        return RunState("running", supervisor, engine, None)
    # It may have written its word between the first look and its death.
    time.sleep(_SETTLE_S)
    left = ExitStatus.read(run_dir)
    return RunState("lost" if left is None else "left", supervisor, engine, left)


def _identity(path: Path) -> Identity | None:
    return Identity.from_json(read_json(path))


def _free(run_dir: Path) -> bool:
    """Whether no supervisor ever claimed the run.

    A claim appears whole or not at all, so one that names nobody was emptied by a loss of power.
    """
    claim = run_dir / CLAIM_FILE
    return not claim.exists() or (read_json(claim) or {}).get("disowned") is True


def disown(run_dir: Path) -> bool:
    """Take an unclaimed run away from any supervisor still on its way; False when one has it."""
    if not run_dir.is_dir():
        return True
    return create_whole(run_dir / CLAIM_FILE, dump({"disowned": True}))


def end(run_dir: Path, grace_s: float = 5.0) -> RunState:
    """End a run: its supervisor is asked to, and does; or, if it is lost, its group is ended."""
    state = look(run_dir)
    if state.phase == "running" and state.supervisor is not None:
        ask(state)
        deadline = time.monotonic() + 2 * grace_s + 5.0
        while time.monotonic() < deadline:
            state = look(run_dir)
            if state.phase != "running":
                break
            time.sleep(0.05)
    if state.phase == "lost":
        bury(state, grace_s)
    elif state.phase == "running" and state.engine is not None:
        identity.end_group(state.engine, grace_s)
    return state


def ask(state: RunState) -> None:
    """Ask the supervisor of a run to end it, and do not wait."""
    if state.phase == "running" and state.supervisor is not None:
        identity.send(state.supervisor, signal.SIGTERM)
        # One that was stopped hears nothing before it goes on.
        identity.send(state.supervisor, signal.SIGCONT)


def bury(state: RunState, grace_s: float = 5.0) -> bool:
    """End what a lost run left behind; True when nobody of it is left.

    The run's guard does so the moment the supervisor dies; this is for a run whose guard died too.
    """
    if state.engine is None:
        return True
    return identity.end_family(state.engine, state.supervisor, grace_s)


def log_text(run_dir: Path) -> str:
    """The run's log as text; empty when there is none."""
    try:
        # Surrogate escapes keep every byte, so that the seal is checked over what is there.
        return (run_dir / LOG_FILE).read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def stderr_tail(run_dir: Path, limit_bytes: int = 2000) -> str:
    """The end of what the engine said on stderr."""
    try:
        with (run_dir / STDERR_FILE).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit_bytes))
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
