"""Models of random weights: made at load, always the same, measured by plain decode alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import synthetic
from engine.checkpoint import checkpoint_sha256
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import CheckpointError, ConfigError
from engine.geometry import Geometry, synthetic_name
from engine.measure.command import main as measure
from engine.measure.plan import Plan
from engine.suite import ASSETS, Suite
from flywheel import synthetic as loop
from flywheel.run.manifest import Manifest, engine_config
from flywheel.run.measurement import measurements
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord

MODEL = Path("synthetic:tiny-v4")
SUITE = ASSETS / "suites" / "tiny-v1.json"
PLAIN = EngineConfig(draft_width=0, threads=1)


def test_a_name_is_told_from_a_folder() -> None:
    assert synthetic_name(MODEL) == "tiny-v4"
    assert synthetic_name(ASSETS / "tiny-v4") is None
    assert Geometry.load(MODEL) == Geometry.load(ASSETS / "tiny-v4")
    with pytest.raises(CheckpointError, match="no geometry named 'k1'"):
        Geometry.load(Path("synthetic:k1"))


def test_every_load_of_a_synthetic_model_generates_the_same_finite_text() -> None:
    prompt = synthetic.prompt_ids(Suite.load(SUITE).prompts[0], Geometry.load(MODEL))
    texts = []
    for _ in range(2):
        engine = Engine.load(MODEL, PLAIN)
        commits = engine.generate(prompt, max_new_tokens=8)
        texts.append([token for commit in commits for token in commit.tokens])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 8


def test_the_hash_of_a_synthetic_model_is_that_of_its_geometry() -> None:
    assert checkpoint_sha256(MODEL) == checkpoint_sha256(MODEL)
    assert checkpoint_sha256(MODEL) != checkpoint_sha256(Path("synthetic:k160"))


def test_prompts_are_random_tokens_of_about_their_texts_length() -> None:
    geometry = Geometry.load(MODEL)
    first, second = Suite.load(SUITE).prompts[:2]
    ids = synthetic.prompt_ids(first, geometry)
    assert ids == synthetic.prompt_ids(first, geometry)
    assert ids[:16] != synthetic.prompt_ids(second, geometry)[:16]
    characters = sum(len(str(message["content"])) for message in first.messages)
    assert abs(len(ids) - characters / 4) <= 16
    assert all(0 <= token < geometry.vocab_size for token in ids)


def test_tables_of_experts_hold_different_ones_for_each_token() -> None:
    geometry = Geometry.load(MODEL)
    layer = synthetic.weights(geometry, torch.float32).layers[0]
    assert layer.moe.experts_by_token is not None
    rows = layer.moe.experts_by_token.sort(-1).values
    assert bool((rows[:, 1:] > rows[:, :-1]).all())


def test_a_model_beyond_the_boxs_memory_is_refused_before_anything_is_made() -> None:
    with pytest.raises(ConfigError, match="backend 'triton' keeps them packed"):
        Engine.load(Path("synthetic:k160"), PLAIN)


def test_a_synthetic_model_takes_no_draft_head(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no use for a draft head"):
        Engine.load(MODEL, PLAIN, head=tmp_path)


def test_the_loop_learns_the_size_of_a_synthetic_model_from_the_engine() -> None:
    assert loop.weights_bytes("tiny-v4") == 15_565_840
    assert loop.weights_bytes("k1") == 0


def plan_of(width: int, **changes: Any) -> dict[str, Any]:
    return engine_config(
        run_id="s", nonce="0" * 32, checkpoint=str(MODEL), head=None, suite=str(SUITE),
        prompts=("short_factual-0",),
        arms={"A": {"draft_width": width}, "B": {"draft_width": width, "hyper": "host"}},
        order=("A", "B", "B", "A"), plain_arms=("A",), max_new_tokens=6, seed=0,
    ) | changes  # fmt: skip


def test_drafts_of_random_weights_are_not_measured() -> None:
    with pytest.raises(ConfigError, match="Arm A drafts 5 tokens, but"):
        Plan.parse(plan_of(5))


@pytest.mark.slow
def test_a_run_of_random_weights_is_admitted_without_a_tau(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, log = tmp_path / "config.json", tmp_path / "run.log"
    config.write_text(json.dumps(plan_of(0)))
    monkeypatch.setattr("sys.argv", ["measure", "--config", str(config), "--log", str(log)])
    assert measure() == 0
    manifest = Manifest(
        run_id="s", nonce="0" * 32, config=plan_of(0), argv=("engine",), cwd="/",
        created_utc="2026-01-01T00:00:00Z", timeout_s=60.0,
    )  # fmt: skip
    found = parse(log.read_text(), manifest)
    assert isinstance(found, RunRecord), found
    assert found.header.synthetic
    assert all(point.counted and point.width == 0 for point in found.points)
    assert "tau" not in {one.metric for one in measurements(found)}
