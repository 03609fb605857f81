"""One attempt with a real program: what it gets, what it may not touch, and how it is ended."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever

from flywheel.box import identity
from flywheel.box.clock import SystemClock
from flywheel.errors import UsageError
from flywheel.files import dump
from flywheel.ledger import halts
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.loop.order import KINDS
from flywheel.loop.wishes import Wishes
from flywheel.propose import external, gathering, transcript
from flywheel.propose.admission import Grounds
from flywheel.propose.ask import Outcome, ask
from flywheel.propose.attempt import Terms
from flywheel.propose.proposer import Proposer
from flywheel.statistics.campaign import QUICK

CLOCK = SystemClock()


def idea(**more: Any) -> dict[str, Any]:
    """A lever as a proposer would name it."""
    return {
        "kind": "config", "name": "more.threads", "field": "threads", "value": 4,
        "claim": "cores stand idle", "falsify": "no faster", "predicted_gain": 0.05, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a campaign and one closed lever."""
    path = tmp_path_factory.mktemp("history") / "ledger.db"
    opened = Ledger.open(path)
    planned.open_campaign(opened, QUICK, start={}, box="a box", now_utc=NOW)
    drive(opened, [lever("flat", {"threads": 2})], World())
    opened.close()
    return path


@pytest.fixture
def ledger(history: Path, tmp_path: Path) -> Iterator[Ledger]:
    """A copy of that ledger."""
    shutil.copy(history, tmp_path / "ledger.db")
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()


def grounds(ledger: Ledger) -> Grounds:
    with ledger.reading() as connection:
        return gathering.grounds(connection, (), {}, KINDS)


def asked(
    ledger: Ledger, folder: Path, program: str, *, wishes: Wishes | None = None, **terms: Any
) -> Outcome:
    """Ask this Python program."""
    script = folder / "proposer.py"
    script.write_text(program)
    found = grounds(ledger)
    with ledger.reading() as connection:
        brief = gathering.brief(connection, found, "thinker", 20.0, folder / "ledger.db")
    return ask(
        Proposer("thinker", (sys.executable, "-S", str(script))), brief, found,
        Terms(**{"timeout_s": 20.0, **terms}), folder / "ledger.db", clock=CLOCK, wishes=wishes,
    )  # fmt: skip


def told(folder: Path, found: Outcome) -> dict[str, Any]:
    """The transcript of an attempt."""
    read: dict[str, Any] = json.loads((folder / found.transcript).read_text())
    return read


def sleeping(seconds: int) -> bool:
    """Whether some process sleeps for exactly so long."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
    return False


ANSWER = "import json, sys\nbrief = json.load(sys.stdin)\n"


def test_a_program_reads_the_brief_and_what_it_offers_is_judged(
    ledger: Ledger, tmp_path: Path
) -> None:
    program = ANSWER + (
        "closed = brief['levers']['closed'][0]\n"
        "assert closed['change'] == {'threads': 2} and closed['ending'] == 'rejected'\n"
        "assert closed['gain']['low'] < closed['gain']['mean'] < closed['gain']['high']\n"
        "assert brief['incumbent']['config']['draft_width'] == 3\n"
        "assert brief['incumbent']['ms_per_token']['mean'] > 0\n"
        "assert brief['hardware']['box'] == 'a box' and brief['rules'] and brief['findings']\n"
        f"print(json.dumps({{'levers': [{idea()!r}, {idea(name='two', value=2)!r}],\n"
        "    'usage': {'tokens': 7, 'key': 'x'}}))\n"
    )
    found = asked(ledger, tmp_path, program)
    assert (found.outcome, found.detail) == ("answered", "1 of 2 proposed levers admitted")
    assert "two is the same change as flat" in found.verdicts[1].reason
    assert found.usage == {"tokens": 7}
    assert len(found.sha256) == 64
    assert not (tmp_path / found.transcript).with_name("work").exists()


def test_a_wrong_form_is_told_back_once(ledger: Ledger, tmp_path: Path) -> None:
    program = ANSWER + (
        f"lever = {idea()!r}\n"
        "told = brief.get('told_back')\n"
        "if told is None: del lever['claim'], lever['falsify']\n"
        "else: assert 'claim is missing; falsify is missing' in told['errors'][0]\n"
        "print(json.dumps({'levers': [lever]}))\n"
    )
    found = asked(ledger, tmp_path, program)
    assert (found.outcome, found.verdicts[0].admitted) == ("answered", True)
    assert len(told(tmp_path, found)["exchanges"]) == 2


def test_who_answers_wrongly_twice_has_failed(ledger: Ledger, tmp_path: Path) -> None:
    found = asked(ledger, tmp_path, "print('I would add threads.')")
    assert found.outcome == "failed"
    assert "wrong form: the answer is not one JSON document" in found.detail
    assert len(told(tmp_path, found)["exchanges"]) == 2


def test_what_was_right_the_first_time_is_kept_when_the_second_fails(
    ledger: Ledger, tmp_path: Path
) -> None:
    program = ANSWER + (
        "if 'told_back' in brief: sys.exit(1)\n"
        f"print(json.dumps({{'levers': [{idea()!r}, {{}}]}}))\n"
    )
    found = asked(ledger, tmp_path, program)
    assert [v.admitted for v in found.verdicts] == [True, False]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.stderr.write('note\\nno key\\n'); sys.exit(3)", "status 3: no key"),
        ("import time; time.sleep(600)", "it took longer than 1 s"),
        ("print('x' * (5 << 20), flush=True)\nimport time; time.sleep(60)", "more than 4 MiB"),
    ],
)
def test_a_program_that_fails_is_ended_and_said(
    ledger: Ledger, tmp_path: Path, program: str, said: str
) -> None:
    found = asked(ledger, tmp_path, program, timeout_s=1.0 if "600" in program else 20.0)
    assert found.outcome == "failed"
    assert said in found.detail


def test_a_program_that_is_not_there_has_failed(ledger: Ledger, tmp_path: Path) -> None:
    nobody = Proposer("nobody", ("/no/such/program",))
    found = ask(nobody, {}, grounds(ledger), Terms(), tmp_path / "ledger.db", clock=CLOCK)
    assert found.outcome == "failed"
    assert "No such file" in found.detail


@pytest.mark.parametrize(
    ("program", "retry_s"),
    [
        ("import json; print(json.dumps({'limited': {'why': 'x', 'retry_after_s': 90}}))", 90.0),
        ("import json; print(json.dumps({'limited': {}}))", None),
        ("import sys; sys.exit(75)", None),
    ],
)
def test_a_usage_limit_is_no_failure(
    ledger: Ledger, tmp_path: Path, program: str, retry_s: float | None
) -> None:
    found = asked(ledger, tmp_path, program)
    assert (found.outcome, found.retry_s) == ("limited", retry_s)


def test_a_wish_to_stop_ends_a_program_that_thinks(ledger: Ledger, tmp_path: Path) -> None:
    wishes = Wishes(tmp_path / "ledger.db", CLOCK)
    (tmp_path / "STOP").touch()
    began_s = time.monotonic()
    found = asked(ledger, tmp_path, "import time; time.sleep(600)", wishes=wishes)
    assert found.outcome == "stopped"
    assert found.wish is not None
    assert time.monotonic() - began_s < 20


def test_nothing_that_it_started_is_left(ledger: Ledger, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '611'], start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    asked(ledger, tmp_path, program, timeout_s=1.0)
    assert not sleeping(611)


def test_it_does_not_outlive_a_loop_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from flywheel.propose import external\n"
        "from flywheel.propose.attempt import Terms\n"
        "here = Path(sys.argv[1])\n"
        "argv = external.caged(['sleep', '613'], here, Terms(), [])\n"
        "subprocess.Popen(argv, env=external.environment(here, Terms(), os.environ))\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)\n"
    )
    loop = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert loop.stdout is not None
    loop.stdout.readline()
    until_s = time.monotonic() + 20
    while not sleeping(613) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert sleeping(613)
    loop.kill()
    loop.communicate()
    while sleeping(613) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not sleeping(613)


def test_what_a_killed_loop_lent_goes_with_the_next_attempt(
    ledger: Ledger, tmp_path: Path
) -> None:
    child = subprocess.Popen(["sleep", "0"])
    gone = identity.of(child.pid, zombie=True)
    child.wait()
    assert gone is not None
    for name, owner in (("dead", gone), ("alive", identity.current())):
        (tmp_path / "proposals" / name / "work" / "code").mkdir(parents=True)
        (tmp_path / "proposals" / name / "owner.json").write_text(dump(owner.to_json()))
    found = asked(ledger, tmp_path, "import json; print(json.dumps({'levers': []}))")
    mine = Path(found.transcript).parent.name
    assert {p.name for p in (tmp_path / "proposals").iterdir()} == {"alive", mine}
    assert [p.name for p in (tmp_path / "proposals" / mine).iterdir()] == ["transcript.json"]
    assert (tmp_path / "proposals/alive/work/code").is_dir()


def test_an_attempt_that_was_broken_off_leaves_no_folder(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(external, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked(ledger, tmp_path, "")
    assert list((tmp_path / "proposals").iterdir()) == []


def test_it_gets_no_secret_no_network_and_no_descriptor(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "the secret itself")
    monkeypatch.setenv("ANOTHER", "another secret")
    program = (
        "import json, os, socket, sys\n"
        "sys.stdin.read()\n"
        "def far():\n"
        "    try: socket.create_connection(('127.0.0.1', 9), 1)\n"
        "    except OSError as error: return error.strerror or str(error)\n"
        "sys.stderr.write(json.dumps({'env': dict(os.environ), 'net': far(),\n"
        "    'fds': sorted(os.listdir('/proc/self/fd'))}))\n"
        "print(json.dumps({'levers': []}))\n"
    )
    found = asked(ledger, tmp_path, program, environment=("A_KEY",))
    assert "the secret itself" not in (tmp_path / found.transcript).read_text()
    kept = told(tmp_path, found)
    seen = json.loads(kept["exchanges"][0]["stderr"])
    assert seen["env"]["A_KEY"] == "[A_KEY]"
    assert "ANOTHER" not in seen["env"]
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert len(seen["fds"]) <= 4
    if "no network" in kept["cage"]:
        assert seen["net"] == "Network is unreachable"


ANSWERED_BY_A_LINK = ANSWER + (
    "import os\n"
    "for name in ('stdout', 'stderr', 'stdin.json'):\n"
    "    with contextlib.suppress(OSError): os.unlink(name)\n"
    "    {make}\n"
    "print('no JSON')\n"
)


def test_its_folder_leads_us_to_no_file_outside(ledger: Ledger, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    make = f"os.symlink({str(precious)!r}, name)"
    program = "import contextlib\n" + ANSWERED_BY_A_LINK.format(make=make)
    found = asked(ledger, tmp_path, program)
    assert "wrong form" in found.detail
    assert precious.read_text() == "kept"


def test_pipes_in_its_folder_keep_nobody_waiting(ledger: Ledger, tmp_path: Path) -> None:
    program = "import contextlib\n" + ANSWERED_BY_A_LINK.format(make="os.mkfifo(name)")
    found = asked(ledger, tmp_path, program, timeout_s=10.0)
    assert "wrong form" in found.detail


def test_what_it_said_is_kept_though_it_removed_all_files(
    ledger: Ledger, tmp_path: Path
) -> None:
    program = ANSWER + (
        "import os, time\n"
        "for name in os.listdir('.'): os.unlink(name)\n"
        "time.sleep(1)\n"
        "print(json.dumps({'levers': [], 'note': 'all gone'}))\n"
    )
    found = asked(ledger, tmp_path, program)
    assert found.outcome == "answered"
    assert "all gone" in told(tmp_path, found)["exchanges"][0]["stdout"]


def test_a_secret_is_in_nothing_that_is_recorded(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = 'sk-"quoted"\\123'
    monkeypatch.setenv("A_KEY", key)
    failed = asked(
        ledger, tmp_path, environment=("A_KEY",),
        program="import os, sys; sys.exit('bad key ' + os.environ['A_KEY'])",
    )  # fmt: skip
    assert failed.detail == "it left with status 1: bad key [A_KEY]"
    program = "import os\n" + ANSWER + (
        f"lever = {idea()!r}\n"
        "lever['claim'] = lever['falsify'] = os.environ['A_KEY']\n"
        "print(json.dumps({'levers': [lever, {'kind': os.environ['A_KEY']}]}))\n"
    )
    found = asked(ledger, tmp_path, program, environment=("A_KEY",))
    assert [one.admitted for one in found.verdicts] == [True, False]
    everything = repr(found) + (tmp_path / found.transcript).read_text()
    assert "quoted" not in everything
    assert "[A_KEY]" in found.verdicts[1].reason


def test_a_variable_that_is_not_set_is_a_mistake(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        asked(ledger, tmp_path, "", environment=("NO_SUCH_KEY",))


WRITES = ANSWER + (
    "import pathlib\n"
    "try: pathlib.Path('{path}').write_text('')\n"
    "except OSError as error: sys.stderr.write(str(error))\n"
    "print(json.dumps({{'levers': [{idea!r}]}}))\n"
)


@pytest.mark.parametrize("path", ["levers.jsonl", "../../../levers.jsonl"])
def test_a_cage_keeps_it_from_writing_beside_the_ledger(
    ledger: Ledger, tmp_path: Path, path: str
) -> None:
    where = path if path.startswith("..") else str(tmp_path / path)
    found = asked(ledger, tmp_path, WRITES.format(path=where, idea=idea()))
    if "folders read-only" not in found.cage:
        pytest.skip("this kernel allows no cage: what holds then is the next test")
    assert "Read-only" in told(tmp_path, found)["exchanges"][0]["stderr"]
    assert found.outcome == "answered"
    assert found.tampered == ()


def test_a_cage_keeps_it_from_what_is_installed(ledger: Ledger, tmp_path: Path) -> None:
    program = ANSWER + (
        "import os\n"
        f"sys.stderr.write(str(os.access({sys.prefix!r}, os.W_OK)))\n"
        "print(json.dumps({'levers': []}))\n"
    )
    found = asked(ledger, tmp_path, program)
    if "folders read-only" not in found.cage:
        pytest.skip("this kernel allows no cage")
    assert told(tmp_path, found)["exchanges"][0]["stderr"] == "False"


def test_without_a_cage_whoever_writes_beside_the_ledger_halts_the_loop(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "caged", lambda argv, *_: tuple(argv))
    where = str(tmp_path / "levers.jsonl")
    found = asked(ledger, tmp_path, WRITES.format(path=where, idea=idea()))
    assert found.tampered == (where,)
    assert (found.outcome, found.verdicts) == ("failed", ())
    gathering.record(ledger, "thinker", found, phase=None, now_utc=NOW)
    with ledger.reading() as connection:
        (halt,) = halts.standing(connection)
    assert halt.code == "proposer_tampered"
    assert "levers.jsonl" in halt.reason


def test_a_transcript_that_was_changed_or_lost_is_told(ledger: Ledger, tmp_path: Path) -> None:
    from flywheel.ledger import attempts

    found = asked(ledger, tmp_path, "import json; print(json.dumps({'levers': []}))")
    gathering.record(ledger, "thinker", found, phase=None, now_utc=NOW)
    with ledger.reading() as connection:
        (row,) = attempts.made(connection)
    path = tmp_path / "ledger.db"
    assert transcript.state(path, row) == "whole"
    (tmp_path / row.transcript).write_text("{}")
    assert transcript.state(path, row) == "changed"
    (tmp_path / row.transcript).unlink()
    assert transcript.state(path, row) == "missing"
