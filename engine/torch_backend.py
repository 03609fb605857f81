"""The backend of plain PyTorch: forwards on the processor, the reference for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.backend import Verified, finite
from engine.config import EngineConfig
from engine.draft import DraftHead
from engine.errors import ConfigError
from engine.geometry import Geometry
from engine.independence import rows_are_independent, sequences_are_independent
from engine.lossy import typical
from engine.model import Backbone
from engine.prefix import Memory, Passage
from engine.sampling import Sampler
from engine.state import State
from engine.step import Tables
from engine.tree import Tree
from engine.verify import confirmed, offered
from engine.weights import Weights


class TorchBackend:
    """`engine.backend.Backend` by the modules beside this one."""

    def __init__(
        self, geometry: Geometry, weights: Weights, config: EngineConfig, tables: Tables
    ) -> None:
        self.geometry = geometry
        self.backbone = Backbone(geometry, weights, config, tables)
        if config.verify_rows == "together" and not rows_are_independent(self.backbone):
            apart = replace(config, verify_rows="apart")
            self.backbone = Backbone(geometry, weights, apart, tables)
        self.config = self.backbone.config
        self.drafter = DraftHead(self.backbone) if config.draft_width else None
        self._tree = self._planted()

    @property
    def drafts(self) -> bool:
        """Whether rounds may draft."""
        return self.drafter is not None

    def _planted(self) -> Tree | None:
        """How trees are verified; ConfigError where that would change bits."""
        if self.drafter is None or not self.config.draft_tree:
            return None
        tree = Tree(self.backbone, self.drafter)
        rows = self.config.verify_rows == "together"
        if not rows or not sequences_are_independent(self.backbone, max(2, tree.paths)):
            raise ConfigError(
                "draft_tree needs products that give a row the same bits in every forward, which "
                "this machine's do not."
            )
        return tree

    def new_state(self) -> State:
        """An empty state."""
        return State(self.geometry, self.config)

    def prefill(
        self,
        state: Memory,
        prompt: Sequence[int],
        passage: Passage | None = None,
        *,
        drafting: bool = True,
    ) -> Tensor:
        """See `Backend.prefill`."""
        drafter = self.drafter if drafting else None
        return prefill(self.backbone, drafter, own(state), prompt, passage)

    def forward(self, state: Memory, ids: Sequence[int], *, keep: int) -> Tensor:
        """See `Backend.forward`."""
        mine = own(state)
        logits = self.backbone.logits(self.backbone.forward(torch.tensor(ids), mine))
        mine.commit(keep)
        return logits

    def round(
        self, state: Memory, sampler: Sampler, token: int, room: int, *, drafting: bool = True
    ) -> Verified:
        """See `Backend.round`."""
        drafter = self.drafter if drafting else None
        if drafter is not None and self._tree is not None and sampler.simple() is not None:
            return Verified(*self._tree.round(own(state), sampler, token, room))
        return Verified(*speculate(self.backbone, drafter, own(state), sampler, token, room))


def own(state: Memory) -> State:
    """`state`, which this backend made."""
    assert isinstance(state, State)
    return state


def prefill(
    backbone: Backbone,
    drafter: DraftHead | None,
    state: State,
    prompt: Sequence[int],
    passage: Passage | None = None,
) -> Tensor:
    """Commit what `state` does not hold of `prompt` yet, in chunks, leaving them in `passage`.

    Returns logits [1, vocab] after the last token.
    """
    ids = torch.tensor(prompt[state.length :])
    logits = None
    for chunk in ids.split(backbone.config.prefill_chunk):
        forward = backbone.forward(chunk, state)
        state.commit(chunk.numel())
        if drafter is not None:
            drafter.extend(state, forward.taps[: forward.count])
        if passage is not None:
            passage.note(state)
        if state.length == len(prompt):
            logits = backbone.logits(forward, last=True)
    assert logits is not None
    return logits


def speculate(
    backbone: Backbone,
    drafter: DraftHead | None,
    state: State,
    sampler: Sampler,
    token: int,
    room: int,
) -> tuple[list[int], tuple[float, ...], int]:
    """One round after `token`: the committed tokens, the confidence of each offered draft, hits.

    At most `room` tokens are verified, so a round never runs past a limit.
    """
    drafts: tuple[int, ...] = ()
    sure: tuple[float, ...] = ()
    width = min(backbone.config.draft_width, room - 1)
    if drafter is not None and width > 0:
        block = drafter.draft(state, token, width, sampler.propose)
        drafts = block.tokens[: offered(block, backbone.config)]
        sure = block.confidence[: len(drafts)]
    if backbone.config.verify_rows == "together":
        targets, taps = _verify_together(backbone, state, sampler, token, drafts)
    else:
        targets, taps = _verify_apart(backbone, state, sampler, token, drafts)
    if drafter is not None:
        drafter.extend(state, taps)
    return targets, sure, len(targets) - 1


def _verify_together(
    backbone: Backbone, state: State, sampler: Sampler, token: int, drafts: Sequence[int]
) -> tuple[list[int], Tensor]:
    """Commit the confirmed rows of one forward; the target's tokens and the rows' taps."""
    position = state.length
    forward = backbone.forward(torch.tensor([token, *drafts]), state)
    choose = typical if backbone.config.acceptance == "typical" else confirmed
    targets = choose(finite(backbone.logits(forward)), drafts, sampler, position + 1)
    state.commit(len(targets))
    return targets, forward.taps[: len(targets)]


def _verify_apart(
    backbone: Backbone, state: State, sampler: Sampler, token: int, drafts: Sequence[int]
) -> tuple[list[int], Tensor]:
    """The same, one forward a row, for machines whose products are not row-independent."""
    targets: list[int] = []
    taps: list[Tensor] = []
    for row in (token, *drafts):
        if targets and row != targets[-1]:
            break
        forward = backbone.forward(torch.tensor([row]), state)
        state.commit(1)
        targets.append(sampler.choose(finite(backbone.logits(forward))[0], state.length))
        taps.append(forward.taps[:1])
    return targets, torch.cat(taps)
