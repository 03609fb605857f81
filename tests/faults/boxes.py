"""A folder with a ledger, and flywheel processes in it on the fake engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import checkpoint, fake_command, wait_for

from flywheel.box import identity
from flywheel.cli import app as cli
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.run import launch
from flywheel.selftest.engine.witness import told

SUITE = {
    "name": "fake",
    "prompts": [
        {"id": "code-0", "category": "code"},
        {"id": "prose-0", "category": "prose"},
        {"id": "code-1", "category": "code"},
    ],
}


class Box:
    """A folder with a ledger, and flywheel processes in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        self.detached: list[identity.Identity | None] = []
        checkpoint(root / "checkpoint")
        (root / "suite.json").write_text(json.dumps(SUITE))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "flywheel", *words, "--ledger", str(self.root / "ledger.db")]

    def environment(self, *options: str) -> dict[str, str]:
        engine = fake_command("--witness", str(self.root / "witness"), *options)
        return {**os.environ, "FLYWHEEL_ENGINE": shlex.join(engine)}

    def run_words(self, *more: str) -> tuple[str, ...]:
        return (
            "run", "--quick", "--checkpoint", str(self.root / "checkpoint"),
            "--suite", str(self.root / "suite.json"), *more,
        )  # fmt: skip

    def daemon(self, *more: str, engine: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.command(*self.run_words(*more)),
            cwd=self.root,
            env=self.environment(*engine),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(child)
        return child

    def say(
        self, *words: str, ledger: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """A command to its end; in this process, which has loaded everything already."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update({**self.environment(), **more})
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.main([*words, "--ledger", str(ledger or self.root / "ledger.db")])
        finally:
            os.environ.clear()
            os.environ.update(before)
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def states(self) -> list[launch.RunState]:
        return [launch.look(path) for path in sorted((self.root / "runs").glob("r*"))]

    def running(self) -> launch.RunState:
        def found() -> Any:
            return next(
                (s for s in self.states() if s.phase == "running" and s.engine is not None), None
            )

        state = wait_for(found)
        assert isinstance(state, launch.RunState)
        return state

    def launches(self) -> int:
        return sum(line["what"] == "start" for line in told(self.root / "witness"))

    def rows(self) -> list[views.RunRow]:
        ledger = Ledger.open(self.root / "ledger.db", create=False)
        try:
            with ledger.reading() as connection:
                return [run for b in views.load(connection).blocks() for run in b.runs]
        finally:
            ledger.close()

    def clear(self) -> None:
        """End everything that was started here, by identity."""
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        for daemon in self.detached:
            if daemon is not None:
                identity.end_group(daemon, 0.1)
        for state in self.states():
            for one in (state.supervisor, state.engine):
                if one is not None:
                    identity.end_group(one, 0.1)
