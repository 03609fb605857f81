"""`flywheel run --detach`: a daemon in a session of its own, and the wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flywheel.box.clock import utc_text
from flywheel.errors import FlywheelError
from flywheel.ledger import place
from flywheel.loop import ready
from flywheel.loop.glance import log_path

PREFIX = "flywheel: "
# A daemon that is neither ready nor gone after this long is adopting or waiting for something.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Detached:
    """A daemon that was left to itself. ``ready``: it holds its locks."""

    pid: int
    log: Path
    ready: bool


class StartError(FlywheelError):
    """The daemon ended before it was under way; carries its exit code and its own sentence."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def words(options: Mapping[str, object]) -> list[str]:
    """Options as the command line would have them: flags, repeated lists, nothing for None."""
    said: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            said.append(flag)
        elif isinstance(value, list | tuple):
            for one in value:
                said += [flag, str(one)]
        elif value is not None and value is not False:
            said += [flag, str(value)]
    return said


def start(ledger: Path, arguments: list[str], patience_s: float = PATIENCE_S) -> Detached:
    """Start `flywheel run` with these arguments and return once it holds its locks.

    Raises StartError with what it said and its own exit code when it ends before.
    """
    place.check(ledger)
    log = log_path(ledger)
    reader, writer = os.pipe()
    child: subprocess.Popen[bytes] | None = None
    try:
        with log.open("ab") as stream:
            stream.write(f"-- {utc_text()} flywheel run {' '.join(arguments)}\n".encode())
            stream.flush()
            began_bytes = stream.tell()
            child = subprocess.Popen(
                [sys.executable, "-m", "flywheel", "run", *arguments],
                env={**os.environ, ready.VARIABLE: str(writer), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                pass_fds=(writer,),
            )
        os.close(writer)
        writer = -1
        told = _listen(reader, patience_s)
    except OSError as error:
        raise FlywheelError(f"the daemon could not be started: {error}.") from error
    except KeyboardInterrupt:
        # Whoever takes the start back wants no loop that he cannot see.
        if child is not None:
            child.terminate()
        raise
    finally:
        for fd in (reader, writer):
            if fd >= 0:
                os.close(fd)
    if told == b"":
        _explain(child, log, began_bytes)
    return Detached(child.pid, log, told == ready.WORD)


def _listen(reader: int, patience_s: float) -> bytes | None:
    """The daemon's word; nothing when it ended without; None when it is still on its way."""
    os.set_blocking(reader, False)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            return os.read(reader, 64)
        except BlockingIOError:
            time.sleep(0.05)
    return None


def _explain(child: subprocess.Popen[bytes], log: Path, began_bytes: int) -> None:
    """Raise what an ended daemon said; one that ended well before it said ready has nothing to."""
    status = child.wait()
    if status == 0:
        return
    with log.open("rb") as stream:
        stream.seek(began_bytes)
        lines = stream.read().decode("utf-8", "replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith(PREFIX)), None)
    sentence = said.removeprefix(PREFIX) if said else f"the daemon ended at once; see {log}."
    raise StartError(sentence, status if status > 0 else 1)
