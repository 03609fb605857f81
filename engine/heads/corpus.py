"""The prompts that the target is to answer: balanced over the categories, none of them a measure.

A prompt is refused when its user text shares a single n-gram of token ids with a prompt of the
suite or the hold-out, so a head can never have been trained on what it is judged by. The
generators' prompts get a second chance in other words (`rewording`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import chat
from engine.errors import ConfigError, EngineError
from engine.heads import rewording
from engine.heads.pace import Pace
from engine.heads.stage import Stage, StageRefused
from engine.suite import ASSETS, CATEGORIES, PLANS, SHIPPED, Suite, worth_asking
from engine.tokenizer import Tokenizer
from engine.train.card import sha256
from engine.train.corpus.build import GENERATOR_VERSION, MAKERS
from engine.train.corpus.chat_sample import stream
from engine.train.corpus.overlap import NGRAM

SPLIT = "heads"
FILE = "prompts.jsonl"
SUITES = tuple(plan.path for plan in PLANS)
# Whatever a head may be judged by, unless it is said.
MEASURES = tuple(plan.path for plan in SHIPPED)
# Raised by hand with any change of which of the generators' prompts are taken.
_CHOICE = 1
# Candidates tried for each prompt wanted before a category is given up.
_PATIENCE = 200
# Samples in a row without a text that is new and worth asking before a generator has no more.
_BARREN = 1000

Grams = frozenset[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that waits for the target's answer, and where its text comes from."""

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...]
    thinking: bool
    licence: str
    source: str

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids in the model's chat format, up to the header of the reply."""
        return chat.encode(tokenizer, self.messages, thinking=self.thinking)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "messages": [dict(m) for m in self.messages]
        }


def build(
    out: Path,
    checkpoint: Path,
    *,
    per_category: int,
    chats: Path | None = None,
    suites: Sequence[Path] = MEASURES,
) -> list[Prompt]:
    """Write `prompts.jsonl`: `per_category` prompts of each category, one of each in turn.

    They come from `chats`, a file of JSON lines (category, messages, licence, source, and thinking
    where it applies), or from this project's own generators. Raises StageRefused when a category
    cannot be filled.
    """
    _require_one(per_category)
    asked = {
        "per_category": per_category, "ngram": NGRAM, "generator": GENERATOR_VERSION,
        "rewording": rewording.VERSION, "choice": _CHOICE,
        "chats": _sha256(chats) if chats else None,
        "suites": [Suite.load(path).sha256 for path in suites],
        "tokenizer": _sha256(checkpoint / "tokenizer.json"),
    }  # fmt: skip
    stage = Stage(out, "corpus", asked)
    if stage.done:
        return load(out)
    with stage:
        fills = fill(checkpoint, per_category=per_category, chats=chats, suites=suites)
        tokenizer = Tokenizer.load(checkpoint)
        prompts = [prompt for row in zip(*(f.kept for f in fills), strict=True) for prompt in row]
        lines = [json.dumps(p.as_dict(), ensure_ascii=False) + "\n" for p in prompts]
        (out / FILE).write_text("".join(lines), encoding="utf-8")
        stage.finish(
            (FILE,),
            {
                "prompts": len(prompts), "per_category": per_category,
                "tokens": sum(len(p.encode(tokenizer)) for p in prompts),
                "licences": sorted({p.licence for p in prompts}),
                "sources": sorted({p.source for p in prompts}),
                "overlap": {
                    "ngram": NGRAM, "shared": 0,
                    "refused": {one.category: one.refused for one in fills},
                    "reworded": {one.category: one.reworded for one in fills},
                },
            },
        )  # fmt: skip
    return prompts


@dataclass(frozen=True, slots=True)
class Fill:
    """A category's prompts; how many were refused for sharing, and how many said anew for it."""

    category: str
    kept: list[Prompt]
    refused: int
    reworded: int


def fill(
    checkpoint: Path,
    *,
    per_category: int,
    chats: Path | None = None,
    suites: Sequence[Path] = MEASURES,
) -> list[Fill]:
    """The prompts that `build` would write; raises as it does, and writes nothing."""
    _require_one(per_category)
    tokenizer = Tokenizer.load(checkpoint)
    held = forbidden(tokenizer, suites)
    given = None if chats is None else _given(chats)
    pace = Pace("corpus", per_category * len(CATEGORIES), "prompts")
    return [
        _fill(
            category, _made(category) if given is None else iter(given.get(category, ())),
            tokenizer, held, per_category, pace,
        )
        for category in CATEGORIES
    ]  # fmt: skip


def _require_one(per_category: int) -> None:
    if per_category < 1:
        raise ConfigError(f"A category needs a prompt or more; got {per_category}.")


def _sha256(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise EngineError(f"Cannot read {path}: {error.strerror}.") from None


def load(folder: Path) -> list[Prompt]:
    """The prompts of a finished corpus stage."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    return [Prompt(**{**(d := json.loads(x)), "messages": tuple(d["messages"])}) for x in lines]


def forbidden(tokenizer: Tokenizer, suites: Sequence[Path]) -> Grams:
    """Every n-gram of the user text of the prompts that heads are judged by."""
    texts = (user_text(p.messages) for path in suites for p in Suite.load(path).prompts)
    return frozenset(gram for text in texts for gram in grams(tokenizer.encode(text)))


def grams(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The n-grams of a text; a shorter text is one gram as a whole."""
    for start in range(max(1, len(ids) - NGRAM + 1)):
        yield tuple(ids[start : start + NGRAM])


def user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """All that the user wrote in a conversation."""
    return "\n\n".join(str(m["content"]) for m in messages if m["role"] == "user")


def _fill(
    category: str,
    source: Iterator[Prompt],
    tokenizer: Tokenizer,
    held: Grams,
    wanted: int,
    pace: Pace,
) -> Fill:
    """`wanted` prompts that share nothing with `held`; `pace` counts them."""
    kept: list[Prompt] = []
    seen: set[str] = set()
    refused = reworded = 0
    for number, prompt in enumerate(source):
        if len(kept) == wanted or refused > _PATIENCE * wanted:
            break
        if (text := user_text(prompt.messages)) in seen:
            continue
        seen.add(text)
        if shares(tokenizer.encode(text), held):
            prompt = _in_other_words(prompt, number)
            if shares(tokenizer.encode(user_text(prompt.messages)), held):
                refused += 1
                continue
            reworded += 1
        kept.append(replace(prompt, id=f"{category}-{len(kept)}"))
        pace.step(extra=f", {category}")
    if len(kept) < wanted:
        raise StageRefused(
            f"The category {category} gives {len(kept)} of {wanted} prompts that share no "
            f"{NGRAM}-gram with suite or hold-out; {refused} were refused for sharing one."
        )
    return Fill(category, kept, refused, reworded)


def shares(ids: Sequence[int], held: Grams) -> bool:
    """Whether a text has an n-gram of `held`."""
    return any(gram in held for gram in grams(ids))


def _in_other_words(prompt: Prompt, number: int) -> Prompt:
    """The generators' own sentences said anew; a given chat stays as it is."""
    if prompt.source != f"chats/{prompt.category}":
        return prompt
    rng = stream(SPLIT, f"{prompt.category}/words", number)
    return replace(prompt, messages=rewording.reworded(rng, prompt.messages))


def _made(category: str) -> Iterator[Prompt]:
    """Prompts of this project's own generator, as many as there are, from seeds of their own.

    They are chosen as suites choose theirs, or a head would learn kinds that are never asked.
    """
    tokenizer = Tokenizer.load(ASSETS / "tiny-v4")
    seen: set[str] = set()
    index = last = 0
    while index - last <= _BARREN:
        sample = MAKERS[category](stream(SPLIT, category, index))
        index += 1
        if worth_asking(tokenizer, sample):
            if (text := user_text(sample.prompt)) not in seen:
                seen.add(text)
                last = index
            yield Prompt(
                "", category, sample.prompt, sample.thinking, "Apache-2.0", f"chats/{category}"
            )


def _require_text(prompt: Prompt) -> None:
    """TypeError where what is compared with suites, or told of where it is from, is no text."""
    asked = [m["content"] for m in prompt.messages if m["role"] == "user"]
    if not all(isinstance(x, str) for x in (*asked, prompt.licence, prompt.source)):
        raise TypeError("licence, source and what the user says must be text")


def _given(path: Path) -> dict[str, list[Prompt]]:
    """A file's prompts by category; EngineError names the line that is wrong."""
    found: dict[str, list[Prompt]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The chats {path} are not UTF-8 text.") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            prompt = Prompt(
                "", entry["category"], tuple(entry["messages"]), bool(entry.get("thinking")),
                entry["licence"], entry["source"],
            )  # fmt: skip
            chat.pieces(prompt.messages, thinking=prompt.thinking)
            _require_text(prompt)
        except (ValueError, KeyError, TypeError, AttributeError, EngineError) as error:
            raise ConfigError(f"{path}, line {number}, is no prompt with a licence and a source: "
                              f"{error!r}.") from None  # fmt: skip
        if prompt.category not in CATEGORIES or not prompt.licence or not prompt.source:
            raise ConfigError(f"{path}, line {number}: unknown category, licence or source.")
        found.setdefault(prompt.category, []).append(prompt)
    return found
