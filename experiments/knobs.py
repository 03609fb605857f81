"""What may be turned where a profile says that time is lost.

No value is the engine's own default: to go back to it is an ablation, which the plan places itself.
"""

from __future__ import annotations

from flywheel.knob import Knob
from flywheel.lever import Lever

LEVERS: tuple[Lever, ...] = ()


def _tile(phase: str, field: str, part: str, values: tuple[int, ...], claim: str) -> Knob:
    return Knob(phase, field, values, claim, part=part, needs=("triton",))


_FILL = "a tile of another size fills the processors more evenly"
_FLIGHT = "another depth of stages keeps the memory busier"
_SHARE = "another split of the sum gives more programs something to do"
_EARLY = "beginning before the launch before has ended hides the latency of a beginning"
_LATE = "beginning only when the launch before has ended leaves it the processors to itself"
_ASIDE = "the shared expert waits for no router, which leaves the memory idle"

KNOBS: tuple[Knob, ...] = (
    _tile("experts/gate_up", "tile_gate_up", "columns", (32, 64), _FILL),
    _tile("experts/gate_up", "tile_gate_up", "stages", (4, 6), _FLIGHT),
    _tile("experts/gate_up", "tile_gate_up", "shared", (1,), _SHARE),
    _tile("experts/gate_up", "tile_gate_up", "early", (0,), _LATE),
    _tile("experts/down", "tile_down", "columns", (16, 64), _FILL),
    _tile("experts/down", "tile_down", "stages", (4, 6), _FLIGHT),
    _tile("experts/down", "tile_down", "shared", (1,), _SHARE),
    _tile("experts/down", "tile_down", "early", (1,), _EARLY),
    _tile("experts/router", "tile_router", "columns", (32,), _FILL),
    _tile("experts/router", "tile_router", "early", (0,), _LATE),
    _tile("attention/project", "tile_project", "columns", (16, 64), _FILL),
    _tile("attention/project", "tile_project", "stages", (3, 6), _FLIGHT),
    _tile("attention/project", "tile_project", "early", (0,), _LATE),
    _tile("attention/queries", "tile_queries", "columns", (32, 128), _FILL),
    _tile("attention/queries", "tile_queries", "stages", (4, 6), _FLIGHT),
    _tile("attention/queries", "tile_queries", "early", (0,), _LATE),
    _tile("attention/wo_a", "tile_wo_a", "columns", (32, 64), _FILL),
    _tile("attention/wo_a", "tile_wo_a", "early", (1,), _EARLY),
    _tile("attention/wo_b", "tile_wo_b", "columns", (32, 128), _FILL),
    _tile("attention/wo_b", "tile_wo_b", "stages", (3, 6), _FLIGHT),
    _tile("attention/wo_b", "tile_wo_b", "early", (1,), _EARLY),
    _tile("attention/attend", "tile_attend", "splits", (8, 32), _SHARE),
    _tile("attention/attend", "tile_attend", "keys", (64, 16), _FILL),
    _tile("attention/intake", "tile_intake", "warps", (2, 8), _FILL),
    _tile("attention/heads", "tile_heads", "warps", (2, 8), _FILL),
    _tile("hyper", "tile_hyper", "channels", (32, 128), _FILL),
    _tile("hyper", "tile_hyper", "read_warps", (2, 8), _FILL),
    _tile("head", "tile_head", "columns", (32, 128), _FILL),
    _tile("head", "tile_head", "stages", (4, 6), _FLIGHT),
    Knob("experts/router", "shared_expert", ("router", "stream"), _ASIDE, needs=("triton",)),
    Knob(
        "hyper", "hyper", ("host", "matrix"),
        "the mixing weights are few numbers, and calls cost more than they do", needs=("torch",),
    ),
    Knob(
        "experts", "moe", ("fused", "dense"),
        "fewer and larger products are called less often", needs=("torch",),
    ),
    Knob(
        "attention/gather", "attention", ("joined",),
        "keys that lie together are multiplied at once", needs=("torch",),
    ),
    Knob(
        "attention/gather", "cache_format", ("packed",),
        "rows of fewer bytes are read faster than they take to unpack",
        needs=("torch",),
    ),
    Knob(
        "head", "threads", (2, 4, 0), "the head is the largest product, and cores stand idle",
        needs=("torch",),
    ),
    Knob(
        "attention/project", "row_tile", (6, 4, 7), "fewer rows of padding are multiplied",
        needs=("torch",),
    ),
    Knob(
        "attention/finish", "row_tile", (6, 4, 7), "fewer rows of padding are multiplied",
        needs=("torch",),
    ),
    Knob(
        "step, between phases", "compile", ("blocks",), "compiled blocks are fewer calls",
        slow=True, needs=("torch",),
    ),
)  # fmt: skip
