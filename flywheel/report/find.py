"""Names that a person types, and the rows they mean. UsageError for what is not there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from flywheel.errors import UsageError
from flywheel.ledger.rows import BlockRow, RunRow, VariantRow, View
from flywheel.lever import Lever

Found = TypeVar("Found")
SHORTEST, LONGEST = 4, 60


def by_prefix(what: str, wanted: str, known: Mapping[str, Found]) -> Found:
    """The one entry that `wanted` names or begins; UsageError names near misses or all matches."""
    if wanted in known:
        return known[wanted]
    matches = sorted(name for name in known if wanted and name.startswith(wanted))
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        some = ", ".join(matches[:6]) + (" ..." if matches[6:] else "")
        raise UsageError(f"{len(matches)} {what}s begin with {wanted!r}: {some}; say more.")
    raise UsageError(f"there is no {what} {short(wanted)}{nearest(wanted, known)}")


def short(wanted: str) -> str:
    """What was asked for, in quotes; the beginning of what is longer than any name."""
    return repr(wanted if len(wanted) <= LONGEST else f"{wanted[:LONGEST]}...")


def nearest(wanted: str, names: Sequence[str] | Mapping[str, object]) -> str:
    """`; did you mean ...?` with up to three known names like it, or nothing."""
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(wanted.casefold(), list(folded), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(folded[name] for name in close)}?" if close else ""


def run(view: View, wanted: str) -> tuple[VariantRow, BlockRow, RunRow]:
    """The run of that id, or of the only id that begins so."""
    known = {r.id: (v, b, r) for v in view.variants for b in v.blocks for r in b.runs}
    return by_prefix("run", wanted, known)


def lever(view: View, declared: Sequence[Lever], wanted: str) -> Lever:
    """The lever that a name, a variant, a decision (D7) or the start of an identity means.

    A declared one stands before a measured one of the same name.
    """
    for variant in view.variants:
        made = variant.decision
        if wanted in (variant.id, f"D{made.number}" if made else None) and not variant.null:
            return variant.lever
    known = {v.lever.name: v.lever for v in view.variants if not v.lever.null}
    known |= {one.name: one for one in declared if not one.null}
    if wanted in known:
        return known[wanted]
    by_identity = {one.identity: one for one in known.values()}
    if len(wanted) >= SHORTEST and any(i.startswith(wanted) for i in by_identity):
        return by_prefix("lever", wanted, by_identity)
    hint = nearest(wanted, known) or "; flywheel levers list shows them"
    raise UsageError(f"there is no lever {short(wanted)}{hint}")
