"""The command line: help, one-sentence errors, exit codes, and one JSON document."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flywheel import suite
from flywheel.cli import app as cli, commands, forging, levers as cli_levers
from flywheel.cli.terminal import finite, sentence
from flywheel.errors import FlywheelError, LeverError, UsageError
from flywheel.ledger.store import Ledger
from flywheel.loop import glance, planned
from flywheel.loop.order import Order, Session
from flywheel.statistics.campaign import HEADS


def flywheel(*words: str) -> int:
    return cli.main(list(words))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("run",), ("report",), ("serve",), ("status",), ("attach",), ("stop",),
        ("resume",), ("doctor",), ("best",),
        ("levers", "list"), ("levers", "show"), ("levers", "add"),
        ("levers", "propose"), ("levers", "attempts"), ("report", "tally"),
        ("ledger", "rebuild"), ("ledger", "verify"),
    ],
)  # fmt: skip
def test_every_command_explains_itself_with_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert flywheel(*words, "--help") == 0
    shown = capsys.readouterr().out
    assert "Example:" in shown
    for option in ("--ledger", "--json"):
        assert option in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("frob",), 2, "No such command 'frob'"),
        (("run", "--budget-runs", "0"), 2, "budget-runs"),
        (("run", "--budget-hours", "soon"), 2, "budget-hours"),
        (("run", "--window", "late", "--suite", "s"), 2, "HH:MM-HH:MM"),
        (("run", "--only", "nobody"), 2, "no lever named nobody"),
        (("run", "--proposer", "'open"), 2, "is no command line"),
        (("run", "--proposer", "a=x", "--proposer", "a=y"), 2, "two proposers are named a"),
        (("run", "--proposer", "x", "--proposer-env", "NO_SUCH"), 2, "NO_SUCH, which is not set"),
        (("run", "--suite", "nowhere.json"), 2, "no readable suite"),
        (("run", "--ledger", "no/where/ledger.db"), 2, "does not exist"),
        (("report",), 2, "there is no ledger"),
        (("status",), 2, "there is no ledger"),
        (("attach",), 2, "there is no ledger"),
        (("stop",), 2, "there is no ledger"),
        (("resume", "--why", "x"), 2, "there is no ledger"),
        (("resume", "--why", " "), 2, "recorded"),
        (("run", "--detach", "--ledger", "no/where/ledger.db"), 2, "does not exist"),
        (("best",), 2, "there is no ledger"),
        (("serve",), 2, "there is no ledger"),
        (("ledger", "verify"), 2, "there is no ledger"),
        (("levers", "show", "nobody"), 2, "no lever named nobody"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_code(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flywheel(*words) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("flywheel: ")
    assert shown.out == ""
    assert flywheel(*words, "--json") == code
    shown = capsys.readouterr()
    assert said in json.loads(shown.out)["error"]


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert flywheel() == 2
    assert "Usage: flywheel" in capsys.readouterr().out


def test_unexpected_errors_have_codes_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code in (
        (FlywheelError("it broke"), 1),
        (OSError("the disk broke"), 1),
        (KeyboardInterrupt(), 1),
    ):

        def broken(*_: object, error: BaseException = error, **__: object) -> int:
            raise error

        monkeypatch.setattr(glance, "status", broken)
        assert flywheel("status") == code
        assert capsys.readouterr().err.startswith("flywheel: ")


def test_a_lever_is_declared_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--claim", "c", "--falsify", "f", "--predicted-gain", "0.05", "--json")
    assert flywheel("levers", "add", "zeta", "--set", "zeta_field=4", *words) == 0
    added = json.loads(capsys.readouterr().out)
    assert added["change"] == {"zeta_field": 4}
    assert added["hot"]
    assert flywheel("levers", "add", "other", "--set", "zeta_field=4", *words) == 2
    assert "same change as zeta" in capsys.readouterr().err
    assert flywheel("levers", "add", "zeta", "--set", "zeta_field=5", *words) == 2
    assert "named zeta" in capsys.readouterr().err
    assert flywheel("levers", "add", "eta", "--set", "nothing", *words) == 2
    assert "FIELD=VALUE" in capsys.readouterr().err
    wrong = ("--claim", "c", "--falsify", "f", "--predicted-gain", "7")
    assert flywheel("levers", "add", "eta", "--set", "a=b", *wrong) == 2
    assert "not a fraction" in capsys.readouterr().err
    assert flywheel("levers", "list", "--json") == 0
    levers = json.loads(capsys.readouterr().out)["levers"]
    assert [one["state"] for one in levers if one["name"] == "zeta"] == ["open"]
    assert flywheel("levers", "list") == 0
    assert "zeta_field -> 4" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    assert flywheel("levers", "list") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "zeta  predicted 5 %" in shown
    assert "  zeta_field -> 4: open" in [line.rstrip() for line in shown]
    assert flywheel("levers", "show", "zeta") == 0
    assert "zeta_field" in capsys.readouterr().out
    assert flywheel("levers", "add", "cold", "--set", "theta=word", "--cold", *words[:-1]) == 0
    assert "declared cold" in capsys.readouterr().out
    Path("levers.jsonl").write_text('\n{"name": 1}\n')
    with pytest.raises(LeverError, match="line 2 is no lever"):
        cli_levers.known(Path("ledger.db").absolute())


def test_status_and_stop_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Ledger.open("ledger.db").close()
    assert flywheel("status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert not told["running"]
    assert told["campaign"] is None
    assert flywheel("status") == 0
    assert "not running" in capsys.readouterr().out
    assert flywheel("stop", "--now", "--json") == 0
    assert json.loads(capsys.readouterr().out)["said"] == "nothing is running"
    assert not Path("STOP").exists()
    assert flywheel("attach") == 3
    assert "no daemon runs" in capsys.readouterr().err
    assert flywheel("resume", "--why", "nothing was wrong") == 0
    assert "nothing was halted" in capsys.readouterr().out


def test_a_file_that_is_no_ledger_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.txt").write_text("not a ledger")
    Path("checkpoint").mkdir()
    Path("checkpoint/config.json").write_text("{}")
    for words in (("run", "--checkpoint", "checkpoint"), ("status",)):
        assert flywheel(*words, "--ledger", "notes.txt") == 1
        assert "not a" in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["checkpoint", "notes.txt"]


def test_the_environment_names_the_ledger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("elsewhere.db", "here.db"):
        Ledger.open(tmp_path / name).close()
    monkeypatch.setenv("FLYWHEEL_LEDGER", str(tmp_path / "elsewhere.db"))
    assert flywheel("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ledger"] == str(tmp_path / "elsewhere.db")
    assert flywheel("status", "--ledger", "here.db", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ledger"] == str(tmp_path / "here.db")


def test_json_holds_no_number_without_a_json_form() -> None:
    value: Any = {"a": (float("nan"), 1.5), 3: float("inf"), "b": [True, None, "x"]}
    assert finite(value) == {"a": [None, 1.5], "3": None, "b": [True, None, "x"]}
    assert sentence("two\n lines") == "two lines."
    assert sentence("done!") == "done!"


def test_commands_come_from_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("X_COMMAND", "python 'a b.py' --x")
    assert commands.command_from("X_COMMAND", ("d",)) == ("python", "a b.py", "--x")
    monkeypatch.setenv("X_COMMAND", "")
    assert commands.command_from("X_COMMAND", ("d",)) == ("d",)
    assert commands.checkpoint_path(None).name == "tiny-v4"
    assert commands.suite_path(None).name == f"{suite.DEFAULT_SUITE}.json"


def test_a_quick_ruler_takes_few_prompts_and_never_none(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    prompts = [{"id": f"c{n % 10}-{n}", "category": f"c{n % 10}"} for n in range(30)]
    path.write_text(json.dumps({"name": "s", "prompts": prompts}))
    found = suite.load(path)
    assert len(found.ids) == 30
    assert found.quick() == ("c3-3", "c8-8")
    path.write_text(json.dumps({"name": "s", "prompts": prompts[:2]}))
    assert suite.load(path).quick() == ("c0-0",)
    for body in ({"prompts": []}, {"prompts": [1]}, {"prompts": [prompts[0], prompts[0]]}):
        path.write_text(json.dumps(body))
        with pytest.raises(UsageError):
            suite.load(path)


def test_a_ledger_that_can_be_no_file_is_a_mistake_for_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    for words in (("status",), ("report",), ("run",), ("run", "--detach"), ("ledger", "verify")):
        for name, said in (
            (".", "is a folder"), ("loop", "leads nowhere"), ("pipe", "no regular file"),
            ("~nobody.at.all/l.db", "leads nowhere"),
        ):  # fmt: skip
            assert flywheel(*words, "--ledger", name) == 2
            error = capsys.readouterr().err
            assert said in error
            assert error.count("\n") == 1


def test_a_terminal_without_a_width_is_shown_the_page_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open("ledger.db").close()
    for columns in ("0", "1"):
        monkeypatch.setenv("COLUMNS", columns)
        assert flywheel("status") == 0
        assert "not running" in capsys.readouterr().out


def test_bytes_that_are_no_text_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.fsdecode(b"\xff")
    Ledger.open("ledger.db").close()
    for words in (("status", "--ledger", odd), ("resume", "--why", odd), ("run", "--only", odd)):
        assert flywheel(*words) == 2
        assert "is not UTF-8" in capsys.readouterr().err
    Path(odd).mkdir()
    monkeypatch.chdir(odd)
    assert flywheel("run") == 2
    assert "is not UTF-8" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_session_of_heads_tells_of_no_other_levers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(commands.daemon, "run", lambda *_, **__: Session("", reason="spent"))
    monkeypatch.setattr(
        commands, "_document", lambda _, levers: told.extend(lever.kind for lever in levers)
    )
    assert cli.main(["run", "--ledger", str(tmp_path / "l.db"), "--heads"]) == 0
    assert set(told) == {"head"}
    assert "Stopped" in capsys.readouterr().out


GPU = {"backend": "triton"}


def test_a_gpu_gives_heads_more_text_and_wider_steps_unless_told_otherwise() -> None:
    on_host = forging.head_order({}, forging.Asked())
    assert (on_host.prompts, on_host.device, on_host.recipe) == (64, "cpu", {})
    on_gpu = forging.head_order(GPU, forging.Asked(recipe={"steps": 5}, at_once=3))
    assert (on_gpu.prompts, on_gpu.device, on_gpu.at_once) == (256, "cuda", 3)
    assert on_gpu.recipe["steps"] == 5
    assert on_gpu.recipe["anchors"] > 16
    assert forging.head_order(GPU, forging.Asked(prompts=8)).prompts == 8


def test_heads_are_judged_on_a_long_suite_where_that_takes_minutes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"prompts": [{"id": "a"}]}))
    long, held = suite.embedded(suite.DEFAULT_HEADS), suite.embedded(suite.DEFAULT_HOLDOUT)
    asked = forging.Asked()
    assert forging.head_order({}, asked).suite is None
    assert forging.head_order(GPU, asked).suite == long
    assert forging.head_order(GPU, asked, mine).suite is None
    assert forging.holdout_of(asked, None) == held
    assert forging.holdout_of(asked, mine) is None
    # The embedded hold-out guards nothing but the embedded suites.
    given = forging.Asked(suite=mine)
    assert forging.head_order({}, given).suite == mine
    assert forging.holdout_of(given, None) is None
    assert forging.holdout_of(replace(given, holdout=held), mine) == held


def test_a_night_that_goes_on_makes_heads_where_the_first_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders: list[Order] = []

    def run(order: Order, *_: object, **__: object) -> Session:
        orders.append(order)
        return Session("", reason="spent")

    monkeypatch.setattr(commands.daemon, "run", run)
    monkeypatch.setattr(commands, "_document", lambda *_: None)
    ledger = Ledger.open("ledger.db")
    planned.open_campaign(ledger, HEADS, start=GPU, box="b", now_utc="2026-11-28T22:00:00Z")
    ledger.close()
    assert flywheel("run", "--heads") == 0
    assert flywheel("run", "--heads", "--ledger", "new.db") == 0
    assert [order.heads.device for order in orders] == ["cuda", "cpu"]
    assert "Stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--head-suite", "none.json"), "there is no readable suite at"),
        (("--head-chats", "none.jsonl"), "--head-chats: there is no file"),
        (("--head-chats", "."), "--head-chats: there is no file"),
        (("--heads", "--head-suite", "one.json"), "1 prompt of"),
        (("--heads", "--head-suite", "unasked.json"), "could be proved in service"),
        (("--head-suite", "pipe"), "there is no readable suite at"),
        (("--holdout", "pipe"), "there is no readable suite at"),
        (("--head-suite", "one.json"), "what heads are judged by: The suite is none"),
        (("--head-suite", "guard.json"), "only a hold-out's"),
        (("--head-suite", "unasked.json", "--holdout", "unasked.json"), "prompts of its own"),
        (("--head-suite", "loop"), "--head-suite: loop leads nowhere"),
        (("--holdout", "loop"), "--holdout: loop leads nowhere"),
        (("--head-chats", "loop"), "--head-chats: loop leads nowhere"),
        (("--suite", "loop"), "--suite: loop leads nowhere"),
        (("--checkpoint", "loop"), "--checkpoint: loop leads nowhere"),
        (("--suite", "~nobody-of-this-name/x"), "leads nowhere"),
        (("--head-recipe", "[" * 20_000), "--head-recipe is not valid JSON"),
        (("--quick", "--head-prompts", "2"), "--head-prompts is about heads, and this run tries"),
        (("--quick", "--head-suite", "none.json"), "--head-suite is about heads"),
        (("--only", "hyper.host", "--heads-at-once", "2"), "--heads-at-once is about heads"),
        (("--heads", "--canaries", "3", "--head-recipe", '{"steps": 3}'), "leave --canaries out"),
    ],
)
def test_what_heads_could_not_be_made_or_judged_by_is_refused_at_once(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    entries = [
        {"id": f"code_gen-{n}", "category": "code_gen", "thinking": True, "messages": [n]}
        for n in range(40)
    ]
    given = {"one": [{"id": "a"}], "guard": [{"id": "holdout/a"}], "unasked": entries}
    for name, prompts in given.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"prompts": prompts}))
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    shim = tmp_path / "heads.py"
    shim.write_text(
        "import sys\n"
        "if any(word.endswith('one.json') for word in sys.argv):\n"
        "    print('engine.heads: The suite is none.', file=sys.stderr)\n"
        "    raise SystemExit(2)\n"
    )
    monkeypatch.setenv("FLYWHEEL_HEADS", f"{sys.executable} {shim}")
    before = sorted(tmp_path.iterdir())
    assert cli.main(["run", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.iterdir()) == before


def test_heads_and_only_other_levers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--ledger", str(tmp_path / "l.db"), "--heads", "--only", "hyper.host"]
    assert cli.main(words) == 2
    assert "--heads tries heads, and --only names none" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
