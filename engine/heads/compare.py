"""Two heads on the prompts of a suite, greedy and sampled: tau by category, with bands.

Every prompt is decoded with both heads over one backbone; they must say the same tokens. A figure
for people: verdicts are made by the loop, from its own sealed runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from engine.checkpoint import load_draft
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.heads.pace import Pace
from engine.heads.stage import StageRefused
from engine.sampling import Sampling
from engine.suite import Prompt, Suite, counted, distinct_4gram
from engine.tokenizer import Tokenizer
from engine.weights import Weights

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Pair:
    """Rounds of both heads for the same `made` tokens of one prompt."""

    prompt: str
    category: str
    made: int
    stock: int
    head: int


@dataclass(frozen=True, slots=True)
class Line:
    """Mean tau of both heads over a group of prompts, and the band of the mean difference."""

    name: str
    prompts: int
    stock: float
    head: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """Rise of tau, a fraction."""
        return self.head / self.stock - 1


def compare(
    checkpoint: Path,
    head: Path,
    suite: Suite,
    *,
    config: EngineConfig,
    temperature: float,
    max_new_tokens: int,
    seed: int = 1,
    prompts: Sequence[str] = (),
) -> list[Pair]:
    """Decode the suite, or the named prompts, with the checkpoint's own head and with `head`.

    Prompts that do not count (short before EOS, or looping) are left out. Raises StageRefused when
    the heads say different tokens.
    """
    stock = Engine.load(checkpoint, config)
    other = beside(stock, head, config)
    tokenizer = Tokenizer.load(checkpoint)
    chosen = suite.select(prompts) if prompts else suite.prompts
    pace = Pace(f"{suite.name} at temperature {temperature:g}", len(chosen), "prompts")
    found = []
    for prompt in chosen:
        pair = _pair(stock, other, prompt, prompt.encode(tokenizer), Sampling(
            temperature=temperature, seed=seed), max_new_tokens)  # fmt: skip
        found += [] if pair is None else [pair]
        pace.step()
    return found


def beside(engine: Engine, head: Path, config: EngineConfig) -> Engine:
    """An engine with another draft head over the same backbone; the torch backend only."""
    if not isinstance(engine.weights, Weights):
        raise ConfigError("Two heads over one backbone need backend 'torch'.")
    draft = load_draft(head, engine.geometry, dtype=engine.weights.embed.dtype)
    return Engine(engine.geometry, replace(engine.weights, draft=draft), config, engine.cores)


def _pair(
    stock: Engine, other: Engine, prompt: Prompt, ids: list[int], sampling: Sampling, limit: int
) -> Pair | None:
    runs = []
    for engine in (stock, other):
        commits = list(engine.generate(ids, max_new_tokens=limit, sampling=sampling))
        tokens = [token for commit in commits for token in commit.tokens]
        runs.append((tokens, len(commits) - 1, commits[-1].finish))
    (tokens, rounds, finish), (others, theirs, _) = runs
    if tokens != others:
        raise StageRefused(f"The heads say different tokens on prompt {prompt.id}.")
    stop = "eos" if finish == "stop" else "length"
    if counted(len(tokens), stop, distinct_4gram(tokens)) is not None:
        return None
    return Pair(prompt.id, prompt.category, len(tokens) - 1, rounds, theirs)


def table(pairs: Sequence[Pair]) -> list[Line]:
    """A line for each category, then one for all prompts."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.category].append(pair)
    return [*(_line(name, rows) for name, rows in groups.items()), _line("all", pairs)]


def _line(name: str, pairs: Sequence[Pair]) -> Line:
    stock = [p.made / p.stock for p in pairs]
    head = [p.made / p.head for p in pairs]
    apart = [b - a for a, b in zip(stock, head, strict=True)]
    half = math.inf
    if len(apart) > 1:
        wide = float(stdtrit(len(apart) - 1, 0.5 + LEVEL / 2))
        half = wide * stdev(apart) / math.sqrt(len(apart))
    middle = fmean(apart)
    return Line(name, len(pairs), fmean(stock), fmean(head), middle - half, middle + half)


def say(pairs: Sequence[Pair], title: str, out: Callable[[str], None]) -> None:
    """The table as text."""
    out(f"{title}\n{'':16} prompts  stock   head    gain   {LEVEL:.0%} band of the difference")
    for line in table(pairs):
        out(
            f"{line.name:16} {line.prompts:7d}  {line.stock:5.3f}  {line.head:5.3f}  "
            f"{line.gain:+6.1%}  [{line.low:+.3f}, {line.high:+.3f}]"
        )


def as_json(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Lines and pairs as plain JSON; a band of one prompt has no ends."""
    lines = [
        {k: v if not isinstance(v, float) or math.isfinite(v) else None
         for k, v in asdict(line).items()} | {"gain": line.gain}
        for line in table(pairs)
    ]  # fmt: skip
    return {"lines": lines, "pairs": [asdict(p) for p in pairs]}
