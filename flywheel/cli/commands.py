"""What the commands do once their options are read: everything that needs the ledger.

Apart from ``cli`` so that ``flywheel stop`` and ``--help`` answer without loading the statistics.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from flywheel import best, declared, doctor, priority, suite, synthetic
from flywheel.box.clock import SystemClock, Window, count, span_text
from flywheel.cli import forging, levers as cli_levers, notify as cli_notify, start as cli_start
from flywheel.cli.terminal import (
    FAILED,
    REFUSED,
    console,
    emit,
    error_console,
    named_path,
    open_ledger,
    sentence,
)
from flywheel.display.panel import Display, forgiven
from flywheel.errors import FlywheelError, UsageError
from flywheel.ledger import views
from flywheel.lever import Lever
from flywheel.loop import daemon
from flywheel.loop.order import (
    HEADS_COMMAND,
    Order,
    PatchOrder,
    Session,
    best_json,
)
from flywheel.patch.gates import PYTEST
from flywheel.propose.attempt import Terms
from flywheel.propose.proposer import parse_all
from flywheel.report import gather, tables
from flywheel.report.document import Document
from flywheel.run import launch
from flywheel.serve.server import SERVER_COMMAND
from flywheel.statistics.campaign import FULL, HEADS, QUICK, SEEKING

QUICK_TOKENS, FULL_TOKENS = 208, 256
QUICK_BUDGET_S = 14 * 60.0
QUICK_TIMEOUT_S, FULL_TIMEOUT_S = 600.0, 3600.0
ENGINE_VARIABLE = "FLYWHEEL_ENGINE"
PROFILE_VARIABLE = "FLYWHEEL_PROFILE"
PROFILE_COMMAND = (sys.executable, "-m", "engine.profile")
FIELDS_VARIABLE = "FLYWHEEL_FIELDS"
FIELDS_COMMAND = (sys.executable, "-m", "engine.fields")
SERVER_VARIABLE = "FLYWHEEL_SERVER"
HEADS_VARIABLE = "FLYWHEEL_HEADS"
_PYTEST_S, _PYTEST_REFUSED = 60.0, 4


def run(
    path: Path,
    *,
    quick: bool,
    checkpoint: Path | None,
    suite_file: Path | None,
    forged: forging.Asked,
    heads: bool,
    budget_hours: float | None,
    budget_runs: int | None,
    window: str | None,
    only: list[str] | None,
    new_campaign: bool,
    canaries: int,
    start: list[str] | None,
    gate_workers: int,
    gate_minutes: float,
    device_tests: str,
    notify: list[str] | None,
    proposers: list[str] | None,
    terms: Terms,
    json_: bool,
) -> int:
    """`flywheel run`."""
    if not path.parent.is_dir():
        raise UsageError(f"the folder of the ledger, {path.parent}, does not exist.")
    model = checkpoint_path(checkpoint)
    first_config = first(start or [], model)
    fields = command_from(FIELDS_VARIABLE, FIELDS_COMMAND)

    def tried(levers: Sequence[Lever]) -> tuple[Lever, ...]:
        if heads:
            return tuple(lever for lever in levers if lever.kind == "head")
        return tuple(lever for lever in levers if only or not (quick and lever.slow))

    def all_now(view: views.View) -> tuple[Lever, ...]:
        return tried(chosen(cli_levers.with_declared(path, view), only))

    # A mistake in what is declared is said at once.
    levers = chosen(cli_levers.known(path), only)
    if heads and only and not any(lever.kind == "head" for lever in levers):
        raise UsageError("--heads tries heads, and --only names none.")
    forging.check_tried(
        forged,
        tried=not canaries and any(lever.kind == "head" for lever in tried(levers)),
        why="leave --canaries out" if canaries else "--heads tries them",
    )
    hours = None if window is None else Window.parse(window)
    prompts = suite.load(suite_path(suite_file))
    asked = parse_all(proposers or ())
    # A short night that has somebody to ask goes on to ask him.
    short = SEEKING if asked else QUICK
    settings = HEADS if heads else short if quick else FULL
    chosen_prompts = prompts.quick() if quick else prompts.ids
    if start:
        cli_start.check(path, first_config, model, fields)
    # Canaries are counted, however long that takes.
    budget_s = QUICK_BUDGET_S if quick and not canaries else None
    order = Order(
        ledger=path,
        checkpoint=model,
        suite=prompts.path,
        prompts=chosen_prompts,
        max_new_tokens=QUICK_TOKENS if quick else FULL_TOKENS,
        settings=settings.of_canaries(canaries) if canaries else settings,
        budget_s=budget_s if budget_hours is None else budget_hours * 3600.0,
        budget_runs=budget_runs,
        window=hours,
        timeout_s=QUICK_TIMEOUT_S if quick else FULL_TIMEOUT_S,
        command=command_from(ENGINE_VARIABLE, launch.ENGINE_COMMAND),
        # A night of a few levers, by name, looks for no others.
        profile=() if only else command_from(PROFILE_VARIABLE, PROFILE_COMMAND),
        notify=cli_notify.targets(notify),
        proposers=asked,
        terms=terms,
        fields=fields,
        new_campaign=new_campaign,
        first_config=first_config,
        holdout=forging.holdout_of(forged, suite_file),
        heads=forging.head_order(
            # A night that goes on need not say again what the first began with.
            cli_start.first_of(path) or first_config, forged, suite_file,
            command_from(HEADS_VARIABLE, HEADS_COMMAND),
        ),
        server_command=command_from(SERVER_VARIABLE, SERVER_COMMAND),
        patches=patch_order(gate_workers, gate_minutes, device_tests),
    )
    if heads:
        forging.check_judges(order)
    forging.check(order, forged)
    clock = SystemClock()
    began_s = clock.monotonic_s()
    # With --json the page is for nobody, but the lines are still worth having on stderr.
    display = Display(error_console() if json_ else console())
    session = daemon.run(order, all_now, clock=clock, display=display)
    wall_s, session.cpu_s = clock.monotonic_s() - began_s, time.process_time()
    with contextlib.suppress(FlywheelError):
        levers = chosen(cli_levers.known(path), only)
    if heads:  # what it does not try is not next in its queue
        levers = tuple(lever for lever in levers if lever.kind == "head")
    document = _document(path, levers)
    # A terminal that is gone by now takes nothing from what the night was worth.
    with forgiven():
        if json_:
            report = {} if document is None else document.as_dict()
            emit({**report, "session": session_json(session, wall_s)})
        else:
            _print_session(session, wall_s)
            if document is not None:
                tables.render(document, console())
    if session.halted:
        return REFUSED
    nothing_good = session.runs > 0 and session.ok == 0 and not session.stopped
    return FAILED if session.failed or nothing_good else 0


def diagnose(path: Path, checkpoint: Path | None, suite_file: Path | None, *, json_: bool) -> int:
    """`flywheel doctor`."""
    found = doctor.diagnose(path, checkpoint_path(checkpoint), suite_path(suite_file))
    if json_:
        emit(found.to_json())
    else:
        console().print(found.table())
    return 0 if found.healthy else FAILED


def show_best(path: Path, *, json_: bool) -> int:
    """`flywheel best`."""
    found = _best(path)
    if json_:
        emit({**best_json(found, None), "first_config": dict(found.first_config)})
        return 0
    out = console()
    if not found.promotions:
        out.print("nothing was promoted yet; the best is the first configuration:")
    for name, value in sorted(found.config.items()):
        out.print(Text(f"{name} = {value!r}"))
    if not found.config:
        out.print("the engine's defaults")
    if found.promotions:
        out.print("made by " + ", ".join(f"D{number}" for number in found.promotions))
    return 0


def measured_checkpoint(path: Path) -> Path | None:
    """The checkpoint of the newest run: the best is the best of that model and of no other."""
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            runs = [run for block in views.load(connection).blocks() for run in block.runs]
            if not runs:
                return None
            config = views.manifest(connection, runs[-1].id).get("config", {})
    finally:
        opened.close()
    named = config.get("checkpoint")
    if not isinstance(named, str):
        return None
    # A ledger may have come from another box: then the embedded model stands in.
    there = Path(named).is_dir() or synthetic.name_of(named) is not None
    return Path(named) if there else None


def _best(path: Path) -> best.Best:
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            return best.fold(views.load(connection))
    finally:
        opened.close()


def checkpoint_path(given: Path | None) -> Path:
    """The checkpoint's folder, absolute, or the name of a synthetic model.

    Raises UsageError for what is neither.
    """
    if given is not None and synthetic.name_of(given) is not None:
        synthetic.check(given)
        return given
    return named_path(given or suite.engine_assets() / "tiny-v4", "--checkpoint")


def first(fields: list[str], model: Path) -> dict[str, object]:
    """The configuration that a new ledger starts from: FIELD=VALUE each.

    Raises UsageError for a model that is not there, and where a synthetic one would draft.
    """
    made_up = synthetic.name_of(model) is not None
    if not made_up and not (model / "config.json").is_file():
        raise UsageError(f"{model} is not a checkpoint: it has no config.json.")
    found: dict[str, object] = dict(synthetic.FIRST) if made_up else {}
    for text in fields:
        field, equals, value = text.partition("=")
        if not equals or not field.strip():
            raise UsageError(f"--start wants FIELD=VALUE, not {text!r}.")
        found[field.strip()] = declared.value_of(value.strip())
    if made_up and found["draft_width"] != 0:
        raise UsageError(f"{model} has random weights, which say nothing about drafts.")
    return found


def suite_path(given: Path | None) -> Path:
    """The suite's file, absolute."""
    return named_path(given or suite.embedded(suite.DEFAULT_SUITE), "--suite")


def patch_order(workers: int, minutes: float, device_tests: str) -> PatchOrder:
    """How a patch's tests are run; UsageError for what pytest would not take, hours from now."""
    device_tests = device_tests.strip()
    if device_tests:
        _check_expression(device_tests)
    if workers > 1 and importlib.util.find_spec("xdist") is None:
        raise UsageError("--gate-workers needs pytest-xdist (pip install pytest-xdist).")
    return PatchOrder(timeout_s=minutes * 60.0, workers=workers, device_tests=device_tests)


def _check_expression(text: str) -> None:
    """Ask pytest itself, in a folder without tests."""
    with tempfile.TemporaryDirectory() as folder:
        words = (*PYTEST, "--collect-only", "-c", os.devnull, "--rootdir", folder, "-k", text)
        try:
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=_PYTEST_S, check=False
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return  # the first gate will say
    if done.returncode == _PYTEST_REFUSED:
        said = [line for line in done.stderr.splitlines() if "error:" in line.lower()]
        why = said[-1].rpartition(f"{text}: ")[2] if said else "pytest does not take it"
        raise UsageError(f"--device-tests {text!r} is no expression of pytest's -k: {why}.")


def command_from(variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """The command in an environment variable, split as a shell would; else the default."""
    try:
        return tuple(shlex.split(os.environ.get(variable, ""))) or default
    except ValueError as error:
        raise UsageError(f"{variable} is not a command line: {error}.") from None


def chosen(levers: tuple[Lever, ...], only: list[str] | None) -> tuple[Lever, ...]:
    """The levers, or sweeps, that `--only` names; UsageError for a name that nothing has."""
    if not only:
        return levers
    names = {name for lever in levers for name in (lever.name, lever.sweep)}
    for name in only:
        if name not in names:
            raise UsageError(f"there is no lever named {name}; flywheel levers list shows them.")
    return tuple(lever for lever in levers if {lever.name, lever.sweep} & {*only})


def session_json(session: Session, wall_s: float) -> dict[str, Any]:
    """What this session did."""
    return {
        "started_utc": session.started_utc,
        "wall_s": round(wall_s, 3),
        "engine_s": round(session.engine_s, 3),
        "engine_share": round(session.engine_s / wall_s, 4) if wall_s > 0 else None,
        "daemon_cpu_s": round(session.cpu_s, 3),
        "daemon_cpu_share": round(session.cpu_s / wall_s, 4) if wall_s > 0 else None,
        "adopted": session.adopted,
        "runs": session.runs,
        "ok": session.ok,
        "reason": session.reason,
        "halted": session.halted,
    }


def _document(path: Path, levers: tuple[Lever, ...]) -> Document | None:
    """The report, or None while there is nothing to report on."""
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            if views.load(connection).campaign is None:
                return None
        return gather.gather(opened, levers, first=priority.read(path))
    finally:
        opened.close()


def _print_session(session: Session, wall_s: float) -> None:
    spent = f"{count(session.runs, 'run')} in {span_text(wall_s)}"
    if wall_s > 0:
        spent += (
            f", {session.engine_s / wall_s * 100:.1f} % of it in the engine; the loop itself used "
            f"{session.cpu_s / wall_s * 100:.1f} % of one core"
        )
    console().print(Text(f"{spent}. Stopped: {sentence(session.reason)}"))
