"""A peer is a command of its own: it times a package and prints what it found as JSON.

It may print one JSON object a line, or leave files `*.json` with a list `rows` in the folder that
the variable OUT names. Nothing of it is imported, so whatever it needs stays out of this process.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kernels.bench.contest import Entry, Missing, read, short

Found = tuple[list[Entry], list[Missing]]
_MOST_BYTES = 64 << 20  # of what a command prints, or of a file that it leaves
_PAUSE_S = 0.05


def run(name: str, command: str, limit_s: float) -> Found:
    """Run a peer for at most `limit_s` seconds; what it left behind counts even if it failed."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [], [Missing(name, "all", f"not a command line: {error}")]
    if not words:
        return [], [Missing(name, "all", "an empty command")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        text, gone = _finish(name, words, Path(folder), limit_s)
        rows = [*_printed(text), *_left(Path(folder))]
    entries, missing = [], list(gone)
    for raw in rows:
        found = read(name, raw)
        if isinstance(found, Entry):
            entries.append(found)
        elif found is not None:
            missing.append(found)
    if not entries and not missing:
        missing.append(Missing(name, "all", "it printed no time that is known here"))
    return entries, missing


def _finish(name: str, words: list[str], folder: Path, limit_s: float) -> tuple[str, list[Missing]]:
    """What the command printed, and why it did not end well if it did not."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            # Files: a pipe would be held open by whatever the command leaves behind.
            process = subprocess.Popen(
                words, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                env={**os.environ, "OUT": str(folder)}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return "", [Missing(name, "all", f"{words[0]} did not start: {error.strerror}")]
        try:
            why = _awaited(process.pid, (out, err), limit_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the group is still its own
            status = process.wait()
        if not why and status:
            why = f"exit status {status}: {_last_words(err)}"
        return _text(out), [Missing(name, "the rest", why)] if why else []


def _awaited(pid: int, streams: Sequence[IO[bytes]], limit_s: float) -> str:
    """Wait for a child's end without reaping it; why it has to be ended, or nothing."""
    until = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            return f"the limit of {limit_s:g} s passed"
        if max(os.fstat(stream.fileno()).st_size for stream in streams) > _MOST_BYTES:
            return f"it printed more than {_MOST_BYTES >> 20} MiB"
        time.sleep(_PAUSE_S)
    return ""


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(_MOST_BYTES).decode(errors="replace")


def _last_words(stream: IO[bytes]) -> str:
    return short((_text(stream).strip().splitlines() or ["it said nothing"])[-1])


def _printed(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                continue  # prose that happens to start like an object


def _left(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.json")):
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                continue
            body = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(body, dict) and isinstance(body.get("rows"), list):
            yield from body["rows"]
