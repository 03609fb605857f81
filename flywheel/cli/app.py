"""The command line: `flywheel run | report | serve` and what one needs around them.

It reads options and hands them on; a FlywheelError becomes one sentence on stderr and its exit
code.  ``commands`` is imported by the command that needs it, so that `flywheel stop` is quick.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flywheel.cli import (
    add as cli_add,
    chat as cli_chat,
    daemon as cli_daemon,
    heads as cli_heads,
    imports as cli_import,
    ledger as cli_ledger,
    levers as cli_levers,
    mcp as cli_mcp,
    notify as cli_notify,
    propose as cli_propose,
    readjudicate as cli_readjudicate,
    report as cli_report,
    selftest as cli_selftest,
    steer as cli_steer,
    sweep as cli_sweep,
    width as cli_width,
)
from flywheel.cli.notify import TargetsOption
from flywheel.cli.propose import (
    ATTEMPTS,
    TIMEOUT_S,
    AttemptsOption,
    EnvironmentOption,
    NetworkOption,
    ProposersOption,
    TimeoutOption,
)
from flywheel.cli.terminal import (
    FAILED,
    WRONG,
    JsonOption,
    LedgerOption,
    emit,
    ledger_path,
    require_text,
    sentence,
)
from flywheel.errors import FlywheelError

INTERRUPTED = 130

app = typer.Typer(
    name="flywheel",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes one box's model decode faster, one measured change at a time.\n\n"
    "flywheel doctor, then flywheel run, then flywheel report, then flywheel serve.",
)
cli_levers.app.command("add")(cli_add.add)
cli_levers.app.command("sweep")(cli_sweep.sweep)
cli_levers.app.command("price")(cli_steer.price)
cli_levers.app.command("defer")(cli_steer.defer)
cli_levers.app.command("reopen")(cli_steer.reopen)
cli_levers.app.command("why-next")(cli_steer.why_next)
cli_levers.app.command("propose")(cli_propose.propose)
cli_levers.app.command("attempts")(cli_propose.attempts)
app.add_typer(cli_levers.app, name="levers")
app.add_typer(cli_ledger.app, name="ledger")
app.add_typer(cli_heads.app, name="heads")
app.add_typer(cli_import.app, name="import")
cli_report.app.command("width")(cli_width.width)
app.add_typer(cli_report.app, name="report")
app.command()(cli_readjudicate.readjudicate)

CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", help="The model's folder, or synthetic:NAME; else the embedded small one.",
    ),
]
SuiteOption = Annotated[
    Path | None, typer.Option("--suite", help="The suite of prompts; the embedded one by default.")
]


@app.command()
def run(
    ledger: LedgerOption = Path("ledger.db"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A 14-minute campaign under a quick ruler of its own.")
    ] = False,
    checkpoint: CheckpointOption = None,
    suite_file: SuiteOption = None,
    holdout: Annotated[
        Path | None,
        typer.Option("--holdout", help="Prompts that guard heads; the embedded suite has its own."),
    ] = None,
    head_suite: Annotated[
        Path | None,
        typer.Option(
            "--head-suite",
            help="What heads are judged on: --suite, or on a GPU an embedded one of 191 prompts.",
        ),
    ] = None,
    head_chats: Annotated[
        Path | None,
        typer.Option(
            "--head-chats",
            help="Prompts that heads learn from, JSON lines of category, messages, licence and "
            "source; else the embedded generators.",
        ),
    ] = None,
    head_prompts: Annotated[
        int | None,
        typer.Option(
            "--head-prompts", min=1,
            help="Prompts a category that heads learn from: 64, and 256 on a GPU.",
        ),
    ] = None,
    head_recipe: Annotated[
        str,
        typer.Option(
            "--head-recipe",
            help="JSON that every head's recipe begins with; on a GPU wider and more steps.",
        ),
    ] = "{}",
    heads_at_once: Annotated[
        int, typer.Option("--heads-at-once", min=1, max=64, help="Train so many side by side.")
    ] = 1,
    budget_hours: Annotated[
        float | None, typer.Option("--budget-hours", min=0.001, max=1e4, help="Stop after so long.")
    ] = None,
    budget_runs: Annotated[
        int | None, typer.Option("--budget-runs", min=1, help="Stop after this many engine runs.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", help="Start runs only in these hours, local time: 22:00-07:00."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Try only this lever; may be repeated.")
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Try only draft heads: train, archive, measure, judge.")
    ] = False,
    new_campaign: Annotated[
        bool,
        typer.Option("--new-campaign", help="Declare a new epoch."),
    ] = False,
    canaries: Annotated[
        int,
        typer.Option(
            "--canaries", min=0, max=10_000,
            help="Try only so many null levers: the loop's own rate of false promotions here.",
        ),
    ] = 0,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--start", help="A field of the first configuration of a new ledger: FIELD=VALUE.",
        ),
    ] = None,
    gate_workers: Annotated[
        int,
        typer.Option("--gate-workers", min=1, max=256, help="Processes for a patch's tests."),
    ] = 1,
    gate_minutes: Annotated[
        float,
        typer.Option("--gate-minutes", min=0.1, max=1e4, help="Limit of one set of those tests."),
    ] = 60.0,
    device_tests: Annotated[
        str,
        typer.Option(
            "--device-tests", help="Which of a patch's tests on the device to run, as pytest -k.",
        ),
    ] = "",
    notify: TargetsOption = None,
    proposer: ProposersOption = None,
    proposer_attempts: AttemptsOption = ATTEMPTS,
    proposer_timeout_s: TimeoutOption = TIMEOUT_S,
    proposer_network: NetworkOption = False,
    proposer_env: EnvironmentOption = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Go on in a session of its own; return once under way."),
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Try one change at a time: measure, decide, record. Unattended.

    Ctrl-C ends the run in progress cleanly and prints the report.

    Example: flywheel run --budget-hours 8 --window 22:00-07:00 --detach
    """
    options = {
        "quick": quick, "checkpoint": checkpoint, "suite": suite_file,
        "holdout": holdout, "head_suite": head_suite, "head_chats": head_chats,
        "head_prompts": head_prompts, "head_recipe": head_recipe,
        "heads_at_once": heads_at_once,
        "heads": heads,
        "budget_hours": budget_hours, "budget_runs": budget_runs, "window": window,
        "only": only, "new_campaign": new_campaign, "canaries": canaries or None, "start": start,
        "gate_workers": gate_workers, "gate_minutes": gate_minutes,
        "device_tests": device_tests or None,
        "notify": notify, "proposer": proposer, "proposer_attempts": proposer_attempts,
        "proposer_timeout_s": proposer_timeout_s, "proposer_network": proposer_network,
        "proposer_env": proposer_env,
    }  # fmt: skip
    if detach:
        return cli_daemon.detach(ledger_path(ledger), options, json_=json_)
    from flywheel.cli import commands, forging

    return commands.run(
        ledger_path(ledger),
        quick=quick,
        checkpoint=checkpoint,
        suite_file=suite_file,
        forged=forging.Asked(
            suite=head_suite, holdout=holdout, chats=head_chats, prompts=head_prompts,
            recipe=forging.recipe_of(head_recipe), at_once=heads_at_once,
        ),
        heads=heads,
        budget_hours=budget_hours,
        budget_runs=budget_runs,
        window=window,
        only=only,
        new_campaign=new_campaign,
        canaries=canaries,
        start=start,
        gate_workers=gate_workers,
        gate_minutes=gate_minutes,
        device_tests=device_tests,
        notify=notify,
        proposers=proposer,
        terms=cli_propose.terms(
            proposer_attempts, proposer_timeout_s, proposer_network, proposer_env
        ),
        json_=json_,
    )


@app.command("serve")
def serve_(
    ledger: LedgerOption = Path("ledger.db"),
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8000,
    checkpoint: CheckpointOption = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Serve this file's configuration instead.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Serve the best as it stood after decision D7.")
    ] = None,
    run_window: Annotated[
        str | None,
        typer.Option(
            "--run-window",
            help="In these hours (local time, 22:00-07:00) flywheel run has the device instead.",
        ),
    ] = None,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-s", min=0, max=3600, help="At the end, seconds for answers in progress."
        ),
    ] = 30.0,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="Clients must send this file's text as their API key."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A web origin whose pages may read answers."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", min=1, help="Replies generated together.")
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="Requests that may wait.")
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option("--memory-mb", min=0, help="MiB for beginnings of prompts.")
    ] = None,
    run_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- RUN OPTIONS]", help="Options for flywheel run in the window."),
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Host the best configuration so far for real clients, until Ctrl-C.

    It answers nobody before it has given again, token by token, what the ledger has on record. HUP
    makes it look for a newer best.

    Example: flywheel serve --port 8000 --run-window 22:00-07:00 -- --budget-runs 40
    """
    from flywheel.cli import serving
    from flywheel.loop.detach import words
    from flywheel.serve.address import Address

    options = {"origin": origin, "clients": clients, "queue": queue, "memory_mb": memory_mb}
    return serving.serve(
        ledger_path(ledger),
        Address(host, port),
        checkpoint=checkpoint,
        config=config,
        at=at,
        run_window=run_window,
        drain_s=drain_s,
        run_arguments=run_arguments or [],
        key_file=None if key_file is None else key_file.expanduser().resolve(),
        options=words(options),
        json_=json_,
    )


app.command("chat")(cli_chat.chat)
app.command("status")(cli_daemon.status)
app.command("attach")(cli_daemon.attach)
app.command("stop")(cli_daemon.stop_)
app.command("resume")(cli_daemon.resume)
app.command("selftest")(cli_selftest.selftest)
app.command("notify")(cli_notify.notify)
app.command("mcp")(cli_mcp.mcp)


@app.command("doctor")
def doctor_(
    ledger: LedgerOption = Path("ledger.db"),
    checkpoint: CheckpointOption = None,
    suite_file: SuiteOption = None,
    json_: JsonOption = False,
) -> int:
    """Is this box fit to run the loop? Changes nothing.

    Example: flywheel doctor --checkpoint /models/deepseek-v4-flash
    """
    from flywheel.cli import commands

    return commands.diagnose(ledger_path(ledger), checkpoint, suite_file, json_=json_)


@app.command("best")
def best_(
    ledger: LedgerOption = Path("ledger.db"),
    checkout: Annotated[
        bool,
        typer.Option("--checkout", help="Print how to take its patches into a branch of yours."),
    ] = False,
    json_: JsonOption = False,
) -> int:
    """The best configuration so far: a fold of the decisions.

    Patches that won are commits under refs/flywheel/patches; no branch of yours is ever touched.

    Example: flywheel best --checkout
    """
    from flywheel.cli import checkout as cli_checkout, commands

    path = ledger_path(ledger)
    if checkout:
        return cli_checkout.show(path, json_=json_)
    return commands.show_best(path, json_=json_)


# Newer typer carries its own copy of click, older ones import it; this finds either's base class.
_ClickError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code and never lets a traceback out for a user's mistake."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_streams()
    try:
        for word in arguments:
            require_text(word)
        if (answered := cli_daemon.at_once(arguments)) is not None:
            return answered
        command = typer.main.get_command(app)
        result = command.main(args=arguments, prog_name="flywheel", standalone_mode=False)
    except FlywheelError as error:
        return _fail(str(error), error.exit_code, arguments)
    except _ClickError as error:
        said = str(error.format_message())  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(said + "\n")
            return WRONG
        return _fail(said, WRONG, arguments)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", FAILED, arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", FAILED, arguments)
    if result == INTERRUPTED:  # how typer reports a Ctrl-C that no command caught
        return _fail("interrupted", FAILED, arguments)
    return result if isinstance(result, int) else 0


def _open_streams() -> None:
    """Standard streams that were closed lead nowhere: else the next file opened would be one.

    One that has no bytes for a letter gets a question mark, not a traceback.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null == fd:
                os.set_inheritable(fd, True)
            else:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - for all time
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fail(text: str, code: int, arguments: list[str]) -> int:
    sys.stderr.write(f"flywheel: {sentence(text)}\n")
    if "--json" in arguments:
        with contextlib.suppress(OSError):  # stdout itself may be what failed
            emit({"error": sentence(text), "exit_code": code})
    return code


__all__ = ["app", "main"]
