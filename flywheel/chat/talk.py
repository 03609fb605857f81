"""A conversation: what was said, how to ask for more, and what the last answer cost. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.box.clock import count
from flywheel.errors import FlywheelError, UsageError

MOST_CALLS = 128  # of one answer: a place beyond is no place
MOST_TOLD = 1e12  # of tokens, drafts or tokens a second: more is no measurement
EFFORTS = ("low", "medium", "high", "max")


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


@dataclass(slots=True)
class Answer:
    """One answer as it grows."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)

    def hear(self, chunk: Mapping[str, Any]) -> tuple[str, str]:
        """Add a chunk; the reasoning and the content that it brought.

        FlywheelError for what no server of chat completions sends.
        """
        try:
            return self._heard(chunk)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise FlywheelError(
                "the server's answer is no chat completion; is it another kind of server?"
            ) from error

    def _heard(self, chunk: Mapping[str, Any]) -> tuple[str, str]:
        self.usage = _object(chunk.get("usage")) or self.usage
        self.timings = _object(chunk.get("timings")) or self.timings
        choices = chunk.get("choices") or ()
        if not choices:
            return "", ""
        delta = choices[0].get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        said = delta.get("content") or ""
        self.reasoning += thought
        self.content += said
        for part in delta.get("tool_calls") or ():
            self._call(part)
        self.finish = choices[0].get("finish_reason") or self.finish
        return thought, said

    def _call(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or {}
        place = part.get("index", 0)
        if not 0 <= place < MOST_CALLS:
            raise IndexError(place)
        while len(self.calls) <= place:
            self.calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        call = self.calls[place]
        if part.get("id"):
            call["id"] = part["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a turn of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        else:
            message["content"] = self.content
        return message

    @property
    def empty(self) -> bool:
        """Nothing came at all."""
        return not (self.content or self.reasoning or self.calls)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, for `--json`."""
        return {
            "answer": self.content, "reasoning": self.reasoning or None, "tool_calls": self.calls,
            "finish_reason": self.finish, "usage": self.usage, "timings": self.timings,
        }  # fmt: skip


@dataclass(slots=True)
class Talk:
    """The turns so far, and the settings that every request is made with."""

    system: str = ""
    thinking: bool = False
    effort: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Answer | None = None
    answers: int = 0
    tokens: int = 0

    def ask(self, model: str | None) -> dict[str, Any]:
        """The body of the next request."""
        messages = list(self.messages)
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        body: dict[str, Any] = {
            "messages": messages,
            "thinking": {"type": "enabled" if self.thinking else "disabled"},
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
        }
        if self.thinking and self.effort is not None:
            body["reasoning_effort"] = self.effort
        given = {"model": model, "temperature": self.temperature, "max_tokens": self.max_tokens}
        return body | {name: value for name, value in given.items() if value is not None}

    def say(self, text: str) -> None:
        """A turn of the person's."""
        self.messages.append({"role": "user", "content": text})

    def take(self, answer: Answer) -> None:
        """The turn that came; without a word of it the question is taken back too."""
        if answer.empty:
            self.messages.pop()
            return
        self.messages.append(answer.message)
        self.last = answer
        self.answers += 1
        self.tokens += int(_number(answer.usage, "completion_tokens")
                           or _number(answer.timings, "predicted_n") or 0)

    def clear(self) -> None:
        """Begin anew under the same settings."""
        self.messages.clear()
        self.last = None

    def dump(self) -> str:
        """The conversation as a file holds it."""
        kept = {name: getattr(self, name) for name in ("system", "thinking", "effort", "messages")}
        return json.dumps(kept, ensure_ascii=False, indent=1) + "\n"

    def load(self, text: str) -> None:
        """Go on with a conversation from a file; UsageError when it holds none."""
        try:
            kept = json.loads(text)
            messages = kept["messages"]
            if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError("that file holds no conversation.") from None
        self.messages = list(messages)
        self.system = str(kept.get("system") or "")
        self.thinking = kept.get("thinking") is True
        self.effort = kept.get("effort") if kept.get("effort") in EFFORTS else None
        self.last = None

    def stats(self) -> str:
        """What the last answer cost, and all of them together."""
        if self.last is None:
            return "Nothing was answered yet."
        whole = f"{self.answers} answers, {self.tokens} tokens in all"
        return f"{pace(self.last)} · {whole}" if (self.answers > 1) else pace(self.last)


def pace(answer: Answer) -> str:
    """Speed, drafts and memory of an answer, as far as its server has told."""
    timings, usage = answer.timings, answer.usage
    made = _number(timings, "predicted_n")
    told = _number(usage, "completion_tokens")
    tokens = int((made or 0) if told is None else told)
    words = [count(tokens, "token")]
    if speed := _number(timings, "predicted_per_second"):
        words.insert(0, f"{speed:.1f} tok/s")
    if made and (rounds := _number(timings, "rounds")):
        words.append(f"{(made - 1) / rounds:.2f} a round")
    if drafts := _number(timings, "draft_n"):
        accepted = _number(timings, "draft_n_accepted") or 0
        share = 100 * accepted / drafts
        words.append(f"{accepted:g} of {drafts:g} drafts accepted ({share:.0f} %)")
    if (prompt := _number(usage, "prompt_tokens")) is not None:
        cached = _number(_object(usage.get("prompt_tokens_details")), "cached_tokens") or 0
        words.append(f"{cached:g} of {prompt:g} prompt tokens remembered")
    return " · ".join(words)


def _number(told: Mapping[str, Any], name: str) -> float | None:
    """A number that a server told, as far as it is one that can be shown."""
    value = told.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if 0 <= value < MOST_TOLD else None
