"""The DSpark head: drafts a block of tokens from the backbone's taps in one parallel pass.

Only committed positions enter its context rows, so nothing here is ever rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from engine.errors import ConfigError
from engine.model import Attended, Backbone
from engine.norm import normalise
from engine.ring import write_ring
from engine.state import TILE, State
from engine.step import Rotation, bias, padded
from engine.weights import BlockWeights, by_column

_TABLE_LIMIT_BYTES = 256 << 20

Pick = Callable[[Tensor, int], int]  # (logits [vocab], position) -> token


@dataclass(frozen=True, slots=True)
class Block:
    """Drafted tokens of one round, with what the verify policy may look at."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]  # top logit less the second, of the slot that drew the token
    confidence: tuple[float, ...]  # estimated survival of the slot, given that all before survived
    logits: Tensor  # [width, vocab], after the Markov bias


class DraftHead:
    """Context rows and block drafting, beside the backbone whose embedding and head it shares."""

    def __init__(self, backbone: Backbone) -> None:
        self._b = backbone
        self._g = backbone.geometry
        self._w = w = backbone.weights.draft
        self._wkv = by_column(torch.cat([stage.attention.wkv for stage in w.stages]))
        self._kv_norms = torch.stack([stage.attention.kv_norm for stage in w.stages])
        self._table = self._markov_table() if backbone.config.markov == "table" else None

    def _markov_table(self) -> Tensor:
        size = self._g.vocab_size**2 * 4
        if size > _TABLE_LIMIT_BYTES:
            raise ConfigError(
                f"markov 'table' would take {size / 2**30:.1f} GiB for this vocabulary; use 'step'."
            )
        return self._w.markov_w1.float() @ self._w.markov_w2.float().t()

    # ---------------------------------------------------------------- context

    def extend(self, state: State, taps: Tensor) -> None:
        """Add context rows for the taps [t, taps * hidden] of the newest committed positions."""
        window = state.draft.shape[1]
        start, count = state.draft_length, taps.shape[0]
        kept = min(count, window)
        first = start + count - kept
        rows = self._context_rows(taps[count - kept :], first)
        write_ring(state.draft, first, state.row_format.encode(rows), axis=1)
        state.draft_length = start + count

    def _context_rows(self, taps: Tensor, first: int) -> Tensor:
        """[stages, t, head_dim]; short inputs are padded, so bits depend on the row alone."""
        count = taps.shape[0]
        missing = max(0, padded(count, self._b.config.row_tile) - count)
        if missing:
            taps = torch.cat((taps, taps.new_zeros(missing, taps.shape[1])))
        rotation = self._b.tables.plain.at(first, taps.shape[0])
        return self._rows_of(taps, rotation)[:, :count]

    def _rows_of(self, taps: Tensor, rotation: Rotation) -> Tensor:
        """[stages, t, head_dim]"""
        numerics, eps = self._b.numerics, self._g.rms_norm_eps
        main = normalise(numerics.product(taps, self._w.main_proj), self._w.main_norm, eps)
        rows = numerics.product(main, self._wkv).unflatten(-1, self._kv_norms.shape)
        rows = rotation.turn_(normalise(rows, self._kv_norms, eps))
        return numerics.row_(rows, self._g.qk_rope_head_dim).transpose(0, 1)

    # ---------------------------------------------------------------- block

    def draft(self, state: State, anchor: int, width: int, pick: Pick) -> Block:
        """Draft `width` tokens after `anchor`, which sits right after the committed positions.

        The block always has its trained size; a smaller `width` reads fewer of its slots.
        """
        position = state.draft_length
        hidden, scores = self._read(state, anchor, width)
        tokens, previous = [], []
        token = anchor
        for slot in range(width):
            previous.append(token)
            scores[slot] += self._bias(token)
            token = pick(scores[slot], position + 1 + slot)
            tokens.append(token)
        return self._block(tokens, previous, hidden, scores)

    def slots(self, state: State, anchor: int, width: int) -> Slots:
        """The same slots before anything is drawn from them, for whoever draws more than once."""
        return Slots(self, *self._read(state, anchor, width))

    def _read(self, state: State, anchor: int, width: int) -> tuple[Tensor, Tensor]:
        """Hidden rows of the first `width` slots, and their logits before the Markov bias."""
        g = self._g
        ids = torch.full((g.dspark_block_size,), g.dspark_noise_token_id)
        ids[0] = anchor
        hidden = self._hidden(state, ids, state.draft_length)[:width]
        normed = normalise(hidden, self._w.norm, g.rms_norm_eps)
        return hidden, linear(normed, self._b.weights.head).float()

    def _block(
        self, tokens: Sequence[int], previous: list[int], hidden: Tensor, scores: Tensor
    ) -> Block:
        top = scores.topk(2, -1).values
        return Block(
            tokens=tuple(tokens),
            margins=tuple((top[:, 0] - top[:, 1]).tolist()),
            confidence=tuple(self._confidence(hidden, previous)),
            logits=scores,
        )

    def _hidden(self, state: State, ids: Tensor, position: int) -> Tensor:
        """Collapsed streams [block, hidden] of the slots at `position` and on, before the norm."""
        b = self._b
        streams = b.residual.start(embedding(ids, b.weights.embed))
        seen = _seen(state, ids.numel())
        for s, stage in enumerate(self._w.stages):
            context = state.row_format.decode(state.draft[s])
            streams = self._stage(streams, stage, context, seen, position, ids)
        return b.residual.collapse(streams, self._w.hc_head)

    def _stage(
        self,
        streams: Tensor,
        w: BlockWeights,
        context: Tensor,
        seen: Tensor,
        position: int,
        ids: Tensor,
    ) -> Tensor:
        b = self._b
        rotation = b.tables.plain.at(position, ids.numel())
        entry, projected = b.open(streams, w, rotation)
        rows = torch.cat((context, projected.row.float()))
        attended = Attended(projected.queries, rows, seen, None)
        return b.close(streams, entry, attended, w, rotation, ids, ids.numel())

    # ---------------------------------------------------------------- several sequences at once

    def extend_together(self, work: Sequence[tuple[State, Tensor]]) -> None:
        """`extend` for the taps [t, taps * hidden] of several states, with shared products."""
        counts = [taps.shape[0] for _, taps in work]
        firsts = [state.draft_length for state, _ in work]
        plain = self._b.tables.plain
        rotations = [plain.at(first, n) for first, n in zip(firsts, counts, strict=True)]
        taps = _whole_tiles(torch.cat([taps for _, taps in work]))
        missing = taps.shape[0] - sum(counts)
        rows = self._rows_of(taps, Rotation.joined([*rotations, plain.at(0, missing)]))
        for (state, _), own in zip(work, rows[:, : sum(counts)].split(counts, 1), strict=True):
            write_ring(state.draft, state.draft_length, state.row_format.encode(own), axis=1)
            state.draft_length += own.shape[1]

    def draft_together(
        self, states: Sequence[State], anchors: Sequence[int], width: int, picks: Sequence[Pick]
    ) -> list[Block]:
        """`draft` for several states, with shared products.

        A product's bits may differ from those of a lone draft: what is offered may, what is
        accepted may not.
        """
        g, b = self._g, self._b
        size, count = g.dspark_block_size, len(states)
        ids = torch.full((count, size), g.dspark_noise_token_id)
        ids[:, 0] = torch.tensor(anchors)
        hidden = self._hidden_together(states, ids).view(count, size, -1)[:, :width]
        scores = linear(normalise(hidden, self._w.norm, g.rms_norm_eps), b.weights.head).float()
        previous, tokens = [], list(anchors)
        for slot in range(width):
            previous.append(tokens)
            scores[:, slot] += self._biases(tokens)
            place = [state.draft_length + 1 + slot for state in states]
            rows = zip(picks, scores[:, slot], place, strict=True)
            tokens = [pick(row, position) for pick, row, position in rows]
        top = scores.topk(2, -1).values
        margins = (top[..., 0] - top[..., 1]).tolist()
        before = torch.tensor(previous).t()
        confidence = self._confidence(hidden.flatten(0, 1), before.flatten().tolist())
        drawn = torch.tensor([*previous[1:], tokens]).t().tolist()
        return [
            Block(
                tokens=tuple(drawn[i]),
                margins=tuple(margins[i]),
                confidence=tuple(confidence[i * width : (i + 1) * width]),
                logits=scores[i],
            )
            for i in range(count)
        ]

    def _hidden_together(self, states: Sequence[State], ids: Tensor) -> Tensor:
        """`_hidden` [sequences * block, hidden] of `ids` [sequences, block]."""
        b, size = self._b, ids.shape[1]
        flat = _whole_tiles(ids.flatten())
        streams = b.residual.start(embedding(flat, b.weights.embed))
        plain, missing = b.tables.plain, flat.numel() - ids.numel()
        turns = [plain.at(state.draft_length, size) for state in states]
        rotation = Rotation.joined([*turns, plain.at(0, missing)])
        seen = [_seen(state, size) for state in states]
        for s, stage in enumerate(self._w.stages):
            entry, projected = b.open_together(streams, stage, rotation)
            heads = projected.queries.new_zeros(projected.queries.shape, dtype=torch.float32)
            for i, state in enumerate(states):
                rows = slice(i * size, (i + 1) * size)
                context = state.row_format.decode(state.draft[s])
                keys = torch.cat((context, projected.row[rows].float()))
                heads[rows] = b.attention.attend(
                    projected.queries[rows], keys, seen[i], None, stage.attention
                )
            streams = b.close_together(streams, entry, heads, stage, rotation, flat, ids.numel())
        return b.residual.collapse(streams, self._w.hc_head)[: ids.numel()]

    def _biases(self, tokens: Sequence[int]) -> Tensor:
        """`_bias` of several tokens [tokens, vocab]."""
        if self._table is not None:
            return self._table[list(tokens)]
        return self._w.markov_w1[list(tokens)].float() @ self._w.markov_w2.float().t()

    def _bias(self, token: int) -> Tensor:
        if self._table is not None:
            return self._table[token]
        return self._w.markov_w2.float() @ self._w.markov_w1[token].float()

    def _confidence(self, hidden: Tensor, previous: list[int]) -> list[float]:
        features = torch.cat((hidden, self._w.markov_w1[previous]), -1)
        raw = linear(features.float(), self._w.confidence.float())
        return torch.sigmoid(raw)[:, 0].tolist()


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one round, from which several continuations are drawn."""

    head: DraftHead
    hidden: Tensor
    base: Tensor  # [width, vocab], before the Markov bias

    def scores(self, slot: int, previous: int) -> Tensor:
        """Logits [vocab] of a slot whose predecessor drew `previous`."""
        return self.base[slot] + self.head._bias(previous)

    def block(self, anchor: int, tokens: Sequence[int]) -> Block:
        """What `draft` tells, of the continuation `tokens`."""
        previous = [anchor, *tokens[:-1]]
        scores = torch.stack([self.scores(i, token) for i, token in enumerate(previous)])
        return self.head._block(tokens, previous, self.hidden, scores)


def _seen(state: State, count: int) -> Tensor:
    """What `count` slots of a block see of the context rows and of each other, as a bias."""
    window = state.draft.shape[1]
    keys = torch.arange(window + count)
    return bias((keys < state.draft_length) | (keys >= window)).expand(count, 1, -1)


def _whole_tiles(rows: Tensor) -> Tensor:
    """`rows` [t, ...] and zeros up to a whole number of tiles."""
    missing = -rows.shape[0] % TILE
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
