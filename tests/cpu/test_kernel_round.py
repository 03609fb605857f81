"""The end of a round under Triton's interpreter: `kernels.sample` and `kernels.accept`."""

from __future__ import annotations

import itertools

import gates
import pytest
import torch
from torch import Tensor

gates.interpreter()

import operations  # noqa: E402

from kernels import accept, sample  # noqa: E402
from kernels.oracle import (  # noqa: E402
    accept as plain_accept,
    sample as plain,
)
from kernels.sample import Tile  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

SMALL = Tile(tokens=32, warps=1)
PICKS = [
    operations.pick(200, temperature=0.7, tile=SMALL),
    operations.pick(64, temperature=1.0, tile=SMALL),
    operations.pick(101, temperature=0.0, tile=SMALL),
    operations.pick(2, temperature=2.0, tile=SMALL),
]


def key(position: int, seed: int, temperature: float) -> dict[str, Tensor]:
    """The arguments that a token is drawn by."""
    return {
        "position": torch.tensor([position]),
        "seed": torch.tensor([seed]),
        "temperature": torch.tensor([temperature]),
    }


@pytest.mark.parametrize("op", PICKS, ids=str)
@pytest.mark.parametrize("rows", [1, 8])
def test_tokens_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", PICKS, ids=str)
def test_bits_repeat_and_only_the_tokens_are_written(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_a_position_draws_the_same_token_whatever_the_width_of_the_step() -> None:
    scores = torch.randn(8, 60)
    for position in (2**31 - 3, 2**40 + 5):
        whole = sample.pick(scores, **key(position, 5, 1.3), tile=SMALL)
        for first, ahead in ((0, 1), (3, 1), (3, 4), (7, 1)):
            at = position + first + 1 - ahead
            part = sample.pick(scores[first:], **key(at, 5, 1.3), ahead=ahead, tile=SMALL)
            assert torch.equal(part, whole[first:])


@pytest.mark.parametrize("position", [0, 1, 2**32 - 1, 2**32, 2**45])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_noise_of_every_key_is_that_of_the_oracle(position: int, seed: int) -> None:
    # A hot draw from equal scores is decided by the noise alone.
    got = sample.pick(torch.zeros(4, 90), **key(position, seed, 1.0), tile=SMALL)
    assert torch.equal(got, plain.pick(torch.zeros(4, 90), **key(position, seed, 1.0)))


def test_the_generator_gives_the_known_answers() -> None:
    def words(counter: int, seed: int) -> list[int]:
        c = torch.tensor([counter])
        return [int(w) for w in plain.philox(torch.tensor([seed]), (c, c, c, c))]

    assert words(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words(2**32 - 1, -1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_softmax(temperature: float) -> None:
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0])
    draws = 6000
    drawn = plain.pick(scores.expand(draws, -1), **key(0, 11, temperature))
    want = torch.softmax(scores.double() / temperature, 0) * draws
    counts = torch.bincount(drawn, minlength=6)
    chi_square = ((counts - want) ** 2 / want).sum()
    assert chi_square < 25.7  # five degrees of freedom, one in ten thousand; the seed is fixed
    # The kernel draws the same tokens.
    assert torch.equal(
        sample.pick(scores.expand(60, -1).contiguous(), **key(0, 11, temperature), tile=SMALL),
        drawn[:60],
    )


def test_noise_is_finite_and_as_rare_as_it_should_be() -> None:
    noise = plain.gumbel(torch.tensor(3), torch.tensor(9), 1 << 18)
    assert noise.isfinite().all()
    for level in (0.0, 3.0, 6.0, 9.0):
        share = 1 - torch.exp(-torch.exp(torch.tensor(-level, dtype=torch.float64)))
        expected = float(share) * noise.numel()
        assert abs(int((noise > level).sum()) - expected) < 5 * expected**0.5 + 1


def test_a_workspace_serves_launch_after_launch() -> None:
    inputs = PICKS[0].inputs(6, "cpu")
    want = sample.pick(**inputs, tile=SMALL)
    workspace = Workspace.on("cpu", parts=2 * 3 * 8 * 6, arrivals=12)
    for dirt in (float("nan"), 1e9):
        workspace.parts.fill_(dirt)
        assert torch.equal(sample.pick(**inputs, tile=SMALL, workspace=workspace), want)
        assert not workspace.arrivals.any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scores": torch.zeros(2, 5, dtype=torch.float64)}, "not float32"),
        ({"scores": torch.zeros(5, 2).t()}, "last axis of scores"),
        ({"scores": torch.zeros(2, 1)}, "1 tokens are no choice"),
        ({"position": torch.zeros(1)}, "position: torch.float32"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, "seed: torch.int64 \\(2,\\)"),
        ({"out": torch.zeros(3, dtype=torch.int64)}, "out is"),
    ],
)
def test_a_draw_that_does_not_fit_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sample.pick(**PICKS[0].inputs(2, "cpu") | change)


def round_(drafts: list[int], targets: list[int], position: int = 40) -> dict[str, Tensor]:
    """A step over an anchor and `drafts`, whose rows chose `targets`."""
    return {
        "tokens": torch.tensor([99, *drafts]),
        "targets": torch.tensor(targets),
        "finite": torch.ones(len(targets), dtype=torch.bool),
        "position": torch.tensor([position]),
    }


@pytest.mark.parametrize(
    ("drafts", "targets", "count"),
    [
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([4], [5, 6], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 9, 3], [1, 2, 3, 4], 1),  # what agrees after a miss is not confirmed
        ([0, 2, 3], [1, 2, 3, 4], 0),
        ([1] * 7, [1] * 8, 7),
        ([1] * 6 + [2], [1] * 8, 6),
    ],
)
def test_drafts_are_confirmed_up_to_the_first_miss(
    drafts: list[int], targets: list[int], count: int
) -> None:
    given = round_(drafts, targets)
    report = accept.accept(**given)
    rest = [-1] * (len(targets) - count - 1)
    assert report.tolist() == [count, 1, 41 + count, targets[count], *targets[: count + 1], *rest]
    assert given["position"].tolist() == [41 + count]
    assert given["tokens"].tolist() == [targets[count], *drafts]


def test_every_short_round_equals_that_of_the_oracle() -> None:
    for m in (1, 2, 3):
        for drafts in itertools.product((0, 1), repeat=m - 1):
            for targets in itertools.product((0, 1), repeat=m):
                ours, theirs = round_([*drafts], [*targets]), round_([*drafts], [*targets])
                assert torch.equal(accept.accept(**ours), plain_accept.accept(**theirs))
                for name, value in ours.items():
                    assert torch.equal(value, theirs[name])


@pytest.mark.parametrize("place", [0, 2])
def test_one_row_that_is_not_finite_is_told(place: int) -> None:
    given = round_([1, 2], [1, 2, 3])
    given["finite"][place] = False
    assert accept.accept(**given)[accept.FINITE] == 0


def test_an_anchor_beyond_32_bits_of_position_goes_on() -> None:
    report = accept.accept(**round_([1], [1, 2], position=2**33))
    assert report[accept.POSITION] == 2**33 + 2


def test_the_report_is_written_where_it_is_wanted() -> None:
    around = torch.full((20,), 7)
    out = around[4:11]
    assert accept.accept(**round_([1, 2], [1, 3, 4]), out=out) is out
    assert out.tolist() == [1, 1, 42, 3, 1, 3, -1]
    assert (around[:4] == 7).all()
    assert (around[11:] == 7).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": torch.zeros(9, dtype=torch.int64)}, "9 rows are no step"),
        ({"targets": torch.zeros(2, dtype=torch.int64)}, "targets: torch.int64 \\(2,\\)"),
        ({"finite": torch.ones(3)}, "finite: torch.float32"),
        ({"position": torch.zeros(1)}, "position: torch.float32"),
        ({"out": torch.zeros(6, dtype=torch.int64)}, "out is"),
    ],
)
def test_a_round_that_does_not_fit_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        accept.accept(**round_([1, 2], [1, 2, 3]) | change)


def test_a_report_over_an_operand_is_refused() -> None:
    given = round_([1, 2], [1, 2, 3])
    room = torch.zeros(10, dtype=torch.int64)
    given["tokens"] = room[:3]
    with pytest.raises(ValueError, match="shares memory"):
        accept.accept(**given, out=room[2:9])
