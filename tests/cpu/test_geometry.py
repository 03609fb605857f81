"""Geometries that ship with the engine: config files without weights, known by name."""

from __future__ import annotations

import pytest

from engine.errors import CheckpointError
from engine.geometry import Geometry, named_geometries


def test_the_full_size_geometry_has_its_published_shape() -> None:
    geometry = Geometry.named("k160")
    assert (geometry.num_hidden_layers, geometry.draft_stages) == (43, 3)
    assert (geometry.n_routed_experts, geometry.num_experts_per_tok) == (160, 6)
    assert len(geometry.layers_with_ratio(indexed=True)) == 21
    assert len(geometry.layers_with_ratio(indexed=False)) == 20
    assert geometry.layer_ratios[:5] == (0, 0, 4, 128, 4)


@pytest.mark.parametrize("name", named_geometries())
def test_every_named_geometry_is_one_the_engine_implements(name: str) -> None:
    assert Geometry.named(name).hidden_size % 128 == 0


@pytest.mark.parametrize("name", ["k161", "", "..", "suites", "/etc"])
def test_another_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"known: .*k160"):
        Geometry.named(name)
