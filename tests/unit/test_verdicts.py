"""What is said of a prediction that was wrong beyond doubt."""

from __future__ import annotations

import pytest

from flywheel.loop.verdicts import prediction_miss
from flywheel.statistics.band import Band, log_gain
from flywheel.statistics.decide import Verdict


def decided(low: float, high: float, ending: str = "rejected") -> Verdict:
    """A verdict whose band ends at these gains, as fractions of the time saved."""
    ends = (log_gain(low), log_gain(high))
    band = Band(sum(ends) / 2, *ends, n=4, nu=3.0)
    return Verdict(ending, ending, "said", 4, band, 1.0, 0.01)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.02, 0.0004, "worth less than 0.04 %"),
        (-0.02, 5e-7, "worth less than 0.00 %"),
        (-0.02, -0.0, "worth less than 0.00 %"),
        (-0.09, -0.061, "costs more than 6.1 %"),
        (-1.4, -1.324, "costs more than 132 %"),
        (0.13, 0.2, "worth over 13 %"),
    ],
)
def test_a_prediction_that_was_far_off_is_said_without_powers_of_ten(
    low: float, high: float, said: str
) -> None:
    assert prediction_miss(0.01, decided(low, high)) == f"predicted 1 %, {said}: over 2x off"


def test_a_prediction_within_twice_or_without_a_verdict_is_no_miss() -> None:
    assert prediction_miss(0.01, decided(-0.01, 0.006)) is None
    assert prediction_miss(0.01, decided(0.019, 0.05, "promoted")) is None
    assert prediction_miss(0.01, decided(-0.5, -0.4, "inconclusive")) is None
    assert prediction_miss(0.0, decided(-0.5, -0.4)) is None
