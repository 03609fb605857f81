"""Counters of energy: added up, over their ends, and missing without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flywheel.box.energy import Meter


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages; one has a domain of its own, and its memory-mapped twin counts it again."""
    for name, said in (
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"), ("intel-rapl-mmio:0", "package-0"),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text(said + "\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
        (folder / "energy_uj").write_text("9000000\n")
    return tmp_path


def counter(*values: int | None) -> Callable[[], int | None]:
    """A GPU whose counter shows these in turn."""
    left: Iterator[int | None] = iter(values)
    return lambda: next(left)


def test_packages_are_added_up_and_their_domains_are_not(powercap: Path) -> None:
    meter = Meter(powercap, counter(None))
    for folder in powercap.iterdir():
        (folder / "energy_uj").write_text("9500000\n")
    assert meter.read() == {"cpu": 1.0}


def test_a_counter_that_begins_anew_loses_nothing(powercap: Path) -> None:
    meter = Meter(powercap, counter(None))
    one = powercap / "intel-rapl:0" / "energy_uj"
    for shown in ("500000", "9500000", "500000"):
        one.write_text(shown)
        meter.look()
    assert meter.read() == {"cpu": pytest.approx(11.5)}


def test_the_gpu_counts_beside_the_cpu(powercap: Path) -> None:
    assert Meter(powercap, counter(1000, 4500)).read() == {"gpu": 3.5, "cpu": 0.0}


@pytest.mark.parametrize("shown", [(None,), (1000, None), (1000, 10)])
def test_what_the_box_does_not_tell_is_not_there(
    shown: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert Meter(tmp_path / "nowhere", counter(*shown)).read() == {}


def test_a_package_that_may_not_be_read_is_left_out(powercap: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1"):
        (powercap / name / "energy_uj").unlink()
    assert Meter(powercap, counter(None)).read() == {}
