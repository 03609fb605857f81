"""What a server is told to serve: the loop's file, and the command line over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.server.deployment import EMBEDDED, Deployment


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "best.json"
    path.write_text(json.dumps({"config": {"draft_width": 2}, **fields}))
    return path


def test_the_file_of_the_loop_is_understood(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = written(
        tmp_path, checkpoint=str(tmp_path / "model"), head=None, fingerprint="f", decisions=[3, 9]
    )
    found = Deployment.load(path)
    assert (found.name, found.decision, found.config.draft_width) == ("model", 9, 2)


def test_a_relative_checkpoint_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert Deployment.load(written(tmp_path, checkpoint="model")).checkpoint == tmp_path / "model"


def test_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    path = written(tmp_path, checkpoint="/nowhere", decision="d1")
    found = Deployment.load(path, checkpoint=tmp_path / "other", name="mine")
    assert (found.name, found.checkpoint, found.decision) == ("mine", tmp_path / "other", "d1")


def test_without_a_checkpoint_the_embedded_one_is_served(tmp_path: Path) -> None:
    assert Deployment.load(written(tmp_path, checkpoint=None)).checkpoint == EMBEDDED
    assert Deployment.load(None).checkpoint == EMBEDDED


@pytest.mark.parametrize("fields", [{"checkpoint": 3}, {"head": "/nowhere"}, {"config": [1]}])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Deployment.load(written(tmp_path, **fields))
