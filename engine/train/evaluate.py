"""What a trained model is worth: held-out bits, samples, and how many drafts survive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.tokenizer import CONTROL_TOKENS, Tokenizer
from engine.train.data import Rows, Split, prompt_of
from engine.train.forward import greedy
from engine.train.model import Model


@dataclass(frozen=True, slots=True)
class Generation:
    """Greedy continuations: row i holds its prompt up to `prompts[i]` and text up to `ends[i]`."""

    ids: Tensor  # int64 [N, L]
    prompts: Tensor  # int64 [N]
    ends: Tensor  # int64 [N]

    def text(self, row: int) -> list[int]:
        """The generated ids of one row."""
        return [int(i) for i in self.ids[row, int(self.prompts[row]) : int(self.ends[row])]]


def bits(
    model: Model,
    split: Split,
    tokenizer: Tokenizer | None,
    *,
    batch: int,
    length: int,
    batches: int,
) -> dict[str, float]:
    """Mean bits per token and byte of text over the first `batches` of `split`, documents apart.

    Bits of control tokens count; their bytes do not.
    """
    rows = Rows(split, batch, length, seed=0, emphasis=1.0, open_share=0.0)
    sizes = _byte_counts(tokenizer, model)
    nats, tokens, size = 0.0, 0.0, 0.0
    for number in range(min(batches, rows.per_epoch)):
        b = rows.batch(number)
        # With gradients on, the compiled functions of the training are used as they are.
        trace = model.forward.run(model.weights, b.ids, b.starts)
        with torch.no_grad():
            logits = model.forward.logits(model.weights, trace.hidden.detach())
            bare = logits.logsumexp(-1) - logits.gather(-1, b.targets[..., None]).squeeze(-1)
        nats += float((bare * b.weights).sum())
        tokens += float(b.weights.sum())
        size += float((sizes[b.targets] * b.weights).sum())
    found = {"held_out_bits_per_token": nats / math.log(2) / max(tokens, 1.0)}
    if tokenizer is not None:
        found["held_out_bits_per_byte"] = nats / math.log(2) / max(size, 1.0)
        found["held_out_bytes_per_token"] = size / max(tokens, 1.0)
    return found


def prompts(model: Model, split: Split, count: int, limit: int) -> list[list[int]]:
    """Up to `count` held-out prompts that fit `limit` whole, spread evenly over the split."""
    found: list[list[int]] = []
    for number in np.random.default_rng(5).permutation(len(split.begins)):
        prompt = prompt_of(split.document(int(number)), model.geometry, limit + 1)
        if 2 <= len(prompt) <= limit:
            found.append(prompt)
        if len(found) == count:
            break
    return found


@torch.no_grad()
def generate(model: Model, begins: Sequence[Sequence[int]], count: int) -> Generation:
    """`count` greedy tokens after each prompt (or up to EOS), every step a full forward."""
    g, device = model.geometry, model.device
    lengths = torch.tensor([len(p) for p in begins], device=device)
    ids = torch.full((len(begins), max(map(len, begins)) + count), g.eos_token_id, device=device)
    for row, prompt in enumerate(begins):
        ids[row, : len(prompt)] = torch.tensor(list(prompt), device=device)
    rows = torch.arange(len(begins), device=device)
    ends, done = lengths.clone(), torch.zeros(len(begins), dtype=torch.bool, device=device)
    for _ in range(count):
        used = int(ends.max())
        trace = model.plain.run(model.weights, ids[:, :used])
        last = trace.hidden[rows, ends - 1]
        token = model.plain.logits(model.weights, last).argmax(-1)
        ids[rows, ends] = torch.where(done, ids[rows, ends.clamp_max(ids.shape[1] - 1)], token)
        ends = ends + (~done).long()
        done |= token == g.eos_token_id
        if bool(done.all()):
            break
    return Generation(ids, lengths, ends)


@torch.no_grad()
def acceptance(model: Model, text: Generation) -> dict[str, Any]:
    """Greedy speculative decoding of `text` at full width: tau and acceptance by slot.

    `text` is the target's own greedy output, so a draft survives exactly where it equals it.
    """
    width = model.geometry.dspark_block_size
    used = int(text.ends.max())
    ids = text.ids[:, :used]
    trace = model.plain.run(model.weights, ids)
    generated = int((text.ends - text.prompts).max())
    anchors = text.prompts[:, None] - 1 + torch.arange(generated, device=ids.device)
    anchors = anchors.clamp_max(used - 2)
    blocks = model.plain.draft(model.weights, trace.taps, ids, anchors)
    drafts, _, trust = greedy(model.weights, blocks, ids.gather(1, anchors + 1))
    ids, drafts, trust = ids.cpu(), drafts.cpu(), trust.cpu()
    offered, accepted, rounds, tokens = [0] * width, [0] * width, 0, 0
    error, judged = 0.0, 0
    for row in range(len(ids)):
        first, end = int(text.prompts[row]), int(text.ends[row])
        at = first  # position of the bonus token
        while at + width < end:
            truth = ids[row, at + 1 : at + 1 + width]
            draft = drafts[row, at - first, 1:]
            good = (draft == truth).long().cumprod(0)
            count = int(good.sum())
            for slot in range(min(count + 1, width)):
                offered[slot] += 1
                accepted[slot] += int(slot < count)
                sure = float(torch.sigmoid(trust[row, at - first, slot]))
                error, judged = error + (sure - float(slot < count)) ** 2, judged + 1
            rounds, tokens, at = rounds + 1, tokens + count + 1, at + count + 1
    return {
        "tau": tokens / rounds if rounds else None,
        "width": width,
        "rounds": rounds,
        "tokens": tokens,
        "accepted_given_offered": [
            a / o if o else None for a, o in zip(accepted, offered, strict=True)
        ],
        "confidence_brier": error / judged if judged else None,
    }


def loops(ids: Sequence[int]) -> float:
    """Share of distinct 4-grams: under 0.5 the text repeats itself."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _byte_counts(tokenizer: Tokenizer | None, model: Model) -> Tensor:
    counts = torch.zeros(model.geometry.vocab_size)
    if tokenizer is not None:
        for token in range(len(CONTROL_TOKENS), min(tokenizer.vocab_size, len(counts))):
            counts[token] = len(tokenizer.token_bytes(token))
    return counts.to(model.device)
