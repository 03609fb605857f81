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
    begun = first_of(ledger)
    if begun is None:
        _ask(_about(command, "--check", best.engine_part(asked), checkpoint), "--start")
        return
    for field, value in asked.items():
        if field not in begun or begun[field] != value:
            raise UsageError(
                f"{ledger} began with another first configuration ({json.dumps(dict(begun))}); "
                f"--start {field}={value} is for a new ledger."
            )


def check_recipe(recipe: Mapping[str, object], checkpoint: Path, command: Sequence[str]) -> None:
    """Raise UsageError for a recipe that no head of the checkpoint could be trained by."""
    _ask(_about(command, "--recipe", recipe, checkpoint), "--head-recipe")


def check_corpus(words: Sequence[str], option: str) -> None:
    """Raise UsageError for what `option` names, where no corpus could be filled beside it.

    `words` are the command of the corpus stage.
    """
    _ask((*words, "--check"), option)


def _about(
    command: Sequence[str], option: str, asked: Mapping[str, object], checkpoint: Path
) -> tuple[str, ...]:
    return (*command, option, json.dumps(asked), "--checkpoint", str(checkpoint))


def first_of(ledger: Path) -> Mapping[str, object] | None:
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


def _ask(words: Sequence[str], of: str) -> None:
    """Run a question to the engine; what it refuses is a mistake in our option `of`."""
    try:
        done = subprocess.run(
            [*words], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return
    said = done.stderr.splitlines()
    # An engine that does not know our option tells its usage, which is no answer.
    if done.returncode == _REFUSED and said and not said[0].startswith("usage:"):
        raise UsageError(f"{of}: {said[-1].removeprefix('engine.heads: ')}")
