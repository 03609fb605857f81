"""Which failures of requests, in which order, are a fault of the engine itself."""

from __future__ import annotations

from functools import reduce

import pytest

from engine.errors import EngineError, NumericsError, PromptError
from engine.server.doubt import TOLERATED, Doubt

NAN = NumericsError("The logits are not finite.")
MOST = TOLERATED[NumericsError]


def doubt(*ends: BaseException | None) -> Doubt:
    return reduce(Doubt.after, ends, Doubt())


def test_as_many_as_are_tolerated_are_their_requests_own() -> None:
    assert doubt(*[NAN] * MOST).fault is None


def test_one_more_is_the_engines_fault_and_says_how_many() -> None:
    fault = doubt(*[NAN] * (MOST + 1)).fault
    assert isinstance(fault, NumericsError)
    assert str(fault) == f"{MOST + 1} requests in a row failed. The logits are not finite."


@pytest.mark.parametrize("between", [None, PromptError("no"), ZeroDivisionError(), EngineError()])
def test_any_other_end_between_begins_the_row_anew(between: BaseException | None) -> None:
    assert doubt(*[NAN] * MOST, between, *[NAN] * MOST).fault is None
    assert doubt(*[NAN] * MOST, between).row == 0


def test_errors_that_are_always_a_requests_own_are_never_a_fault() -> None:
    assert doubt(*[PromptError("no")] * 50).fault is None


def test_nothing_of_the_engine_is_kept_alive() -> None:
    try:
        raise NAN
    except NumericsError as error:
        kept = doubt(error).error
    assert kept is not None
    assert kept.__traceback__ is None
