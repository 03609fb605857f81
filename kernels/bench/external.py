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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels.bench.contest import Entry, Missing, read

Found = tuple[list[Entry], list[Missing]]


def run(name: str, command: str, limit_s: float) -> Found:
    """Run a peer for at most `limit_s` seconds; what it left behind counts even if it failed."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [], [Missing(name, "all", f"not a command line: {error}")]
    if not words:
        return [], [Missing(name, "all", "an empty command")]
    with tempfile.TemporaryDirectory() as folder:
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
    try:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env={**os.environ, "OUT": str(folder)}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return "", [Missing(name, "all", f"{words[0]} did not start: {error.strerror}")]
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return _text(out), [Missing(name, "the rest", f"the limit of {limit_s:g} s passed")]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode == 0:
        return _text(out), []
    last = (_text(err).strip().splitlines() or ["it said nothing"])[-1][:200]
    return _text(out), [Missing(name, "the rest", f"exit status {process.returncode}: {last}")]


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _printed(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue  # prose that happens to start like an object


def _left(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.json")):
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(body, dict) and isinstance(body.get("rows"), list):
            yield from body["rows"]
