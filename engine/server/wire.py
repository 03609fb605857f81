"""The JSON of answers, in OpenAI's shape. Pure."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.reply import ToolCall
from engine.server.reply import Part

DONE = "data: [DONE]\n\n"
PING = ": still working\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; `reasoning` is the part of `completion` spent on thinking."""

    prompt: int
    completion: int
    reasoning: int

    @property
    def json(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, model: str) -> Head:
        """A fresh id and the time of day."""
        return cls(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model)

    def object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An answer object of `kind`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def finish_reason(finish: str, calls: Sequence[ToolCall]) -> str:
    """`finish` as clients know it: calls are a reason of their own, unless the reply was cut."""
    return "tool_calls" if calls and finish == "stop" else finish


def completion(
    head: Head, parts: Iterable[Part], calls: Sequence[ToolCall], finish: str, usage: Usage
) -> dict[str, Any]:
    """A whole answer. Content is null where there is only a call."""
    texts: dict[str, str] = {}
    for part in parts:
        texts[part.kind] = texts.get(part.kind, "") + part.text
    message: dict[str, Any] = {"role": "assistant", "content": texts.get("content", "")}
    if "reasoning" in texts:
        message["reasoning_content"] = texts["reasoning"]
    if calls:
        message["content"] = texts.get("content")
        message["tool_calls"] = [_call(call) for call in calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(finish, calls),
    }
    return {**head.object("chat.completion", [choice]), "usage": usage.json}


def chunk(head: Head, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One piece of a streamed answer."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return head.object("chat.completion.chunk", [choice])


def opening(head: Head) -> dict[str, Any]:
    """The first chunk: whose message this is."""
    return chunk(head, {"role": "assistant", "content": ""})


def text_chunk(head: Head, part: Part) -> dict[str, Any]:
    """A chunk of text."""
    field = "reasoning_content" if part.kind == "reasoning" else "content"
    return chunk(head, {field: part.text})


def call_chunks(head: Head, calls: Sequence[ToolCall]) -> Iterable[dict[str, Any]]:
    """Each call's name once, without arguments, then the arguments."""
    for index, call in enumerate(calls):
        whole = _call(call)
        function = {"name": call.name, "arguments": ""}
        yield chunk(head, {"tool_calls": [{"index": index, **whole, "function": function}]})
        arguments = {"index": index, "function": {"arguments": call.arguments}}
        yield chunk(head, {"tool_calls": [arguments]})


def usage_chunk(head: Head, usage: Usage) -> dict[str, Any]:
    """The last chunk, only for those who asked: no choices, only usage."""
    return {**head.object("chat.completion.chunk", []), "usage": usage.json}


def frame(value: dict[str, Any]) -> str:
    """One server-sent event. JSON has no raw newline, so it is always one line."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


def model(name: str, created: int, context: int) -> dict[str, Any]:
    """An entry of the model list; both spellings of the context length that clients look for."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "local",
        "max_model_len": context,
        "meta": {"n_ctx_train": context},
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
