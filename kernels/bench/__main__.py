"""`python -m kernels.bench`: every kernel at the real shapes on the GPU at hand."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence

import torch

from kernels.bench import clock
from kernels.bench.amount import count
from kernels.bench.line import Line, table
from kernels.bench.shape import LINEARS


def main(arguments: Sequence[str] | None = None) -> int:
    """Time and print; exit status 2 and one sentence where nothing can be timed."""
    given = _parser().parse_args(arguments)
    sentence = refusal()
    if sentence is not None:
        print(sentence, file=sys.stderr)
        return 2
    ceiling = clock.copy_gb_s()
    lines = measure(given.rows, given.repeats, given.only.split(","), ceiling)
    if not lines:
        print(f"No kernel's name contains any of {given.only!r}.", file=sys.stderr)
        return 2
    if given.json:
        products = {rows: products_us(lines, rows) for rows in given.rows}
        plain = [line.plain() for line in lines]
        print(json.dumps({"machine": facts(ceiling), "lines": plain, "products_us": products}))
    else:
        print("  ".join(f"{name} {value}" for name, value in facts(ceiling).items()))
        print(table(lines))
        for rows in given.rows:
            total = products_us(lines, rows)
            if total is not None:
                print(f"all products of a layer, {rows} rows: {total:.1f} us")
    return 0


def refusal() -> str | None:
    """Why nothing can be timed here, or None."""
    if not torch.cuda.is_available():
        return "No CUDA device: kernels are timed on a GPU only."
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: there are no kernels to time."
    import triton

    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set: interpreted kernels have no times worth knowing."
    if torch.cuda.get_device_capability() < (8, 9):
        return "The GPU does not know FP8: the kernels need compute capability 8.9 or later."
    return None


def measure(rows: Sequence[int], repeats: int, only: Sequence[str], ceiling: float) -> list[Line]:
    """Lines of all work whose name contains one of `only`; `ceiling` in GB/s."""
    from kernels.bench import work

    lines = []
    for width in rows:
        for item in work.every(width):
            if any(word in item.name for word in only):
                times = clock.times_us(item.make(), repeats)
                lines.append(Line.of(item.name, item.rows, item.weight_bytes, times, ceiling))
    return lines


def products_us(lines: Sequence[Line], rows: int) -> float | None:
    """Time of all matrix products of a layer one after another, if all were timed."""
    names = {linear.name for linear in LINEARS} | {"experts chain"}
    found = {x.name: x.median_us for x in lines if x.rows == rows and x.name in names}
    return sum(found.values()) if len(found) == len(names) else None


def facts(ceiling: float) -> dict[str, object]:
    """What the numbers were taken on."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gb_s": round(ceiling, 1),
    }


def rows_of(text: str) -> list[int]:
    """Numbers of rows separated by commas; ValueError unless each is from 1 to 8."""
    widths = [int(word) for word in text.split(",")]
    if not all(1 <= width <= 8 for width in widths):
        raise ValueError(text)
    return widths


rows_of.__name__ = "rows"  # what argparse calls a value that it cannot read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rows", type=rows_of, default=[1, 6], help="rows of a step, e.g. 1,2,6")
    parser.add_argument("--repeats", type=count, default=15, help="replays of each graph")
    parser.add_argument("--only", default="", help="words, with commas: work that contains one")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
