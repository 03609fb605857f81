"""`python -m kernels.bench.sweep`: which tiles are fastest on the GPU at hand.

Prints the best few of every product as soon as it is done; the chosen ones are written into the
kernels' tables by hand. Tiles near those in use come first. Other processes compile ahead of the
one that times: they launch nothing, so the device is quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.bench import clock
from kernels.bench.__main__ import refusal
from kernels.bench.amount import count, seconds

_BEST = 6
_ENDLESS = 1e6  # seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the tiles of every product whose name contains `--only`, best first."""
    given = _parser().parse_args(arguments)
    sentence = refusal()
    if sentence is not None:
        print(sentence, file=sys.stderr)
        return 2
    ask = Ask(given.rows, tuple(given.only.split(",")), given.most)
    if not ask.names():
        print(f"No product's name contains any of {given.only!r}.", file=sys.stderr)
        return 2
    found = list(sweep(ask, given.jobs, given.repeats, given.seconds))
    if given.json:
        print(json.dumps(found))
    return 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Products whose name contains one of `only`, and `most` tiles of each."""

    rows: int
    only: tuple[str, ...]
    most: int

    def names(self) -> list[str]:
        """Of the products."""
        from kernels.bench import work

        names = [item.name for item in work.tunable(self.rows)]
        return [name for name in names if any(word in name for word in self.only)]

    def tiles(self, name: str) -> list[Any]:
        """Those of a product, the most promising first."""
        return _product(self.rows, name).nearest(self.most)


@dataclass(frozen=True, slots=True)
class Task:
    """One tile of a product; not begun after `until`, on the clock that processes share."""

    rows: int
    name: str
    tile: Any
    until: float

    @property
    def late(self) -> bool:
        """Whether there is no time left to begin."""
        return time.monotonic() > self.until


def tasks(ask: Ask, within_s: float) -> list[list[Task]]:
    """Of every product in turn; each has an equal share of the time."""
    names, start = ask.names(), time.monotonic()
    return [
        [Task(ask.rows, name, tile, start + within_s * (i + 1) / len(names)) for tile in tiles]
        for i, name in enumerate(names)
        if (tiles := ask.tiles(name))
    ]


def sweep(ask: Ask, jobs: int, repeats: int, within_s: float) -> Iterator[dict[str, Any]]:
    """One object per tile that ran; compiled by `jobs` processes, one product after the other."""
    products = tasks(ask, within_s)
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_only_compile) as pool:
        ready = pool.imap(_compile, [task for product in products for task in product])
        for product in products:
            yield from _timed(product, ready, repeats)


def _timed(
    product: Sequence[Task], ready: Iterator[bool], repeats: int
) -> Iterator[dict[str, Any]]:
    """Times of one product's tiles, each as soon as it is compiled; then the best are printed."""
    name, rows = product[0].name, product[0].rows
    make = None
    timed = []
    for task, compiled in zip(product, ready, strict=False):
        if task.late or not compiled:
            continue
        try:
            make = make or _product(rows, name).prepare(clock.MOST)
            times = clock.times_us(make(task.tile), repeats)
        except Exception as error:  # a tile that the compiler or the device refuses is a result
            print(f"{name} {task.tile}: {type(error).__name__}", file=sys.stderr)
            continue
        timed.append((statistics.median(times), task.tile))
        yield {"name": name, "rows": rows, "tile": repr(task.tile), "us": timed[-1][0]}
    timed.sort(key=lambda pair: pair[0])
    print(f"{name}, {rows} rows: {len(timed)} of {len(product)} tiles", file=sys.stderr)
    for median_us, tile in timed[:_BEST]:
        print(f"  {median_us:8.2f} us  {tile}", file=sys.stderr, flush=True)


def _only_compile() -> None:
    """From now on launches of this process end where a GPU would be asked."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compiled


def _compile(task: Task) -> bool:
    """Fill Triton's cache on disk for a tile; False if it is too late for that."""
    if task.late:
        return False
    # What is refused here is refused, and reported, by the process that times.
    with contextlib.suppress(Exception):
        _one(task.rows, task.name)(task.tile)[0]()
    return True


@functools.lru_cache(maxsize=1)
def _one(rows: int, name: str) -> Any:
    """Calls of a product over a single set of operands, for a tile."""
    return _product(rows, name).prepare(1)


def _product(rows: int, name: str) -> Any:
    from kernels.bench import work

    return next(item for item in work.tunable(rows) if item.name == name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.sweep", description=__doc__)
    parser.add_argument("--json", action="store_true", help="every tile as one JSON array")
    parser.add_argument("--rows", type=count, default=1, help="rows of a step")
    parser.add_argument("--repeats", type=count, default=5, help="replays of each graph")
    parser.add_argument("--most", type=count, default=100, help="tiles of each product")
    parser.add_argument("--seconds", type=seconds, default=_ENDLESS, help="time for all products")
    parser.add_argument("--jobs", type=count, default=4, help="processes that compile beforehand")
    parser.add_argument("--only", default="", help="words, with commas: products that contain one")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
