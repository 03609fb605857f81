"""A rehearsal of the kernels' benchmark where there is no GPU: all but the kernels themselves.

`python rehearsal.py` makes the operands of everything that is timed or swept, on the CPU and at
smaller sizes, calls each once with every launch left out, and prints one JSON object: the number of
launches by name.
"""

from __future__ import annotations

import json
import os
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

from kernels.bench import ending, shape, sweep, work


class _OnCpu(TorchFunctionMode):
    """What is asked for on a CUDA device is made on the CPU, and not drawn: no kernel reads it."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        if function is torch.randn:
            return torch.zeros(*args, **given)
        if function is torch.randint:
            given.setdefault("dtype", torch.int64)
            return torch.zeros(args[-1], **given)
        return args[0].zero_() if function is Tensor.random_ else function(*args, **given)


def rehearse(rows: int) -> dict[str, int]:
    """Launches of one call of everything for a step of `rows` rows, by name."""
    launches: list[object] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.append(self)

    found = {}
    with _OnCpu(), patch.object(JITFunction, "run", run):
        for product in work.tunable(rows):
            make = product.prepare(1)
            for tile in product.nearest(4):
                (call,) = make(tile)
                launches.clear()
                call()
                found[f"sweep {product.name}"] = len(launches)
        for item in work.every(rows) if rows <= 8 else ():
            call, *_ = item.make()
            launches.clear()
            call()
            found[item.name] = len(launches)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "TRITON_INTERPRET" not in os.environ
    shape.EXPERTS, ending.VOCABULARY, work._BANKS = 8, 4096, 1
    names = sweep.Ask(1, ("",), 1).names()
    print(json.dumps({"names": names} | {str(rows): rehearse(rows) for rows in (6, 9)}))
