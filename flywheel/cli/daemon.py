"""`flywheel status | attach | stop | resume`: what one says to a daemon from any terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from flywheel.box import lease
from flywheel.box.clock import count, span_text, utc_text
from flywheel.cli.terminal import (
    DEFAULT_LEDGER,
    FAILED,
    JsonOption,
    LedgerOption,
    console,
    emit,
    error_console,
    ledger_path,
    one_line,
    open_ledger,
    sentence,
    who,
)
from flywheel.errors import UsageError
from flywheel.files import read_json
from flywheel.loop import glance, stop

GONE_PATIENCE_S = 30.0
# The status file is written every two seconds; a daemon this much later hangs, or its disk is full.
SILENT_S = 30.0


def status(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """What the loop is doing now, and what stands in its way.

    Example: flywheel status --json
    """
    path = ledger_path(ledger)
    told = glance.status(path)
    told["progress"] = _progress(path, told["daemon"].get("run") if told["running"] else None)
    told["phases"] = {} if told["running"] else _phases(path, told["open_runs"])
    if json_:
        emit(told)
        return 0
    out = console()
    for line in status_lines(told):
        out.print(Text(line))
    return 0


def at_once(arguments: Sequence[str]) -> int | None:
    """Answer a plain `status`; None for every other command line.

    To have the options read by typer takes longer than to find the answer.
    """
    if list(arguments[:1]) != ["status"]:
        return None
    words, json_ = list(arguments[1:]), False
    ledger = os.environ.get("FLYWHEEL_LEDGER") or DEFAULT_LEDGER
    while words:
        word = words.pop(0)
        if word == "--json":
            json_ = True
        elif word == "--ledger" and words and not words[0].startswith("-"):
            ledger = words.pop(0)
        else:
            return None
    return status(Path(ledger), json_)


def _progress(path: Path, run_id: object) -> dict[str, Any] | None:
    """How far the engine says it is with its run."""
    from flywheel.display.progress import Follower

    if not isinstance(run_id, str):
        return None
    run_dir = path.parent / "runs" / run_id
    nonce = (read_json(run_dir / "manifest.json") or {}).get("nonce")
    if not isinstance(nonce, str):
        return None
    found = Follower(run_dir / "run.log", nonce).look()
    return {"phase": found.phase, "done": found.done, "total": found.total}


def _phases(path: Path, runs: Sequence[str]) -> dict[str, str]:
    """What is seen from outside of runs that no loop watches."""
    if not runs:
        return {}
    from flywheel.run import launch

    return {run: launch.look(path.parent / "runs" / run).phase for run in runs}


def status_lines(told: dict[str, Any]) -> list[str]:
    """The answer as lines. Pure."""
    beat, lines = told["daemon"], []
    if told["running"]:
        since = beat.get("doing_since_utc") or beat.get("started_utc")
        lines.append(f"running: {beat.get('doing')}, since {since} (process {told['pid']})")
        if (beat.get("silent_s") or 0.0) > SILENT_S:
            lines.append(f"no sign of life for {span_text(beat['silent_s'])}")
        if beat.get("run"):
            lines.append(f"run: {beat['run']}{_progress_text(told['progress'])}")
        lines.append(f"so far: {count(int(beat.get('runs') or 0), 'run')}, {beat.get('ok')} good")
        if left := _left(beat):
            lines.append(f"left: {left}")
    else:
        last = f"; last: {beat['reason']}" if beat.get("reason") else ""
        lines.append(f"not running{last}")
    held = told["device"]
    lines.append(f"device: {'held, ' + str(held['purpose']) if held['held'] else 'free'}")
    if told["stop"]:
        lines.append(f"stop: {told['stop']}")
    for one in told["halts"]:
        lines.append(f"halted: {one['reason']} ({one['code']}, {one['created_utc']})")
    if told["halts"]:
        lines.append('to go on: flywheel resume --why "what it was"')
    phases = told.get("phases") or {}
    # The run that is under way was named above.
    open_runs = [run for run in told["open_runs"] if run != beat.get("run")]
    lines += [f"open run: {run}{_open_text(phases.get(run))}" for run in open_runs]
    if (campaign := told["campaign"]) is not None:
        state = f"ended: {campaign['ended']}" if campaign["ended"] else "open"
        lines.append(
            f"campaign: {campaign['label']}, {count(campaign['promotions'], 'promotion')} in "
            f"{count(campaign['tests'], 'test')}, {campaign['left']} left, {state}"
        )
    if (finding := told["finding"]) is not None:
        lines.append(f"last finding: F{finding['number']} {finding['sentence']}")
    if (last := told["faults"]["last"]) is not None:
        lines.append(
            f"faults while serving: {told['faults']['count']}; the last, {last['created_utc']}: "
            f"{last['what']} fault: {last['detail']}"
        )
    return lines


def _open_text(phase: str | None) -> str:
    """What becomes of a run that the ledger waits for while no loop watches it."""
    if phase is None:
        return ""
    now = "still running" if phase == "running" else "over"
    return f" ({now}; the next flywheel run enters it)"


def _progress_text(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return ""
    return f", {progress['phase']} {progress['done']}/{progress['total'] or '?'}"


def _left(beat: dict[str, Any]) -> str:
    words = []
    if beat.get("time_left_s") is not None:
        words.append(span_text(beat["time_left_s"]))
    if beat.get("budget_runs") is not None:
        words.append(count(max(0, beat["budget_runs"] - int(beat.get("runs") or 0)), "run"))
    if beat.get("window"):
        words.append(f"in the window {beat['window']}")
    return ", ".join(words)


def detach(path: Path, options: Mapping[str, object], *, json_: bool) -> int:
    """`flywheel run --detach`."""
    from flywheel.loop import detach as detached

    if not path.parent.is_dir():
        raise UsageError(f"the folder of the ledger, {path.parent}, does not exist.")
    began = detached.start(path, detached.words({**options, "ledger": path}))
    if json_:
        emit({"pid": began.pid, "ready": began.ready, "log": str(began.log)})
        return 0
    under_way = "under way" if began.ready else "still starting"
    out = console()
    out.print(Text(f"{under_way} as process {began.pid}; it writes to {began.log}"))
    out.print(Text("flywheel status, flywheel attach and flywheel stop reach it"))
    return 0


def attach(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Watch a running loop until it ends; Ctrl-C ends the watching and leaves the loop alone.

    Example: flywheel attach
    """
    from flywheel.display import watch
    from flywheel.display.panel import Display

    path = ledger_path(ledger)
    try:
        last = watch.attach(path, Display(error_console() if json_ else console()))
    except KeyboardInterrupt:
        last = None
    if json_:
        emit({"ledger": str(path), "ended": last is not None,
              "reason": None if last is None else last.get("reason")})  # fmt: skip
    elif last is None:
        console().print("no longer watching; the loop goes on")
    else:
        console().print(Text(sentence(watch.farewell(last))))
    return 0


def stop_(
    ledger: LedgerOption = Path("ledger.db"),
    now: Annotated[bool, typer.Option("--now", help="End the run in progress too.")] = False,
    json_: JsonOption = False,
) -> int:
    """Ask the loop to stop; it does within two seconds. A run in progress is left to finish.

    Example: flywheel stop --now
    """
    path = ledger_path(ledger)
    glance.require(path)
    held = lease.holder(lease.daemon_path(path))
    ended: list[str] = []
    gone = True
    if held is not None and held.identity is not None:
        stop.request(path, held.identity, now=now)
        gone = _wait_gone(path, GONE_PATIENCE_S)
        said = "stopped" if gone else f"{held} was asked to stop and has not finished yet"
    else:
        said = "nothing is running"
    # Also when the loop does not answer: its run is ended by its own supervisor.
    if now and (ended := _end_live_runs(path)):
        said = f"{said}; ended {', '.join(ended)}" if held else f"ended {', '.join(ended)}"
    if json_:
        emit({"said": said, "daemon": None if held is None else held.to_json(), "ended": ended,
              "stopped": gone})  # fmt: skip
    else:
        console().print(Text(sentence(said)))
    return 0 if gone else FAILED


def _wait_gone(path: Path, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if lease.holder(lease.daemon_path(path)) is None:
            return True
        time.sleep(0.1)
    return False


def _end_live_runs(path: Path) -> list[str]:
    """End every live run of this ledger: another one beside it may have its runs there too."""
    from flywheel.box import identity
    from flywheel.run import launch

    ended = []
    mine = [path.parent / "runs" / run for run in glance.history(path)["open_runs"]]
    for run_dir in (*mine, *_being_made(path)):
        state = launch.look(run_dir)
        orphaned = state.phase == "lost" and state.engine is not None and bool(
            identity.group_members(state.engine)
        )
        if state.phase == "running" or orphaned:
            launch.end(run_dir)
            # Runs side by side are called alike.
            made = run_dir.parent.parent.parent.name == "forge"
            ended.append(f"{run_dir.parent.name}/{run_dir.name}" if made else run_dir.name)
    return ended


def _being_made(path: Path) -> list[Path]:
    """Runs that make heads or gate patches; none while the loop of a ledger beside may own them."""
    beside = (p for p in path.parent.glob("*.daemon.lock") if p != lease.daemon_path(path))
    if any(lease.holder(lock) is not None for lock in beside):
        return []
    return sorted((path.parent / "forge").glob("runs/*/*"))


def resume(
    why: Annotated[
        str, typer.Option("--why", help="What it was, and what was done about it; recorded.")
    ],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Lift the halts that stand, with a reason that is recorded beside them.

    Example: flywheel resume --why "a backup ran at 03:10; moved to noon"
    """
    why = one_line(why)
    if not why:
        raise UsageError("--why wants the reason in words: it is recorded.")
    path = ledger_path(ledger)
    opened = open_ledger(path, writing=True)
    from flywheel.ledger import halts

    try:
        lifted = halts.resume(opened, f"{who()}: {why}", utc_text())
    finally:
        opened.close()
    if json_:
        emit({"lifted": [{"id": one.id, "code": one.code, "reason": one.reason,
                          "run_id": one.run_id, "created_utc": one.created_utc}
                         for one in lifted]})  # fmt: skip
        return 0
    out = console()
    for one in lifted:
        out.print(Text(f"lifted: {one.reason} ({one.code}, {one.created_utc})"))
    out.print(Text("nothing was halted" if not lifted else "flywheel run goes on now"))
    return 0
