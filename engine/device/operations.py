"""The operations that a step is made of: Triton kernels, or their plain PyTorch twins."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from engine.device.tiles import Tiles


@dataclass(frozen=True, slots=True)
class Operations:
    """Groups of functions with the same signatures, whoever provides them."""

    accept: Any
    attention: Any
    beside: Any
    context: Any
    fp8_linear: Any
    heads: Any
    hyper: Any
    indexer: Any
    intake: Any
    lm_head: Any
    markov: Any
    moe: Any
    moe_prefill: Any
    norm: Any
    passage: Any
    project: Any
    router: Any
    sample: Any
    undo: Any

    @classmethod
    def kernels(cls, device: torch.device, tiles: Tiles | None = None) -> Operations:
        """Those of `kernels`, for one stream of `device`: their launches share a workspace.

        `tiles` changes how they launch; ConfigError for a tile that a kernel does not have.
        """
        from kernels.workspace import Workspace

        shared = Workspace.on(device)
        modules = {f.name: import_module(f"kernels.{f.name}") for f in fields(cls)}
        groups = {name: _sharing(module, shared) for name, module in modules.items()}
        if tiles is not None and tiles.any:
            tiles.apply(groups)
        return cls(**groups)

    @classmethod
    def oracles(cls) -> Operations:
        """Those of `kernels.oracle`: for any device, slow, and no part of any measurement."""
        return cls(**{f.name: import_module(f"kernels.oracle.{f.name}") for f in fields(cls)})


def _sharing(module: ModuleType, workspace: object) -> SimpleNamespace:
    """The functions of `module`, with `workspace` given to those that take one."""
    found = {}
    for name, item in vars(module).items():
        if inspect.isfunction(item) and item.__module__ == module.__name__:
            takes = "workspace" in inspect.signature(item).parameters
            found[name] = functools.partial(item, workspace=workspace) if takes else item
    return SimpleNamespace(**found)
