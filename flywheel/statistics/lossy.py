"""What a lossy lever costs or saves. Pure.

It changes what is said, so there is nothing to promote: a fixed number of loads tells its price,
and that closes it. No test of the error budget is spent, for no promotion can come of it, and the
band is Student's, for nobody looks before the last load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from flywheel.statistics.band import Band, Pool, gain_fraction, spread
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.decide import Rule, Verdict, span

LOADS = 4
# What texts of other lengths scatter by is nothing that other levers know of.
_NOTHING = Pool(0.0, 0.0)
CODE = "lossy"


def verdict(estimates: Sequence[BlockEstimate], rule: Rule) -> Verdict:
    """The price once all its loads are there, as a rejection that states it; never a promotion."""
    gains = [e.gain for e in estimates]
    n = len(gains)
    if n < LOADS:
        return Verdict(None, "more", f"load {n} of {LOADS} of its price", n, None, 0.0, 0.0)
    mean, used = math.fsum(gains) / n, spread(gains, _NOTHING)
    half = float(stdtrit(n - 1, 1 - rule.alpha_band / 2)) * math.sqrt(used.variance / n)
    band = Band(mean, mean - half, mean + half, n, n - 1.0)
    said = (
        "LOSSY, never to be promoted: it says other tokens, and for that saves "
        f"{gain_fraction(mean) * 100:.1f} % [{span(band)}] of the time per token"
    )
    return Verdict("rejected", CODE, said, n, band, 0.0, 0.0, sd=math.sqrt(used.variance))
