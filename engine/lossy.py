"""Typical acceptance, which is LOSSY: off by default, measured for its price, served by nobody.

A draft that the target finds likely enough is taken although the target would have said something
else. At temperature 0 nothing but the target's own choice is typical, so there it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.sampling import Sampler
from engine.verify import confirmed

# Of Cai et al. 2024: a draft is typical when its probability is over min(EPS, DELTA exp(-H)).
EPS, DELTA = 0.3, 0.09


def is_typical(logits: Tensor, token: int, temperature: float) -> bool:
    """Whether the target finds `token` likely enough for how sure it is of anything."""
    log = torch.log_softmax(logits.double() / temperature, -1)
    entropy = float(-(log.exp() * log).sum())
    return float(log[token].exp()) > min(EPS, DELTA * math.exp(-entropy))


def typical(logits: Tensor, drafts: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """The tokens of a round by `logits` [1 + drafts, vocab]: as `verify.confirmed`, but a typical
    draft stands in for the target's choice.

    Requests with filters, penalties, grammars or log-probabilities are verified exactly: what they
    keep count of is the target's own choices.
    """
    simple = sampler.simple()
    if simple is None or simple.temperature == 0:
        return confirmed(logits, drafts, sampler, position)
    said: list[int] = []
    for row in logits:
        choice = sampler.choose(row, position + len(said))
        draft = drafts[len(said)] if len(said) < len(drafts) else None
        if draft is not None and draft != choice and is_typical(row, draft, simple.temperature):
            choice = draft
        said.append(choice)
        if choice != draft:
            break
    return said
