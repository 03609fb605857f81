"""How the arithmetic of a step is laid out on the processor."""

from __future__ import annotations

from flywheel.lever import Lever

LEVERS: tuple[Lever, ...] = (
    Lever(
        name="threads.2",
        kind="config",
        change={"threads": 2},
        claim="a second thread shares the output head and the larger products",
        falsify="handing over work costs more than it saves at this size",
        predicted_gain=0.01,
        family="threads",
    ),
    Lever(
        name="row.tile.6",
        kind="config",
        change={"row_tile": 6},
        claim="six rows are all that a width of five needs; padding to eight wastes a quarter",
        falsify="a product of six rows is no faster than one of eight",
        predicted_gain=0.04,
        family="row.tile",
    ),
    Lever(
        name="moe.fused",
        kind="config",
        change={"moe": "fused"},
        claim="gate and up matrices in one product halve the calls of every expert",
        falsify="the calls are not what the experts' time goes to",
        predicted_gain=0.03,
        family="moe",
    ),
    Lever(
        name="moe.dense",
        kind="config",
        change={"moe": "dense"},
        claim="all experts in three batched products beat a loop over the chosen ones",
        falsify="the weights of idle experts cost more than the loop",
        predicted_gain=0.02,
        family="moe",
    ),
    Lever(
        name="attention.joined",
        kind="config",
        change={"attention": "joined"},
        claim="one product over window and compressed keys beats two over the parts",
        falsify="gathering the keys costs more than the second product",
        predicted_gain=0.005,
        family="attention",
    ),
    Lever(
        name="row.tile.4",
        kind="config",
        change={"row_tile": 4},
        claim="a plain step needs no more than four rows, a verify step the rows it has",
        falsify="rounds rarely verify so few rows that the padding matters",
        predicted_gain=0.03,
        family="row.tile",
    ),
    Lever(
        name="hyper.host",
        kind="config",
        change={"hyper": "host"},
        claim="mixing weights of a few numbers cost more to dispatch than to compute on the host",
        falsify="handing the numbers over costs what the dispatch did",
        predicted_gain=0.1,
        family="hyper",
    ),
    Lever(
        name="hyper.matrix",
        kind="config",
        change={"hyper": "matrix"},
        claim="row and column sums as products need two calls where the loop needs three",
        falsify="a small product costs more than a sum and an addition",
        predicted_gain=0.02,
        family="hyper",
    ),
    Lever(
        name="compile.blocks",
        kind="config",
        change={"compile": "blocks"},
        claim="compiled blocks fuse hundreds of small operations a layer",
        falsify="products and memory, not small operations, are what a step waits for",
        predicted_gain=0.25,
        family="compile",
    ),
)
