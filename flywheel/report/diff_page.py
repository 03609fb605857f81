"""Two configurations: what differs, and what each difference was measured to be worth. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel import best as best_of
from flywheel.errors import UsageError
from flywheel.ledger.rows import BlockRow, RunRow, VariantRow, View
from flywheel.lever import canonical, fingerprint
from flywheel.report import find
from flywheel.report.compose import looked_at
from flywheel.report.headline import fractions
from flywheel.report.tables import Line, Page, wrapped
from flywheel.report.words import ends, sample

_DECISION = re.compile(r"[Dd]?([0-9]{1,9})")
_ARM = re.compile(r"(r\w[\w.-]*?)(?::([A-Z]))?", re.ASCII)
SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Side:
    """A configuration as it was named and what it is."""

    asked: str
    meaning: str
    config: Mapping[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Worth:
    """One measurement of a step: gain from A's value to B's, a fraction of time saved.

    `reversed_` says that it was measured from B's value to A's and turned round.
    """

    decision: int | None
    variant: str
    ending: str
    mean: float
    low: float | None
    high: float | None
    unbounded: bool
    blocks: int
    runs: tuple[str, ...]
    reversed_: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """One field. None stands for a value that is left to the engine and not known."""

    field: str
    a: Any
    b: Any
    worth: tuple[Worth, ...]


@dataclass(frozen=True, slots=True)
class DiffPage:
    """`together` is what measured A against B as a whole, if anything did."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    together: tuple[Worth, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def side(view: View, wanted: str) -> Side:
    """What `best`, `first`, D7, v0003, a run (r00012:A), a JSON file or a fingerprint names.

    A decision, a variant and a run without an arm mean the candidate that was tried.
    """
    meaning, config = _meant(view, wanted)
    return Side(wanted, meaning, dict(config), fingerprint(dict(config)))


def _meant(view: View, wanted: str) -> tuple[str, Mapping[str, Any]]:
    best = best_of.fold(view)
    if wanted in ("best", "first"):
        config = best.config if wanted == "best" else best.first_config
        return f"the {wanted} configuration", config
    variants = {v.id: v for v in view.variants}
    if match := _DECISION.fullmatch(wanted):
        made = {d.number: d for d in view.decisions}
        if int(match[1]) in made:
            variant = variants[made[int(match[1])].variant_id]
            return f"what D{match[1]} decided on", variant.candidate
    if wanted in variants:
        return f"the candidate of {wanted}", variants[wanted].candidate
    if wanted.endswith(".json") or _is_file(wanted):
        return f"the file {wanted}", _from_file(Path(wanted))
    return _run_or_fingerprint(view, wanted)


def _run_or_fingerprint(view: View, wanted: str) -> tuple[str, Mapping[str, Any]]:
    known = {fingerprint(dict(c)): c for v in view.variants for c in (v.incumbent, v.candidate)}
    if len(wanted) >= SHORTEST and any(name.startswith(wanted) for name in known):
        return "a measured configuration", find.by_prefix("configuration", wanted, known)
    match = _ARM.fullmatch(wanted)
    if match is None:
        hint = "best, first, a decision (D7), a variant, a run, a JSON file or a fingerprint"
        names = ["best", "first", *(v.id for v in view.variants)]
        close = find.nearest(wanted, names)
        raise UsageError(f"{find.short(wanted)} names no configuration{close or f'; give {hint}'}")
    variant, block, run = find.run(view, match[1])
    arms = _arms(view, variant, block, run)
    arm = match[2] or max(arms)
    if arm not in arms:
        raise UsageError(f"run {run.id} has no arm {arm}; it has {' and '.join(arms)}.")
    return f"arm {arm} of run {run.id}", arms[arm]


def _arms(
    view: View, variant: VariantRow, block: BlockRow, run: RunRow
) -> dict[str, Mapping[str, Any]]:
    """The configurations that a run held: both of a hot block, the one of its slot of a cold."""
    both = {"A": variant.incumbent, "B": variant.candidate}
    if block.hot:
        return both
    if block.mate_id is None:
        return {block.pattern[run.slot]: both[block.pattern[run.slot]]}
    # A screen holds two candidates between two incumbents.
    mate = view.variant(block.mate_id).candidate
    return dict([(("A", both["A"]), ("B", both["B"]), ("C", mate), ("A", both["A"]))[run.slot]])


def _is_file(wanted: str) -> bool:
    try:
        return Path(wanted).is_file()
    except OSError:  # longer than any name
        return False


def _from_file(path: Path) -> Mapping[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no readable JSON file: it is no file.")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} is no readable JSON file: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no readable JSON file: {error}.") from error
    if isinstance(value, Mapping) and isinstance(value.get("config"), Mapping):
        value = value["config"]
    if not isinstance(value, Mapping):
        raise UsageError(f"{path} holds no configuration: it is not a JSON object.")
    return value


def diff_page(
    view: View, a: Side, b: Side, effective: Mapping[str, Mapping[str, Any]]
) -> DiffPage:
    """Field by field; `effective` is what the engine made of each requested configuration."""
    left, right = (_resolved(one.config, effective) for one in (a, b))
    differences = []
    for name in sorted({*left, *right}):
        old, new = left.get(name), right.get(name)
        if canonical(old) != canonical(new):
            differences.append(Difference(name, old, new, _worth(view, name, old, new, effective)))
    return DiffPage(a, b, tuple(differences), _together(view, a, b))


def _resolved(
    config: Mapping[str, Any], effective: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """With the engine's own choices; those of other configurations where it never ran."""
    known = effective.get(canonical(best_of.engine_part(config)))
    return {**(_defaults(effective) if known is None else known), **config}


def _defaults(effective: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the engine chose for each field that was left to it; the newest choice."""
    found: dict[str, Any] = {}
    for requested, resolved in effective.items():
        asked = json.loads(requested)
        found.update({name: value for name, value in resolved.items() if name not in asked})
    return found


def _worth(
    view: View, name: str, a: Any, b: Any, effective: Mapping[str, Mapping[str, Any]]
) -> tuple[Worth, ...]:
    """Decided levers that took this field from A's value to B's, or back; newest last."""
    found = []
    for variant in view.variants:
        if variant.lever.field_name != name or variant.decision is None:
            continue
        old = canonical(_resolved(variant.incumbent, effective).get(name))
        new = canonical(variant.lever.change[name])
        if (old, new) == (canonical(a), canonical(b)):
            found.append(_measured(view, variant, turned=False))
        elif (new, old) == (canonical(a), canonical(b)):
            found.append(_measured(view, variant, turned=True))
    return tuple(one for one in found if one is not None)


def _measured(view: View, variant: VariantRow, *, turned: bool) -> Worth | None:
    made = variant.decision
    if made is None or made.band is None:
        return None
    mean, low, high = fractions(made.band)
    if turned:
        mean, low, high = _turned(mean) or 0.0, _turned(high), _turned(low)
    runs = tuple(r.id for b in variant.measured or looked_at(view, variant) for r in b.loads)
    return Worth(made.number, variant.id, made.ending, mean, low, high,
                 low is None or high is None, made.n, runs, turned)


def _turned(gain: float | None) -> float | None:
    """The gain of going back: times multiply, so 20 % saved is 25 % lost."""
    return None if gain is None or gain >= 1.0 else 1.0 - 1.0 / (1.0 - gain)


def _together(view: View, a: Side, b: Side) -> tuple[Worth, ...]:
    best = best_of.fold(view)
    names = (canonical(dict(a.config)), canonical(dict(b.config)))
    anchored = (canonical(dict(best.first_config)), canonical(dict(best.config)))
    head = best_of.headline(view, best) if names in (anchored, anchored[::-1]) else None
    if head is None or names[0] == names[1]:
        return ()
    band, blocks = head
    mean, low, high = fractions(band)
    turned = names != anchored
    if turned:
        mean, low, high = _turned(mean) or 0.0, _turned(high), _turned(low)
    runs = tuple(r.id for block in blocks for r in block.runs)
    return (Worth(None, blocks[-1].variant_id, "measured", mean, low, high,
                  low is None or high is None, band.n, runs, turned),)


def lines(page: DiffPage, paper: Page) -> Iterator[Line]:
    """The page on a terminal."""
    for name, end in (("A", page.a), ("B", page.b)):
        yield from wrapped(paper, name, f"{end.meaning}, {end.fingerprint[:12]}", width=2)
    yield Line()
    if not page.differences:
        yield from wrapped(paper, "", "the same configuration: nothing differs")
        return
    for one in page.differences:
        change = f"{one.field}: {shown(one.a)} -> {shown(one.b)}"
        yield from wrapped(paper, "", change, style="bold")
        for worth in one.worth:
            yield from wrapped(paper, "", worth_text(worth), indent=4)
        if not one.worth:
            yield from wrapped(paper, "", "never measured", indent=4)
    yield Line()
    whole = [worth_text(w) for w in page.together] or ["A against B as a whole was never measured"]
    for text in whole:
        yield from wrapped(paper, "together", text)
    if len(page.differences) > 1:
        said = "gains do not add: each was measured on its own incumbent"
        yield from wrapped(paper, "note", said)


def shown(value: Any) -> str:
    """A value as printed; one that is left to the engine says so."""
    if value is None:
        return "(the engine's default)"
    return value if isinstance(value, str) else canonical(value)


def worth_text(worth: Worth) -> str:
    """One measurement in words."""
    word = "saves" if worth.mean >= 0 else "costs"
    name = f"D{worth.decision} {worth.ending}" if worth.decision else f"{worth.variant} anchor"
    back = ", measured the other way round" if worth.reversed_ else ""
    sign = 100 if worth.mean >= 0 else -100
    band = ends(worth.low, worth.high) if worth.mean >= 0 else ends(
        None if worth.high is None else -worth.high, None if worth.low is None else -worth.low
    )
    return (
        f"{word} {worth.mean * sign:.1f} % {band} of the time, "
        f"{sample(worth.blocks, measured=True)} ({name}{back})"
    )
