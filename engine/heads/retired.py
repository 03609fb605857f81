"""What was retired stays measurable: tree drafting, and typical acceptance, which is LOSSY.

Both are levers as well (`experiments/retired.py`), which time them; here they are counted. A tree
of drafts is exact, and its acceptance on the target's own greedy text needs no forward: a round
accepts the longest path of the tree that is the text. Typical acceptance changes what is said, so
it is decoded for real, and compared with plain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backend import finite
from engine.engine import Engine
from engine.errors import ConfigError
from engine.heads.captured import Item, collate
from engine.heads.head import Head
from engine.heads.replay import Replayed
from engine.lossy import is_typical
from engine.sampling import Sampler, Sampling
from engine.state import State
from engine.train.forward import Forward, markov


@torch.no_grad()
def tree_replay(head: Head, forward: Forward, item: Item, branches: Sequence[int]) -> Replayed:
    """Decode one captured reply with trees of drafts: `branches[k]` children a node at depth k.

    A chain of width w is `(1,) * w`; a tree verifies sum of products of its branches rows.
    """
    first, last = item.prompt - 1, len(item.ids) - 2
    anchors = torch.arange(first, last)
    batch = collate([item], [anchors]).to(head.device)
    taps = batch.taps.to(head.dtype)
    base = forward.draft(head.weights, taps, batch.ids, batch.anchors).base[0]
    ids, at, rounds = item.ids, first, 0
    while at < last:
        hits = _depth(head, base[at - first], ids[at + 1 :], branches)
        at = min(at + hits + 1, last)
        rounds += 1
    return Replayed(item.id, item.category, last - first, rounds)


def tree_rows(branches: Sequence[int]) -> int:
    """Drafts that a tree offers to the target in one round."""
    return sum(math.prod(branches[: depth + 1]) for depth in range(len(branches)))


def _depth(head: Head, base: Tensor, text: Tensor, branches: Sequence[int]) -> int:
    """How deep the tree follows the text [bonus, next, ...]: only its own path can be accepted."""
    for depth, count in enumerate(branches):
        if depth + 1 >= len(text):
            return depth
        bias, _ = markov(head.weights, text[depth].to(head.device))
        if int(text[depth + 1]) not in (base[depth] + bias).topk(count).indices.tolist():
            return depth
    return len(branches)


@dataclass(frozen=True, slots=True)
class Typical:
    """One reply under typical acceptance. LOSSY: `same` of its `tokens` are what plain would say.

    Tokens are compared up to the first that differs, for nothing after it is comparable.
    """

    prompt: str
    tokens: int
    rounds: int
    taken: int  # drafts accepted although the target chose another token
    same: int

    @property
    def tau(self) -> float:
        """Tokens a round, of a text that may not be the target's."""
        return (self.tokens - 1) / self.rounds if self.rounds else 1.0


@torch.inference_mode()
def typical_decode(
    engine: Engine, name: str, prompt: Sequence[int], *, temperature: float, limit: int, seed: int
) -> Typical:
    """Decode with typical acceptance beside plain decode of the same seed.

    Raises ConfigError at temperature 0, where there is nothing typical but the argmax.
    """
    if temperature <= 0:
        raise ConfigError("Typical acceptance needs a temperature above 0; at 0 it is exact.")
    sampling = Sampling(temperature=temperature, seed=seed)
    plain = [
        token
        for commit in engine.generate(
            prompt, max_new_tokens=limit, sampling=sampling, speculative=False
        )
        for token in commit.tokens
    ]
    said, rounds, taken = _typical(engine, prompt, sampling, limit)
    pairs = enumerate(zip(plain, said, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(plain), len(said)))
    return Typical(name, len(said), rounds, taken, same)


def _typical(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, limit: int
) -> tuple[list[int], int, int]:
    backbone, drafter = engine.backbone, engine.drafter
    if drafter is None:
        raise ConfigError("Typical acceptance needs drafts; draft_width is 0.")
    warm = sampling.temperature
    eos, width = engine.geometry.eos_token_id, engine.config.draft_width
    state, sampler = State(engine.geometry, engine.config), Sampler(sampling)
    row = engine.backend.prefill(state, prompt)[-1]
    said, rounds, taken = [sampler.choose(row, state.length)], 0, 0
    while said[-1] != eos and len(said) < limit:
        room = min(width, limit - len(said) - 1, state.span() - 1)
        drafts: tuple[int, ...] = ()
        if room > 0:
            drafts = drafter.draft(state, said[-1], room, sampler.propose).tokens
        position = state.length
        forward = backbone.forward(torch.tensor([said[-1], *drafts]), state)
        kept: list[int] = []
        for row in finite(backbone.logits(forward)):
            choice = sampler.choose(row, position + 1 + len(kept))
            draft = drafts[len(kept)] if len(kept) < len(drafts) else None
            if draft is not None and draft != choice and is_typical(row, draft, warm):
                choice, taken = draft, taken + 1
            kept.append(choice)
            if choice != draft or choice == eos:
                break
        state.commit(len(kept))
        drafter.extend(state, forward.taps[: len(kept)])
        said += kept
        rounds += 1
    return said, rounds, taken
