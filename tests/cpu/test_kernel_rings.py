"""What steps and prompts leave in rings and rows, under Triton's interpreter."""

from __future__ import annotations

import dataclasses

import gates
import pytest
import torch

gates.interpreter()

import rings  # noqa: E402
from rings import Layer  # noqa: E402

from kernels import context, heads, intake, passage  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = intake.Tile(channels=128, warps=1)  # more chunks than one
WINDOW = Layer(q_rank=72, head_dim=40, pairs=3, slots=11)
SPARSE = Layer(main=(4, 128), keys=(4, 64), index_heads=5)
SPARSE_BF16 = dataclasses.replace(SPARSE, dtype=BF16, stored=BF16)
DENSE = Layer(main=(16, 128), overlapping=False, slots=9)
DENSE_BF16 = dataclasses.replace(DENSE, dtype=BF16, stored=BF16)
ODD = Layer(main=(6, 80), keys=(6, 24), index_heads=1, head_dim=80, pairs=8)
LAYERS = [WINDOW, SPARSE, SPARSE_BF16, DENSE, DENSE_BF16, ODD]
ROUNDED = [dataclasses.replace(one, rounds=True) for one in LAYERS if one.head_dim == 128]
NARROW = Layer(main=(6, 80), keys=(6, 32), index_heads=1, head_dim=80, pairs=8, rounds=True)
PACKED = [dataclasses.replace(one, packed=True) for one in (*ROUNDED, NARROW) if one.pools]
STARTS = [0, 57]
STEPS = [
    *(rings.intake(layer, start, tile=SMALL) for layer in LAYERS for start in STARTS),
    *(rings.prepare(layer, start) for layer in LAYERS for start in STARTS),
    rings.prepare(DENSE, 15, tile=heads.Tile(heads=2, index_heads=16, positions=4, warps=1)),
    rings.intake(WINDOW, 5, "rows"),
    rings.intake(SPARSE_BF16, 5, "rows"),
    *(rings.extend(layer, 3, 21, count) for layer in (WINDOW, SPARSE_BF16) for count in (0, 2, 8)),
]
PROMPTS = [
    *(rings.passage(layer, start, 8) for layer in LAYERS for start in STARTS),
    rings.extend(WINDOW, 2, 2, 100),
]
OF_PACKED = [
    *(rings.intake(layer, 57, tile=SMALL) for layer in PACKED),
    *(rings.prepare(layer, 57) for layer in PACKED),
    *(rings.passage(layer, 57, 8) for layer in PACKED),
]
ALL = [*STEPS, *PROMPTS, *OF_PACKED]


@pytest.mark.parametrize("op", STEPS, ids=str)
@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_leaves_what_the_oracle_leaves(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", PROMPTS, ids=str)
@pytest.mark.parametrize("rows", [1, 30])
def test_a_prompt_leaves_what_the_oracle_leaves(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [op for op in ALL if str(op).endswith("57")], ids=str)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 6, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)


@pytest.mark.parametrize("op", [op for op in ALL if rings.buffers(op.inputs(1, "cpu"))], ids=str)
def test_nothing_is_written_but_the_slots_and_rows_of_the_step(op: gates.Operation) -> None:
    rings.check_places(op, 5, "cpu")


@pytest.mark.parametrize("layer", [*LAYERS, *ROUNDED, *PACKED], ids=str)
def test_a_row_does_not_know_what_shares_its_step(layer: Layer) -> None:
    rings.check_steps(rings.intake(layer, 2), 6, "cpu")
    rings.check_steps(rings.prepare(layer, 2), 6, "cpu")


@pytest.mark.parametrize("layer", PACKED, ids=str)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("twin", [False, True])
def test_packed_rows_are_left_with_the_numbers_of_plain_ones(
    layer: Layer, start: int, twin: bool
) -> None:
    def prepare(one: Layer) -> gates.Operation:
        return rings.prepare(one, start)

    def passage(one: Layer) -> gates.Operation:
        return rings.passage(one, start, 8)

    rings.check_packed(prepare, layer, "cpu", 8, twin=twin)
    rings.check_packed(passage, layer, "cpu", 30, twin=twin)


@pytest.mark.parametrize("layer", [*LAYERS, *PACKED], ids=str)
def test_a_prompt_leaves_the_bits_that_steps_leave(layer: Layer) -> None:
    given = rings.passage(layer, 2, 8).inputs(30, "cpu")
    by_step = rings.clones(given)
    rings.take_steps(by_step, [5, 8, 1, 8, 8])
    for chunks in ([30], [1, 20, 9]):
        by_chunk = rings.clones(given)
        for part in rings.parts(by_chunk, chunks):
            passage.store(**rings.arguments(part), pools=rings.pools_of(part), reach=8)
        for a, b in zip(rings.buffers(by_step), rings.buffers(by_chunk), strict=True):
            assert torch.equal(gates.bits(a), gates.bits(b))


@pytest.mark.parametrize("layer", [SPARSE, SPARSE_BF16, DENSE], ids=str)
def test_what_is_rounded_is_the_rounding_of_what_is_not(layer: Layer) -> None:
    rings.check_rounded(dataclasses.replace(layer, stored=FP32), 9, "cpu")


def test_the_first_window_has_no_predecessor_and_no_slot_speaks_for_it() -> None:
    op = rings.prepare(SPARSE, 0)
    inputs = op.inputs(4, "cpu")
    want = op.run(inputs)
    for name in ("main.inputs", "keys.inputs"):
        inputs[name][4:] = torch.nan
    for a, b in zip(op.run(inputs), want, strict=True):
        assert torch.equal(a[:1], b[:1])


def test_a_step_of_no_rows_leaves_everything() -> None:
    for op in (rings.intake(SPARSE, 3), rings.prepare(SPARSE, 3), rings.extend(WINDOW, 2, 3, 4)):
        inputs = op.inputs(0, "cpu")
        before = rings.buffers(inputs)
        for old, new in zip(before, op.run(inputs)[-len(before) :], strict=True):
            assert torch.equal(gates.bits(old), gates.bits(new))


def test_rows_past_the_table_or_the_rows_of_a_pool_touch_nothing_else() -> None:
    op = rings.prepare(SPARSE, rings.CONTEXT + 4)
    inputs = op.inputs(8, "cpu")
    before = rings.buffers(inputs)
    found = op.run(inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, found[-len(before) :], strict=True))


def test_a_buffer_over_an_operand_is_refused() -> None:
    op = rings.intake(WINDOW, 3)
    inputs = op.inputs(8, "cpu")
    room = torch.zeros(4096)
    y8 = room[: inputs["y8"].numel()].view(inputs["y8"].shape)
    window = room[y8.numel() - 8 :][: inputs["window"].numel()].view(inputs["window"].shape)
    given = rings.arguments(inputs) | {"y8": y8, "window": window}
    with pytest.raises(ValueError, match="shares memory"):
        intake.store(**given)


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    store, sparse = (
        rings.arguments(rings.intake(SPARSE, 3).inputs(2, "cpu")),
        rings.intake(SPARSE, 3),
    )
    pools = rings.pools_of(sparse.inputs(2, "cpu"))
    main, keys = pools
    packed, _ = rings.pools_of(rings.intake(PACKED[0], 3).inputs(2, "cpu"))
    for change, sentence in (
        ({"window": torch.zeros(1, 128)}, "a window of 1 for 2 rows"),
        ({"window": torch.zeros(24, 64)}, "64 channels, not 128"),
        ({"position": torch.zeros(1, dtype=torch.int32)}, "position is torch.int32"),
        ({"cos": torch.zeros(300, 70), "sin": torch.zeros(300, 70)}, "does not fit 128 channels"),
        ({"y16": None}, "pools without inputs"),
        ({"y16": torch.zeros(2, 99)}, "do not fit 2 rows"),
        ({"pools": [main._replace(inputs=main.inputs[:8]), keys]}, "cannot take 2 rows"),
        ({"pools": [main._replace(norm=torch.zeros(3)), keys]}, "128 channels"),
        ({"pools": [main, keys, keys]}, "3 pools"),
        ({"pools": [main, keys._replace(rows=packed.rows)]}, "packed keys have no tail"),
    ):
        with pytest.raises(ValueError, match=sentence):
            intake.store(**{"pools": pools} | store | change)
    with pytest.raises(ValueError, match="not 3 heads of 128 and some of 64"):
        heads.prepare(
            torch.zeros(2, 400), store["cos"], store["sin"], store["position"],
            heads=3, head_dim=128, index_dim=64, eps=1e-6, rounds=False,
        )  # fmt: skip
    with pytest.raises(ValueError, match="no power of two"):
        heads.prepare(
            torch.zeros(2, 96 * 2), store["cos"], store["sin"], store["position"],
            heads=1, head_dim=96, index_dim=96, eps=1e-6, rounds=True,
        )  # fmt: skip
    y = torch.zeros(2, 128)
    cos, sin, at = store["cos"], store["sin"], store["position"]
    for given, turns, rounds, sentence in (
        (packed, (cos, sin), False, "nothing rounds"),
        (packed, (cos[:, :16].contiguous(), sin[:, :16].contiguous()), True, "not what is rotated"),
    ):
        with pytest.raises(ValueError, match=sentence):
            heads.prepare(y, *turns, at, [given], heads=1, head_dim=128, eps=1e-6, rounds=rounds)
    with pytest.raises(ValueError, match="norms"):
        context.extend(
            torch.zeros(2, 128), torch.zeros(2, 128), store["cos"], store["sin"],
            store["position"], store["position"], torch.zeros(1, 9, 128), eps=1e-6, rounds=False,
        )  # fmt: skip
