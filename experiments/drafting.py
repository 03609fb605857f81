"""How many tokens are drafted a round, and how many of them the target is asked to verify."""

from __future__ import annotations

from flywheel.lever import Lever


def _width(width: int, gain: float, claim: str) -> Lever:
    return Lever(
        name=f"draft.width.{width}",
        kind="config",
        change={"draft_width": width},
        claim=claim,
        falsify="time per token does not fall although fewer drafts are verified",
        predicted_gain=gain,
        family="draft.width",
        needs=("drafts",),
    )


LEVERS: tuple[Lever, ...] = (
    _width(4, 0.01, "the fifth draft is accepted too rarely to pay for its row"),
    _width(3, 0.01, "the last two drafts are accepted too rarely to pay for their rows"),
    _width(2, 0.005, "acceptance is so uneven that two drafts carry most of the gain"),
    _width(1, 0.002, "one draft a round costs least where most drafts fail"),
    Lever(
        name="verify.confidence",
        kind="config",
        change={"verify_policy": "confidence"},
        claim="the confidence head cuts drafts that would fail, which saves their rows",
        falsify="time per token does not fall: rows are cheap, or the head cuts good drafts",
        predicted_gain=0.01,
        family="verify.policy",
        needs=("drafts",),
    ),
    Lever(
        name="verify.margin",
        kind="config",
        change={"verify_policy": "margin"},
        claim="a small margin between the draft's two best tokens foretells a rejection",
        falsify="time per token does not fall: rows are cheap, or margins mislead",
        predicted_gain=0.01,
        family="verify.policy",
        needs=("drafts",),
    ),
    Lever(
        name="verify.rows.apart",
        kind="config",
        change={"verify_rows": "apart"},
        claim="stopping at the first rejected draft saves the rows after it",
        falsify="one forward a row costs more than the rows it saves",
        predicted_gain=0.002,
        family="verify.rows",
        needs=("torch", "drafts"),
    ),
    Lever(
        name="markov.table",
        kind="config",
        change={"markov": "table"},
        claim="a table of all token pairs replaces one product a draft by one lookup",
        falsify="the products are too small a share of a round to matter",
        predicted_gain=0.03,
        family="markov",
        needs=("torch", "drafts"),
    ),
)
