"""The read that bandwidth is measured by, under Triton's interpreter: it leaves no word out."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

from kernels.bench import bandwidth  # noqa: E402


@pytest.mark.parametrize("block", [1024, 4096])
def test_every_word_is_in_the_sum_of_its_block(block: int) -> None:
    source = torch.randint(-1000, 1000, (4 * block,), dtype=torch.int32)
    totals = torch.full((5,), -1, dtype=torch.int32)
    bandwidth.sum_words(source, totals, block)
    assert torch.equal(totals[:4], source.view(4, block).sum(1, dtype=torch.int32))
    assert totals[4] == -1


@pytest.mark.parametrize("programs", [1, 2, 4])
def test_every_word_is_in_the_sum_of_its_run(programs: int) -> None:
    source = torch.randint(-1000, 1000, (4 * 4096,), dtype=torch.int32)
    totals = torch.full((5,), -1, dtype=torch.int32)
    bandwidth.sum_runs(source, totals, programs)
    expected = source.view(programs, -1).sum(1, dtype=torch.int32)
    assert torch.equal(totals[:programs], expected)
    assert int(totals[programs]) == -1


def test_sizes_are_whole_blocks_of_every_kind() -> None:
    assert all(size % (1 << 16) == 0 for size in (*bandwidth.SIZES, bandwidth.LARGE))
