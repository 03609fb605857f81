"""Makes the head that a lever asks for: stage after stage, each a supervised run, then the archive.

Training holds the device as measuring does and never at the same time. A stage that was interrupted
goes on from what it left; one that still runs under its supervisor is attended, as runs are.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import host
from flywheel.box.clock import utc_text
from flywheel.errors import FlywheelError, HeadError, LaunchError
from flywheel.files import dump, read_json
from flywheel.heads import archive, record
from flywheel.ledger import views
from flywheel.lever import canonical, fingerprint
from flywheel.loop import rehearsal
from flywheel.loop.attend import attend
from flywheel.loop.result import Failure
from flywheel.loop.step import NextBlock
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.run import launch
from flywheel.run.guarding import guard_of
from flywheel.run.manifest import Manifest, new_nonce
from flywheel.run.supervise import STDERR_FILE

_CARD = "card.json"


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage: its folder, and the words of its command."""

    name: str
    out: Path
    words: tuple[str, ...]

    @property
    def card(self) -> dict[str, Any]:
        """What the stage says of its end; empty before there is one."""
        return read_json(self.out / _CARD) or {}

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return self.card.get("outcome") == "ok"


class Forge:
    """Takes a head from its recipe to the archive."""

    def __init__(self, shop: Workshop) -> None:
        self._order, self._ledger = shop.order, shop.ledger
        self._clock, self._display, self._wishes = shop.clock, shop.display, shop.wishes
        self._lease, self._do = shop.lease, shop.do

    def make(self, step: NextBlock) -> Wish | Failure | None:
        """Train and archive the candidate of a head's block; None once it is there."""
        name = str(step.candidate["head"])
        if self._known(name):
            return None
        if (self._order.archive / name).is_dir():
            record.enter(
                self._ledger, archive.card_of(self._order.archive, name), step.variant_id
            )
            return None
        stages = self._stages(step, name)
        for stage in (*self._untried(step, stages), *stages):
            if (ended := self._run(stage)) is not None:
                return ended
        try:
            self._archive(step, name)
        except FlywheelError as error:
            return Failure("not_archived", str(error))
        return None

    def adopt(self) -> Wish | None:
        """Attend the stage that an earlier session began, if it still runs and holds the device."""
        for run_dir in sorted(self._order.forge_dir.glob("runs/*/*")):
            if launch.look(run_dir).phase != "running":
                continue
            self._display.say(f"{run_dir.name}  adopted, still running")
            manifest = Manifest.read(run_dir)
            self._do(f"making a head: {run_dir.name}", manifest.run_id)
            patience_s = self._order.patience_s
            attended = attend(run_dir, manifest, self._wishes, patience_s=patience_s)
            if attended.wish is not None:
                return attended.wish
        return None

    def _known(self, name: str) -> bool:
        with self._ledger.reading() as connection:
            return any(row.name == name for row in views.load(connection).heads)

    def _stages(self, step: NextBlock, name: str) -> Sequence[_Stage]:
        order, heads = self._order, self._order.heads
        checkpoint = str(order.checkpoint)
        amounts = [checkpoint, heads.prompts, heads.max_new_tokens, heads.temperature]
        base = order.forge_dir / f"{order.checkpoint.name}-{fingerprint(amounts)[:8]}"
        corpus, sequences, capture = (base / n for n in ("corpus", "sequences", "capture"))
        common = ("--checkpoint", checkpoint)
        device = (*common, "--device", heads.device, "--lease-held")
        asked = self._inputs(step)
        begun = () if asked.start is None else ("--head", str(asked.start))
        return (
            _Stage("corpus", corpus, (
                *common, "--out", str(corpus), "--per-category", str(heads.prompts))),
            _Stage("regenerate", sequences, (
                *device, "--corpus", str(corpus), "--out", str(sequences),
                "--temperature", f"{heads.temperature:g}",
                "--max-new-tokens", str(heads.max_new_tokens), "--workers", str(host.cores()))),
            _Stage("capture", capture, (
                *device, "--sequences", str(sequences), "--out", str(capture))),
            _Stage("train", self._arm(name), (
                *device, "--capture", str(capture), "--out", str(self._arm(name)),
                "--recipe", canonical(dict(asked.recipe)), *begun)),
        )  # fmt: skip

    def _inputs(self, step: NextBlock) -> rehearsal.Inputs:
        lever = step.lever.change["head"]
        assert isinstance(lever, dict)
        changed = {name: value for name, value in lever.items() if name != "start"}
        start = step.incumbent.get("head") if lever.get("start") == "incumbent" else None
        return rehearsal.Inputs(
            str(self._order.checkpoint), self._order.heads, {**self._order.heads.recipe, **changed},
            None if start is None else self._order.archive / str(start),
        )

    def _rehearsals(self, step: NextBlock, stages: Sequence[_Stage]) -> tuple[_Stage, _Stage]:
        """The rehearsal of every stage, and that of the training on what is captured already."""
        asked = self._inputs(step)
        captured = next(stage.out for stage in stages if stage.name == "capture")
        folder = self._order.forge_dir / rehearsal.FOLDER
        found = [
            _Stage(rehearsal.NAME, out, asked.words(out, given))
            for given in (None, captured) for out in [folder / asked.key(given)]
        ]
        return found[0], found[1]

    def _untried(self, step: NextBlock, stages: Sequence[_Stage]) -> tuple[_Stage, ...]:
        """The rehearsal of what was never tried here; what fails there is not begun."""
        every, training = self._rehearsals(step, stages)
        if every.done or training.done or all(stage.done for stage in stages):
            return ()
        captured = next(stage for stage in stages if stage.name == "capture")
        return (training if captured.done else every,)

    def _arm(self, name: str) -> Path:
        return self._order.forge_dir / "arms" / name

    def _run(self, stage: _Stage) -> Wish | Failure | None:
        """Carry out one stage; None when it is done."""
        if stage.done:
            return None
        attempts = self._attempts(stage)
        if attempts and launch.look(attempts[-1]).phase == "running":
            return self._attend(stage, attempts[-1], Manifest.read(attempts[-1]), None)
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
        return self._attend(stage, run_dir, manifest, child)

    def _attend(
        self,
        stage: _Stage,
        run_dir: Path,
        manifest: Manifest,
        child: subprocess.Popen[bytes] | None,
    ) -> Wish | Failure | None:
        self._do(f"making a head: {stage.name}", manifest.run_id)
        attended = attend(
            run_dir, manifest, self._wishes, child=child, patience_s=self._order.patience_s
        )
        if attended.wish is not None:
            return attended.wish
        if stage.done:
            return None
        state = attended.state
        status = None if state is None else state.exit_status
        code = "timeout" if status is not None and status.timed_out else f"{stage.name}_failed"
        said = stage.card.get("reason") or launch.stderr_tail(run_dir) or "it left no word"
        return Failure(code, str(said).splitlines()[-1])

    def _runs(self, stage: _Stage) -> Path:
        return self._order.forge_dir / "runs" / stage.out.name

    def _attempts(self, stage: _Stage) -> list[Path]:
        return sorted(self._runs(stage).glob(f"{stage.name}-*"))

    def _manifest(self, stage: _Stage, run_dir: Path) -> Manifest:
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

    def _archive(self, step: NextBlock, name: str) -> None:
        """Weights, metrics and the log of every attempt, unedited and in order."""
        stages = {stage.name: stage for stage in self._stages(step, name)}
        tried = self._rehearsals(step, tuple(stages.values()))
        stages |= {stage.name: stage for stage in tried if stage.done}
        out = stages["train"].out
        metrics = read_json(out / archive.METRICS)
        if metrics is None:
            raise HeadError(f"the training of {name} left no {archive.METRICS}.")
        log = out / archive.LOG
        with log.open("wb") as whole:
            for attempt in self._attempts(stages["train"]):
                whole.write((attempt / STDERR_FILE).read_bytes())
        files = {kind: out / kind for kind in archive.FILES}
        told = record.about(
            metrics,
            lever={
                "name": step.lever.name, "identity": step.lever.identity,
                "recipe": step.lever.change["head"], "claim": step.lever.claim,
            },
            variant=step.variant_id,
            stages={
                stage.name: {"seconds": stage.card["seconds"], **_short(stage.card["facts"])}
                for stage in stages.values() if stage.name != "train"
            },
        )  # fmt: skip
        record.keep(
            self._ledger, self._order.archive, name, files, told,
            now_utc=utc_text(self._clock.now()), variant_id=step.variant_id,
        )  # fmt: skip
        self._display.say(f"archived {name}: {self._order.archive / name}")


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    """What a card keeps of a stage's facts: all but long lists."""
    return {k: v for k, v in facts.items() if len(dump(v)) < 2000}
