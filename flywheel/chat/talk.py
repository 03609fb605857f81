"""A conversation: what was said, how to ask for more, and what the last answer cost. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.errors import UsageError

EFFORTS = ("low", "medium", "high", "max")


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
        """Add a chunk; the reasoning and the content that it brought."""
        self.usage = chunk.get("usage") or self.usage
        self.timings = chunk.get("timings") or self.timings
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
        while len(self.calls) <= part.get("index", 0):
            self.calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        call = self.calls[part.get("index", 0)]
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
        self.tokens += answer.usage.get("completion_tokens", answer.timings.get("predicted_n", 0))

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
        except (ValueError, KeyError, TypeError):
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
    tokens = usage.get("completion_tokens", timings.get("predicted_n", 0))
    words = [f"{tokens} token{'' if tokens == 1 else 's'}"]
    if speed := timings.get("predicted_per_second"):
        words.insert(0, f"{speed:.1f} tok/s")
    if rounds := timings.get("rounds"):
        words.append(f"{(timings['predicted_n'] - 1) / rounds:.2f} a round")
    if drafts := timings.get("draft_n"):
        accepted = timings["draft_n_accepted"]
        words.append(f"{accepted} of {drafts} drafts accepted ({100 * accepted / drafts:.0f} %)")
    if (prompt := usage.get("prompt_tokens")) is not None:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        words.append(f"{cached} of {prompt} prompt tokens remembered")
    return " · ".join(words)
