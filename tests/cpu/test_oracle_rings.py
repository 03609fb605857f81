"""What the engine keeps and asks is what the oracles of rings and rows leave and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from checkpoints import Configure
from torch import Tensor
from torch.nn.functional import linear

from engine.attention import Attention, Projected
from engine.draft import DraftHead
from engine.engine import Engine
from engine.state import TILE, State
from engine.step import Step
from engine.weights import AttentionWeights
from kernels.oracle import context, heads, intake, passage
from kernels.oracle.norm import rms_norm
from kernels.pool import Pool

TOKENS = [(i * i * 7 + i * 13 + 5) % 249 for i in range(160)]
SIZES = [70, 1, 3, 8, 5, 8, 8, 2, 8, 40, 7]  # of steps; those over TILE are a prompt's


class Entered(NamedTuple):
    """What one step brought to one layer."""

    layer: int
    start: int
    x: Tensor
    projected: Projected


@pytest.mark.parametrize("numerics", ["exact", "cache"])
@torch.inference_mode()
def test_rings_rows_and_queries_are_the_engines(
    small: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch, numerics: str
) -> None:
    engine = Engine.load(small, configure(numerics=numerics, context=256))
    steps, state = recorded(engine, monkeypatch)
    # A last bit may tip a rounding over, to the next number of the format.
    rtol, atol = (1e-4, 1e-5) if numerics == "exact" else (0.13, 0.02)
    for layer in range(engine.geometry.num_hidden_layers):
        window, pools = empty(engine, state, layer)
        for step in steps:
            if step.layer == layer:
                latent, queries = take(engine, step, window, pools)
                torch.testing.assert_close(latent, step.projected.latent, rtol=rtol, atol=atol)
                torch.testing.assert_close(queries, step.projected.queries, rtol=rtol, atol=atol)
        torch.testing.assert_close(window, state.window[layer], rtol=rtol, atol=atol)
        for pool, (inputs, rows) in zip(pools, held(state, layer), strict=True):
            torch.testing.assert_close(pool.rows, rows, rtol=rtol, atol=atol)
            at = len(TOKENS) - 1 - (len(TOKENS) - 1 - torch.arange(len(inputs))) % len(inputs)
            values, gates = inputs.chunk(2, -1)
            inputs = torch.cat((values, gates + pool.ape[at % pool.ratio]), -1)
            torch.testing.assert_close(pool.inputs, inputs, rtol=rtol, atol=atol)


@pytest.mark.parametrize("numerics", ["exact", "cache"])
@torch.inference_mode()
def test_context_rows_are_the_engines(small: Path, configure: Configure, numerics: str) -> None:
    engine = Engine.load(small, configure(numerics=numerics, context=256))
    g, w, numeric = engine.geometry, engine.backbone.weights.draft, engine.backbone.numerics
    state, drafter = engine.new_state(), DraftHead(engine.backbone)
    rings = torch.zeros_like(state.draft)
    ahead = engine.backbone.tables.plain.ahead[:, 0]
    norms = torch.stack([stage.attention.kv_norm for stage in w.stages])
    for count in (3, 40, 1, 8):
        taps = torch.randn(count, w.main_proj.shape[1])
        start = torch.tensor([state.draft_length])
        drafter.extend(state, taps)
        main = rms_norm(numeric.product(taps, w.main_proj), w.main_norm, g.rms_norm_eps)
        y = linear(main, torch.cat([stage.attention.wkv for stage in w.stages]))
        y = torch.cat((y, torch.randn(2, y.shape[1])))  # rows that were not accepted
        context.extend(
            y, norms, ahead.real.contiguous(), ahead.imag.contiguous(), start,
            torch.tensor([count]), rings, eps=g.rms_norm_eps, rounds=numeric.rounds_cache,
        )  # fmt: skip
        rtol, atol = (1e-4, 1e-5) if numerics == "exact" else (0.13, 0.02)
        torch.testing.assert_close(rings, state.draft, rtol=rtol, atol=atol)


def recorded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Entered], State]:
    """Every layer's inputs of steps over `TOKENS`, and the state that the engine left."""
    steps: list[Entered] = []
    gather = Attention.gather

    def record(
        self: Attention, x: Tensor, projected: Projected, w: AttentionWeights, layer: int,
        step: Step,
    ) -> Any:  # fmt: skip
        kept = Projected(*(part[: step.count].clone() for part in projected))
        steps.append(Entered(layer, step.start, x[: step.count].clone(), kept))
        return gather(self, x, projected, w, layer, step)

    monkeypatch.setattr(Attention, "gather", record)
    state, first = engine.new_state(), 0
    for size in SIZES:
        engine.backbone.forward(torch.tensor(TOKENS[first : first + size]), state)
        state.commit(size)
        first += size
    assert first == len(TOKENS)
    return steps, state


def held(state: State, layer: int) -> list[tuple[Tensor, Tensor]]:
    """The engine's inputs and rows of a layer's pools, index keys last."""
    found = []
    for name in sorted(state.pools, reverse=True):  # rows before keys
        pool = state.pools[name]
        if layer in pool.layers:
            slot = pool.layers.index(layer)
            found.append((pool.inputs[slot], pool.rows[slot]))
    return found


def empty(engine: Engine, state: State, layer: int) -> tuple[Tensor, list[Pool]]:
    """Buffers like the engine's of a layer, with nothing in them."""
    w = engine.backbone.weights.layers[layer].attention
    compressors = [w.compressor, w.indexer.compressor if w.indexer else None]
    pools = [
        Pool(c.ape, c.norm, torch.zeros_like(inputs), torch.zeros_like(rows))
        for c, (inputs, rows) in zip(compressors, held(state, layer), strict=False)
        if c is not None
    ]
    return torch.zeros_like(state.window[layer]), pools


def take(engine: Engine, step: Entered, window: Tensor, pools: list[Pool]) -> tuple[Tensor, Tensor]:
    """Latents and scaled queries of a step, which the oracles take in as the launches would."""
    g, w = engine.geometry, engine.backbone.weights.layers[step.layer].attention
    tables = engine.backbone.tables
    ahead = (tables.compressed if pools else tables.plain).ahead[:, 0]
    cos, sin = ahead.real.contiguous(), ahead.imag.contiguous()
    y8 = linear(step.x, torch.cat((w.wq_a, w.wkv)))
    compressors = [c for c in (w.compressor, w.indexer and w.indexer.compressor) if c is not None]
    weights = [part for c in compressors for part in (c.wkv, c.wgate)]
    y16 = linear(step.x, torch.cat(weights)) if weights else None
    position = torch.tensor([step.start])
    rounds = engine.backbone.numerics.rounds_cache
    given = (y8, y16, w.q_norm, w.kv_norm, cos, sin, position, window, pools)
    common = {"eps": g.rms_norm_eps, "rounds": rounds}
    short = len(step.x) <= TILE
    if short:
        latent = intake.store(*given, **common)
    else:
        latent, _ = passage.store(*given, reach=g.sliding_window - 1, **common)
    queries = heads.prepare(
        linear(latent, w.wq_b), cos, sin, position, pools if short else (),
        heads=g.num_attention_heads, head_dim=g.head_dim, **common,
    )  # fmt: skip
    return latent, queries.main * g.head_dim**-0.5
