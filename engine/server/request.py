"""A chat completion request, from JSON to checked values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from engine.sampling import Sampling
from engine.server.conversation import conversation, tools
from engine.server.errors import RequestError

MAX_STOPS = 16
MAX_TEMPERATURE = 2.0
# What would change the reply and is not implemented: refused instead of silently ignored.
_NEUTRAL: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("n", (None, 1)),
    ("logprobs", (None, False)),
    ("logit_bias", (None, {})),
    ("frequency_penalty", (None, 0)),
    ("presence_penalty", (None, 0)),
    ("repetition_penalty", (None, 1)),
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the client asked for. `max_tokens` None: as many as the context allows."""

    model: str | None
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any] | None
    thinking: bool
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


def parse_json(raw: bytes) -> dict[str, Any]:
    """The object in a request body; RequestError for anything else."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
        if b"\\u" in raw:  # an escaped half of a surrogate pair is no text
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"The request body is not valid JSON: {why}.") from None
    if not isinstance(body, dict):
        raise RequestError("The request body must be a JSON object.")
    return body


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check a body's values; fields that this server does not know are none of its business."""
    for name, neutral in _NEUTRAL:
        if body.get(name) not in neutral:
            raise RequestError(f"`{name}` is not supported by this server.", param=name)
    options = _object(body, "stream_options")
    model = body.get("model")
    if not (model is None or isinstance(model, str)):
        raise RequestError("`model` must be text.", param="model")
    return ChatRequest(
        model=model,
        messages=conversation(body.get("messages")),
        tools=tools(body.get("tools"), body.get("tool_choice")),
        response_format=_response_format(body),
        thinking=_thinking(body),
        max_tokens=_max_tokens(body),
        sampling=_sampling(body),
        stops=_stops(body.get("stop")),
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage"),
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"`{name}` must be an object.", param=name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise RequestError(f"`{name}` must be true or false.", param=name)
    return bool(value)


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"`{name}` must be a number.", param=name)
    try:
        return float(value)
    except OverflowError:
        raise RequestError(f"`{name}` is out of range.", param=name) from None


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise RequestError(f"`{name}` must be a whole number.", param=name)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    """The newer name wins over the older one."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = _integer(body, name)
        if value is not None:
            if value < 1:
                raise RequestError(f"`{name}` must be at least 1.", param=name)
            return value
    return None


def _sampling(body: Mapping[str, Any]) -> Sampling:
    temperature = _number(body, "temperature", 1.0)
    if temperature > MAX_TEMPERATURE:
        raise RequestError(
            f"`temperature` must be at most {MAX_TEMPERATURE:g}; got {temperature:g}.",
            param="temperature",
        )
    top_k = _integer(body, "top_k")
    try:
        return Sampling(
            temperature=temperature,
            top_p=_number(body, "top_p", 1.0),
            top_k=0 if top_k in (None, -1) else int(top_k or 0),
            min_p=_number(body, "min_p", 0.0),
            seed=_integer(body, "seed"),
        )
    except ConfigError as error:
        raise RequestError(str(error), param=str(error).partition(" ")[0]) from None


def _stops(raw: Any) -> tuple[str, ...]:
    stops = [raw] if isinstance(raw, str) else raw or []
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise RequestError("`stop` must be text or a list of texts, none empty.", param="stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"`stop` may hold at most {MAX_STOPS} texts.", param="stop")
    return tuple(stops)


def _thinking(body: Mapping[str, Any]) -> bool:
    """Whether reasoning is asked for, in any of the ways that clients have; off by default."""
    switch = _object(body, "thinking").get("type")
    if switch is not None:
        if switch not in ("enabled", "disabled", "adaptive"):
            raise RequestError("`thinking.type` must be enabled or disabled.", param="thinking")
        return bool(switch != "disabled")
    template = _object(body, "chat_template_kwargs")
    for name in ("thinking", "enable_thinking"):
        if template.get(name) is not None:
            return _flag(template, name)
    effort: Any = body.get("reasoning_effort")
    return effort not in (None, "none")


def _response_format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The format for the prompt. It is asked of the model, not enforced."""
    wanted = _object(body, "response_format")
    return None if wanted.get("type") in (None, "text") else wanted
