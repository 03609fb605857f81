"""Runs the gates of a patch, each a supervised run in a worktree, and says what they found."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.best import engine_part
from flywheel.box.clock import utc_text
from flywheel.errors import LaunchError
from flywheel.files import dump, read_json, write_atomic
from flywheel.heads import archive
from flywheel.loop.attend import Attended, attend
from flywheel.loop.order import HEARTBEAT_GAP_S
from flywheel.loop.result import Failure
from flywheel.loop.step import NextBlock
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.patch import compare, gates, prompts
from flywheel.patch.worktree import Tree
from flywheel.run import ingest, launch
from flywheel.run.guarding import guard_of
from flywheel.run.manifest import Manifest, engine_config, new_nonce
from flywheel.run.record import RunRecord
from flywheel.statistics.block import CANDIDATE, INCUMBENT

# What happens to a run and is no deed of the code in it: tried again, never held against a patch.
OF_THE_BOX = (
    "unwitnessed", "guard_lost", "foreign_process", "throttled", "host_busy", "suspended",
    "heartbeat_gap", "never_started", "not_started", "disk_full", "supervisor_lost", "interrupted",
    "changed_underfoot", "budget_spent",
)  # fmt: skip
# A gate asks more prompts than a load of a quick ruler does.
LONGER = 3.0
SAMPLED = 6
TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the gates found, for the ledger; `wrong` is why the patch is refused, if it is."""

    told: Mapping[str, Any]
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One output gate: its suite file, the prompts, and how tokens are chosen."""

    name: str
    suite: Path
    prompts: tuple[str, ...]
    temperature: float
    seed: int


class Gating:
    """The gates of one session."""

    def __init__(self, shop: Workshop) -> None:
        self._order, self._ledger = shop.order, shop.ledger
        self._clock, self._display, self._wishes = shop.clock, shop.display, shop.wishes
        self._lease, self._do = shop.lease, shop.do

    def run(
        self, step: NextBlock, files: Sequence[str], old: Tree, new: Tree
    ) -> Found | Failure | Wish:
        """Every gate in its order, up to the first that a patch of these files does not pass."""
        asked = self._order.patches
        told: dict[str, Any] = {"tests": []}
        device = step.incumbent.get("backend") == "triton"
        chosen = gates.chosen(asked.tests, files, device=device)
        for tests in chosen:
            said = self._tests(step, tests, new)
            if isinstance(said, str):
                # What the incumbent does not pass either is no fault of the patch.
                before = self._tests(step, tests, old)
                if isinstance(before, str):
                    return Failure("gate_broken", f"the tests of {tests.name}: {before}")
                said = f"the tests of {tests.name}: {said}" if before is True else before
            if isinstance(said, str):
                return Found(told, said)
            if not isinstance(said, bool):
                return said
            if said:
                told["tests"].append(tests.name)
        needed = {tests.name for tests in chosen if tests.device}
        if needed and not needed & set(told["tests"]):
            return Failure("gate_empty", f"no test on the device matches {asked.device_tests!r}")
        if needed and asked.device_tests:
            told["device_tests"] = asked.device_tests
        return self._outputs(step, old, new, told)

    # -- tests -----------------------------------------------------------------------------

    def _tests(
        self, step: NextBlock, tests: gates.GateTests, tree: Tree
    ) -> str | Failure | Wish | bool:
        """Run one set of tests in a worktree: why they do not pass, or whether there were any."""
        if missing := [file for file in tests.files if not (tree.path / file).is_file()]:
            return Failure("gate_missing", f"{tree.revision[:12]} has no {missing[0]}")
        asked = self._order.patches
        manifest = self._manifest(
            step, f"tests-{tests.name}", tree, {"gate": tests.name, "arms": []},
            lambda run_dir: gates.argv(
                asked.command, tests, workers=asked.workers, device_tests=asked.device_tests
            ),
            asked.timeout_s,
        )  # fmt: skip
        attended = self._attended(manifest)
        if isinstance(attended, Wish | Failure):
            return attended
        state = attended.state
        status = None if state is None else state.exit_status
        if status is None or status.status is None or status.timed_out or status.stopped:
            return Failure("gate_ended", f"the tests of {tests.name} did not come to an end")
        tail = launch.stderr_tail(self._dir(manifest))
        if status.status == 0 and tests.device and not gates.ran(tail):
            return Failure("gate_skipped", f"the tests of {tests.name} all skip: no device is seen")
        if status.status == 0:
            return True
        if status.status == gates.NOTHING and tests.device and asked.device_tests:
            return False
        lines = tail.splitlines() or ["they said nothing"]
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return (failed or lines)[-1][:300]

    # -- output ----------------------------------------------------------------------------

    def _outputs(
        self, step: NextBlock, old: Tree, new: Tree, told: dict[str, Any]
    ) -> Found | Failure | Wish:
        greedy, sampled = self.questions(step)
        told |= {"prompts": list(greedy.prompts), "seed": greedy.seed}
        for question in (greedy, sampled):
            mine = self.answer(step, question, INCUMBENT, step.incumbent, old)
            if isinstance(mine, str):
                return Failure("gate_broken", f"the incumbent does not pass the gate: {mine}")
            if not isinstance(mine, RunRecord):
                return mine
            theirs = self.answer(step, question, CANDIDATE, step.candidate, new)
            if isinstance(theirs, str):
                return Found(told, theirs)
            if not isinstance(theirs, RunRecord):
                return theirs
            if wrong := verdict(mine, theirs):
                told["wrong"] = [f"{w.word}: {w.sentence}" for w in wrong[:8]]
                return Found(told, told["wrong"][0])
        return Found(told)

    def questions(self, step: NextBlock, seed: int | None = None) -> tuple[Question, Question]:
        """Prompts that nobody could know before, and some of them to be answered by sampling.

        `seed` draws those of an earlier gate again.
        """
        order, shape = self._order, self._order.patches.shape
        seed = secrets.randbits(31) if seed is None else seed
        model = read_json(order.checkpoint / "config.json") or {}
        found = prompts.lengths(model, step.incumbent, shape, random.Random(f"lengths {seed}"))
        own = read_json(order.suite) or {}
        more = [] if order.holdout is None else [read_json(order.holdout) or {}]
        body = prompts.gate_suite(own, more, found, shape, seed)
        folder = order.forge_dir / "gates"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{step.variant_id}-{seed}.json"
        write_atomic(path, dump(body))
        names = tuple(str(entry["id"]) for entry in body["prompts"])
        warm = Question("sampled", path, names[:SAMPLED], TEMPERATURE, seed)
        return Question("output", path, names, 0.0, seed), warm

    def answer(
        self, step: NextBlock, question: Question, arm: str, config: Mapping[str, Any], tree: Tree
    ) -> RunRecord | str | Failure | Wish:
        """One load of one arm; a sentence when its engine does not answer rightly by itself."""
        order, head = self._order, config.get("head")
        own = {} if head is None else {
            arm: (str(order.archive / str(head)), archive.weights_sha256(order.archive, str(head)))
        }

        def asked(run_id: str, nonce: str) -> dict[str, Any]:
            return engine_config(
                run_id=run_id, nonce=nonce, checkpoint=str(order.checkpoint), head=None,
                suite=str(question.suite.resolve()), prompts=question.prompts,
                arms={arm: engine_part(config)}, order=(arm, arm), plain_arms=(arm,),
                max_new_tokens=order.patches.shape.new_tokens, seed=question.seed, heads=own,
                temperature=question.temperature, sources={arm: tree.source_sha256}, plain_after=1,
            )  # fmt: skip

        manifest = self._manifest(
            step, f"{question.name}-{arm}", tree, asked,
            lambda run_dir: launch.engine_argv(run_dir, order.command),
            LONGER * order.timeout_s,
        )  # fmt: skip
        attended = self._attended(manifest)
        if not isinstance(attended, Attended):
            return attended
        assert attended.state is not None
        got = ingest.ingest(
            self._dir(manifest), manifest, attended.state, contamination=attended.contamination,
            contaminated_as=attended.contaminated_as, looks=attended.looks,
        )  # fmt: skip
        if got.record is not None:
            return got.record
        code, said = got.end.code, f"{got.end.code}: {got.end.detail}"
        if got.end.outcome in ("blocked", "timeout", "killed") or code in OF_THE_BOX:
            return Failure(code, f"the {question.name} gate: {got.end.detail}")
        return said

    # -- runs ------------------------------------------------------------------------------

    def _manifest(
        self,
        step: NextBlock,
        name: str,
        tree: Tree,
        config: Mapping[str, Any] | Callable[[str, str], dict[str, Any]],
        argv: Callable[[Path], tuple[str, ...]],
        timeout_s: float,
    ) -> Manifest:
        attempt = len([*self._runs(step.variant_id, name).glob("*")]) + 1
        run_id, nonce = f"{step.variant_id}-{name}-{attempt:03d}", new_nonce()
        with self._ledger.reading() as connection:
            guard = guard_of(connection, self._order)
        return Manifest(
            run_id=run_id,
            nonce=nonce,
            config=config(run_id, nonce) if callable(config) else config,
            argv=argv((self._runs(step.variant_id, name) / run_id).resolve()),
            cwd=str(tree.path),
            created_utc=utc_text(self._clock.now()),
            timeout_s=timeout_s,
            grace_s=self._order.grace_s,
            heartbeat_gap_s=HEARTBEAT_GAP_S,
            guard=guard,
            lever_identity=step.lever.identity,
            lever_name=step.lever.name,
        )

    def _attended(self, manifest: Manifest) -> Attended | Failure | Wish:
        run_dir = self._dir(manifest)
        self._display.say(f"{manifest.run_id}  a gate of {manifest.lever_name}")
        self._do(f"gating a patch: {manifest.run_id}", manifest.run_id)
        try:
            launch.prepare(run_dir, manifest)
            lease = self._lease()
            if lease is not None:
                lease.tell(f"flywheel run, {manifest.run_id}", run_dir)
            child = launch.start(run_dir, lease_fds=lease.fds if lease else ())
        except LaunchError as error:
            return Failure("not_started", str(error))
        attended = attend(
            run_dir, manifest, self._wishes, child=child, patience_s=self._order.patience_s
        )
        if attended.wish is not None:
            return attended.wish
        if attended.state is None:
            return Failure("not_started", "the gate was left to its supervisor")
        return attended

    def _runs(self, variant_id: str, name: str) -> Path:
        # Beside the stages of heads, so that one that a dead loop left running is attended too.
        return self._order.forge_dir / "runs" / f"{variant_id}-{name}"

    def _dir(self, manifest: Manifest) -> Path:
        return self._order.forge_dir / "runs" / manifest.run_id[:-4] / manifest.run_id


def verdict(incumbent: RunRecord, candidate: RunRecord) -> tuple[compare.Wrong, ...]:
    """Every way in which a candidate's answers are not the incumbent's, or not honestly come by."""
    return (
        *compare.outputs([incumbent], [candidate]),
        *compare.remembered(incumbent, candidate),
        *compare.suite_only(incumbent, candidate),
    )
