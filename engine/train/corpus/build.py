"""Chats and source texts to token files: what a training run reads."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine import chat
from engine.tokenizer import Tokenizer
from engine.train.corpus import (
    agentic_format,
    code_edit,
    code_gen,
    explanation,
    long_context,
    multi_turn,
    ordinary,
    overlap,
    reasoning,
    short_factual,
    sources,
)
from engine.train.corpus.chat_sample import Chat, stream

MAKERS: dict[str, Callable[[random.Random], Chat]] = {
    "long_context": long_context.make,
    "agentic_format": agentic_format.make,
    "code_edit": code_edit.make,
    "multi_turn": multi_turn.make,
    "short_factual": short_factual.make,
    "reasoning": reasoning.make,
    "explanation": explanation.make,
    "code_gen": code_gen.make,
    "ordinary": ordinary.make,
}
# Chats of each kind at scale 1: near equal tokens for the eight categories.
CHATS: dict[str, int] = {
    "long_context": 1800,
    "agentic_format": 1750,
    "code_edit": 2300,
    "multi_turn": 3200,
    "short_factual": 3000,
    "reasoning": 2700,
    "explanation": 3600,
    "code_gen": 3100,
    "ordinary": 2800,
}
HELDOUT_SHARE = 0.02
# Raised by hand with any change that alters the synthetic text.
GENERATOR_VERSION = "1"
CONTEXT = 2048


class Progress(Protocol):
    """Called with a stage and the share of it that is done."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(slots=True)
class Part:
    """Token documents of one source, and what corpus.json says about it."""

    name: str
    licence: str
    version: str
    sha256: str
    documents: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens over all documents."""
        return sum(len(d) for d in self.documents)


def chats(category: str, split: str, count: int) -> Iterator[Chat]:
    """``count`` samples of a split, in order."""
    for index in range(count):
        yield MAKERS[category](stream(split, category, index))


def chat_ids(tokenizer: Tokenizer, sample: Chat) -> list[int]:
    """Token ids of a whole conversation, BOS to EOS."""
    return chat.encode(tokenizer, sample.messages, thinking=sample.thinking)


def text_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Raw documents as ids with BOS and EOS, cut to the context."""
    return [
        [tokenizer.bos_id, *ids[: CONTEXT - 2], tokenizer.eos_id]
        for ids in tokenizer.encode_batch(texts)
    ]


def raw_sources(archive: Path | None) -> list[sources.Source]:
    """Every available body of foreign text."""
    found = [sources.stdlib(), *sources.packages()]
    if archive is not None:
        found.append(sources.english(archive))
    return found


def vocabulary_texts(archive: Path | None, scale: float) -> Iterator[str]:
    """What the vocabulary is learned from: the same mix as the corpus."""
    for category, count in CHATS.items():
        for sample in chats(category, "train", int(count * scale)):
            yield from chat_texts(sample)
    for source in raw_sources(archive):
        yield from sources.documents(source)


def chat_texts(sample: Chat) -> Iterator[str]:
    """The text pieces of a conversation, without control tokens."""
    for piece in chat.pieces(sample.messages, thinking=sample.thinking):
        if not piece.control:
            yield piece.text


def build(
    tokenizer: Tokenizer,
    scale: float,
    archive: Path | None,
    held: Mapping[str, Sequence[str]],
    progress: Progress,
) -> list[Part]:
    """All documents as token ids, by source; none gives away a prompt in ``held``."""
    parts = []
    # First, so that a wrong archive is refused before minutes of work.
    raw = raw_sources(archive)
    forbidden = {text for texts in held.values() for text in texts}
    for done, (category, count) in enumerate(CHATS.items()):
        progress("chats", done, len(CHATS))
        digest = hashlib.sha256()
        part = Part(f"chats/{category}", "Apache-2.0", GENERATOR_VERSION, "")
        for sample in chats(category, "train", max(4, int(count * scale))):
            ids = chat_ids(tokenizer, sample)
            if len(ids) <= CONTEXT and asked(sample) not in forbidden:
                part.documents.append(ids)
                digest.update(np.asarray(ids, dtype="<u2").tobytes())
        part.sha256 = digest.hexdigest()
        parts.append(part)
    for done, source in enumerate(raw):
        progress("texts", done, len(raw))
        parts.extend(_raw_parts(tokenizer, source, min(1.0, scale)))
    texts = [tokenizer.encode(text) for text in sorted(forbidden)]
    overlap.uncover(texts, [part.documents for part in parts])
    return parts


def asked(sample: Chat) -> str:
    """All that the user wrote in a conversation."""
    return "\n\n".join(str(m["content"]) for m in sample.prompt if m["role"] == "user")


def suite_prompts(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """The user text of every prompt of each suite: none of it may enter the corpus."""
    from engine.suite import PLANS, candidates

    return {plan.name: [asked(c) for _, c in candidates(plan, tokenizer)] for plan in PLANS}


def _raw_parts(tokenizer: Tokenizer, source: sources.Source, share: float) -> Iterator[Part]:
    texts = list(sources.documents(source))
    kept = texts[:: max(1, round(1 / share))]
    identity = (source.licence, source.version, source.sha256)
    yield Part(source.name, *identity, text_ids(tokenizer, kept))
    rng = stream("train", f"edits/{source.name}", 0)
    if "stdlib" in source.name:
        fewer = replace(source, texts=source.texts[:: max(1, round(1 / share))])
        ids = [chat_ids(tokenizer, c) for c in sources.function_chats(fewer, rng)]
        yield Part(f"{source.name}/edits", *identity, [i for i in ids if len(i) <= CONTEXT])


def write(
    parts: Sequence[Part],
    directory: Path,
    scale: float,
    held: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Shuffle, split off the hold-out, and write the three files; returns corpus.json's content."""
    documents = [d for part in parts for d in part.documents]
    order = random.Random("order").sample(range(len(documents)), len(documents))
    cut = max(1, int(len(order) * HELDOUT_SHARE))
    total = sum(len(d) for d in documents)
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, chosen in (("heldout", order[:cut]), ("train", order[cut:])):
        ids = np.concatenate([np.asarray(documents[i], dtype="<u2") for i in chosen])
        path = directory / f"{name}.u16.bin"
        path.write_bytes(ids.tobytes())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[name] = {"documents": len(chosen), "tokens": int(ids.size), "sha256": digest}
    card = {
        "format": "uint16 little endian; each document starts with BOS and ends with EOS",
        "scale": scale,
        "context": CONTEXT,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "files": files,
        "suites": overlap.suite_overlap(tokenizer, held, documents),
        "sources": [
            {
                "name": p.name,
                "licence": p.licence,
                "version": p.version,
                "sha256": p.sha256,
                "documents": len(p.documents),
                "tokens": p.tokens,
                "weight": round(p.tokens / total, 4),
            }
            for p in parts
        ],
    }
    (directory / "corpus.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card
