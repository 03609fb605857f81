"""Trees of drafts: a round offers several continuations, and the one that the target says is kept.

Every path from the root to a leaf is a sequence of its own in one shared forward, beginning at a
copy of the state, so each row has the bits that it has alone and the text is what plain decode
says. It costs a copy of the state for every path but the first, and the rows that paths share are
computed for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.backend import finite
from engine.draft import Block, DraftHead
from engine.model import Backbone
from engine.sampling import Sampler
from engine.state import State
from engine.verify import offered


@dataclass(frozen=True, slots=True)
class Draft:
    """The chain that a round without a tree would offer, and every path, that chain first."""

    chain: Block
    paths: tuple[tuple[int, ...], ...]


class Tree:
    """Drafts and verifies trees for one backbone and its head."""

    def __init__(self, backbone: Backbone, drafter: DraftHead) -> None:
        config = backbone.config
        self._backbone, self._drafter = backbone, drafter
        self._branches = config.branches + (1,) * (config.draft_width - len(config.branches))
        self._copies: list[State] = []

    @property
    def paths(self) -> int:
        """Paths of a whole tree."""
        return math.prod(self._branches)

    def round(
        self, state: State, sampler: Sampler, token: int, room: int
    ) -> tuple[list[int], tuple[float, ...], int]:
        """As `torch_backend.speculate`: the committed tokens, confidences by depth, and hits."""
        width = min(len(self._branches), room - 1)
        paths: tuple[tuple[int, ...], ...] = ((),)
        sure: tuple[float, ...] = ()
        if width > 0:
            draft = grown(self._drafter, state, token, self._branches[:width], sampler)
            depth = offered(draft.chain, self._backbone.config)
            sure = draft.chain.confidence[:depth]
            paths = tuple(dict.fromkeys(path[:depth] for path in draft.paths))
        targets, taps = self._verify(state, sampler, token, paths)
        self._drafter.extend(state, taps)
        return targets, sure, len(targets) - 1

    def _verify(
        self, state: State, sampler: Sampler, token: int, paths: Sequence[tuple[int, ...]]
    ) -> tuple[list[int], Tensor]:
        """Commit the path that the target says; its tokens, and the taps of its rows."""
        states = [state, *self._copied(state, len(paths) - 1)]
        position = state.length + 1
        work = [
            (torch.tensor([token, *path]), own) for path, own in zip(paths, states, strict=True)
        ]
        forward, joint = self._backbone.forward_together(work)
        logits = finite(self._backbone.logits(forward))
        rows = [logits[place] for place in joint.rows]
        targets, best = followed(paths, rows, lambda row, at: sampler.choose(row, position + at))
        for i, one in enumerate(states):
            one.commit(len(targets) if i == best else 0)
        if best:
            state.restore(states[best])
        return targets, forward.taps[joint.rows[best]][: len(targets)]

    def _copied(self, state: State, count: int) -> list[State]:
        """So many copies of a state, in buffers that are used again."""
        while len(self._copies) < count:
            self._copies.append(state.snapshot())
        for copy in self._copies[:count]:
            copy.restore(state)
        return self._copies[:count]


def grown(
    drafter: DraftHead, state: State, anchor: int, branches: Sequence[int], sampler: Sampler
) -> Draft:
    """A tree after `anchor`: `branches[k]` children of every node at depth k, the best first.

    A node's children are what the head proposes after it, then what it would propose without those.
    """
    slots = drafter.slots(state, anchor, len(branches))
    paths: list[tuple[int, ...]] = [()]
    for depth, count in enumerate(branches):
        propose = partial(_proposed, sampler, state.draft_length + 1 + depth)
        paths = [
            (*path, child)
            for path in paths
            for child in _children(
                slots.scores(depth, path[-1] if path else anchor), count, propose
            )
        ]
    return Draft(slots.block(anchor, paths[0]), tuple(paths))


def _proposed(sampler: Sampler, position: int, scores: Tensor) -> int:
    return sampler.propose(scores, position)


def _children(scores: Tensor, count: int, propose: Callable[[Tensor], int]) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        found.append(propose(scores))
        scores = scores.clone()
        scores[found[-1]] = -torch.inf
    return found


def followed(
    paths: Sequence[tuple[int, ...]],
    rows: Sequence[Tensor],
    choose: Callable[[Tensor, int], int],
) -> tuple[list[int], int]:
    """The target's tokens along a tree, and the number of the path that they confirm furthest.

    Rows of one prefix are the same in every path that has it, so any of them may be asked.
    """
    alive, targets = list(range(len(paths))), list[int]()
    while True:
        best, depth = alive[0], len(targets)
        targets.append(choose(rows[best][depth], depth))
        alive = [i for i in alive if len(paths[i]) > depth and paths[i][depth] == targets[-1]]
        if not alive:
            return targets, best
