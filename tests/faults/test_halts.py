"""A halt stands from one night to the next until a person lifts it, with a reason."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from nights import SMALL, lever, night, opened, order, view

from flywheel.cli import app as cli
from flywheel.errors import Refused
from flywheel.ledger import halts
from flywheel.ledger.store import Ledger
from flywheel.loop import epoch
from flywheel.statistics.campaign import Settings


def standing(ledger: Ledger) -> list[str]:
    with ledger.reading() as connection:
        return [one.code for one in halts.standing(connection)]


def test_a_halt_stands_until_it_is_resumed_and_then_stays_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = order(tmp_path, "--fault", "gate")
    with opened(broken) as ledger:
        session = night(broken, ledger, [lever()], io.StringIO()).run()
        assert session.halted
        assert "a gate failed on the incumbent" in session.reason
        assert standing(ledger) == ["incumbent_incorrect"]
        runs = session.runs

    # Neither another night nor another campaign gets past it.
    whole = order(tmp_path, budget_runs=2)
    for asked in (whole, order(tmp_path, new_campaign=True)):
        with opened(asked) as ledger:
            with pytest.raises(Refused, match="flywheel resume --why") as refused:
                night(asked, ledger, [lever()], io.StringIO()).run()
            assert refused.value.exit_code == 3
            assert len(view(ledger).blocks()) == runs
    words = ("--ledger", str(tmp_path / "ledger.db"))
    assert cli.main(["status", *words]) == 0
    assert "halted: block b00001: a gate failed" in capsys.readouterr().out
    assert cli.main(["report", *words]) == 0
    assert "HALTED: block b00001: a gate failed" in " ".join(capsys.readouterr().out.split())

    assert cli.main(["resume", "--why", "the kernel was fixed", *words]) == 0
    assert "lifted: block b00001: a gate failed" in capsys.readouterr().out
    with opened(whole) as ledger:
        session = night(whole, ledger, [lever()], io.StringIO()).run()
        assert not session.halted, session.reason
        assert standing(ledger) == []
        with ledger.reading() as connection:
            why = connection.exec_driver_sql("SELECT why FROM resume").scalar_one()
        assert why.endswith(": the kernel was fixed")
        assert len(view(ledger).campaigns) == 1


def test_a_changed_ruler_halts_and_goes_on_in_a_new_campaign(tmp_path: Path) -> None:
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        (asked.suite).write_text('{"edited": true}')
        session = night(asked, ledger, [lever()], io.StringIO()).run()
        assert session.halted
        assert "begins a new campaign" in session.reason
        assert standing(ledger) == ["ruler_changed"]
        halts.resume(ledger, "me: it was meant", "2026-01-01T00:00:00Z")
        out = io.StringIO()
        session = night(asked, ledger, [lever()], out).run()
        assert not session.halted
        assert "a new campaign" in out.getvalue()
        assert len(view(ledger).campaigns) == 2
        # The new one stays: its own past holds no such halt.
        night(asked, ledger, [lever()], io.StringIO()).run()
        assert len(view(ledger).campaigns) == 2


def test_another_box_begins_a_campaign_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = order(tmp_path, budget_runs=1)
    out = io.StringIO()
    with opened(asked) as ledger:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(epoch, "box", lambda: "H200, 139 GiB")
            night(asked, ledger, [lever()], io.StringIO()).run()
        session = night(asked, ledger, [lever()], out).run()
        assert not session.halted
        assert [c.ended is None for c in view(ledger).campaigns] == [False, True]
    assert "it was measured on another box (H200, 139 GiB)" in out.getvalue()


def test_attempts_back_off_and_a_blocked_run_is_none(tmp_path: Path) -> None:
    settings = Settings(label="test", budget=8, calibration=1, canary_every=50,
                        backoff_s=(0.0, 1.0))  # fmt: skip
    asked = order(tmp_path, "--fault", "sigkill", "--only-arm", "threads=2", settings=settings)
    out = io.StringIO()
    began = time.monotonic()
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], out).run()
        dead = next(v for v in view(ledger).variants if v.lever.name == "threads-2")
    assert len(dead.blocks) == 3
    assert dead.decision is not None
    assert dead.decision.ending == "void"
    assert "deferred after 3" in dead.decision.sentence
    # Nothing after the first failure, a second after the second, and none once it is deferred.
    assert out.getvalue().count("a pause before the next attempt") == 1
    assert 1.0 <= time.monotonic() - began < 20.0
    assert SMALL.pause_s(3) == 0.0
    assert [Settings().pause_s(n) for n in range(5)] == [0.0, 0.0, 30.0, 120.0, 120.0]
