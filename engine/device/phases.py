"""Which launch of a step is which phase, for the profile: the order is that of `layers`."""

from __future__ import annotations

from engine.device.layers import INDEXED
from engine.geometry import Geometry
from engine.profile.script import Script
from engine.profile.span import Path

_SCORES: Path = ("attention", "scores")


def script(geometry: Geometry) -> Script:
    """The launches of one step without drafts, by the names of their kernels."""
    indexed = sum(ratio == INDEXED for ratio in geometry.layer_ratios)
    return Script(
        {
            "_multiply": (("hyper", "multiply"),),
            "_finish": (("hyper", "finish"),),
            "_project": (("attention", "project"),),
            "_intake": (("attention", "intake"),),
            "_decode": (("attention", "queries"), ("attention", "wo_a"), ("attention", "wo_b")),
            "_prepare": (("attention", "heads"),),
            # The output head's kernel has the name of the indexers', and comes after them.
            "_scores": (*[_SCORES] * indexed, ("head",)),
            "_search": (("attention", "select"),),
            "_share": (("attention", "attend"),),
            "_combine": (("attention", "combine"),),
            "_route": (("experts", "router"),),
            "_gate_up": (("experts", "gate_up"),),
            "_down": (("experts", "down"),),
            "_accept": (("accept",),),
            "_move": (("undo",),),
        }
    )
