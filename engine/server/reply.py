"""A reply as it grows: text in; reasoning, content and tool calls out.

Streamed and whole answers are made from the same parts, so they cannot differ. Markup of tool
calls never reaches a client: a block that parses becomes calls, any other becomes plain text.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import ReplyError
from engine.reply import ToolCall, parse_reply
from engine.server.pace import Pace
from engine.stops import StopScanner
from engine.tokenizer import DSML, THINK_END

# Longer spellings win, so a proper block takes its blank line and bracket with it.
_MARKUP = (f"\n\n<{DSML}", f"<{DSML}", f"</{DSML}", DSML)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of visible text."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with the id by which its result will be known."""

    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, call: ToolCall) -> Call:
        """`call` under a fresh id."""
        return cls(f"call_{secrets.token_hex(12)}", call.name, call.arguments)


@dataclass(frozen=True, slots=True)
class Scored:
    """A visible token with its log-probability, and the likeliest ones as (token, logprob)."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    reasoning: bool


@dataclass(frozen=True, slots=True)
class Spoken:
    """What became certain at once of choice `index`."""

    index: int
    parts: tuple[Part, ...]
    scores: tuple[Scored, ...] = ()
    calls: tuple[Call, ...] = ()
    finish: str | None = None  # "stop" | "length" | "tool_calls" on a choice's last
    stop: str | None = None  # the stop string that ended it
    tokens: tuple[int, ...] = ()
    pace: Pace = field(default_factory=Pace)  # of the choice so far; it goes on changing


@dataclass(slots=True)
class Heard:
    """One choice, put together."""

    reasoning: str = ""
    content: str = ""
    scores: list[Scored] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    tokens: list[int] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)

    def hear(self, spoken: Spoken) -> None:
        """Add what was spoken."""
        for part in spoken.parts:
            if part.kind == "reasoning":
                self.reasoning += part.text
            else:
                self.content += part.text
        self.scores += spoken.scores
        self.calls += spoken.calls
        self.tokens += spoken.tokens
        self.pace = spoken.pace
        self.finish, self.stop = spoken.finish, spoken.stop


class PlainParts:
    """A reply that is all text, as the text completions want it."""

    def feed(self, text: str) -> list[Part]:
        """The text."""
        return _filled([Part("content", text)])

    def finish(self) -> tuple[list[Part], tuple[ToolCall, ...]]:
        """Nothing is held back."""
        return [], ()


class ReplyParts:
    """Splits one reply. `thinking`: the prompt opened a reasoning part; `tools`: calls count."""

    def __init__(self, *, thinking: bool, tools: bool) -> None:
        self._tools = tools
        self._reasoning = StopScanner([THINK_END]) if thinking else None
        self._content = StopScanner(_MARKUP)
        self._block = ""

    def feed(self, text: str) -> list[Part]:
        """The parts that became certain with `text`."""
        parts: list[Part] = []
        if self._reasoning is not None:
            shown = self._reasoning.feed(text)
            parts.append(Part("reasoning", shown))
            if self._reasoning.stop is None:
                return _filled(parts)
            text, self._reasoning = self._reasoning.rest, None
        if self._block:
            self._block += text
            return _filled(parts)
        parts.append(Part("content", self._content.feed(text)))
        if self._content.stop is not None:
            self._block = self._content.stop + self._content.rest
        return _filled(parts)

    def finish(self) -> tuple[list[Part], tuple[ToolCall, ...]]:
        """The parts that were held until the end, and the calls."""
        if self._reasoning is not None:
            return _filled([Part("reasoning", self._reasoning.flush())]), ()
        calls = _calls(self._block) if self._tools else ()
        if calls:
            return [], calls
        text = self._content.flush() + self._block.replace(DSML, "")
        return _filled([Part("content", text)]), ()


def _filled(parts: list[Part]) -> list[Part]:
    return [part for part in parts if part.text]


def _calls(block: str) -> tuple[ToolCall, ...]:
    try:
        reply = parse_reply(block, thinking=False)
    except ReplyError:
        return ()
    return reply.tool_calls if not reply.content else ()
