"""How much of a prompt the training text gives away, counted in n-grams of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.tokenizer import Tokenizer

NGRAM = 13


def uncover(texts: Sequence[list[int]], sources: Sequence[list[list[int]]]) -> int:
    """Drop documents until no text is wholly made of their n-grams; returns how many went.

    For a covered text its rarest n-gram is chosen, and the few documents that hold it go.
    """
    where: dict[tuple[int, ...], set[tuple[int, int]]] = {
        g: set() for t in texts for g in _grams(t)
    }
    for p, documents in enumerate(sources):
        for d, document in enumerate(documents):
            for gram in _grams(document):
                if gram in where:
                    where[gram].add((p, d))
    dropped: set[tuple[int, int]] = set()
    for text in texts:
        places = [where[g] - dropped for g in _grams(text)]
        if places and all(places):
            dropped |= min(places, key=len)
    for p, documents in enumerate(sources):
        documents[:] = [x for d, x in enumerate(documents) if (p, d) not in dropped]
    return len(dropped)


def overlap(texts: Sequence[list[int]], documents: Sequence[list[int]]) -> dict[str, float]:
    """Share of the texts' n-grams that occur in the documents: worst text and mean.

    A share under one proves that the exact text is nowhere in the documents.
    """
    wanted: dict[tuple[int, ...], bool] = {gram: False for text in texts for gram in _grams(text)}
    for document in documents:
        for gram in _grams(document):
            if gram in wanted:
                wanted[gram] = True
    shares = []
    for text in texts:
        grams = _grams(text)
        if grams:
            shares.append(sum(wanted[g] for g in grams) / len(grams))
    return {"max": max(shares, default=0.0), "mean": sum(shares) / max(1, len(shares))}


def _grams(ids: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(*(ids[i:] for i in range(NGRAM)), strict=False))


def suite_overlap(
    tokenizer: Tokenizer, held: Mapping[str, Sequence[str]], documents: Sequence[list[int]]
) -> dict[str, Any]:
    """The overlap of each suite's prompts (all their user text) with the documents."""
    out: dict[str, Any] = {"ngram": NGRAM}
    for name, texts in held.items():
        found = overlap([tokenizer.encode(text) for text in texts], documents)
        out[name] = {k: round(v, 4) for k, v in found.items()}
    return out
