"""A lost ledger, made again from the run directories alone.

Each directory holds its manifest (with its lineage: campaign, lever, block), the log, and how the
run ended. They are entered in the order in which they were planned, through the same functions
that entered them first, so the same estimates, decisions and best come out. What no run tells is
not there: levers closed by their price alone, patches that their gates refused, halts, takeovers,
faults while serving, and verdicts that `flywheel readjudicate` changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flywheel.best import Best, fold
from flywheel.errors import HeadError, LedgerError, UsageError
from flywheel.files import read_json
from flywheel.heads import archive, record
from flywheel.heads.archive import proof_file
from flywheel.ledger import place, views
from flywheel.ledger.store import Ledger
from flywheel.loop import entry, judge, planned
from flywheel.loop.step import NextBlock
from flywheel.patch import record as patch_record
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
    def heads(self) -> Path:
        """The archive beside the run directories."""
        return self.folder.parent.parent / archive.FOLDER

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
    if run.lineage.step.lever.kind == "head":
        _keep(ledger, run)
    if run.lineage.patch is not None:
        patch_record.enter(ledger, run.lineage.patch)
    planned.start_run(ledger, run.manifest, slot=run.manifest.load_index, now_utc=now_utc)
    got = ingest(run.folder, run.manifest, state)
    if end is not None and end.outcome != "ok":
        # The loop saw why: another process on the device, a budget, a person.
        got = Ingested(end, got.text, None, None)
    entry.enter(ledger, run.manifest.run_id, got, now_utc=got.end.ended_utc)
    if run.lineage.step.lever.kind == "head":
        _settle(ledger, run, got.end.ended_utc)
    return None


def _keep(ledger: Ledger, run: _Run) -> None:
    """Enter the archived head that a run measured; LedgerError when the archive has lost it."""
    step = run.lineage.step
    try:
        card = archive.card_of(run.heads, str(step.candidate["head"]))
    except HeadError as error:
        raise LedgerError(f"run {run.manifest.run_id} measured a head that is gone: {error}") from (
            error
        )
    record.enter(ledger, card, step.variant_id)


def _settle(ledger: Ledger, run: _Run, now_utc: str) -> None:
    """Decide a head as its proof in service did; the archive holds the proof's word."""
    step = run.lineage.step
    told = read_json(run.heads / str(step.candidate["head"]) / proof_file(run.manifest.run_id))
    with ledger.reading() as connection:
        variant = views.load(connection).variant(step.variant_id)
    if told is None or variant.decision is not None or not variant.measured:
        return
    signature = {name: told[name] for name in ("wanted", "seen")}
    service = judge.Service(bool(told["holds"]), str(told["detail"]), signature)
    judge.settle_head(ledger, step.variant_id, service, now_utc=now_utc)


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
