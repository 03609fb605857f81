"""Replies token by token as they were generated, for the turns that repeat them.

A client sends a reply back as text and calls. Written anew it may take other tokens, or other
blanks between them, than the model chose; then the next prompt would not go on from what the model
said. So replies are kept for a while, and a message that repeats one gets its very tokens.

Nothing of one conversation shows up in another: a message finds only tokens that spell what it
says itself, or those of a reply whose call it names by an id that nobody else was given.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from engine.chat import Replay
from engine.server.reply import Call

MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """One reply: its tokens, and the parts that a client has of it."""

    reasoning_ids: tuple[int, ...]  # up to the end of the thinking, without its mark
    ids: tuple[int, ...]  # the rest, without the end mark
    reasoning: str
    content: str
    calls: tuple[Call, ...]

    @property
    def key(self) -> str:
        """What a message that repeats it is known by."""
        return self.calls[0].id if self.calls else _digest(self.content)

    def replay(self, message: Mapping[str, Any]) -> Replay | None:
        """The tokens for a message with the same key, if it says the same."""
        if _text(message.get("content")) != self.content or not self._same_calls(message):
            return None
        given = message.get("reasoning_content") or ""
        told = given == self.reasoning or (not given and bool(self.calls))
        return Replay(self.reasoning_ids if told else None, self.ids)

    def _same_calls(self, message: Mapping[str, Any]) -> bool:
        calls = message.get("tool_calls") or ()
        if len(calls) != len(self.calls):
            return False
        return all(_same(call, mine) for call, mine in zip(calls, self.calls, strict=True))


class Replies:
    """The most recently used replies, at most so many tokens of them. Safe between threads."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = Lock()

    def keep(self, kept: Kept) -> None:
        """Take up a reply, and forget the oldest ones that it displaces."""
        with self._lock:
            self._drop(kept.key)
            self._kept[kept.key] = kept
            self._tokens += _size(kept)
            while self._tokens > self._most_tokens:
                self._drop(next(iter(self._kept)))

    def recall(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """`messages` with a `replay` where one repeats a reply."""
        return [self._recalled(m) if m.get("role") == "assistant" else m for m in messages]

    def _recalled(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        calls = message.get("tool_calls") or ()
        key = calls[0].get("id") if calls else _digest(_text(message.get("content")))
        with self._lock:
            kept = self._kept.get(str(key))
            if kept is None or (replay := kept.replay(message)) is None:
                return message
            self._kept.move_to_end(kept.key)
        return {**message, "replay": replay}

    def _drop(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        self._tokens -= 0 if kept is None else _size(kept)


def _size(kept: Kept) -> int:
    return len(kept.reasoning_ids) + len(kept.ids)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text(content: Any) -> str:
    """Content as the prompt format would write it."""
    if isinstance(content, list):
        return "\n\n".join(block["text"] for block in content)
    return content or ""


def _same(call: Mapping[str, Any], mine: Call) -> bool:
    """Whether a client's call is the one that it was given; blanks in its arguments are free."""
    function = call.get("function") or {}
    if (call.get("id"), function.get("name")) != (mine.id, mine.name):
        return False
    arguments = function.get("arguments")
    try:
        said = arguments if isinstance(arguments, Mapping) else json.loads(arguments or "{}")
    except ValueError:
        return False
    return bool(said == json.loads(mine.arguments))
