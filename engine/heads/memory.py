"""What a training holds on its device, told before it is tried: shapes alone, nothing is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import psutil
import torch

from engine.geometry import Geometry
from engine.heads.head import expert_entries, holding, is_draft, trained_entries, working_dtype
from engine.heads.recipe import Recipe
from engine.heads.stage import StageRefused
from engine.tensors import entries
from engine.train.chosen import TOGETHER_BYTES
from engine.train.optimiser import Optimiser, Rates
from engine.train.parameters import Parameters

_SHARED = ("embed.weight", "head.weight")
_META = torch.device("meta")
# Float32 copies of a step's largest tensors that are alive at once, rather too many than too few:
_OF_LOGITS = 16  # head, starting head, target and what their losses keep for the backward
_OF_STREAMS = 16  # in and out of each sublayer
_OF_QUERIES = 10
_OF_EXPERTS = 10  # rows inside every expert, where all are computed
_OF_TOGETHER = 6  # decoded matrices of a few experts, where the chosen ones are
_OF_STATES = 2  # captured states of a batch
_OF_UPDATE = {"muon": 2, "adamw": 5}  # masters, in the optimiser's own arithmetic


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for."""

    parameters: int  # masters, and the working copy that is computed with
    gradients: int  # of the working copy, and the flat float32 one of an update
    moments: int  # of both rules of the optimiser, and what each element's rate is multiplied by
    start: int  # the starting head's copy, where a recipe has an anchor
    experts: int  # routed ones, as they are held
    shared: int  # embedding and output head
    step: int  # about what forward and backward need beside, or the update, which comes after

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())


def needed(
    geometry: Geometry, recipe: Recipe, positions: int, *, packed: bool, dtype: torch.dtype
) -> Memory:
    """What a training by `recipe` holds on captured sequences of up to so many `positions`.

    Its working copy, and experts that are not `packed`, are of `dtype`.
    """
    p = Parameters(trained_entries(geometry), _META, dtype)
    low, high = p.wide * dtype.itemsize, (p.size - p.wide) * 4
    o = Optimiser(p, Rates(), muon=recipe.optimiser == "muon")
    experts = expert_entries(geometry)
    shared = [e for e in entries(geometry) if e.name in _SHARED]
    return Memory(
        parameters=p.master.nbytes + low + high,
        gradients=low + high + p.master.nbytes,
        moments=o.momentum.nbytes + 4 * o.first.nbytes,
        start=low + high if recipe.anchor else 0,
        experts=sum(e.size_bytes if packed else e.size * dtype.itemsize for e in experts),
        shared=sum(e.size for e in shared) * dtype.itemsize,
        step=max(
            _step(geometry, recipe, positions, packed=packed),
            _OF_UPDATE[recipe.optimiser] * p.master.nbytes,
        ),
    )


def require_room(
    geometry: Geometry, recipe: Recipe, positions: int, device: torch.device
) -> Memory:
    """`require` of what an arm of `recipe` needs on `device`, and on the host; returns that."""
    packed = holding(geometry).packed
    memory = needed(geometry, recipe, positions, packed=packed, dtype=working_dtype(device))
    require(memory, free_bytes(device))
    host = gate_bytes(geometry)
    if host > (free := free_bytes(torch.device("cpu"))):
        raise StageRefused(
            f"The gate before a training holds the whole head in float32 on the host, "
            f"{_gib(host)}; {_gib(free)} are free."
        )
    return memory


def gate_bytes(geometry: Geometry) -> int:
    """What the engine's own drafts take on the host, with which the training's are compared."""
    known = [e for e in entries(geometry) if is_draft(e.name) or e.name in _SHARED]
    return sum(e.size for e in known) * torch.float32.itemsize


def require(memory: Memory, free_bytes: int) -> None:
    """StageRefused when a device with `free_bytes` cannot hold it."""
    if memory.total > free_bytes:
        raise StageRefused(
            f"This training needs about {_gib(memory.total)} on its device "
            f"({', '.join(f'{_gib(n)} {name}' for name, n in asdict(memory).items())}); "
            f"{_gib(free_bytes)} are free."
        )


def free_bytes(device: torch.device) -> int:
    """What `device` has free now; StageRefused where there is no such device."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    if not torch.cuda.is_available():
        raise StageRefused("This machine has no CUDA device to train on.")
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def _step(g: Geometry, recipe: Recipe, positions: int, *, packed: bool) -> int:
    """About the largest tensors of a forward and a backward; a row is a slot of a block."""
    rows = recipe.batch * recipe.anchors * g.dspark_block_size
    of_stage = _OF_STREAMS * g.hc_mult * g.hidden_size
    of_stage += _OF_QUERIES * g.num_attention_heads * g.head_dim
    if not packed:
        of_stage += _OF_EXPERTS * g.n_routed_experts * g.moe_intermediate_size
    of_row = _OF_LOGITS * g.vocab_size + g.draft_stages * of_stage
    states = _OF_STATES * (len(g.dspark_target_layer_ids) + 1) * g.hidden_size
    floats = rows * of_row + recipe.batch * positions * states
    return floats * 4 + (_OF_TOGETHER * TOGETHER_BYTES if packed else 0)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
