"""Which prompts a campaign measures: read from the suite's file, whose text stays the engine's."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.errors import UsageError
from flywheel.files import dump, read_json, write_atomic
from flywheel.statistics.tau import HELD_OUT

# A quick ruler measures the first prompt of every fifth category, from the fourth on: one of eight.
QUICK_FROM, QUICK_STRIDE = 3, 5
DEFAULT_SUITE = "tiny-v1"
DEFAULT_HOLDOUT = "tiny-holdout-v1"
# A head is judged by prompts, and a GPU is through with these in minutes.
DEFAULT_HEADS = "tiny-heads-v1"
_ROLES = ("system", "user", "assistant")
_STEM = 100  # letters that the name of a copied suite keeps of its file's


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite's file and its prompts as (id, category), in the file's order."""

    path: Path
    name: str
    prompts: tuple[tuple[str, str], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Every prompt."""
        return tuple(identity for identity, _ in self.prompts)

    def quick(self) -> tuple[str, ...]:
        """The few prompts of a quick ruler; never none."""
        first: dict[str, str] = {}
        for identity, category in self.prompts:
            first.setdefault(category, identity)
        every = tuple(first.values())
        return every[QUICK_FROM::QUICK_STRIDE] or every[:1]


def engine_assets() -> Path:
    """The engine's data folder, found without importing the engine."""
    spec = importlib.util.find_spec("engine")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("the engine package is not installed beside flywheel.")
    return Path(next(iter(spec.submodule_search_locations))) / "assets"


def embedded(name: str) -> Path:
    """The file of a suite that the engine ships."""
    return engine_assets() / "suites" / f"{name}.json"


def load(path: Path) -> Suite:
    """The suite in a file; UsageError when it is no suite."""
    body = read_json(path)
    if body is None:
        raise UsageError(f"there is no readable suite at {path}.")
    prompts = body.get("prompts")
    if not isinstance(prompts, list) or not prompts:
        raise UsageError(f"the suite {path} has no prompts.")
    found = []
    for entry in prompts:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise UsageError(f"the suite {path} has a prompt without an id.")
        found.append((entry["id"], str(entry.get("category") or entry["id"])))
    if len({identity for identity, _ in found}) != len(found):
        raise UsageError(f"the suite {path} names a prompt twice.")
    return Suite(path, str(body.get("name") or path.stem), tuple(found))


def beside(path: Path, holdout: Path | None, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A suite with a hold-out in one file, so that one load measures both; and its prompts.

    The file is made in `folder`, under a name that no other content has; held-out prompts are named
    `holdout/...`, and categories stay in the engine's order. Without a hold-out the suite itself is
    the answer. UsageError for two that are no one suite.
    """
    own = load(path)
    taken = next((i for i in own.ids if i.startswith(HELD_OUT)), None)
    if taken is not None:
        raise UsageError(f"the suite {path} has a prompt {taken}; so are only a hold-out's named.")
    if holdout is None:
        return path, own.ids
    more = load(holdout)
    bodies = [read_json(p) or {} for p in (path, holdout)]
    named = ("", HELD_OUT)
    every = [
        (category, {**entry, "id": start + identity})
        for part, start, body in zip((own, more), named, bodies, strict=True)
        for (identity, category), entry in zip(part.prompts, body["prompts"], strict=True)
    ]
    known = load(embedded(DEFAULT_SUITE))
    order = list(dict.fromkeys((*(c for _, c in known.prompts), *(c for c, _ in every))))
    both = [entry for _, entry in sorted(every, key=lambda one: order.index(one[0]))]
    name = f"{own.name}+{more.name}"
    text = dump({"name": name, "version": bodies[0].get("version"), "prompts": both})
    made = _kept(text, path.stem, folder)
    return made, tuple(str(entry["id"]) for entry in both)


def copied(path: Path, folder: Path) -> Path:
    """A suite as it is now, in `folder`, under a name that no other content has."""
    load(path)
    return _kept(dump(read_json(path) or {}), path.stem, folder)


def content_sha256(path: Path) -> str:
    """The hash by which the engine names a suite: over its content, however it is written."""
    return body_sha256(read_json(path) or {})


def body_sha256(body: Mapping[str, Any]) -> str:
    """The hash of a suite's content."""
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def shared(path: Path, other: Path) -> str | None:
    """The first prompt of a suite that another suite asks in the same words; None without one."""
    bodies = [(read_json(p) or {}).get("prompts", ()) for p in (path, other)]
    theirs = [entry.get("messages") for entry in bodies[1]]
    same = (e["id"] for e in bodies[0] if e.get("messages") and e["messages"] in theirs)
    return next(same, None)


def askable(entry: Mapping[str, Any]) -> bool:
    """Whether a client can ask a prompt in these very words: no tools, no cut, no effort."""
    messages = entry.get("messages")
    return (
        isinstance(messages, list)
        and entry.get("thinking") is False
        and entry.get("take") is None
        and all(
            isinstance(m, dict) and set(m) == {"role", "content"} and m["role"] in _ROLES
            for m in messages
        )
    )


def _kept(text: str, stem: str, folder: Path) -> Path:
    """The file of a text in `folder`, written once."""
    made = folder / f"{stem[:_STEM]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    if not made.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(made, text)
    return made
