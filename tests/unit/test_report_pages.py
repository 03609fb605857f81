"""One lever, one run, two configurations; what is shown of each, and --since."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever
from reports import LEVERS, committed, finished_view

from flywheel.cli import app as cli
from flywheel.errors import UsageError
from flywheel.ledger import views
from flywheel.ledger.store import Ledger, log_text
from flywheel.loop import planned
from flywheel.report import (
    diff_page,
    find,
    html,
    lever_page,
    markdown,
    run_page,
    tables,
)
from flywheel.report.gather import gather
from flywheel.report.since import moment
from flywheel.statistics.campaign import QUICK

Json = Callable[..., Any]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own measured night."""
    return committed(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> views.View:
    """A fabricated night with every ending."""
    return finished_view(tmp_path_factory.mktemp("made"))


@pytest.fixture
def told(night: Path, capsys: pytest.CaptureFixture[str]) -> Json:
    """What a command answers with --json."""

    def ask(*words: str) -> Any:
        assert cli.main(["report", *words, "--ledger", str(night), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def printed(night: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, in one line."""

    def ask(*words: str) -> str:
        assert cli.main(["report", *words, "--ledger", str(night)]) == 0
        return " ".join(capsys.readouterr().out.split())

    return ask


@pytest.mark.parametrize("words", [("lever",), ("run",), ("diff",)])
def test_every_page_explains_itself_with_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", *words, "--help"]) == 0
    shown = capsys.readouterr().out
    for part in ("Example: flywheel report", "--ledger", "--json"):
        assert part in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lever", "hyper.hots"), "did you mean hyper.host"),
        (("lever", "D999"), "no lever 'D999'"),
        (("run", "r0000"), "begin with 'r0000'"),
        (("run", "r99999"), "there is no run 'r99999'"),
        (("run", "x"), "there is no run 'x'"),
        (("diff", "best", "v9999"), "names no configuration"),
        (("diff", "best", "nowhere.json"), "no readable JSON file"),
        (("diff", "best", "r99999"), "there is no run"),
        (("diff", "best", "9" * 5000), "names no configuration"),
        (("diff", "best", "a" * 5000), "names no configuration"),
        (("diff", "best", "\N{ARABIC-INDIC DIGIT THREE}"), "names no configuration"),
        (("diff", "BEST", "first"), "did you mean best?"),
        (("--since", "0500-01-01"), "lies before 1970"),
        (("--since", "9" * 5000 + "h"), "--since wants"),
        (("diff", "best", "r00006:C"), "has no arm C; it has A and B"),
        (("--since", "lately",), "--since wants"),
        (("--check",), "--check goes with --md"),
        (("--html", "/proc/none/x.html"), "cannot be written"),
    ],
)
def test_an_unknown_name_is_one_sentence_and_exit_2(
    night: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", *words, "--ledger", str(night)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_ledger_named_before_the_page_counts(
    night: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["report", "--ledger", str(night), "--json", "run", "r00006"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"].startswith("r00006")
    monkeypatch.setenv("FLYWHEEL_LEDGER", str(night))
    assert cli.main(["report", "lever", "hyper.host"]) == 0
    assert "hyper -> host" in capsys.readouterr().out


def test_a_lever_with_its_blocks_verdict_and_conditions(told: Json, printed: Any) -> None:
    page = told("lever", "hyper.host")
    assert page["claim"]
    assert "already in the incumbent" in page["state"]
    trial = page["trials"][0]
    assert len(trial["blocks"]) == trial["verdicts"][0]["blocks"] == 2
    verdict = trial["verdicts"][0]
    assert verdict["low"] < trial["measured"] == verdict["mean"] < verdict["high"]
    assert trial["rulers"] == ["quick-891e00"]
    assert any("promoted" in f for f in trial["findings"])
    assert page["others"] == [other for other in page["others"] if "hyper" in other]
    assert "hyper.matrix" in page["others"][0]
    text = printed("lever", "hyper.host")
    for part in ("claim", "falsified by", "predicted 10 %, measured 16.64 %", "D1", "E 437", "F2"):
        assert part in text


def test_a_lever_is_found_by_variant_decision_and_identity(told: Json) -> None:
    page = told("lever", "hyper.host")
    for name in (page["trials"][0]["variant"], "D1", page["identity"][:8]):
        assert told("lever", name)["name"] == "hyper.host"


def test_a_declared_lever_that_never_ran_says_so(printed: Any) -> None:
    text = printed("lever", "attention.joined")
    assert "measured never" in text
    assert "state open" in text


def test_void_blocks_and_superseded_verdicts_are_shown(made: views.View) -> None:
    page = lever_page.lever_page(made, LEVERS[1], "closed")
    text = " ".join(line.text for line in lever_page.lines(page, tables.Page(80)))
    assert "void: guard_kill, 1.9 GB free" in text
    assert "regression in code, prose" in text
    assert "others on the same field" not in text
    assert max(len(line.text) for line in lever_page.lines(page, tables.Page(40))) <= 40


def test_a_run_with_its_manifest_numbers_and_lines(told: Json, printed: Any) -> None:
    page = told("run", "r00006")
    assert page["run"]["outcome"] == "ok"
    assert page["exit_status"] == 0
    assert page["guard"] is None
    assert page["manifest"]["config"]["order"] == ["A", "B", "B", "A"]
    times = {s["arm"]: s for s in page["sums"] if s["metric"] == "time"}
    assert times["B"]["value"] < times["A"]["value"]
    assert times["A"]["counted"] == 2
    lines = {line["number"] for line in page["evidence"]["lines"]}
    assert {times["A"]["first_line"], times["A"]["last_line"]} <= lines
    text = printed("run", "r00006")
    for part in ("guard none recorded", "exit status 0", "arm B", "to repeat", "sha256", "L15"):
        assert part in text


def test_a_run_says_what_its_guard_saw(made: views.View) -> None:
    variant = made.variants[0]
    block = variant.blocks[0]
    told = {"verdict": "killed", "killed_at_bytes": 1_900_000_000, "reaction_s": 0.21}
    run = replace(block.runs[0], outcome="killed", code="guard_killed",
                  evidence={"exit": {"status": -9, "guard": told}})  # fmt: skip
    page = run_page.run_page((variant, block, run), {}, None, ())
    assert page.guard == told
    text = [line.text for line in run_page.lines(page, tables.Page(40))]
    assert max(len(line) for line in text) <= 40
    whole = " ".join(" ".join(text).split())
    assert "guard verdict killed, killed_at_bytes 1900000000, reaction_s 0.21" in whole
    assert "exit status -9" in whole


@pytest.mark.parametrize("words", [("lever", "row.tile.6"), ("run", "r00006"),
                                   ("diff", "first", "v0010")])  # fmt: skip
def test_the_pages_survive_forty_columns(
    night: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["report", *words, "--ledger", str(night)]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 40


def test_a_run_prints_its_stored_log_and_what_repeats_it(
    night: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["report", "run", "r00006", "--log", "--ledger", str(night)]) == 0
    shown = capsysbinary.readouterr().out
    opened = Ledger.open(night)
    with opened.reading() as connection:
        _, _, run = find.run(views.load(connection), "r00006")
        stored = log_text(connection, run.id)
        manifest = views.manifest(connection, run.id)
    opened.close()
    assert shown == (stored or "").encode()
    assert cli.main(["report", "run", "r00006", "--config", "--ledger", str(night)]) == 0
    assert json.loads(capsysbinary.readouterr().out) == manifest["config"]


def test_first_and_best_differ_by_what_was_promoted(told: Json, printed: Any) -> None:
    page = told("diff", "first", "best")
    (only,) = page["differences"]
    assert (only["field"], only["b"]) == ("hyper", "host")
    (worth,) = only["worth"]
    assert worth["decision"] == 1
    assert worth["low"] < worth["mean"] < worth["high"]
    assert page["together"][0]["mean"] == pytest.approx(0.18, abs=0.01)
    assert "saves 16.6 % [15.4, 17.8] of the time, 2 blocks" in printed("diff", "first", "best")
    assert "nothing differs" in printed("diff", "best", "best")


def test_going_back_costs_more_than_going_there_saved(told: Json) -> None:
    there = told("diff", "first", "best")["differences"][0]["worth"][0]
    back = told("diff", "best", "first")["differences"][0]["worth"][0]
    assert back["reversed_"]
    assert 1 - back["mean"] == pytest.approx(1 / (1 - there["mean"]))
    assert back["low"] < back["mean"] < back["high"]


def test_a_difference_that_nothing_measured_says_never(
    printed: Any, told: Json, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"config": {"hyper": "host", "attention": "blocks"}}')
    page = told("diff", "best", str(path))
    assert [d["field"] for d in page["differences"]] == ["attention"]
    assert page["differences"][0]["worth"] == []
    text = printed("diff", "best", str(path))
    assert "never measured" in text
    assert "as a whole was never measured" in text


def test_every_way_to_name_a_configuration(told: Json) -> None:
    page = told("diff", "D1", "best")
    assert page["differences"] == []
    for name in ("v0002", "r00006", "r00006:B", page["a"]["fingerprint"][:8]):
        assert told("diff", name, "best")["differences"] == [], name
    assert len(told("diff", "r00006:A", "best")["differences"]) == 1


def test_a_file_that_holds_no_configuration_is_refused(made: views.View, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("[1]")
    with pytest.raises(UsageError, match="not a JSON object"):
        diff_page.side(made, str(path))


NIGHT = datetime(2026, 11, 29, 7, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("8h", "2026-11-28T22:30:00Z"),
        ("90 min", "2026-11-29T05:00:00Z"),
        ("2d", "2026-11-27T06:30:00Z"),
        ("1.5h", "2026-11-29T05:00:00Z"),
        ("yesterday", "2026-11-27T23:00:00Z"),
        ("today", "2026-11-28T23:00:00Z"),
        ("2026-11-28T22:00", "2026-11-28T21:00:00Z"),
        ("2026-11-28T22:00:00Z", "2026-11-28T22:00:00Z"),
        ("2026-11-28", "2026-11-27T23:00:00Z"),
    ],
)
def test_since_in_the_words_of_a_morning(text: str, utc: str) -> None:
    assert moment(text, NIGHT) == utc


@pytest.mark.parametrize("text", ["", "8", "h", "-3h", "tomorrowish", "99999999999w", "2026-13-01"])
def test_since_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(UsageError, match="--since wants"):
        moment(text, datetime(2026, 11, 29, tzinfo=UTC))


def test_since_on_the_command_line(told: Json) -> None:
    assert told("--since", "2026-11-29T17:00")["rows"]
    later = told("--since", "2027-01-01")
    assert later["rows"] == []
    assert later["since_utc"][:4] in ("2026", "2027")


def test_a_prefix_must_be_the_only_one() -> None:
    known = {"r00001-a": 1, "r00001-b": 2, "r00002-c": 3}
    assert find.by_prefix("run", "r00002", known) == 3
    assert find.by_prefix("run", "r00001-a", known) == 1
    with pytest.raises(UsageError, match="2 runs begin with"):
        find.by_prefix("run", "r00001", known)
    for wanted in ("", "zz"):
        with pytest.raises(UsageError, match="there is no run"):
            find.by_prefix("run", wanted, known)


def test_a_screen_is_told_on_the_pages_of_both_its_levers(tmp_path: Path) -> None:
    levers = [lever(name, {name: "on"}, hot=False) for name in ("quick", "slow")]
    opened = Ledger.open(tmp_path / "screens.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    drive(opened, levers, World({'{"quick":"on"}': -0.06, '{"slow":"on"}': 0.06}, load_sd=0.004))
    with opened.reading() as connection:
        view = views.load(connection)
    texts = [
        " ".join(line.text for line in lever_page.lines(
            lever_page.lever_page(view, one, "closed"), tables.Page(200)
        )) for one in levers
    ]  # fmt: skip
    assert "screen: " in texts[0]
    assert "passed the screen" in texts[0]
    assert "screened out" in texts[1]
    block = next(b for b in view.blocks() if b.mate_id is not None)
    for run, change in zip(block.runs, ({}, levers[0].change, levers[1].change, {}), strict=True):
        assert dict(diff_page.side(view, run.id).config) == dict(change)
    document = gather(opened, levers)
    turned_away = next(row for row in document.rows if row.code == "screened_out")
    assert turned_away.sample == "a screen"
    assert len(turned_away.runs) == 4
    assert document.cost.decided == 2
    assert "screen: " in html.render(document)


def test_what_a_screen_turned_away_never_stands_on_no_blocks(tmp_path: Path) -> None:
    levers = [lever(name, {name: "on"}, hot=False) for name in ("quick", "slow")]
    opened = Ledger.open(tmp_path / "screens.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    drive(opened, levers, World({'{"quick":"on"}': -0.06, '{"slow":"on"}': 0.06}, load_sd=0.004))
    with opened.reading() as connection:
        view = views.load(connection)
        pages = markdown.texts(connection, levers)
    turned_away = next(v for v in view.variants if v.lever.name == "slow")
    slow = lever_page.lever_page(view, levers[1], "closed")
    texts = [
        *(line.text for line in lever_page.lines(slow, tables.Page(200))),
        *(line.text for line in diff_page.lines(diff_page.diff_page(
            view, diff_page.side(view, "first"), diff_page.side(view, turned_away.id), {}
        ), tables.Page(200))),
        *pages.values(),
        html.render(gather(opened, levers)),
    ]  # fmt: skip
    assert not re.search(r"\b0 blocks|no block\b", "\n".join(texts))
    assert "| a screen |" in pages["LEVERS.md"]
    assert "from a screen" in "\n".join(texts)
    # Its own load is named after it, and so is the reason for the screen that it shared.
    assert f"b00007.3 | slow ({turned_away.id})" in pages["RUNS.md"]
    assert turned_away.why == "screen, with quick"


def test_the_page_holds_the_width_analysis(night: Path) -> None:
    opened = Ledger.read(night)
    page = html.render(gather(opened, [], with_evidence=True))
    opened.close()
    assert "<h2>Widths: the best configuration" in page
    assert "Time per token by width" in page
    assert "<dt>oracle</dt>" in page
