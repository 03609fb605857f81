"""`python -m engine.server.trial crowd | figures`: try a server, and print what was found."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.engine import available_cores
from engine.errors import EngineError
from engine.server.trial.crowd import crowd
from engine.server.trial.figures import CONFIG, measured


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status is 1 when something was wrong."""
    options = _parser().parse_args(arguments)
    try:
        if options.what == "crowd":
            found = asyncio.run(crowd(options.seconds, options.clients, options.seed))
            print(json.dumps(found.canonical(), indent=1, ensure_ascii=False))
            return int(bool(found.wrong))
        figures = asyncio.run(_figures(options.repeats, options.requests, options.out))
    except (EngineError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(figures)
    return 0


async def _figures(repeats: int, requests: int, out: Path | None) -> str:
    """The figures as JSON; in `out` those that are known so far, after each one."""
    before, known, text = os.getloadavg(), {}, ""
    async for name, value in measured(repeats=repeats, requests=requests):
        known[name] = value
        text = json.dumps({"machine": _machine(before), "config": CONFIG, **known}, indent=1)
        if out is not None:
            out.write_text(f"{text}\n", encoding="utf-8")
    return text


def _machine(load_before: tuple[float, float, float]) -> dict[str, Any]:
    """What a figure is worth nothing without."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": [round(load, 2) for load in load_before],
        "load_after": [round(load, 2) for load in os.getloadavg()],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.server.trial", description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    many = kinds.add_parser("crowd", help="clients that come, leave, dawdle and send nonsense")
    many.add_argument("--seconds", type=float, default=120.0)
    many.add_argument("--clients", type=int, default=32)
    many.add_argument("--seed", type=int, default=1)
    speed = kinds.add_parser("figures", help="speed, as JSON")
    speed.add_argument("--repeats", type=int, default=5)
    speed.add_argument("--requests", type=int, default=10_000, help="that memory is watched over")
    speed.add_argument("--out", type=Path, help="file that is written again after every figure")
    return parser
