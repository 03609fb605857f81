"""The plain PyTorch twins of the kernels against their formulas, written out as loops."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.compression import Compression
from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.residual import Residual
from engine.weights import HyperWeights
from kernels.oracle import attention, compressor, hyper, indexer, moe, norm, rotary


@pytest.fixture
def g() -> torch.Generator:
    return torch.Generator().manual_seed(11)


# ------------------------------------------------------------------ hyper-connections


@pytest.mark.parametrize(("spread", "slack"), [(0.1, 1e-5), (1.0, 1e-3), (3.0, 0.1)])
def test_sinkhorn_gives_rows_and_columns_that_sum_to_one(
    g: torch.Generator, spread: float, slack: float
) -> None:
    c = hyper.sinkhorn(torch.randn(50, 4, 4, generator=g) * spread, 20, 1e-6)
    assert (c > 0).all()
    torch.testing.assert_close(c.sum(-2), torch.ones(50, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(c.sum(-1), torch.ones(50, 4), atol=slack, rtol=0)


def test_sinkhorn_starts_with_a_row_softmax_and_ends_with_columns() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    soft = [[math.exp(v) for v in row] for row in logits.tolist()]
    c = [[v / sum(row) + 1e-6 for v in row] for row in soft]
    columns = [c[0][k] + c[1][k] + 1e-6 for k in range(2)]
    want = torch.tensor([[c[j][k] / columns[k] for k in range(2)] for j in range(2)])
    torch.testing.assert_close(hyper.sinkhorn(logits, 1, 1e-6), want)


@pytest.fixture
def residuals(small: Path) -> tuple[Residual, Residual, HyperWeights, Geometry]:
    geometry = Geometry.load(small)
    g = torch.Generator().manual_seed(3)
    m, d = geometry.hc_mult, geometry.hidden_size
    weights = HyperWeights(
        fn=torch.randn((2 + m) * m, m * d, generator=g) * 0.1,
        base=torch.randn((2 + m) * m, generator=g),
        scale=torch.rand(3, generator=g) + 0.5,
    )
    loop, matrix = (
        Residual(geometry, EngineConfig.parse({"hyper": kind})) for kind in ("loop", "matrix")
    )
    return loop, matrix, weights, geometry


def test_both_ways_of_mixing_agree_with_the_oracle(
    residuals: tuple[Residual, Residual, HyperWeights, Geometry], g: torch.Generator
) -> None:
    loop, matrix, w, geometry = residuals
    streams = torch.randn(6, geometry.hc_mult, geometry.hidden_size, generator=g)
    weight = torch.rand(geometry.hidden_size, generator=g) + 0.5
    mix = hyper.mix(streams, w.fn, w.base, w.scale, iterations=20, norm_eps=1e-6, eps=1e-6)
    x = norm.rms_norm(hyper.read(streams, mix.pre), weight, 1e-6)
    output = torch.randn(6, geometry.hidden_size, generator=g)
    for residual in (loop, matrix):
        entry = residual.enter(streams, w, weight)
        torch.testing.assert_close(entry.x, x, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entry.post, mix.post, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entry.comb, mix.comb, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            residual.leave(streams, output, entry),
            hyper.write(streams, output, mix.post, mix.comb),
            atol=1e-5,
            rtol=1e-5,
        )


def test_streams_are_written_through_the_first_index_of_the_mixing_matrix(
    g: torch.Generator,
) -> None:
    streams, output = torch.randn(1, 4, 3, generator=g), torch.randn(1, 3, generator=g)
    post, comb = torch.rand(1, 4, generator=g), torch.rand(1, 4, 4, generator=g)
    got = hyper.write(streams, output, post, comb)[0]
    for k in range(4):
        want = post[0, k] * output[0] + sum(comb[0, j, k] * streams[0, j] for j in range(4))
        torch.testing.assert_close(got[k], want)


def test_streams_start_as_copies_of_the_embedding(
    residuals: tuple[Residual, Residual, HyperWeights, Geometry], g: torch.Generator
) -> None:
    embedded = torch.randn(3, 128, generator=g)
    streams = residuals[0].start(embedded)
    assert streams.shape == (3, 4, 128)
    assert all(torch.equal(streams[:, j], embedded) for j in range(4))


# ------------------------------------------------------------------ rotary embedding


def test_rotation_turns_interleaved_pairs_of_the_tail_by_their_angle(g: torch.Generator) -> None:
    x = torch.randn(5, 12, generator=g)
    frequencies = rotary.frequencies(8, 10000.0)
    cos, sin = rotary.table(torch.arange(5) + 40, frequencies)
    got = rotary.rotate(x, cos, sin)
    assert torch.equal(got[:, :4], x[:, :4])
    for row in range(5):
        for i in range(4):
            even, odd = x[row, 4 + 2 * i].item(), x[row, 5 + 2 * i].item()
            turned = complex(even, odd) * complex(
                math.cos((40 + row) * 10000.0 ** (-i / 4)),
                math.sin((40 + row) * 10000.0 ** (-i / 4)),
            )
            assert got[row, 4 + 2 * i].item() == pytest.approx(turned.real, abs=1e-5)
            assert got[row, 5 + 2 * i].item() == pytest.approx(turned.imag, abs=1e-5)


def test_the_inverse_rotation_undoes_the_rotation(g: torch.Generator) -> None:
    x = torch.randn(7, 128, generator=g)
    cos, sin = rotary.table(torch.arange(7) * 1000, rotary.frequencies(64, 160000.0))
    turned = rotary.rotate(x, cos, sin)
    assert (turned - x).abs().max() > 0.1
    back = rotary.rotate(turned, cos, sin, inverse=True)
    torch.testing.assert_close(back, x, atol=1e-5, rtol=0)


def test_rotated_products_depend_on_the_distance_alone(g: torch.Generator) -> None:
    q, k = torch.randn(64, generator=g), torch.randn(64, generator=g)
    frequencies = rotary.frequencies(64, 10000.0)

    def at(x: Tensor, position: int) -> Tensor:
        return rotary.rotate(x[None], *rotary.table(torch.tensor([position]), frequencies))[0]

    near = at(q, 13) @ at(k, 3)
    far = at(q, 110) @ at(k, 100)
    assert near.item() == pytest.approx(far.item(), abs=1e-3)


def test_yarn_ramps_between_pairs_15_and_25_for_the_real_constants() -> None:
    plain = rotary.frequencies(64, 160000.0)
    got = rotary.yarn_frequencies(
        64, 160000.0, factor=16.0, original_positions=65536, beta_fast=32.0, beta_slow=1.0
    )
    ratio = got / plain
    torch.testing.assert_close(ratio[:16], torch.ones(16))
    torch.testing.assert_close(ratio[25:], torch.full((7,), 1 / 16))
    for i in range(16, 25):
        gamma = 1 - (i - 15) / 10
        assert ratio[i].item() == pytest.approx((1 - gamma) / 16 + gamma, rel=1e-5)


# ------------------------------------------------------------------ attention


def test_the_sink_only_enlarges_the_denominator(g: torch.Generator) -> None:
    queries, rows = torch.randn(2, 3, 8, generator=g), torch.randn(5, 8, generator=g)
    sink = torch.randn(3, generator=g)
    mask = torch.tensor([[True] * 5, [True, False, True, False, False]])[:, None, :]
    got = attention.mix(queries, rows, mask, sink, 0.3)
    for t in range(2):
        for h in range(3):
            seen = [k for k in range(5) if mask[t, 0, k]]
            mass = {k: math.exp((queries[t, h] @ rows[k]).item() * 0.3) for k in seen}
            total = sum(mass.values()) + math.exp(sink[h].item())
            want = sum(mass[k] / total * rows[k] for k in seen)
            torch.testing.assert_close(got[t, h], want, atol=1e-5, rtol=1e-5)


def test_masked_keys_weigh_exactly_nothing(g: torch.Generator) -> None:
    queries, rows = torch.randn(2, 3, 8, generator=g), torch.randn(6, 8, generator=g)
    mask = (torch.arange(6) < 4)[None, None, :].expand(2, 1, 6)
    sink = torch.zeros(3)
    first = attention.mix(queries, rows, mask, sink, 1.0)
    rows[4:] = 1e30
    assert torch.equal(attention.mix(queries, rows, mask, sink, 1.0), first)


def test_large_scores_do_not_overflow() -> None:
    share = attention.weights(
        torch.tensor([[[1e4, -1e4, 0.0]]]),
        torch.ones(1, 1, 3, dtype=torch.bool),
        torch.tensor([5.0]),
    )
    assert share.tolist() == [[[1.0, 0.0, 0.0]]]


# ------------------------------------------------------------------ compressor and indexer


def test_pooling_is_a_softmax_of_each_channel_over_the_slots(g: torch.Generator) -> None:
    values, gates = torch.randn(3, 5, 2, generator=g), torch.randn(3, 5, 2, generator=g)
    got = compressor.pool(values, gates)
    for w in range(3):
        for c in range(2):
            mass = [math.exp(gates[w, s, c]) for s in range(5)]
            want = sum(m * values[w, s, c].item() for s, m in enumerate(mass)) / sum(mass)
            assert got[w, c].item() == pytest.approx(want, abs=1e-5)


def test_overlapping_windows_take_the_first_half_of_their_predecessor() -> None:
    rows = torch.arange(3 * 4 * 2).float().view(3, 4, 2)  # predecessor and two windows
    got = compressor.overlap(rows)
    assert got.shape == (2, 8, 1)
    assert got[0, :, 0].tolist() == [0, 2, 4, 6, 9, 11, 13, 15]
    assert got[1, :, 0].tolist() == [8, 10, 12, 14, 17, 19, 21, 23]


def test_the_indexer_sums_weighted_positive_products(g: torch.Generator) -> None:
    q, k = torch.randn(2, 3, 4, generator=g), torch.randn(5, 4, generator=g)
    weights = torch.randn(2, 3, generator=g)
    got = indexer.scores(q, k, weights)
    for t in range(2):
        for w in range(5):
            want = sum(weights[t, h].item() * max(0.0, (q[t, h] @ k[w]).item()) for h in range(3))
            assert got[t, w].item() == pytest.approx(want, abs=1e-5)


def test_selection_keeps_the_best_visible_rows_in_ascending_order() -> None:
    score = torch.tensor([[5.0, 1.0, 4.0, 3.0, 9.0, 9.0], [0.1, 0.2, 0.3, 9.0, 9.0, 9.0]])
    chosen, seen = indexer.select(score, torch.tensor([[4], [2]]), 3)
    assert chosen[0].tolist() == [0, 2, 3]
    assert seen[0].tolist() == [True] * 3
    assert chosen[1][seen[1]].tolist() == [0, 1]
    assert seen[1].tolist() == [True, True, False]


def test_of_equally_good_rows_the_lower_is_kept() -> None:
    score = torch.tensor([[2.0, 1.0, 3.0, 1.0, -0.0, 1.0, 0.0, 0.0]])
    chosen, _ = indexer.select(score, torch.tensor([[8]]), 3)
    assert chosen.tolist() == [[0, 1, 2]]
    chosen, _ = indexer.select(score, torch.tensor([[8]]), 6)
    assert chosen.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_the_engine_keeps_the_rows_that_the_oracle_keeps(small: Path, g: torch.Generator) -> None:
    geometry = Geometry.load(small)
    compression = Compression(geometry, Numerics.named("exact"))
    count = geometry.index_topk
    for levels in (1, 3, 1 << 20):
        score = torch.randint(levels, (40, 3 * count), generator=g).float()
        visible = torch.arange(40)[:, None] * count // 12
        chosen, seen = indexer.select(score, visible, count)
        got = compression._select(score.clone(), visible)
        assert torch.equal(got < visible, seen)
        assert torch.equal(got[seen], chosen[seen])


def test_the_indexer_marks_absent_rows_at_the_end() -> None:
    keys = torch.eye(4)
    queries = torch.tensor([[[0.0, 0.1, 0.2, 0.3]]]).expand(3, 1, 4)
    got = indexer.choose(queries, keys, torch.ones(3, 1), torch.tensor([5]), ratio=2, count=5)
    assert got.tolist() == [[0, 1, 2, -1, -1], [0, 1, 2, -1, -1], [0, 1, 2, 3, -1]]
    got = indexer.choose(queries, keys, torch.ones(3, 1), torch.tensor([5]), ratio=2, count=2)
    assert got.tolist() == [[1, 2], [1, 2], [2, 3]]


def test_a_step_attends_to_the_slots_that_hold_its_window(g: torch.Generator) -> None:
    window, heads, dim = 4, 2, 8
    ring, queries = torch.randn(12, dim, generator=g), torch.randn(3, heads, dim, generator=g)
    rows, sink = torch.randn(9, dim, generator=g), torch.randn(heads, generator=g)
    cos, sin = rotary.table(torch.arange(64), rotary.frequencies(4, 100.0))
    for start in (0, 2, 13, 40):
        ring[:] = torch.randn(12, dim, generator=g)
        got = attention.attend(
            queries, ring, rows, None, sink, cos, sin, torch.tensor([start]),
            window=window, ratio=8, scale=0.5,
        )  # fmt: skip
        for r in range(3):
            at = start + r
            near = [ring[p % 12] for p in range(max(0, at - window + 1), at + 1)]
            keys = torch.stack(near + [rows[w] for w in range((at + 1) // 8)])
            seen = torch.ones(1, keys.shape[0], dtype=torch.bool)
            want = attention.mix(queries[r], keys, seen, sink, 0.5)
            want = rotary.rotate(want, cos[at], sin[at], inverse=True)
            torch.testing.assert_close(got[r], want)


def test_a_long_step_attends_as_a_short_one_does(g: torch.Generator) -> None:
    window, dim, start, count = 4, 8, 9, 6
    past = torch.randn(start + count, dim, generator=g)
    queries, sink = torch.randn(count, 2, dim, generator=g), torch.zeros(2)
    rows, indices = torch.randn(5, dim, generator=g), torch.tensor([[0, 1, -1]] * count)
    cos, sin = rotary.table(torch.arange(64), rotary.frequencies(4, 100.0))
    position = torch.tensor([start])
    ring = torch.zeros(12, dim)
    for p in range(start + count - 12, start + count):
        ring[p % 12] = past[p]
    rest = (rows, indices, sink, cos, sin, position)
    short = attention.attend(queries, ring, *rest, window=window, ratio=4, scale=1.0)
    kv = past[start - window + 1 :]
    long = attention.attend_long(queries, kv, *rest, window=window, ratio=4, scale=1.0)
    torch.testing.assert_close(long, short)


def test_every_slot_of_a_block_sees_the_context_and_all_slots(g: torch.Generator) -> None:
    ring, block = torch.randn(6, 8, generator=g), torch.randn(3, 8, generator=g)
    queries, sink = torch.randn(3, 2, 8, generator=g), torch.randn(2, generator=g)
    cos, sin = rotary.table(torch.arange(64), rotary.frequencies(4, 100.0))
    for length, held in ((0, 0), (4, 4), (6, 6), (40, 6)):
        ring[held:] = torch.nan
        got = attention.attend_block(
            queries, ring, block, sink, cos, sin, torch.tensor([length]), scale=0.5
        )
        keys = torch.cat((ring[:held], block))
        for r in range(3):
            seen = torch.ones(1, keys.shape[0], dtype=torch.bool)
            want = attention.mix(queries[r], keys, seen, sink, 0.5)
            want = rotary.rotate(want, cos[length + r], sin[length + r], inverse=True)
            torch.testing.assert_close(got[r], want)
        ring = torch.randn(6, 8, generator=g)


# ------------------------------------------------------------------ experts and norm


def test_the_router_s_bias_chooses_but_never_weighs() -> None:
    scores = moe.affinity(torch.tensor([[0.0, 1.0, 2.0]]))
    want = [math.sqrt(math.log1p(math.exp(v))) for v in (0.0, 1.0, 2.0)]
    assert scores[0].tolist() == pytest.approx(want)
    chosen = moe.choose(scores, torch.tensor([5.0, 0.0, 0.0]), 2)
    assert chosen[0].tolist() == [0, 2]
    weights = moe.route(scores, chosen, 1.5)
    assert weights[0].tolist() == pytest.approx(
        [1.5 * want[0] / (want[0] + want[2]), 1.5 * want[2] / (want[0] + want[2])]
    )


def test_the_gate_is_clamped_from_above_and_the_other_branch_from_both_sides() -> None:
    gate, up = torch.tensor([20.0, -20.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 50.0, -50.0])

    def silu(v: float) -> float:
        return v / (1 + math.exp(-v))

    want = [silu(10.0), silu(-20.0), 10 * silu(1.0), -10 * silu(1.0)]
    assert moe.swiglu(gate, up, 10.0).tolist() == pytest.approx(want, abs=1e-6)


def test_a_repeated_expert_counts_as_often_as_it_is_named() -> None:
    dense = moe.spread(torch.tensor([[1, 1], [0, 2]]), torch.tensor([[0.5, 0.25], [1.0, 2.0]]), 3)
    assert dense.tolist() == [[0, 0.75, 0], [1, 0, 2]]


def test_combining_all_experts_equals_summing_the_chosen_ones(g: torch.Generator) -> None:
    x = torch.randn(3, 8, generator=g)
    w1, w3 = torch.randn(2, 4, 6, 8, generator=g)
    w2 = torch.randn(4, 8, 6, generator=g)
    chosen, weights = torch.tensor([[0, 2], [1, 3], [3, 0]]), torch.rand(3, 2, generator=g)
    got = moe.combine(x, moe.spread(chosen, weights, 4), w1, w3, w2, 10.0)
    for t in range(3):
        want = sum(
            weights[t, k] * moe.expert(x[t], w1[e], w3[e], w2[e], 10.0)
            for k, e in enumerate(chosen[t].tolist())
        )
        torch.testing.assert_close(got[t], want, atol=1e-4, rtol=1e-4)


def test_rms_norm_has_float32_statistics_and_one_cast() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16)
    weight = torch.tensor([2.0, 1.0])
    size = math.sqrt(12.5 + 1e-6)
    want = torch.tensor([[6 / size, 4 / size]]).bfloat16()
    assert torch.equal(norm.rms_norm(x, weight, 1e-6), want)
    assert norm.rms_norm(torch.zeros(1, 4), None, 1e-6).tolist() == [[0.0] * 4]
