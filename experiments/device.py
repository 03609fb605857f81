"""How a step is launched and computed on a GPU: choices of the triton backend."""

from __future__ import annotations

from flywheel.lever import Lever


def _tile(name: str, field: str, change: str, gain: float, claim: str) -> Lever:
    return Lever(
        name=name,
        kind="config",
        change={field: change},
        claim=claim,
        falsify="time per token does not fall, or sums come out in another order and tokens change",
        predicted_gain=gain,
        family=field.replace("_", "."),
        needs=("triton",),
    )


LEVERS: tuple[Lever, ...] = (
    Lever(
        name="graph.off",
        kind="config",
        change={"graph": "off"},
        claim="launching kernels one by one costs no more than replaying a graph of them",
        falsify="time per token rises by what the host needs for each launch",
        predicted_gain=0.0,
        family="graph",
        needs=("triton",),
    ),
    Lever(
        name="shared.expert.router",
        kind="config",
        change={"shared_expert": "router"},
        claim="the shared expert's first product fills the memory's time while the router chooses",
        falsify="time per token does not fall: the router's launch takes as much longer",
        predicted_gain=0.01,
        family="shared.expert",
        needs=("triton",),
    ),
    Lever(
        name="shared.expert.stream",
        kind="config",
        change={"shared_expert": "stream"},
        claim="a second stream runs the shared expert beside the router at no cost to either",
        falsify="time per token does not fall: forking and joining costs what it saves",
        predicted_gain=0.01,
        family="shared.expert",
        needs=("triton",),
    ),
    Lever(
        name="cache.packed.device",
        kind="config",
        change={"key_format": "packed"},
        claim="compressed rows and index keys of 57 and 27 % of the bytes are read faster than "
        "they take to unpack: 1.3 % of what a step reads after 131,072 tokens, 0.1 % after 8,192",
        falsify="unpacking costs more than the bytes it saves",
        predicted_gain=0.001,
        family="cache",
        needs=("triton",),
    ),
    _tile(
        "tile.gate.up.wide",
        "tile_gate_up",
        "columns=64",
        0.01,
        "wider tiles of the experts' first product read their rows once for more columns",
    ),
    _tile(
        "tile.gate.up.deep",
        "tile_gate_up",
        "stages=6",
        0.01,
        "more stages of the experts' first product keep more bytes in flight",
    ),
    _tile(
        "tile.down.narrow",
        "tile_down",
        "columns=16",
        0.01,
        "narrower tiles of the experts' second product fill the processors more evenly",
    ),
    _tile(
        "tile.down.deep",
        "tile_down",
        "stages=6",
        0.005,
        "more stages of the experts' second product keep more bytes in flight",
    ),
    _tile(
        "tile.queries.narrow",
        "tile_queries",
        "columns=32",
        0.005,
        "narrower tiles of the query product fill the processors more evenly",
    ),
    _tile(
        "tile.queries.late",
        "tile_queries",
        "early=0",
        0.003,
        "a query product that begins when its input is there leaves the launch before alone",
    ),
    _tile(
        "tile.queries.warps",
        "tile_queries",
        "warps=4",
        0.003,
        "more warps of the query product hide each other's latency",
    ),
    _tile(
        "tile.wo.a.split",
        "tile_wo_a",
        "columns=64,splits=4,warps=2,parts=1,stages=4",
        0.004,
        "wider tiles of the grouped product whose channels are split read their input fewer times",
    ),
    _tile(
        "tile.wo.a.early",
        "tile_wo_a",
        "early=1",
        0.005,
        "beginning the grouped product while attention ends hides its first latency",
    ),
    _tile(
        "tile.wo.b.early",
        "tile_wo_b",
        "early=1",
        0.005,
        "beginning the last attention product early hides its first latency",
    ),
    _tile(
        "tile.wo.b.deep",
        "tile_wo_b",
        "stages=6",
        0.005,
        "more stages of the last attention product keep more bytes in flight",
    ),
    _tile(
        "tile.wo.b.warps",
        "tile_wo_b",
        "warps=4",
        0.003,
        "more warps of the last attention product hide each other's latency",
    ),
    _tile(
        "tile.project.late",
        "tile_project",
        "early=0",
        0.003,
        "first products that begin when their input is there leave the mixing alone",
    ),
    _tile(
        "tile.project.wide",
        "tile_project",
        "columns=64",
        0.003,
        "wider tiles of a layer's first products need fewer programs and fewer meetings",
    ),
    _tile(
        "tile.router.late",
        "tile_router",
        "early=0",
        0.005,
        "fetching the router's weights only once its input is mixed leaves the mixing the memory",
    ),
    _tile(
        "tile.hyper.narrow",
        "tile_hyper",
        "channels=32",
        0.005,
        "narrower tiles of the streams' mixing put more processors to work",
    ),
    _tile(
        "tile.head.wide",
        "tile_head",
        "columns=256",
        0.003,
        "wider tiles of the output head read its input fewer times",
    ),
    _tile(
        "tile.head.deep",
        "tile_head",
        "stages=6",
        0.005,
        "more stages of the output head keep more bytes in flight",
    ),
)
