"""The pure parts of the kernels' benchmark: bytes, floors, the table, and what it refuses."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernels.bench import clock, peers, shape, sweep
from kernels.bench.__main__ import main, products_us
from kernels.bench.amount import seconds
from kernels.bench.line import Line, table
from kernels.bench.sweep import Task
from kernels.bench.tunable import Tunable, distance

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


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--repeats", "-3"], ["--repeats", "x"]])
@pytest.mark.parametrize("command", [main, sweep.main, peers.main])
def test_amounts_that_cannot_be_are_refused(
    command: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        command(arguments)
    assert left.value.code == 2
    assert "argument --repeats: must be a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="seconds above 0"):
        seconds(text)


@dataclass(frozen=True)
class Tile:
    columns: int
    warps: int
    early: bool = False


def test_tiles_are_tried_by_their_distance_from_the_likely_ones() -> None:
    assert distance(Tile(16, 4), Tile(64, 2)) == pytest.approx(3)
    assert distance(Tile(16, 4), Tile(16, 4, early=True)) == pytest.approx(1)
    tiles = [Tile(columns, warps) for columns in (16, 32, 64, 128) for warps in (1, 2, 4)]
    likely = [Tile(128, 4), Tile(16, 1)]
    item = Tunable("any", 0.0, likely, tiles, lambda most: lambda tile: [])
    order = item.nearest(100)
    assert order[:2] == likely
    assert order[2:6] == [Tile(16, 2), Tile(32, 1), Tile(64, 4), Tile(128, 2)]
    assert sorted(order, key=str) == sorted(tiles, key=str)
    assert item.nearest(3) == order[:3]


def test_a_tile_is_not_begun_once_the_time_of_its_product_is_over() -> None:
    now = time.monotonic()
    assert Task(1, "any", Tile(16, 1), now - 1).late
    assert not Task(1, "any", Tile(16, 1), now + 60).late


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="TRITON MISSING")
def test_all_that_is_timed_and_swept_can_be_called() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/kernels/rehearsal.py"], cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(set(found["names"])) == len(found["names"])
    assert all(f"sweep {name}" in found["6"] for name in found["names"])
    assert all(launches > 0 for launches in (*found["6"].values(), *found["9"].values()))
    assert found["6"]["layer dense chain"] == found["6"]["layer dense chain, early"] == 6
    assert found["9"].keys() == {"sweep sorted gate_up", "sweep sorted down"}
