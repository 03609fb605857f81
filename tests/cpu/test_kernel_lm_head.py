"""`kernels.lm_head` under Triton's interpreter: scores and the best of each row."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import lm_head  # noqa: E402
from kernels.lm_head import Tile  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = Tile(columns=16, tiles=2, step=32, warps=2, stages=2)
APART = Tile(columns=16, tiles=3, step=16, warps=2, stages=2, parts=2)
CASES = [
    operations.lm_head(128, 64, tile=SMALL),
    operations.lm_head(101, 70, tile=SMALL),
    operations.lm_head(70, 40, dtype=FP32, tile=Tile(columns=32, tiles=1, step=16)),
    operations.lm_head(64, 32, dtype=FP32, head=BF16, tile=SMALL),
    operations.lm_head(2, 33, tile=SMALL),
    operations.lm_head(101, 70, dtype=FP32, tile=APART),
    operations.lm_head(96, 64, tile=APART),
]
# Rows of the identity: the scores of a row are one column of the head.
ROW = torch.eye(1, 16)


@pytest.mark.parametrize("op", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_scores_and_the_best_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", CASES, ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def found(values: list[float], tiles: int = 1) -> lm_head.Head:
    """What a head says whose scores are `values`."""
    head = torch.zeros(len(values), 16)
    head[:, 0] = torch.tensor(values)
    return lm_head.scores(ROW, head, tile=Tile(columns=16, tiles=tiles, step=16))


@pytest.mark.parametrize(
    ("values", "token", "margin"),
    [
        ([0.0] * 40, 0, 0.0),
        ([-5.0] * 17 + [3.0] + [1.0] * 9 + [3.0] + [0.0] * 9, 17, 0.0),
        ([-3.0, -2.0, -7.5], 1, 1.0),
        ([-0.0] + [0.0] * 30, 0, 0.0),
        ([1e30] + [-1e30] * 50 + [2e30], 51, 1e30),
        ([2.0, 1.0] + [-9.0] * 100, 0, 1.0),
        ([-9.0] * 100 + [1.5, 2.0], 101, 0.5),
    ],
)
def test_of_equal_scores_the_lowest_token_is_the_best(
    values: list[float], token: int, margin: float
) -> None:
    for tiles in (1, 2, 8):
        best = found(values, tiles).best
        assert best.token.tolist() == [token]
        assert best.margin.item() == pytest.approx(margin)
        assert best.finite.tolist() == [True]


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter's product
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 20, 39])
def test_one_score_that_is_no_finite_number_is_told(bad: float, place: int) -> None:
    head = torch.zeros(40, 16)
    head[:, 0] = torch.arange(40.0)
    head[place, 1] = bad
    x = torch.zeros(2, 16)
    x[:, 0] = 1
    x[1, 1] = 1
    got = lm_head.scores(x, head, tile=Tile(columns=16, tiles=2, step=16))
    # Zero times what is no number is none either, so both rows of the head's line are told.
    assert got.best.finite.tolist() == [False, False]
    assert ((got.best.token >= 0) & (got.best.token < 40)).all()


def test_many_tiles_meet_in_groups() -> None:
    op = operations.lm_head(16 * 130 + 5, 16, tile=Tile(columns=16, tiles=1, step=16, warps=1))
    gates.check_values(op, 2, "cpu")


def test_a_workspace_and_buffers_serve_launch_after_launch() -> None:
    inputs = CASES[1].inputs(4, "cpu")
    want = gates.as_tuple(lm_head.scores(**inputs, tile=SMALL))
    workspace = Workspace.on("cpu", parts=2 * 3 * 8 * 8, arrivals=2)
    out = lm_head.Head(
        torch.empty(4, 101),
        lm_head.Best(torch.empty(4, dtype=torch.int64), torch.empty(4), torch.empty(4) > 0),
    )
    for dirt in (float("nan"), 1e9):
        workspace.parts.fill_(dirt)
        for tensor in gates.as_tuple(out):
            gates.poison(tensor)
        lm_head.scores(**inputs, out=out, tile=SMALL, workspace=workspace)
        assert all(map(torch.equal, gates.as_tuple(out), want))
        assert not workspace.arrivals.any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(9, 64, dtype=BF16)}, "9 rows are no step"),
        ({"x": torch.zeros(2, 63, dtype=BF16)}, "64 channels, not 63"),
        ({"head": torch.zeros(1, 64)}, "1 tokens have no second best"),
        ({"head": torch.zeros(64, 64).t()[:, :64].to(torch.float16)}, "not BF16 or float32"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        lm_head.scores(**CASES[0].inputs(2, "cpu") | change)


def test_outputs_over_operands_or_each_other_are_refused() -> None:
    inputs = CASES[2].inputs(1, "cpu")
    good = lm_head.scores(**inputs)
    under = inputs["head"].flatten()[:70].view(1, 70)
    over = good.best._replace(margin=good.scores[0, :1])
    for out in (good._replace(scores=under), good._replace(best=over)):
        with pytest.raises(ValueError, match="shares memory"):
            lm_head.scores(**inputs, out=out)
