"""`flywheel readjudicate`: every past verdict again, under another rule or under its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flywheel.cli import paper
from flywheel.cli.terminal import JsonOption, LedgerOption, console, emit, ledger_path, open_ledger
from flywheel.errors import DecisionError, UsageError

if TYPE_CHECKING:
    from flywheel.loop.readjudicate import Readjudicated, RuleOf
    from flywheel.statistics.decide import Rule


# What the fields of a rule in a file must be, where that is not any number.
_KINDS: Mapping[str, tuple[type, ...]] = {"n_min": (int,), "n_max": (int,), "version": (str,)}
_LONGEST = 80


def readjudicate(
    ledger: LedgerOption = Path("ledger.db"),
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="own (each campaign's), quick, full, or a JSON file with some of a rule's fields.",
        ),
    ] = "own",
    delta_min: Annotated[
        float | None, typer.Option("--delta-min", help="What a lever must save to be promoted.")
    ] = None,
    useful: Annotated[
        float | None, typer.Option("--useful", help="Worth less for sure is closed early.")
    ] = None,
    guard: Annotated[
        float | None, typer.Option("--guard", help="The loss that no category may hide.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option("--n-max", min=2, help="Blocks before giving up.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would flip; append nothing.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Decide every past lever again from what is stored; nothing is measured again or lost.

    Verdicts that flip are appended and supersede the old ones, which stay.

    Example: flywheel readjudicate --rule full --delta-min 0.01 --dry-run
    """
    from flywheel.box import lease
    from flywheel.box.clock import utc_text
    from flywheel.loop.readjudicate import readjudicate as decide_again

    path = ledger_path(ledger)
    given = {"delta_min": delta_min, "useful": useful, "guard": guard, "n_max": n_max}
    rule_of = rule_from(rule, {k: v for k, v in given.items() if v is not None})
    opened = open_ledger(path, writing=not dry_run)
    try:
        if dry_run:
            found = decide_again(opened, rule_of, now_utc=utc_text(), dry_run=True)
        else:
            # A rule may not change under a night that decides by another one.
            with lease.Lease.acquire(lease.daemon_path(path), "flywheel readjudicate"):
                found = decide_again(opened, rule_of, now_utc=utc_text())
    finally:
        opened.close()
    _answer(found, rule, dry_run=dry_run, json_=json_)
    return 0


def rule_from(name: str, changes: Mapping[str, Any]) -> RuleOf:
    """The rule for each campaign: a named one or each one's own, with these fields changed.

    UsageError for a name that is neither a rule nor a file with one, and for impossible values.
    """
    from flywheel.statistics.campaign import FULL, QUICK
    from flywheel.statistics.decide import RULE_VERSION

    named = {"quick": QUICK.rule, "full": FULL.rule}
    told = {} if name == "own" or name in named else _of_file(Path(name))
    # Whoever reads the ledger later must see that this was none of the released rules.
    # A file is told by its name; where it lies is nobody's later business.
    where = name if name == "own" or name in named else Path(name).name
    version = told.pop("version", f"{RULE_VERSION}, {where}" if told or changes else RULE_VERSION)

    def changed(rule: Rule) -> Rule:
        try:
            return replace(rule, **{**told, **changes}, version=version)
        except (DecisionError, TypeError) as error:
            raise UsageError(f"that is no rule: {error}.") from error

    # Impossible values are refused before a ledger is opened.
    changed(named.get(name, FULL.rule))
    return lambda campaign: changed(named.get(name, campaign.settings.rule))


def _of_file(path: Path) -> dict[str, Any]:
    from flywheel.statistics.decide import Rule

    try:
        text = paper.text(path).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    except UsageError as error:
        raise UsageError(f"{path} is no rule: own, quick, full, or a file; {error}") from error
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    known = {f.name for f in fields(Rule)}
    if not isinstance(value, dict) or not value or set(value) - known:
        odd = f"; not {min(set(value) - known)!r}" if isinstance(value, dict) and value else ""
        raise UsageError(
            f"{path} must hold an object with some of: {', '.join(sorted(known))}{odd}."
        )
    for name, one in value.items():
        kinds = _KINDS.get(name, (int, float))
        unguarded = one is None and name in ("tau", "memory")
        if not unguarded and (isinstance(one, bool) or not isinstance(one, kinds)):
            wanted = {str: "text", int: "a whole number"}.get(kinds[0], "a number")
            wanted = wanted if len(kinds) == 1 else "a number"
            raise UsageError(f"{path}: {name} must be {wanted}, not {json.dumps(one)}.")
    if (named := value.get("version")) is not None and not _own_version(named):
        raise UsageError(
            f"{path}: version must be up to {_LONGEST} letters, and not a released rule's."
        )
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names a field twice")
    return found


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _own_version(text: str) -> bool:
    """Whoever reads the ledger later takes a released rule's version for that rule."""
    released = text[:1] == "e" and text[1:].isdigit()
    return 0 < len(text.strip()) <= len(text) <= _LONGEST and text.isprintable() and not released


def _answer(found: Readjudicated, rule: str, *, dry_run: bool, json_: bool) -> None:
    if json_:
        emit({
            "rule": rule, "dry_run": dry_run, "decided": found.decided,
            "flips": [flip.as_dict() for flip in found.flips],
            "orphans": list(found.orphans),
            "best": {"before": dict(found.before), "after": dict(found.after)},
        })  # fmt: skip
        return
    out = console()
    for flip in found.flips:
        head = f"D{flip.decision}  {flip.lever}: {flip.before} -> {flip.after}"
        out.print(Text(head + ("" if flip.number is None else f" by D{flip.number}")))
        out.print(Text(f"    was: {flip.was}", style="dim"))
        out.print(Text(f"    now: {flip.why}"))
    for name in found.orphans:
        out.print(Text(f"{name} was measured on top of a promotion that no longer stands"))
    flips = "1 verdict flips" if len(found.flips) == 1 else f"{len(found.flips)} verdicts flip"
    tail = "; nothing was appended" if dry_run and found.flips else ""
    out.print(Text(f"{flips} of {found.decided}{tail}"))
    if dict(found.before) != dict(found.after):
        out.print(Text(f"the best becomes {dict(found.after)}"))


__all__ = ["readjudicate", "rule_from"]
