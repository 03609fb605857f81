"""A live proof: the server, given a head, must take exactly the rounds that were measured with it.

The server is started from a staged file as `flywheel serve` would start it from `best.json`, is
asked prompts of the suite over HTTP, and its own counters are read. Anything else but the measured
counts is a failure, and the head does not go into service.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel import suite
from flywheel.box import identity
from flywheel.errors import HeadError
from flywheel.files import dump, read_json, write_atomic
from flywheel.statistics.block import PromptRounds

STAGED = "staged.json"
PROMPTS = 2
READY_S, ANSWER_S, GRACE_S = 600.0, 600.0, 10.0
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)")
_COUNTER = re.compile(r"^flywheel_(verifies|round_tokens)_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a head was measured to do with a few prompts: tokens after the first, and rounds."""

    prompts: tuple[str, ...]
    tokens: int
    rounds: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"prompts": list(self.prompts), "tokens": self.tokens, "rounds": self.rounds}


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the served head is the measured one; `seen` is what the server counted."""

    wanted: Signature
    seen: Signature | None
    detail: str

    @property
    def holds(self) -> bool:
        """The same counts, exactly."""
        return self.seen == self.wanted


def signature(rows: Sequence[PromptRounds], chats: Mapping[str, Mapping[str, Any]]) -> Signature:
    """The shortest few prompts of the suite that a chat request can ask as they were measured.

    Of no prompts where there is none.
    """
    usable = [r for r in rows if not r.held_out and suite.askable(chats.get(r.prompt, {}))]
    chosen = sorted(usable, key=lambda r: (r.made, r.prompt))[:PROMPTS]
    return Signature(
        tuple(r.prompt for r in chosen), sum(r.made for r in chosen),
        sum(r.candidate for r in chosen),
    )  # fmt: skip


def chats_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """A suite file's prompts by id."""
    body = read_json(path) or {}
    return {str(entry["id"]): entry for entry in body.get("prompts", ())}


def prove(
    staged: Mapping[str, Any],
    folder: Path,
    wanted: Signature,
    chats: Mapping[str, Mapping[str, Any]],
    *,
    max_new_tokens: int,
    command: tuple[str, ...],
    stopped: Callable[[], bool] = lambda: False,
) -> Proof:
    """Serve what `staged` says from `folder` and ask it; whatever goes wrong is the proof's detail.

    The caller holds the device.
    """
    if not wanted.prompts:
        said = "no prompt of the suite can be asked of a server as it was measured"
        return Proof(wanted, None, said)
    path = folder / STAGED
    try:
        write_atomic(path, dump(dict(staged)))
        with _served(path, folder / "staged.log", command, stopped) as url:
            model = _model(url)
            for name in wanted.prompts:
                _ask(url, model, chats[name]["messages"], max_new_tokens)
            seen = Signature(wanted.prompts, *_counted(url))
    except (HeadError, OSError, ValueError, LookupError) as error:
        return Proof(wanted, None, f"it could not be asked: {error}")
    finally:
        path.unlink(missing_ok=True)
    said = f"{seen.tokens} tokens in {seen.rounds} rounds, measured {wanted.tokens} in "
    return Proof(wanted, seen, f"{said}{wanted.rounds}")


@contextlib.contextmanager
def _served(
    config: Path, log: Path, command: tuple[str, ...], stopped: Callable[[], bool]
) -> Iterator[str]:
    """A server on a free port of this machine; its whole group is gone afterwards."""
    argv = (*command, "--config", str(config), "--host", "127.0.0.1", "--port", "0",
            "--memory-mb", "0")  # fmt: skip
    with log.open("wb") as stream:
        child = subprocess.Popen(
            argv, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
            stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    known = identity.of(child.pid, zombie=True)
    try:
        yield _address(child, log, stopped)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        if known is not None:
            identity.end_group(known, 1.0)
        child.wait(GRACE_S)


def _address(child: subprocess.Popen[bytes], log: Path, stopped: Callable[[], bool]) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        text = log.read_text(encoding="utf-8", errors="replace")
        if (found := _ADDRESS.search(text)) is not None:
            return found[1]
        if child.poll() is not None:
            last = text.strip().splitlines() or ["it said nothing"]
            raise HeadError(f"the server left with status {child.returncode}: {last[-1]}")
        if stopped():
            raise HeadError("the loop was told to stop")
        time.sleep(0.1)
    raise HeadError(f"the server was not ready within {READY_S:.0f} s")


def _model(url: str) -> str:
    """What the server calls the model that it serves."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=ANSWER_S) as answer:
        return str(json.loads(answer.read())["data"][0]["id"])


def _ask(url: str, model: str, messages: Any, max_new_tokens: int) -> None:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_new_tokens}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        json.loads(answer.read())


def _counted(url: str) -> tuple[int, int]:
    """Tokens that rounds committed, and rounds, since the server began."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=ANSWER_S) as answer:
        found = dict(_COUNTER.findall(answer.read().decode()))
    return int(float(found["round_tokens"])), int(float(found["verifies"]))
