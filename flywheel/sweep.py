"""A sweep: one field and the values it may take, of which only the best is worth a confirmation.

Pure data. A grid names its values; a search names two ends, and its values are chosen one after
another by what the ones before came to. Either way every value is screened, and one is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flywheel.errors import LeverError
from flywheel.lever import Lever, canonical


@dataclass(frozen=True, slots=True)
class Sweep:
    """`values` of a grid, or `low` and `high` of a search with at most `trials` values between.

    A search is over whole numbers when both ends are whole; with `log` equal ratios count alike.
    The other fields are those of the levers that come of it.
    """

    name: str
    field: str
    claim: str
    falsify: str
    predicted_gain: float
    values: tuple[object, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    trials: int = 8
    ceiling: float | None = None
    hot: bool = True
    slow: bool = False
    needs: tuple[str, ...] = ()
    share: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "needs", tuple(self.needs))
        searched = self.low is not None and self.high is not None
        if bool(self.values) == searched or (self.low is None) != (self.high is None):
            raise LeverError(f"sweep {self.name} wants values, or two ends to search between")
        if searched:
            _check_ends(self)
        if len({canonical(value) for value in self.values}) != len(self.values):
            raise LeverError(f"sweep {self.name} names a value twice")
        # Whatever else is wrong with it would be wrong with each of its levers.
        self.lever(self.values[0] if self.values else self.low)

    @property
    def search(self) -> bool:
        """Whether its values are chosen as it goes."""
        return not self.values

    @property
    def whole(self) -> bool:
        """Whether a search is over whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def lever(self, value: object) -> Lever:
        """Its lever at one value."""
        text = value if isinstance(value, str) else canonical(value)
        return Lever(
            name=f"{self.name}.{text}",
            kind="config",
            change={self.field: value},
            claim=self.claim,
            falsify=self.falsify,
            predicted_gain=self.predicted_gain,
            ceiling=self.ceiling,
            hot=self.hot,
            family=self.name,
            slow=self.slow,
            needs=self.needs,
            share=self.share,
            sweep=self.name,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: what is not as it is by default."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in told.items()}
        return {f.name: plain[f.name] for f in fields(self) if told[f.name] != f.default}


# Whole numbers are exact up to here, and no field of an engine goes further.
FARTHEST = 2**53


def is_sweep(body: Mapping[str, Any]) -> bool:
    """Whether a declared line is a sweep and not a single lever."""
    return "field" in body


def _check_ends(sweep: Sweep) -> None:
    low, high = (_number(end) for end in (sweep.low, sweep.high))
    if not low < high:
        raise LeverError(
            f"sweep {sweep.name} wants two numbers, the lower one first, none beyond 2^53"
        )
    if sweep.log and low <= 0:
        raise LeverError(f"sweep {sweep.name}: equal ratios want a lower end above 0")
    if sweep.trials < 2:
        raise LeverError(f"sweep {sweep.name} wants two trials or more")


def _number(value: object) -> float:
    """NaN, which no comparison holds for, for what is no number or too large a one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if -FARTHEST <= value <= FARTHEST else math.nan
