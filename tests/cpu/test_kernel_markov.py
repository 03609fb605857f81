"""`kernels.markov` under Triton's interpreter: one slot, and a block of them without a host."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import markov  # noqa: E402
from kernels.markov import Tile  # noqa: E402
from kernels.oracle import markov as plain  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

FP32 = torch.float32
SMALL = Tile(tokens=16, turns=2, warps=2)
CASES = [
    operations.markov(96, 16, 64, tile=SMALL),
    operations.markov(101, 12, 40, dtype=FP32, tile=SMALL),
    operations.markov(30, 8, 33, tile=Tile(tokens=16, turns=1, warps=1, early=True)),
]


@pytest.mark.parametrize("op", CASES, ids=str)
def test_a_step_equals_that_of_the_oracle(op: gates.Operation) -> None:
    for _ in range(3):
        gates.check_values(op, 1, "cpu")


@pytest.mark.parametrize("op", CASES, ids=str)
def test_bits_repeat_and_inputs_are_left_alone(op: gates.Operation) -> None:
    first = gates.launch(op, 1, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)


def test_a_block_of_steps_reads_each_token_where_the_step_before_left_it() -> None:
    inputs = CASES[1].inputs(1, "cpu")
    base, hidden = torch.randn(5, 101), torch.randn(5, 40)
    tokens = torch.full((6,), -1)
    tokens[0] = inputs["previous"][0]
    scores, margins, sure = torch.empty(5, 101), torch.empty(5), torch.empty(5)
    workspace = Workspace.on("cpu", parts=2 * 3 * 5 * 8, arrivals=2)
    weights = {name: inputs[name] for name in ("w1", "w2", "confidence")}
    token = tokens[:1].clone()
    for slot in range(5):
        place = slice(slot, slot + 1)
        out = markov.Draft(scores[slot], tokens[slot + 1 : slot + 2], margins[place], sure[place])
        previous = tokens[place]
        markov.step(
            base[slot], previous, hidden[slot], **weights,
            out=out, tile=SMALL, workspace=workspace,
        )  # fmt: skip
        want = plain.step(base[slot], token, hidden[slot], **weights)
        token = want.token
        for got, wanted in zip(out, want, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_of_equal_scores_the_lowest_token_is_drafted() -> None:
    inputs = CASES[0].inputs(1, "cpu")
    inputs["w2"].zero_()
    inputs["base"] = torch.tensor([1.0] * 20 + [4.0] + [0.0] * 20 + [4.0] + [0.0] * 54)
    got = markov.step(**inputs, tile=SMALL)
    assert (got.token.item(), got.margin.item()) == (20, 0.0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"base": torch.zeros(95)}, "base scores are torch.float32 \\(95,\\)"),
        ({"previous": torch.zeros(2, dtype=torch.int64)}, "not one int64"),
        ({"hidden": torch.zeros(1, 64)}, "hidden has 2 axes"),
        ({"w1": torch.zeros(95, 16)}, "is not w2"),
        ({"confidence": torch.zeros(1, 79)}, "79 channels, not 80"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        markov.step(**CASES[0].inputs(1, "cpu") | change)


def test_outputs_over_operands_are_refused() -> None:
    inputs = CASES[1].inputs(1, "cpu")
    good = markov.step(**inputs)
    for out in (good._replace(scores=inputs["base"]), good._replace(token=inputs["previous"])):
        with pytest.raises(ValueError, match="shares memory"):
            markov.step(**inputs, out=out)
