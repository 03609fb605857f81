"""Which experts a row visits, and with what weights: by affinity and bias, or by its token.

Affinity is sqrt(softplus(logit)); the bias takes part in the choice, never in the weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import require, require_contiguous


def choose(logits: Tensor, bias: Tensor, count: int, *, scale: float) -> tuple[Tensor, Tensor]:
    """The `count` best experts int64 [m, count] by affinity + `bias` float32 [e], best first.

    `logits` float32 [m, e]; of equals the lower expert comes first. Also their weights, float32
    [m, count]: shares of the chosen affinities times `scale`. Raises ValueError for operands that
    do not fit.
    """
    m, experts = logits.shape
    _check(logits)
    require(bias.shape == (experts,), f"a bias {tuple(bias.shape)} for {experts} experts")
    require(bias.dtype == torch.float32, f"the bias is {bias.dtype}, not float32")
    require(1 <= count <= experts, f"{count} of {experts} experts cannot be chosen")
    require_contiguous(bias=bias)
    chosen = torch.empty((m, count), dtype=torch.int64, device=logits.device)
    weights = torch.empty((m, count), dtype=torch.float32, device=logits.device)
    if m:
        _choose[(m,)](
            logits, bias, chosen, weights, experts, scale,
            COUNT=count, SLOTS=triton.next_power_of_2(count),
            BLOCK=triton.next_power_of_2(experts), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def look_up(
    logits: Tensor, tokens: Tensor, table: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Experts int64 [m, count] of `tokens` int64 [m] in `table` int64 [vocabulary, count]; weights.

    The weights are as in `choose`. Raises ValueError for operands that do not fit.
    """
    m, experts = logits.shape
    _check(logits)
    require(tokens.shape == (m,), f"tokens {tuple(tokens.shape)} for {m} rows")
    require(tokens.dtype == table.dtype == torch.int64, "tokens and table are not int64")
    require_contiguous(tokens=tokens, table=table)
    count = table.shape[1]
    chosen = torch.empty((m, count), dtype=torch.int64, device=logits.device)
    weights = torch.empty((m, count), dtype=torch.float32, device=logits.device)
    if m:
        _look_up[(m,)](
            logits, tokens, table, chosen, weights, experts, scale,
            COUNT=count, SLOTS=triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def _check(logits: Tensor) -> None:
    require(logits.dtype == torch.float32, f"logits are {logits.dtype}, not float32")
    require_contiguous(logits=logits)


@triton.jit
def _affinity(logit):  # type: ignore[no-untyped-def]
    """sqrt(max(z, 0) + log1p(exp(-|z|))); log1p by W. Kahan's quotient, as 1 + e may lose e."""
    e = tl.exp(-tl.abs(logit))
    one_more = 1.0 + e
    lost = one_more == 1.0
    quotient = e / tl.where(lost, 1.0, one_more - 1.0)
    small = tl.where(lost, e, tl.log(one_more) * quotient)
    return tl.sqrt_rn(tl.maximum(logit, 0.0) + small)


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, bias, chosen, weights, experts, scale,
    COUNT: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    there = expert < experts
    affinity = _affinity(tl.load(logits + row * experts + expert, mask=there, other=0.0))
    score = affinity + tl.load(bias + expert, mask=there, other=0.0)
    score = tl.where(there, score, float("-inf"))
    taken = there == 0
    slot = tl.arange(0, SLOTS)
    share = tl.zeros((SLOTS,), tl.float32)
    for turn in tl.static_range(COUNT):
        best = tl.max(score, 0)
        found = tl.min(tl.where((score == best) & (taken == 0), expert, BLOCK), 0)
        # NaN equals nothing: stay within the bank, the check of the logits speaks later.
        found = tl.minimum(found, experts - 1)
        mine = expert == found
        value = tl.sum(tl.where(mine, affinity, 0.0), 0)
        share = tl.where(slot == turn, value, share)
        tl.store(chosen + row * COUNT + turn, found.to(tl.int64))
        score = tl.where(mine, float("-inf"), score)
        taken = taken | mine
    share = share / tl.sum(share, 0) * scale
    tl.store(weights + row * COUNT + slot, share, mask=slot < COUNT)


@triton.jit
def _look_up(  # type: ignore[no-untyped-def]
    logits, tokens, table, chosen, weights, experts, scale,
    COUNT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    there = slot < COUNT
    expert = tl.load(table + tl.load(tokens + row) * COUNT + slot, mask=there, other=0)
    affinity = _affinity(tl.load(logits + row * experts + expert, mask=there, other=0.0))
    affinity = tl.where(there, affinity, 0.0)
    tl.store(chosen + row * COUNT + slot, expert, mask=there)
    tl.store(weights + row * COUNT + slot, affinity / tl.sum(affinity, 0) * scale, mask=there)
