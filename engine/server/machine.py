"""What a served answer is computed on: tokens are only comparable where this is equal."""

from __future__ import annotations

from functools import cache

import torch

from engine.measure import provenance


@cache
def machine(backend: str) -> dict[str, str]:
    """What `backend` computes on and the version of PyTorch, as the measuring program has them."""
    return {"device": str(provenance.device(backend)["name"]), "torch": str(torch.__version__)}
