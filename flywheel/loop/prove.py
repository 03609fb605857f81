"""A live proof: the server, given a head, must take exactly the rounds that were measured with it.

The server is started from a staged file as `flywheel serve` would start it from `best.json`, is
asked prompts of the suite over HTTP, and its own counters are read. Anything else but the measured
counts is a failure, and the head does not go into service.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel import suite
from flywheel.box import identity
from flywheel.errors import HeadError
from flywheel.files import dump, read_json, write_atomic
from flywheel.loop.wishes import Wish, Wishes
from flywheel.statistics.block import PromptRounds

STAGED = "staged.json"
PROMPTS = 2
# A server is waited for so long, then the answers of all prompts together.
READY_S, ANSWERS_S = 600.0, 600.0
# It finishes what it has begun, but a loop that is to stop waits for nobody.
GRACE_S, STOPPED_GRACE_S = 10.0, 0.25
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)")
_COUNTER = re.compile(r"^flywheel_(verifies|round_tokens)_total (\S+)$", re.MULTILINE)
_WRONG = (
    HeadError, OSError, ValueError, LookupError, TypeError, http.client.HTTPException,
    subprocess.SubprocessError,
)  # fmt: skip


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
    wishes: Wishes,
) -> Proof | Wish:
    """Serve what `staged` says from `folder` and ask it; whatever goes wrong is the proof's detail.

    A person's wish ends it at once and is handed back: nothing was proved. The caller holds the
    device.
    """
    if not wanted.prompts:
        said = "no prompt of the suite can be asked of a server as it was measured"
        return Proof(wanted, None, said)
    path = folder / STAGED
    try:
        write_atomic(path, dump(dict(staged)))
        with _served(path, folder / "staged.log", command, wishes) as url:
            if isinstance(url, Wish):
                return url
            asked = [chats[name]["messages"] for name in wanted.prompts]
            counted = wishes.during(lambda: _rounds(url, asked, max_new_tokens), patience_s=0.0)
    except _WRONG as error:
        return Proof(wanted, None, f"it could not be asked: {error}")
    finally:
        path.unlink(missing_ok=True)
    if isinstance(counted, Wish):
        return counted
    seen = Signature(wanted.prompts, *counted)
    said = f"{seen.tokens} tokens in {seen.rounds} rounds, measured {wanted.tokens} in "
    return Proof(wanted, seen, f"{said}{wanted.rounds}")


@contextlib.contextmanager
def _served(
    config: Path, log: Path, command: tuple[str, ...], wishes: Wishes
) -> Iterator[str | Wish]:
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
        yield _address(child, log, wishes)
    finally:
        _leave(child, wishes)
        if known is not None:
            identity.end_group(known, STOPPED_GRACE_S)
        child.wait(GRACE_S)


def _address(child: subprocess.Popen[bytes], log: Path, wishes: Wishes) -> str | Wish:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        text = log.read_text(encoding="utf-8", errors="replace")
        if (found := _ADDRESS.search(text)) is not None:
            return found[1]
        if child.poll() is not None:
            last = text.strip().splitlines() or ["it said nothing"]
            raise HeadError(f"the server left with status {child.returncode}: {last[-1]}")
        if (wish := wishes.asked()) is not None:
            return wish
        time.sleep(0.1)
    raise HeadError(f"the server was not ready within {READY_S:.0f} s")


def _leave(child: subprocess.Popen[bytes], wishes: Wishes) -> None:
    """Ask a server to leave, and wait until it has or patience is over."""
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    until_s = time.monotonic() + GRACE_S
    while child.poll() is None and (now_s := time.monotonic()) < until_s:
        if wishes.asked() is not None:
            until_s = min(until_s, now_s + STOPPED_GRACE_S)
        time.sleep(0.05)


def _rounds(url: str, chats: Sequence[Any], max_new_tokens: int) -> tuple[int, int]:
    """Ask `chats` one after another; the tokens that rounds committed since the server began, and
    the rounds."""
    until_s = time.monotonic() + ANSWERS_S

    def fetch(path: str, body: Mapping[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{url}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        left_s = max(until_s - time.monotonic(), 0.1)
        with urllib.request.urlopen(request, timeout=left_s) as answer:
            return bytes(answer.read())

    model = json.loads(fetch("/v1/models"))["data"][0]["id"]
    for messages in chats:
        asked = {"model": model, "messages": messages, "temperature": 0,
                 "max_tokens": max_new_tokens}  # fmt: skip
        json.loads(fetch("/v1/chat/completions", asked))
    found = dict(_COUNTER.findall(fetch("/metrics").decode()))
    return int(float(found["round_tokens"])), int(float(found["verifies"]))
