"""Models without weights: `synthetic:NAME` is a named geometry with random ones, made at load.

What a step costs depends on shapes alone, so such a model shows it. Its tokens mean nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import psutil
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.geometry import ASSETS, SYNTHETIC, Geometry
from engine.suite import Prompt
from engine.tensors import entries
from engine.weights import Weights, assemble, laid_out

SEED = 0
# The part of a prompt's characters that its random tokens stand for: about a token of English.
_CHARACTERS_A_TOKEN = 4
_LEAST_TOKENS = 16


def sha256(name: str) -> str:
    """What stands for the hash of a checkpoint: of the geometry's file and the seed.

    The code that draws the weights has a hash of its own, that of the engine's source.
    """
    digest = hashlib.sha256(f"{SYNTHETIC}{name} {SEED}\0".encode())
    digest.update((ASSETS / name / "config.json").read_bytes())
    return digest.hexdigest()


def prompt_ids(prompt: Prompt, geometry: Geometry) -> list[int]:
    """Random tokens in place of a prompt's text, as many as the text would take; its own always."""
    characters = sum(len(str(message.get("content", ""))) for message in prompt.messages)
    count = max(_LEAST_TOKENS, characters // _CHARACTERS_A_TOKEN)
    random = torch.Generator().manual_seed(_seed(prompt.id))
    return torch.randint(geometry.vocab_size, (count,), generator=random).tolist()


def weights(geometry: Geometry, dtype: torch.dtype) -> Weights:
    """Random weights for the torch backend, decoded to `dtype` as a checkpoint's would be.

    Raises ConfigError where they would not fit the memory of the box.
    """
    needed = sum(entry.size for entry in entries(geometry)) * dtype.itemsize
    free = psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"The weights of this model take {needed / 2**30:.0f} GiB as {_word(dtype)}, and "
            f"{free / 2**30:.0f} GiB of memory are free; backend 'triton' keeps them packed."
        )
    return laid_out(assemble(dict(_tensors(geometry, dtype)), geometry))


def _tensors(geometry: Geometry, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Native names with values that keep the size of what they multiply near one."""
    for entry in entries(geometry):
        for name in entry.native:
            random = torch.Generator().manual_seed(_seed(name))
            if entry.format == "i64":
                yield name, _table(geometry, random)
            elif "norm" in name or name.endswith("_scale"):
                yield name, torch.ones(entry.shape)
            elif entry.format == "f32":
                yield name, torch.randn(entry.shape, generator=random) * _spread(entry.shape)
            else:
                value = torch.randn(entry.shape, generator=random) * _spread(entry.shape)
                yield name, value.to(dtype)


def _spread(shape: tuple[int, ...]) -> float:
    """Standard deviation: a product over the last axis keeps sizes; a vector is a small offset."""
    return 0.1 if len(shape) == 1 else 1.0 / math.sqrt(shape[-1])


def _table(geometry: Geometry, random: torch.Generator) -> Tensor:
    """Different experts for every token."""
    keys = torch.rand(geometry.vocab_size, geometry.n_routed_experts, generator=random)
    return keys.topk(geometry.num_experts_per_tok, -1).indices


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{SEED} {text}".encode()).digest()[:7], "big")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
