"""Levels of effort, by what a checkpoint's own encoder says."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.effort import Efforts
from engine.errors import CheckpointError

ABSOLUTE = "Reasoning Effort: Absolute maximum, for a test.\n\n"
BEYOND = "Reasoning Effort: Beyond maximum, for a test.\n\n"


def checkpoint(folder: Path, source: str) -> Path:
    encoding = folder / "encoding"
    encoding.mkdir()
    (encoding / "encoding_dsv4.py").write_text(source, encoding="utf-8")
    return folder


def test_a_revision_with_two_paragraphs_has_one_for_high_and_one_for_max(tmp_path: Path) -> None:
    source = f"HIGH = {ABSOLUTE!r}\nMAX = (\n    {BEYOND[:20]!r}\n    {BEYOND[20:]!r}\n)\n"
    efforts = Efforts.load(checkpoint(tmp_path, source))
    assert [efforts.paragraph(level) for level in ("low", "high", "max")] == ["", ABSOLUTE, BEYOND]  # type: ignore[arg-type]


def test_the_preview_says_its_one_paragraph_at_max_alone(tmp_path: Path) -> None:
    efforts = Efforts.load(checkpoint(tmp_path, f"def f():\n    return {ABSOLUTE!r}\n"))
    assert [efforts.paragraph(level) for level in ("low", "high", "max")] == ["", "", ABSOLUTE]  # type: ignore[arg-type]


def test_a_checkpoint_without_an_encoder_does_not_tell_levels_apart(tmp_path: Path) -> None:
    assert Efforts.load(tmp_path) == Efforts("", "")


def test_an_encoder_is_read_and_never_run(tmp_path: Path) -> None:
    source = f"raise SystemExit(3)\nMAX = {ABSOLUTE!r}\n"
    assert Efforts.load(checkpoint(tmp_path, source)).max == ABSOLUTE


@pytest.mark.parametrize(
    "source",
    [
        "MAX = (",
        "\0",
        f"A = {ABSOLUTE!r}\nB = {ABSOLUTE + '!'!r}\n",
        f"A={BEYOND!r};B={BEYOND + '!'!r}",
    ],
)
def test_an_encoder_that_makes_no_sense_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(CheckpointError):
        Efforts.load(checkpoint(tmp_path, source))
