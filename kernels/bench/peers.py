"""`python -m kernels.bench.peers`: our kernels beside other packages', from one call, with ratios.

Other packages are commands that are named here and kept elsewhere: --peer NAME=COMMAND.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from kernels.bench.__main__ import facts, measure, refusal, rows_of
from kernels.bench.amount import count, seconds
from kernels.bench.contest import OPERATIONS, OURS, Entry, Missing, lines, products, table
from kernels.bench.external import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Time and print; exit status 2 and one sentence where nothing of ours can be timed."""
    given = _parser().parse_args(arguments)
    sentence = refusal()
    if sentence is not None:
        print(sentence, file=sys.stderr)
        return 2
    from kernels.bench.bandwidth import read_gb_s

    before = read_gb_s()
    entries, missing = _own(given.rows, given.repeats, before)
    for name, command in given.ours:
        more, gaps = run(name, command, given.limit)
        entries += [Entry(e.operation, e.rows, OURS, e.us, e.note) for e in more]
        missing += gaps
    for name, command in given.peer:
        more, gaps = run(name, command, given.limit)
        entries += [e for e in more if e.rows in given.rows]
        missing += gaps
    machine: dict[str, Any] = facts(before) | {
        "read_gb_s": round(before, 1),
        "read_gb_s_after": round(read_gb_s(), 1),
    }
    show(machine, entries, missing, as_json=given.json)
    return 0


def show(
    machine: dict[str, Any], entries: list[Entry], missing: list[Missing], *, as_json: bool
) -> None:
    """Print the one table; as JSON, the same as one object, and the table on stderr."""
    found = lines(entries)
    text = "  ".join(f"{name} {value}" for name, value in machine.items())
    print(f"{text}\n{table(found, missing)}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        gaps = [{"who": gap.who, "what": gap.what, "why": gap.why} for gap in missing]
        sums = {
            rows: dict(zip(("ours_us", "best_peers_us"), products(found, rows), strict=True))
            for rows in sorted({x.rows for x in found})
        }
        body = {
            "machine": machine,
            "lines": [x.plain() for x in found],
            "products": sums,
            "not_run": gaps,
        }
        print(json.dumps(body, indent=1))


def _own(rows: Sequence[int], repeats: int, ceiling: float) -> tuple[list[Entry], list[Missing]]:
    """Our kernels, and PyTorch's products of the same shapes."""
    from kernels.bench import library

    entries = [
        Entry(line.name, line.rows, OURS, line.median_us)  # experts with the shared one beside
        for line in measure(rows, repeats, ("",), ceiling)
        if line.name in OPERATIONS
    ]
    found = [entry for width in rows for entry in library.entries(width, repeats)]
    torch.cuda.empty_cache()  # the peers' processes need the memory
    entries += [entry for entry in found if isinstance(entry, Entry)]
    return entries, [entry for entry in found if isinstance(entry, Missing)]


def _command(text: str) -> tuple[str, str]:
    name, mark, command = text.partition("=")
    if not (name and mark and command):
        raise ValueError(text)
    return name, command


def _peer(text: str) -> tuple[str, str]:
    name, command = _command(text)
    if name == OURS:
        raise argparse.ArgumentTypeError(f"{OURS!r} is no peer's name")
    return name, command


_command.__name__ = _peer.__name__ = (
    "NAME=COMMAND"  # what argparse calls a value that it cannot read
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.peers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--rows", type=rows_of, default=[1, 6], help="rows of a step, e.g. 1,2,6")
    parser.add_argument("--repeats", type=count, default=15, help="replays of each graph")
    parser.add_argument(
        "--peer", type=_peer, action="append", default=[], metavar="NAME=COMMAND",
        help="a command that times a package and prints or leaves JSON; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--ours", type=_command, action="append", default=[], metavar="NAME=COMMAND",
        help="the same for what is ours but not a kernel, a whole layer for instance",
    )  # fmt: skip
    parser.add_argument("--limit", type=seconds, default=120.0, help="seconds for each command")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
