"""The proposer for OpenAI-compatible endpoints against the project's own server and small model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from servers import HERE, Running

from flywheel.cli import app as cli

ROOT = HERE.parents[1]


def test_the_embedded_model_answers_in_form_and_its_levers_are_judged(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The grammar holds the model to the form; what it then says is judged like anybody's."""
    monkeypatch.chdir(ROOT)
    shutil.copy(ROOT / "ledger.db", tmp_path / "ledger.db")
    command = f"small=openai --url {server.url}/v1 --tokens 300 --characters 1600"
    code = cli.main([
        "levers", "propose", "--ledger", str(tmp_path / "ledger.db"), "--proposer", command,
        "--proposer-network", "--json",
    ])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / found["transcript"]).read_text())
    assert code == 0, found
    assert found["outcome"] == "answered"
    assert "no network" not in found["cage"]
    (exchange,) = kept["exchanges"]
    (lever,) = json.loads(exchange["stdout"])["levers"]
    assert lever["kind"] == "config"
    assert found["usage"]["completion_tokens"] > 10
    (verdict,) = found["levers"]
    assert verdict["admitted"] or verdict["reason"]
