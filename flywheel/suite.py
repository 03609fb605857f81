"""Which prompts a campaign measures: read from the suite's file, whose text stays the engine's."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import UsageError
from flywheel.files import dump, read_json, write_atomic
from flywheel.statistics.tau import HELD_OUT

# A quick ruler measures the first prompt of every fifth category, from the fourth on: one of eight.
QUICK_FROM, QUICK_STRIDE = 3, 5
DEFAULT_SUITE = "tiny-v1"
DEFAULT_HOLDOUT = "tiny-holdout-v1"
# A head is judged by prompts, and a GPU is through with these in minutes.
DEFAULT_HEADS = "tiny-heads-v1"


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

    The file is made in `folder`; held-out prompts are named `holdout/...`, and categories stay
    together. Without a hold-out the suite itself is the answer.
    """
    own = load(path)
    if holdout is None:
        return path, own.ids
    more = load(holdout)
    bodies = [read_json(p) or {} for p in (path, holdout)]
    held = [{**entry, "id": HELD_OUT + str(entry["id"])} for entry in bodies[1]["prompts"]]
    order = list(dict.fromkeys(category for _, category in (*own.prompts, *more.prompts)))
    both = sorted([*bodies[0]["prompts"], *held], key=lambda e: order.index(e["category"]))
    made = folder / f"{own.name}+{more.name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{own.name}+{more.name}"
    write_atomic(made, dump({"name": name, "version": bodies[0]["version"], "prompts": both}))
    return made, tuple(str(entry["id"]) for entry in both)
