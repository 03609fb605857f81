"""The profile of an engine's decode steps: collect, weigh, rank."""

from __future__ import annotations

import torch

from engine.engine import Engine
from engine.errors import ConfigError
from engine.profile import ceiling, host, weight
from engine.profile.profile import Profile
from engine.profile.span import Path, Steps
from engine.torch_backend import TorchBackend


def random_prompt(engine: Engine, context: int, rows: int, steps: int) -> list[int]:
    """`context` random tokens; ConfigError where so many steps of `rows` more would not fit."""
    longest = engine.config.context - rows * (steps + host.WARM_STEPS)
    if longest < 1:
        raise ConfigError(
            f"{steps} steps of {rows} rows do not fit into the context of {engine.config.context}."
        )
    if not 1 <= context <= longest:
        raise ConfigError(f"A context of {context} tokens is not between 1 and {longest}.")
    generator = torch.Generator().manual_seed(0)
    return torch.randint(engine.geometry.vocab_size, (context,), generator=generator).tolist()


def decode(
    engine: Engine, prompt: list[int], *, rows: int, steps: int, synthetic: bool = False
) -> Profile:
    """Profile `steps` equal decode steps of `rows` tokens after `prompt`, nothing drafted.

    Raises ProfileError where the configuration leaves no phases to time, or clocks disagree.
    """
    on_host = isinstance(engine.backend, TorchBackend)
    timed = (
        host.decode_steps(engine, prompt, rows, steps)
        if on_host
        else _device_steps(engine, prompt, rows, steps)
    )
    return Profile.of(
        f"decode steps of {rows} row(s) after {len(prompt)} tokens, "
        f"{engine.config.backend} backend",
        timed,
        _host_bytes(engine, rows) if on_host else _device_bytes(engine, len(prompt), rows),
        ceiling.measured("cpu" if on_host else "cuda"),
        config=engine.config.canonical(),
        synthetic=synthetic,
    )


def _host_bytes(engine: Engine, rows: int) -> dict[Path, float]:
    """Weights as the torch backend holds them, decoded."""
    decoded = weight.decoded(engine.weights.embed.element_size())
    return weight.weights(engine.geometry, weight.TORCH, decoded, rows)


def _device_bytes(engine: Engine, context: int, rows: int) -> dict[Path, float]:
    """Weights as the triton backend holds them, which is as stored, and the rows of the cache."""
    patterns = weight.triton(engine.config.shared_expert)
    found = weight.weights(engine.geometry, patterns, weight.stored, rows)
    form = "bf16" if engine.config.dtype == "bfloat16" else "float32"
    if engine.config.key_format == "packed":
        form = "mixed" if form == "bf16" else "mixed float32"
    for path, size in weight.cache(engine.geometry, context, form).items():
        if size:
            found[path] = found.get(path, 0.0) + size
    return found


@torch.inference_mode()
def _device_steps(engine: Engine, prompt: list[int], rows: int, steps: int) -> Steps:
    """Steps of the triton backend: each replays the launches of one and commits what it confirms.

    Positions move on with every step; what is launched, and nearly all that is read, does not.
    """
    from engine.device.backend import TritonBackend
    from engine.device.phases import STEP
    from engine.profile.device import traced_steps

    backend = engine.backend
    assert isinstance(backend, TritonBackend)
    state, seat = backend.seat(backend.new_state())
    backend.prefill(state, prompt, drafting=False)
    seat.place(torch.tensor((prompt * rows)[:rows], device=backend.device))
    launches = seat.steps(rows, sampled=False, drafting=False)
    return traced_steps(launches, STEP, steps)
