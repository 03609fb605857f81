"""Reading a request body: each function gives one checked field, or names what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import ConfigError
from engine.sampling import Sampling
from engine.server.errors import RequestError

MAX_STOPS = 16
MAX_TEMPERATURE = 2.0
MAX_BIAS = 100.0
Body = Mapping[str, Any]


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


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def refuse_unsupported(body: Body, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse what would change the reply and is not implemented, instead of ignoring it."""
    for name, values in neutral.items():
        if body.get(name) not in values:
            raise RequestError(f"`{name}` is not supported by this server.", param=name)


def obj(body: Body, name: str) -> Body:
    """An object; empty when absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"`{name}` must be an object.", param=name)
    return value


def text(body: Body, name: str) -> str | None:
    """Text or None."""
    value = body.get(name)
    if not (value is None or isinstance(value, str)):
        raise RequestError(f"`{name}` must be text.", param=name)
    return value


def flag(body: Body, name: str, default: bool = False) -> bool:
    """True or false."""
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise RequestError(f"`{name}` must be true or false.", param=name)
    return default if value is None else value


def number(body: Body, name: str, default: float) -> float:
    """A number that a float can hold."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"`{name}` must be a number.", param=name)
    try:
        return float(value)
    except OverflowError:
        raise RequestError(f"`{name}` is out of range.", param=name) from None


def integer(body: Body, name: str, low: int | None = None, high: int | None = None) -> int | None:
    """A whole number within bounds, or None."""
    value = body.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"`{name}` must be a whole number.", param=name)
    if low is not None and value < low:
        raise RequestError(f"`{name}` must be at least {low}.", param=name)
    if high is not None and value > high:
        raise RequestError(f"`{name}` must be at most {high}.", param=name)
    return value


def max_tokens(body: Body, *names: str) -> int | None:
    """The limit of a reply; of several names the first that is there wins."""
    for name in names:
        value = integer(body, name, 1)
        if value is not None:
            return value
    return None


def token_ids(body: Body, name: str) -> tuple[int, ...]:
    """A list of token ids; empty when absent."""
    value = body.get(name) or []
    whole = isinstance(value, list) and all(type(token) is int for token in value)
    if not whole:
        raise RequestError(f"`{name}` must be a list of token ids.", param=name)
    return tuple(value)


def stops(body: Body, name: str = "stop") -> tuple[str, ...]:
    """Stop strings: one, or a list."""
    raw = body.get(name)
    found = [raw] if isinstance(raw, str) else raw or []
    if not isinstance(found, list) or not all(isinstance(s, str) and s for s in found):
        raise RequestError(f"`{name}` must be text or a list of texts, none empty.", param=name)
    if len(found) > MAX_STOPS:
        raise RequestError(f"`{name}` may hold at most {MAX_STOPS} texts.", param=name)
    return tuple(found)


def sampling(body: Body, logprobs: int | None = None) -> Sampling:
    """How tokens are chosen; every protocol uses the same names for this."""
    temperature = number(body, "temperature", 1.0)
    if temperature > MAX_TEMPERATURE:
        raise RequestError(
            f"`temperature` must be at most {MAX_TEMPERATURE:g}; got {temperature:g}.",
            param="temperature",
        )
    top_k = integer(body, "top_k")
    try:
        return Sampling(
            temperature=temperature,
            top_p=number(body, "top_p", 1.0),
            top_k=0 if top_k in (None, -1) else int(top_k or 0),
            min_p=number(body, "min_p", 0.0),
            seed=integer(body, "seed"),
            frequency_penalty=number(body, "frequency_penalty", 0.0),
            presence_penalty=number(body, "presence_penalty", 0.0),
            logit_bias=_logit_bias(body),
            logprobs=logprobs,
        )
    except ConfigError as error:
        raise RequestError(str(error), param=str(error).partition(" ")[0]) from None


def _logit_bias(body: Body) -> tuple[tuple[int, float], ...]:
    raw = obj(body, "logit_bias")
    found = []
    for token in raw:
        bias = number(raw, token, 0.0)
        if not token.isdecimal() or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise RequestError(
                f"`logit_bias` must map token ids to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}.",
                param="logit_bias",
            )
        found.append((int(token), bias))
    return tuple(found)
