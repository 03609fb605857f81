"""The crowd, for a few seconds; `python -m engine.server.trial crowd` lets it loose for longer."""

from __future__ import annotations

import asyncio

import pytest

from engine.server.trial.crowd import crowd


@pytest.mark.slow
def test_b11_b21_a_crowd_leaves_nothing_behind_and_changes_no_answer() -> None:
    found = asyncio.run(crowd(seconds=15, clients=32, seed=11))
    assert found.wrong == []
    acts = {"whole", "streamed", "slow", "leave", "hang_up", "oversized", "nonsense"}
    assert acts <= found.done.keys()
