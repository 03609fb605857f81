"""`python -m engine.profile`: the phases of a decode step, and what is left to gain in each."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from engine import lease
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError, DeviceBusy, EngineError
from engine.geometry import SYNTHETIC
from engine.profile.decode import decode, random_prompt
from engine.profile.page import show
from engine.state import TILE
from engine.suite import ASSETS

_NUMBER = re.compile("[0-9]{1,18}")
_LONGEST = 10_000_000  # tokens before a step; a model's own limit is under it


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile and print; exit status 2 and one sentence for what cannot be, 3 on a busy device."""
    given = _parser().parse_args(arguments)
    try:
        config = _config(given.config)
        with lease.held("engine.profile"):
            engine = Engine.load(_model(given), config)
            prompt = random_prompt(engine, given.context, given.rows, given.steps)
            made_up = given.synthetic is not None
            profile = decode(
                engine, prompt, rows=given.rows, steps=given.steps, synthetic=made_up
            )
    except DeviceBusy as error:
        print(error, file=sys.stderr)
        return 3
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(profile.text())
    else:
        show(profile, Console())
    return 0


def _model(given: argparse.Namespace) -> Path:
    named = given.synthetic is not None
    return Path(f"{SYNTHETIC}{given.synthetic}") if named else given.checkpoint


def _config(path: Path | None) -> EngineConfig:
    if path is None:
        return EngineConfig()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}.") from None
    inner = raw.get("config", raw) if isinstance(raw, dict) else None
    if not isinstance(inner, dict):
        raise ConfigError(f"{path} must hold a JSON object.")
    return EngineConfig.parse(inner)


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.profile", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--checkpoint", type=Path, default=ASSETS / "tiny-v4", help="absent: the embedded one"
    )
    parser.add_argument("--synthetic", metavar="NAME", help="random weights instead, as k160")
    parser.add_argument("--config", type=Path, help="configuration, or a best.json")
    parser.add_argument("--rows", type=_between(1, TILE), default=1, help="tokens of a step (1)")
    parser.add_argument(
        "--context", type=_between(1, _LONGEST), default=512, help="tokens before the step (512)"
    )
    parser.add_argument("--steps", type=_between(1, 10_000), default=50, help="steps timed (50)")
    return parser
