"""Makes the head that a lever asks for: stage after stage, each a supervised run, then the archive.

Training holds the device as measuring does and never at the same time. A stage that was interrupted
goes on from what it left; one that still runs under its supervisor is attended, as runs are.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box.clock import utc_text
from flywheel.errors import FlywheelError, HeadError, LaunchError
from flywheel.files import dump, read_json
from flywheel.heads import archive, record
from flywheel.ledger import views
from flywheel.lever import Lever
from flywheel.loop.attend import Attended, attend
from flywheel.loop.order import Order
from flywheel.loop.result import Failure
from flywheel.loop.stages import Stage, Stages, base_of, stages
from flywheel.loop.step import NextBlock
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.run import launch
from flywheel.run.guarding import guard_of
from flywheel.run.manifest import Manifest, new_nonce
from flywheel.run.supervise import STDERR_FILE


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stage under way: its run, and the supervisor where this process started it."""

    run_dir: Path
    manifest: Manifest
    child: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Whose stage it is too, for runs side by side are called alike."""
        return f"{self.run_dir.name}  {self.run_dir.parent.name}"


class Forge:
    """Takes a head from its recipe to the archive."""

    def __init__(self, shop: Workshop) -> None:
        self._order, self._ledger = shop.order, shop.ledger
        self._clock, self._display, self._wishes = shop.clock, shop.display, shop.wishes
        self._lease, self._do = shop.lease, shop.do

    def make(self, step: NextBlock, others: Sequence[Lever] = ()) -> Wish | Failure | None:
        """Train and archive the candidate of a head's block; None once it is there.

        The heads that `others` ask for are trained beside it, and archived when their turn comes;
        what fails of them is told then.
        """
        name = str(step.candidate["head"])
        if (card := self._known(name)) is not None:
            return self._judged_otherwise(name, card)
        try:
            if (failure := self._inherited(step)) is not None:
                return failure
            mine, *beside = (
                stages(self._order, lever, step.incumbent) for lever in (step.lever, *others)
            )
        except FlywheelError as error:
            return Failure("not_begun", str(error))
        archived = (self._order.archive / name).is_dir()
        if not archived and (ended := self._carry_out(mine, beside)) is not None:
            return ended
        try:
            if archived:
                self._enter(step, name, mine)
                card = archive.card_of(self._order.archive, name)
                return self._judged_otherwise(name, card)
            self._archive(step, name, mine)
        except FlywheelError as error:
            return Failure("not_archived", str(error))
        return None

    def _enter(self, step: NextBlock, name: str, mine: Stages) -> None:
        """Enter what a crash left archived; HeadError for the head of another ledger."""
        card = archive.card_of(self._order.archive, name)
        trained = mine.train.out / archive.WEIGHTS
        known = archive.sha256(trained) if trained.is_file() else None
        if card["files"][archive.WEIGHTS]["sha256"] != known:
            raise HeadError(
                f"the archive has another head {name}, which this ledger never trained; keep "
                f"{self._order.archive / name} elsewhere, or begin in a folder of its own."
            )
        record.enter(self._ledger, card, step.variant_id)

    def _carry_out(self, mine: Stages, beside: Sequence[Stages]) -> Wish | Failure | None:
        """All stages of `mine`, and of those `beside` it what they do not share.

        What is trained needs nothing more: what it was made from may be gone by now, for it is
        large, and others wait for their own turn rather than be trained one at a time.
        """
        if mine.train.done:
            return None
        whole = [] if mine.tried or mine.shared[-1].done else [mine.rehearsal]
        for stage in (*whole, *mine.shared):
            if (ended := self._run([stage])) is not None:
                return ended
        # What fails at toy scale is not begun.
        dry = [] if mine.tried else [mine.dry]
        if (ended := self._run(dry, [x.dry for x in beside if not x.tried])) is not None:
            return ended
        return self._run([mine.train], [x.train for x in beside if x.tried])

    def adopt(self) -> Wish | None:
        """Attend the stages that an earlier session began and that still run and hold the device.

        A person's wish ends or leaves all of them.
        """
        begun = [_Begun(run_dir, Manifest.read(run_dir)) for run_dir in running(self._order)]
        for one in begun:
            self._display.say(f"{one.name}  adopted, still running")
        ended = self._attend(begun)
        return next((one.wish for one in ended if one.wish is not None), None)

    def _known(self, name: str) -> Mapping[str, Any] | None:
        """The card of a head that the ledger has; None before it is archived."""
        with self._ledger.reading() as connection:
            return views.load(connection).card_of(name)

    def _judged_otherwise(self, name: str, card: Mapping[str, Any]) -> Failure | None:
        """Why a head must not be judged as this night would; None when it may."""
        apart = card.get("apart")
        if apart is None or {*self._order.judges} <= {*apart}:
            return None
        return Failure(
            "other_suites",
            f"the corpus of {name} was kept apart from other suites than it would be judged by "
            "now; flywheel levers reopen trains it anew",
        )

    def _inherited(self, step: NextBlock) -> Failure | None:
        """Why training must not begin at the incumbent; None when it may, or does not."""
        head = step.incumbent.get("head")
        asked = step.lever.change["head"]
        if head is None or not isinstance(asked, dict) or record.START not in asked:
            return None
        return self._judged_otherwise(str(head), archive.card_of(self._order.archive, str(head)))

    def _run(
        self, needed: Sequence[Stage], beside: Sequence[Stage] = ()
    ) -> Wish | Failure | None:
        """Carry out stages side by side; None when all that are `needed` are done.

        A person's wish ends or leaves all of them.
        """
        begun: dict[Path, _Begun | Failure] = {}
        for stage in (*needed, *beside):
            # Heads of one recipe share its rehearsal.
            if not stage.done and stage.out not in begun:
                begun[stage.out] = self._begin(stage)
        under_way = {out: one for out, one in begun.items() if isinstance(one, _Begun)}
        attended = dict(zip(under_way, self._attend(list(under_way.values())), strict=True))
        wishes = (one.wish for one in attended.values() if one.wish is not None)
        if (wish := next(wishes, None)) is not None:
            return wish
        for stage in needed:
            one = begun.get(stage.out)
            if isinstance(one, Failure):
                return one
            if one is not None and not stage.done:
                # `flywheel stop --now` ends the runs of a loop that is late: no failure of theirs.
                if (wish := self._wishes.asked()) is not None and wish.end_run:
                    return wish
                return _failure(stage, one.run_dir, attended[stage.out])
        return None

    def _begin(self, stage: Stage) -> _Begun | Failure:
        """A stage's process: the one that still runs, or a new one."""
        attempts = self._attempts(stage)
        if attempts and launch.look(attempts[-1]).phase == "running":
            return _Begun(attempts[-1], Manifest.read(attempts[-1]))
        run_dir = self._runs(stage) / f"{stage.name}-{len(attempts) + 1:03d}"
        manifest = self._manifest(stage, run_dir)
        self._display.say(f"{run_dir.name}  {stage.out.name}")
        try:
            launch.prepare(run_dir, manifest)
            lease = self._lease()
            if lease is not None:
                lease.tell(f"flywheel run, {run_dir.name}", run_dir)
            child = launch.start(run_dir, lease_fds=lease.fds if lease else ())
        except LaunchError as error:
            return Failure("not_started", str(error))
        return _Begun(run_dir, manifest, child)

    def _attend(self, begun: Sequence[_Begun]) -> list[Attended]:
        """How each of what runs side by side ended, or was left."""
        ended: list[Attended] = []
        patience_s = self._order.patience_s
        for number, one in enumerate(begun):
            beside = f", {len(begun)} side by side" if len(begun) > 1 else ""
            self._do(f"making a head: {one.run_dir.name}{beside}", one.manifest.run_id)
            attended = attend(
                one.run_dir, one.manifest, self._wishes, child=one.child, patience_s=patience_s
            )
            ended.append(attended)
            if attended.wish is None:
                continue
            # One patience for all, or the loop would leave the later the more run side by side.
            patience_s = 0.0
            if attended.wish.end_run:
                for other in begun[number + 1 :]:
                    launch.ask(launch.look(other.run_dir))
        return ended

    def _runs(self, stage: Stage) -> Path:
        return self._order.forge_dir / "runs" / stage.out.name

    def _attempts(self, stage: Stage) -> list[Path]:
        return sorted(self._runs(stage).glob(f"{stage.name}-*"))

    def _manifest(self, stage: Stage, run_dir: Path) -> Manifest:
        heads = self._order.heads
        with self._ledger.reading() as connection:
            guard = guard_of(connection, self._order)
        return Manifest(
            run_id=f"{stage.out.name}-{run_dir.name}",
            nonce=new_nonce(),
            config={"stage": stage.name},
            argv=(*heads.command, stage.name, *stage.words),
            cwd=str(self._order.cwd),
            created_utc=utc_text(self._clock.now()),
            timeout_s=heads.timeout_s,
            grace_s=self._order.grace_s,
            guard=guard,
        )

    def _archive(self, step: NextBlock, name: str, mine: Stages) -> None:
        """Weights, metrics and the log of every attempt, unedited and in order."""
        out = mine.train.out
        metrics = read_json(out / archive.METRICS)
        if metrics is None:
            raise HeadError(f"the training of {name} left no {archive.METRICS}.")
        log = out / archive.LOG
        with log.open("wb") as whole:
            for attempt in self._attempts(mine.train):
                whole.write((attempt / STDERR_FILE).read_bytes())
        files = {kind: out / kind for kind in archive.FILES}
        told = record.about(
            metrics,
            lever={
                "name": step.lever.name, "identity": step.lever.identity,
                "recipe": step.lever.change["head"], "claim": step.lever.claim,
                "base": base_of(self._order, step.incumbent),
            },
            variant=step.variant_id,
            apart=list(self._order.judges),
            stages={
                stage.name: {"seconds": stage.card["seconds"], **_short(stage.card["facts"])}
                for stage in (*mine.shared, mine.rehearsal, mine.dry) if stage.done
            },
        )  # fmt: skip
        record.keep(
            self._ledger, self._order.archive, name, files, told,
            now_utc=utc_text(self._clock.now()), variant_id=step.variant_id,
        )  # fmt: skip
        self._display.say(f"archived {name}: {self._order.archive / name}")


def running(order: Order) -> list[Path]:
    """Runs of stages, and of gates, that go on."""
    every = sorted(order.forge_dir.glob("runs/*/*"))
    return [run_dir for run_dir in every if launch.look(run_dir).phase == "running"]


def _failure(stage: Stage, run_dir: Path, attended: Attended) -> Failure:
    state = attended.state
    status = None if state is None else state.exit_status
    code = "timeout" if status is not None and status.timed_out else f"{stage.name}_failed"
    said = stage.card.get("reason") or launch.stderr_tail(run_dir) or "it left no word"
    return Failure(code, str(said).splitlines()[-1])


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    """What a card keeps of a stage's facts: all but long lists."""
    return {k: v for k, v in facts.items() if len(dump(v)) < 2000}
