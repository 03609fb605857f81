"""The measurement itself: warm-up, plain decode, speculative points, gates, step costs."""

from __future__ import annotations

import hashlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import engine
from engine import synthetic
from engine.checkpoint import checkpoint_sha256
from engine.engine import Commit
from engine.identity import effective, fingerprint
from engine.measure import heads, provenance
from engine.measure.journal import Journal
from engine.measure.plan import PROTOCOL, Arm, Plan
from engine.measure.sentinel import Sentinel
from engine.profile.decode import decode
from engine.profile.profile import MODE
from engine.suite import Prompt, Suite, counted, distinct_4gram
from engine.tokenizer import Tokenizer

_WARM_TOKENS = 24
_STEP_REPEATS = 5
_PROFILE_STEPS = 20


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished generation with its exact counts."""

    tokens: tuple[int, ...]
    prefill_ns: int
    decode_ns: int
    offered: tuple[int, ...]  # drafts offered, a round
    accepted: tuple[int, ...]
    largest: int  # most tokens that one round committed
    stop: str
    round_ns: tuple[int, ...]
    confidence: tuple[tuple[float, ...], ...]  # of each offered draft, a round

    @property
    def rounds(self) -> int:
        return len(self.offered)


def run(plan: Plan, journal: Journal, sentinel: Sentinel) -> None:
    """Measure everything `plan` names and seal the journal."""
    Program(plan, journal, sentinel).run()


class Program:
    """One load; its arms share the weights and take turns."""

    def __init__(self, plan: Plan, journal: Journal, sentinel: Sentinel) -> None:
        self._plan = plan
        self._sentinel = sentinel
        self._journal = journal
        self._counts = dict.fromkeys(("plain", "point", "gate", "control", "step_cost"), 0)
        self._tokens = self._rounds = 0
        self._plain: dict[tuple[str, str], tuple[int, ...]] = {}

    def run(self) -> None:
        plan, journal = self._plan, self._journal
        journal.phase, journal.total = (
            "load",
            plan.points + len(plan.prompts) * len(plan.plain_arms),
        )
        checkpoint = checkpoint_sha256(plan.checkpoint, plan.head)
        source = provenance.source_sha256()
        started = time.perf_counter_ns()
        self._heads = heads.hashes(plan)
        self._engines = heads.engines(plan)
        self._engine = next(iter(self._engines.values()))
        prompts = self._prompts()
        load_ns = time.perf_counter_ns() - started
        self._start(checkpoint, source)
        journal.event("loaded", load_ns=load_ns, **self._engine.weights.size())
        journal.phase = "warm-up"
        self._sentinel.watch(plan.suite_path, *plan.private)
        self._warm(prompts[0][1])
        self._controls(prompts[0])
        self._sentinel.check()
        journal.phase = "measure"
        for prompt, ids in prompts:
            self._measure(prompt, ids)
        journal.phase = "step cost"
        for arm in plan.arms:
            self._step_costs(arm, prompts[0][1])
            if plan.mode == MODE:
                self._phases(arm, prompts[0][1])
        journal.event("memory", peak_rss_bytes=peak_rss_bytes())
        self._sentinel.check()
        self._sentinel.watch()  # the suite's hash is taken again
        journal.seal(
            counts=self._counts,
            tokens=self._tokens,
            rounds=self._rounds,
            checkpoint_sha256=checkpoint_sha256(plan.checkpoint, plan.head),
            source_sha256=provenance.source_sha256(),
            suite_sha256=Suite.load(plan.suite_path).sha256,
            heads=heads.hashes(plan),
        )

    def _use(self, arm: Arm) -> None:
        """Take the engine that has the arm's head, in the arm's configuration."""
        self._engine = self._engines[arm.head]
        self._engine.reconfigure(arm.config)

    def _prompts(self) -> list[tuple[Prompt, list[int]]]:
        """Every prompt with its tokens; random ones, as many, where no text means anything."""
        plan, geometry = self._plan, self._engine.geometry
        if plan.synthetic:
            return [(p, p.cut(synthetic.prompt_ids(p, geometry))) for p in plan.prompts]
        tokenizer = Tokenizer.load(plan.checkpoint)
        return [(prompt, prompt.encode(tokenizer)) for prompt in plan.prompts]

    # ---------------------------------------------------------------- stages

    def _start(self, checkpoint: str, source: str) -> None:
        plan = self._plan
        arms = []
        for arm in plan.arms:
            self._use(arm)
            # The code that runs, never the one asked for: whoever judges compares the two.
            own = None if arm.source_sha256 is None else source
            resolved = effective(self._engine.config, self._heads.get(arm.name), own)
            arms.append(
                {
                    "name": arm.name,
                    "requested": arm.requested,
                    "effective": resolved,
                    "fingerprint": fingerprint(resolved),
                }
            )
        revision, dirty = provenance.revision()
        self._journal.event(
            "start",
            protocol=PROTOCOL,
            run_id=plan.run_id,
            engine={
                "version": engine.VERSION,
                "git_revision": revision,
                "git_dirty": dirty,
                "source_sha256": source,
            },
            checkpoint={"path": str(plan.checkpoint), "sha256": checkpoint},
            head={"path": str(plan.head), "sha256": checkpoint} if plan.head else None,
            suite={
                "name": plan.suite.name,
                "version": plan.suite.version,
                "sha256": plan.suite.sha256,
            },
            synthetic=plan.synthetic,
            device=provenance.device(self._engine.config.backend),
            clocks=provenance.clocks(),
            mode=plan.mode,
            torch=torch.__version__,
            python=sys.version.split()[0],
            plan={
                "arms": [arm.name for arm in plan.arms],
                "order": list(plan.order),
                "plain_arms": list(plan.plain_arms),
                "prompts": [prompt.id for prompt in plan.prompts],
                "max_new_tokens": plan.max_new_tokens,
                "seed": plan.seed,
                "temperature": plan.temperature,
            },
            arms=arms,
        )

    def _warm(self, ids: list[int]) -> None:
        """Run every shape that will be timed once, so that no compilation or first touch is.

        Arms run in the company in which they will be timed: sequences that live at once have
        memory of their own, and on a GPU graphs of their own, made when they are first used.
        """
        arms = {arm.name: arm for arm in self._plan.arms}
        for arm in arms.values():
            self._use(arm)
            self._verify_ns(ids, repeats=1)
        for names in dict.fromkeys(turns(self._plan.order)):
            self._together(ids, [arms[name] for name in names], limit=_WARM_TOKENS)

    def _controls(self, first: tuple[Prompt, list[int]]) -> None:
        """The first token after prefill must not depend on the arm."""
        prompt, ids = first
        expected: int | None = None
        for arm in self._plan.arms:
            self._use(arm)
            token = self._generate(ids, plain=True, limit=1).tokens[0]
            expected = token if expected is None else expected
            self._emit(
                "control",
                arm=arm.name,
                prompt=prompt.id,
                token=token,
                finite=True,
                **{"pass": token == expected},
            )

    def _measure(self, prompt: Prompt, ids: list[int]) -> None:
        plan = self._plan
        arms = {arm.name: arm for arm in plan.arms}
        repeats = dict.fromkeys(arms, 0)
        ahead: list[tuple[Arm, int, Generation]] = []
        if plan.plain_after == 0:
            self._plains(prompt, ids, arms)
        for names in turns(plan.order):
            for name, point in zip(
                names, self._together(ids, [arms[n] for n in names]), strict=True
            ):
                self._point(prompt, ids, arms[name], repeats[name], point)
                ahead.append((arms[name], repeats[name], point))
                repeats[name] += 1
                self._journal.done += 1
            if plan.plain_after and min(repeats.values()) == plan.plain_after:
                self._plains(prompt, ids, arms)
            if (plan.plain_arms[0], prompt.id) in self._plain:
                for arm, repeat, point in ahead:
                    self._gate(arm.name, prompt, repeat, point.tokens)
                ahead.clear()
        self._sentinel.check()

    def _plains(self, prompt: Prompt, ids: list[int], arms: Mapping[str, Arm]) -> None:
        """Plain decode of a prompt by every arm that owes it."""
        plan = self._plan
        for name in plan.plain_arms:
            self._use(arms[name])
            plain = self._generate(ids, plain=True)
            self._plain[name, prompt.id] = plain.tokens
            self._emit(
                "plain",
                arm=name,
                **self._fields(prompt, ids, plain),
                distinct_4gram=round(distinct_4gram(plain.tokens), 4),
            )
            self._journal.done += 1
            if plan.mode == MODE:
                top, entropy = self._doubt(ids, plain.tokens)
                self._journal.event(
                    "target", arm=name, prompt=prompt.id, top=top, entropy_nats=entropy
                )

    def _point(
        self, prompt: Prompt, ids: list[int], arm: Arm, repeat: int, point: Generation
    ) -> None:
        self._tokens += len(point.tokens)
        self._rounds += point.rounds
        self._emit(
            "point",
            arm=arm.name,
            repeat=repeat,
            **self._fields(prompt, ids, point),
            rounds=point.rounds,
            width=arm.config.draft_width,
            max_committed=point.largest,
            offered_by_position=_reached(point.offered, arm.config.draft_width),
            accepted_by_position=_reached(point.accepted, arm.config.draft_width),
        )
        if self._plan.mode == MODE:
            self._journal.event(
                "rounds", arm=arm.name, prompt=prompt.id, repeat=repeat, offered=point.offered,
                accepted=point.accepted, time_ns=point.round_ns,
                confidence=[[round(c, 6) for c in row] for row in point.confidence],
            )  # fmt: skip

    def _together(
        self, ids: list[int], arms: Sequence[Arm], limit: int | None = None
    ) -> list[Generation]:
        """Generate with every arm at once: the one that is behind takes the next round.

        So arms share whatever the machine does to them, down to the length of a round.
        """
        running: list[tuple[int, Iterator[Commit]]] = []
        for arm in arms:
            self._use(arm)
            commits = self._engine.generate(
                ids,
                max_new_tokens=limit or self._plan.max_new_tokens,
                sampling=self._plan.sampling,
            )
            running.append((self._engine.config.threads, commits))
        found: list[list[Commit]] = [[] for _ in arms]
        produced = [0 for _ in arms]
        waiting = list(range(len(arms)))
        while waiting:
            turn = min(waiting, key=lambda i: produced[i])
            threads, commits = running[turn]
            torch.set_num_threads(threads)
            commit = next(commits)
            found[turn].append(commit)
            produced[turn] += len(commit.tokens)
            # Of arms that are level the one that has just run goes first: A B B A, by rounds.
            waiting.remove(turn)
            if commit.finish is None:
                waiting.insert(0, turn)
        return [summarise(commits) for commits in found]

    def _gate(self, arm: str, prompt: Prompt, repeat: int, tokens: tuple[int, ...]) -> None:
        """Every token of every prompt against plain decode: the arm's own, else the first arm's."""
        own = self._plain.get((arm, prompt.id))
        plain = self._plain[self._plan.plain_arms[0], prompt.id] if own is None else own
        self._emit(
            "gate",
            kind=self._kind(arm),
            arm=arm,
            prompt=prompt.id,
            repeat=repeat,
            compared=max(len(plain), len(tokens)),
            first_diff=first_difference(plain, tokens),
            **{"pass": plain == tokens},
        )

    def _kind(self, arm: str) -> str:
        """`lossy` for an arm whose tokens may differ from plain decode's, and say so."""
        config = next(one.config for one in self._plan.arms if one.name == arm)
        warm = self._plan.temperature > 0
        return "lossy" if warm and config.acceptance != "exact" else "lossless"

    def _step_costs(self, arm: Arm, ids: list[int]) -> None:
        self._use(arm)
        for width, ns in self._verify_ns(ids, _STEP_REPEATS).items():
            self._emit("step_cost", arm=arm.name, width=width, ns=ns)

    def _phases(self, arm: Arm, ids: list[int]) -> None:
        """Where the time of a plain step goes, and what each phase has left to gain."""
        self._use(arm)
        if self._engine.config.compile != "off":
            self._journal.say(f"arm {arm.name} is compiled: its blocks have no phases to time")
            return
        profile = decode(self._engine, ids, rows=1, steps=_PROFILE_STEPS)
        gains = {residual.name: residual for residual in profile.ranking}
        for phase in profile.phases():
            found = gains.get(phase["path"])
            self._journal.event(
                "phase", arm=arm.name, **phase,
                of_ceiling=None if found is None else found.of_ceiling,
                ms_to_gain=None if found is None else found.ms_to_gain,
            )  # fmt: skip

    # ---------------------------------------------------------------- parts

    def _generate(self, ids: list[int], *, plain: bool, limit: int | None = None) -> Generation:
        commits = list(
            self._engine.generate(
                ids,
                max_new_tokens=limit or self._plan.max_new_tokens,
                sampling=self._plan.sampling,
                speculative=not plain,
            )
        )
        return summarise(commits)

    @torch.inference_mode()
    def _verify_ns(self, ids: list[int], repeats: int) -> dict[int, int]:
        """Median time of one verify step after the prompt, for every width in use."""
        backend = self._engine.backend
        state = backend.new_state()
        backend.prefill(state, ids, drafting=False)
        medians = {}
        for width in range(1, self._engine.config.draft_width + 2):
            rows = (ids * width)[:width]
            times = []
            for _ in range(repeats + 1):
                started = time.perf_counter_ns()
                backend.forward(state, rows, keep=0)
                times.append(time.perf_counter_ns() - started)
            medians[width] = round(statistics.median(times[1:]))
        return medians

    @torch.inference_mode()
    def _doubt(self, ids: list[int], tokens: Sequence[int]) -> tuple[list[float], list[float]]:
        """The target's largest probability and its entropy where it chose each of these tokens."""
        backend = self._engine.backend
        state = backend.new_state()
        row = backend.prefill(state, ids, drafting=False)[-1]
        top, entropy = [], []
        for token in tokens:
            chances = row.float().log_softmax(-1)
            top.append(round(chances.max().exp().item(), 6))
            entropy.append(round(-(chances.exp() * chances).sum().item(), 6))
            row = backend.forward(state, [token], keep=1)[-1]
        return top, entropy

    def _fields(self, prompt: Prompt, ids: list[int], done: Generation) -> dict[str, Any]:
        reason = counted(len(done.tokens), done.stop, distinct_4gram(done.tokens))
        if self._plan.synthetic:
            reason = None  # random weights end and repeat themselves without it meaning anything
        return {
            "prompt": prompt.id,
            "category": prompt.category,
            "prompt_tokens": len(ids),
            "tokens": len(done.tokens),
            "forwards": done.rounds,
            "prefill_ns": done.prefill_ns,
            "ttft_ns": done.prefill_ns,
            "decode_ns": done.decode_ns,
            "tokens_sha256": tokens_sha256(done.tokens),
            "stop": done.stop,
            "counted": reason is None,
            "excluded": reason,
            "finite": True,
        }

    def _emit(self, event: str, **fields: Any) -> None:
        self._counts[event] += 1
        self._journal.event(event, **fields)


def turns(order: Sequence[str]) -> list[tuple[str, ...]]:
    """The order cut into runs of distinct arms, which generate together: A B B A -> (A B) (B A)."""
    groups: list[tuple[str, ...]] = []
    for name in order:
        if groups and name not in groups[-1]:
            groups[-1] = (*groups[-1], name)
        else:
            groups.append((name,))
    return groups


def summarise(commits: Sequence[Commit]) -> Generation:
    """Exact counts of one generation; `stop` is `eos` or `length`."""
    rounds = [(len(c.tokens), c.round) for c in commits if c.round is not None]
    return Generation(
        tokens=tuple(token for commit in commits for token in commit.tokens),
        prefill_ns=commits[0].prefill_ns,
        decode_ns=sum(r.time_ns for _, r in rounds),
        offered=tuple(r.offered for _, r in rounds),
        accepted=tuple(r.accepted for _, r in rounds),
        largest=max((n for n, _ in rounds), default=0),
        stop="eos" if commits[-1].finish == "stop" else "length",
        round_ns=tuple(r.time_ns for _, r in rounds),
        confidence=tuple(r.confidence for _, r in rounds),
    )


def first_difference(plain: Sequence[int], tokens: Sequence[int]) -> dict[str, int | None] | None:
    """Where two token sequences part, with what each holds there; None when they are equal."""
    for index in range(max(len(plain), len(tokens))):
        a = plain[index] if index < len(plain) else None
        b = tokens[index] if index < len(tokens) else None
        if a != b:
            return {"index": index, "plain": a, "spec": b}
    return None


def tokens_sha256(tokens: Sequence[int]) -> str:
    """Hash of token ids as decimal text joined by commas."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reached(lengths: Sequence[int], width: int) -> list[int]:
    """How many rounds had more than j of something, for each draft position j < width."""
    return [sum(length > j for length in lengths) for j in range(width)]
