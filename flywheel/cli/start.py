"""The first configuration of a ledger, as `flywheel run --start` asks for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flywheel import best
from flywheel.cli.terminal import open_ledger
from flywheel.errors import UsageError
from flywheel.ledger import views

_PATIENCE_S = 120.0
_REFUSED = 2


def check(
    ledger: Path, asked: Mapping[str, object], checkpoint: Path, command: Sequence[str]
) -> None:
    """Raise UsageError where a ledger began otherwise, or the engine cannot begin like this.

    `command` is the engine's that knows its fields. Where it does not answer, the first run will.
    """
    begun = _first_of(ledger)
    if begun is None:
        _ask(command, "--check", best.engine_part(asked), checkpoint, "--start")
        return
    for field, value in asked.items():
        if field not in begun or begun[field] != value:
            raise UsageError(
                f"{ledger} began with another first configuration ({json.dumps(dict(begun))}); "
                f"--start {field}={value} is for a new ledger."
            )


def check_recipe(recipe: Mapping[str, object], checkpoint: Path, command: Sequence[str]) -> None:
    """Raise UsageError for a recipe that no head of the checkpoint could be trained by."""
    _ask(command, "--recipe", recipe, checkpoint, "--head-recipe")


def _first_of(ledger: Path) -> Mapping[str, object] | None:
    """The frozen first configuration; None for a new ledger."""
    if not ledger.exists():
        return None
    opened = open_ledger(ledger)
    try:
        with opened.reading() as connection:
            campaigns = views.load(connection).campaigns
    finally:
        opened.close()
    return campaigns[0].first_config if campaigns else None


def _ask(
    command: Sequence[str], option: str, asked: Mapping[str, object], checkpoint: Path, of: str
) -> None:
    """Ask the engine about `asked`; what it refuses is a mistake in our option `of`."""
    try:
        done = subprocess.run(
            [*command, option, json.dumps(asked), "--checkpoint", str(checkpoint)],
            capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return
    said = done.stderr.splitlines()
    if done.returncode == _REFUSED and len(said) == 1:
        raise UsageError(f"{of}: {said[0]}")
