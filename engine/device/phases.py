"""Which launch of a step is which phase, for the profile: the order is that of `layers`."""

from __future__ import annotations

from engine.profile.script import Script

# The launches of one step without drafts, by the names of their kernels.
STEP = Script(
    {
        "_multiply": (("hyper", "multiply"),),
        "_finish": (("hyper", "finish"),),
        "_project": (("attention", "project"),),
        "_intake": (("attention", "intake"),),
        "_decode": (("attention", "queries"), ("attention", "wo_a"), ("attention", "wo_b")),
        "_prepare": (("attention", "heads"),),
        "_step": (("attention", "index"),),
        "_scores": (("head",),),
        "_share": (("attention", "attend"),),
        "_combine": (("attention", "combine"),),
        "_route": (("experts", "router"),),
        "_beside": (("experts", "router"),),
        "_begin": (("experts", "shared"),),
        "_gate_up": (("experts", "gate_up"),),
        "_down": (("experts", "down"),),
        "_accept": (("accept",),),
        "_move": (("undo",),),
    }
)
