"""From the last residual to a token."""

from __future__ import annotations

import torch
from gates import Inputs, Operation

from operations.draws import normal


def lm_head(
    v: int,
    d: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    head: torch.dtype | None = None,
    **options: object,
) -> Operation:
    """`kernels.lm_head.scores`."""
    from kernels import lm_head as kernel
    from kernels.oracle import lm_head as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        weight = (normal(g, v, d) * d**-0.5).to(head or dtype)
        return {"x": normal(g, rows, d, dtype=dtype), "head": weight}

    return Operation(
        f"lm_head-{v}x{d}-{dtype}", kernel.scores, oracle.scores, make,
        rows=("x",), rtol=1e-5, atol=2e-5, options=dict(options),
    )  # fmt: skip


def markov(
    v: int, rank: int, d: int, *, dtype: torch.dtype = torch.bfloat16, **options: object
) -> Operation:
    """`kernels.markov.step`, of one slot whatever the number of rows."""
    from kernels import markov as kernel
    from kernels.oracle import markov as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return {
            "base": normal(g, v),
            "previous": torch.randint(v, (1,), generator=g),
            "hidden": normal(g, d, dtype=dtype),
            "w1": normal(g, v, rank, dtype=dtype),
            "w2": (normal(g, v, rank) * rank**-0.5).to(dtype),
            "confidence": (normal(g, 1, d + rank) * (d + rank) ** -0.5).to(dtype),
        }

    return Operation(
        f"markov-{v}x{rank}-{d}-{dtype}", kernel.step, oracle.step, make,
        rows=(), rtol=1e-5, atol=2e-5, options=dict(options),
    )  # fmt: skip


def pick(v: int, *, temperature: float, **options: object) -> Operation:
    """`kernels.sample.pick`; the first row draws the token at 7 + 1."""
    from kernels import sample as kernel
    from kernels.oracle import sample as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return {
            "scores": normal(g, rows, v) * 3,
            "position": torch.tensor([7]),
            "seed": torch.randint(-(2**62), 2**62, (1,), generator=g),
            "temperature": torch.tensor([temperature]),
        }

    return Operation(
        f"pick-{v}-{temperature}", kernel.pick, oracle.pick, make,
        rows=("scores",), rtol=0, atol=0, options=dict(options),
    )  # fmt: skip
