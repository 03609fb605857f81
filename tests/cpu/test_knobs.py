"""Every knob is one that the engine has, at a phase that its profile names."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.geometry import Geometry
from engine.profile.decode import decode, random_prompt
from engine.suite import ASSETS
from experiments.knobs import KNOBS
from flywheel.knob import Knob

BETWEEN = "step, between phases"
CASES = {f"{k.phase} {k.field} {k.part}".strip().replace(" ", "-"): k for k in KNOBS}
TRITON = {name: knob for name, knob in CASES.items() if "triton" in knob.needs}


@pytest.mark.parametrize("knob", CASES.values(), ids=CASES)
def test_the_engine_takes_every_value(knob: Knob) -> None:
    for value in knob.values:
        asked = EngineConfig.parse({knob.field: knob.set_to(value, "")})
        assert asked != EngineConfig(), f"{value} is the default"


@pytest.mark.parametrize("knob", TRITON.values(), ids=TRITON)
def test_a_kernel_has_the_part_that_is_set(knob: Knob) -> None:
    pytest.importorskip("triton", reason="TRITON MISSING: NO TILE IS TESTED HERE")
    import torch

    from engine.device.operations import Operations
    from engine.device.tiles import Tiles

    for value in knob.values:
        asked = {"backend": "triton", "dtype": "bfloat16", knob.field: knob.set_to(value, "")}
        tiles = Tiles(EngineConfig.parse(asked), Geometry.named("k160"))
        Operations.kernels(torch.device("cpu"), tiles)


def test_knobs_of_the_triton_backend_sit_at_its_phases() -> None:
    pytest.importorskip("triton", reason="TRITON MISSING: NO PHASE IS TESTED HERE")
    from engine.device.phases import STEP

    named = {"/".join(path) for paths in STEP.phases.values() for path in paths}
    for knob in TRITON.values():
        assert knob.phase == BETWEEN or any(knob.at(phase) for phase in named), knob.phase


def test_knobs_of_the_torch_backend_sit_at_its_phases() -> None:
    engine = Engine.load(ASSETS / "tiny-v4", EngineConfig())
    profile = decode(engine, random_prompt(engine, 16, 1, 2), rows=1, steps=2)
    named = {residual.name for residual in profile.ranking}
    for knob in KNOBS:
        if "torch" in knob.needs:
            assert any(knob.at(phase) for phase in named), knob.phase
