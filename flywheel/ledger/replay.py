"""A lost ledger, made again from the run directories alone.

Each directory holds its manifest (with its lineage: campaign, lever, block), the log, and how the
run ended. They are entered in the order in which they were planned, through the same functions
that entered them first, so the same estimates, decisions and best come out. What no run tells is
not there: levers closed by their price alone, halts, takeovers, and verdicts that
`flywheel readjudicate` changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flywheel.best import Best, fold
from flywheel.errors import LedgerError, UsageError
from flywheel.ledger import place, views
from flywheel.ledger.store import Ledger
from flywheel.loop import entry, planned
from flywheel.loop.step import NextBlock
from flywheel.run import launch, lineage
from flywheel.run.ingest import Ingested, ingest
from flywheel.run.lineage import Lineage
from flywheel.run.manifest import FILE, Manifest


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was made: runs entered, a sentence for each one left out, and the best."""

    runs: int
    skipped: tuple[str, ...]
    best: Best


@dataclass(frozen=True, slots=True)
class _Run:
    folder: Path
    manifest: Manifest
    lineage: Lineage

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it came in the history."""
        block = int(self.lineage.step.block_id[1:])
        return self.lineage.campaign.id, block, self.manifest.load_index


def replay(
    runs: Path, path: Path, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Replayed:
    """Make the ledger at `path`, which must not exist, from the directories in `runs`.

    Raises LedgerError for a directory whose manifest cannot be read or does not say where the run
    belongs: a history with a hole would come to another best.
    """
    if path.exists():
        raise UsageError(f"{path} is there already; choose another name for the new ledger")
    place.check(path)
    found = sorted((_read(folder) for folder in _folders(runs)), key=lambda run: run.place)
    if not found:
        raise UsageError(f"{runs} holds no run directories")
    with _under_its_name(path) as ledger:
        skipped = []
        for done, run in enumerate(found, 1):
            if (said := _enter(ledger, run)) is not None:
                skipped.append(said)
            progress(done, len(found))
        with ledger.reading() as connection:
            best = fold(views.load(connection))
    return Replayed(len(found) - len(skipped), tuple(skipped), best)


def _folders(runs: Path) -> Sequence[Path]:
    try:
        return [folder for folder in runs.iterdir() if (folder / FILE).is_file()]
    except OSError as error:
        raise UsageError(f"{runs} cannot be read: {error.strerror}") from error


def _read(folder: Path) -> _Run:
    manifest = Manifest.read(folder)
    if manifest.lineage is None:
        raise LedgerError(
            f"the manifest in {folder} does not say where its run belongs: an older flywheel "
            "wrote it, and only its ledger knows"
        )
    return _Run(folder, manifest, lineage.from_json(manifest.lineage))


def _enter(ledger: Ledger, run: _Run) -> str | None:
    """Plan and enter one run; a sentence when it is left out."""
    state = launch.look(run.folder)
    if state.phase == "running":
        return f"run {run.manifest.run_id} is still running"
    end = entry.left(run.folder)
    now_utc = run.manifest.created_utc
    _plan(ledger, run.lineage, now_utc)
    planned.start_run(ledger, run.manifest, slot=run.manifest.load_index, now_utc=now_utc)
    got = ingest(run.folder, run.manifest, state)
    if end is not None and end.outcome != "ok":
        # The loop saw why: another process on the device, a budget, a person.
        got = Ingested(end, got.text, None, None)
    entry.enter(ledger, run.manifest.run_id, got, now_utc=got.end.ended_utc)
    return None


def _plan(ledger: Ledger, told: Lineage, now_utc: str) -> None:
    with ledger.reading() as connection:
        view = views.load(connection)
    campaign, step = told.campaign, told.step
    newest = view.campaign
    if newest is None or replace(newest, id=campaign.id, ended=None) != campaign:
        if newest is not None:
            planned.close_campaign(ledger, newest.id, "another one followed", now_utc=now_utc)
        planned.open_campaign(
            ledger, campaign.settings, start=campaign.start_config, box=campaign.box,
            first=campaign.first_config, now_utc=campaign.created_utc,
        )  # fmt: skip
    known = {v.id for v in view.variants}
    blocks = {b.id for b in view.blocks()}
    ready: NextBlock = replace(
        step, new_variant=step.variant_id not in known, new_block=step.block_id not in blocks
    )
    planned.plan_block(ledger, ready, now_utc=now_utc)


@contextmanager
def _under_its_name(path: Path) -> Iterator[Ledger]:
    """A new ledger that gets its name once it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    ledger = Ledger.open(part)
    try:
        yield ledger
        ledger.close()
        os.link(part, path)
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error.strerror}") from error
    finally:
        ledger.close()
        with suppress(OSError):
            part.unlink()
