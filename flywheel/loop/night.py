"""The loop: reconcile, plan, admit, launch, attend, ingest, judge, and again until told to stop.

It owns the order of things and every effect between the plan and the ledger.  What to run next is
``plan``'s choice, what a run means is ``judge``'s; a run is a process that outlives this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from experiments.knobs import KNOBS
from flywheel import best, suite
from flywheel.box.clock import Clock, count, span_text, utc_text
from flywheel.display import narrate
from flywheel.display.panel import STYLES, Display
from flywheel.errors import FlywheelError, LedgerBusy, LedgerError, Refused
from flywheel.ledger import phases, views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import bracket, epoch, handover, judge, pace, plan, planned, standing
from flywheel.loop.asking import Asker
from flywheel.loop.course import Course
from flywheel.loop.eligible import admit
from flywheel.loop.exhaust import exhaust
from flywheel.loop.forge import Forge
from flywheel.loop.grafting import Graft, Trees
from flywheel.loop.herald import Herald
from flywheel.loop.judge import Entered
from flywheel.loop.order import BEST_FILE, Order, Session, write_best
from flywheel.loop.result import Failure
from flywheel.loop.room import Room
from flywheel.loop.staging import Staging
from flywheel.loop.supply import Declared, Supply
from flywheel.loop.turn import Turn
from flywheel.loop.wishes import Wish, Wishes
from flywheel.loop.workshop import Workshop
from flywheel.run import launch
from flywheel.run.ingest import Ingested
from flywheel.run.manifest import Manifest


class Night:
    """One session of the loop on one ledger.  The caller holds the ledger's daemon lock."""

    def __init__(
        self,
        order: Order,
        ledger: Ledger,
        declared: Declared,
        *,
        clock: Clock,
        display: Display,
        wishes: Wishes,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.order = order
        self.ledger = ledger
        self.supply = Supply(order.ledger, declared, self._warn)
        self.clock = clock
        self.display = display
        self.wishes = wishes
        self._ready = ready
        self.beat: Callable[..., None] = lambda **_: None
        self.session = Session(utc_text(clock.now()))
        self.doing = "starting"
        self.doing_since_utc = self.session.started_utc
        self.run_id: str | None = None
        self.herald = Herald(order, clock, self._warn)
        self.turn = Turn(
            order, self.session, wishes, clock, load_s=self._load_s, tell=self._tell
        )
        self.room = Room(order, self.session, wishes, clock, ledger=ledger, tell=self._tell)
        self.course = Course(
            order, ledger, self.session, clock=clock, display=display, wishes=wishes,
            room=self.room, load_s=self._load_s, do=self._do, finished=self._finished,
        )  # fmt: skip
        shop = Workshop(
            order, ledger, clock, display, wishes, lease=lambda: self.course.lease, do=self._do
        )
        self.forge, self.graft = Forge(shop), Graft(shop)
        self.stage = Staging(shop, decided=self.herald.decided)
        self.asker = Asker(shop, tell=self._tell)

    # -- the whole night -------------------------------------------------------------------

    def run(self) -> Session:
        """Work until there is a reason to stop; the reason is in the session."""
        began_s = self.clock.monotonic_s()
        self.ledger.may_wait = lambda: self.wishes.asked() is None
        try:
            with self.display.open():
                wish = self._reconcile() or self._start() or self._loop()
                self.session.reason = wish.reason
                self.session.stopped = wish.code == "interrupted"
        except LedgerBusy as error:
            asked = self.wishes.asked()
            if asked is None:
                raise
            self.session.reason = f"{asked.reason}, while another process held the ledger: {error}"
            self.session.stopped = True
        except FlywheelError as error:
            self.session.reason = str(error)
            raise
        finally:
            self.graft.sweep()
            if self.course.lease is not None:
                self.course.lease.release()
            self._write_best()
            self._do("stopped", None)
            # A night that was refused never began.
            if self.course.lease is not None:
                self.herald.ended(self.session)
        self.display.show(time_left_s=None)
        self.session.engine_s = min(
            self.session.engine_s, self.clock.monotonic_s() - began_s
        )
        return self.session

    def _head_prompts(self, levers: Sequence[Lever]) -> int | None:
        """On how many prompts a head of these would be judged; None without one."""
        if not any(lever.kind == "head" for lever in levers):
            return None
        return len(suite.load(self.order.head_suite).ids)

    def _loop(self) -> Wish:
        while True:
            if (wish := self._halted()) is not None:
                self.herald.halted(wish.reason)
                return wish
            if (wish := self.wishes.asked()) is not None:
                return wish
            levers = self._levers()
            step = plan.next_step(
                self._view(),
                levers,
                first=self.supply.first(),
                closing=self._closing(levers),
                profiles=bool(self.order.profile),
                effective=self._effective(),
                kinds=self.graft.kinds(wanted=any(x.kind == "patch" for x in levers)),
                settled=standing.settled(self.ledger),
                now_utc=self._now(),
                asking=self.order.asking,
                head_prompts=self._head_prompts(levers),
            )
            # What was measured is settled in the same night, past its budget too: it takes no load.
            if not isinstance(step, plan.Prove) and (wish := self.turn.over()) is not None:
                return wish
            if isinstance(step, plan.Stop):
                if "error budget" in step.reason:
                    self._close_campaign(step.reason)
                return Wish("done", step.reason, False)
            if isinstance(step, plan.Prove):
                if (wish := self.stage.settle(step)) is not None:
                    return wish
                self._write_best()
                continue
            if isinstance(step, plan.PricedOut):
                planned.price_out(self.ledger, step, now_utc=self._now())
                self.display.say(f"{step.lever.label()}: {step.why}", STYLES["rejected"])
                continue
            if isinstance(step, plan.PhaseChange):
                said = phases.enter(
                    self.ledger, step.phase, step.why, step.decisions, now_utc=self._now()
                )
                self.display.say(said)
                continue
            if isinstance(step, plan.TakeProfile):
                found = self._profile(step)
            elif isinstance(step, plan.AskProposer | plan.Rest):
                found = self.asker.carry_out(step, self._levers())
            else:
                found = self._block(step)
            if found is not None:
                return found

    # -- what else there is to try --------------------------------------------------------

    def _levers(self) -> tuple[Lever, ...]:
        return self.supply.levers(self._view())

    def _profile(self, step: plan.TakeProfile) -> Wish | None:
        """Profile the incumbent, and record the levers that this leads to."""
        if (wish := self.wishes.heard() or self.turn.wait("", 1) or self.room.wait()) is not None:
            return wish
        self._do("a profile of the incumbent", None)
        lease, tried = self.course.lease, [v.lever for v in self._view().variants]
        return exhaust(
            self.order, self.ledger, step, KNOBS, [*self._levers(), *tried],
            lease_fds=lease.fds if lease else (), wishes=self.wishes, clock=self.clock,
            say=self.display.say,
        )

    # -- one block -------------------------------------------------------------------------

    def _block(self, step: plan.NextBlock) -> Wish | None:
        loads = step.loads()
        if (wish := self._begin(step, len(loads))) is not None:
            return wish
        if bracket.outdated(self._view(), step, self._now()):
            return None
        planned.plan_block(self.ledger, step, now_utc=self._now())
        if step.purpose == "lever" and step.lever.kind in ("head", "patch"):
            made = self._make(step)
            if isinstance(made, Failure):
                self._forgo(step, made)
                return None
            if made is not None:
                return made
        with self.graft.trees(step) as trees:
            if isinstance(trees, Failure):
                self._forgo(step, trees)
                return None
            return self._loads(step, loads, trees)

    def _make(self, step: plan.NextBlock) -> Wish | Failure | None:
        """What a block's candidate is made of, before it is measured."""
        if step.lever.kind == "patch":
            return self.graft.make(step)
        view = self._view()
        ready, _ = admit(view, self._levers(), best.fold(view), self._effective(), ("head",))
        waiting = (x.lever for x in ready if x.lever.identity != step.lever.identity)
        return self.forge.make(step, tuple(islice(waiting, self.order.heads.at_once - 1)))

    def _loads(
        self, step: plan.NextBlock, loads: Sequence[plan.Load], trees: Trees
    ) -> Wish | None:
        self.display.show(
            headline=f"{step.purpose} · block {step.block_id}",
            lever=narrate.label(step),
            why=step.why,
            block=f"{step.number} ({'hot' if step.hot else 'cold'}, {step.pattern})",
            budget=self._budget_text(),
        )
        for load in loads:
            if (wish := self._begin(step, 1)) is not None:
                return wish
            verdict_or_wish = self.course.run(step, load, trees)
            if isinstance(verdict_or_wish, Wish):
                return verdict_or_wish
            if not verdict_or_wish:
                self._pause(step.variant_id)
                return None
        return None

    def _forgo(self, step: plan.NextBlock, failure: Failure) -> None:
        """What a block needs could not be made: it is void, and the next attempt waits."""
        self.display.say(f"{failure.code}: {failure.detail}", STYLES["void"])
        judge.forgo(
            self.ledger, step.block_id, failure.code, failure.detail, now_utc=self._now()
        )
        self._pause(step.variant_id)

    def _begin(self, step: plan.NextBlock, loads: int) -> Wish | None:
        """Wait for the hour and for room."""
        return (
            self.wishes.heard() or self.turn.wait(step.variant_id, loads) or self.room.wait()
        )

    def _pause(self, variant_id: str) -> None:
        """After a failure the next attempt waits, and after another one longer."""
        view = self._view()
        assert view.campaign is not None
        failures = self.session.blocked_in_a_row or view.variant(variant_id).voids_in_a_row
        self.turn.pause(variant_id, view.campaign.settings.pause_s(failures))

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
                self._do("an adopted run", row.id)
                if state.phase == "running":
                    self._ready()
                outcome = self.course.adopt(run_dir, manifest)
                if isinstance(outcome, Wish):
                    return outcome
        if (wish := self.forge.adopt()) is not None:
            return wish
        self.graft.sweep()
        # What was begun before this session is none of its budget.
        session = self.session
        session.adopted, session.runs, session.ok = session.runs, 0, 0
        session.engine_s, session.blocked_in_a_row = 0.0, 0
        return None

    def _start(self) -> Wish | None:
        """Take the device and go on with a campaign; Refused while a halt stands."""
        self._write_best()
        halted = self._halted()
        if halted is not None:
            raise Refused(halted.reason)
        taken = handover.take(
            (self.order.runs_dir, self.order.forge_dir), self.wishes, self.clock
        )
        if isinstance(taken, Wish):
            return taken
        self.course.lease = taken
        handover.record(self.ledger, taken, now_utc=self._now(), say=self.display.say)
        self._ready()
        settled = standing.settled(self.ledger)
        said = epoch.declare(
            self.ledger, self._view(), self.order, settled, now_utc=self._now(),
            start_of=self.graft.start_of,
        )
        if said is not None:
            self.display.say(f"a new campaign: the one before ended, {said}")
        return None

    def _halted(self) -> Wish | None:
        why = standing.halted(self.ledger, now_utc=self._now())
        if why is None:
            return None
        self.session.halted = True
        return Wish("halted", why, False)

    def _close_campaign(self, reason: str) -> None:
        campaign = self._view().campaign
        if campaign is not None and campaign.ended is None:
            planned.close_campaign(self.ledger, campaign.id, reason, now_utc=self._now())

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
        """What one more load takes, from the loads so far; 0: nothing is known yet."""
        return pace.load_s(self._view())

    def _do(self, doing: str, run_id: str | None) -> None:
        """Note what is being done, for the status file."""
        self.doing, self.doing_since_utc, self.run_id = doing, self._now(), run_id
        self.beat()

    def _tell(self, waiting_for: str) -> None:
        self._do(waiting_for, None)
        self.display.show(headline=waiting_for)
        self.display.say(waiting_for, STYLES["void"])

    def _warn(self, sentence: str) -> None:
        self.display.say(sentence, STYLES["void"])

    def _finished(self, manifest: Manifest, got: Ingested, entered: Entered) -> None:
        """A run is in the ledger."""
        if entered.verdict is not None and entered.verdict.ending == "promoted":
            self._write_best()
        self.herald.entered(manifest, got, entered)

    def _closing(self, levers: Sequence[Lever]) -> bool:
        """Whether what is left of the time is just enough to measure the best once more.

        Where nothing is timed the best is not measured again: then it is that of one load.
        """
        left_s = self.wishes.left_s()
        if left_s is None or self.session.runs == 0:
            return False
        last = self.order.settings.anchor_blocks if plan.by_time(levers) else 0
        return left_s < (last + 1) * self._load_s() * 1.1

    def _budget_text(self) -> str:
        view, words = self._view(), []
        if view.campaign is not None:
            budget = view.budget(view.campaign.id)
            words.append(f"{budget.left} of {budget.settings.budget} confirmations")
        if self.order.budget_runs is not None:
            words.append(count(self.order.budget_runs - self.session.runs, "run"))
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
        try:
            write_best(found, self.order.ledger.parent, self.order.checkpoint)
        except OSError as error:
            self.display.say(f"{BEST_FILE} could not be written: {error}", STYLES["void"])
