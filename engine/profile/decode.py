"""The profile of an engine's decode steps: collect, weigh, rank."""

from __future__ import annotations

import torch

from engine.engine import Engine
from engine.errors import ConfigError
from engine.profile import ceiling, host, weight
from engine.profile.profile import Profile


def random_prompt(engine: Engine, context: int, rows: int) -> list[int]:
    """`context` random tokens; ConfigError where a step of `rows` more would not fit."""
    longest = engine.config.context - rows
    if not 1 <= context <= longest:
        raise ConfigError(f"A context of {context} tokens is not between 1 and {longest}.")
    generator = torch.Generator().manual_seed(0)
    return torch.randint(engine.geometry.vocab_size, (context,), generator=generator).tolist()


def decode(engine: Engine, prompt: list[int], *, rows: int, steps: int) -> Profile:
    """Profile `steps` equal decode steps of `rows` tokens after `prompt`.

    Raises ProfileError where the configuration leaves no phases to time, or clocks disagree.
    """
    timed = host.decode_steps(engine, prompt, rows, steps)
    element_bytes = engine.weights.embed.element_size()
    return Profile.of(
        f"decode steps of {rows} row(s) after {len(prompt)} tokens, torch backend",
        timed,
        weight.weights(engine.geometry, weight.TORCH, weight.decoded(element_bytes), rows),
        ceiling.measured("cpu"),
        config=engine.config.canonical(),
    )
