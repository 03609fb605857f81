"""`python -m kernels.bench.sweep`: which tiles are fastest on the GPU at hand.

Prints the best few of every product; the chosen ones are written into the kernels' tables by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kernels.bench import clock
from kernels.bench.__main__ import refusal

_BEST = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the tiles of every product whose name contains `--only`, best first."""
    given = _parser().parse_args(arguments)
    sentence = refusal()
    if sentence is not None:
        print(sentence, file=sys.stderr)
        return 2
    found = list(sweep(given.rows, given.only, given.seconds, given.repeats))
    if given.json:
        print(json.dumps(found))
    return 0


def sweep(rows: int, only: str, seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """One object per tile that ran, at most `seconds` of every product in random order."""
    from kernels.bench import work

    for name, make, tiles in work.tunable(rows):
        if only not in name:
            continue
        started = time.monotonic()
        timed = []
        order = random.Random(0).sample(tiles, len(tiles))
        for tile in order:
            if time.monotonic() - started > seconds:
                break
            try:
                times = clock.times_us(make(tile), repeats)
            except Exception as error:  # a tile that the compiler or the device refuses is a result
                print(f"{name} {tile}: {type(error).__name__}", file=sys.stderr)
                continue
            timed.append((statistics.median(times), tile))
            yield {"name": name, "rows": rows, "tile": repr(tile), "us": timed[-1][0]}
        timed.sort(key=lambda pair: pair[0])
        print(f"{name}, {rows} rows: {len(timed)} of {len(tiles)} tiles", file=sys.stderr)
        for median_us, tile in timed[:_BEST]:
            print(f"  {median_us:8.2f} us  {tile}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.sweep", description=__doc__)
    parser.add_argument("--json", action="store_true", help="every tile as one JSON array")
    parser.add_argument("--rows", type=int, default=1, help="rows of a step")
    parser.add_argument("--repeats", type=int, default=5, help="replays of each graph")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each product")
    parser.add_argument("--only", default="", help="products whose name contains this")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
