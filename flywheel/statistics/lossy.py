"""What a lossy lever costs or saves. Pure.

It changes what is said, so there is nothing to promote: a few loads tell its price, and that closes
it. No test of the error budget is spent, for no promotion can come of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flywheel.statistics.band import Pool, effect_band, gain_fraction, spread
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.decide import Rule, Verdict, span

LOADS = 3  # enough for a band; a price needs no more
# What texts of other lengths scatter by is nothing that other levers know of.
_NOTHING = Pool(0.0, 0.0)
CODE = "lossy"


def verdict(estimates: Sequence[BlockEstimate], rule: Rule) -> Verdict:
    """The price so far, or the rejection that states it; never a promotion."""
    gains = [e.gain for e in estimates]
    band = effect_band(gains, _NOTHING, alpha=rule.alpha_band)
    n = len(gains)
    if n < LOADS:
        return Verdict(None, "more", f"load {n} of {LOADS} of its price", n, band, 0.0, 0.0)
    used = spread(gains, _NOTHING)
    saved = gain_fraction(band.mean) * 100
    said = (
        f"LOSSY, never to be promoted: it says other tokens; the price of that is "
        f"{-saved:+.1f} % time per token, saves [{span(band)}] %"
    )
    sd = math.sqrt(used.variance) if used.nu > 0 else math.nan
    return Verdict("rejected", CODE, said, n, band, 0.0, 0.0, sd=sd)
