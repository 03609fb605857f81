"""The prompts of a patch's output gate: drawn anew for every gate, so that none can be known. Pure.

Three kinds. *edge* prompts have exact lengths around everything that the model does in steps: its
window, its compression ratios, the chunks of prefill; and one as long as the gate goes. *fresh*
prompts are new text out of the suite's own words. *suite* prompts are the suite's: what is faster
for these alone is no faster.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EDGE, FRESH, SUITE = "edge", "fresh", "suite"
_CHUNK = 64
_WORDS = "the of and a to in is it you that was for on are with as at be this have from or one had"


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a gate is: prompts of each kind, tokens generated for each, the longest prompt."""

    fresh: int = 4
    suite: int = 4
    random_lengths: int = 3
    new_tokens: int = 40
    longest: int = 4096


def steps(model: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The lengths at which the model or the engine turns a page."""
    ratios = model.get("compress_ratios") or ()
    found = {int(model.get("sliding_window") or 0), int(config.get("prefill_chunk") or _CHUNK)}
    return tuple(sorted({n for n in (*found, *map(int, ratios)) if n > 1}))


def lengths(
    model: Mapping[str, Any], config: Mapping[str, Any], shape: Shape, dice: random.Random
) -> tuple[int, ...]:
    """Prompt lengths in tokens, each once: around a page's end; so far before one that the answer
    crosses it, for a wrong step shows in few tokens; some drawn; the longest."""
    room = int(config.get("context") or model.get("max_position_embeddings") or shape.longest)
    top = max(2, min(shape.longest, room - shape.new_tokens - 1))
    found = {top}
    for step in steps(model, config):
        far = step * dice.randint(2, max(2, top // step))
        sides = (-1, 0, 1, -shape.new_tokens // 2, -shape.new_tokens // 3)
        found |= {edge + side for edge in (step, far) for side in sides}
    found |= {dice.randint(2, top) for _ in range(shape.random_lengths)}
    return tuple(sorted(n for n in found if 1 <= n <= top))


def gate_suite(
    suite: Mapping[str, Any],
    more: Sequence[Mapping[str, Any]],
    found_lengths: Sequence[int],
    shape: Shape,
    seed: int,
) -> dict[str, Any]:
    """A suite file for the gate. `more` are further suites whose words may be used."""
    dice = random.Random(f"gate {seed}")
    own = list(suite.get("prompts") or ())
    words = _words([entry for body in (suite, *more) for entry in body.get("prompts") or ()])
    category = str(own[0].get("category")) if own else "long_context"

    def made(name: str, count: int, **fields: Any) -> dict[str, Any]:
        start = dice.randrange(len(words))
        text = " ".join((words * (count // len(words) + 2))[start : start + count])
        return {
            "id": name, "category": category, "thinking": False,
            "messages": [{"role": "user", "content": text}], **fields,
        }  # fmt: skip

    # Whatever is warmed up is warmed up by the first, which nobody compares for its time.
    edges = [made(f"{EDGE}/{n}", min(n, 600) + 8, take=n) for n in found_lengths]
    dice.shuffle(edges)
    fresh = [made(f"{FRESH}/{i}", dice.randint(40, 160)) for i in range(shape.fresh)]
    chosen = set(dice.sample(range(len(own)), min(shape.suite, len(own))))
    known = [{**e, "id": f"{SUITE}/{e['id']}"} for i, e in enumerate(own) if i in chosen]
    return {"name": f"gate-{seed}", "version": 1, "prompts": [*edges, *fresh, *known]}


def _words(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every word that the prompts say, in their order."""
    texts = [
        str(message.get("content") or "")
        for entry in entries for message in entry.get("messages") or ()
    ]  # fmt: skip
    return " ".join(texts).split() or _WORDS.split()
