"""A compressor of one layer, as the launches before and after its windows end share it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels import packed
from kernels.packed import Rows


class Pool(NamedTuple):
    """What a compressor has taken in of a sequence, and the rows that it has made of it.

    Windows of `ratio` positions become one row of d channels each. Width is d, or 2 d where windows
    overlap: window w then pools the first half of the channels of window w - 1 too.
    """

    ape: Tensor  # float32 [ratio, width], added to the gates of a window's positions
    norm: Tensor  # [d], the weight of a row's normalisation
    inputs: Tensor  # float32 [slots, 2 width], values beside gates; position p at slot p % slots
    rows: Rows  # [capacity, d], BF16, float32 or packed; window w at row w

    @property
    def ratio(self) -> int:
        """Positions of a window."""
        return self.ape.shape[0]

    @property
    def width(self) -> int:
        """Channels of a value, and of its gate."""
        return self.ape.shape[1]

    @property
    def d(self) -> int:
        """Channels of a row."""
        return packed.channels(self.rows)

    @property
    def overlapping(self) -> bool:
        """Whether a window pools half of its predecessor too."""
        return self.ape.shape[1] == 2 * self.d

    @property
    def span(self) -> int:
        """Positions that one row is pooled from."""
        return self.ratio * (2 if self.overlapping else 1)
