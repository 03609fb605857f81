"""Prompt suites: what is measured, in which order, and which answers count.

A suite file holds messages, never token ids: those come from the checkpoint's own tokenizer. The
rules that decide whether an answer counts are pure functions here, shared by all measurements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine import chat
from engine.errors import ConfigError, EngineError
from engine.files import read_text
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.train.corpus.chat_sample import Chat

ASSETS: Final = Path(__file__).parent / "assets"
CATEGORIES: Final[tuple[str, ...]] = (
    "long_context",
    "agentic_format",
    "code_edit",
    "multi_turn",
    "short_factual",
    "reasoning",
    "explanation",
    "code_gen",
)
# An answer has to leave the draft window of 128 tokens well behind before it says anything.
MIN_TOKENS: Final = 200
MIN_DISTINCT_4GRAM: Final = 0.5


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a conversation that waits for an answer.

    With `take` it is that many of its tokens, said again from the start where they are too few:
    for gates, which ask at exact lengths and need no answer that makes sense.
    """

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...]
    thinking: bool
    take: int | None = None

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids of the prompt, ending with the header of the reply."""
        return self.cut(chat.encode(tokenizer, self.messages, thinking=self.thinking))

    def cut(self, ids: list[int]) -> list[int]:
        """`ids` at the length that is asked for."""
        if self.take is None:
            return ids
        return (ids * (self.take // len(ids) + 1))[: self.take]


@dataclass(frozen=True, slots=True)
class Suite:
    """A named, versioned list of prompts in category order."""

    name: str
    version: int
    prompts: tuple[Prompt, ...]

    @classmethod
    def load(cls, path: str | Path) -> Suite:
        """Read and validate a suite file; ConfigError says what is wrong with it."""
        try:
            data = json.loads(read_text(Path(path)))
        except OSError as error:
            raise ConfigError(f"Cannot read the suite {path}: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"Cannot read the suite {path}: {error}.") from None
        try:
            return cls.parse(data)
        except EngineError as error:
            raise ConfigError(f"The suite {path}: {error}") from None

    @classmethod
    def parse(cls, data: Any) -> Suite:
        """Validate the content of a suite file."""
        if not isinstance(data, dict) or set(data) != {"name", "version", "prompts"}:
            raise ConfigError("A suite has exactly the fields name, version and prompts.")
        if not isinstance(data["name"], str) or not isinstance(data["version"], int):
            raise ConfigError("A suite's name is text and its version is a whole number.")
        if not isinstance(data["prompts"], list):
            raise ConfigError("A suite's prompts are a list.")
        prompts = tuple(_prompt(entry) for entry in data["prompts"])
        ids = [p.id for p in prompts]
        if not prompts or len(set(ids)) != len(ids):
            raise ConfigError("A suite needs prompts, and no id may occur twice.")
        places = [CATEGORIES.index(p.category) for p in prompts]
        if places != sorted(places):
            raise ConfigError("The prompts of a suite must be in category order.")
        return cls(data["name"], data["version"], prompts)

    @property
    def canonical(self) -> dict[str, Any]:
        """The content as plain data, in the form that is hashed and written."""
        return {
            "name": self.name,
            "version": self.version,
            "prompts": [
                {
                    "id": p.id,
                    "category": p.category,
                    "thinking": p.thinking,
                    "messages": [dict(m) for m in p.messages],
                }
                | ({} if p.take is None else {"take": p.take})
                for p in self.prompts
            ],
        }

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON (sorted keys, no spaces, UTF-8)."""
        text = json.dumps(self.canonical, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def select(self, ids: Sequence[str]) -> tuple[Prompt, ...]:
        """Prompts by id, in the order asked for."""
        known = {p.id: p for p in self.prompts}
        if missing := [i for i in ids if i not in known]:
            raise ConfigError(f"The suite {self.name} has no prompt {missing[0]}.")
        return tuple(known[i] for i in ids)

    def write(self, path: Path) -> None:
        """Write the file that ``load`` reads."""
        text = json.dumps(self.canonical, ensure_ascii=False, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def _prompt(entry: Any) -> Prompt:
    fields = {"id", "category", "thinking", "messages"}
    if not isinstance(entry, dict) or set(entry) - {"take"} != fields:
        raise ConfigError("A prompt has exactly the fields id, category, thinking and messages.")
    take = entry.get("take")
    if take is not None and (type(take) is not int or take < 1):
        raise ConfigError(f"The tokens to take of prompt {entry['id']!r} must be at least 1.")
    if entry["category"] not in CATEGORIES:
        raise ConfigError(f"Unknown prompt category {entry['category']!r}.")
    if not isinstance(entry["thinking"], bool):
        raise ConfigError(f"The thinking flag of prompt {entry['id']!r} must be true or false.")
    messages = entry["messages"]
    chats = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    if not chats or not messages or messages[-1].get("role") == "assistant":
        raise ConfigError(
            f"Prompt {entry['id']!r} must end with a message that asks for an answer."
        )
    chat.pieces(messages, thinking=entry["thinking"])
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"Prompt {entry['id']!r} holds half of a character.") from None
    return Prompt(str(entry["id"]), entry["category"], tuple(messages), entry["thinking"], take)


def distinct_4gram(ids: Sequence[int]) -> float:
    """Distinct 4-grams over all 4-grams of an answer; 1.0 for one too short to have any."""
    total = len(ids) - 3
    if total < 1:
        return 1.0
    return len({tuple(ids[i : i + 4]) for i in range(total)}) / total


def counted(tokens: int, stop: str, distinct: float) -> str | None:
    """Why an answer does not count, or None if it does.

    Args:
        tokens: generated tokens up to and including EOS or the limit.
        stop: "eos" or "length"; an EOS is not one of the tokens that have to be there.
        distinct: ``distinct_4gram`` of the answer.
    """
    if stop not in ("eos", "length"):
        raise ValueError(f"unknown stop {stop!r}")
    if tokens - (stop == "eos") < MIN_TOKENS:
        return "short"
    if distinct < MIN_DISTINCT_4GRAM:
        return "loop"
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """How one of the shipped suites is generated."""

    name: str
    split: str
    per_category: int
    # Candidates that the shipped checkpoint answers too briefly or in loops, and those of the
    # hold-out.
    left_out: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        """Where the suite is kept."""
        return ASSETS / "suites" / f"{self.name}.json"


PLANS: Final = (Plan("tiny-v1", "suite", 6), Plan("tiny-holdout-v1", "holdout", 4))
# The prompt is the sample of a head: it takes so many to tell a rise of tau as small as its bar.
HEADS_PLAN: Final = Plan("tiny-heads-v1", "suite", 24, frozenset({"code_edit-6"}))
SHIPPED: Final = (*PLANS, HEADS_PLAN)
# Candidates whose reference answer is short or repetitive would be wasted places.
_ANSWER_TOKENS: Final = range(225, 521)
_ANSWER_DISTINCT: Final = 0.7
# Enough text to show by its n-grams that it is not in the training text.
_PROMPT_TOKENS: Final = 24


def worth_asking(tokenizer: Tokenizer, sample: Chat) -> bool:
    """Whether a generator's chat is one that suites are made of.

    Its prompt is long enough, and its own answer of the length and variety that is wanted.
    """
    from engine.train.corpus.build import asked

    if len(tokenizer.encode(asked(sample))) < _PROMPT_TOKENS:
        return False
    whole = chat.encode(tokenizer, sample.messages, thinking=sample.thinking)
    answer = whole[len(chat.encode(tokenizer, sample.prompt, thinking=sample.thinking)) :]
    return len(answer) in _ANSWER_TOKENS and distinct_4gram(answer) >= _ANSWER_DISTINCT


def candidates(plan: Plan, tokenizer: Tokenizer) -> Iterator[tuple[str, Chat]]:
    """Ids and chats of a plan: the first samples of its seeds that are worth measuring."""
    from engine.train.corpus.build import MAKERS
    from engine.train.corpus.chat_sample import stream

    for category in CATEGORIES:
        kept = 0
        for index in range(10_000):
            sample = MAKERS[category](stream(plan.split, category, index))
            if worth_asking(tokenizer, sample):
                yield f"{category}-{kept}", sample
                kept += 1
            if kept == plan.per_category:
                break


def generate(plan: Plan, tokenizer: Tokenizer) -> Suite:
    """A plan's suite, the same on every machine."""
    return Suite(
        plan.name,
        1,
        tuple(
            Prompt(prompt_id, c.category, c.prompt, c.thinking)
            for prompt_id, c in candidates(plan, tokenizer)
            if prompt_id not in plan.left_out
        ),
    )


def main(arguments: list[str] | None = None) -> int:
    """``python -m engine.suite``: rebuild the shipped suites or describe a suite file."""
    parser = argparse.ArgumentParser(prog="python -m engine.suite", description=__doc__)
    parser.add_argument("--build", action="store_true", help="write the shipped suites anew")
    parser.add_argument("files", nargs="*", type=Path, help="suite files to check")
    options = parser.parse_args(arguments)
    try:
        if options.build:
            tokenizer = Tokenizer.load(ASSETS / "tiny-v4")
            for plan in SHIPPED:
                generate(plan, tokenizer).write(plan.path)
        for path in options.files or [plan.path for plan in SHIPPED]:
            suite = Suite.load(path)
            print(
                f"{suite.name} version {suite.version}: {len(suite.prompts)} prompts,"
                f" {suite.sha256}"
            )
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
