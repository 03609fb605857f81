"""Takes a patch from its diff to a gated revision, and gives every run the code that it is about.

Nothing of the user's is touched: the revision is a commit under a ref of ours, its worktrees lie
beside the ledger and are gone after the block. What a crash leaves of either is swept next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flywheel import best
from flywheel.box.clock import utc_text
from flywheel.errors import FlywheelError, LedgerError, PatchError
from flywheel.ledger import views
from flywheel.ledger.rows import PatchRow, View
from flywheel.loop.gating import Gating
from flywheel.loop.order import KINDS
from flywheel.loop.result import Failure
from flywheel.loop.step import NextBlock
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.patch import chain, record, source, worktree
from flywheel.patch.chain import FIELD
from flywheel.patch.repository import Repository
from flywheel.patch.worktree import Tree
from flywheel.run import launch
from flywheel.run.manifest import Manifest

Trees = Mapping[str | None, Tree]


class Graft:
    """Patches of one session."""

    def __init__(self, shop: Workshop) -> None:
        self._order, self._ledger = shop.order, shop.ledger
        self._clock, self._display = shop.clock, shop.display
        self._gating = Gating(shop)
        self._folder = worktree.folder_of(shop.order.ledger)
        self._said = ""

    def kinds(self, *, wanted: bool) -> tuple[str, ...]:
        """What may be tried: no patch while the code here is not that of a commit.

        ``wanted`` says that a patch waits, so that somebody should be told why it does.
        """
        if not wanted:
            return KINDS
        try:
            dirty = Repository.of_engine(self._order.cwd).dirty()
            why = None if dirty is None else f"{dirty} is not as its revision has it; commit it"
        except FlywheelError as error:
            why = str(error)
        if why is None:
            return KINDS
        if why != self._said:
            self._said = why
            self._display.say(f"patches wait: {why}")
        return tuple(kind for kind in KINDS if kind != FIELD)

    def start_of(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a new campaign starts from: without the patches that the user has taken by now."""
        rows = chain.chain(self._view(), config)
        try:
            taken = bool(rows) and Repository.of_engine(self._order.cwd).has(
                [row.diff for row in rows]
            )
        except FlywheelError:
            taken = False
        if not taken:
            return dict(config)
        self._display.say(f"the code that is checked out has {rows[-1].name} and all below it")
        return {name: value for name, value in config.items() if name != FIELD}

    def make(self, step: NextBlock) -> Wish | Failure | None:
        """Apply and gate the patch of a block; None once its revision may be measured."""
        name, view = str(step.candidate[FIELD]), self._view()
        if any(row.name == name and row.outcome == record.ADMITTED for row in view.patches):
            return None
        try:
            repository = Repository.of_engine(self._order.cwd)
            below = chain.chain(view, step.incumbent)
            base = below[-1].revision if below else repository.head()
            if below:
                self._restore(repository, below)
            diff = source.kept(self._order.ledger, str(step.lever.change[FIELD]))
            patch = source.onto(repository, base, diff)
        except FlywheelError as error:
            return Failure("patch_stale", str(error))
        row = PatchRow(
            name, step.variant_id, record.REFUSED, str(step.lever.change[FIELD]), patch.diff, base,
            "", "", "", {}, utc_text(self._clock.now()),
        )  # fmt: skip
        if reasons := source.reasons(repository, patch):
            told = {"admission": [str(reason) for reason in reasons]}
            return self._refuse(row, told, f"not admitted: {reasons[0]}")
        try:
            return self._gate(repository, step, patch, row)
        except PatchError as error:
            return Failure("no_worktree", str(error))

    def _gate(
        self, repository: Repository, step: NextBlock, patch: source.Patch, row: PatchRow
    ) -> Wish | Failure | None:
        message = f"flywheel: patch {row.diff_sha256[:12]}"
        revision = repository.commit(patch.base, patch.tree, message)
        with self._trees(repository, (patch.base, revision)) as (old, new):
            found = self._gating.run(step, patch.files, old, new)
        if isinstance(found, Wish | Failure):
            return found
        row = replace(
            row, revision=revision, base_source_sha256=old.source_sha256,
            source_sha256=new.source_sha256,
        )  # fmt: skip
        if found.wrong is not None:
            return self._refuse(row, found.told, found.wrong)
        # Kept before it is on record: a ref too many is swept, one too few would be a loss.
        repository.keep(revision)
        record.enter(self._ledger, replace(row, outcome=record.ADMITTED, gates=found.told))
        self._display.say(f"{row.name} passed its gates: revision {revision[:12]}")
        return None

    def _refuse(self, row: PatchRow, told: Mapping[str, Any], said: str) -> Failure:
        record.enter(self._ledger, replace(row, gates={**told, "refused": said}))
        return Failure("gate_failed", said)

    @contextmanager
    def trees(self, step: NextBlock) -> Iterator[Trees | Failure]:
        """The worktrees that a block's runs are made in, by patch; empty where it needs none."""
        configs = [step.incumbent, step.candidate]
        if step.mate is not None:
            configs.append(step.mate.candidate)
        names = [config.get(FIELD) for config in configs]
        if not any(names):
            yield {}
            return
        try:
            made = self._of_block(configs)
        except FlywheelError as error:
            yield Failure("no_worktree", str(error))
            return
        try:
            yield made
        finally:
            self.sweep()

    def _of_block(self, configs: Sequence[Mapping[str, Any]]) -> Trees:
        view, repository = self._view(), Repository.of_engine(self._order.cwd)
        revisions: dict[str | None, str] = {}
        for config in configs:
            found = chain.chain(view, config)
            self._restore(repository, found)
            name = config.get(FIELD)
            if name is not None and not found:
                raise PatchError(f"the ledger knows no patch {name}.")
            base = chain.root(view, *configs)
            assert base is not None
            revisions[name] = found[-1].revision if found else base
        known = {r.revision: r.source_sha256 for r in view.patches}
        made: dict[str | None, Tree] = {}
        for name, revision in revisions.items():
            twin = next((tree for tree in made.values() if tree.revision == revision), None)
            tree = twin or worktree.add(repository, self._folder, revision)
            if known.get(revision, tree.source_sha256) != tree.source_sha256:
                raise PatchError(f"the code of {revision[:12]} is not what was gated.")
            made[name] = tree
        return made

    @contextmanager
    def _trees(self, repository: Repository, revisions: Sequence[str]) -> Iterator[list[Tree]]:
        try:
            yield [worktree.add(repository, self._folder, revision) for revision in revisions]
        finally:
            self.sweep()

    def _restore(self, repository: Repository, rows: Sequence[PatchRow]) -> None:
        """Make the commits of a configuration again where the repository has lost them."""
        for row in rows:
            if repository.commit_of(row.revision) is None:
                tree = repository.applied(row.base, row.diff)
                message = f"flywheel: patch {row.diff_sha256[:12]}"
                if repository.commit(row.base, tree, message) != row.revision:
                    raise PatchError(f"revision {row.revision[:12]} of {row.name} cannot be made.")
            repository.keep(row.revision)

    def sweep(self) -> None:
        """Remove the worktrees that no run is in, and let go of revisions that came to nothing."""
        used = self._folder.is_dir()
        try:
            view = self._view()
            if not used and not view.patches:
                return
            repository = Repository.of_engine(self._order.cwd)
            if used:
                worktree.sweep(repository, self._folder, self._in_use(view))
            for revision in _spent(view):
                repository.let_go(revision)
        except (FlywheelError, OSError) as error:
            self._display.say(f"worktrees could not be swept: {error}")

    def _in_use(self, view: View) -> list[Path]:
        """The folders of runs that go on."""
        open_runs = [run.id for b in view.blocks() for run in b.runs if run.outcome is None]
        folders = [self._order.runs_dir / run for run in open_runs]
        folders += self._order.forge_dir.glob("runs/*/*")
        return [
            Path(Manifest.read(folder).cwd)
            for folder in folders
            if folder.is_dir() and launch.look(folder).phase == "running"
        ]

    def _view(self) -> View:
        with self._ledger.reading() as connection:
            return views.load(connection)


def _spent(view: View) -> list[str]:
    """Revisions of ours that were decided and are in no best: nobody measures them again."""
    try:
        kept = {row.revision for row in chain.chain(view, best.fold(view).config)}
    except LedgerError:
        return []
    decided = {v.id for v in view.variants if v.decision is not None}
    promoted = {v.id for v in view.variants if v.decision is not None and v.decision.promoted}
    return [
        row.revision for row in view.patches
        if row.revision and row.variant_id in decided - promoted and row.revision not in kept
    ]  # fmt: skip
