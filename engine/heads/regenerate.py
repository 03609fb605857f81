"""The target's own answers to the corpus: a head learns what the target says, not what a book does.

One line a sequence, written as soon as it is whole; an interrupted stage keeps what it has.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import checkpoint_sha256
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.heads import corpus
from engine.heads.corpus import LEAST_REPLY
from engine.heads.pace import Pace
from engine.heads.stage import Stage, StageRefused, require, require_room
from engine.sampling import Sampling
from engine.suite import CATEGORIES, MIN_DISTINCT_4GRAM, distinct_4gram
from engine.tokenizer import Tokenizer

FILE = "sequences.jsonl"
_LINE_BYTES_PER_TOKEN = 7


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and the target's answer to it, as token ids; `stop` is eos or length."""

    id: str
    category: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    stop: str
    temperature: float
    seed: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The whole sequence."""
        return self.prompt + self.reply

    @property
    def fit(self) -> bool:
        """Whether it is worth learning from: long enough, and no repetition loop."""
        return len(self.reply) >= LEAST_REPLY and distinct_4gram(self.reply) >= MIN_DISTINCT_4GRAM


def regenerate(
    out: Path,
    source: Path,
    checkpoint: Path,
    *,
    config: EngineConfig,
    temperature: float,
    max_new_tokens: int,
    limit: int | None = None,
    seed: int = 1,
    workers: int = 1,
) -> list[Sample]:
    """Answer the prompts of the corpus stage in `source` with the model of `checkpoint`.

    Every other prompt is answered greedily, the rest at `temperature`, so that a head meets both.
    A reply ends with EOS or after `max_new_tokens`; `workers` processes answer side by side, and
    what they say does not depend on how many they are. Raises StageRefused for a corpus that is not
    whole or a prompt that does not fit the context, ConfigError for replies too short to train on.
    """
    if max_new_tokens < LEAST_REPLY:
        raise ConfigError(
            f"A reply under {LEAST_REPLY} tokens trains nothing; got --max-new-tokens "
            f"{max_new_tokens}."
        )
    card = require(source, "corpus")
    prompts = corpus.load(source)[:limit]
    asked = {
        "corpus": card["files"][corpus.FILE]["sha256"], "prompts": len(prompts), "seed": seed,
        "checkpoint": checkpoint_sha256(checkpoint), "temperature": temperature,
        "max_new_tokens": max_new_tokens, "config": config.canonical(),
    }  # fmt: skip
    stage = Stage(out, "regenerate", asked)
    if stage.done:
        return load(out)
    with stage:
        require_room(out, len(prompts) * 2 * max_new_tokens * _LINE_BYTES_PER_TOKEN, stage.name)
        tokenizer = Tokenizer.load(checkpoint)
        given = [(p, tuple(p.encode(tokenizer))) for p in prompts]
        made = _resumed(out / FILE, given)
        jobs = [
            _Job(prompt, ids, _warmth(number, temperature), max_new_tokens, seed + number)
            for number, (prompt, ids) in enumerate(given)
        ]
        pace = Pace("regenerate", len(given), "sequences", len(made))
        with (out / FILE).open("a", encoding="utf-8") as lines:
            for sequence in _answers(checkpoint, config, jobs[len(made) :], workers):
                lines.write(json.dumps(asdict(sequence)) + "\n")
                lines.flush()
                made.append(sequence)
                pace.step()
        stage.finish((FILE,), facts(made))
    return made


def facts(made: Sequence[Sample]) -> dict[str, Any]:
    """What the sequences come to."""
    fit = [s for s in made if s.fit]
    return {
        "sequences": len(made), "fit": len(fit),
        "reply_tokens": sum(len(s.reply) for s in made),
        "stops": dict(Counter(s.stop for s in made)),
        "fit_by_category": dict(Counter(s.category for s in fit)),
    }  # fmt: skip


def load(folder: Path) -> list[Sample]:
    """The sequences of a regeneration stage, in order."""
    return [_parse(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class _Job:
    """A prompt to be answered, and how."""

    prompt: corpus.Prompt
    ids: tuple[int, ...]
    temperature: float
    limit: int
    seed: int


def _warmth(number: int, temperature: float) -> float:
    """Rows of categories take turns: greedy, then at `temperature`."""
    return temperature if number // len(CATEGORIES) % 2 else 0.0


def _answers(
    checkpoint: Path, config: EngineConfig, jobs: Sequence[_Job], workers: int
) -> Iterator[Sample]:
    """The answers in the order of the jobs."""
    if workers < 2:
        engine = Engine.load(checkpoint, config)
        yield from (_answer(engine, job) for job in jobs)
        return
    # Forked, the children would inherit threads of the libraries that are loaded here.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (checkpoint, config)) as pool:
        yield from pool.map(_answer_here, jobs)


_engine: Engine | None = None  # of a worker process, loaded once


def _begin(checkpoint: Path, config: EngineConfig) -> None:
    global _engine
    torch.set_num_threads(1)
    _engine = Engine.load(checkpoint, config)


def _answer_here(job: _Job) -> Sample:
    assert _engine is not None
    return _answer(_engine, job)


def _answer(engine: Engine, job: _Job) -> Sample:
    prompt, ids, temperature, seed = job.prompt, job.ids, job.temperature, job.seed
    room = min(job.limit, engine.config.context - len(ids))
    if room < LEAST_REPLY:
        raise StageRefused(
            f"The prompt {prompt.id} of {len(ids)} tokens leaves no room for a reply in a context "
            f"of {engine.config.context}."
        )
    sampling = Sampling(temperature=temperature, seed=seed)
    commits = list(engine.generate(ids, max_new_tokens=room, sampling=sampling))
    reply = tuple(token for commit in commits for token in commit.tokens)
    stop = "eos" if commits[-1].finish == "stop" else "length"
    return Sample(prompt.id, prompt.category, ids, reply, stop, temperature, seed)


def _parse(line: str) -> Sample:
    raw = json.loads(line)
    return Sample(**{**raw, "prompt": tuple(raw["prompt"]), "reply": tuple(raw["reply"])})


def _resumed(path: Path, given: Sequence[tuple[corpus.Prompt, tuple[int, ...]]]) -> list[Sample]:
    """What an interrupted stage left, its last line dropped if it broke off.

    Each must begin with its prompt's exact ids.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    made = [_parse(line) for line in whole.splitlines()]
    for (prompt, ids), sequence in zip(given, made, strict=False):
        if (sequence.id, sequence.prompt) != (prompt.id, ids):
            raise StageRefused(f"{sequence.id} in {path} does not begin with its prompt.")
    return made
