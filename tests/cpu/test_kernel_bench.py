"""The pure parts of the kernels' benchmark: bytes, floors, the table, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.bench import clock, shape
from kernels.bench.__main__ import main, products_us
from kernels.bench.line import Line, table

ROOT = Path(__file__).parents[2]


def test_the_products_of_a_layer_read_what_the_checkpoint_stores() -> None:
    stored = {linear.name: linear.weight_bytes for linear in shape.LINEARS}
    # Bytes of all 43 layers, from the checkpoint's headers.
    assert stored["wq_b"] * 43 == 1_442_928_640
    assert stored["wo_a"] * 43 == 1_442_928_640
    assert stored["wo_b"] * 43 == 1_442_928_640
    assert stored["wq_a+wkv"] * 43 == 180_366_080 + 90_183_040
    assert shape.SHARED_BYTES * 43 == 1_082_196_480
    assert shape.EXPERT_BYTES == 13_369_344


def test_the_union_of_experts_starts_at_six_and_never_passes_all() -> None:
    assert shape.expected_experts(1) == pytest.approx(6)
    assert shape.expected_experts(6) == pytest.approx(32.8, abs=0.1)
    assert shape.expected_experts(1000) <= 160


def test_a_line_compares_the_median_with_the_time_of_its_bytes() -> None:
    line = Line.of("wq_b", 1, 33.6e6, [14.0, 10.0, 12.0], ceiling=4200.0)
    assert line.median_us == 12.0
    assert line.floor_us == pytest.approx(8.0)
    assert line.gb_s == pytest.approx(2800.0)
    assert line.plain()["of_ceiling"] == pytest.approx(2 / 3)
    assert (line.least_us, line.most_us) == (10.0, 14.0)


def test_the_table_has_a_line_for_each_and_columns_that_stand_below_each_other() -> None:
    lines = [
        Line.of("wq_a+wkv", 1, 6.3e6, [8.33], 4690.0),
        Line.of("experts chain", 6, 434e6, [120.5], 4690.0),
    ]
    text = table(lines).splitlines()
    assert len(text) == 3
    assert len({len(line) for line in text}) == 1
    assert "66.6%" not in text[0]
    assert "76.8%" in text[2]


def test_the_sum_of_the_products_wants_each_of_them_once() -> None:
    names = [*(linear.name for linear in shape.LINEARS), "experts chain"]
    lines = [Line.of(name, 6, 1e6, [10.0], 4690.0) for name in names]
    other = [Line.of("experts down", 6, 1e6, [5.0], 4690.0), Line.of("wq_b", 1, 1e6, [5.0], 4690.0)]
    assert products_us([*lines, *other], 6) == pytest.approx(50.0)
    assert products_us(lines[1:], 6) is None


@pytest.mark.parametrize(("size", "count"), [(6.3e6, 54), (33.6e6, 10), (1, 64), (4e9, 4)])
def test_operands_rotate_until_no_cache_can_help(size: float, count: int) -> None:
    assert clock.rotations(size) == count


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to time on")
def test_without_a_gpu_it_refuses_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "No CUDA device: kernels are timed on a GPU only.\n"


@pytest.mark.parametrize("rows", ["0", "9", "1,x"])
def test_rows_that_no_step_has_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--rows", rows])
    assert left.value.code == 2
    assert "invalid rows value" in capsys.readouterr().err
