"""Anthropic's messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.server import fields
from engine.server.ask import Ask, Dialogue
from engine.server.chat import effort, level, reasons, thinking_switch
from engine.server.conversation import Offer, conversation, offer
from engine.server.errors import Failure, RequestError
from engine.server.exchange import new_id
from engine.server.http import frame
from engine.server.reply import Heard, Spoken
from engine.server.service import Service
from engine.server.usage import Usage

# A coding agent puts this line, different in every request, before its system text: kept, it
# would make every prompt new from its first token on.
_BILLING = "x-anthropic-billing-header:"
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """One message."""

    ping = frame({"type": "ping"}, "ping")

    def __init__(self, body: dict[str, Any], served: str) -> None:
        limit = fields.max_tokens(body, "max_tokens")
        if limit is None:
            raise RequestError("max_tokens: Field required", param="max_tokens")
        self.ask = Ask(
            model=fields.text(body, "model"),
            prompts=(dialogue(body),),
            max_tokens=limit,
            sampling=fields.sampling(body),
            stops=fields.stops(body, "stop_sequences"),
            stream=fields.flag(body, "stream"),
            one_call=fields.flag(fields.obj(body, "tool_choice"), "disable_parallel_tool_use"),
        )
        self._heard = Heard()
        self._blocks: list[dict[str, Any]] = []
        self._id = new_id("msg_")
        self._model = served

    def opening(self, usage: Usage) -> Iterable[str]:
        """The message without content."""
        yield _event("message_start", message=self._message([], usage))
        yield self.ping

    def spoken(self, spoken: Spoken) -> Iterable[str]:
        """Blocks of thinking and text as they grow, then calls."""
        self._heard.hear(spoken)
        for part in spoken.parts:
            if part.kind == "reasoning":
                yield from self._grow("thinking", "thinking", part.text)
            else:
                yield from self._grow("text", "text", part.text)
        for call in spoken.calls:
            yield from self._close()
            yield from self._open({"type": "tool_use", "id": call.id, "name": call.name})
            self._blocks[-1]["input"] = json.loads(call.arguments)
            yield self._delta("input_json_delta", partial_json=call.arguments)

    def closing(self, usage: Usage) -> Iterable[str]:
        """The end of the last block, why the message ends, and what it took."""
        yield from self._close()
        yield _event("message_delta", delta=self._ending(), usage=usage.messages)
        yield _event("message_stop")

    def failed(self, failure: Failure) -> Iterable[str]:
        """The error as an event."""
        yield frame(failure.anthropic, "error")

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The message."""
        list(self._close())
        return {**self._message(self._blocks, usage), **self._ending()}

    def _message(self, content: Sequence[Mapping[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage.messages,
        }

    def _ending(self) -> dict[str, Any]:
        heard = self._heard
        reason = _STOP_REASONS.get(
            heard.finish or "", "stop_sequence" if heard.stop else "end_turn"
        )
        return {
            "stop_reason": reason,
            "stop_sequence": heard.stop if reason == "stop_sequence" else None,
        }

    # ---------------------------------------------------------------- blocks

    def _grow(self, kind: str, field: str, text: str) -> Iterable[str]:
        if not self._blocks or self._blocks[-1]["type"] != kind:
            yield from self._close()
            signed = {"signature": ""} if kind == "thinking" else {}
            yield from self._open({"type": kind, field: "", **signed})
        self._blocks[-1][field] += text
        yield self._delta(f"{kind}_delta", **{field: text})

    def _open(self, block: dict[str, Any]) -> Iterable[str]:
        empty: dict[str, Any] = {"input": {}} if block["type"] == "tool_use" else {}
        self._blocks.append(block)
        shown = {**block, **empty}
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=shown)

    def _close(self) -> Iterable[str]:
        if not self._blocks:
            return
        block = self._blocks[-1]
        if block["type"] == "thinking":
            block["signature"] = hashlib.sha256(block["thinking"].encode()).hexdigest()
            yield self._delta("signature_delta", signature=block["signature"])
        yield _event("content_block_stop", index=len(self._blocks) - 1)

    def _delta(self, kind: str, **values: str) -> str:
        delta = {"type": kind, **values}
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)


async def count_tokens(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """Tokens of the prompt that these messages make."""
    service.check_model(fields.text(body, "model"))
    return {"input_tokens": len(await service.encode(dialogue(body)))}


def dialogue(body: Mapping[str, Any]) -> Dialogue:
    """The conversation of a request, translated."""
    raw = body.get("messages")
    if not isinstance(raw, list):
        raise RequestError("messages: must be a list.", param="messages")
    system = _system(body.get("system"))
    messages = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(raw):
        messages += _translated(message, f"messages.{place}")
    offered = _offer(body)
    return Dialogue(
        messages=conversation(messages),
        tools=offered.tools,
        demanded=offered.demanded,
        thinking=_thinking(body),
        effort=level(_effort(body)),
    )


def _event(kind: str, **values: Any) -> str:
    return frame({"type": kind, **values}, kind)


def _thinking(body: Mapping[str, Any]) -> bool:
    switch = thinking_switch(body)
    return reasons(_effort(body)) if switch is None else switch


def _effort(body: Mapping[str, Any]) -> str | None:
    return effort(fields.obj(body, "output_config"), "effort")


def _system(raw: Any) -> str:
    """The system text: one string, or text blocks."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    texts = [_block_text(block, "system") for block in _listed(raw, "system")]
    return "\n\n".join(text for text in texts if not text.startswith(_BILLING))


def _listed(raw: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not all(isinstance(block, dict) for block in raw):
        raise RequestError(f"{where}: must be text or a list of blocks.", param=where)
    return raw


def _block_text(block: Mapping[str, Any], where: str) -> str:
    if not isinstance(block.get("text"), str):
        kind = block.get("type")
        raise RequestError(f"{where}: a block of type {kind!r} cannot be read.", param=where)
    return str(block["text"])


def _translated(message: Any, where: str) -> list[dict[str, Any]]:
    """A message in the shape of chat completions: results of tools are messages of their own."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: must be an object with a role.", param=where)
    content = message.get("content")
    blocks = (
        [{"type": "text", "text": content}]
        if isinstance(content, str)
        else _listed(content, f"{where}.content")
    )
    if message["role"] == "assistant":
        return [_assistant(blocks, where)]
    role = "system" if message["role"] == "system" else "user"
    return [_said(block, role, f"{where}.content.{i}") for i, block in enumerate(blocks)]


def _said(block: Mapping[str, Any], role: str, where: str) -> dict[str, Any]:
    if block.get("type") != "tool_result":
        return {"role": role, "content": _block_text(block, where)}
    content = block.get("content")
    if isinstance(content, list):
        content = "\n\n".join(_block_text(inner, where) for inner in _listed(content, where))
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content or ""}


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """An assistant's message; thinking that its author encrypted cannot be read and is left out."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": function})
        elif kind != "redacted_thinking":
            texts.append(_block_text(block, where))
    return {
        "role": "assistant",
        "content": "".join(texts),
        "reasoning_content": "".join(thoughts),
        "tool_calls": calls,
    }


def _offer(body: Mapping[str, Any]) -> Offer:
    """Tools that the client runs; those that Anthropic would run itself are not offered."""
    choice = fields.obj(body, "tool_choice")
    tools = [
        {"type": "function", "function": _function(tool)}
        for tool in _listed(body.get("tools") or [], "tools")
        if tool.get("type") in (None, "custom")
    ]
    kinds = {"any": "required", "tool": choice}
    return offer(tools, kinds.get(choice.get("type", "auto"), choice.get("type")))


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": tool.get("name"), "description": tool.get("description")}
    return {**named, "parameters": tool.get("input_schema")}
