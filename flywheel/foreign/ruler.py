"""The ruler of imported logs: an identity of its own, which equals none of ours. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flywheel.foreign import suite
from flywheel.foreign.record import DecodeLog
from flywheel.lever import fingerprint

PROTOCOL = "dsv4"
METRIC = "tokens_per_forward"
METRIC_VERSION = 1


@dataclass(frozen=True, slots=True)
class ForeignRuler:
    """`stops_at_eos` is False: the engine decoded on, so its tokens per forward are not a tau.

    `prompts` are `number:length`, all that a log tells of them; of the device it tells nothing.
    """

    suite: str
    prompts: tuple[str, ...]
    max_new_tokens: int
    width: int
    passes: int
    adapt_k: str
    checked_tokens: int
    protocol: str = PROTOCOL
    sampling: str = "greedy"
    stops_at_eos: bool = False
    chat_template: bool = False
    metric: str = METRIC
    metric_version: int = METRIC_VERSION
    device: str = "unlogged"

    @property
    def identity(self) -> str:
        """Hex sha256 of every field: equal rulers, and only they, share it."""
        return fingerprint(self.as_dict())

    @property
    def label(self) -> str:
        """Short printed name."""
        return f"{self.protocol}-{self.identity[:6]}"

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {**asdict(self), "prompts": list(self.prompts)}

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> ForeignRuler:
        """Inverse of `as_dict`."""
        prompts = data["prompts"]
        assert isinstance(prompts, list)
        return cls(**{**data, "prompts": tuple(prompts)})  # type: ignore[arg-type]


def of_log(log: DecodeLog) -> ForeignRuler:
    """The ruler of a log whose points all share one protocol; the first point speaks for all."""
    first = log.points[0]
    frozen = tuple((p.number, p.tokens) for p in (suite.CONTROL, *suite.PROMPTS))
    mine = tuple((p.prompt, p.prompt_tokens) for p in log.points)
    return ForeignRuler(
        suite="frozen-8" if mine == frozen else "other",
        prompts=tuple(f"{number}:{tokens}" for number, tokens in mine),
        max_new_tokens=first.asked,
        width=first.width,
        passes=first.passes,
        adapt_k=f"{float(first.adapt_k):.2f}",
        checked_tokens=log.checked_tokens,
    )
