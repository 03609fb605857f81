"""Messages and tools as clients send them, checked and brought into the prompt format's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.server.errors import RequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")


def conversation(raw: Any) -> list[dict[str, Any]]:
    """Messages ready for the prompt format: it knows no developer and starts with one system text.

    A system text after the last question joins it, since nothing may stand between a question and
    its answer. Raises RequestError.
    """
    if not isinstance(raw, list) or not raw:
        raise RequestError("`messages` must be a list with at least one message.", param="messages")
    messages = [_message(entry, f"messages[{i}]") for i, entry in enumerate(raw)]
    asked = max((i for i, m in enumerate(messages) if m["role"] in ("user", "tool")), default=-1)
    if asked < 0:
        raise RequestError("`messages` must hold a message from the user.", param="messages")
    if messages[-1]["role"] == "assistant":
        raise RequestError("The last message must not be from the assistant.", param="messages")
    for message in messages[asked + 1 :]:
        if message["role"] == "system":
            message["role"] = "user"
    return _one_system_text(messages)


def _one_system_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    count = next(i for i, m in enumerate(messages) if m["role"] != "system")
    if count < 2:
        return messages
    text = "\n\n".join(_plain(m.get("content")) for m in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n\n".join(block["text"] for block in content)
    return content or ""


def _message(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise RequestError(f"{where} must be an object.", param=where)
    role = entry.get("role")
    if role not in _ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(_ROLES)}; got {role!r}.", param=f"{where}.role"
        )
    message: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(entry.get("content"), f"{where}.content"),
    }
    if role == "assistant":
        message["reasoning_content"] = _text(
            entry.get("reasoning_content") or entry.get("reasoning"), f"{where}.reasoning_content"
        )
        message["tool_calls"] = _calls(entry.get("tool_calls"), f"{where}.tool_calls")
    if role == "tool":
        message["tool_call_id"] = _text(entry.get("tool_call_id"), f"{where}.tool_call_id")
    return message


def _content(content: Any, where: str) -> Any:
    """Text, null, or text blocks. Anything else (an image) cannot be read by this model."""
    if content is None or isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    if not all(isinstance(b, dict) and isinstance(b.get("text"), str) for b in blocks):
        raise RequestError(f"{where} must be text or a list of text blocks.", param=where)
    return blocks


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"{where} must be text.", param=where)
    return value


def _calls(raw: Any, where: str) -> list[dict[str, Any]]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise RequestError(f"{where} must be a list.", param=where)
    return [_call(call, f"{where}[{i}]") for i, call in enumerate(raw)]


def _call(raw: Any, where: str) -> dict[str, Any]:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must hold a function with a name.", param=where)
    arguments = function.get("arguments")
    if not (arguments is None or isinstance(arguments, str | Mapping)):
        raise RequestError(f"{where}.function.arguments must be text.", param=where)
    identity = _text(raw.get("id"), f"{where}.id")
    return {"id": identity, "function": {"name": function["name"], "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that a reply may call, and the names of which it must call one, if any."""

    tools: list[dict[str, Any]]
    demanded: tuple[str, ...] = ()


def offer(raw: Any, choice: Any) -> Offer:
    """What `tools` and `tool_choice` amount to: auto, none, required, or a tool by name.

    Raises RequestError.
    """
    if raw is None:
        raw = []
    if not isinstance(raw, list):
        raise RequestError("`tools` must be a list.", param="tools")
    for i, tool in enumerate(raw):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"tools[{i}] must hold a function with a name.", param=f"tools[{i}]")
    if choice in (None, "auto"):
        return Offer(raw)
    if choice == "none":
        return Offer([])
    names = tuple(tool["function"]["name"] for tool in raw)
    demanded = names if choice == "required" else (_named(choice),)
    if not demanded or not set(demanded) <= set(names):
        raise RequestError(
            "`tool_choice` must be auto, none, required or the name of one of the `tools`.",
            param="tool_choice",
        )
    return Offer(raw, demanded)


def _named(choice: Any) -> str:
    """The name in a choice; OpenAI's two protocols nest it differently."""
    inner = choice.get("function", choice) if isinstance(choice, dict) else {}
    return str(inner.get("name")) if isinstance(inner, dict) else ""
