"""`python -m engine.bench.steps`: what choices of a configuration cost or save inside a step.

A launch that is fast alone may be slow beside its neighbours, so a choice is timed where it is
used: steps of a synthetic model, those of every choice taking turns within one load. For people who
look for levers; verdicts come from `flywheel run`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from engine import lease
from engine.bench import machine
from engine.bench.answer import answered
from engine.config import CHOICES, RANGES, EngineConfig
from engine.errors import ConfigError
from engine.state import TILE

if TYPE_CHECKING:
    from engine.device.launches import Launches
    from engine.device.seat import Seat
    from engine.device.weights import Weights
    from engine.geometry import Geometry

LAYERS = 20  # their weights are many times what a cache holds, and all choices fit one load
CONTEXT, START = 1024, 64
TURNS, REPEATS = 12, 5
LEAST_CONTEXT = START + (REPEATS + 2) * TILE  # no step may leave the memory of its state
BASE = "as it is"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    name: str
    layers: int
    rows: tuple[int, ...]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of one choice, by their rows: the median, and what it adds to a layer."""

    choice: str
    us: dict[int, float]
    layer_us: dict[int, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for every choice; exit status 2 or 3 as `engine.bench`."""
    given = _parser().parse_args(arguments)
    options = Options(given.synthetic, given.layers, given.rows, tuple(given.choice))

    def tell() -> None:
        # A slip of the pen is told although somebody else holds the device.
        choices = {choice: parsed(choice) for choice in options.choices}
        with lease.held("engine.bench.steps"), torch.inference_mode():
            found = run(options, choices)
        if given.json:
            told = {"layers": options.layers, "machine": machine.facts(), "result": as_json(found)}
            print(json.dumps(told))
        else:
            show(found)

    return answered(tell)


def parsed(choice: str) -> dict[str, Any]:
    """Fields of a choice `field=value field=value`, where a tile's value has `=` of its own.

    Raises ConfigError for what is no field, or no value of it.
    """
    fields: dict[str, Any] = {}
    for part in choice.split():
        name, sign, value = part.partition("=")
        if not sign:
            raise ConfigError(f"A choice is FIELD=VALUE, several apart by spaces; got {part!r}.")
        if name in fields:
            raise ConfigError(f"The choice {choice!r} names {name} twice.")
        fields[name] = _value(name, value)
    if not fields:
        raise ConfigError("A choice is FIELD=VALUE, several apart by spaces; got none.")
    EngineConfig.parse(fields)
    return fields


def _value(name: str, text: str) -> str | int | float:
    """Numbers for the fields that have a range."""
    if name in CHOICES or name not in RANGES:
        return text
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise ConfigError(f"{name} takes a number; got {text!r}.") from None


def run(options: Options, choices: Mapping[str, Mapping[str, Any]]) -> list[Timed]:
    """Time the engine as it is and every one of `choices`, in turns that are drawn anew each time.

    Raises ConfigError and DeviceError where it cannot run, before anything is made.
    """
    from engine.device import memory, requirement, synthetic
    from engine.device.operations import Operations
    from engine.device.tiles import Tiles

    geometry = synthetic.geometry(options.name, options.layers)
    configs = {BASE: _config(geometry, {})}
    configs |= {choice: _config(geometry, fields) for choice, fields in choices.items()}
    device = requirement.device()
    for config in configs.values():
        Operations.kernels(device, Tiles(config, geometry))
    if device.type != "cuda":
        raise ConfigError("Steps are timed on a GPU; here kernels are interpreted.")
    for config in configs.values():
        memory.check(geometry, config, device)
    weights = synthetic.generate(geometry, device=device)
    steps: dict[tuple[str, int], tuple[Seat, Launches[Any]]] = {}
    for choice, config in configs.items():
        print(choice, file=sys.stderr)
        with Tiles(config, geometry).answered():
            seat = _seat(geometry, weights, config)
            for rows in options.rows:
                seat.warm(rows)
                steps[choice, rows] = (seat, seat.steps(rows, sampled=False, drafting=False))
    times: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
    dice = random.Random(1)
    for _ in range(TURNS):
        for key in dice.sample(list(steps), len(steps)):
            times[key].append(_us(*steps[key]))
    return compared(list(configs), options, times)


def compared(
    choices: Sequence[str], options: Options, times: Mapping[tuple[str, int], Sequence[float]]
) -> list[Timed]:
    """Medians of `times` by choice and rows, each beside that of the engine as it is."""
    medians = {key: statistics.median(values) for key, values in times.items()}
    found = []
    for choice in choices:
        us = {rows: medians[choice, rows] for rows in options.rows}
        apart = {rows: (us[rows] - medians[BASE, rows]) / options.layers for rows in options.rows}
        found.append(Timed(choice, us, apart))
    return found


def _config(geometry: Geometry, fields: Mapping[str, Any]) -> EngineConfig:
    """A decode step's configuration with `fields`; ConfigError where no step of it is timed."""
    asked = {"backend": "triton", "dtype": "bfloat16", "context": CONTEXT}
    config = EngineConfig.parse({**asked, **fields}).effective(geometry, cores=1)
    if config.backend != "triton":
        raise ConfigError(f"Steps are of backend 'triton'; a choice asks for {config.backend!r}.")
    if config.context < LEAST_CONTEXT:
        raise ConfigError(
            f"A timed step needs a context of at least {LEAST_CONTEXT}; got {config.context}."
        )
    return config


def _seat(geometry: Geometry, weights: Weights, config: EngineConfig) -> Seat:
    """Where steps of a configuration run, a short context behind them."""
    from engine.device.backend import layers_of, seat_of
    from engine.device.draft import DraftHead
    from engine.device.launches import Tally

    layers = layers_of(geometry, weights, config)
    seat = seat_of(layers, DraftHead(layers), config, Tally())
    dice = torch.Generator(weights.embed.device).manual_seed(1)
    ids = torch.randint(geometry.vocab_size, (TILE,), generator=dice, device=dice.device)
    seat.place(ids)
    return seat


def _us(seat: Seat, launches: Launches[Any]) -> float:
    """Microseconds of one step, of REPEATS one after the other."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seat.store.position.fill_(START)
    launches()
    first.record()
    for _ in range(REPEATS):
        launches()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / REPEATS * 1e3


def as_json(found: Sequence[Timed]) -> list[dict[str, Any]]:
    """Plain values."""
    return [
        {"choice": x.choice, "rows": rows, "us": us, "layer_us": x.layer_us[rows]}
        for x in found
        for rows, us in x.us.items()
    ]


def show(found: Sequence[Timed]) -> None:
    """A table: a column for every number of rows."""
    table = Table(box=None, header_style="bold")
    table.add_column("choice", overflow="fold")
    for rows in found[0].us:
        table.add_column(f"{rows} rows, us", justify="right")
        table.add_column("a layer", justify="right")
    for one in found:
        cells = [(f"{us:.1f}", f"{one.layer_us[rows]:+.2f}") for rows, us in one.us.items()]
        table.add_row(one.choice, *itertools.chain(*cells))
    Console().print(table)


def _rows(text: str) -> tuple[int, ...]:
    words = text.split(",")
    numbers = tuple(int(word) for word in words if word.isdigit() and 1 <= int(word) <= TILE)
    if len(numbers) != len(words):
        raise argparse.ArgumentTypeError(f"numbers from 1 to {TILE}, such as 1,6; got {text!r}")
    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.bench.steps",
        description=__doc__.partition(": ")[2],
        epilog="example: --choice tile_down=columns=16 --choice 'shared_expert=stream graph=on'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--synthetic", metavar="NAME", default="k160", help="geometry (k160)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"the first ones ({LAYERS})")
    parser.add_argument(
        "--rows", type=_rows, default=(1, 6), help="of a step, commas between (1,6)"
    )
    parser.add_argument(
        "--choice", action="append", default=[], metavar="FIELD=VALUE",
        help="fields of the configuration, spaces between; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser
