"""The guard's lines fit the box: a tiny one, a server, and one that is always nearly full."""

from __future__ import annotations

import pytest

from flywheel.guard.limits import MB, Limits, device_lines, limits
from flywheel.guard.traces import BOX_BYTES, HEALTHY_LOW_BYTES

GIB = 2**30


def test_the_recorded_box_gets_the_lines_that_its_history_earned() -> None:
    one = limits(BOX_BYTES, HEALTHY_LOW_BYTES)
    assert one.floor_bytes == 1500 * MB
    assert one.danger_bytes == 2000 * MB
    assert one.fall_bytes_per_s == 400 * MB
    assert (one.poll_s, one.floor_polls, one.fall_polls) == (0.2, 3, 2)
    assert one.danger_bytes < HEALTHY_LOW_BYTES
    assert limits(BOX_BYTES) == one


@pytest.mark.parametrize(
    ("total", "danger_mb"),
    [
        (2 * GIB, 192),
        (24 * GIB, 1073),
        (64 * GIB, 2000),
        (128_000 * MB, 2000),
        (2048 * GIB, 8589),
    ],
)
def test_the_danger_line_follows_the_size_of_the_box(total: int, danger_mb: int) -> None:
    one = limits(total)
    assert one.danger_bytes // MB == danger_mb
    assert 0 < one.floor_bytes < one.danger_bytes < total // 8
    assert one.fall_bytes_per_s * 5 <= one.danger_bytes
    assert one.note is None


def test_the_danger_line_keeps_a_margin_under_every_healthy_run() -> None:
    for low_mb in (800, 1200, 2000, 2389, 5000, 60_000):
        one = limits(BOX_BYTES, low_mb * MB)
        assert one.danger_bytes <= low_mb * MB * 0.85
        assert one.danger_bytes <= 2000 * MB
        assert one.note is None


def test_a_box_that_was_nearly_empty_once_keeps_a_useful_line_and_says_so() -> None:
    one = limits(BOX_BYTES, 100 * MB)
    assert one.danger_bytes == 500 * MB
    assert one.note is not None
    assert "100 MB" in one.note


def test_limits_survive_the_manifest_and_nonsense_is_one_sentence() -> None:
    one = limits(24 * GIB, device="GPU-1")
    assert Limits.from_json(one.to_json()) == one
    assert Limits.from_json({"floor_bytes": 1, "danger_bytes": 2, "fall_bytes_per_s": 3}).poll_s
    for change, words in (
        ({"colour": 1}, "unknown field: colour"),
        ({"poll_s": 0}, "polls"),
        ({"close_poll_s": 1.0}, "polls"),
        ({"floor_bytes": -1}, "not negative"),
        ({"floor_polls": 0}, "at least one poll"),
        ({"poll_s": "fast"}, "incomplete"),
    ):
        with pytest.raises(ValueError, match=words):
            Limits.from_json({**one.to_json(), **change})
    with pytest.raises(ValueError, match="incomplete"):
        Limits.from_json({"floor_bytes": 1})


def test_a_gpu_may_be_filled_almost_to_the_brim() -> None:
    large, small = device_lines(141 * GIB), device_lines(8 * GIB)
    assert large.floor_bytes == 256 * MB
    assert small.danger_bytes < 8 * GIB // 60
