"""Before anything is timed, arms have run in the company in which they will be timed."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from engine.measure.journal import Journal
from engine.measure.plan import Plan
from engine.measure.program import Program
from engine.measure.sentinel import Sentinel
from engine.state import State
from engine.suite import ASSETS, Prompt
from engine.torch_backend import TorchBackend
from flywheel.run.manifest import engine_config


def test_as_many_sequences_live_at_once_in_the_warm_up_as_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = engine_config(
        run_id="w", nonce="0" * 32, checkpoint=str(ASSETS / "tiny-v4"), head=None,
        suite=str(ASSETS / "suites" / "tiny-v1.json"), prompts=("short_factual-0",),
        arms={"A": {}, "B": {}, "C": {}}, order=("A", "B", "C", "C", "B", "A"),
        plain_arms=("A",), max_new_tokens=4, seed=0,
    )  # fmt: skip
    stages: list[int] = [0]  # most sequences at once: in the warm-up, then in all that follows
    living: weakref.WeakSet[State] = weakref.WeakSet()
    new_state = TorchBackend.new_state

    def counted(self: TorchBackend) -> State:
        state = new_state(self)
        living.add(state)
        stages[-1] = max(stages[-1], len(living))
        return state

    class Watched(Program):
        def _controls(self, first: tuple[Prompt, list[int]]) -> None:
            stages.append(0)
            super()._controls(first)

    monkeypatch.setattr(TorchBackend, "new_state", counted)
    plan = Plan.parse(config)
    with Journal(tmp_path / "run.log", plan.nonce, plan.heartbeat_s) as journal:
        Watched(plan, journal, Sentinel()).run()
    assert stages == [3, 3]
