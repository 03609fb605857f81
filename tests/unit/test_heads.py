"""Heads as the loop sees them: measured, judged, put into service, archived, released."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from records import HEX, NOW, WIDTH, lever, manifest_of, record, text_of

from flywheel import best as best_of, suite
from flywheel.cli import app as cli
from flywheel.errors import BlockError, HeadError, LedgerError, LeverError, UsageError
from flywheel.heads import archive, gates, numbers, record as recording
from flywheel.heads.judge import verdict
from flywheel.heads.session import Outcome, SessionRule, gate
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import replay
from flywheel.ledger.rows import View
from flywheel.ledger.store import Ledger, log_text as log_of
from flywheel.lever import Lever, fingerprint
from flywheel.loop import entry, judge, plan, planned, prove
from flywheel.loop.eligible import Candidate
from flywheel.loop.order import best_json, write_best
from flywheel.loop.ranking import ranked
from flywheel.loop.readjudicate import readjudicate
from flywheel.report import heads_md
from flywheel.run import lineage
from flywheel.run.exit_status import ExitStatus
from flywheel.run.parse import parse
from flywheel.run.record import Point, RunRecord
from flywheel.serve.chosen import of_ledger
from flywheel.statistics.campaign import HEADS
from flywheel.statistics.tau import HELD_OUT, tau_block

CATEGORIES = ("long_context", "agentic_format", "code_edit", "multi_turn", "short_factual",
              "reasoning", "explanation", "code_gen")  # fmt: skip
SUITE = tuple((f"{c}-{n}", c) for c in CATEGORIES for n in range(6))
HELD = tuple((f"{HELD_OUT}{c}-0", c) for c in CATEGORIES)
MADE = 32
Rounds = Callable[[str, str], int]


def head(name: str = "head.a", **recipe: object) -> Lever:
    return lever(name, {"head": recipe}, kind="head", metric="tau", family=name, slow=True)


def steady(prompt: str, category: str) -> int:
    """Rounds of the incumbent: some prompts are harder than others."""
    return 14 + (sum(map(ord, prompt)) % 5)


def better(by: int, held: int | None = None) -> Rounds:
    """A head that needs `by` rounds less on the suite, and `held` less on the hold-out."""

    def rounds(prompt: str, category: str) -> int:
        gain = by if not prompt.startswith(HELD_OUT) or held is None else held
        return steady(prompt, category) - gain - (sum(map(ord, prompt)) % 2 if by else 0)

    return rounds


def with_rounds(point: Point, rounds: int) -> Point:
    left, accepted = MADE - rounds, []
    for _ in range(WIDTH):
        accepted.append(min(rounds, left))
        left -= accepted[-1]
    return replace(
        point, rounds=rounds, forwards=rounds, accepted_by_position=tuple(accepted),
        offered_by_position=(rounds,) * WIDTH, max_committed=WIDTH + 1,
    )  # fmt: skip


def measured_with(candidate: Rounds, run_id: str = "r1", seed: int = 1) -> RunRecord:
    made = record(run_id, arms={"A": {}, "B": {}}, ms={"A": 10.0, "B": 9.0},
                  prompts=(*SUITE, *HELD), seed=seed)  # fmt: skip
    of = {"A": steady, "B": candidate}
    own = replace(made.header.arms[1], effective={**made.header.arms[1].effective, "head": HEX})
    own = replace(own, fingerprint=fingerprint(dict(own.effective)))
    return replace(
        made, header=replace(made.header, arms=(made.header.arms[0], own)),
        points=tuple(with_rounds(p, of[p.arm](p.prompt, p.category)) for p in made.points),
    )  # fmt: skip


# -- the estimate ------------------------------------------------------------------------------


def test_a_head_s_block_keeps_the_rounds_of_every_prompt_and_the_hold_out_apart() -> None:
    found = tau_block(measured_with(better(2, held=0)))
    assert found.prompts == len(SUITE)
    assert {r.prompt for r in found.by_prompt if r.held_out} == {p for p, _ in HELD}
    assert dict(found.guards).keys() == {"holdout"}
    assert found.gain > 0.1 > abs(dict(found.guards)["holdout"])
    first = found.by_prompt[0]
    assert (first.incumbent, first.made) == (steady(first.prompt, first.category), MADE)


def test_a_head_that_does_not_repeat_itself_is_no_block() -> None:
    made = measured_with(better(1))
    odd = replace(made.points[1], rounds=made.points[1].rounds + 1)
    with pytest.raises(BlockError, match="must repeat itself"):
        tau_block(replace(made, points=(made.points[0], odd, *made.points[2:])))


def test_heads_that_generate_different_tokens_are_no_block() -> None:
    made = measured_with(better(1))
    odd = replace(made.points[0], tokens_sha256=fingerprint("other"))
    with pytest.raises(BlockError, match="generated different tokens"):
        tau_block(replace(made, points=(odd, *made.points[1:])))


def test_heads_compare_at_equal_width_only() -> None:
    made = measured_with(better(1))
    wide = replace(made.header.arms[1], effective={**made.header.arms[1].effective,
                                                   "draft_width": WIDTH + 1})  # fmt: skip
    arms = (made.header.arms[0], wide)
    with pytest.raises(BlockError, match="equal draft_width only"):
        tau_block(replace(made, header=replace(made.header, arms=arms)))


# -- the verdict -------------------------------------------------------------------------------

ALPHA = 0.2 / 24


def judged(candidate: Rounds, alpha: float = ALPHA) -> Any:
    return verdict([tau_block(measured_with(candidate))], alpha, HEADS.rule)


def test_a_head_that_beats_the_bar_beyond_doubt_is_promoted() -> None:
    found = judged(better(2))
    assert (found.ending, found.code) == ("promoted", "promoted")
    assert found.e_value >= 1 / ALPHA
    assert "tau 2.0" in found.sentence


def test_a_head_under_the_bar_is_rejected_with_its_bound() -> None:
    def hardly(prompt: str, category: str) -> int:
        return steady(prompt, category) - (prompt == "reasoning-1")

    found = judged(hardly)
    assert (found.ending, found.code) == ("rejected", "bounded")
    assert "under the bar of 3.5 %" in found.sentence


def test_a_head_that_changes_nothing_is_not_promoted() -> None:
    assert judged(steady).code == "no_difference"


def test_a_regression_on_the_hold_out_vetoes_a_gain_on_the_suite() -> None:
    found = judged(better(3, held=-3))
    assert (found.ending, found.code) == ("rejected", "regression")
    assert found.regressions == ("the hold-out",)


def test_a_regression_of_one_category_vetoes_and_is_named() -> None:
    def uneven(prompt: str, category: str) -> int:
        if category == "code_edit":
            return steady(prompt, category) + 6
        return steady(prompt, category) - 4

    assert judged(uneven).regressions == ("code_edit",)


def test_a_doubtful_head_says_what_its_prompts_could_have_seen() -> None:
    def wild(prompt: str, category: str) -> int:
        return steady(prompt, category) + (-5 if sum(map(ord, prompt)) % 2 else 3)

    found = judged(wild)
    assert found.ending == "inconclusive"
    assert f"{len(SUITE)} prompts could have seen" in found.sentence
    assert found.detectable is not None
    assert found.sd > 0.1


def test_without_budget_nothing_is_promoted() -> None:
    assert judged(better(2), alpha=0.0).ending == "inconclusive"


# -- the lever ---------------------------------------------------------------------------------


def test_a_head_lever_is_a_recipe_judged_on_tau_in_one_load() -> None:
    for wrong in ({"metric": "ms_per_token"}, {"hot": False}, {"change": {"head": 3}}):
        with pytest.raises(LeverError, match="changes the head"):
            lever("h", **{"change": {"head": {}}, "kind": "head", "metric": "tau", **wrong})
    one = head(anchor=0.0)
    assert one.applied({"threads": 1}, "v0007") == {"threads": 1, "head": "head.a-v0007"}
    assert one.label() == "head: anchor 0.0"
    assert head().label() == "head: the default recipe"


def test_the_repository_declares_a_dozen_heads_that_differ_in_one_thing() -> None:
    import experiments

    heads = [x for x in experiments.discover() if x.kind == "head"]
    assert len(heads) >= 12
    recipes = [x.change["head"] for x in heads]
    assert all(isinstance(r, dict) for r in recipes)
    mixes = ({"cross_entropy", "total_variation"},)
    assert all(len(r) <= 1 or set(r) in mixes for r in recipes)
    assert len({json.dumps(r, sort_keys=True) for r in recipes}) == len(heads)
    for name in heads:
        archive.check_name(f"{name.name}-v0001")


# -- a campaign --------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, HEADS, start={}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def forged(ledger: Ledger, name: str, variant_id: str | None = None) -> None:
    """An archived head of that name, made of nothing."""
    folder = ledger.path.parent / "made"
    folder.mkdir(exist_ok=True)
    for kind in archive.FILES:
        (folder / kind).write_text(f"{kind} of {name}")
    metrics = {"recipe": {"anchor": 0.1}, "steps": 3, "seconds": 60.0, "history": [{"loss": 1.0}]}
    recording.keep(
        ledger, archive.root_of(ledger.path), name, {k: folder / k for k in archive.FILES},
        recording.about(metrics, start="stock"), now_utc=NOW, variant_id=variant_id,
    )  # fmt: skip


def measure(ledger: Ledger, step: plan.Step, candidate: Rounds) -> judge.Entered:
    assert isinstance(step, plan.NextBlock)
    planned.plan_block(ledger, step, now_utc=NOW)
    forged(ledger, str(step.candidate["head"]), step.variant_id)
    made = measured_with(candidate, f"r{step.block_id[1:]}", step.seed)
    manifest = manifest_of(made, block_id=step.block_id)
    arms = [dict(a) for a in manifest.config["arms"]]
    arms[1] |= {"head": "/there", "head_sha256": HEX}
    manifest = replace(
        manifest, config={**manifest.config, "arms": arms}, heartbeat_gap_s=1e6
    )
    planned.start_run(ledger, manifest, slot=0, now_utc=NOW)
    said = f'"source_sha256": "{HEX}", '
    text = text_of(made).replace(said + '"seal"', f'{said}"heads": {{"B": "{HEX}"}}, "seal"')
    read = parse(text, manifest)
    assert isinstance(read, RunRecord), read
    end = judge.RunEnd("ok", "", "", NOW, NOW, 60 * 10**9, 0)
    return judge.enter(ledger, made.run_id, end, text, read, now_utc=NOW)


def good(holds: bool = True) -> judge.Service:
    return judge.Service(holds, "20 tokens in 9 rounds", {"rounds": 9})


def promoted(ledger: Ledger, one: Lever, by: int = 2) -> str:
    step = plan.next_step(see(ledger), [one])
    measure(ledger, step, better(by))
    assert isinstance(step, plan.NextBlock)
    judge.settle_head(ledger, step.variant_id, good(), now_utc=NOW)
    return str(step.candidate["head"])


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


# -- the session gate --------------------------------------------------------------------------


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


# -- the archive -------------------------------------------------------------------------------


def test_the_archive_overwrites_nothing_and_notes_once(ledger: Ledger, tmp_path: Path) -> None:
    forged(ledger, "mine")
    root = archive.root_of(ledger.path)
    card = archive.card_of(root, "mine")
    with pytest.raises(UsageError, match="nothing there is overwritten"):
        forged(ledger, "mine")
    assert archive.card_of(root, "mine") == card
    for path in (root / "mine").iterdir():
        assert not path.stat().st_mode & 0o222
    archive.note(root, "mine", "staged.json", {"n": 1})
    archive.note(root, "mine", "staged.json", {"n": 2})
    assert json.loads((root / "mine" / "staged.json").read_text()) == {"n": 1}
    with pytest.raises(UsageError, match="cannot name a head"):
        archive.archive(root, "../x", {}, {}, now_utc=NOW)
    with pytest.raises(HeadError, match=r"no model\.safetensors"):
        archive.archive(root, "other", {}, {}, now_utc=NOW)


def test_verify_finds_what_is_gone_changed_or_unknown(ledger: Ledger) -> None:
    for name in ("whole", "bent", "gone", "short"):
        forged(ledger, name)
    root, rows = archive.root_of(ledger.path), {r.name: r for r in see(ledger).heads}
    weights = root / "bent" / archive.WEIGHTS
    text = weights.read_text()
    weights.chmod(0o644)
    weights.write_text(text.upper())
    os.rename(root / "gone", root / "renamed")
    (root / "short" / archive.LOG).unlink()
    assert archive.problems(root, rows["whole"], full=True) == ()
    assert archive.problems(root, rows["bent"], full=False) == ()
    assert archive.problems(root, rows["bent"], full=True) == (
        "bent: model.safetensors has other bytes",
    )
    assert archive.problems(root, rows["gone"], full=False) == ("gone: its folder is gone",)
    assert archive.problems(root, rows["short"], full=False) == ("short: train.log is gone",)
    assert archive.strangers(root, set(rows)) == ("renamed: the ledger does not know it",)


def test_a_head_archived_before_a_crash_is_entered_once(ledger: Ledger) -> None:
    forged(ledger, "mine")
    card = archive.card_of(archive.root_of(ledger.path), "mine")
    recording.enter(ledger, card, None)
    assert [row.name for row in see(ledger).heads] == ["mine"]


# -- release -----------------------------------------------------------------------------------


def test_a_release_needs_promotion_proof_floors_and_hold_out(ledger: Ledger) -> None:
    promoted(ledger, head())
    view = see(ledger)
    assert gates.shortfalls(view, numbers.standings(view)[0]) == ()


def test_a_head_short_of_a_floor_is_told_by_how_much(ledger: Ledger) -> None:
    def copied_less(prompt: str, category: str) -> int:
        slower = 2 if category == "long_context" else -2
        return steady(prompt, category) + slower

    measure(ledger, plan.next_step(see(ledger), [head()]), copied_less)
    view = see(ledger)
    found = gates.shortfalls(view, numbers.standings(view)[0])
    mine = numbers.measured(view.variants[0])
    assert mine is not None
    short = (
        mine.before.categories["long_context"] - Fraction(2, 10)
        - mine.candidate.categories["long_context"]
    )  # fmt: skip
    assert short > 0
    assert any(s.startswith("long_context (reconstructive)") and f"{float(short):.4f}" in s
               for s in found)  # fmt: skip
    assert any("promoted" in s for s in found)


def test_without_the_stock_head_beside_it_nothing_is_released(ledger: Ledger) -> None:
    promoted(ledger, head())
    second = head("head.b", anchor=0.0)
    measure(ledger, plan.next_step(see(ledger), [second]), better(5))
    view = see(ledger)
    mine = numbers.standings(view)[1]
    assert mine.measured is not None
    assert numbers.stock_beside(view, mine.measured) is not None
    other = replace(mine.measured, block=replace(mine.measured.block, source_sha256="cd" * 32))
    found = gates.shortfalls(view, replace(mine, measured=other))
    assert "the stock head was not measured under its ruler and code" in found


# -- the commands ------------------------------------------------------------------------------


def flywheel(*words: str) -> int:
    return cli.main(list(words))


def test_list_and_show_print_the_categories_first(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    name = promoted(ledger, head())
    assert flywheel("heads", "list", "--ledger", str(ledger.path)) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert "live" in shown
    assert flywheel("heads", "show", name, "--ledger", str(ledger.path)) == 0
    card = capsys.readouterr().out
    assert card.index("code_edit") < card.index("| mean") < card.index("Verdict")
    assert flywheel("heads", "show", name, "--ledger", str(ledger.path), "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert len(body["prompts"]) == len(SUITE) + len(HELD)
    assert flywheel("heads", "show", "none", "--ledger", str(ledger.path)) == 2


def test_the_ladder_has_the_best_arm_first_and_its_categories(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("heads", "ladder", "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    assert "no head was measured yet" in capsys.readouterr().out
    levers = [head("head.a"), head("head.b", anchor=0.0)]
    for candidate in (steady, better(2)):
        measure(ledger, plan.next_step(see(ledger), levers), candidate)
    assert flywheel(*words, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in body["arms"]] == ["head.b-v0002", "head.a-v0001"]
    assert [arm["status"] for arm in body["arms"]] == ["undecided", "rejected"]
    assert [line["name"] for line in body["best"]["suite"]] == [*sorted(CATEGORIES), "all"]
    assert body["best"]["hold-out"][-1]["prompts"] == len(HELD)
    assert body["stage_seconds"]["train"] == [60.0, 60.0]
    assert flywheel(*words) == 0
    assert "stage" in capsys.readouterr().out


def test_the_registry_lists_every_head_with_its_gain_in_tau(ledger: Ledger) -> None:
    promoted(ledger, head())
    text = heads_md.render(see(ledger))
    assert "| head.a | `head: the default recipe` | 1 | +" in text
    assert "promoted" in text
    assert "No head arm" not in text


def test_verify_fails_loudly(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    forged(ledger, "mine")
    words = ("heads", "verify", "--full", "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    path = archive.root_of(ledger.path) / "mine" / archive.METRICS
    path.chmod(0o644)
    path.write_text("x")
    capsys.readouterr()
    assert flywheel(*words) == 1
    assert "train_metrics.json has another size" in capsys.readouterr().out


def test_a_packed_head_is_whole_and_carries_its_sums(ledger: Ledger, tmp_path: Path) -> None:
    name = promoted(ledger, head())
    out = tmp_path / "upload"
    words = ("heads", "pack", name, "--out", str(out), "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    lines = (out / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(sums) == {p.name for p in out.iterdir()} - {"SHA256SUMS"}
    for file, digest in sums.items():
        assert hashlib.sha256((out / file).read_bytes()).hexdigest() == digest
    assert flywheel(*words) == 2  # never over an old one


def test_release_refuses_with_the_shortfalls_and_writes_nothing(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(ledger, plan.next_step(see(ledger), [head()]), steady)
    out = tmp_path / "upload"
    words = ("heads", "release", "head.a-v0001", "--out", str(out), "--ledger", str(ledger.path))
    assert flywheel(*words) == 3
    assert "not released: it was not promoted by the loop: rejected" in capsys.readouterr().out
    assert not out.exists()


def test_a_head_trained_by_hand_is_archived_by_command(ledger: Ledger, tmp_path: Path) -> None:
    made = tmp_path / "hand"
    made.mkdir()
    (made / archive.WEIGHTS).write_text("weights")
    (made / archive.METRICS).write_text('{"steps": 3, "history": []}')
    (made / "log").write_text("a log")
    words = ("heads", "add", "mine", str(made), "--log", str(made / "log"))
    assert flywheel(*words, "--ledger", str(ledger.path)) == 0
    assert see(ledger).heads[0].card["training"] == {"steps": 3}
    assert flywheel(*words, "--ledger", str(ledger.path)) == 2


# -- suite and hold-out ------------------------------------------------------------------------


def test_suite_and_hold_out_stand_in_one_file_by_category(tmp_path: Path) -> None:
    assets = suite.engine_assets() / "suites"
    path, prompts = suite.beside(
        assets / "tiny-v1.json", assets / "tiny-holdout-v1.json", tmp_path
    )
    both = suite.load(path)
    assert both.ids == prompts
    held = [p for p in prompts if p.startswith(HELD_OUT)]
    assert len(held) == len(suite.load(assets / "tiny-holdout-v1.json").ids)
    categories = [c for _, c in both.prompts]
    assert categories == sorted(categories, key=categories.index)
    assert suite.beside(assets / "tiny-v1.json", None, tmp_path)[0] == assets / "tiny-v1.json"


# -- the proof in service ----------------------------------------------------------------------

SERVER = '''
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
asked = []
class H(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def say(self, body):
        self.send_response(200); self.end_headers(); self.wfile.write(body.encode())
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.say("{}")
    def do_GET(self):
        if self.path == "/v1/models":
            return self.say('{"data": [{"id": "tiny"}]}')
        rounds = ROUNDS * len(asked)
        tokens = 32.0 * len(asked)
        self.say(f"flywheel_verifies_total {rounds}.0\\nflywheel_round_tokens_total {tokens}\\n")
staged = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
assert staged["head"], staged
server = HTTPServer(("127.0.0.1", 0), H)
print(f"Serving at http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
server.serve_forever()
'''


@pytest.mark.parametrize(("rounds", "holds"), [(10, True), (11, False)])
def test_the_served_head_must_take_the_measured_rounds(
    rounds: int, holds: bool, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("ROUNDS", str(rounds)))
    wanted = prove.Signature(("a", "b"), 64, 20)
    chats = {name: {"messages": [{"role": "user", "content": "x"}]} for name in "ab"}
    found = prove.prove(
        {"head": "there"}, tmp_path, wanted, chats, max_new_tokens=33,
        command=(sys.executable, str(script)),
    )  # fmt: skip
    assert found.holds is holds
    assert f"64 tokens in {2 * rounds} rounds, measured 64 in 20" in found.detail
    assert not (tmp_path / prove.STAGED).exists()


def test_a_server_that_dies_proves_nothing(tmp_path: Path) -> None:
    wanted = prove.Signature(("a",), 1, 1)
    found = prove.prove(
        {"head": "x"}, tmp_path, wanted, {}, max_new_tokens=3,
        command=(sys.executable, "-c", "print('no such head'); raise SystemExit(2)"),
    )  # fmt: skip
    assert not found.holds
    assert "left with status 2: no such head" in found.detail


def test_a_signature_asks_only_what_a_chat_request_can() -> None:
    rows = tau_block(measured_with(better(2))).by_prompt
    chats: dict[str, Mapping[str, Any]] = {
        r.prompt: {"thinking": r.category != "reasoning"} for r in rows
    }
    found = prove.signature(rows, chats)
    assert all(p.startswith("reasoning-") for p in found.prompts)
    assert found.tokens == MADE * prove.PROMPTS
    with pytest.raises(HeadError, match="no prompt of the suite"):
        prove.signature(rows, {r.prompt: {"thinking": True} for r in rows})


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
