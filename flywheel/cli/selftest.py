"""`flywheel selftest`: the loop's own proof on this box."""

from __future__ import annotations

from typing import Annotated

import typer

from flywheel.cli.terminal import JsonOption


def selftest(
    faults: Annotated[
        bool, typer.Option("--faults", help="Inject every fault of the matrix; some minutes.")
    ] = False,
    crash: Annotated[
        int, typer.Option("--crash", min=0, help="Kill parts of a running loop so many times.")
    ] = 0,
    healthy: Annotated[
        int, typer.Option("--healthy", min=0, help="So many healthy runs under mild disturbance.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Only this fault, or this kind; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Where the random moments begin.")] = 1,
    json_: JsonOption = False,
) -> int:
    """Prove on this box that nothing dead is recorded, nothing runs twice and nothing is lost.

    Real processes, real signals and real files, in folders and ledgers of their own; neither the
    device's lease nor any ledger of yours is touched. Leaves with 1 when anything was missed.

    Example: flywheel selftest --faults --crash 20 --healthy 10
    """
    from flywheel.selftest import command

    return command.selftest(
        faults=faults, crash=crash, healthy_runs=healthy, only=only or (), seed=seed, json_=json_
    )
