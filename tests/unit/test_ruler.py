"""Numbers compare only under equal rulers, and a refusal names what differs."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from records import record

from flywheel.errors import RulerMismatch
from flywheel.ruler import Ruler, compare, differences, of_header


def ruler() -> Ruler:
    return of_header(record().header, "quick")


def test_equal_rulers_share_an_identity_and_compare() -> None:
    compare(ruler(), ruler())
    assert ruler().identity == of_header(record("r2", seed=7).header, "quick").identity
    assert Ruler.from_dict(ruler().as_dict()) == ruler()


@pytest.mark.parametrize("name", [f.name for f in fields(Ruler)])
def test_every_field_matters_and_is_named(name: str) -> None:
    other: object = ("x",) if name == "prompts" else "other"
    changed = replace(ruler(), **{name: other})
    assert changed.identity != ruler().identity
    with pytest.raises(RulerMismatch, match=f"{name}: ") as caught:
        compare(ruler(), changed)
    assert len(differences(ruler(), changed)) == 1
    assert "\n" not in str(caught.value)


def test_a_field_from_a_later_version_is_refused() -> None:
    with pytest.raises(RulerMismatch, match="colour"):
        Ruler.from_dict({**ruler().as_dict(), "colour": "red"})
