"""The stage of one fault: a folder, a ledger with one lever's block planned, a device of its own.

The loop is the product's own, in this process; the supervisor, the guard and the scripted engine
are real processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from flywheel.box import identity
from flywheel.box.clock import Clock, SystemClock, utc_text
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease
from flywheel.display.panel import Display
from flywheel.errors import FlywheelError
from flywheel.files import read_json
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import daemon, epoch, planned, stop
from flywheel.loop.order import Order, Session, plan_manifest
from flywheel.loop.step import NextBlock
from flywheel.run import launch
from flywheel.run.manifest import Manifest
from flywheel.selftest import census
from flywheel.selftest.engine.command import scripted
from flywheel.statistics.campaign import Settings

PROMPTS = ("code-0", "prose-0")
SETTINGS = Settings(label="selftest", budget=8, calibration=1, anchor_blocks=1, canary_every=50)
LEVER = Lever(
    name="threads-2", kind="config", change={"threads": 2}, claim="it is faster",
    falsify="it is not", predicted_gain=0.05,
)  # fmt: skip
PATIENCE_S = 20.0
MAX_LOAD = 1000
_T = TypeVar("_T")


class Missed(Exception):  # noqa: N818 - reads as the fact that it is
    """The fault could not be injected as meant: something that was waited for never came."""


class Scene:
    """Use it as a context manager: it marks this process's children and cleans up behind them."""

    def __init__(self, root: Path, pattern: str = "BAAB") -> None:
        self.root = root
        self.token = secrets.token_hex(8)
        self.ledger = root / "ledger.db"
        self.runs = root / "runs"
        self.checkpoint = root / "checkpoint"
        self.suite = root / "suite.json"
        self.witness = root / "witness"
        self.device = root / "device.lock"
        self.pattern = pattern
        self.said = io.StringIO()
        self.notes: list[str] = []
        self.cleanups: list[Callable[[], object]] = []
        self.session: Session | None = None
        self.error: Exception | None = None

    def __enter__(self) -> Scene:
        self._before = dict(os.environ)
        os.environ[census.MARK] = self.token
        os.environ["FLYWHEEL_LEASE"] = str(self.device)
        # How busy the box is must not decide what a fault does.
        os.environ["FLYWHEEL_MAX_LOAD"] = str(MAX_LOAD)
        os.environ.pop("FLYWHEEL_LEDGER", None)
        self.checkpoint.mkdir()
        (self.checkpoint / "config.json").write_text("{}")
        (self.checkpoint / "weights").write_bytes(bytes(range(256)))
        self.suite.write_text(json.dumps({"name": "scripted", "prompts": [
            {"id": name, "category": name[:-2]} for name in PROMPTS]}))  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        census.sweep(self.token)
        for clean in reversed(self.cleanups):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                clean()
        os.environ.clear()
        os.environ.update(self._before)

    # -- what is asked of the loop ---------------------------------------------------------

    def order(self, *options: str, **fields: Any) -> Order:
        """One run of the lever's block, on the scripted engine with these options."""
        command = scripted("--witness", str(self.witness), *options)
        body: dict[str, Any] = {
            "ledger": self.ledger, "checkpoint": self.checkpoint, "suite": self.suite,
            "prompts": PROMPTS, "max_new_tokens": 40, "settings": SETTINGS, "timeout_s": 20.0,
            "grace_s": 0.5, "command": command, "cwd": self.root, "patience_s": 0.0,
            "budget_runs": 1, **fields,
        }  # fmt: skip
        return Order(**body)

    def plan(self) -> NextBlock:
        """Enter the campaign and the block of the lever that will suffer."""
        step = NextBlock(
            block_id="b00001", variant_id="v0001", purpose="lever", lever=LEVER, incumbent={},
            candidate=dict(LEVER.change), hot=True, pattern=self.pattern, seed=7, number=1,
            why="a fault is injected", new_variant=True, new_block=True,
        )  # fmt: skip
        if self.ledger.exists():
            return replace(step, new_variant=False, new_block=False)
        with self.opened() as ledger:
            planned.open_campaign(ledger, SETTINGS, start={}, box=epoch.box(), now_utc=utc_text())
            planned.plan_block(ledger, step, now_utc=utc_text())
        return step

    @contextlib.contextmanager
    def opened(self) -> Iterator[Ledger]:
        """The ledger, closed afterwards."""
        ledger = Ledger.open(self.ledger)
        try:
            yield ledger
        finally:
            ledger.close()

    # -- ways to run -----------------------------------------------------------------------

    def loop(
        self,
        *options: str,
        during: Callable[[], object] | None = None,
        clock: Clock | None = None,
        **fields: Any,
    ) -> None:
        """The loop for one run; ``during`` happens beside it.

        What it did is in ``session``, or what it refused in ``error``.
        """
        self.session = self.error = None
        self.plan()
        order = self.order(*options, **fields)
        display = Display(Console(file=self.said, width=200))
        with self._beside(during):
            try:
                clock = clock or SystemClock()
                self.session = daemon.run(
                    order, lambda _view: [LEVER], clock=clock, display=display
                )
            except (FlywheelError, OSError) as error:
                self.error = error

    def resume(self, during: Callable[[], object] | None = None) -> None:
        """A later loop: it settles what it finds and starts nothing new."""
        self.loop(during=during, budget_runs=0)

    def leave(self, *options: str, **fields: Any) -> Path:
        """Start a run whose loop then goes away; the engine is held in its middle."""

        def go() -> None:
            self.held()
            stop.request(self.ledger, identity.current(), now=False)

        self.loop("--hold", "middle", *options, during=go, **fields)
        return self.run_dir()

    def left(self, *options: str, **fields: Any) -> Path:
        """A run that ended while no loop was there to see it."""
        run_dir = self.leave(*options, **fields)
        self.release()
        self.wait(lambda: (run_dir / "exit.json").exists(), "exit.json")
        self.wait(lambda: not census.living(self.token), "the end of the run's processes")
        return run_dir

    def launch(self, *options: str, guard: dict[str, Any] | None = None) -> Path:
        """A run whose loop went away right after its launch."""
        _, run_dir = self.planned(*options, guard=guard)
        with Lease.acquire(self.device, "flywheel selftest") as lease:
            lease.tell("flywheel selftest", run_dir)
            child = launch.start(run_dir, lease_fds=lease.fds)
        self.cleanups.append(child.wait)
        return run_dir

    def planned(
        self, *options: str, guard: dict[str, Any] | None = None, **fields: Any
    ) -> tuple[Manifest, Path]:
        """A run in the ledger and on the disk that nobody has launched yet."""
        step = self.plan()
        order = self.order(*options, **fields)
        now = utc_text()
        manifest = plan_manifest(order, step, step.loads()[0], None, now_utc=now, guard=guard)
        with self.opened() as ledger:
            planned.start_run(ledger, manifest, slot=0, now_utc=now)
        run_dir = self.runs / manifest.run_id
        launch.prepare(run_dir, manifest)
        return manifest, run_dir

    def process(
        self, *options: str, budget_runs: int = 1, kind: str = "scene"
    ) -> subprocess.Popen[bytes]:
        """The loop as a process of its own."""
        if kind == "scene":
            self.plan()
        words = [str(self.root), kind, str(budget_runs), *options]
        root = str(Path(daemon.__file__).resolve().parents[2])
        with (self.root / "daemon.log").open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", "flywheel.selftest.loop", *words],
                env={**os.environ, "PYTHONPATH": root}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
        self.cleanups.append(child.wait)
        self.cleanups.append(child.kill)
        return child

    # -- what goes on ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _beside(self, during: Callable[[], object] | None) -> Iterator[None]:
        if during is None:
            yield
            return
        failure: list[BaseException] = []

        def work() -> None:
            try:
                during()
            except BaseException as error:
                failure.append(error)
                census.sweep(self.token)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE_S + 5.0)
        if failure:
            raise failure[0]

    def wait(self, what: Callable[[], _T], name: str, patience_s: float = PATIENCE_S) -> _T:
        """Poll until ``what()`` is true; Missed after a while."""
        deadline = time.monotonic() + patience_s
        while not (value := what()):
            if time.monotonic() >= deadline:
                raise Missed(f"{name} did not come within {patience_s:.0f} s")
            time.sleep(0.01)
        return value

    def run_dir(self) -> Path:
        """The directory of the first run."""

        def first() -> Path | None:
            return next(iter(sorted(self.runs.glob("r*"))), None)

        found = self.wait(first, "a run directory")
        assert found is not None
        return found

    def held(self) -> Path:
        """The run's directory, once its engine waits at the stage where it is held."""
        run_dir = self.run_dir()
        self.wait((run_dir / "held").exists, "the engine's half-way mark")
        return run_dir

    def release(self) -> None:
        """Let a held engine go on."""
        (self.run_dir() / "release").touch()

    def release_beside(self, folder: Path) -> None:
        """Let an engine go on that was told to look for its release in another folder."""
        (folder / "release").touch()

    def wait_dead(self, who: Identity) -> None:
        """Wait until that process is gone."""
        self.wait(lambda: not identity.is_alive(who), f"the end of process {who.pid}")

    def sweep(self) -> None:
        """Kill every process of this scene at once, as a power cut does."""
        census.sweep(self.token)

    def last_words(self) -> str:
        """The end of what the loop said."""
        return " / ".join(self.said.getvalue().splitlines()[-3:])

    def claimed(self, name: str) -> Identity:
        """The identity in a file of the run directory, once it is there."""

        def read() -> Identity | None:
            return Identity.from_json(read_json(self.run_dir() / name))

        found = self.wait(read, name)
        assert found is not None
        return found

    def of_role(self, role: str) -> Identity:
        """The live process of this scene that was started as ``role``."""

        def found() -> Identity | None:
            return next((p.identity for p in census.living(self.token) if p.role == role), None)

        who = self.wait(found, f"a live {role}")
        assert who is not None
        return who

    def signal(self, who: Identity, number: int = signal.SIGKILL) -> None:
        """Send a signal to exactly that process; Missed when it was gone already."""
        if not census.kill(who, number):
            raise Missed(f"process {who.pid} had ended before it could be signalled")

    def bystander(self) -> Identity:
        """A live process that has nothing to do with any run."""
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
            env={**os.environ, census.MARK: "bystander"}, start_new_session=True,
        )  # fmt: skip
        self.cleanups.append(child.wait)
        self.cleanups.append(child.kill)
        who = identity.of(child.pid)
        assert who is not None
        return who

    def expect(self, holds: bool, complaint: str) -> None:
        """Note a complaint of the fault's own, beside those that are looked for after each."""
        if not holds:
            self.notes.append(complaint)

    def view(self) -> views.View:
        """The whole history."""
        with self.opened() as ledger, ledger.reading() as connection:
            return views.load(connection)
