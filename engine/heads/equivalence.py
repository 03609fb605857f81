"""Does the differentiable forward draft what the engine drafts? Asked before anything is trained.

Both get the same captured states. The engine's own draft head builds its context rows from them and
drafts greedily; agreement is counted token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.draft import DraftHead
from engine.heads.captured import Captured, Item, collate, draw_anchors
from engine.heads.head import Head
from engine.heads.stage import StageRefused
from engine.model import Backbone
from engine.state import State
from engine.step import Tables
from engine.train.forward import Forward, greedy

LEAST = 0.90


@dataclass(frozen=True, slots=True)
class Agreement:
    """Drafted tokens that both forwards agree on."""

    equal: int
    drafted: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.equal / self.drafted

    def require(self) -> None:
        """StageRefused under the least share that training may begin with."""
        if self.share < LEAST:
            raise StageRefused(
                f"The training forward drafts {self.share:.1%} of the engine's own tokens "
                f"({self.equal} of {self.drafted}); {LEAST:.0%} are needed to train with it."
            )


def measure(head: Head, data: Captured, *, sequences: int = 8, anchors: int = 16) -> Agreement:
    """Draft `anchors` blocks in each of `sequences` sequences by both forwards."""
    forward = Forward(head.geometry, head.device, rounding=True)
    random = torch.Generator().manual_seed(11)
    items = [data.item(number) for number in range(min(sequences, len(data)))]
    drawn = [draw_anchors(item, anchors, random) for item in items]
    equal = drafted = 0
    for item, mine, theirs in zip(items, drawn, by_engine(head, items, drawn), strict=True):
        equal += int((_by_training(head, forward, item, mine) == theirs).sum())
        drafted += theirs.numel()
    return Agreement(equal, drafted)


@torch.no_grad()
def _by_training(head: Head, forward: Forward, item: Item, anchors: Tensor) -> Tensor:
    batch = collate([item], [anchors]).to(head.device)
    taps = batch.taps.to(head.dtype)
    blocks = forward.draft(head.weights, taps, batch.ids, batch.anchors)
    ids, _, _ = greedy(head.weights, blocks, batch.ids.gather(1, batch.anchors + 1))
    return ids[0, :, 1:].cpu()


@torch.inference_mode()
def by_engine(head: Head, items: Sequence[Item], anchors: Sequence[Tensor]) -> list[Tensor]:
    """The engine's own greedy drafts [A, block] after each of an item's `anchors` [A].

    The whole head is in float32 on the host meanwhile.
    """
    g = head.geometry
    context = max(len(item.ids) for item in items) + g.dspark_block_size + 1
    config = EngineConfig(context=context).effective(g, cores=1)
    tables = Tables.build(g, config.context, "cpu")
    drafter = DraftHead(Backbone(g, head.on_host(), config, tables))
    pairs = zip(items, anchors, strict=True)
    return [_drafts(drafter, State(g, config), *pair, g.dspark_block_size) for pair in pairs]


def _drafts(drafter: DraftHead, state: State, item: Item, anchors: Tensor, width: int) -> Tensor:
    """Greedy drafts [A, width] of one item, from an empty `state`."""
    taps, found, seen = item.taps.float(), {}, 0
    for anchor in sorted(set(anchors.tolist())):
        drafter.extend(state, taps[seen : anchor + 1])
        seen = anchor + 1
        block = drafter.draft(state, int(item.ids[anchor + 1]), width, lambda s, _: int(s.argmax()))
        found[anchor] = block.tokens
    return torch.tensor([found[a] for a in anchors.tolist()])
