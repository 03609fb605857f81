"""One benchmark from prompts to numbers: choose threads, warm up, time in turns, compare."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.bench.contest import Contestant, Sample
from engine.bench.spread import Ratio, Spread, Times, common_beginning, order
from engine.errors import PromptError

MIN_TOKENS = 8  # an answer shorter than this has no decode time worth the name
CALIBRATION_TOKENS = 12
CALIBRATION_REPEATS = 2

Step = Callable[[str], None]  # called before each generation with what comes next


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as every contestant gets it."""

    id: str
    category: str
    ids: tuple[int, ...]
    tokens: int  # how many to generate, the end of the text permitting


@dataclass(frozen=True, slots=True)
class Timed:
    """All samples of one prompt by contestant."""

    question: Question
    samples: dict[str, list[Sample]]


@dataclass(slots=True)
class Session:
    """Contestants in their order; the first decides how long each answer is."""

    contestants: Sequence[Contestant]
    repeats: int
    thread_choices: Sequence[int]
    step: Step = field(default=lambda _: None)

    def steps(self, prompts: int) -> int:
        """Generations in all, for a progress bar."""
        choices = len(self.thread_choices)
        tried = (CALIBRATION_REPEATS + 1) * choices if choices > 1 else 0
        return len(self.contestants) * (tried + prompts * (self.repeats + 1))

    def choose_threads(self, question: Question) -> dict[str, dict[int, float]]:
        """Give everybody the thread count that suits them; ms/token of each choice.

        With one choice nothing is timed.
        """
        found: dict[str, dict[int, float]] = {}
        count = min(question.tokens, CALIBRATION_TOKENS)
        for contestant in self.contestants:
            times: dict[int, float] = {}
            for threads in self.thread_choices:
                contestant.use_threads(threads)
                if len(self.thread_choices) > 1:
                    times[threads] = self._calibrate(contestant, question, threads, count)
            if times:
                contestant.use_threads(min(times, key=lambda t: times[t]))
            found[contestant.name] = times
        return found

    def _calibrate(
        self, contestant: Contestant, question: Question, threads: int, count: int
    ) -> float:
        samples = []
        for _ in range(CALIBRATION_REPEATS + 1):
            self.step(f"{contestant.name} with {threads} threads")
            samples.append(contestant.decode(question.ids, count))
        return min(s.ms_per_token for s in samples[1:])

    def time(self, question: Question, turn: int) -> Timed | None:
        """All repeats of one prompt, warmed up; None when its answer is too short to time."""
        length = 0
        for contestant in self.contestants:
            self.step(f"{question.id}: {contestant.name}, warm-up")
            warm = contestant.decode(question.ids, length or question.tokens)
            length = length or len(warm.tokens)
            if length < MIN_TOKENS:
                return None
        samples: dict[str, list[Sample]] = {c.name: [] for c in self.contestants}
        by_name = {c.name: c for c in self.contestants}
        for name in order([*samples], self.repeats, turn):
            self.step(f"{question.id}: {name}")
            samples[name].append(by_name[name].decode(question.ids, length))
        return Timed(question, samples)


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """Speculation on one kind of prompt."""

    category: str
    prompts: int
    tau: float
    plain_ms: float
    speculative_ms: float

    @property
    def speedup(self) -> float:
        """Plain time over speculative time."""
        return self.plain_ms / self.speculative_ms


def times(timed: Sequence[Timed], name: str) -> Times:
    """ms/token of one contestant by prompt."""
    return {t.question.id: [s.ms_per_token for s in t.samples[name]] for t in timed}


def summary(timed: Sequence[Timed], name: str) -> Spread:
    """One contestant over everything that was timed."""
    if not timed:
        raise PromptError("No prompt gave an answer that is long enough to time.")
    return Spread.of(times(timed, name))


def prefill_ms(timed: Sequence[Timed], name: str) -> float:
    """Median time to the first token, in milliseconds."""
    return statistics.median(s.prefill_ns for t in timed for s in t.samples[name]) / 1e6


def speedup(timed: Sequence[Timed], slower: str, faster: str) -> Ratio:
    """How many times faster `faster` is."""
    return Ratio.of(times(timed, slower), times(timed, faster))


def identical(timed: Sequence[Timed], a: str, b: str) -> int:
    """Prompts on which two contestants gave the same tokens in every repeat."""
    return sum(len({s.tokens for s in [*t.samples[a], *t.samples[b]]}) == 1 for t in timed)


def by_category(timed: Sequence[Timed], plain: str, speculative: str) -> list[CategoryRow]:
    """Acceptance and speed by kind of prompt, in the order of first appearance."""
    rows = []
    for category in dict.fromkeys(t.question.category for t in timed):
        mine = [t for t in timed if t.question.category == category]
        drafted = [s for t in mine for s in t.samples[speculative]]
        committed = sum(len(s.tokens) - 1 for s in drafted)
        rows.append(
            CategoryRow(
                category,
                len(mine),
                committed / sum(s.rounds for s in drafted),
                summary(mine, plain).median,
                summary(mine, speculative).median,
            )
        )
    return rows


def agreement(
    ours: Contestant, theirs: Contestant, questions: Sequence[Question], count: int
) -> dict[str, tuple[int, int]]:
    """Per prompt, how many first tokens agree, out of how many."""
    found = {}
    for question in questions:
        mine = ours.decode(question.ids, min(count, question.tokens)).tokens
        other = theirs.decode(question.ids, len(mine)).tokens
        found[question.id] = (common_beginning(mine, other), len(mine))
    return found
