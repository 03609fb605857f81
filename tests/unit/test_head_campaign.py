"""A campaign of heads: planned, measured, decided, ended by its gate, and rebuilt."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from head_arms import better, campaign, good, head, measure, promoted, see, steady
from records import NOW, lever
from rich.console import Console

from flywheel import best as best_of
from flywheel.errors import LedgerError
from flywheel.heads import archive, numbers
from flywheel.heads.ladder import ladder, percent
from flywheel.heads.session import Outcome, SessionRule, gate
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import replay
from flywheel.ledger.store import Ledger, log_text as log_of
from flywheel.loop import entry, judge, plan, planned
from flywheel.loop.eligible import Candidate, admit
from flywheel.loop.order import best_json, write_best
from flywheel.loop.ranking import ranked
from flywheel.loop.readjudicate import readjudicate
from flywheel.report import tables
from flywheel.report.compose import Around, build
from flywheel.report.scope import Scope
from flywheel.run import lineage
from flywheel.run.exit_status import ExitStatus
from flywheel.serve.chosen import of_ledger
from flywheel.statistics.campaign import HEADS


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with campaign(tmp_path) as opened:
        yield opened


def test_heads_alone_need_no_nulls_and_no_canary(ledger: Ledger) -> None:
    step = plan.next_step(see(ledger), [head(), head("head.b", anchor=0.0)])
    assert isinstance(step, plan.NextBlock)
    assert (step.purpose, step.hot, step.screen) == ("lever", True, False)
    assert step.candidate == {"head": f"{step.lever.name}-{step.variant_id}"}


def test_a_measured_head_waits_for_its_proof_and_both_are_one(ledger: Ledger) -> None:
    one = head()
    step = plan.next_step(see(ledger), [one])
    entered = measure(ledger, step, better(2))
    assert entered.verdict is None
    waiting = plan.next_step(see(ledger), [one])
    assert isinstance(waiting, plan.Prove)
    found, sentences = judge.settle_head(ledger, waiting.variant_id, good(), now_utc=NOW)
    assert found.ending == "promoted"
    assert sentences
    view = see(ledger)
    assert best_of.fold(view).config == {"head": "head.a-v0001"}
    assert [(s.head, s.outcome, s.decision) for s in view.stages] == [("head.a-v0001", "live", 1)]
    assert numbers.standings(view)[0].status == "live"
    with pytest.raises(LedgerError, match="not a head that waits"):
        judge.settle_head(ledger, waiting.variant_id, good(), now_utc=NOW)


def test_a_head_that_is_another_one_in_service_is_rolled_back(ledger: Ledger) -> None:
    one = head()
    step = plan.next_step(see(ledger), [one])
    measure(ledger, step, better(2))
    found, _ = judge.settle_head(ledger, "v0001", good(holds=False), now_utc=NOW)
    assert (found.ending, found.code) == ("void", "rolled_back")
    assert "20 tokens in 9 rounds" in found.sentence
    view = see(ledger)
    assert best_of.fold(view).config == {}
    assert view.stages[0].outcome == "rolled_back"
    assert view.budget(1).tests == 0
    assert numbers.standings(view)[0].status == "rolled back"


def test_a_head_that_fails_its_gate_is_decided_at_once(ledger: Ledger) -> None:
    entered = measure(ledger, plan.next_step(see(ledger), [head()]), better(3, held=-3))
    assert entered.verdict is not None
    assert entered.verdict.code == "regression"
    assert any("REGRESSION" in sentence for sentence in entered.findings)
    with pytest.raises(LedgerError, match="not a head that waits"):
        judge.settle_head(ledger, "v0001", good(), now_utc=NOW)


def test_a_head_that_cannot_be_made_is_deferred_after_its_attempts(ledger: Ledger) -> None:
    one = head()
    for attempt in range(3):
        step = plan.next_step(see(ledger), [one])
        assert isinstance(step, plan.NextBlock)
        assert step.number == attempt + 1
        planned.plan_block(ledger, step, now_utc=NOW)
        judge.forgo(ledger, step.block_id, "train_failed", "loss is not finite", now_utc=NOW)
    decision = see(ledger).variants[0].decision
    assert decision is not None
    assert (decision.ending, decision.code) == ("void", "train_failed")
    assert isinstance(plan.next_step(see(ledger), [one]), plan.Stop)


def test_the_next_head_is_measured_against_the_promoted_one(ledger: Ledger) -> None:
    first = promoted(ledger, head())
    step = plan.next_step(see(ledger), [head("head.b", anchor=0.0)])
    assert isinstance(step, plan.NextBlock)
    assert step.incumbent == {"head": first}


def test_a_recipe_that_the_incumbent_was_trained_by_is_no_lever(ledger: Ledger) -> None:
    promoted(ledger, head("head.a", share=1.0))
    others = (
        head("same", share=1.0), head("usual"), head("more", rate=0.003),
        head("on", share=1.0, start="incumbent"),
    )  # fmt: skip
    view = see(ledger)
    ready, refused = admit(view, others, best_of.fold(view), {}, ("head",))
    assert [one.lever.name for one in ready] == ["more", "on"]
    assert view.card_of(None) is None
    assert [one.reason for one in refused] == [
        "same is already in the incumbent", "usual is already in the incumbent",
    ]  # fmt: skip


def test_the_report_of_heads_tells_of_tau_and_of_their_training(ledger: Ledger) -> None:
    promoted(ledger, head())
    measure(ledger, plan.next_step(see(ledger), [head("head.b", anchor=0.0)]), steady)
    document = build(Scope(see(ledger)), Around("nothing"))
    one = ladder(see(ledger))[0]
    # What its prompts could have shown is less than what they showed, and never under the bar.
    assert one.least_rise_percent is not None
    assert 3.5 <= one.least_rise_percent < math.expm1(one.gain.mean) * 100
    assert document.incumbent.text == f"tau {one.tau:.3f} with head.a-v0001"
    assert document.gain.text.startswith(f"tau {percent(one.gain)} a prompt against the frozen")
    assert "2 heads of 2 min of training" in document.cost.text
    out = io.StringIO()
    tables.render(document, Console(file=out, width=160, highlight=False))
    printed = " ".join(out.getvalue().split())
    assert f"head: the default recipe tau {one.incumbent_tau:.3f} to {one.tau:.3f}" in printed
    assert f"{percent(one.gain).replace(' % [', ' % a prompt [')} 1 block predicted" in printed
    assert "head: anchor 0.0 the same rounds on every prompt; tau" in printed
    assert "forwards saved, mean and band" in printed
    assert "% time" not in printed


def test_what_heads_were_decided_follows_from_their_logs(ledger: Ledger) -> None:
    promoted(ledger, head())
    measure(ledger, plan.next_step(see(ledger), [head("head.b", anchor=0.0)]), steady)
    again = rebuild(ledger)
    assert again.same, again.differences
    assert again.best.config == {"head": "head.a-v0001"}
    flips = readjudicate(ledger, lambda _: HEADS.rule, now_utc=NOW, dry_run=True)
    assert (flips.decided, flips.flips) == (2, ())


def test_the_best_names_the_folder_of_its_head(ledger: Ledger, tmp_path: Path) -> None:
    name = promoted(ledger, head())
    found = best_of.fold(see(ledger))
    assert best_json(found, None)["head"] == name
    written = json.loads(write_best(found, tmp_path, Path("/model")).read_text())
    assert written["head"] == str(tmp_path / "heads" / name)
    assert written["config"] == {}


def test_what_is_served_has_its_head_beside_its_configuration(
    ledger: Ledger, tmp_path: Path
) -> None:
    name = promoted(ledger, head())
    choice = of_ledger(see(ledger), Path("/model"), tmp_path / "heads")
    assert (choice.config, choice.whole) == ({}, {"head": name})
    served = json.loads(choice.write(tmp_path).read_text())
    assert (served["head"], served["config"]) == (str(tmp_path / "heads" / name), {})
    written = json.loads(write_best(best_of.fold(see(ledger)), tmp_path, Path("/m")).read_text())
    assert served["fingerprint"] == written["fingerprint"]


def test_a_head_costs_its_training_and_one_load(ledger: Ledger) -> None:
    one, other = head(), lever("other", family=head().family)
    ready = [Candidate(one), Candidate(other)]
    found = {r.candidate.lever.name: r.priority.minutes for r in ranked(see(ledger), ready)}
    assert found == {one.name: 12.0, other.name: 6.0}


@pytest.mark.parametrize(
    ("gains", "word"),
    [((0.0, 0.0, 0.0), "go"), ((0.02, -0.1, -0.1, -0.1), "go"), ((0.0,) * 4, "re-price"),
     ((-0.06,) * 4, "stop")],
)  # fmt: skip
def test_the_session_gate_goes_reprices_or_stops(gains: tuple[float, ...], word: str) -> None:
    outcomes = [Outcome(f"h{i}", gain, False) for i, gain in enumerate(gains)]
    assert gate(SessionRule(), outcomes).word == word


def test_a_head_that_changes_a_token_stops_the_session() -> None:
    found = gate(SessionRule(), [Outcome("bad", None, True)])
    assert (found.word, found.why) == ("stop", "bad changed a token")


def test_the_session_gate_is_stored_with_the_campaign_and_applied(ledger: Ledger) -> None:
    assert see(ledger).campaigns[0].settings.session == SessionRule()
    heads = [head(f"head.{c}", anchor=float(i)) for i, c in enumerate("abcdef")]
    for _ in range(4):
        measure(ledger, plan.next_step(see(ledger), heads), better(-2))
    stop = plan.next_step(see(ledger), heads)
    assert isinstance(stop, plan.Stop)


def test_a_lost_ledger_comes_back_from_run_directories_with_its_heads(
    ledger: Ledger, tmp_path: Path
) -> None:
    one = head()
    step = plan.next_step(see(ledger), [one])
    assert isinstance(step, plan.NextBlock)
    measure(ledger, step, better(2))
    name = str(step.candidate["head"])
    judge.settle_head(ledger, step.variant_id, good(), now_utc=NOW)
    with ledger.reading() as connection:
        run_id = see(ledger).variants[0].blocks[0].runs[0].id
        stored = dict(views.manifest(connection, run_id))
        text = log_of(connection, run_id)
    folder = tmp_path / "runs" / run_id
    folder.mkdir(parents=True)
    campaign = see(ledger).campaigns[0]
    stored |= {"lineage": lineage.to_json(campaign, step)}
    (folder / "manifest.json").write_text(json.dumps(stored))
    (folder / "run.log").write_text(text)
    left = ExitStatus(
        run_id=run_id, status=0, signal=None, timed_out=False, stopped=False, duration_ns=1,
        started_utc=NOW, ended_utc=NOW, leftovers=0, group_empty=True, peak_rss_bytes=1,
        log_bytes=len(text), log_sha256=hashlib.sha256(text.encode()).hexdigest(), engine=None,
        supervisor=None,
    )  # fmt: skip
    left.write(folder)
    entry.leave(folder, judge.RunEnd("ok", "", "", NOW, NOW, 1, 0))
    word = {"holds": True, "detail": "as measured", "wanted": {}, "seen": {}}
    archive.note(archive.root_of(ledger.path), name, archive.proof_file(run_id), word)
    again = replay(tmp_path / "runs", tmp_path / "again.db")
    assert again.best.config == {"head": name}
