"""The script of a step's phases is what a step launches, checked where kernels are interpreted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import gates
import pytest
import torch

gates.interpreter()

from triton.runtime.interpreter import GridExecutor  # noqa: E402

from engine.config import CHOICES, EngineConfig  # noqa: E402
from engine.device import synthetic  # noqa: E402
from engine.device.backend import TritonBackend  # noqa: E402
from engine.device.phases import STEP  # noqa: E402
from engine.engine import Engine  # noqa: E402
from engine.geometry import Geometry  # noqa: E402
from engine.profile import weight  # noqa: E402
from engine.profile.phase import tree  # noqa: E402
from engine.profile.script import OTHER, Launch  # noqa: E402
from engine.profile.span import Steps  # noqa: E402


def test_a_synthetic_model_loads_for_the_triton_backend() -> None:
    config = EngineConfig(backend="triton", dtype="bfloat16", context=64, draft_width=0)
    engine = Engine.load(Path("synthetic:tiny-v4"), config)
    assert isinstance(engine.backend, TritonBackend)
    assert engine.config.backend == "triton"
    assert engine.weights.size()["weights_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("shared", CHOICES["shared_expert"])
def test_every_launch_of_a_step_has_its_phase_and_every_weight_a_launch(
    monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    geometry = Geometry.parse(checkpoints.SMALL)
    asked = {"backend": "triton", "context": 64, "draft_width": 0, "prefill_chunk": 16}
    asked["shared_expert"] = shared
    config = EngineConfig.parse(asked).effective(geometry, 1)
    backend = TritonBackend(geometry, synthetic.generate(geometry, device="cpu"), config)
    launched: list[str] = []

    def noted(self: Any, *_: Any, **__: Any) -> None:
        """No launch of a step looks at what another has left: a graph holds them all."""
        launched.append(self.fn.__name__)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    _, seat = backend.seat(backend.new_state())
    with torch.inference_mode():
        seat.place(torch.tensor([3]))
        seat.steps(1, sampled=False, drafting=False)()
    launches = [Launch(name, 10.0 * i, 10.0 * i + 5) for i, name in enumerate(launched)]
    spans = STEP.spans(launches, 1)
    assert OTHER not in {span.path[0] for span in spans}
    bytes_of = weight.weights(geometry, weight.triton(shared), weight.stored)
    root = tree(Steps(spans, (10.0 * len(launches),)), bytes_of)
    layers = geometry.num_hidden_layers
    found = {phase.name: phase.launches for phase in root.walk()}
    assert found["experts/gate_up"] == found["attention/wo_a"] == layers
    assert found["attention/index"] == len(geometry.layers_with_ratio(indexed=True))
    assert found["head"] == 1
