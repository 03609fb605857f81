"""`python -m engine.inventory CHECKPOINT | --synthetic NAME`: what a model weighs and reads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from engine.errors import EngineError
from engine.geometry import named_geometries
from engine.inventory.account import take
from engine.inventory.floor import bandwidth
from engine.inventory.page import show

_SLOWEST, _FASTEST = 1e-3, 1e9  # GB/s; no box is beyond either


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the account; exit status 2 and one sentence for a model that has none."""
    given = _parser().parse_args(arguments)
    if (given.checkpoint is None) == (given.synthetic is None):
        print("Name a checkpoint's folder or --synthetic NAME, one of them.", file=sys.stderr)
        return 2
    try:
        account = take(
            given.checkpoint if given.synthetic is None else given.synthetic,
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


def _bandwidth(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _SLOWEST <= value <= _FASTEST:
        raise argparse.ArgumentTypeError(f"must be from {_SLOWEST:g} to {_FASTEST:g}")
    return value


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
        "--bandwidth-gb-s", type=_bandwidth, metavar="X", help="read bandwidth for the floor, GB/s"
    )
    return parser
