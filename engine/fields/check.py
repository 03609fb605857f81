"""Whether a configuration could run here: everything that can be known without any weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.heads.recipe import Recipe


def check_recipe(raw: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise EngineError, in words for people, where a training of heads would for this recipe."""
    Recipe.parse(raw).require_fit(Geometry.load(checkpoint).dspark_block_size)


def check(raw: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise EngineError, in words for people, where a load would for these fields."""
    geometry = Geometry.load(checkpoint)
    config = EngineConfig.parse(raw).effective(geometry, cores=1)
    if config.backend == "triton":
        from engine.device import requirement

        device = requirement.device()
        # Only now: they load Triton, which the line above may have found missing.
        from engine.device.operations import Operations
        from engine.device.tiles import Tiles

        Operations.kernels(device, Tiles(config, geometry))
