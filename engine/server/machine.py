"""What a served answer is computed on: tokens are only comparable where this is equal."""

from __future__ import annotations

from functools import cache

import torch

from engine.measure import provenance


@cache
def machine() -> dict[str, str]:
    """The processor and the version of PyTorch, in the words of the measuring program."""
    return {"device": str(provenance.device()["name"]), "torch": str(torch.__version__)}
