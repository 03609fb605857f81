"""The loop: reconcile, plan, admit, launch, attend, ingest, judge, and again until told to stop.

It owns the order of things and every effect between the plan and the ledger.  What to run next is
``plan``'s choice, what a run means is ``judge``'s; a run is a process that outlives this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel import best, host, identity, ingest, judge, launch, narrate, plan
from flywheel.attend import Attended, Wish, Wishes, attend
from flywheel.clock import Clock, span_text, utc_text
from flywheel.display import STYLES, Display
from flywheel.errors import FlywheelError, LaunchError, LeaseBusy, LedgerError, Refused
from flywheel.lease import Lease, device_path
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.manifest import Manifest
from flywheel.order import KINDS, Order, Session, plan_manifest, write_best
from flywheel.progress import Progress

BLOCKED_LIMIT = 3
ROOM_PATIENCE_S = 1800.0


class Night:
    """One session of the loop on one ledger.  The caller holds the ledger's daemon lock."""

    def __init__(
        self,
        order: Order,
        ledger: Ledger,
        levers: Sequence[Lever],
        *,
        clock: Clock,
        display: Display,
        wishes: Wishes,
    ) -> None:
        self.order = order
        self.ledger = ledger
        self.levers = tuple(levers)
        self.clock = clock
        self.display = display
        self.wishes = wishes
        self.session = Session(utc_text(clock.now()))
        self.doing = "starting"
        self.run_id: str | None = None
        self._lease: Lease | None = None
        self._fingerprints: dict[str, dict[str, str]] = {}
        self._watch_device = False

    # -- the whole night -------------------------------------------------------------------

    def run(self) -> Session:
        """Work until there is a reason to stop; the reason is in the session."""
        began_s = self.clock.monotonic_s()
        try:
            with self.display.open():
                wish = self._reconcile()
                if wish is None:
                    self._lease = self._take_device()
                    self._declare()
                    wish = self._loop()
                self.session.reason = wish.reason
                self.session.stopped = wish.code == "interrupted"
        finally:
            if self._lease is not None:
                self._lease.release()
            self._write_best()
            self.doing, self.run_id = "stopped", None
        self.display.show(time_left_s=None)
        self.session.engine_s = min(
            self.session.engine_s, self.clock.monotonic_s() - began_s
        )
        return self.session

    def _loop(self) -> Wish:
        while True:
            if (wish := self._between_runs()) is not None:
                return wish
            step = plan.next_step(
                self._view(),
                self.levers,
                closing=self._closing(),
                effective=self._effective(),
                kinds=KINDS,
            )
            if isinstance(step, plan.Stop):
                self.session.halted = step.halt
                if "error budget" in step.reason and not step.halt:
                    self._close_campaign(step.reason)
                return Wish("done", step.reason, False)
            if isinstance(step, plan.PricedOut):
                judge.price_out(self.ledger, step, now_utc=self._now())
                self.display.say(f"{step.lever.label()}: {step.why}", STYLES["rejected"])
                continue
            if (wish := self._block(step)) is not None:
                return wish

    def _between_runs(self) -> Wish | None:
        """Every reason not to start another run now; waits out a closed window."""
        while True:
            if (wish := self.wishes.heard()) is not None:
                return wish
            limit = self.order.budget_runs
            if limit is not None and self.session.runs >= limit:
                return Wish("done", f"the budget of {limit} runs is spent", False)
            if self.session.blocked_in_a_row >= BLOCKED_LIMIT:
                self.session.failed = True
                return Wish("done", f"{BLOCKED_LIMIT} runs in a row could not be run", False)
            left_s = self.wishes.left_s()
            if left_s is not None and left_s < self._load_s():
                return Wish("done", "the time left is too short for another run", False)
            window = self.order.window
            if window is None or window.contains(self.clock.now()):
                return None
            self.doing = f"waiting for the window {window}"
            self.display.show(headline=self.doing)
            self.clock.sleep(1.0)

    # -- one block -------------------------------------------------------------------------

    def _block(self, step: plan.NextBlock) -> Wish | None:
        judge.plan_block(self.ledger, step, now_utc=self._now())
        loads = step.loads()
        self.display.show(
            headline=f"{step.purpose} · block {step.block_id}",
            lever=narrate.label(step),
            why=step.why,
            block=f"{step.number} ({'hot' if step.hot else 'cold'}, {step.pattern})",
            budget=self._budget_text(),
        )
        for load in loads:
            if (wish := self._between_loads(first=load is loads[0])) is not None:
                return wish
            verdict_or_wish = self._load(step, load)
            if isinstance(verdict_or_wish, Wish):
                return verdict_or_wish
            if not verdict_or_wish:
                return None
        return None

    def _between_loads(self, *, first: bool) -> Wish | None:
        if not first and (wish := self.wishes.heard()) is not None:
            return wish
        return self._make_room()

    def _make_room(self) -> Wish | None:
        """Wait for memory, disk and device to be free; give up after half an hour."""
        until_s = self.clock.monotonic_s() + ROOM_PATIENCE_S
        told = False
        while True:
            look = host.probe(self.order.ledger.parent)
            self._watch_device = bool(look.gpus)
            refusal = host.refuses(look)
            if refusal is None:
                return None
            if not told:
                self.display.say(f"waiting: {refusal}", STYLES["void"])
                told = True
            if (wish := self.wishes.heard()) is not None:
                return wish
            if self.clock.monotonic_s() >= until_s or self.session.runs == 0:
                self.session.failed = True
                return Wish("done", refusal, False)
            self.clock.sleep(2.0)

    def _load(self, step: plan.NextBlock, load: plan.Load) -> Wish | bool:
        """One engine run.  True: it was good; False: its block is void; a wish: stop."""
        manifest = plan_manifest(
            self.order, step, load, self._fingerprints.get(step.block_id), now_utc=self._now()
        )
        run_dir = self.order.runs_dir / manifest.run_id
        judge.start_run(self.ledger, manifest, slot=load.slot, now_utc=self._now())
        self.run_id, self.doing = manifest.run_id, f"{step.purpose}: {narrate.label(step)}"
        self.display.say(f"{manifest.run_id}  {self.doing}  ({step.why})")
        self.display.show(
            run=manifest.run_id,
            run_started_s=self.clock.monotonic_s(),
            run_expected_s=self._expected_s(),
            progress=Progress(),
        )
        attended = self._launch_and_attend(run_dir, manifest)
        return self._finish(run_dir, manifest, attended)

    def _launch_and_attend(self, run_dir: Path, manifest: Manifest) -> Attended:
        child = None
        try:
            launch.prepare(run_dir, manifest)
            if self._lease is not None:
                self._lease.tell(f"flywheel run, {manifest.run_id}", run_dir)
            child = launch.start(run_dir, lease_fds=self._lease.fds if self._lease else ())
        except LaunchError as error:
            self.display.say(str(error), STYLES["void"])
            launch.disown(run_dir)
            return Attended(launch.RunState("unclaimed", None, None, None))
        attended = self._attend(run_dir, manifest, child)
        if attended.state is not None:
            child.wait()
        return attended

    def _attend(self, run_dir: Path, manifest: Manifest, child: object = None) -> Attended:
        def show(progress: Progress) -> None:
            self.display.show(progress=progress, time_left_s=self.wishes.left_s())

        return attend(
            run_dir,
            manifest,
            self.wishes,
            child=child,  # type: ignore[arg-type]
            show=show,
            watch_device=self._watch_device,
            patience_s=self.order.patience_s,
        )

    def _finish(self, run_dir: Path, manifest: Manifest, attended: Attended) -> Wish | bool:
        """Enter a finished run, once; a run left to its supervisor stays open in the ledger."""
        self.display.show(run="", run_started_s=None)
        wish = attended.wish
        if attended.state is None:
            assert wish is not None
            reason = (
                f"{wish.reason}; run {manifest.run_id} goes on under its supervisor and the next "
                "flywheel run enters it (flywheel stop --now ends it)"
            )
            return Wish(wish.code, reason, False)
        got = ingest.ingest(
            run_dir,
            manifest,
            attended.state,
            stopped_as=wish.code if wish is not None else "interrupted",
            contamination=attended.contamination,
        )
        entered = self._enter(manifest, got)
        self.run_id = None
        self._count(got)
        narrate.finished(self.display, manifest, got, entered)
        if entered.verdict is not None and entered.verdict.ending == "promoted":
            self._write_best()
        if wish is not None:
            return wish
        return got.record is not None and entered.void is None

    def _enter(self, manifest: Manifest, got: ingest.Ingested) -> judge.Entered:
        now = self._now()
        if got.record is not None and manifest.block_id is not None:
            known = self._fingerprints.setdefault(manifest.block_id, {})
            known.update({arm.name: arm.fingerprint for arm in got.record.header.arms})
        try:
            return judge.enter(
                self.ledger, manifest.run_id, got.end, got.text, got.record, now_utc=now
            )
        except LedgerError:
            raise
        except (FlywheelError, ArithmeticError, ValueError) as error:
            # A statistic that fails is no promotion; the run is kept as void, with the reason.
            self.display.say(f"the judge refused {manifest.run_id}: {error}", STYLES["incorrect"])
            end = judge.RunEnd(
                "void", "judge_failed", f"{type(error).__name__}: {error}", got.end.started_utc,
                got.end.ended_utc, got.end.wall_ns, got.end.exit_status, got.end.evidence,
            )  # fmt: skip
            return judge.enter(self.ledger, manifest.run_id, end, got.text, None, now_utc=now)

    def _count(self, got: ingest.Ingested) -> None:
        session = self.session
        session.runs += 1
        session.ok += got.record is not None
        session.engine_s += got.end.wall_ns / 1e9
        blocked = got.end.outcome == "blocked"
        session.blocked_in_a_row = session.blocked_in_a_row + 1 if blocked else 0

    # -- what was there before -------------------------------------------------------------

    def _reconcile(self) -> Wish | None:
        """Adopt a live run, enter finished ones, and call what never started by its name."""
        for block in self._view().blocks():
            for row in block.runs:
                if row.outcome is not None:
                    continue
                with self.ledger.reading() as connection:
                    manifest = Manifest.from_json(views.manifest(connection, row.id))
                run_dir = self.order.runs_dir / row.id
                state = launch.look(run_dir)
                words = {"running": "adopted, still running", "left": "found finished"}
                self.display.say(f"{row.id}  {words.get(state.phase, 'found dead')}")
                self.run_id, self.doing = row.id, "an adopted run"
                outcome = self._finish(run_dir, manifest, self._attend(run_dir, manifest))
                if isinstance(outcome, Wish):
                    return outcome
        # What was begun before this session is none of its budget.
        session = self.session
        session.adopted, session.runs, session.ok = session.runs, 0, 0
        session.engine_s, session.blocked_in_a_row = 0.0, 0
        return None

    def _take_device(self) -> Lease:
        path = device_path()
        lease = Lease.acquire(path, "flywheel run")
        before = lease.previous
        if before is not None and before.run_dir is not None:
            state = launch.look(Path(before.run_dir))
            if state.engine is not None and identity.group_members(state.engine):
                lease.tell(f"left by {before.purpose}", Path(before.run_dir))
                lease.release()
                raise LeaseBusy(
                    f"the device is still used by engine process {state.engine.pid} of "
                    f"{before.run_dir}, whose supervisor is gone."
                )
        return lease

    def _declare(self) -> None:
        """Go on with the open campaign, or declare the one that this order asks for."""
        view, order = self._view(), self.order
        campaign = view.campaign
        if campaign is not None and campaign.ended is None and not order.new_campaign:
            same = campaign.settings == order.settings
            halted = plan.halted(view, campaign)
            if halted is not None:
                self.session.halted = True
                raise Refused(
                    f"the campaign is halted: {halted}. Look at it, then declare a new one with "
                    "flywheel run --new-campaign."
                )
            if same:
                return
            self._close_campaign(f"a campaign {order.settings.label} was declared")
        elif campaign is not None and campaign.ended is None:
            self._close_campaign("a new campaign was declared")
        start = best.fold(view).config if campaign is not None else order.first_config
        judge.open_campaign(
            self.ledger, order.settings, start=dict(start), box=_box(), now_utc=self._now()
        )

    def _close_campaign(self, reason: str) -> None:
        campaign = self._view().campaign
        if campaign is not None and campaign.ended is None:
            judge.close_campaign(self.ledger, campaign.id, reason, now_utc=self._now())

    # -- small things ----------------------------------------------------------------------

    def _view(self) -> views.View:
        with self.ledger.reading() as connection:
            return views.load(connection)

    def _effective(self) -> Mapping[str, Mapping[str, Any]]:
        with self.ledger.reading() as connection:
            return views.effective_configs(connection)

    def _now(self) -> str:
        return utc_text(self.clock.now())

    def _load_s(self) -> float:
        """What one more load takes, from the loads so far; nothing is known before the first."""
        if self.session.runs == 0:
            return 0.0
        return plan.load_minutes(self._view()) * 60.0

    def _expected_s(self) -> float | None:
        return self._load_s() or None

    def _closing(self) -> bool:
        """Whether what is left of the time is just enough to measure the best once more."""
        left_s = self.wishes.left_s()
        if left_s is None or self.session.runs == 0:
            return False
        return left_s < (self.order.settings.anchor_blocks + 1) * self._load_s() * 1.1

    def _budget_text(self) -> str:
        campaign = self._view().campaign
        words = []
        if campaign is not None:
            budget = self._view().budget(campaign.id)
            words.append(f"{budget.left} of {budget.settings.budget} confirmations")
        if self.order.budget_runs is not None:
            words.append(f"{self.order.budget_runs - self.session.runs} runs")
        left_s = self.wishes.left_s()
        if left_s is not None:
            words.append(span_text(left_s))
        return " · ".join(words) + " left" if words else ""

    def _write_best(self) -> None:
        """Leave best.json next to the ledger: the fold of the decisions, for the server."""
        try:
            found = best.fold(self._view())
        except LedgerError:
            return
        write_best(found, self.order.ledger.parent, self.order.checkpoint)


def _box() -> str:
    look = host.probe(Path("/"))
    names = [gpu.name for gpu in look.gpus if gpu.name]
    return names[0] if names else f"cpu, {look.cores or '?'} cores"
