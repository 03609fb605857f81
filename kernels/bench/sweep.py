"""`python -m kernels.bench.sweep`: which tiles are fastest on the GPU at hand.

Prints the best few of every product; the chosen ones are written into the kernels' tables by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import statistics
import sys
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
    found = list(sweep(given.rows, given.only.split(","), given.most, given.jobs, given.repeats))
    if given.json:
        print(json.dumps(found))
    return 0


def sweep(
    rows: int, only: Sequence[str], most: int, jobs: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """One object per tile that ran, `most` tiles of every product in random order."""
    compile_in_parallel(rows, only, most, jobs)
    for name, make, tiles in _asked(rows, only, most):
        timed = []
        for tile in tiles:
            try:
                times = clock.times_us(make(tile), repeats)
            except Exception as error:  # a tile that the compiler or the device refuses is a result
                print(f"{name} {tile}: {type(error).__name__}", file=sys.stderr)
                continue
            timed.append((statistics.median(times), tile))
            yield {"name": name, "rows": rows, "tile": repr(tile), "us": timed[-1][0]}
        timed.sort(key=lambda pair: pair[0])
        print(f"{name}, {rows} rows: {len(timed)} tiles", file=sys.stderr)
        for median_us, tile in timed[:_BEST]:
            print(f"  {median_us:8.2f} us  {tile}", file=sys.stderr)


def compile_in_parallel(rows: int, only: Sequence[str], most: int, jobs: int) -> None:
    """Fill Triton's cache on disk from `jobs` processes: compiling takes longer than timing."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_compile, args=(rows, only, most, part, jobs))
        for part in range(jobs)
        if jobs > 1
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _compile(rows: int, only: Sequence[str], most: int, part: int, jobs: int) -> None:
    for _, make, tiles in _asked(rows, only, most):
        for tile in tiles[part::jobs]:
            # What is refused here is refused, and reported, by the process that times.
            with contextlib.suppress(Exception):
                make(tile)[0]()


def _asked(rows: int, only: Sequence[str], most: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """Products whose name contains one of `only`, each with up to `most` of its tiles."""
    from kernels.bench import work

    for name, make, tiles in work.tunable(rows):
        if any(word in name for word in only):
            yield name, make, random.Random(0).sample(tiles, min(most, len(tiles)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.sweep", description=__doc__)
    parser.add_argument("--json", action="store_true", help="every tile as one JSON array")
    parser.add_argument("--rows", type=int, default=1, help="rows of a step")
    parser.add_argument("--repeats", type=int, default=5, help="replays of each graph")
    parser.add_argument("--most", type=int, default=100, help="tiles of each product")
    parser.add_argument("--jobs", type=int, default=4, help="processes that compile beforehand")
    parser.add_argument("--only", default="", help="words, with commas: products that contain one")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
