"""Draft heads: each changes exactly one thing of the recipe that the incumbent was trained by.

Before any is promoted that is the default one, from the checkpoint's own head on the target's own
answers: cross-entropy and total variation 0.1 / 0.9, deficit weighting, an anchor of 0.1, half of
the captured corpus.
"""

from __future__ import annotations

from flywheel.lever import Lever


def _arm(name: str, recipe: dict[str, object], gain: float, claim: str, falsify: str) -> Lever:
    return Lever(
        name=f"head.{name}",
        kind="head",
        change={"head": recipe},
        claim=claim,
        falsify=falsify,
        predicted_gain=gain,
        family=f"head.{name.split('.')[0]}",
        metric="tau",
        slow=True,
        needs=("drafts",),
    )


LEVERS: tuple[Lever, ...] = (
    _arm(
        "default", {}, 0.08,
        "a head trained on the target's own answers drafts them better",
        "tau does not rise above the bar on the suite, or falls on the hold-out",
    ),
    _arm(
        "loss.ce", {"cross_entropy": 1.0, "total_variation": 0.0}, 0.07,
        "cross-entropy alone has larger gradients where the head is wrong",
        "tau is no higher than the incumbent's",
    ),
    _arm(
        "loss.tv", {"cross_entropy": 0.0, "total_variation": 1.0}, 0.06,
        "total variation is one less the acceptance itself, so nothing else is needed",
        "tau is no higher than the incumbent's: it learns nothing where the overlap is nil",
    ),
    _arm(
        "loss.even", {"cross_entropy": 0.5, "total_variation": 0.5}, 0.08,
        "an even mix learns where the overlap is nil and sharpens where it is not",
        "tau is no higher than the incumbent's",
    ),
    _arm(
        "deficit.off", {"deficit": False}, 0.07,
        "blocks that fail are often unpredictable, and weighing them up costs the rest",
        "tau is no higher than the incumbent's, or weak categories fall",
    ),
    _arm(
        "anchor.off", {"anchor": 0.0}, 0.08,
        "the starting head is undertrained: holding on to it only slows learning",
        "categories that the starting head drafts well fall",
    ),
    _arm(
        "anchor.strong", {"anchor": 0.5}, 0.05,
        "a strong anchor keeps what is copied from the prompt while the rest improves",
        "tau is no higher than the incumbent's: nothing moves",
    ),
    _arm(
        "hass.1", {"hass_from": 1}, 0.05,
        "a head that reads its own drafts in training learns to go on after them",
        "tau is no higher: slots after a wrong draft are never accepted anyway",
    ),
    _arm(
        "hass.3", {"hass_from": 3}, 0.05,
        "own drafts matter only late in a block, where they differ from the truth",
        "tau is no higher than the incumbent's",
    ),
    _arm(
        "confidence.off", {"confidence": 0.0}, 0.07,
        "the confidence head shares no tensor, so leaving it out costs no tau",
        "tau differs from the default recipe's by more than prompts do",
    ),
    _arm(
        "confidence.full", {"confidence": 1.0}, 0.07,
        "a confidence loss of full weight trains that head without hurting drafts",
        "tau falls",
    ),
    _arm(
        "corpus.half", {"share": 0.25}, 0.05,
        "half of the usual corpus already holds what this head can learn",
        "the hold-out falls: it learned its texts by heart",
    ),
    _arm(
        "corpus.double", {"share": 1.0}, 0.09,
        "twice the corpus gives the hold-out what the suite gets",
        "neither suite nor hold-out rises over the incumbent's",
    ),
    _arm(
        "steps.more", {"steps": 2400}, 0.09,
        "the amount of training is what binds: tau goes on rising with three times as many steps",
        "tau is no higher than with the usual steps, or the hold-out falls: it learned by heart",
    ),
    _arm(
        "rate.low", {"rate": 0.0003}, 0.05,
        "a third of the rate leaves what works in place",
        "tau is no higher: it has not moved far enough",
    ),
    _arm(
        "rate.high", {"rate": 0.003}, 0.06,
        "the starting head is far from good, so larger steps get further in as many",
        "tau falls or training diverges",
    ),
    _arm(
        "width.3", {"width": 3}, 0.05,
        "the last two slots are reached too seldom to be worth their share of the loss",
        "tau is no higher: late slots are where it is lost",
    ),
    _arm(
        "decay.flat", {"decay": 1000.0}, 0.07,
        "weighing all slots alike gives late slots what they need",
        "early slots lose more than late ones gain",
    ),
    _arm(
        "optimiser.adamw", {"optimiser": "adamw"}, 0.05,
        "AdamW alone is the usual rule for fine-tuning and forgets less",
        "tau is no higher than the incumbent's after as many steps",
    ),
)  # fmt: skip
