"""Every kernel as an `Operation`, at any size: small under the interpreter, real on a GPU."""

from operations.attention import attend, choose_rows
from operations.draws import BF16_RTOL, normal, table
from operations.ending import lm_head, markov, pick
from operations.experts import banked, beside, choose, down, gate_up, in_two, look_up, route
from operations.linear import fp8_linear, project
from operations.rows import hyper, rms_norm, rotate, rounding

__all__ = [
    "BF16_RTOL",
    "attend",
    "banked",
    "beside",
    "choose",
    "choose_rows",
    "down",
    "fp8_linear",
    "gate_up",
    "hyper",
    "in_two",
    "lm_head",
    "look_up",
    "markov",
    "normal",
    "pick",
    "project",
    "rms_norm",
    "rotate",
    "rounding",
    "route",
    "table",
]
