"""`flywheel mcp` with the SDK's own client, over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from servers import HERE

from flywheel.cli import app as cli

ROOT = HERE.parents[1]
LEVER = {"kind": "config", "name": "chunk.512", "field": "prefill_chunk", "value": 512,
         "claim": "long chunks", "falsify": "no faster", "predicted_gain": 0.01}  # fmt: skip
PRECISE = {**LEVER, "name": "precise", "field": "numerics", "value": "exact"}


def spoken(ledger: Path, talk: Callable[[Any], Awaitable[Any]]) -> Any:
    """Start the command, hold a conversation with it, and end it."""
    mcp = pytest.importorskip("mcp", reason="the MCP SDK is not installed")
    words = ["-m", "flywheel", "mcp", "--ledger", str(ledger), "--name", "helper"]
    asked = mcp.StdioServerParameters(
        command=sys.executable, args=words, cwd=str(ROOT),
        env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    async def whole() -> Any:
        async with (
            mcp.stdio_client(asked) as (incoming, outgoing),
            mcp.ClientSession(incoming, outgoing) as session,
        ):
            await session.initialize()
            return await talk(session)

    return asyncio.run(asyncio.wait_for(whole(), 90))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A copy of the project's own ledger."""
    shutil.copy(ROOT / "ledger.db", tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


def test_an_agent_reads_what_is_known_and_steers_within_the_rules(ledger: Path) -> None:
    async def talk(session: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"tools": (await session.list_tools()).tools}
        for tool, words in (
            ("report", {}), ("levers", {"state": "closed"}), ("findings", {"last": 3}),
            ("brief", {}),
            ("propose", {"levers": [LEVER, {**LEVER, "name": "again"}, PRECISE]}),
        ):  # fmt: skip
            found[tool] = await session.call_tool(tool, words)
        return found

    found = spoken(ledger, talk)
    assert [t.name for t in found["tools"]] == ["report", "levers", "findings", "brief", "propose"]
    assert [t.annotations.read_only_hint for t in found["tools"]] == [True] * 4 + [False]
    said = {name: found[name].structured_content for name in
            ("report", "levers", "findings", "brief", "propose")}  # fmt: skip
    assert "canaries" in said["report"]["text"]
    assert sum(said["report"]["tally"]["decisions"].values()) > 5
    assert any("was decided in this campaign by D" in x["state"] for x in said["levers"]["levers"])
    numbers = [f["number"] for f in said["findings"]["findings"]]
    assert numbers == [*range(numbers[0], numbers[0] + 3)]
    assert said["brief"]["schema"]["type"] == "object"
    assert said["brief"]["fields"]["moe"]["choices"] == ["loop", "fused", "dense"]
    verdicts = said["propose"]["levers"]
    assert [one["admitted"] for one in verdicts] == [True, False, False]
    assert "same change as chunk.512" in verdicts[1]["reason"]


def test_what_an_agent_proposed_is_on_record_with_its_transcript(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def talk(session: Any) -> None:
        await session.call_tool("propose", {"levers": [LEVER]})

    spoken(ledger, talk)
    capsys.readouterr()
    assert cli.main(["levers", "attempts", "--ledger", str(ledger), "--json"]) == 0
    (attempt,) = json.loads(capsys.readouterr().out)["attempts"]
    assert (attempt["proposer"], attempt["admitted"], attempt["state"]) == ("helper", 1, "whole")


def test_a_wrong_form_and_a_wrong_word_are_told_and_nothing_is_recorded(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def talk(session: Any) -> tuple[Any, Any]:
        wrong = await session.call_tool("propose", {"levers": [{"kind": "config"}]})
        return wrong, await session.call_tool("levers", {"state": "curious"})

    wrong, refused = spoken(ledger, talk)
    assert wrong.structured_content["recorded"] is False
    assert "claim is missing" in wrong.structured_content["errors"][0]
    assert refused.is_error
    assert "state must be open, closed or all" in refused.content[0].text
    capsys.readouterr()
    cli.main(["levers", "attempts", "--ledger", str(ledger), "--json"])
    assert json.loads(capsys.readouterr().out)["attempts"] == []


def test_without_the_sdk_the_command_says_what_to_install(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == "mcp" or n.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert cli.main(["mcp", "--ledger", str(ledger)]) == 2
    assert "pip install 'flywheel-engine[mcp]'" in capsys.readouterr().err


def test_the_tools_can_be_listed_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mcp", "--list", "--json"]) == 0
    assert "propose" in json.loads(capsys.readouterr().out)["tools"]
