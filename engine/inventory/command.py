"""`python -m engine.inventory CHECKPOINT | --synthetic NAME`: what a model weighs and reads."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from engine.errors import EngineError
from engine.geometry import named_geometries
from engine.inventory.account import take
from engine.inventory.floor import bandwidth
from engine.inventory.page import show


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the account; exit status 2 and one sentence for a model that has none."""
    given = _parser().parse_args(arguments)
    if (given.checkpoint is None) == (given.synthetic is None):
        print("Name a checkpoint's folder or --synthetic NAME, one of them.", file=sys.stderr)
        return 2
    try:
        account = take(
            given.synthetic or given.checkpoint,
            bandwidth(given.bandwidth_gb_s),
            given.context,
        )
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(account.json(), indent=1))
    else:
        show(account, Console())
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


_positive.__name__ = "bandwidth"  # what argparse calls a value that it cannot read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.inventory", description=__doc__)
    names = ", ".join(named_geometries())
    parser.add_argument("checkpoint", nargs="?", type=Path, help="folder of a checkpoint")
    parser.add_argument("--synthetic", metavar="NAME", help=f"a geometry without weights: {names}")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--context", type=int, action="append", metavar="N", help="tokens of a sequence; repeatable"
    )
    parser.add_argument(
        "--bandwidth-gb-s", type=_positive, metavar="X", help="read bandwidth for the floor, GB/s"
    )
    return parser
