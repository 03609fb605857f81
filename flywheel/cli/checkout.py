"""`flywheel best --checkout`: prints how to take the patches of the best, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from flywheel import best
from flywheel.cli.terminal import console, emit, open_ledger
from flywheel.errors import UsageError
from flywheel.ledger import views
from flywheel.ledger.rows import PatchRow, View
from flywheel.patch.chain import chain
from flywheel.patch.repository import REFS, Repository


def show(path: Path, *, json_: bool) -> int:
    """Every patch of the best, oldest first, and the git commands that take them all."""
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            view = views.load(connection)
    finally:
        opened.close()
    rows = chain(view, best.fold(view).config)
    told = _told(view, rows)
    if json_:
        emit(told)
        return 0
    out = console()
    if not rows:
        out.print(Text("the best has no patch: the code that is checked out is its code"))
        return 0
    for one in told["patches"]:
        out.print(Text(f"D{one['decision']}  {one['name']}: {one['claim']} "
                       f"({one['revision'][:12]} on {one['base'][:12]})"))  # fmt: skip
    out.print(Text(told["said"]))
    for command in told["commands"]:
        # Never wrapped: a command is for copying.
        out.print(Text(f"  {command}"), soft_wrap=True)
    return 0


def _told(view: View, rows: tuple[PatchRow, ...]) -> dict[str, Any]:
    patches = []
    for row in rows:
        variant = view.variant(row.variant_id)
        decision = None if variant.decision is None else variant.decision.number
        patches.append({
            "decision": decision, "name": row.name, "claim": variant.lever.claim, "base": row.base,
            "revision": row.revision, "diff_sha256": row.diff_sha256,
            "ref": f"{REFS}/{row.revision}",
        })  # fmt: skip
    if not rows:
        return {"patches": [], "said": "", "commands": []}
    said, commands = _how(rows)
    return {"patches": patches, "said": said, "commands": commands}


def _how(rows: tuple[PatchRow, ...]) -> tuple[str, list[str]]:
    first, last = rows[0], rows[-1]
    try:
        repository = Repository.of_engine(Path.cwd())
    except UsageError as error:
        return f"{error}", []
    if repository.has([row.diff for row in rows]):
        return (
            "the branch that is checked out has them all already; "
            "`flywheel run --new-campaign` goes on from there",
            [],
        )
    if repository.commit_of(last.revision) is None:
        return (
            f"revision {last.revision[:12]} is not in {repository.root}: it was made in another "
            "clone; `flywheel run` makes it again here, from the diff in the ledger",
            [],
        )
    if repository.head() == first.base:
        return "to take them:", [f"git merge --ff-only {last.revision}"]
    return "to take them, on top of what you have:", [
        f"git cherry-pick {first.base}..{last.revision}"
    ]
