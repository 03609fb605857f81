"""A lever changes one thing, and its identity is that change."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from records import lever

import experiments
from flywheel.errors import LeverError
from flywheel.lever import LOSSY_METRIC, Lever, Variant, canonical, null_lever


def test_identity_is_the_change_and_not_the_name() -> None:
    a = lever("a", {"threads": 2})
    assert a.identity == lever("b", {"threads": 2}, claim="other", predicted_gain=0.1).identity
    assert a.identity != lever("a", {"threads": 3}).identity
    diff = {"patch": "a" * 64}
    assert lever("a", diff, kind="patch", hot=False).identity != lever("a", diff).identity
    assert a.identity != null_lever().identity


def test_a_lever_is_plain_data_and_cannot_be_bent_afterwards() -> None:
    change = {"threads": 2}
    made = lever("a", change)
    change["threads"] = 3
    assert made.change == {"threads": 2}
    assert asdict(made)["change"] == {"threads": 2}
    with pytest.raises(AttributeError):
        made.name = "b"  # type: ignore[misc]


def test_labels() -> None:
    assert lever("a", {"moe": "gather"}).label() == "moe -> gather"
    assert lever("a", {"threads": 2}).label() == "threads -> 2"
    assert null_lever().label().startswith("null")
    assert lever().field_name == "threads"
    assert null_lever().field_name is None


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": " a"},
        {"kind": "sweep"},
        {"metric": "watts"},
        {"change": {}},
        {"change": {"a": 1, "b": 2}},
        {"claim": " "},
        {"falsify": ""},
        {"predicted_gain": -0.1},
        {"predicted_gain": math.nan},
        {"ceiling": 1.0},
        {"null": True},
        {"change": {"a": math.inf}},
        {"change": {"a": {1}}},
    ],
)
def test_a_malformed_lever_is_refused_in_one_sentence(bad: dict[str, object]) -> None:
    with pytest.raises(LeverError) as caught:
        lever(**bad)
    assert "\n" not in str(caught.value)


def test_a_variant_leaves_its_incumbent_alone() -> None:
    incumbent = {"threads": 1, "moe": "loop"}
    made = Variant.of(lever(), incumbent)
    assert made.candidate == {"threads": 2, "moe": "loop"}
    assert incumbent == {"threads": 1, "moe": "loop"} == made.incumbent


def test_canonical_json_is_stable() -> None:
    assert canonical({"b": 1, "a": [1.5, None, "é"]}) == '{"a":[1.5,null,"\\u00e9"],"b":1}'


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty experiments folder in place of the real one."""
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path)])
    for name in [m for m in sys.modules if m.startswith("experiments.")]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [m for m in sys.modules if m.startswith("experiments.")]:
        kept: ModuleType = sys.modules.pop(name)
        assert kept


def _declare(folder: Path, module: str, name: str, value: int) -> None:
    (folder / f"{module}.py").write_text(
        "from flywheel.lever import Lever\n"
        f"LEVERS = (Lever('{name}', 'config', {{'threads': {value}}}, 'c', 'f', 0.1),)\n"
    )


def test_discover_collects_in_a_fixed_order(modules: Path) -> None:
    _declare(modules, "fw_b", "two", 2)
    _declare(modules, "fw_a", "three", 3)
    assert [x.name for x in experiments.discover()] == ["three", "two"]


def test_discover_refuses_a_name_used_twice(modules: Path) -> None:
    _declare(modules, "fw_c", "same", 2)
    _declare(modules, "fw_d", "same", 3)
    with pytest.raises(LeverError, match="declared in both fw_c and fw_d"):
        experiments.discover()


def test_discover_refuses_a_module_without_levers(modules: Path) -> None:
    (modules / "fw_e.py").write_text("LEVERS = [1]\n")
    with pytest.raises(LeverError, match="fw_e"):
        experiments.discover()


def test_the_declared_levers_are_sound() -> None:
    found = experiments.discover()
    assert len({x.identity for x in found}) == len(found)


def test_what_changes_the_text_is_judged_on_its_price_and_says_so() -> None:
    fields: dict[str, Any] = {"name": "t", "kind": "config", "claim": "c", "falsify": "f",
                              "predicted_gain": 0.1}  # fmt: skip
    found = Lever(**fields, change={"acceptance": "typical"}, metric=LOSSY_METRIC)
    assert found.lossy
    assert found.label() == "acceptance -> typical (LOSSY)"
    assert not Lever(**fields, change={"acceptance": "exact"}).lossy
    for change, metric in (
        ({"acceptance": "typical"}, "ms_per_token"), ({"threads": 2}, LOSSY_METRIC)
    ):  # fmt: skip
        with pytest.raises(LeverError, match="what changes the text is judged on"):
            Lever(**fields, change=change, metric=metric)
    with pytest.raises(LeverError, match="one load holds both arms"):
        Lever(**fields, change={"acceptance": "typical"}, metric=LOSSY_METRIC, hot=False)
