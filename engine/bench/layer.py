"""`python -m engine.bench.layer`: a layer of a synthetic model, for `kernels.bench.peers` to read.

A few layers of every kind run as one step; its time over their number counts the output head too,
so the figure errs against this engine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from engine import lease
from engine.bench.answer import answered
from engine.config import EngineConfig

LAYERS = 6  # window alone twice, then both kinds of compression twice
CONTEXT = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a JSON object for every number of rows; exit status 2 or 3 as `engine.bench`."""
    given = _parser().parse_args(arguments)

    def tell() -> None:
        from engine.bench import synthetic  # Triton, which other machines may lack

        options = synthetic.Options(
            name=given.synthetic,
            layers=given.layers,
            contexts=(CONTEXT,),
            sections=("widths",),
            config=EngineConfig(dtype="bfloat16"),
        )
        with lease.held("engine.bench.layer"):
            result = synthetic.run(options, lambda line: print(line, file=sys.stderr))
        for line in lines(result):
            print(json.dumps(line))

    return answered(tell)


def lines(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The widths of a synthetic benchmark as times of one layer."""
    layers = result["layers"]
    return [
        {
            "op": "layer",
            "rows": width["rows"],
            "us": width["ms"] * 1e3 / layers,
            "note": f"{layers} layers as one step, context {CONTEXT}, output head included",
        }
        for width in result["contexts"][0]["widths"]
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench.layer", description=__doc__)
    parser.add_argument("--synthetic", metavar="NAME", default="k160", help="geometry (k160)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"the first ones ({LAYERS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
