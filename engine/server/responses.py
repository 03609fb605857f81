"""OpenAI's responses. Nothing is stored: every request brings its whole conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine.server import fields
from engine.server.ask import Ask, Dialogue
from engine.server.chat import PING, effort, level, reasons, response_format
from engine.server.conversation import conversation, offer
from engine.server.errors import Failure, RequestError
from engine.server.exchange import new_id, now_s
from engine.server.http import frame
from engine.server.reply import Call, Heard, Spoken
from engine.server.usage import Usage

# Without a store there is nothing that these could refer to.
_REFUSED = ("previous_response_id", "conversation", "prompt", "background")
_TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text", None)
# What a request says and its answer repeats, with what it means when it is not said.
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


class Responses:
    """One response."""

    ping = PING

    def __init__(self, body: dict[str, Any], served: str) -> None:
        for name in _REFUSED:
            if body.get(name):
                raise RequestError(
                    f"`{name}` is not supported: this server keeps no responses. "
                    "Send the full conversation as `input`.",
                    param=name,
                )
        fields.refuse_unsupported(body, {"top_logprobs": (None, 0)})
        self.ask = Ask(
            model=fields.text(body, "model"),
            prompts=(_dialogue(body),),
            max_tokens=fields.max_tokens(body, "max_output_tokens"),
            sampling=fields.sampling(body),
            stream=fields.flag(body, "stream"),
            one_call=not fields.flag(body, "parallel_tool_calls", True),
        )
        said = {name: body.get(name) for name in _ECHOED if body.get(name) is not None}
        self._base = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": now_s(),
            "model": served,
            **_ECHOED,
            **said,
            "previous_response_id": None,
            "store": False,
        }
        self._heard = Heard()
        self._output: list[dict[str, Any]] = []
        self._sequence = -1

    def opening(self, usage: Usage) -> Iterable[str]:
        """The response without output, twice, as OpenAI sends it."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def spoken(self, spoken: Spoken) -> Iterable[str]:
        """Items of reasoning and text as they grow, then calls."""
        self._heard.hear(spoken)
        for part in spoken.parts:
            yield from self._grow("reasoning" if part.kind == "reasoning" else "message", part.text)
        for call in spoken.calls:
            yield from self._called(call)
        if spoken.finish is not None:
            yield from self._close()

    def closing(self, usage: Usage) -> Iterable[str]:
        """The whole response."""
        whole = self.whole(usage)
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, failure: Failure) -> Iterable[str]:
        """The response as far as it came, with the error."""
        error = {"code": failure.code or "server_error", "message": failure.message}
        yield self._event("error", **error, param=failure.param)
        response = {**self._response("failed"), "error": error}
        yield self._event("response.failed", response=response)

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The response; incomplete where the limit cut it."""
        cut = self._heard.finish == "length"
        response = self._response("incomplete" if cut else "completed")
        reason = {"reason": "max_output_tokens"} if cut else None
        return {**response, "incomplete_details": reason, "usage": usage.responses}

    def _response(self, status: str) -> dict[str, Any]:
        rest = {"error": None, "incomplete_details": None, "usage": None}
        return {**self._base, "status": status, "output": self._output, **rest}

    def _event(self, kind: str, **values: Any) -> str:
        self._sequence += 1
        return frame({"type": kind, "sequence_number": self._sequence, **values}, kind)

    # ---------------------------------------------------------------- items

    def _at(self) -> dict[str, Any]:
        """Where in the output the newest item is."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _grow(self, kind: str, text: str) -> Iterable[str]:
        if not self._output or self._output[-1]["type"] != kind:
            yield from self._close()
            yield from self._add(_item(kind))
            yield self._event(
                "response.content_part.added", **self._at(), content_index=0, part=_part(kind)
            )
            self._output[-1]["content"] = [_part(kind)]
        self._output[-1]["content"][0]["text"] += text
        more = _scores(kind)
        yield self._event(
            f"response.{_spoken(kind)}.delta", **self._at(), content_index=0, delta=text, **more
        )

    def _add(self, item: dict[str, Any]) -> Iterable[str]:
        self._output.append(item)
        place = len(self._output) - 1
        yield self._event("response.output_item.added", output_index=place, item=item)

    def _close(self) -> Iterable[str]:
        """End the newest item, if it is one that grows."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return
        item = self._output[-1]
        if item["type"] != "function_call":
            part = item["content"][0]
            more = _scores(item["type"])
            yield self._event(
                f"response.{_spoken(item['type'])}.done",
                **self._at(),
                content_index=0,
                text=part["text"],
                **more,
            )
            yield self._event(
                "response.content_part.done", **self._at(), content_index=0, part=part
            )
        item["status"] = "incomplete" if self._heard.finish == "length" else "completed"
        yield self._event(
            "response.output_item.done", output_index=len(self._output) - 1, item=item
        )

    def _called(self, call: Call) -> Iterable[str]:
        yield from self._close()
        item = {"type": "function_call", "id": new_id("fc_"), "status": "in_progress"}
        yield from self._add({**item, "call_id": call.id, "name": call.name, "arguments": ""})
        given = {"arguments": call.arguments}
        self._output[-1] |= given
        kind = "response.function_call_arguments"
        yield self._event(f"{kind}.delta", **self._at(), delta=call.arguments)
        yield self._event(f"{kind}.done", **self._at(), **given, name=call.name)


def _item(kind: str) -> dict[str, Any]:
    common: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
    if kind == "reasoning":
        return {**common, "id": new_id("rs_"), "summary": []}
    return {**common, "id": new_id("msg_"), "role": "assistant"}


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _scores(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}


def _spoken(kind: str) -> str:
    return "reasoning_text" if kind == "reasoning" else "output_text"


# -------------------------------------------------------------------- requests


def _dialogue(body: Mapping[str, Any]) -> Dialogue:
    messages = _messages(body.get("input"))
    instructions = fields.text(body, "instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    offered = offer(_functions(body.get("tools")), body.get("tool_choice"))
    said = effort(fields.obj(body, "reasoning"), "effort")
    return Dialogue(
        messages=conversation(messages),
        tools=offered.tools,
        demanded=offered.demanded,
        thinking=reasons(said),
        effort=level(said),
        response_format=_format(fields.obj(fields.obj(body, "text"), "format")),
    )


def _format(wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The format in the nesting that chat completions have."""
    if wanted.get("type") == "json_schema":
        schema = {name: value for name, value in wanted.items() if name != "type"}
        wanted = {"type": "json_schema", "json_schema": schema}
    return response_format(wanted)


def _functions(raw: Any) -> Any:
    """Function tools in the nesting of chat completions; tools of other kinds are not offered."""
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        return raw
    return [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in raw
        if tool.get("type") == "function"
    ]


def _messages(raw: Any) -> list[dict[str, Any]]:
    """Items as messages: reasoning, text and calls of one turn become one message."""
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}]
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise RequestError("`input` must be text or a list of items.", param="input")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(raw):
        new = _message(item, f"input[{place}]")
        if new is None:
            continue
        last = messages[-1] if messages else {}
        if new["role"] == last.get("role") == "assistant":
            for name in ("content", "reasoning_content", "tool_calls"):
                last[name] += new[name]
        else:
            messages.append(new)
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """One item as a message; None for kinds that this model has no form for."""
    match item.get("type", "message"):
        case "message":
            text = _text(item.get("content"), f"{where}.content")
            if item.get("role") == "assistant":
                return _assistant(content=text)
            return {"role": item.get("role"), "content": text}
        case "reasoning":
            told = item.get("content") or item.get("summary") or ""
            return _assistant(reasoning_content=_text(told, where))
        case "function_call":
            return _assistant(tool_calls=[_call(item, item.get("arguments"))])
        case "custom_tool_call":
            arguments = json.dumps({"input": item.get("input")}, ensure_ascii=False)
            return _assistant(tool_calls=[_call(item, arguments)])
        case "function_call_output" | "custom_tool_call_output":
            content = _text(item.get("output"), f"{where}.output")
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        case "item_reference":
            raise RequestError("This server keeps no items to refer to.", param=where)
    return None


def _assistant(**values: Any) -> dict[str, Any]:
    blank: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    return {"role": "assistant", **blank, **values}


def _call(item: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": arguments}
    return {"id": item.get("call_id"), "function": function}


def _text(raw: Any, where: str) -> str:
    """The text of a content list, whatever its blocks are called."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    texts = [_readable(block) for block in raw] if isinstance(raw, list) else [None]
    if any(text is None for text in texts):
        raise RequestError(f"{where} must be text or a list of text blocks.", param=where)
    return "".join(text for text in texts if text)


def _readable(block: Any) -> str | None:
    """The text of a block; None for anything else."""
    known = isinstance(block, dict) and block.get("type") in _TEXT_TYPES
    text = block.get("text") if known else None
    return text if isinstance(text, str) else None
