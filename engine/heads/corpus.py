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
from engine.files import read_text
from engine.geometry import Geometry
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
# Fewer tokens than this hold no block to learn from.
LEAST_REPLY = 16
# Whose words a prompt is made of.
_ASKING = ("user", "developer")

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
                "too_long": {one.category: one.too_long for one in fills},
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
    """A category's prompts; how many were refused for sharing or as too long, and how many said
    anew for sharing."""

    category: str
    kept: list[Prompt]
    refused: int
    reworded: int
    too_long: int = 0


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
    context = Geometry.load(checkpoint).max_position_embeddings
    given = None if chats is None else _given(chats)
    pace = Pace("corpus", per_category * len(CATEGORIES), "prompts")
    return [
        _fill(
            category, _made(category) if given is None else iter(given.get(category, ())),
            tokenizer, held, per_category, pace, longest=context - LEAST_REPLY,
            given=given is not None,
        )
        for category in CATEGORIES
    ]  # fmt: skip


def _require_one(per_category: int) -> None:
    if per_category < 1:
        raise ConfigError(f"A category needs a prompt or more; got {per_category}.")


def _sha256(path: Path) -> str:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise EngineError(f"Cannot read {path}: it is not a regular file.")
    try:
        return sha256(path)
    except OSError as error:
        raise EngineError(f"Cannot read {path}: {error.strerror}.") from None


def load(folder: Path) -> list[Prompt]:
    """The prompts of a finished corpus stage."""
    lines = _lines((folder / FILE).read_text(encoding="utf-8"))
    return [Prompt(**{**(d := json.loads(x)), "messages": tuple(d["messages"])}) for x in lines]


def _lines(text: str) -> list[str]:
    """The lines of a file of JSON lines, whose strings may hold any other mark of a line's end."""
    return text.removesuffix("\n").split("\n")


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
    return "\n\n".join(chat.text_of(m) for m in messages if m["role"] in _ASKING)


def _said(prompt: Prompt, *, given: bool) -> Iterator[str]:
    """The texts of a prompt that must not be known from a suite.

    What the generators say besides the user's words is the same set sentences in every suite. In
    somebody's chats a suite's prompt may stand anywhere.
    """
    yield user_text(prompt.messages)
    if given:
        others = (chat.text_of(m) for m in prompt.messages if m["role"] not in _ASKING)
        yield from (text for text in others if text)


def _fill(
    category: str,
    source: Iterator[Prompt],
    tokenizer: Tokenizer,
    held: Grams,
    wanted: int,
    pace: Pace,
    *,
    longest: int | None = None,
    given: bool = False,
) -> Fill:
    """`wanted` prompts of at most `longest` tokens that share nothing with `held`.

    `pace` counts them. What is `given` keeps its words.
    """
    kept: list[Prompt] = []
    seen: set[str] = set()
    refused = reworded = too_long = 0
    for number, prompt in enumerate(source):
        if len(kept) == wanted or (not given and refused > _PATIENCE * wanted):
            break
        if (text := user_text(prompt.messages)) in seen:
            continue
        seen.add(text)
        if _shares(prompt, tokenizer, held, given=given):
            prompt = prompt if given else _in_other_words(prompt, number)
            if given or _shares(prompt, tokenizer, held, given=False):
                refused += 1
                continue
            reworded += 1
        if longest is not None and len(prompt.encode(tokenizer)) > longest:
            too_long += 1
            continue
        kept.append(replace(prompt, id=f"{category}-{len(kept)}"))
        pace.step(extra=f", {category}")
    if len(kept) < wanted:
        raise StageRefused(
            f"The category {category} gives {len(kept)} of {wanted} prompts that share no "
            f"{NGRAM}-gram with suite or hold-out; {refused} were refused for sharing one, "
            f"{too_long} are too long to be answered. Ask for fewer, or give it more."
        )
    return Fill(category, kept, refused, reworded, too_long)


def _shares(prompt: Prompt, tokenizer: Tokenizer, held: Grams, *, given: bool) -> bool:
    return any(shares(tokenizer.encode(text), held) for text in _said(prompt, given=given))


def shares(ids: Sequence[int], held: Grams) -> bool:
    """Whether a text has an n-gram of `held`."""
    return any(gram in held for gram in grams(ids))


def _in_other_words(prompt: Prompt, number: int) -> Prompt:
    """The generators' own sentences said anew."""
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


def _require_askable(prompt: Prompt) -> None:
    """TypeError, ValueError: the model cannot be asked it, or it not be compared with suites."""
    chat.pieces(prompt.messages, thinking=prompt.thinking)
    asked = [m["content"] for m in prompt.messages if m["role"] in _ASKING]
    if not all(isinstance(x, str) for x in (*asked, prompt.licence, prompt.source)):
        raise TypeError("licence, source and what the user says must be text")
    if not isinstance(prompt.thinking, bool):
        raise TypeError("thinking must be true or false")
    if prompt.messages[-1]["role"] == "assistant":
        raise ValueError("the last message must ask for an answer")
    try:
        json.dumps(prompt.as_dict(), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a character is no text") from None


def _given(path: Path) -> dict[str, list[Prompt]]:
    """A file's prompts by category; EngineError names the line that is wrong."""
    found: dict[str, list[Prompt]] = {}
    try:
        lines = _lines(read_text(path))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The chats {path} are not UTF-8 text.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt = Prompt(
                "", entry["category"], tuple(entry["messages"]), entry.get("thinking", False),
                entry["licence"], entry["source"],
            )  # fmt: skip
            _require_askable(prompt)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError,
                EngineError) as error:  # fmt: skip
            raise ConfigError(f"{path}, line {number}, is no prompt with a licence and a source: "
                              f"{error!r}.") from None  # fmt: skip
        if prompt.category not in CATEGORIES or not prompt.licence or not prompt.source:
            raise ConfigError(f"{path}, line {number}: unknown category, licence or source.")
        found.setdefault(prompt.category, []).append(prompt)
    return found
