"""`flywheel levers sweep`: declare a field with several values, of which the best is confirmed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from flywheel import declared
from flywheel.cli import levers
from flywheel.cli.terminal import JsonOption, LedgerOption, console, emit, ledger_path
from flywheel.errors import LeverError, UsageError
from flywheel.sweep import Sweep


def sweep(
    name: Annotated[str, typer.Argument(help="A new name.")],
    field: Annotated[str, typer.Argument(help="The field of the configuration.")],
    claim: Annotated[str, typer.Option("--claim", help="Why a value should be faster.")],
    falsify: Annotated[str, typer.Option("--falsify", help="What would show that none is.")],
    predicted_gain: Annotated[
        float, typer.Option("--predicted-gain", help="Fraction of time that the best saves.")
    ],
    ledger: LedgerOption = Path("ledger.db"),
    values: Annotated[
        str | None, typer.Option("--values", help="All of them are screened: 16,32,64.")
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option("--between", help="Two ends; values between them are chosen as it goes."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Equal ratios count alike.")] = False,
    trials: Annotated[int, typer.Option("--trials", help="At most so many values.")] = 8,
    ceiling: Annotated[
        float | None, typer.Option("--ceiling", help="A bound on the gain, if one is known.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="One engine load cannot hold two values.")
    ] = False,
    needs: Annotated[
        list[str] | None,
        typer.Option("--needs", help="What an incumbent must be: torch, triton or drafts."),
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Declare a sweep, next to the ledger: every value is screened, one is confirmed.

    Example: flywheel levers sweep chunk prefill_chunk --between 16 1024 --log
    --claim "longer chunks warm the caches" --falsify "no value is faster" --predicted-gain 0.01
    """
    path = ledger_path(ledger)
    words = [word.strip() for word in values.split(",")] if values is not None else []
    if "" in words:
        raise UsageError(f"--values wants one value or more between commas, not {values!r}.")
    low, high = (declared.value_of(end) for end in between) if between else (None, None)
    try:
        made = Sweep(
            name=name,
            field=field,
            claim=claim,
            falsify=falsify,
            predicted_gain=predicted_gain,
            values=tuple(declared.value_of(word) for word in words),
            low=low,  # type: ignore[arg-type]
            high=high,  # type: ignore[arg-type]
            log=log,
            trials=trials,
            ceiling=ceiling,
            hot=not cold,
            needs=tuple(needs or ()),
        )
        taken = {x.name for x in levers.known(path)} | {s.name for s in declared.sweeps(path)}
        where = declared.add_sweep(path, made, tuple(taken))
    except LeverError as error:
        raise UsageError(str(error)) from error
    if json_:
        emit({**made.to_json(), "search": made.search, "file": str(where)})
    else:
        kind = f"a search of {trials} values" if made.search else f"{len(made.values)} values"
        console().print(Text(f"declared {name}: {field}, {kind}, in {where}"))
    return 0
