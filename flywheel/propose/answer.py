"""What a proposer answers: its schema, and the reading of it. Pure, standard library only.

A form that is wrong is told back in sentences, all of them at once, for a program that will try
again. Whether what was proposed may run is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.errors import LeverError
from flywheel.lever import NEEDS, Lever
from flywheel.sweep import Sweep

# How many levers one answer may hold; a longer one is cut, and what is left out is said.
MOST = 12
# How much of one answer comes into the ledger, which keeps it for ever: entries of a list or an
# object, and characters of a reason.
ENTRIES, REASON = 64, 1000
_LARGEST = 2**53
KINDS = ("config", "sweep", "head", "patch")
_TEXT, _GAIN = {"type": "string", "minLength": 1}, {"type": "number", "minimum": 0, "maximum": 0.5}
_NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
_FIELD = {"type": "string", "minLength": 1, "maxLength": 64}
_VALUE = {"type": ["string", "number", "boolean"], "maxLength": 200}
_END = {"type": "number"}
_COMMON: dict[str, Any] = {
    "name": _NAME, "claim": _TEXT, "falsify": _TEXT, "predicted_gain": _GAIN, "ceiling": _GAIN,
}  # fmt: skip
_ENGINE: dict[str, Any] = {
    "cold": {"type": "boolean"}, "slow": {"type": "boolean"},
    "needs": {"type": "array", "items": {"enum": list(NEEDS)}},
}  # fmt: skip
_REQUIRED = ("name", "claim", "falsify", "predicted_gain")


def _kind(kind: str, required: tuple[str, ...], **more: Any) -> dict[str, Any]:
    names = ("kind", *_REQUIRED, *required)
    properties = {"kind": {"const": kind}, **_COMMON, **more}
    return {"type": "object", "properties": properties, "required": list(names),
            "additionalProperties": False}  # fmt: skip


_FIELDS = {
    "config": _kind("config", ("field", "value"), field=_FIELD, value=_VALUE, **_ENGINE),
    "sweep": _kind(
        "sweep", ("field",), field=_FIELD,
        values={"type": "array", "items": _VALUE, "minItems": 2, "maxItems": ENTRIES},
        low=_END, high=_END, log={"type": "boolean"},
        trials={"type": "integer", "minimum": 2, "maximum": 32}, **_ENGINE,
    ),
    "head": _kind(
        "head", ("recipe",), recipe={
            "type": "object", "additionalProperties": _VALUE, "maxProperties": ENTRIES,
            "propertyNames": {"maxLength": 64},
        },
    ),
    "patch": _kind("patch", ("diff",), diff=_TEXT),
}  # fmt: skip
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "levers": {
            "type": "array", "maxItems": MOST, "items": {"anyOf": [_FIELDS[k] for k in KINDS]},
        },
        "note": {"type": "string"},
        "usage": {"type": "object"},
        "limited": {
            "type": "object",
            "properties": {"why": {"type": "string"}, "retry_after_s": {"type": "number"}},
        },
    },
    "additionalProperties": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Patch:
    """A proposed change of code: a unified diff against the incumbent's revision."""

    name: str
    diff: str
    claim: str
    falsify: str
    predicted_gain: float
    ceiling: float | None = None


Offer = Lever | Sweep | Patch


@dataclass(frozen=True, slots=True)
class Item:
    """One proposed lever as it came (`body`), and what it is; or else what is wrong with it."""

    position: int
    body: Any
    offer: Offer | None = None
    error: str = ""

    @property
    def name(self) -> str:
        """Its name, or its place where it has none."""
        named = self.body.get("name") if isinstance(self.body, dict) else None
        usable = isinstance(named, str) and named.strip()
        return line(str(named), 64) if usable else f"number {self.position + 1}"


@dataclass(frozen=True, slots=True)
class Limited:
    """The proposer is at its usage limit: ask again after so many seconds, if it said so."""

    why: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A proposer's answer. `errors` is empty when its form is right."""

    items: tuple[Item, ...] = ()
    errors: tuple[str, ...] = ()
    limited: Limited | None = None
    note: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


def read(text: str) -> Answer:
    """Read an answer; what is wrong with its form is in `errors`, and never raised."""
    try:
        body = json.loads(text, parse_constant=_no_number)
        # What the ledger could not keep: halves of characters, numbers beyond any.
        json.dumps(body, ensure_ascii=False).encode()
        _require_plain(body)
    except (ValueError, RecursionError) as error:
        return Answer(errors=(f"the answer is not one JSON document: {error}",))
    if not isinstance(body, dict):
        return Answer(errors=("the answer is not a JSON object",))
    if (limited := _limited(body.get("limited"))) is not None:
        return Answer(limited=limited)
    errors = [f"the answer has a field {line(name, 64)!r} that means nothing here"
              for name in sorted(set(body) - set(SCHEMA["properties"]))[:MOST]]  # fmt: skip
    levers = body.get("levers")
    if not isinstance(levers, list):
        return Answer(errors=(*errors, "the answer has no list `levers`"))
    items = tuple(_item(place, one) for place, one in enumerate(levers[:MOST]))
    if (more := len(levers) - MOST) > 0:
        # All that is too much is one item: of what was sent, nothing else is said.
        said = f"{more} more left out: an answer may hold {MOST} levers at most"
        items += (Item(MOST, None, error=said),)
    errors += [f"levers[{one.position}] ({one.name}): {one.error}" for one in items if one.error]
    note, usage = body.get("note"), body.get("usage")
    return Answer(
        items, tuple(errors), None, line(note) if isinstance(note, str) else "",
        {line(k, 40): v for k, v in [*usage.items()][:ENTRIES] if _is_number(v)}
        if isinstance(usage, dict) else {},
    )  # fmt: skip


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _require_plain(value: Any) -> None:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _require_plain(one)
    elif isinstance(value, int | float) and abs(value) >= _LARGEST:
        raise ValueError("a number in it is beyond any that a lever needs")


def line(text: str, most: int = 400) -> str:
    """One printable line of at most so many characters, for terminals, however it was sent."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= most else words[: most - 1] + "…"


def _limited(said: object) -> Limited | None:
    if not isinstance(said, dict):
        return None
    after, why = said.get("retry_after_s"), said.get("why")
    return Limited(
        line(why) if isinstance(why, str) and why else "a usage limit",
        float(after) if isinstance(after, int | float) and 0 <= after < _LARGEST else None,
    )


def _item(place: int, body: Any) -> Item:
    try:
        return Item(place, body, _offer(body))
    except LeverError as error:
        return Item(place, body, error=line(str(error), REASON))


def _offer(body: Any) -> Offer:
    if not isinstance(body, dict):
        raise LeverError("it is not a JSON object")
    kind = body.get("kind")
    if kind not in KINDS:
        raise LeverError(f"its kind {line(repr(kind), 64)} is none of {', '.join(KINDS)}")
    _check(body, _FIELDS[kind])
    common = {name: body[name] for name in ("name", "predicted_gain")} | {
        "claim": line(body["claim"]), "falsify": line(body["falsify"]),
        "ceiling": body.get("ceiling"),
    }  # fmt: skip
    if kind == "patch":
        return Patch(diff=body["diff"], **common)
    if kind == "head":
        return Lever(
            kind="head", change={"head": body["recipe"]}, metric="tau", slow=True,
            needs=("drafts",), family="head.proposed", **common,
        )  # fmt: skip
    common |= {"hot": not body.get("cold", False), "slow": body.get("slow", False),
               "needs": tuple(body.get("needs", ()))}  # fmt: skip
    if kind == "sweep":
        return Sweep(
            field=body["field"], values=tuple(body.get("values", ())), low=body.get("low"),
            high=body.get("high"), log=body.get("log", False), trials=body.get("trials", 8),
            **common,
        )  # fmt: skip
    family = str(body["field"]).replace("_", ".")
    return Lever(kind="config", change={body["field"]: body["value"]}, family=family, **common)


_OF_TYPE = {"string": str, "boolean": bool, "object": dict, "array": list}


def _check(body: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Everything that is wrong with a lever's fields, in one LeverError."""
    properties, wrong = schema["properties"], []
    wrong += [f"{name} is missing" for name in schema["required"] if name not in body]
    for name, value in body.items():
        if name not in properties:
            wrong.append(f"it has a field {line(name, 64)!r} that its kind has not")
        elif (said := _amiss(value, properties[name])) is not None:
            wrong.append(f"{name} {said}")
    if wrong:
        raise LeverError("; ".join(wrong))


def _amiss(value: Any, wanted: Mapping[str, Any]) -> str | None:
    """What is wrong with one value; of JSON Schema as much as `SCHEMA` uses."""
    if "enum" in wanted:
        known = wanted["enum"]
        return None if value in known else f"is none of {', '.join(known)}"
    kinds = wanted.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"must be {' or '.join(kinds)}"
    if isinstance(value, str) and len(value.strip()) < wanted.get("minLength", 0):
        return "is empty"
    if isinstance(value, str) and len(value) > wanted.get("maxLength", len(value)):
        return f"is longer than {wanted['maxLength']} characters"
    if "pattern" in wanted and not _plain_name(value):
        return "must be 1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
    if _is_number(value) and not wanted.get("minimum", value) <= value <= wanted.get(
        "maximum", value
    ):
        return f"must lie between {wanted.get('minimum')} and {wanted.get('maximum')}"
    if isinstance(value, list):
        if len(value) < wanted.get("minItems", 0):
            return f"needs {wanted['minItems']} entries"
        if len(value) > wanted.get("maxItems", len(value)):
            return f"may have {wanted['maxItems']} entries"
        return next((s for v in value if (s := _amiss(v, wanted["items"])) is not None), None)
    if isinstance(value, dict) and "additionalProperties" in wanted:
        if len(value) > wanted.get("maxProperties", len(value)):
            return f"may have {wanted['maxProperties']} entries"
        if any(len(name) > wanted["propertyNames"]["maxLength"] for name in value):
            return f"has a name of more than {wanted['propertyNames']['maxLength']} characters"
        inner = wanted["additionalProperties"]
        return next((f"{line(k, 40)} {s}" for k, v in value.items()
                     if (s := _amiss(v, inner)) is not None), None)  # fmt: skip
    return None


def _is(value: Any, kind: str) -> bool:
    if kind == "number":
        return _is_number(value)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _OF_TYPE[kind])


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < _LARGEST


def _plain_name(text: str) -> bool:
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    return 0 < len(text) <= 64 and set(text) <= allowed and text[0].isalnum()
