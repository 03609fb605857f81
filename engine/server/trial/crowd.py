"""A crowd of clients that come, leave, dawdle and send nonsense, and what is left after them.

Every client asks for opaque ids to be repeated, its own canary among them. What the answers must
be is known from a server that speaks to one client at a time and never drafts; so an answer that
drafts, companions or somebody's leaving had touched would show.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.server.trial.client import PATH, Client, head, read_reply
from engine.server.trial.process import Served, served

CONFIG = {"threads": 1}
BODY_MB = 1
PROMPTS = 24
TOKENS = 24
_GAUGES = ("flywheel_requests_running", "flywheel_queue_depth", "flywheel_sequences")
_IDLE_S = 30.0
_MEMORY_GROWTH_MB = 64.0
_LOOKS = 60
_SPARE_DESCRIPTORS = 8


@dataclass(slots=True)
class Findings:
    """What a crowd did, and what was wrong."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_mb: tuple[float, float] = (0.0, 0.0)  # medians of the second and the last third
    descriptors: tuple[int, int] = (0, 0)

    def canonical(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "done": dict(sorted(self.done.items())),
            "wrong": self.wrong,
            "memory_mb": [round(m, 1) for m in self.memory_mb],
            "descriptors": list(self.descriptors),
        }


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with a canary, and the answer that a lone client without drafts gets."""

    canary: str
    body: Mapping[str, Any]
    answer: str = ""


def questions(seed: int, count: int = PROMPTS) -> list[Question]:
    """Questions without their answers."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ids = [f"{draw.getrandbits(40):010x}" for _ in range(8)]
        text = "Repeat these ids: " + " ".join(ids)
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": text}],
            "temperature": 0, "max_tokens": TOKENS, "logit_bias": {"1": -100},
        }  # fmt: skip
        found.append(Question(ids[0], body))
    return found


async def answered(given: list[Question]) -> list[Question]:
    """The questions with their answers."""
    known = []
    async with served({**CONFIG, "draft_width": 0}, "--clients", "1") as plain:
        for question in given:
            known.append(
                Question(question.canary, question.body, await _ask(plain.client, question))
            )
    return known


async def _ask(client: Client, question: Question) -> str:
    async with client.ask(question.body) as reply:
        said = (await reply.json())["choices"][0]["message"]["content"]
        return str(said)


class _Visitor:
    """One client, doing one thing after the other."""

    def __init__(self, client: Client, known: list[Question], seed: int, found: Findings) -> None:
        self._client = client
        self._known = known
        self._draw = random.Random(seed)
        self._found = found

    async def visit(self, until_s: float) -> None:
        """Do things until the loop's clock says `until_s`."""
        acts: list[Callable[[], Awaitable[None]]] = [
            self.whole, self.streamed, self.slow, self.leave, self.hang_up, self.oversized,
            self.nonsense,
        ]  # fmt: skip
        weights = [4, 4, 2, 4, 2, 1, 1]
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            (act,) = self._draw.choices(acts, weights)
            try:
                await act()
            except (OSError, EOFError, ValueError, KeyError) as error:
                self._found.wrong.append(f"{act.__name__}: {error!r}")
            self._found.done[act.__name__] += 1

    def _question(self) -> Question:
        return self._draw.choice(self._known)

    async def whole(self) -> None:
        """Ask and read all of the answer at once."""
        question = self._question()
        async with self._client.ask(question.body) as reply:
            if not await self._turned_away(reply.status):
                said = (await reply.json())["choices"][0]["message"]["content"]
                self._compare(question, said, whole=True)

    async def streamed(self, pause_s: float = 0.0) -> None:
        """Ask and read piece by piece."""
        question = self._question()
        said = ""
        async with self._client.ask({**question.body, "stream": True}) as reply:
            if await self._turned_away(reply.status):
                return
            async for event in reply.events():
                said += event["choices"][0]["delta"].get("content") or ""
                await asyncio.sleep(pause_s)
        self._compare(question, said, whole=True)

    async def slow(self) -> None:
        """Read so slowly that the engine is long done."""
        await self.streamed(pause_s=0.05)

    async def leave(self) -> None:
        """Go after a few pieces."""
        question, patience = self._question(), self._draw.randrange(6)
        said = ""
        async with self._client.ask({**question.body, "stream": True}) as reply:
            if await self._turned_away(reply.status):
                return
            async for event in reply.events():
                said += event["choices"][0]["delta"].get("content") or ""
                patience -= 1
                if patience < 0:
                    break
        self._compare(question, said, whole=False)

    async def hang_up(self) -> None:
        """Send and go, before or after anything could come back."""
        raw = json.dumps(self._question().body).encode()
        async with self._client.connected() as (_, writer):
            writer.write(head("POST", PATH, len(raw)) + raw[: self._draw.choice((5, len(raw)))])
            await writer.drain()
            await asyncio.sleep(self._draw.random() * 0.1)

    async def oversized(self) -> None:
        """Send more than anybody may."""
        await self._refused(b'{"padding": "' + b"x" * ((BODY_MB << 20) + 1) + b'"}', 413)

    async def nonsense(self) -> None:
        """Send what is no request."""
        await self._refused(self._draw.choice((b"{", b"[]", b'{"messages": 3}', b"\xff")), 400)

    async def _refused(self, raw: bytes, expected: int) -> None:
        async with self._client.connected() as (reader, writer):
            writer.write(head("POST", PATH, len(raw)) + raw)
            await writer.drain()
            reply = await read_reply(reader)
            if reply.status != expected:
                self._found.wrong.append(f"status {reply.status} where {expected} was due")

    async def _turned_away(self, status: int) -> bool:
        """Whether the queue was full; any other error is a finding."""
        if status == 429:
            self._found.done["turned away"] += 1
            await asyncio.sleep(0.2)
        elif status != 200:
            self._found.wrong.append(f"status {status} for a good request")
        return status != 200

    def _compare(self, question: Question, said: str, *, whole: bool) -> None:
        expected = question.answer if whole else question.answer[: len(said)]
        if said != expected:
            self._found.wrong.append(f"{question.canary}: {said!r} instead of {expected!r}")
        for other in self._known:
            if other.canary in said and other.canary not in question.answer:
                self._found.wrong.append(f"the canary {other.canary} in another's answer")


async def crowd(seconds: float, clients: int, seed: int) -> Findings:
    """Let a crowd loose on a server for a while."""
    known = await answered(questions(seed))
    found = Findings()
    options = ("--clients", "4", "--queue", str(clients // 2), "--body-mb", str(BODY_MB))
    async with served(CONFIG, *options) as server:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        before = server.descriptors
        visitors = [
            asyncio.create_task(
                _Visitor(server.client, known, seed + i, found).visit(began_s + seconds)
            )
            for i in range(clients)
        ]
        found.memory_mb = await _watched(server, seconds)
        await asyncio.gather(*visitors)
        await _aftermath(server, found)
        found.descriptors = (before, server.descriptors)
    early_mb, late_mb = found.memory_mb
    if late_mb - early_mb > _MEMORY_GROWTH_MB:
        found.wrong.append(f"memory grew from {early_mb:.0f} to {late_mb:.0f} MiB")
    if found.descriptors[1] > before + _SPARE_DESCRIPTORS:
        found.wrong.append(f"open files grew from {before} to {found.descriptors[1]}")
    return found


async def _watched(server: Served, seconds: float) -> tuple[float, float]:
    """Resident memory in MiB while a crowd is there: medians of the second and the last third.

    It goes up and down with the bodies that are on their way, and at first it only fills.
    """
    each = _LOOKS // 3
    looks = []
    for _ in range(_LOOKS):
        await asyncio.sleep(seconds / _LOOKS)
        looks.append(server.memory_mb)
    return statistics.median(looks[each:-each]), statistics.median(looks[-each:])


async def _aftermath(server: Served, found: Findings) -> None:
    """Everything is back at zero, and the server still answers."""
    try:
        await server.client.idle(_IDLE_S)
    except TimeoutError:
        found.wrong.append(f"the server was still at work {_IDLE_S:g} s after the last client")
    for line in (await server.client.get("/metrics")).decode().splitlines():
        name, _, value = line.partition(" ")
        if name in _GAUGES and float(value) != 0:
            found.wrong.append(f"{name} stayed at {value}")
    if (await server.client.health())["faults"]:
        found.wrong.append("the engine failed")
