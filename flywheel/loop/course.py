"""The course of one engine run: manifest, launch, attendance, and its entry in the ledger."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flywheel.box.clock import Clock, utc_text
from flywheel.box.energy import Meter
from flywheel.box.lease import Lease
from flywheel.display import narrate
from flywheel.display.panel import STYLES, Display
from flywheel.display.progress import Progress
from flywheel.errors import LaunchError
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.loop import entry, judge, plan, planned
from flywheel.loop.attend import Attended, attend
from flywheel.loop.order import Order, Session, plan_manifest
from flywheel.loop.room import Room
from flywheel.loop.wishes import Wish, Wishes
from flywheel.patch.worktree import Tree
from flywheel.run import ingest, launch
from flywheel.run.guarding import guard_of
from flywheel.run.manifest import Manifest

# A supervisor that left its word is gone in a moment; nothing depends on seeing it go.
REAP_S = 1.0


class Course:
    """Takes runs from their plan to the ledger, one after the other.

    ``lease`` is what a run's supervisor inherits.  ``load_s`` tells how long a load is expected to
    take (0: not known yet); ``do`` is told what is being done and ``finished`` of every run that
    was entered.
    """

    def __init__(
        self,
        order: Order,
        ledger: Ledger,
        session: Session,
        *,
        clock: Clock,
        display: Display,
        wishes: Wishes,
        room: Room,
        load_s: Callable[[], float],
        do: Callable[[str, str | None], None],
        finished: Callable[[Manifest, ingest.Ingested, judge.Entered], None],
    ) -> None:
        self.lease: Lease | None = None
        self._order = order
        self._ledger = ledger
        self._session = session
        self._clock = clock
        self._display = display
        self._wishes = wishes
        self._room = room
        self._load_s = load_s
        self._do = do
        self._finished = finished
        self._entered: dict[str, Any] = {}

    def run(
        self, step: plan.NextBlock, load: plan.Load, trees: Mapping[str | None, Tree] | None = None
    ) -> Wish | bool:
        """One engine run.  True: it was good; False: its block is void; a wish: stop.

        ``trees`` are the worktrees by the patch that they hold; without them the code is the box's.
        """
        with self._ledger.reading() as connection:
            guard = guard_of(connection, self._order)
            known = views.fingerprints(connection, step.block_id)
            view = views.load(connection)
        patch = next((p for p in view.patches if p.variant_id == step.variant_id), None)
        manifest = plan_manifest(
            self._order, step, load, known, now_utc=utc_text(self._clock.now()), guard=guard,
            campaign=view.campaign, trees=trees or {}, patch=patch,
        )  # fmt: skip
        run_dir = self._order.runs_dir / manifest.run_id
        now_utc = utc_text(self._clock.now())
        planned.start_run(self._ledger, manifest, slot=load.slot, now_utc=now_utc)
        doing = f"{step.purpose}: {narrate.label(step)}"
        self._do(doing, manifest.run_id)
        self._display.say(f"{manifest.run_id}  {doing}  ({step.why})")
        self._display.show(
            run=manifest.run_id,
            run_started_s=self._clock.monotonic_s(),
            run_expected_s=self._load_s() or None,
            progress=Progress(),
        )
        self._entered = {"room": self._room.enter()}
        meter = Meter()
        attended = self._launch_and_attend(run_dir, manifest, meter)
        self._entered["energy_j"] = meter.read()
        return self._finish(run_dir, manifest, attended)

    def adopt(self, run_dir: Path, manifest: Manifest) -> Wish | bool:
        """A run that an earlier session began: attend it if it lives, enter it in any case."""
        return self._finish(run_dir, manifest, self._attend(run_dir, manifest))

    def _launch_and_attend(self, run_dir: Path, manifest: Manifest, meter: Meter) -> Attended:
        child = None
        try:
            launch.prepare(run_dir, manifest)
            if self.lease is not None:
                self.lease.tell(f"flywheel run, {manifest.run_id}", run_dir)
            child = launch.start(run_dir, lease_fds=self.lease.fds if self.lease else ())
        except LaunchError as error:
            self._display.say(str(error), STYLES["void"])
            # No supervisor was started, so on a full disk this may be left undone.
            with contextlib.suppress(OSError):
                launch.disown(run_dir)
            return Attended(launch.RunState("unclaimed", None, None, None))
        attended = self._attend(run_dir, manifest, child, meter)
        if attended.state is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(REAP_S)
        return attended

    def _attend(
        self,
        run_dir: Path,
        manifest: Manifest,
        child: subprocess.Popen[bytes] | None = None,
        meter: Meter | None = None,
    ) -> Attended:
        def show(progress: Progress) -> None:
            if meter is not None:
                meter.look()
            self._display.show(progress=progress, time_left_s=self._wishes.left_s())

        return attend(
            run_dir,
            manifest,
            self._wishes,
            child=child,
            show=show,
            patience_s=self._order.patience_s,
        )

    def _finish(self, run_dir: Path, manifest: Manifest, attended: Attended) -> Wish | bool:
        """Enter a finished run, once; a run left to its supervisor stays open in the ledger."""
        self._display.show(run="", run_started_s=None)
        wish = attended.wish
        if attended.state is None:
            assert wish is not None
            reason = (
                f"{wish.reason}; run {manifest.run_id} goes on under its supervisor and the next "
                "flywheel run enters it (flywheel stop --now ends it)"
            )
            return Wish(wish.code, reason, False)
        state = attended.state

        def read() -> ingest.Ingested:
            return ingest.ingest(
                run_dir,
                manifest,
                state,
                stopped_as=wish.code if wish is not None else "interrupted",
                contamination=attended.contamination,
                contaminated_as=attended.contaminated_as,
                evidence={**self._entered, "surroundings": attended.surroundings},
                looks=attended.looks,
            )

        got = self._wishes.during(read)
        if isinstance(got, Wish):
            reason = f"{got.reason}; the next flywheel run enters run {manifest.run_id}"
            return Wish(got.code, reason, False)
        entry.leave(run_dir, got.end)
        entered = self._enter(manifest, got)
        self._do("planning", None)
        self._count(got)
        narrate.finished(self._display, manifest, got, entered)
        self._finished(manifest, got, entered)
        if wish is not None:
            return wish
        return got.record is not None and entered.void is None

    def _enter(self, manifest: Manifest, got: ingest.Ingested) -> judge.Entered:
        entered, complaint = entry.enter(
            self._ledger, manifest.run_id, got, now_utc=utc_text(self._clock.now())
        )
        if complaint is not None:
            self._display.say(complaint, STYLES["incorrect"])
        return entered

    def _count(self, got: ingest.Ingested) -> None:
        session = self._session
        session.runs += 1
        session.ok += got.record is not None
        session.engine_s += got.end.wall_ns / 1e9
        blocked = got.end.outcome == "blocked"
        session.blocked_in_a_row = session.blocked_in_a_row + 1 if blocked else 0
