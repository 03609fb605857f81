"""`flywheel levers propose | attempts` and `flywheel report tally`, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever

from flywheel import declared
from flywheel.cli import app as cli
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK

IDEAS = {"answers": [{"levers": [
    {"kind": "config", "name": "threads.more", "field": "threads", "value": 4, "claim": "idle",
     "falsify": "no", "predicted_gain": 0.05},
    {"kind": "sweep", "name": "widths", "field": "draft_width", "values": [6, 7], "claim": "rows",
     "falsify": "no", "predicted_gain": 0.02},
    {"kind": "config", "name": "known", "field": "threads", "value": 2, "claim": "again",
     "falsify": "no", "predicted_gain": 0.05},
]}]}  # fmt: skip


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a ledger that closed threads=2 and promoted depth=3, and ideas."""
    monkeypatch.chdir(tmp_path)
    ledger = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    levers = [lever("flat", {"threads": 2}), lever("good", {"depth": 3}, predicted_gain=0.05)]
    drive(ledger, levers, World({'{"depth":3}': -0.08}))
    ledger.close()
    (tmp_path / "ideas.json").write_text(json.dumps(IDEAS))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    cli.main([*words, "--json"])
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


def test_a_rehearsal_judges_and_leaves_nothing(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(box.rglob("*"))
    found = told(capsys, "levers", "propose", "--proposer", "scripted ideas.json", "--dry-run")
    assert found["attempt"] is None
    assert [(one["name"], one["admitted"]) for one in found["levers"]] == [
        ("threads.more", True), ("widths", True), ("known", False),
    ]  # fmt: skip
    assert sorted(box.rglob("*")) == before


def test_what_is_admitted_waits_for_the_next_run(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["levers", "propose", "--proposer", "scripted ideas.json"]) == 0
    said = capsys.readouterr().out
    assert "threads.more: admitted" in said
    assert "known: refused: known is the same change as threads.2" in " ".join(said.split())
    names = {x["name"]: x["state"] for x in told(capsys, "levers", "list")["levers"]}
    assert [names[n] for n in ("threads.more", "widths.6", "widths.7")] == ["open"] * 3
    again = told(capsys, "levers", "propose", "--proposer", "scripted ideas.json")
    assert not any(one["admitted"] for one in again["levers"])
    attempts = told(capsys, "levers", "attempts")["attempts"]
    assert [(a["number"], a["admitted"], a["state"]) for a in attempts] == [
        (1, 2, "whole"), (2, 0, "whole"),
    ]  # fmt: skip
    assert cli.main(["levers", "attempts", "1"]) == 0
    assert "known (config): refused" in capsys.readouterr().out
    assert cli.main(["levers", "attempts", "7"]) == 2


def test_the_brief_can_be_looked_at(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "levers", "propose", "--proposer", "x", "--brief")
    assert {c["name"] for c in found["levers"]["closed"]} == {"flat", "good"}
    assert found["fields"]["threads"]["range"] == [0, 1024]
    assert "numerics" not in found["fields"]
    assert found["incumbent"]["promotions"]
    assert found["incumbent"]["recipe_changes"] is None
    assert found["schema"]["properties"]["levers"]["maxItems"] == found["limits"]["levers"]


def test_a_ledger_without_a_campaign_has_nothing_to_ask_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.open(tmp_path / "ledger.db").close()
    assert cli.main(["levers", "propose", "--proposer", "x"]) == 2
    assert "holds no campaign yet" in capsys.readouterr().err


def test_a_tally_tells_levers_by_origin_and_decisions_by_kind(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["levers", "propose", "--proposer", "idea=scripted ideas.json"])
    declared.add(box / "ledger.db", lever("mine", {"threads": 9}), ())
    ledger = Ledger.open(box / "ledger.db")
    with ledger.reading() as connection:
        proposed = [row.lever for row in views.load(connection).proposals]
    drive(ledger, proposed, World({'{"threads":4}': -0.08}))
    ledger.close()
    found = told(capsys, "report", "tally")
    by_origin = {one["origin"]: one for one in found["origins"]}
    assert by_origin["declared"]["decided"] == 2
    assert by_origin["declared"]["waiting"] > 0
    mine = by_origin["proposer:idea"]
    assert mine["endings"] == {"promoted": 1}
    assert (mine["attempts"], mine["admitted"], mine["refused"]) == (1, 2, 1)
    assert by_origin["proposer:idea, sweep"]["waiting"] == 2
    assert found["decisions"]["promoted"] == 2
    assert sum(found["decisions"].values()) == 3
    assert found["engine_s"] > 0
    assert "against the frozen first configuration" in found["gain"]["text"]
    assert cli.main(["report", "tally"]) == 0
    assert "proposer:idea" in capsys.readouterr().out
