"""`flywheel run --start`: what the engine refuses is said at once, and nothing is begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.fields import command as fields
from flywheel.cli import start
from flywheel.cli.app import main
from flywheel.errors import UsageError
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK

NOBODY = ("/nowhere/engine",)
ENGINE = (sys.executable, "-m", "engine.fields")
MODEL = Path("synthetic:tiny-v4")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("backnd=triton", "Unknown configuration field 'backnd'"),
        ("backend=cuda", "backend must be one of torch, triton; got 'cuda'"),
        ("tile_wo_b=columns=32", "tile_wo_b is a choice of the triton backend"),
        ("context=4096", "context 4096 exceeds the checkpoint's max_position_embeddings 2048"),
    ],
)
def test_what_the_engine_cannot_begin_with_is_refused_before_anything_is_begun(
    asked: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "l.db"
    assert main(["run", "--ledger", str(ledger), "--start", asked]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ('{"rates": 1}', "--head-recipe: Unknown recipe field 'rates'"),
        ('{"hass_from": 99}', "hass_from must be an integer from 0 to 64; got 99"),
        ('{"hass_from": 5}', "must fit the head's block of 5 slots"),
    ],
)
def test_a_recipe_of_which_every_head_would_fail_is_refused_before_anything_is_begun(
    recipe: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "l.db"
    assert main(["run", "--ledger", str(ledger), "--heads", "--head-recipe", recipe]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not ledger.exists()
    start.check_recipe({"steps": 3}, MODEL, ENGINE)


def test_chats_that_fill_no_corpus_are_refused_before_anything_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats, ledger = tmp_path / "chats.jsonl", tmp_path / "l.db"
    line = {"category": "reasoning", "messages": [{"role": "user", "content": "How far is it?"}],
            "licence": "CC0-1.0", "source": "there"}  # fmt: skip
    words = ["run", "--ledger", str(ledger), "--heads", "--head-chats", str(chats)]
    for text, said in (
        (json.dumps(line), "--head-chats: The category long_context gives 0 of 64"),
        ("hello", "line 1, is no prompt with a licence and a source"),
    ):
        chats.write_text(text + "\n")
        assert main(words) == 2
        assert said in " ".join(capsys.readouterr().err.split())
        assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


def test_a_ledger_keeps_the_first_configuration_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    opened = Ledger.open(path)
    planned.open_campaign(
        opened, QUICK, start={"draft_width": 0, "threads": 2}, box="box",
        now_utc="2026-01-01T00:00:00Z",
    )  # fmt: skip
    opened.close()
    start.check(path, {"threads": 2}, MODEL, NOBODY)
    with pytest.raises(UsageError, match="--start threads=1 is for a new ledger"):
        start.check(path, {"threads": 1}, MODEL, NOBODY)
    with pytest.raises(UsageError, match='"threads": 2'):
        start.check(path, {"moe": "dense"}, MODEL, NOBODY)


def test_what_is_no_field_of_the_engine_is_not_its_to_judge(tmp_path: Path) -> None:
    start.check(tmp_path / "l.db", {"head": "mine", "threads": 2}, MODEL, ENGINE)


def test_an_engine_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    for command in (NOBODY, (sys.executable, "-c", "raise SystemExit(1)")):
        start.check(tmp_path / "l.db", {"nope": 1}, MODEL, command)


def checked(fields: str, interpreter: str) -> tuple[int, str]:
    """Exit code and sentence of the engine's own check."""
    done = subprocess.run(
        [*ENGINE, "--check", fields], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": interpreter},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_without_a_gpu_are_one_sentence() -> None:
    code, said = checked('{"backend": "triton"}', "0")
    assert code == 2
    assert said.startswith("The triton backend needs")
    assert said.count("\n") == 1


def test_a_field_that_no_tile_has_is_told_with_those_it_has() -> None:
    pytest.importorskip("triton", reason="TRITON MISSING: NO TILE IS TESTED HERE")
    assert checked('{"backend": "triton", "tile_wo_b": "columns=32"}', "1") == (0, "")
    code, said = checked('{"backend": "triton", "tile_wo_b": "colour=1"}', "1")
    assert code == 2
    assert said.startswith("tile_wo_b has no 'colour'; known: rows, columns")


@pytest.mark.parametrize("text", ["[]", "{", "7"])
def test_fields_to_check_are_an_object(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        fields.main(["--check", text])
    assert left.value.code == 2
    assert "must be a JSON object" in capsys.readouterr().err
