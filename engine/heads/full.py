"""Is training ready for a head of full size? Asked with random weights, which are never on a disk.

A random head of any geometry is made on the device and takes a few steps of the real training on
random captured states. What a step costs depends on shapes alone; its losses mean nothing.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError, NumericsError
from engine.formats import FP4_GROUP
from engine.geometry import Geometry
from engine.heads import export, memory
from engine.heads.captured import Batch, Draw, Item, Room, fresh
from engine.heads.head import (
    SHARED,
    Head,
    Shipped,
    expert_entries,
    holding,
    scale_name,
    trained_entries,
    working_dtype,
)
from engine.heads.recipe import Recipe
from engine.heads.trainer import Trainer
from engine.tensors import Entry, entries
from engine.train.card import machine
from engine.train.export import decode
from engine.train.progress import say

PLANNED = 2000  # steps of a whole training, whose hours are told
MOST_STAGES = 16
LENGTH, LEAST_LENGTH = 512, 8  # positions of the longest sequence
_ID_BYTES = 4  # as a capture stores a token's id
_E2M1_RMS = 2.93  # of a random code
_E8M0_BIAS = 127


@dataclass(frozen=True, slots=True)
class Taken:
    """What each step took and said."""

    seconds: list[float]
    losses: list[float]
    norms: list[float]


def geometry_of(name: str, stages: int | None) -> Geometry:
    """A geometry by its name or its config.json's folder; its head has `stages` where given."""
    folder = Path(name)
    geometry = Geometry.load(folder) if folder.is_dir() else Geometry.named(name)
    if stages is None:
        return geometry
    if not 1 <= stages <= MOST_STAGES:
        raise ConfigError(f"--stages must be from 1 to {MOST_STAGES}; got {stages}.")
    ratios = geometry.layer_ratios + (0,) * stages
    return dataclasses.replace(geometry, compress_ratios=ratios)


def show(
    geometry: Geometry, device: torch.device, recipe: Recipe, *, steps: int, length: int = LENGTH
) -> dict[str, Any]:
    """Make a random head, train it for `steps`, export it in memory, and return what that took.

    Raises StageRefused where the device has too little memory, NumericsError for a loss or gradient
    that is not finite, and for a tensor that no gradient reached.
    """
    if steps < 1 or length < LEAST_LENGTH:
        raise ConfigError(f"It takes a step or more, of {LEAST_LENGTH} positions or more.")
    recipe = dataclasses.replace(recipe, steps=max(PLANNED, steps))
    stated = _stated(geometry, device, recipe, length)
    began_s = time.monotonic()
    head = Head.of(drawn_head(geometry, device), device)
    trainer = Trainer(head, Drawn(geometry, device, recipe.batch, length), recipe)
    _wait(device)
    made_s = time.monotonic() - began_s
    say(f"full: a head of {len(head.trained)} trained tensors made in {made_s:.1f} s")
    taken = _take(trainer, steps)
    facts = {
        "stages": geometry.draft_stages, **stated, "made_s": round(made_s, 3),
        "trained_parameters": sum(e.size for e in head.trained),
        **_pace(taken, recipe, geometry), "losses": taken.losses, "norms": taken.norms,
        "without_gradient": _silent(trainer), "peak_bytes": _peak_bytes(device),
        "bytes_per_token": token_bytes(geometry), "export": round_trip(head),
        "machine": machine(device),
    }  # fmt: skip
    _tell(facts)
    return facts


def _stated(
    geometry: Geometry, device: torch.device, recipe: Recipe, length: int
) -> dict[str, Any]:
    """Say what it will hold and what is free; StageRefused when that is too little."""
    held = holding(geometry)
    stated = memory.needed(
        geometry, recipe, length, packed=held.packed, dtype=working_dtype(device)
    )
    free = memory.free_bytes(device)
    sizes = {**asdict(stated), "total": stated.total}
    for name, size in {**sizes, "free": free}.items():
        say(f"full: {name:10} {size / 2**30:8.2f} GiB")
    say(f"full: experts {'packed' if held.packed else 'decoded'}, as {held.reason}")
    memory.require(stated, free)
    return {
        "packed": held.packed, "reason": held.reason, "stated_bytes": sizes, "free_bytes": free,
    }  # fmt: skip


def drawn_head(geometry: Geometry, device: torch.device, *, seed: int = 1) -> Shipped:
    """Random tensors that keep the size of what they multiply near one, made on `device`."""
    random = torch.Generator(device).manual_seed(seed)
    experts: dict[str, Tensor] = {}
    for entry in expert_entries(geometry):
        experts |= _drawn_experts(entry, device, random)
    shared = (e for e in entries(geometry) if e.name in SHARED)
    return Shipped(
        geometry,
        {e.name: _drawn(e, device, random) for e in trained_entries(geometry)},
        experts,
        {e.name: _drawn(e, device, random) for e in shared},
        {},
    )


class Drawn:
    """Random captured sequences of up to `length` positions, as many as a batch takes, in memory.

    Every batch has the same ones in turn with anchors of its own.
    """

    def __init__(
        self, geometry: Geometry, device: torch.device, count: int, length: int, *, seed: int = 1
    ) -> None:
        random = torch.Generator(device).manual_seed(seed)
        # Up to an eighth shorter, each by another amount.
        lengths = [length - i * (length // 8) // count for i in range(count)]
        self._items = [_drawn_item(geometry, device, n, random) for n in lengths]

    def batch(self, number: int, draw: Draw, room: Room = fresh) -> Batch:
        """Batch `number`, in memory from `room`."""
        first, have = number * draw.count, len(self._items)
        items = [self._items[(first + i) % have] for i in range(draw.count)]
        return draw.batch(number, items, room)


def round_trip(head: Head) -> dict[str, Any]:
    """Export the trained tensors in memory: the worst error, and which read back otherwise."""
    began_s = time.monotonic()
    head.parameters.refresh(quantised=True)
    disk, lost = export.encode(head.masters(), head.raw, head.geometry)
    back, native = decode(disk), head.native()
    worst = max(lost, key=lost.__getitem__)
    return {
        "trained_tensors": len(lost), "worst_round_trip": lost[worst], "worst_tensor": worst,
        "bytes": sum(t.nbytes for t in disk.values()),
        "otherwise": [n for n, t in native.items() if not torch.equal(back[n], t)],
        "seconds": round(time.monotonic() - began_s, 3),
    }  # fmt: skip


def token_bytes(geometry: Geometry) -> int:
    """Bytes of a captured token in bfloat16: its taps, the input of the output head, its id."""
    states = len(geometry.dspark_target_layer_ids) + 1
    return states * geometry.hidden_size * torch.bfloat16.itemsize + _ID_BYTES


def _take(trainer: Trainer, steps: int) -> Taken:
    taken = Taken([], [], [])
    for number in range(steps):
        began_s = time.monotonic()
        scalars = trainer.step()
        _wait(trainer.head.device)
        taken.seconds.append(time.monotonic() - began_s)
        taken.losses.append(float(scalars["loss"]))
        taken.norms.append(float(scalars["norm"]))
        say(f"full: step {number + 1} of {steps} in {taken.seconds[-1]:.3f} s, "
            f"loss {taken.losses[-1]:.4f}, gradient {taken.norms[-1]:.4g}")  # fmt: skip
        if not math.isfinite(taken.losses[-1] + taken.norms[-1]):
            raise NumericsError(f"Loss or gradient of step {number + 1} is not finite.")
    return taken


def _silent(trainer: Trainer) -> list[str]:
    """Tensors without a gradient: router biases, and what a loss of no weight would have moved.

    NumericsError when there is any other.
    """
    silent = list(trainer.without_gradient())
    off = () if trainer.recipe.confidence else (".confidence_head.",)
    known = (n for n in silent if n.endswith("gate.bias") or any(part in n for part in off))
    for name in sorted(set(silent).difference(known)):
        raise NumericsError(f"No gradient reached the tensor {name}.")
    return silent


def _pace(taken: Taken, recipe: Recipe, geometry: Geometry) -> dict[str, Any]:
    """The first step apart: it is where kernels are loaded and memory is first asked for."""
    later = taken.seconds[1:] or taken.seconds
    step_s = statistics.median(later)
    return {
        "first_step_s": round(taken.seconds[0], 4), "step_s": round(step_s, 4),
        "steps_s": [round(s, 4) for s in taken.seconds],
        "drafts_per_step": recipe.batch * recipe.anchors * geometry.dspark_block_size,
        "planned_steps": PLANNED, "planned_hours": round(step_s * PLANNED / 3600, 3),
    }  # fmt: skip


def _tell(facts: dict[str, Any]) -> None:
    peak = facts["peak_bytes"]
    exported = facts["export"]
    say(f"full: first step {facts['first_step_s']:.3f} s, later ones {facts['step_s']:.3f} s; "
        f"{PLANNED} steps take {facts['planned_hours']:.2f} hours")  # fmt: skip
    say(f"full: peak memory {'unknown' if peak is None else f'{peak / 2**30:.2f} GiB'}, "
        f"{facts['bytes_per_token']} bytes a captured token")  # fmt: skip
    say(f"full: export of {exported['trained_tensors']} tensors, worst round trip "
        f"{exported['worst_round_trip']:.4f} in {exported['worst_tensor']}; "
        f"{len(exported['otherwise'])} read back otherwise")  # fmt: skip


def _peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _drawn(entry: Entry, device: torch.device, random: torch.Generator) -> Tensor:
    dtype = torch.float32 if entry.format == "f32" else working_dtype(device)
    if "norm" in entry.name or entry.name.endswith("_scale"):
        return torch.ones(entry.shape, device=device, dtype=dtype)
    spread = 0.1 if len(entry.shape) == 1 else entry.shape[-1] ** -0.5
    noise = torch.randn(entry.shape, generator=random, device=device, dtype=dtype)
    return noise.mul_(spread)


def _drawn_experts(
    entry: Entry, device: torch.device, random: torch.Generator
) -> dict[str, Tensor]:
    """Random codes and scales of all experts at once: each is one draw."""
    *rows, columns = entry.full_shape
    middle = _E8M0_BIAS - round(math.log2(_E2M1_RMS * columns**0.5))

    def bytes_(width: int, low: int, high: int) -> Tensor:
        return torch.randint(
            low, high, (*rows, width), generator=random, device=device, dtype=torch.uint8
        )

    return {
        entry.name: bytes_(columns // 2, 0, 256).view(torch.int8),
        scale_name(entry.name): bytes_(
            columns // FP4_GROUP, middle - 1, middle + 2
        ).view(torch.float8_e8m0fnu),
    }  # fmt: skip


def _drawn_item(
    geometry: Geometry, device: torch.device, length: int, random: torch.Generator
) -> Item:
    def states(width: int) -> Tensor:
        noise = torch.randn(length, width, generator=random, device=device)
        return noise.bfloat16().cpu()

    d = geometry.hidden_size
    ids = torch.randint(geometry.vocab_size, (length + 1,), generator=random, device=device)
    taps = states(len(geometry.dspark_target_layer_ids) * d)
    return Item("drawn", "reasoning", length // 4, ids.cpu(), taps, states(d))
