"""Saving and restoring what a step overwrites, under Triton's interpreter."""

from __future__ import annotations

import gates
import pytest
import torch
from torch import Tensor

gates.interpreter()

from kernels import undo  # noqa: E402
from kernels.oracle import undo as oracle  # noqa: E402
from kernels.rings import Rings  # noqa: E402

# Slots, channels (float32) and ratio of each ring; one slot is longer than a turn of the kernel.
SHAPES = [(11, 3, 1), (9, 700, 1), (40, 5, 4), (20, 16, 8)]


def arena(seed: int) -> tuple[Tensor, list[tuple[Tensor, int]]]:
    """Random bytes, and the rings in them, with a gap before each."""
    g = torch.Generator().manual_seed(seed)
    words = sum(slots * channels + 8 for slots, channels, _ in SHAPES)
    memory = torch.randint(0, 256, (4 * words,), generator=g).to(torch.uint8)
    rings, first = [], 0
    for slots, channels, ratio in SHAPES:
        first += 32
        part = memory.narrow(0, first, 4 * slots * channels)
        rings.append((part.view(torch.float32).view(slots, channels), ratio))
        first += part.numel()
    return memory, rings


@pytest.mark.parametrize("start", [0, 3, 6, 29, 158])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_what_is_saved_and_put_back_is_what_the_oracle_does(start: int, rows: int) -> None:
    memory, rings = arena(start)
    table = Rings.of(memory, rings)
    position = torch.tensor([start])
    saved, twin = (torch.full((rows, table.words), 7, dtype=torch.int32) for _ in range(2))
    undo.save(memory, table, position, saved)
    oracle.save(memory, table, position, twin)
    assert torch.equal(saved, twin)
    for kept in range(rows + 1):
        mine, plain = memory.bitwise_not(), memory.bitwise_not()
        undo.restore(mine, table, position, torch.tensor([kept]), saved)
        oracle.restore(plain, table, position, torch.tensor([kept]), saved)
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("start", [0, 5, 30])
def test_a_step_of_which_nothing_stays_leaves_no_trace(start: int) -> None:
    memory, rings = arena(1)
    before, table = memory.clone(), Rings.of(memory, rings)
    position, saved = torch.tensor([start]), torch.zeros((8, table.words), dtype=torch.int32)
    undo.save(memory, table, position, saved)
    for ring, ratio in rings:
        for row in range(8):
            if (start + row + 1) % ratio == 0:
                ring[(start + row) // ratio % ring.shape[0]] = -1.0
    assert not torch.equal(memory, before)
    undo.restore(memory, table, position, torch.tensor([0]), saved)
    assert torch.equal(memory, before)


def test_what_does_not_fit_is_refused() -> None:
    memory, rings = arena(0)
    table = Rings.of(memory, rings)
    position = torch.tensor([0])
    with pytest.raises(ValueError, match="not in the arena"):
        Rings.of(memory, [(torch.zeros(4, 4), 1)])
    with pytest.raises(ValueError, match="not contiguous"):
        Rings.of(memory, [(rings[0][0].t(), 1)])
    with pytest.raises(ValueError, match="saved does not fit"):
        undo.save(memory, table, position, torch.zeros((2, table.words + 1), dtype=torch.int32))
    with pytest.raises(ValueError, match="9 rows"):
        undo.save(memory, table, position, torch.zeros((9, table.words), dtype=torch.int32))
    with pytest.raises(ValueError, match="one int64"):
        undo.save(memory, table, position.int(), torch.zeros((1, table.words), dtype=torch.int32))
