"""The launches of the DSpark head: context rows of committed positions, and one block of drafts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.device.layers import Layers
from engine.device.state import Store
from engine.device.weights import Block


class Noise(NamedTuple):
    """How sampled tokens are drawn; int64 [1] and float32 [1] on the device."""

    seed: Tensor
    temperature: Tensor


class Drafted(NamedTuple):
    """The drafted tokens of one round and what the head says of each."""

    tokens: Tensor  # int64 [width]
    margins: Tensor  # float32 [width]
    confidence: Tensor  # float32 [width]


class DraftHead:
    """Beside the layers whose embedding and output head it shares."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._w = layers.weights.draft
        self._g = layers.geometry
        noise = [self._g.dspark_noise_token_id] * self._g.dspark_block_size
        self._noise = torch.tensor(noise, device=layers.weights.embed.device)

    def extend(self, store: Store, taps: Tensor, start: Tensor, count: Tensor) -> None:
        """Add context rows of the first `count` [1] rows of `taps` [m, n], from `start` [1] on."""
        op, w, eps = self._layers.operations, self._w, self._g.rms_norm_eps
        main = op.fp8_linear.multiply(taps, w.main_proj.codes, w.main_proj.scale)
        main = op.norm.rms_norm(main, w.main_norm, eps)
        rows = op.fp8_linear.multiply(main, w.context.codes, w.context.scale)
        op.context.extend(
            rows, w.kv_norms, *self._layers.tables.plain, start, count, store.named["draft"],
            eps=eps, rounds=self._layers.rounds,
        )  # fmt: skip

    def draft(self, store: Store, anchor: Tensor, width: int, noise: Noise | None) -> Drafted:
        """Draft `width` tokens after `anchor` int64 [1], which sits at the store's position.

        The block always has its trained size; a smaller `width` reads fewer of its slots.
        """
        ids = torch.cat((anchor, self._noise[1:]))
        vector, x = self._block(store, ids)
        op, w = self._layers.operations, self._w
        scores = op.lm_head.scores(x[:width], self._layers.weights.head).scores
        steps, token = [], anchor
        for slot in range(width):
            step = op.markov.step(
                scores[slot], token, vector[slot], w.markov_w1, w.markov_w2, w.confidence
            )
            token = step.token
            if noise is not None:
                token = op.sample.pick(
                    step.scores[None], store.position, noise.seed, noise.temperature,
                    ahead=1 + slot,
                )  # fmt: skip
            steps.append((token, step.margin, step.confidence))
        return Drafted(*(torch.cat(column) for column in zip(*steps, strict=True)))

    def _block(self, store: Store, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Collapsed streams [block, hidden] of the slots, before and after the norm."""
        layers, stages = self._layers, self._w.stages
        carried = layers.start(ids, stages[0].hc_attn)
        for number, stage in enumerate(stages):
            output = self._attend(carried.x, stage, store, number)
            carried = layers.advance(carried, output, stage.hc_ffn)
            parts = layers.moe(carried.x, stage.moe, ids, many=False)
            if number + 1 < len(stages):
                carried = layers.advance(carried, parts, stages[number + 1].hc_attn)
        return layers.finish(carried, parts, self._w.hc_head)

    def _attend(self, x: Tensor, stage: Block, store: Store, number: int) -> Tensor:
        """Every slot over the context rows and all slots."""
        layers, g, w, at = self._layers, self._g, stage.attention, store.position
        op, turn = layers.operations, layers.tables.plain
        y8, _ = op.project.project(x, w.down.codes, w.down.scale, None)
        latents, block = op.intake.rows(
            y8, w.q_norm, w.kv_norm, *turn, at, eps=g.rms_norm_eps, rounds=layers.rounds
        )
        y = op.fp8_linear.multiply(latents, w.up.codes, w.up.scale)
        queries = op.heads.prepare(
            y, *turn, at, heads=g.num_attention_heads, head_dim=g.head_dim,
            eps=g.rms_norm_eps, rounds=layers.rounds,
        )  # fmt: skip
        heads = op.attention.attend_block(
            queries.main, store.named["draft"][number], block, w.sink, *turn, at,
            scale=g.head_dim**-0.5,
        )  # fmt: skip
        return layers.merge(heads, w)
