"""A night survives dead engines, dead supervisors and full disks, and says what happened."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from harness import wait_for
from nights import lever, night, only_planned, opened, order, view

from flywheel import best as best_of
from flywheel.box import identity
from flywheel.box.clock import Window
from flywheel.box.lease import Lease, device_path
from flywheel.errors import LeaseBusy, LedgerError, Refused, StatisticsError
from flywheel.files import read_json
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import replay
from flywheel.lever import LOSSY_METRIC
from flywheel.loop import judge
from flywheel.loop.attend import Wish
from flywheel.report.trace import newest_timed
from flywheel.run import launch
from flywheel.run.manifest import Manifest
from flywheel.run.parse import parse
from flywheel.run.refusal import Refusal
from flywheel.statistics.lossy import LOADS


def test_a_faster_lever_is_promoted_and_the_ledger_rebuilds(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = order(tmp_path, "--effect", "threads=2:0.9", "--effect", "moe=gather:1.1")
    with opened(asked) as ledger:
        session = night(asked, ledger, [lever(), lever("moe", "gather")], out).run()
        found = {d.variant_id: d for d in view(ledger).decisions}
        names = {v.id: v.lever.name for v in view(ledger).variants}
        endings = {names[v]: d.ending for v, d in found.items()}
        assert endings["threads-2"] == "promoted", out.getvalue()
        assert endings["moe-gather"] == "rejected"
        assert rebuild(ledger).same
    assert session.ok == session.runs
    assert not session.failed
    assert "no lever is left" in session.reason
    assert "promoted  threads-2" in out.getvalue()
    best = read_json(tmp_path / "best.json")
    assert best is not None
    assert best["config"] == {"threads": 2}


def test_a_lossy_lever_is_measured_for_its_price_and_promoted_by_no_gain(tmp_path: Path) -> None:
    out = io.StringIO()
    typical = lever("acceptance", "typical", metric=LOSSY_METRIC)
    asked = order(tmp_path, "--effect", "acceptance=typical:0.7", "--effect", "threads=2:0.9")
    with opened(asked) as ledger:
        night(asked, ledger, [typical, lever()], out).run()
        rows = view(ledger)
        priced = next(v for v in rows.variants if v.lever.lossy)
        made = priced.decision
        assert made is not None, out.getvalue()
        assert (made.ending, made.code, made.n) == ("rejected", "lossy", LOADS)
        assert made.test is None  # no error budget was spent on what nothing can come of
        assert re.search(r"never to be promoted: .* saves (29|30|31)\.\d % \[", made.sentence)
        # It went last, under a ruler of its own, and is no part of what the report goes on.
        others = [v for v in rows.variants if v.purpose == "lever" and not v.lever.lossy]
        assert max(b.serial for v in others for b in v.blocks) < priced.measured[0].serial
        ruler = rows.rulers[priced.measured[0].ruler_id or 0]
        assert (ruler.sampling, ruler.metric) == ("temperature 1, seed 1", LOSSY_METRIC)
        newest = newest_timed(rows)
        assert newest is not None
        assert rows.rulers[newest.ruler_id or 0].sampling == "greedy"
        assert best_of.fold(rows).config == {"threads": 2}
        assert rebuild(ledger).same
        with pytest.raises(LedgerError, match="never promoted"), ledger.transaction() as writer:
            writer.connection.exec_driver_sql(
                "INSERT INTO decision SELECT 999, variant_id, 'promoted', code, sentence, is_null, "
                "n, mean, low, high, nu, e_value, alpha_t, test, promotions_before, rule_version, "
                "rule, details, NULL, created_utc FROM decision WHERE id = ?", (made.number,)
            )  # fmt: skip
    assert replay(asked.runs_dir, tmp_path / "again.db").best.config == {"threads": 2}


def test_tokens_that_differ_count_only_where_a_lossy_lever_asked_for_them(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = order(tmp_path)
    with opened(asked) as ledger:
        night(asked, ledger, [lever("acceptance", "typical", metric=LOSSY_METRIC)], out).run()
        priced = view(ledger).variants[-1]
        assert priced.decision is not None
        assert priced.decision.code == "lossy"
        manifest = Manifest.read(tmp_path / "runs" / priced.measured[0].runs[0].id)
        text = (tmp_path / "runs" / manifest.run_id / "run.log").read_text()
    unasked = dict(manifest.config)
    del unasked["lossy"]
    found = parse(text, replace(manifest, config=unasked))
    assert isinstance(found, Refusal)
    assert "arm B is lossy, which was not asked for" in found.detail
    everything = replace(manifest, config={**manifest.config, "lossy": ["A", "B"]})
    found = parse(text, everything)
    assert isinstance(found, Refusal)
    assert "arm A is lossless, which was not asked for" in found.detail


def test_beside_a_lossy_arm_the_incumbent_still_answers_for_every_token(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = order(tmp_path, "--fault", "gate")  # of the first point, which is the incumbent's
    with opened(asked) as ledger:
        night(asked, ledger, [lever("acceptance", "typical", metric=LOSSY_METRIC)], out).run()
        assert view(ledger).blocks()[0].void_code == "incumbent_incorrect", out.getvalue()


def test_a_cold_lever_takes_four_loads_and_keeps_their_fingerprints(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = order(tmp_path, "--effect", "threads=2:0.8", "--load-noise", "0.001", budget_runs=10)
    with opened(asked) as ledger:
        night(asked, ledger, [lever(hot=False)], out).run()
        blocks = [b for b in view(ledger).blocks() if not b.hot]
        assert next(len(b.runs) for b in blocks if b.estimate is not None) == 4, out.getvalue()
        assert rebuild(ledger).same
    for run in blocks[0].runs[2:]:
        assert Manifest.read(tmp_path / "runs" / run.id).fingerprints


def test_two_cold_levers_are_screened_together_in_real_loads(tmp_path: Path) -> None:
    asked = order(tmp_path, "--effect", "threads=2:0.7", "--effect", "moe=gather:1.3")
    levers = [lever(hot=False), lever("moe", "gather", hot=False)]
    out = io.StringIO()
    with opened(asked) as ledger:
        night(asked, ledger, levers, out).run()
        rows = view(ledger)
        tried = {v.lever.name: v for v in rows.variants if v.purpose == "lever"}
        screen = next(b for b in rows.blocks() if b.screen)
        assert [run.outcome for run in screen.runs] == ["ok"] * 4
        assert screen.mate_id in {v.id for v in tried.values()}
        assert tried["threads-2"].decision.promoted
        assert tried["moe-gather"].decision.code == "screened_out"
        assert rebuild(ledger).same
    assert "screen of" in out.getvalue()
    assert "passed the screen" in out.getvalue()


def test_three_dead_runs_defer_a_lever_and_the_night_goes_on(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "sigkill", "--only-arm", "threads=2")
    out = io.StringIO()
    with opened(asked) as ledger:
        night(asked, ledger, [lever(), lever("moe", "gather", predicted_gain=0.01)], out).run()
        rows = view(ledger)
        dead = next(v for v in rows.variants if v.lever.name == "threads-2")
        assert [b.runs[0].outcome for b in dead.blocks] == ["killed"] * 3
        assert dead.decision is not None
        assert dead.decision.ending == "void"
        assert not dead.measured
        other = next(v for v in rows.variants if v.lever.name == "moe-gather")
        assert other.decision is not None
        assert other.decision.ending == "rejected"
    assert "exit_signal" in out.getvalue()


def test_a_failed_gate_of_the_candidate_is_incorrect_at_once(tmp_path: Path) -> None:
    # The last point of BAAB is the candidate's, that of ABBA the incumbent's.
    for seed in range(1, 9):
        root = tmp_path / str(seed)
        root.mkdir()
        settings = order(root).settings
        asked = order(
            root, "--fault", "gate", "--only-arm", "threads=2",
            settings=type(settings)(label="t", seed=seed, budget=8, calibration=1),
        )  # fmt: skip
        with opened(asked) as ledger:
            session = night(asked, ledger, [lever()], io.StringIO()).run()
            rows = view(ledger)
            tried = next((v for v in rows.variants if v.lever.name == "threads-2"), None)
            assert tried is not None
            if tried.blocks[0].pattern == "BAAB":
                assert tried.decision is not None
                assert tried.decision.ending == "incorrect"
                assert len(tried.blocks) == 1
                assert not session.halted
                return
            assert session.halted
            with pytest.raises(Refused, match="halted"):
                night(asked, ledger, [lever()], io.StringIO()).run()
    raise AssertionError("no seed drew BAAB")


def test_a_ruler_that_cannot_be_calibrated_ends_the_night(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "truncated")
    with opened(asked) as ledger:
        session = night(asked, ledger, [lever()], io.StringIO()).run()
        assert not any(b.estimate for b in view(ledger).blocks())
    assert session.runs == 3
    assert "cannot be calibrated" in session.reason


@pytest.mark.parametrize("fault", ["missing", "disk_full"])
def test_what_is_the_boxs_fault_never_counts_against_a_lever(tmp_path: Path, fault: str) -> None:
    command = ("/nonexistent/engine",) if fault == "missing" else None
    asked = order(tmp_path, "--fault", fault, **({"command": command} if command else {}))
    with opened(asked) as ledger:
        session = night(asked, ledger, [lever()], io.StringIO()).run()
        rows = list(view(ledger).blocks())
        assert {b.void_code for b in rows} == {"blocked"}
        assert {r.outcome for b in rows for r in b.runs} == {"blocked"}
        assert view(ledger).decisions == ()
    assert session.failed
    assert "could not be run" in session.reason


def test_a_run_directory_that_cannot_be_written_is_blocked(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    asked = order(tmp_path)
    with opened(asked) as ledger:
        session = night(asked, ledger, [lever()], io.StringIO()).run()
        assert {r.code for b in view(ledger).blocks() for r in b.runs} == {"never_started"}
    assert session.failed


def test_a_killed_supervisor_loses_its_run_and_its_engine(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "hang", budget_runs=1)
    engines: list[identity.Identity] = []

    def kill() -> None:
        def started() -> launch.RunState | None:
            for run_dir in (tmp_path / "runs").glob("*"):
                state = launch.look(run_dir)
                if state.engine is not None and (run_dir / "run.log").exists():
                    return state
            return None

        state = wait_for(started)
        engines.append(state.engine)
        os.kill(state.supervisor.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        run = view(ledger).blocks()[0].runs[0]
    thread.join()
    assert (run.outcome, run.code) == ("killed", "supervisor_lost")
    assert not identity.group_members(engines[0])


def test_a_run_that_was_planned_but_never_launched_is_blocked(tmp_path: Path) -> None:
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        only_planned(asked, ledger)
        night(asked, ledger, [], io.StringIO()).run()
        run = view(ledger).blocks()[0].runs[0]
    assert (run.outcome, run.code) == ("blocked", "never_started")


def test_a_reused_pid_is_neither_adopted_nor_killed(tmp_path: Path) -> None:
    asked = order(tmp_path, budget_runs=1)
    me = identity.current()
    stranger = {**me.to_json(), "start_ticks": me.start_ticks - 1}
    with opened(asked) as ledger:
        manifest = only_planned(asked, ledger)
        run_dir = tmp_path / "runs" / manifest.run_id
        launch.prepare(run_dir, manifest)
        for name in ("supervisor.json", "engine.json"):
            (run_dir / name).write_text(launch.dump(stranger))
        night(asked, ledger, [], io.StringIO()).run()
        run = view(ledger).blocks()[0].runs[0]
    assert (run.outcome, run.code) == ("killed", "supervisor_lost")


def test_a_statistic_that_fails_is_a_void_run_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StatisticsError("out of its domain")

    asked = order(tmp_path, budget_runs=1)
    monkeypatch.setattr(judge, "estimate_block", broken)
    out = io.StringIO()
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], out).run()
        run = view(ledger).blocks()[0].runs[0]
    assert (run.outcome, run.code) == ("void", "judge_failed")
    assert "out of its domain" in out.getvalue()


def test_a_busy_device_is_refused_by_name(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with (
        opened(asked) as ledger,
        Lease.acquire(device_path(), "flywheel serve"),
        pytest.raises(LeaseBusy, match=f"process {os.getpid()} \\(flywheel serve"),
    ):
        night(asked, ledger, [lever()], io.StringIO()).run()


def test_an_orphaned_engine_of_another_ledger_keeps_the_device(tmp_path: Path) -> None:
    """Its supervisor is gone and the lock is free, but the engine still sits on the device."""
    other = tmp_path / "other"
    other.mkdir()
    asked = order(other, "--fault", "hang_early", timeout_s=60.0)
    with opened(asked) as ledger:
        manifest = only_planned(asked, ledger)
    run_dir = other / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    with Lease.acquire(device_path(), "flywheel run") as lease:
        lease.tell("flywheel run", run_dir)
        child = launch.start(run_dir, lease_fds=lease.fds)
        state = wait_for(lambda: (s := launch.look(run_dir)).engine is not None and s)
    mine = order(tmp_path, budget_runs=1)
    try:
        with opened(mine) as ledger:
            # While the supervisor lives it holds the lock that it inherited.
            with pytest.raises(LeaseBusy, match="is held by"):
                night(mine, ledger, [lever()], io.StringIO()).run()
            os.kill(state.supervisor.pid, signal.SIGKILL)
            child.wait()
            with pytest.raises(LeaseBusy, match="whose supervisor is gone"):
                night(mine, ledger, [lever()], io.StringIO()).run()
            identity.end_group(state.engine, 0.1)
            night(mine, ledger, [lever()], io.StringIO()).run()
            assert view(ledger).blocks()[0].runs[0].outcome == "ok"
    finally:
        identity.end_group(state.engine, 0.1)


def test_the_time_budget_ends_a_run_as_blocked(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "hang", budget_s=2.0)
    with opened(asked) as ledger:
        one = night(asked, ledger, [lever()], io.StringIO())
        # An overtime of a minute is granted in earnest; here none is.
        one.wishes.heard = lambda **_: (  # type: ignore[method-assign]
            Wish("budget_spent", "the time budget is spent", True)
            if (one.wishes.left_s() or 0) <= 0
            else None
        )
        session = one.run()
        run = view(ledger).blocks()[0].runs[0]
    assert (run.outcome, run.code) == ("blocked", "budget_spent")
    assert session.reason == "the time budget is spent"


def test_no_run_starts_when_the_time_left_is_too_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = order(tmp_path, "--sleep", "1")
    with opened(asked) as ledger:
        one = night(asked, ledger, [lever()], io.StringIO())
        # The clock of a busy box may not decide: half of a load's time is left after the first.
        monkeypatch.setattr(one.wishes, "left_s", lambda: 0.5 if one.session.runs else 60.0)
        session = one.run()
    assert session.runs == 1
    assert "too short" in session.reason or "closing" in session.reason


def test_a_closed_window_is_waited_out_and_stop_is_heard_meanwhile(tmp_path: Path) -> None:
    window = Window.parse("00:00-00:01")
    asked = order(tmp_path, window=window)
    with opened(asked) as ledger:
        one = night(asked, ledger, [lever()], io.StringIO())
        if window.contains(one.clock.now()):  # pragma: no cover
            pytest.skip("it is just past midnight")
        threading.Timer(0.5, (tmp_path / "STOP").touch).start()
        session = one.run()
    assert session.runs == 0
    assert "STOP" in session.reason


def test_a_new_campaign_closes_the_old_one(tmp_path: Path) -> None:
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        night(asked, ledger, [lever()], io.StringIO()).run()
        assert len(view(ledger).campaigns) == 1
        again = order(tmp_path, budget_runs=1, new_campaign=True)
        night(again, ledger, [lever()], io.StringIO()).run()
        other = order(
            tmp_path, budget_runs=1, settings=type(asked.settings)(label="x", calibration=1)
        )
        night(other, ledger, [lever()], io.StringIO()).run()
        campaigns = view(ledger).campaigns
    assert [c.ended for c in campaigns] == [
        "a new campaign was declared",
        "a campaign x was declared",
        None,
    ]


def test_a_priced_out_lever_is_closed_without_a_run(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with opened(asked) as ledger:
        night(asked, ledger, [lever(ceiling=0.001)], io.StringIO()).run()
        rows = view(ledger)
        priced = next(v for v in rows.variants if v.lever.name == "threads-2")
    assert priced.blocks == ()
    assert priced.decision is not None
    assert priced.decision.code == "priced_out"
