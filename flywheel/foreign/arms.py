"""A table of draft heads that another project measured, judged again by our gates. Pure.

Two worlds: the incumbents as they stood (whoever was promoted at the time, rightly or not), and the
incumbents as the rule alone would have made them. A head is judged only against an incumbent
measured at its own draft width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from flywheel import release
from flywheel.run.refusal import Refusal, RefusedLogError

AS_IT_STOOD, BY_THE_RULE = "as it stood", "by the rule"
_REMEASURED = re.compile(r"remeasured_at_width_(\d{1,3})\Z")
_COLUMN = re.compile(r"(\S+)@(\d{1,3}) (tau|tok/s)\Z")
# JSON can escape half of a pair, which no encoding has a form for.
_HALF = re.compile("[\ud800-\udfff]")
_ROUNDED = Fraction(5, 100_000)


@dataclass(frozen=True, slots=True)
class Arm:
    """One head as stated; `tau` is the table's word, None where it was not measured."""

    name: str
    width: int | None
    tau: Fraction | None
    tok_s: Fraction | None
    stated: str

    @property
    def was_promoted(self) -> bool:
        """Whether it became the incumbent at the time, even if that was taken back later."""
        return self.stated.startswith("promoted")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One head judged in one world; `ruling` is None where there was nothing to judge it by."""

    arm: Arm
    ending: str
    incumbent: str
    ruling: release.Ruling | None
    said: str


@dataclass(frozen=True, slots=True)
class Table:
    """`again` holds taus measured anew: (head, width). `categories` (head, width, column)."""

    margin: Fraction
    arms: tuple[Arm, ...]
    again: Mapping[tuple[str, int], Fraction]
    categories: Mapping[tuple[str, int, str], Mapping[str, Fraction]]

    def at(self, name: str, width: int) -> Fraction | None:
        """A head's tau at a width, measured there."""
        if (name, width) in self.again:
            return self.again[name, width]
        return next((a.tau for a in self.arms if (a.name, a.width) == (name, width)), None)


def parse(text: str) -> Table | Refusal:
    """The table, or the first thing wrong with it. Never an exception."""
    try:
        raw = json.loads(text, parse_float=Decimal, parse_int=_bounded, parse_constant=_no_number,
                         object_pairs_hook=_once)
        return _table(raw)
    except RefusedLogError as error:
        return error.refusal
    except (ValueError, RecursionError, ArithmeticError):
        return Refusal("not_a_table", "this is no JSON table of arms")


def judge(table: Table, world: str) -> tuple[Verdict, ...]:
    """Every head in the order measured, against the incumbent of its moment in that world."""
    out: list[Verdict] = []
    holder: Arm | None = None
    for arm in table.arms:
        made = _judged(table, arm, holder)
        out.append(made)
        takes = arm.was_promoted if world == AS_IT_STOOD else made.ending == "promoted"
        if arm.tau is not None and (holder is None or takes):
            holder = arm
    return tuple(out)


def flips(table: Table) -> tuple[str, ...]:
    """Heads whose stated verdict the rule, followed from the start, would not have given."""
    return tuple(
        v.arm.name
        for v in judge(table, BY_THE_RULE)
        if v.ruling is not None and v.ruling.promoted != v.arm.was_promoted
    )


def floors(table: Table) -> Mapping[str, tuple[release.Floor, ...]]:
    """Floors of each promoted head that has categories at its width, beside stock and incumbent."""
    out: dict[str, tuple[release.Floor, ...]] = {}
    for verdict in judge(table, AS_IT_STOOD):
        arm, width = verdict.arm, verdict.arm.width or 0
        mine = table.categories.get((arm.name, width, "tau"))
        stock = table.categories.get(("stock", width, "tau"))
        held = table.categories.get((verdict.incumbent, width, "tau"))
        if verdict.ending == "promoted" and mine and stock and held:
            out[arm.name] = release.floors(mine, stock, held)
    return out


def facts(table: Table) -> dict[str, object]:
    """What the table comes to, as plain JSON."""
    return {
        "arms": len(table.arms),
        "bar": f"above the incumbent x {float(1 + table.margin):g} at the same draft width",
        "flips": list(flips(table)),
        "release": {
            name: [f.sentence() for f in kept if not f.kept]
            for name, kept in floors(table).items()
        },
        "category_means": {name: float(mean) for name, mean in means(table).items()},
        "is_a_tau": False,
        "why_not": "measured by an engine that decodes past the end of a sequence",
    }


def means(table: Table) -> Mapping[str, Fraction]:
    """The mean over categories of each column, such as `s3@5 tau`."""
    return {
        f"{name}@{width} {what}": sum(values.values(), Fraction()) / len(values)
        for (name, width, what), values in table.categories.items()
    }


def _judged(table: Table, arm: Arm, holder: Arm | None) -> Verdict:
    if arm.tau is None or arm.width is None:
        return Verdict(arm, "unmeasured", "", None, "it was never measured")
    if holder is None:
        return Verdict(arm, "baseline", "", None, "the first head is what the others must beat")
    against = table.at(holder.name, arm.width)
    if against is None:
        said = f"width: {holder.name} was never measured at width {arm.width}"
        return Verdict(arm, "incomparable", holder.name, None, said)
    ruling = release.rule(arm.tau, against, table.margin)
    ending = "promoted" if ruling.promoted else "refused"
    return Verdict(arm, ending, holder.name, ruling, ruling.sentence())


def _table(raw: object) -> Table:
    body = _mapping(raw, "the table")
    arms = tuple(_arm(a, i) for i, a in enumerate(_list(body.get("arms"), "arms")))
    if not arms:
        raise RefusedLogError("not_a_table", "it lists no arm")
    names = [(a.name, a.width) for a in arms]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise RefusedLogError("duplicate_arm", f"{twice[0]} is listed twice")
    again = {
        (name, int(match[1])): _positive(_mapping(values, name).get("suite_tau"), name)
        for key, block in body.items()
        if (match := _REMEASURED.match(key))
        for name, values in _mapping(block, key).items()
    }
    percent = _positive(body.get("bar_percent"), "bar_percent")
    table = Table(percent / 100, arms, again, dict(_categories(body.get("per_category"))))
    _check_means(table)
    return table


def _arm(raw: object, index: int) -> Arm:
    body = _mapping(raw, f"arm {index}")
    name, stated = body.get("name"), body.get("status")
    if not isinstance(name, str) or not name or not isinstance(stated, str):
        raise RefusedLogError("not_a_table", f"arm {index} has no name or no status")
    width = body.get("draft_width")
    if width is not None and (type(width) is not int or not 1 <= width <= 64):
        raise RefusedLogError("not_a_table", f"{name}: draft_width is no width")
    tau, tok_s = (
        None if body.get(k) is None else _positive(body[k], f"{name}: {k}")
        for k in ("suite_tau", "suite_tok_s")
    )
    if tau is not None and width is not None and tau > width + 1:
        raise RefusedLogError("impossible_rate", f"{name}: tau {float(tau):g} at width {width}")
    return Arm(name, width, tau, tok_s, stated)


def _categories(raw: object) -> Iterator[tuple[tuple[str, int, str], dict[str, Fraction]]]:
    if raw is None:
        return
    body = _mapping(raw, "per_category")
    rows = _mapping(body.get("rows"), "per_category.rows")
    if missing := {*release.RECONSTRUCTIVE, *release.CONSTRUCTIVE} - rows.keys():
        raise RefusedLogError("not_a_table", f"per_category has no row {min(missing)}")
    for place, title in enumerate(_list(body.get("columns"), "per_category.columns")):
        match = _COLUMN.match(title) if isinstance(title, str) else None
        if match is None:
            raise RefusedLogError("not_a_table", f"per_category has a column {title!r}")
        values = {}
        for category, cells in rows.items():
            row = _list(cells, category)
            values[category] = _positive(row[place] if place < len(row) else None, category)
        yield (match[1], int(match[2]), match[3]), values


def _check_means(table: Table) -> None:
    """The mean over categories must round to the head's own tau: two tables of one measurement."""
    for (name, width, what), values in table.categories.items():
        stated = table.at(name, width)
        if what != "tau" or stated is None or not values:
            continue
        mean = sum(values.values(), Fraction()) / len(values)
        if abs(mean - stated) > _ROUNDED:
            raise RefusedLogError(
                "inconsistent",
                f"{name}: its categories average {float(mean):.4f}, the table says "
                f"{float(stated):.4f}",
            )


def _mapping(raw: object, name: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise RefusedLogError("not_a_table", f"{name} is no object")
    return raw


def _list(raw: object, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise RefusedLogError("not_a_table", f"{name} is no list")
    return raw


def _positive(raw: object, name: str) -> Fraction:
    if isinstance(raw, bool) or not isinstance(raw, int | Decimal) or not 0 < raw < 10**6:
        raise RefusedLogError("impossible_rate", f"{name} is no number above zero")
    value = Fraction(raw)
    if value.denominator > 10**9:
        raise RefusedLogError("impossible_rate", f"{name} has more digits than were measured")
    return value


def _bounded(text: str) -> int:
    if len(text) > 12:
        raise RefusedLogError("impossible_rate", "a number of more than twelve digits")
    return int(text)


def _no_number(word: str) -> object:
    raise RefusedLogError("impossible_rate", f"a number is given as {word}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RefusedLogError("not_a_table", "an object names a field twice")
    for name, value in pairs:
        for text in (name, *(value if isinstance(value, list) else (value,))):
            if isinstance(text, str) and _HALF.search(text):
                raise RefusedLogError("not_a_table", f"{text!a} is half a character")
    return found
