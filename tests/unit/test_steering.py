"""A person steers the queue: prices, defers, reopens, and names what goes first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever, play

from flywheel import best as best_of, declared, priority
from flywheel.cli import app as cli
from flywheel.errors import LedgerError, LeverError
from flywheel.ledger import steering, views
from flywheel.ledger.store import Ledger
from flywheel.ledger.views import View
from flywheel.lever import KINDS, Lever
from flywheel.loop import plan, planned
from flywheel.loop.eligible import admit
from flywheel.loop.supply import Supply
from flywheel.statistics.campaign import QUICK


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a quick campaign."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def reasons(ledger: Ledger, levers: list[Lever]) -> dict[str, str]:
    view = see(ledger)
    ready, refused = admit(view, levers, best_of.fold(view), {}, KINDS)
    return {c.lever.name: c.note for c in ready} | {r.lever.name: r.reason for r in refused}


def next_lever(ledger: Ledger, levers: list[Lever], *first: str) -> plan.NextBlock:
    """The next block of a lever, past nulls and canaries."""
    while True:
        step = plan.next_step(see(ledger), levers, first=first)
        assert isinstance(step, plan.NextBlock)
        if step.purpose == "lever":
            return step
        play(ledger, step, World())


def test_a_ceiling_under_the_bar_closes_a_lever_unbuilt(ledger: Ledger) -> None:
    doomed = lever("doomed", {"x": 1})
    steering.steer(ledger, doomed, "priced", "0.1 % of a step", now_utc=NOW, ceiling=0.001)
    drive(ledger, [doomed], World({'{"x":1}': -0.05}))
    made = next(v for v in see(ledger).variants if v.purpose == "lever")
    assert made.decision is not None
    assert made.decision.code == "priced_out"
    assert made.blocks == ()
    assert made.lever.ceiling == 0.001


def test_the_newest_price_counts(ledger: Ledger) -> None:
    one = lever("one", {"x": 1})
    for ceiling in (0.001, 0.2):
        steering.steer(ledger, one, "priced", "again", now_utc=NOW, ceiling=ceiling)
    assert next_lever(ledger, [one]).lever.ceiling == 0.2


def test_a_deferred_lever_waits_until_it_is_reopened(ledger: Ledger) -> None:
    one = lever("one", {"x": 1})
    steering.steer(ledger, one, "deferred", "not tonight", now_utc=NOW)
    assert reasons(ledger, [one])["one"] == "one is deferred: not tonight"
    steering.steer(ledger, one, "reopened", "now", now_utc=NOW)
    assert reasons(ledger, [one])["one"] == ""


def test_a_closed_lever_is_reopened_once_and_not_for_ever(ledger: Ledger) -> None:
    flat = lever("flat", {"x": 1})
    drive(ledger, [flat], World())
    assert "was decided in this campaign" in reasons(ledger, [flat])["flat"]
    steering.steer(ledger, flat, "reopened", "a new driver", now_utc=NOW)
    assert "reopened after D" in reasons(ledger, [flat])["flat"]
    assert "a new driver" in next_lever(ledger, [flat]).why
    drive(ledger, [flat], World(seed=3))
    tried = [v for v in see(ledger).variants if v.purpose == "lever"]
    assert len(tried) == 2
    assert "was decided in this campaign" in reasons(ledger, [flat])["flat"]


def test_a_word_without_a_reason_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="reason"):
        steering.steer(ledger, lever(), "deferred", " ", now_utc=NOW)
    assert see(ledger).steering == ()


def test_a_choice_is_stored_with_its_terms_and_what_it_was_made_over(ledger: Ledger) -> None:
    levers = [lever(f"l{k}", {f"f{k}": 1}, predicted_gain=0.01 * k) for k in range(1, 7)]
    step = next_lever(ledger, levers)
    assert step.lever.name == "l6"
    play(ledger, step, World())
    with ledger.reading() as connection:
        (stored,) = steering.choices(connection, step.lever.identity)
    assert stored.why == step.why
    assert [name for name, _ in stored.runners_up] == ["l5", "l4", "l3"]
    assert stored.value > stored.runners_up[0][1]
    assert stored.terms["chance"] == pytest.approx(1 / 3, abs=0.005)
    assert stored.terms["waiting"] == 6
    product = stored.terms["chance"] * stored.terms["gain"] / stored.terms["minutes"]
    assert stored.value == pytest.approx(product, rel=0.05)


def test_what_a_person_names_goes_first_and_says_so(ledger: Ledger) -> None:
    levers = [lever(f"l{k}", {f"f{k}": 1}, predicted_gain=0.01 * k) for k in range(1, 4)]
    step = next_lever(ledger, levers, "l1", "l2")
    assert step.lever.name == "l1"
    assert step.why.startswith("asked for first: P(win)")
    assert next_lever(ledger, levers, "nobody").lever.name == "l3"


def test_the_priority_file_is_names_and_remarks(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert priority.read(ledger) == ()
    priority.path_for(ledger).write_text("# tonight\n b  # the tiles\n\na\nb\n")
    assert priority.read(ledger) == ("b", "a")
    priority.path_for(ledger).write_bytes(b"\xef\xbb\xbfb\r\na\r\n")
    assert priority.read(ledger) == ("b", "a")
    priority.path_for(ledger).write_bytes(b"\xff\n")
    with pytest.raises(LeverError, match="cannot be read"):
        priority.read(ledger)


@pytest.mark.parametrize("reading", [priority.read, declared.read], ids=["PRIORITY", "levers"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(
    tmp_path: Path, reading: Callable[[Path], object]
) -> None:
    for path in (priority.path_for(tmp_path / "l.db"), declared.path_for(tmp_path / "l.db")):
        os.mkfifo(path)
    with pytest.raises(LeverError, match="it is not a regular file"):
        reading(tmp_path / "l.db")


def test_files_are_read_anew_and_a_broken_one_is_said_once(tmp_path: Path) -> None:
    ledger, said = tmp_path / "ledger.db", []
    supply = Supply(ledger, lambda _view: declared.read(ledger), said.append)
    assert supply.levers(View()) == ()
    declared.add(ledger, lever("one", {"x": 1}), ())
    assert [one.name for one in supply.levers(View())] == ["one"]
    declared.path_for(ledger).write_text("{")
    assert [one.name for one in supply.levers(View())] == ["one"]
    assert [one.name for one in supply.levers(View())] == ["one"]
    assert len(said) == 1
    assert "line 1 is no lever" in said[0]
    priority.path_for(ledger).write_text("one\ntypo\n")
    assert supply.first() == supply.first() == ("one", "typo")
    assert said[1:] == ["PRIORITY names typo, which no lever of this run is called"]


def test_what_is_declared_is_read_as_it_was_declared(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    one = lever("one", {"x": 1}, slow=True, share=0.25, needs=("drafts",), ceiling=0.1)
    declared.add(ledger, one, ())
    assert declared.read(ledger) == (one,)


def test_a_line_that_an_editor_left_without_its_end_is_not_written_on(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    declared.add(ledger, lever("one", {"x": 1}), ())
    path = declared.path_for(ledger)
    path.write_text(path.read_text().rstrip("\n"))
    declared.add(ledger, lever("two", {"x": 2}), ())
    assert [one.name for one in declared.read(ledger)] == ["one", "two"]


def test_what_another_declared_meanwhile_is_known(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    declared.add(ledger, lever("one", {"x": 1}), ())
    with pytest.raises(LeverError, match="same change as one"):
        declared.add(ledger, lever("two", {"x": 1}), ())
    with pytest.raises(LeverError, match="named one is declared already"):
        declared.add(ledger, lever("one", {"x": 2}), ())
    assert len(declared.read(ledger)) == 1


def test_a_full_disk_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, write = tmp_path / "ledger.db", os.write
    declared.add(ledger, lever("one", {"x": 1}), ())
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
    with pytest.raises(OSError, match="No space left"):
        declared.add(ledger, lever("two", {"x": 2}), ())
    monkeypatch.undo()
    assert [one.name for one in declared.read(ledger)] == ["one"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "number #1"])
def test_a_name_that_no_line_of_priority_can_say_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LeverError, match="PRIORITY"):
        declared.add(tmp_path / "ledger.db", lever(name, {"x": 1}), ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "recursion"),
        ("null", "it is not a JSON object"),
        ('{"name": "g", "predicted_gain": 1%s}' % ("0" * 400), "not a fraction"),
        ('{"name": "g", "predicted_gain": NaN}', "not a fraction"),
        ('{"name": "g", "predicted_gain": true}', "predicted_gain cannot be true"),
        ('{"name": "g", "hot": "no"}', 'hot cannot be "no"'),
        ('{"name": "g", "family": 7}', "family cannot be 7"),
        ('{"name": "g", "null": true, "change": {}}', "field 'null'"),
        ('{"name": "s", "field": "x", "values": "abc"}', "values cannot be"),
        ('{"name": "s", "field": "x", "low": 1, "high": 2, "trials": NaN}', "trials cannot be NaN"),
        ('{"name": "one"}', "an earlier line is named one"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_lever_is_named_with_what_is_wrong(
    tmp_path: Path, line: str, said: str
) -> None:
    ledger = tmp_path / "ledger.db"
    path = declared.add(ledger, lever("one", {"x": 1}), ())
    rest = {"claim": "c", "falsify": "f", "predicted_gain": 0.1}
    if line.startswith("{"):
        extra = rest if '"field"' in line else rest | {"kind": "config", "change": {"y": 2}}
        missing = {k: v for k, v in extra.items() if f'"{k}"' not in line}
        line = line[:-1] + ", " + json.dumps(missing)[1:]
    with path.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(LeverError, match="line 2") as caught:
        declared.read(ledger)
    assert said in str(caught.value)


@pytest.fixture
def say(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command on the ledger: exit code, JSON answer or error text."""
    path = ledger.path

    def run(*words: str) -> tuple[int, Any]:
        code = cli.main([*words, "--ledger", str(path), "--json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else shown.err

    return run


def test_the_commands_steer_and_the_queue_explains_itself(say: Any, ledger: Ledger) -> None:
    words = ("--claim", "c", "--falsify", "f", "--predicted-gain", "0.9")
    assert say("levers", "add", "mine", "--set", "mine=1", *words, "--share", "0.5")[0] == 0
    code, told = say("levers", "why-next", "--top", "2")
    assert code == 0
    assert told["next"].startswith("null: null 1 of")
    assert told["queue"][0]["name"] == "mine"
    assert "x 50 % of traffic" in told["queue"][0]["why"]
    assert len(told["queue"]) == 2 < told["waiting"]
    assert told["queue"][0]["gain_per_hour"] > told["queue"][1]["gain_per_hour"]

    code, told = say("levers", "defer", "mine", "--why", "not\ntonight")
    assert code == 0
    assert told["state"].endswith("not tonight")
    assert "mine" not in [one["name"] for one in say("levers", "why-next")[1]["queue"]]
    assert say("levers", "reopen", "mine", "--why", "now")[1]["state"] == "open"
    assert say("levers", "price", "mine", "--ceiling", "0.02", "--why", "probe")[0] == 0
    shown = say("levers", "show", "mine")[1]
    assert [one["word"] for one in shown["said"]] == ["deferred", "reopened", "priced"]
    assert shown["chosen"] == []
    priority.path_for(ledger.path).write_text("threads.2\n")
    told = say("levers", "why-next")[1]
    assert told["first"] == ["threads.2"]
    assert told["queue"][0]["name"] == "threads.2"


def test_a_narrow_terminal_shows_every_name_whole(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-lever-with-quite-a-long-name"
    priority.path_for(ledger.path).write_text(f"{name}\n")
    declared.add(ledger.path, lever(name, {"x": 1}), ())
    assert cli.main(["levers", "why-next", "--top", "1", "--ledger", str(ledger.path)]) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("levers", "price", "threads.2", "--ceiling", "1.5", "--why", "x"), "fraction"),
        (("levers", "price", "threads.2", "--ceiling", "nan", "--why", "x"), "fraction"),
        (("levers", "defer", "threads.2", "--why", " "), "recorded"),
        (("levers", "reopen", "nobody", "--why", "x"), "no lever named nobody"),
    ],
)
def test_a_mistake_in_steering_is_one_sentence(say: Any, words: tuple[str, ...], said: str) -> None:
    code, told = say(*words)
    assert code == 2
    assert said in told["error"]
