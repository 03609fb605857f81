"""What was retired stays measurable. Neither is expected to be worth having.

They take their time and are no part of a quick campaign. Widths by margin and by confidence, which
were retired with them, are among the levers of `drafting`.
"""

from __future__ import annotations

from flywheel.lever import LOSSY_METRIC, Lever


def _tree(branches: str, gain: float, claim: str) -> Lever:
    return Lever(
        name=f"draft.tree.{branches.replace(',', '.')}",
        kind="config",
        change={"draft_tree": branches},
        claim=claim,
        falsify="time per token does not fall: rows of the other paths cost more than they save",
        predicted_gain=gain,
        family="draft.tree",
        slow=True,
        needs=("torch", "drafts"),
    )


LEVERS: tuple[Lever, ...] = (
    _tree("2", 0.005, "the second best first draft is right often enough to pay for its path"),
    _tree("2,2", 0.002, "two choices at each of the first two depths catch most rejections"),
    _tree("3", 0.002, "three first drafts are hardly ever all wrong"),
    Lever(
        name="accept.typical",
        kind="config",
        change={"acceptance": "typical"},
        claim="a likely draft taken for the target's choice saves rounds, at the text's expense",
        falsify="time per token does not fall although drafts are taken that plain would not say",
        predicted_gain=0.1,
        family="accept.typical",
        metric=LOSSY_METRIC,
        slow=True,
        needs=("torch", "drafts"),
    ),
)
