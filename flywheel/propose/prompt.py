"""A brief as text for a language model, within so many characters. Pure, standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Where one lever of each kind stands for its form: models copy an example better than a schema.
EXAMPLE = {
    "levers": [
        {
            "kind": "config", "name": "chunk.128", "field": "prefill_chunk", "value": 128,
            "claim": "the mechanism that should make it faster",
            "falsify": "what would show that it is not", "predicted_gain": 0.01,
        },
        {
            "kind": "sweep", "name": "threads.search", "field": "threads", "low": 1, "high": 8,
            "claim": "the mechanism", "falsify": "what would show that it is not",
            "predicted_gain": 0.02,
        },
    ]
}  # fmt: skip


def system(brief: Mapping[str, Any], most: int) -> str:
    """What is asked for, the form, and the rules; a small model gets the first alone."""
    task = str(brief.get("task", ""))
    rules = "\n".join(f"- {rule}" for rule in brief.get("rules", ()))
    whole = f"{task}\n\nRules:\n{rules}\n\nExample of the form:\n{_short(EXAMPLE)}"
    return whole if len(whole) <= most // 2 else task


def user(brief: Mapping[str, Any], most: int) -> str:
    """What is known, the most useful first, cut at a whole entry to `most` characters."""
    parts: list[str] = []
    left = most
    for title, entries in _sections(brief):
        taken = []
        left -= len(title) + 3
        for entry in entries:
            if len(entry) + 1 > left:
                break
            taken.append(entry)
            left -= len(entry) + 1
        if taken:
            parts.append("\n".join((f"{title}:", *taken)))
    return "\n\n".join(parts)


def _sections(brief: Mapping[str, Any]) -> Iterator[tuple[str, Iterator[str]]]:
    incumbent, profile = brief.get("incumbent") or {}, brief.get("profile") or {}
    levers = brief.get("levers") or {}
    yield "Hardware", iter([_short(brief.get("hardware", {}))])
    yield "Incumbent", iter([_short(incumbent.get("config", {})),
                             *(_short({k: incumbent[k]}) for k in ("ms_per_token",)
                               if k in incumbent)])  # fmt: skip
    fields = brief.get("fields") or {}
    yield "Fields that may be set", (f"{name}: {_short(told)}" for name, told in fields.items())
    ranking = profile.get("ranking") or ()
    yield "What is left to gain, by phase of a step", (_short(one) for one in ranking)
    closed = reversed(levers.get("closed") or ())
    yield "Closed, newest first", (_short(_only(one, "name", "change", "ending", "why"))
                                   for one in closed)  # fmt: skip
    yield "Open already", (_short(_only(one, "name", "change")) for one in levers.get("open") or ())
    yield "Refused of late", (_short(one) for one in reversed(brief.get("refused") or ()))
    yield "Ceilings", (_short(_only(one, "lever", "ceiling"))
                       for one in brief.get("ceilings") or ())  # fmt: skip
    yield "Findings", (f"F{one['number']} {one['said']}"
                       for one in reversed(brief.get("findings") or ()))  # fmt: skip


def _only(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: body[name] for name in names if name in body}


def _short(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def found_json(text: str) -> str | None:
    """The last JSON object with `levers` or `limited` in a longer text; None without one."""
    decoder, found, place = json.JSONDecoder(), None, text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            if isinstance(value, dict) and {"levers", "limited"} & set(value):
                found = text[place:end]
        place = text.find("{", end)
    return found
