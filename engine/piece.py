"""A pure function of tensors, compiled when the configuration says so.

Only short steps call the compiled form: their shapes are few and fixed, so nothing is compiled
after the first step of each width. Long steps (prefill) take the plain form.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.state import TILE

_SHAPES = 64  # arms share the code of a piece; each may bring shapes and constants of its own


class Piece:
    """Calls `function` as it is, or compiled for first arguments of at most TILE rows."""

    def __init__(self, function: Callable[..., Any], *, compiled: bool) -> None:
        self._plain = function
        self._fast = _compiled(function) if compiled else function

    def __call__(self, first: Tensor, *rest: Any) -> Any:
        function = self._fast if first.shape[0] <= TILE else self._plain
        return function(first, *rest)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled for every combination of shapes that it meets."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ConfigError("compile 'blocks' needs a C++ compiler (g++ or clang++) on the PATH.")
    torch._dynamo.config.recompile_limit = _SHAPES
    return torch.compile(function, dynamic=False, fullgraph=True)
