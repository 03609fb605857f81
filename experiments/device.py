"""How a step is launched and computed on a GPU: choices of the triton backend."""

from __future__ import annotations

from flywheel.lever import Lever

LEVERS: tuple[Lever, ...] = (
    Lever(
        name="graph.off",
        kind="config",
        change={"graph": "off"},
        claim="launching kernels one by one costs no more than replaying a graph of them",
        falsify="time per token rises by what the host needs for each launch",
        predicted_gain=0.0,
        ceiling=0.01,
        family="graph",
        needs=("triton",),
    ),
)
