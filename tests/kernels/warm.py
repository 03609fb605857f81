"""What the device backend compiles, at the real widths and without a GPU.

`python warm.py` warms up a backend whose kernels are compiled for a Hopper GPU and never launched,
then asks for rounds and prompts of every kind; it prints the names of the kernels that the warm-up
compiled, and of those that were compiled after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import hopper
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.device import synthetic
from engine.device.backend import TritonBackend

CONTEXT, CHUNK, WIDTH = 4096, 256, 5


@contextmanager
def cleared() -> Iterator[None]:
    """Inside, new memory is zero: what no kernel fills must still name tokens and experts.

    Nothing is drawn into it: no kernel reads a weight.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "empty", torch.zeros))
        stack.enter_context(patch.object(torch, "empty_like", torch.zeros_like))
        stack.enter_context(patch.object(Tensor, "new_empty", Tensor.new_zeros))
        stack.enter_context(patch.object(Tensor, "random_", lambda drawn, *_, **__: drawn))
        yield


def work(backend: TritonBackend) -> None:
    """Prompts around the sizes that kernels tell apart, and everything that a round may do."""
    for length in (1, 7, 16, 100, CHUNK, 300, 1111, 3000):
        state = backend.new_state()
        backend.prefill(state, [2] * length)
    _, seat = backend.seat(state)
    for noise in (None, (0.7, 1)):
        for width in range(1, WIDTH + 1):
            seat.round(3, width, noise)
            seat.draft(3, width, noise)
        for rows in range(1, 9):
            seat.confirm([3] * rows, noise, drafting=True)
            seat.confirm([3] * rows, noise, drafting=False)
    for rows in range(1, 9):
        seat.verify([3] * rows)
        seat.settle(rows, 1, drafting=True)


def main() -> None:
    """Print both lists as JSON."""
    geometry = replace(
        synthetic.geometry("k160", layers=4),
        n_routed_experts=8,
        vocab_size=4096,
        dspark_noise_token_id=5,
    )
    config = EngineConfig(
        backend="triton", dtype="bfloat16", prefill_chunk=CHUNK, context=CONTEXT, draft_width=WIDTH
    )
    with cleared(), hopper.compiled() as found, torch.inference_mode():
        weights = synthetic.generate(geometry, device="cpu")
        backend = TritonBackend(geometry, weights, config.effective(geometry, cores=1))
        backend.warm_up()
        before = {id(kernel) for kernel in found}
        work(backend)
    names = [
        {k.metadata.name for k in found if (id(k) in before) == warm} for warm in (True, False)
    ]
    print(json.dumps([sorted(some) for some in names]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "TRITON_INTERPRET" not in os.environ
    main()
