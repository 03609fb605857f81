"""The trainer's forward against the golden vectors and the oracles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.geometry import Geometry
from engine.train.export import read
from engine.train.forward import Forward, greedy
from engine.train.sinkhorn import balanced
from engine.weights import Weights, assemble
from kernels.oracle import hyper

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tiny-random"
needs_golden = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"GOLDEN VECTORS MISSING: no folder {GOLDEN}"
)
PREFILLS = (3, 64, 150, 256)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def golden() -> tuple[Geometry, Weights, dict[str, torch.Tensor]]:
    geometry = Geometry.load(GOLDEN)
    weights = assemble(read(GOLDEN / "model.safetensors"), geometry)
    return geometry, weights, load_file(GOLDEN / "expected.safetensors")


@needs_golden
def test_exact_logits_and_drafts_match_golden(golden) -> None:  # type: ignore[no-untyped-def]
    geometry, weights, expected = golden
    forward = Forward(geometry, torch.device("cpu"), rounding=False)
    tokens = expected["tokens"].long().view(1, -1)
    with torch.no_grad():
        trace = forward.run(weights, tokens)
        logits = forward.logits(weights, trace.hidden)[0]
        anchors = torch.arange(3, 299)[None]
        blocks = forward.draft(weights, trace.taps, tokens, anchors)
        ids, drafts, trust = greedy(weights, blocks, tokens.gather(1, anchors + 1))
    for p in PREFILLS:
        want = expected[f"exact.prefill_{p}.logits"]
        error = (logits[p - 1 : 299] - want).norm(dim=-1) / want.norm(dim=-1)
        assert error.max() < 1e-4
        assert torch.equal(ids[0, p - 3 :], expected[f"exact.prefill_{p}.draft_ids"].long())
        want = expected[f"exact.prefill_{p}.draft_logits_last8"]
        assert ((drafts[0, -8:] - want).norm(dim=-1) / want.norm(dim=-1)).max() < 1e-4
        want = expected[f"exact.prefill_{p}.draft_confidence"]
        torch.testing.assert_close(trust[0, p - 3 :], want, rtol=1e-3, atol=1e-3)


@needs_golden
def test_rounded_logits_match_golden(golden) -> None:  # type: ignore[no-untyped-def]
    geometry, weights, expected = golden
    forward = Forward(geometry, torch.device("cpu"), rounding=True)
    tokens = expected["tokens"].long().view(1, -1)
    with torch.no_grad():
        logits = forward.logits(weights, forward.run(weights, tokens).hidden)[0]
    want = expected["rounded.prefill_3.logits"]
    got = logits[2:299]
    error = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert error.median() < 2e-2
    assert (got.argmax(-1) == want.argmax(-1)).float().mean() >= 0.93


def test_sinkhorn_operator_equals_the_oracle_and_its_gradient() -> None:
    logits = torch.randn(5, 7, 4, 4, dtype=torch.float32) * 2
    up = torch.randn(5, 7, 4, 4)
    one, two = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    want = hyper.sinkhorn(one, 20, 1e-6)
    got = balanced(two, 20, 1e-6)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    (want * up).sum().backward()
    (got * up).sum().backward()
    torch.testing.assert_close(two.grad, one.grad, rtol=1e-3, atol=1e-5)
