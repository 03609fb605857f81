"""Starts the fake engine through the real launch path and reads what it left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flywheel.run import launch
from flywheel.run.manifest import Manifest, engine_config, new_nonce
from flywheel.selftest.engine.command import scripted

PROMPTS = ("code-0", "prose-0", "math-0")


def fake_command(*options: str) -> tuple[str, ...]:
    """The command prefix that stands in for ``python -m engine.measure``."""
    return scripted(*options)


def checkpoint(folder: Path) -> Path:
    """A folder that passes for a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return folder


def manifest_for(
    root: Path,
    run_id: str = "r1",
    *,
    options: tuple[str, ...] = (),
    arms: dict[str, dict[str, Any]] | None = None,
    timeout_s: float = 30.0,
    grace_s: float = 1.0,
    **fields: Any,
) -> Manifest:
    """A small hot run: two arms, three prompts, ABBA."""
    nonce = new_nonce()
    run_dir = root / "runs" / run_id
    config = engine_config(
        run_id=run_id,
        nonce=nonce,
        checkpoint=str(checkpoint(root / "checkpoint")),
        head=None,
        suite=str(root / "suite.json"),
        prompts=PROMPTS,
        arms={"A": {}, "B": {"threads": 2}} if arms is None else arms,
        order=("A", "B", "B", "A"),
        plain_arms=("A",),
        max_new_tokens=40,
        seed=1,
    )
    return Manifest(
        run_id=run_id,
        nonce=nonce,
        config=config,
        argv=launch.engine_argv(run_dir, fake_command(*options)),
        cwd=str(root),
        created_utc="2026-11-28T22:00:00Z",
        timeout_s=timeout_s,
        grace_s=grace_s,
        **fields,
    )


def wait_for(what: Any, timeout_s: float = 20.0) -> Any:
    """Poll until ``what()`` is true; its value, or a failed test."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def run_to_end(root: Path, manifest: Manifest, timeout_s: float = 20.0) -> launch.RunState:
    """Launch for real and wait for the supervisor's word."""
    run_dir = root / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    child = launch.start(run_dir)
    wait_for(lambda: child.poll() is not None, timeout_s)
    return launch.look(run_dir)
