"""Widths are judged from counts and costs alone, and what hindsight gains is called a ceiling."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foreign_logs import Point, log, round_ms, suite
from hypothesis import given, strategies as st
from logs import Event, honest, manifest, sealed
from records import NOW, World, drive, lever

from flywheel.cli import app as cli
from flywheel.errors import UsageError
from flywheel.foreign import history, reading
from flywheel.foreign.record import DecodeLog
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.run.parse import parse
from flywheel.run.refusal import Refusal
from flywheel.statistics.campaign import QUICK
from flywheel.width import analysis, gather, page, profile
from flywheel.width.calibration import auc, calibrate
from flywheel.width.evidence import Costs, Evidence, Prompt, Score


def prompt(name: str, fates: list[int], width: int = 3) -> Prompt:
    """A prompt whose rounds would accept these many drafts, at a fixed width."""
    kept = [min(f, width) for f in fates]
    accepted = tuple(sum(k > j for k in kept) for j in range(width))
    return Prompt(
        name, "c", len(kept), len(kept) + sum(kept), (len(kept),) * width,
        (len(kept), *accepted[:-1]), accepted, 10**9,
    )  # fmt: skip


def evidence(*prompts: Prompt, step: dict[int, float] | None = None, **more: Any) -> Evidence:
    costs = Costs({k: 1e6 * k for k in range(1, 5)} if step is None else step, 0.5e6)
    return Evidence("x", ("r1",), 3, "fixed", prompts, costs, **more)


def test_acceptance_by_position_counts_only_rounds_that_got_there() -> None:
    found = analysis.positions([prompt("a", [0, 1, 3, 3])])
    assert [(p.reached, p.accepted) for p in found] == [(4, 3), (3, 2), (2, 2)]
    assert [p.survival for p in found] == pytest.approx([0.75, 0.5, 0.5])
    assert all(p.low <= p.share <= p.high for p in found)


def test_a_width_costs_its_step_and_its_draft_and_plain_decode_drafts_nothing() -> None:
    found = analysis.choices(analysis.positions([prompt("a", [1, 1])]), evidence().costs)
    assert [c.ms_per_token for c in found] == pytest.approx([1.0, 2.5 / 2, 3.5 / 2, 4.5 / 2])
    assert analysis.best(found).width == 0


def test_the_best_width_follows_cost_and_acceptance() -> None:
    flat = {1: 10e6, 2: 10.1e6, 3: 10.2e6, 4: 10.3e6}
    found = analysis.ceilings(evidence(prompt("a", [3] * 9), step=flat))
    assert found is not None
    assert found.best_fixed.width == 3
    assert found.round_gain == pytest.approx(0.0)
    assert found.perfect_gain == pytest.approx(0.0)


def test_hindsight_by_prompt_gains_where_prompts_differ_and_nothing_where_they_do_not() -> None:
    step = {1: 1.0e6, 2: 1.2e6, 3: 1.4e6, 4: 1.6e6}
    alike = analysis.ceilings(evidence(prompt("a", [1, 1]), prompt("b", [1, 1]), step=step))
    apart = analysis.ceilings(evidence(prompt("a", [0] * 8), prompt("b", [3] * 8), step=step))
    assert alike is not None
    assert apart is not None
    assert alike.prompt_gain == pytest.approx(0.0)
    # One width costs 8 x 2.1 + 32 x 0.525 ms; a width of its own saves the first prompt 8 x 1.1.
    assert apart.prompt_gain == pytest.approx(8.8 / 33.6)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5),
       st.lists(st.floats(0.1, 50), min_size=4, max_size=4))
def test_ceilings_are_ordered_whatever_the_rounds(
    fates: list[list[int]], steps: list[float]
) -> None:
    rising = {k: 1e6 * math.fsum(steps[:k]) for k in range(1, 5)}
    mine = evidence(*(prompt(str(i), f) for i, f in enumerate(fates)), step=rising)
    found = analysis.ceilings(mine)
    assert found is not None
    assert found.prompt_gain >= -1e-9
    assert found.round_gain >= -1e-9
    assert found.fixed_gain >= -1e-9


def test_a_cost_model_that_misses_the_measured_rounds_is_not_to_be_believed() -> None:
    off = evidence(prompt("a", [3] * 9))
    assert analysis.model_error(off) == pytest.approx(9 * 4.5e6 / 1e9 - 1)
    assert any("no width here is to be believed" in c for c in page.width_page(off).caveats)
    near = evidence(replace(prompt("a", [3] * 9), decode_ns=41_000_000))
    assert not any("believed" in c for c in page.width_page(near).caveats)


def test_a_step_without_a_cost_gives_no_ceiling_rather_than_a_guess() -> None:
    assert analysis.ceilings(evidence(prompt("a", [3]), step={1: 1e6, 2: 1e6})) is None


def test_auc_is_one_for_a_perfect_order_and_a_half_for_none() -> None:
    sure = [Score(1, i / 10, i >= 5) for i in range(10)]
    assert auc(sure) == 1.0
    assert auc([Score(1, 0.5, i % 2 == 0) for i in range(10)]) == 0.5
    assert auc([Score(1, -s.value, s.accepted) for s in sure]) == 0.0
    assert auc(sure[5:]) is None


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    draw = random.Random(3)
    scores = [Score(1, draw.choice((0.1, 0.2, 0.3)), draw.random() < 0.4) for _ in range(60)]
    right = [s.value for s in scores if s.accepted]
    wrong = [s.value for s in scores if not s.accepted]
    pairs = [(r > w) + 0.5 * (r == w) for r in right for w in wrong]
    assert auc(scores) == pytest.approx(sum(pairs) / len(pairs))


def test_reliability_bins_keep_every_score_and_equal_ones_together() -> None:
    scores = [Score(1, round(i % 7 / 7, 3), i % 3 == 0) for i in range(210)]
    found = calibrate("confidence", scores, bins=4)
    assert found is not None
    assert sum(b.count for b in found.bins) == 210
    assert all(a.high < b.low for a, b in zip(found.bins, found.bins[1:], strict=False))
    assert found.brier is not None


def test_a_margin_is_ranked_but_has_no_calibration_error() -> None:
    found = calibrate("margin", [Score(1, 2.0, True), Score(1, 1.0, False)])
    assert found is not None
    assert (found.auc, found.error, found.brier) == (1.0, None, None)


def test_the_entropy_ceiling_multiplies_the_targets_own_doubt() -> None:
    assert analysis.target_ceiling([[1.0] * 10], 3) == pytest.approx(4.0)
    assert analysis.target_ceiling([[0.5] * 10, [0.5]], 2) == pytest.approx(1.75)
    assert analysis.target_ceiling([[0.5], [0.5]], 2) is None


def test_an_imported_log_gives_costs_by_rows_and_margins_of_reached_slots() -> None:
    found = reading.reread("decode", "a.log", log(suite((6, 3), eos=())).encode()).log
    assert isinstance(found, DecodeLog)
    mine = gather.of_log("a.log", found)
    assert mine.costs.step_ns[5] == round_ms(5) * 1e6
    assert mine.costs.rough == (1,)
    one = mine.prompts[0]
    # 19 rounds accept six of six, 18 accept three of four.
    assert (one.rounds, one.accepted[3], one.reached[3]) == (37, 19, 37)
    assert {s.value for s in mine.scores if not s.accepted} == {0.5}
    assert page.width_page(mine).calibration is not None


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one imported log and no run."""
    path = tmp_path / "l.db"
    opened = Ledger.open(path)
    raw = log([Point(n, (6, 3, 0)) for n in range(9)]).encode()
    with opened.transaction() as writer:
        history.append(writer, reading.reread("decode", "a.log", raw), NOW)
        history.append(writer, reading.reread("decode", "cut.log", raw[:-300]), NOW)
    opened.close()
    return path


def test_the_report_prints_the_same_numbers_as_text_json_and_html(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "w.html"
    asked = ["report", "width", "--imported", "a.log", "--ledger", str(ledger)]
    assert cli.main([*asked, "--html", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert cli.main(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"AUC {told['calibration']['auc']:.3f}" in text
    assert "ceiling, chosen with hindsight" in text
    assert any("entropy ceiling" in m for m in told["missing"])
    assert "<svg" in out.read_text()
    assert "http" not in out.read_text().replace("http-equiv", "")


def test_a_refused_log_or_a_ledger_without_runs_is_told_apart(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, word in (
        (["--imported", "cut.log"], "has no rounds to analyse"),
        (["--imported", "nothing"], "no imported file is named"),
        ([], "no campaign"),
    ):
        assert cli.main(["report", "width", "--ledger", str(ledger), *more]) != 0
        assert word in capsys.readouterr().err


def test_our_own_runs_are_analysed_from_their_stored_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Ledger.open(tmp_path / "l.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    drive(opened, [lever()], World({'{"threads":2}': -0.05}))
    opened.close()
    assert cli.main(["report", "--json", "--ledger", str(tmp_path / "l.db"), "width"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == "fixed"
    assert [rows for rows, _ in told["step_ms"]] == [1, 2, 3, 4]
    assert any("calibration" in m for m in told["missing"])


def profiled(**changes: Any) -> list[Event]:
    """An honest log of a profile run: its first arm's points also round by round."""
    out: list[Event] = []
    for event in honest():
        if event["event"] == "start":
            event["mode"] = changes.get("mode", "profile")
        out.append(event)
        if event["event"] == "point" and event["arm"] == "A":
            out.append({
                "event": "rounds", "arm": "A", "prompt": event["prompt"],
                "repeat": event["repeat"], "offered": [3, 3, 3, 3], "accepted": [2, 1, 1, 0],
                "time_ns": [900_000] * 4, "confidence": [[0.9, 0.8, 0.1]] * 4,
                **changes.get("rounds", {}),
            })  # fmt: skip
        if event["event"] == "plain" and event["arm"] == "A":
            out.append({"event": "target", "arm": "A", "prompt": event["prompt"],
                        "top": [0.5] * 9, "entropy_nats": [1.0] * 9})  # fmt: skip
    return out


def test_a_profile_run_gives_confidences_costs_and_the_targets_doubt() -> None:
    mine = profile.evidence("p.log", sealed(profiled()))
    assert mine.costs.draft_ns == 400_000
    # Two prompts alike in every repeat: each is one text of four rounds.
    assert [(p.rounds, p.accepted, p.reached) for p in mine.prompts] == [
        (4, (3, 1, 0), (4, 3, 1))] * 2
    assert sum(s.accepted for s in mine.scores) == 8
    assert len(mine.scores) == 2 * (3 + 2 + 2 + 1)
    made = page.width_page(mine)
    assert made.missing == ()
    assert made.target_ceiling == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert made.calibration is not None
    assert made.calibration.brier is not None


def test_a_profile_run_never_counts_and_a_clean_run_may_not_say_so_much() -> None:
    for events, code in ((profiled(), "not_clean"), (profiled(mode="clean"), "unknown_event")):
        found = parse(sealed(events), manifest())
        assert isinstance(found, Refusal)
        assert found.code == code


@pytest.mark.parametrize(("mode", "code"), [("profile", "not_clean"), ("clean", "unknown_event")])
def test_a_run_that_timed_its_phases_is_never_a_clean_measurement(mode: str, code: str) -> None:
    phase: Event = {"event": "phase", "arm": "A", "path": "experts", "ms": 1.0, "launches": 7}
    log = [e | {"mode": mode} if e["event"] == "start" else e for e in honest()]
    found = parse(sealed([*log[:-1], phase, *log[-1:]]), manifest())
    assert isinstance(found, Refusal)
    assert (found.code, found.ending) == (code, "void")


@pytest.mark.parametrize(
    "text",
    [
        "", "@" + "0" * 32 + " {", sealed(honest()), sealed(profiled())[:-80],
        sealed(profiled(rounds={"accepted": [4, 1, 1, 0]})),
        sealed(profiled(rounds={"time_ns": [1]})),
        sealed(profiled(rounds={"confidence": [[2.0, 0.8, 0.1]] * 4})),
        sealed(profiled(rounds={"confidence": [0.5] * 4})),
        sealed(profiled(rounds={"confidence": None})),
    ],
)  # fmt: skip
def test_anything_but_a_whole_profile_log_is_a_user_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="no whole log of a profile run"):
        profile.evidence("p.log", text)
