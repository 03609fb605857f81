"""A rehearsal carries every stage out at toy scale, and says in a card how it went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.heads.command import main
from engine.heads.stage import CARD


def card(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / CARD).read_text())
    return found


def test_every_stage_is_tried_with_the_recipe_that_is_meant(tmp_path: Path) -> None:
    words = ["rehearse", "--out", str(tmp_path / "r"), "--recipe", '{"hass_from": 1, "steps": 900}']
    assert main(words) == 0
    found = card(tmp_path / "r")
    assert found["outcome"] == "ok"
    assert found["facts"]["rehearsed"] == ["corpus", "regenerate", "capture", "train", "install"]
    assert (found["asked"]["recipe"]["hass_from"], found["asked"]["recipe"]["steps"]) == (1, 900)
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["asked.json", CARD]


def test_the_training_alone_is_tried_on_what_was_captured(captured: Path, tmp_path: Path) -> None:
    words = ["rehearse", "--out", str(tmp_path), "--capture", str(captured)]
    assert main(words) == 0
    assert card(tmp_path)["facts"]["rehearsed"] == ["train", "install"]
    seconds = card(tmp_path)["seconds"]
    assert main(words) == 0  # it is not repeated
    assert card(tmp_path)["seconds"] == seconds


def test_what_fails_in_a_rehearsal_is_in_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rehearse", "--out", str(tmp_path), "--capture", str(tmp_path / "nothing")]
    assert main(words) == 2
    assert card(tmp_path)["outcome"] == "refused"
    assert "holds no finished stage capture" in card(tmp_path)["reason"]
    assert "holds no finished stage capture" in capsys.readouterr().err
