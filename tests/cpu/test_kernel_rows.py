"""Router, norm, rotary and rounding under Triton's interpreter."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import norm, rounding, router  # noqa: E402
from kernels.oracle import rounding as plain  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
ROUTERS = [
    operations.choose(16, 3),
    operations.choose(37, 6),
    operations.choose(4, 4),
    operations.look_up(16, 3, 20),
    operations.look_up(37, 6, 5),
]
OTHERS = [
    operations.rms_norm(64, weight=True),
    operations.rms_norm(100, weight=True, dtype=FP32),
    operations.rms_norm(3, 48, weight=False),
    operations.rms_norm(1, weight=False, dtype=FP32),
    operations.rotate(3, 96, 16),
    operations.rotate(2, 64, 32, kind="inverse", dtype=FP32),
    operations.rotate(3, 40, 3, kind="normalised", dtype=FP32),
    operations.rotate(3, 128, 32, kind="normalised"),
    operations.rounding("fp8_round", 128, group=64),
    operations.rounding("fp8_round", 3, 96, dtype=FP32, group=32),
    operations.rounding("cache_round", 192, rotary_dim=64),
    operations.rounding("cache_round", 80, dtype=FP32, rotary_dim=16),
    operations.rounding("fp4_round", 64),
    operations.rounding("fp4_round", 2, 32, dtype=FP32),
    operations.rounding("hadamard_fp4", 128),
    operations.rounding("hadamard_fp4", 3, 64, dtype=FP32),
]


@pytest.mark.parametrize("op", [*ROUTERS, *OTHERS], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_rows_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [*ROUTERS, *OTHERS], ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


@pytest.mark.parametrize("op", OTHERS, ids=str)
def test_only_the_output_is_written_and_no_operand_may_lie_under_it(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cpu")
    gates.check_out(first)
    gates.check_aliasing(first)


def test_of_equal_experts_the_lower_comes_first() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, -1.0, 2.0, 1.0]])
    chosen, weights = router.choose(logits, torch.zeros(6), 4, scale=1.0)
    assert chosen.tolist() == [[1, 2, 4, 0]]
    assert weights[0, 0] == weights[0, 1] == weights[0, 2] > weights[0, 3]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[3.0, 0.0, -8.0]])
    chosen, weights = router.choose(logits, torch.tensor([-9.0, 0.0, 9.0]), 2, scale=2.0)
    assert chosen.tolist() == [[2, 1]]
    affinity = torch.nn.functional.softplus(logits[0, [2, 1]].double()).sqrt()
    torch.testing.assert_close(
        weights[0].double(), affinity / affinity.sum() * 2, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("logit", [-90.0, -30.0, -12.0, -1e-3, 0.0, 25.0, 1e4])
def test_affinities_keep_their_precision_at_every_size(logit: float) -> None:
    _, weights = router.choose(torch.tensor([[logit, 0.0]]), torch.zeros(2), 2, scale=1.0)
    pair = torch.nn.functional.softplus(torch.tensor([logit, 0.0]).double()).sqrt()
    torch.testing.assert_close(
        weights[0].double().sort().values, (pair / pair.sum()).sort().values, rtol=2e-5, atol=0
    )


def test_a_choice_of_infinitely_unlikely_experts_still_has_no_repeats() -> None:
    bias = torch.full((8,), float("-inf"))
    chosen, _ = router.choose(torch.zeros(1, 8), bias, 4, scale=1.0)
    assert chosen.tolist() == [[0, 1, 2, 3]]


def test_experts_chosen_from_logits_that_are_no_numbers_stay_in_the_bank() -> None:
    logits = torch.full((1, 5), float("nan"))
    chosen, _ = router.choose(logits, torch.zeros(5), 3, scale=1.0)
    assert ((chosen >= 0) & (chosen < 5)).all()


def test_norm_takes_rows_that_lie_apart() -> None:
    wide = torch.randn(5, 100)
    got = norm.rms_norm(wide[:, 30:70], torch.ones(40), 1e-6)
    assert torch.equal(got, norm.rms_norm(wide[:, 30:70].contiguous(), torch.ones(40), 1e-6))


def test_every_e4m3_and_e2m1_number_and_every_middle_between_two_is_rounded_as_torch_does() -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    eights = torch.cat((codes, (codes[1:] + codes[:-1]) / 2, codes[-1:], -codes)).view(-1, 1)
    # Beside the largest value a group's scale is one.
    x = torch.cat((eights, torch.full_like(eights, 448.0)), 1)
    got, want = rounding.fp8_round(x, 2), plain.fp8_round(x, 2)
    assert torch.equal(gates.bits(got), gates.bits(want))
    fours = torch.linspace(-6, 6, 97)
    x = torch.stack((fours, torch.full_like(fours, 6.0)), 1).repeat(1, 16)
    assert torch.equal(gates.bits(rounding.fp4_round(x)), gates.bits(plain.fp4_round(x)))


def test_rows_of_zeros_stay_zeros() -> None:
    assert not rounding.cache_round(torch.zeros(2, 128), 64).any()
    assert not rounding.hadamard_fp4(torch.zeros(2, 128)).any()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: router.choose(torch.zeros(2, 4), torch.zeros(4), 5, scale=1.0), "5 of 4"),
        (lambda: router.choose(torch.zeros(2, 4), torch.zeros(3), 2, scale=1.0), "for 4 experts"),
        (lambda: norm.rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-6), "4 channels"),
        (lambda: rounding.fp8_round(torch.zeros(2, 100), 64), "100 channels in groups of 64"),
        (lambda: rounding.fp4_round(torch.zeros(2, 96)), "96 channels are no power"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(call: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()  # type: ignore[operator]
