"""What the method promises, on invented boxes, with the bounds that the project publishes.

Seeds are fixed and campaigns few; the long study is in docs/measurements/simulate-full.json.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import NOW, World, drive, lever

from flywheel.errors import UsageError
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.simulate import command as program, informed, landscape, ordering, page, plot
from flywheel.simulate.box import BOXES, Box, Machine
from flywheel.simulate.outcome import Outcome, Summary, summarise
from flywheel.simulate.study import Row, campaign, pool, rows, study
from flywheel.simulate.truth import draw
from flywheel.statistics.campaign import QUICK

CAMPAIGNS = 12
FALSE, FALSE_NULL, POWER = 0.5, 0.2, 0.65
FULL = Path(__file__).parents[2] / "docs/measurements/simulate-full.json"


def one(rule: str, box: str = "base", truth: str = "mixed", campaigns: int = CAMPAIGNS) -> Summary:
    return study([Row(rule, box, truth)], campaigns)[0]


def holds(mixed: Summary, null: Summary) -> bool:
    """The published bounds, as far as so few campaigns can tell."""
    power = mixed.power_high or 0.0
    return mixed.false <= FALSE and null.false <= FALSE_NULL and power >= POWER


@pytest.mark.parametrize("rule", ["cold", "hot"])
def test_our_rule_stays_within_its_bounds_on_the_base_box(rule: str) -> None:
    mixed = one(rule)
    assert holds(mixed, one(rule, truth="null"))
    assert mixed.power is not None
    assert mixed.power > POWER - 0.05
    assert mixed.claimed_gain < mixed.true_gain * 1.15
    assert mixed.fdr < 0.05


@pytest.mark.parametrize("rule", ["greedy", "threshold", "floor", "repeats", "paired2", "paired4"])
def test_the_rules_of_others_break_the_same_bounds(rule: str) -> None:
    mixed, null = one(rule, campaigns=4), one(rule, truth="null", campaigns=4)
    assert not holds(mixed, null)
    assert null.false > 1


def test_repeats_taken_for_samples_claim_gains_that_are_not_there() -> None:
    null = one("repeats", truth="null", campaigns=3)
    assert null.false > 60
    assert null.true_gain == 0
    assert null.claimed_gain > 1


@pytest.mark.parametrize("box", [name for name in BOXES if name != "base"])
def test_no_box_makes_the_rule_promote_noise_freely(box: str) -> None:
    null = one("cold", box, "null", 6)
    assert null.false_low <= 1.0
    assert null.false <= 1.0


def test_power_grows_with_the_gain_and_with_a_quieter_box() -> None:
    found = [one("cold", truth=gain, campaigns=4).power for gain in ("0.005", "0.02", "0.03")]
    assert found == sorted(found)
    assert found[-1] > 0.85
    loud, quiet = one("cold", "noisy", campaigns=4), one("cold", "quiet", campaigns=4)
    assert quiet.power > 0.8 > loud.power


def test_the_same_seed_gives_the_same_campaign_and_another_does_not() -> None:
    row = Row("cold")
    assert campaign(row, 3, 60) == campaign(row, 3, 60)
    assert campaign(row, 3, 60) != campaign(row, 4, 60)


def test_rules_on_one_box_are_given_the_same_levers() -> None:
    assert campaign(Row("cold"), 3).truth == campaign(Row("greedy"), 3).truth


def test_the_box_does_what_it_says() -> None:
    calm = Box("calm", drift=0.0, shift_rate=0.0, bad_rate=0.0)
    loads = [Machine(calm, np.random.default_rng(1)).load() for _ in range(1)]
    machine = Machine(calm, np.random.default_rng(1))
    loads = np.array([machine.load() for _ in range(9000)])
    assert np.std(loads) == pytest.approx(0.007, rel=0.03)
    assert machine.load(gain=5.0) < -4
    tied = Machine(Box("tied", drift=0.0, shift_rate=0.0, bad_rate=0.0, ar1=0.5),
                   np.random.default_rng(1))
    series = np.array([tied.load() for _ in range(9000)])
    assert np.corrcoef(series[1:], series[:-1])[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.std(series) == pytest.approx(0.007, rel=0.03)


def test_truths_have_the_shares_that_they_say() -> None:
    levers = draw("mixed", BOXES["base"], np.random.default_rng(1), 20000)
    gains = np.array([lever.gain for lever in levers])
    assert np.mean(gains > 0) == pytest.approx(0.08, abs=0.01)
    assert np.mean(gains < 0) == pytest.approx(0.12, abs=0.01)
    assert np.mean(gains[gains > 0]) == pytest.approx(0.015, rel=0.1)
    assert {t.gain for t in draw("null", BOXES["base"], np.random.default_rng(1))} == {0.0}


def test_a_promoted_canary_counts_as_false() -> None:
    made = summarise("r", "b", "mixed", [Outcome((0.02, 0.0, -0.01), {0: 0.01, 2: 0.02}, 9,
                                                 canaries=1, wrong_canaries=1)])
    assert made.false == 2
    assert made.fdr == pytest.approx(2 / 3)
    assert made.power == 1.0
    assert made.true_gain == pytest.approx(0.01)


def test_two_processes_count_what_one_does() -> None:
    wanted = [Row("greedy", truth="null")]
    assert study(wanted, 3, processes=2) == study(wanted, 3)


def test_the_program_prints_json_and_draws_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tuple(r for r in rows(robust=False) if r.rule in ("cold", "greedy"))
    monkeypatch.setattr(program, "rows", lambda: few)
    out = tmp_path / "study.json"
    asked = ["--json", "--campaigns", "1", "--out", str(out), "--docs", str(tmp_path)]
    assert program.main(asked) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert len(printed["rows"]) == len(few)
    assert "numpy" in printed["versions"]
    for name in ("power", "claims"):
        picture = (tmp_path / f"simulate-{name}.svg").read_text()
        assert picture.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert "ours, cold blocks" in picture
    assert program.main(["--campaigns", "1"]) == 0
    assert "false/campaign" in capsys.readouterr().out


def test_a_stored_study_is_drawn_again_without_running(tmp_path: Path) -> None:
    found = study([Row("greedy"), Row("greedy", truth="null"), Row("greedy", truth="0.02")], 1)
    stored = tmp_path / "study.json"
    stored.write_text(json.dumps(program.document(found, 1, 1, 0.0)))
    (tmp_path / page.PAGE).write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    assert program.main(["--from", str(stored), "--docs", str(tmp_path)]) == 0
    text = (tmp_path / page.PAGE).read_text()
    assert "old" not in text
    assert text.startswith("before")
    assert "| greedy against the stored best | base | 1.0 |" in text
    assert "2 %" in text
    assert (tmp_path / page.POWER).is_file()
    with pytest.raises(UsageError, match="no place"):
        page.put("nothing", found)


def test_a_mistake_in_asking_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    assert program.main(["--from", str(tmp_path / "bad.json")]) == 2
    assert "holds no study" in capsys.readouterr().err
    assert program.main(["--permute", str(tmp_path / "none.db")]) == 2
    assert "no ledger" in capsys.readouterr().err


def test_shuffled_labels_of_a_real_history_promote_next_to_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The ledger has a clear promotion; with its labels shuffled it must go."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path)
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    drive(ledger, [lever(f"l{i}", {f"f{i}": "on"}) for i in range(3)],
          World({'{"f0":"on"}': -0.06}))
    with ledger.reading() as connection:
        assert any(d.promoted for d in views.load(connection).decisions)
    ledger.close()
    assert program.main(["--permute", str(path), "--campaigns", "60", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decided"] >= 120
    assert found["promoted"] <= found["decided"] / 50
    assert program.main(["--permute", str(path), "--campaigns", "2"]) == 0
    assert "shuffled labels" in capsys.readouterr().out


def test_the_published_study_holds_the_published_bounds() -> None:
    body = json.loads(FULL.read_text(encoding="utf-8"))
    table = {(r["rule"], r["box"], r["truth"]): r for r in body["rows"]}
    for rule in ("ours, cold blocks", "ours, hot blocks"):
        mixed, null = (table[rule, "base", truth] for truth in ("mixed", "null"))
        assert mixed["campaigns"] >= 100
        assert mixed["false_high"] <= FALSE
        assert null["false_high"] <= FALSE_NULL
        assert mixed["power_low"] >= POWER
    rebuilt = [Summary(**r) for r in body["rows"]]
    text = (FULL.parents[1] / page.PAGE).read_text(encoding="utf-8")
    assert page.put(text, rebuilt) == text
    docs = FULL.parents[1]
    assert plot.power(rebuilt) == (docs / "simulate-power.svg").read_text(encoding="utf-8")
    assert plot.claims(rebuilt) == (docs / "simulate-claims.svg").read_text(encoding="utf-8")


ORDERING = Path(__file__).parents[2] / "docs/measurements/simulate-ordering.json"


def test_our_order_finds_the_gain_sooner_than_fifo_and_chance() -> None:
    found = {
        row.order: row.of_oracle
        for row in ordering.study(6, landscapes=(landscape.BASE,))
        if row.horizon == 1.0
    }
    assert found["oracle"] == 1.0
    assert found["ours"] > found["largest prediction"] > found["random"]
    assert found["ours"] > max(found["FIFO"], found["random"]) + 0.1


def test_what_a_bound_believes_of_the_rule_is_what_the_rule_does() -> None:
    for hot in (True, False):
        told = dict(zip(informed.GAINS, ordering.answer(hot=hot).promoted, strict=True))
        assert all(told[gain] <= 0.1 for gain in informed.GAINS if gain <= 0.002)
        assert told[0.04] >= 0.9
        assert told[0.04] > told[0.01] > told[0.003]


def test_to_know_families_is_worth_more_than_to_learn_them() -> None:
    # Some families win always and some never, and what they state says nothing of it.
    apart = landscape.Landscape(levers=60, families=6, alike=0.5, habit=1.0)
    found = {
        row.order: row.of_oracle
        for row in ordering.study(8, landscapes=(apart,))
        if row.horizon == 1.0
    }
    known, learnt = found[ordering.FAMILIES_KNOWN], found[ordering.ODDS_KNOWN]
    assert found["random"] < found["largest prediction"] < learnt < known


def test_the_area_of_a_step_curve_is_that_of_its_steps() -> None:
    steps = ((0.0, 0.0), (2.0, 1.0), (5.0, 3.0))
    assert ordering.area(steps, 1.0) == 0.0
    assert ordering.area(steps, 5.0) == 3.0
    assert ordering.area(steps, 7.0) == 9.0


def test_the_published_ordering_meets_its_aim_on_todays_landscapes() -> None:
    body = json.loads(ORDERING.read_text())
    assert [landscape.Landscape(**{**one, "part": tuple(one["part"])})
            for one in body["landscapes"]] == list(landscape.LANDSCAPES.values())
    rows = {(r["landscape"], r["horizon"], r["order"]): r["of_oracle"] for r in body["rows"]}
    assert rows["base", 1.0, "ours"] >= 0.85
    for name in landscape.LANDSCAPES:
        # What is missing is what nobody could know of single levers, and little of it the rule's.
        assert rows[name, 1.0, "ours"] <= rows[name, 1.0, ordering.FAMILIES_KNOWN]
        assert rows[name, 1.0, "ours"] >= rows[name, 1.0, ordering.ODDS_KNOWN] - 0.04
    for name in landscape.LANDSCAPES:
        for horizon in ordering.HORIZONS:
            others = [rows[name, horizon, order] for order in ("random", "FIFO")]
            assert rows[name, horizon, "ours"] > max(others)


def test_the_ordering_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = landscape.Landscape(levers=6, families=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "LANDSCAPES", {"base": small})
        patch.setattr(ordering, "LANDSCAPES", {"base": small})
        assert program.main(["--ordering", "--campaigns", "2", "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        assert len(body["rows"]) == len(ordering.ORDERS) * len(ordering.HORIZONS)
        assert body["command"].endswith("--ordering --campaigns 2 --seed 1")
        assert program.main(["--ordering", "--campaigns", "1"]) == 0
    assert "1 queue a row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (lambda body: body.update(rows=[]), "it has no row"),
        (lambda body: body.pop("rows"), "it has no 'rows'"),
        (lambda body: body["rows"][0].update(false="a"), "false must be a finite number"),
        (lambda body: body["rows"][0].update(true_gain=float("nan")), "true_gain must be a finite"),
        (lambda body: body["rows"][0].update(truth="zzz"), "'zzz' is no kind of truth"),
        (lambda body: body["rows"][0].update(rule=3), "rule must be text"),
    ],
)
def test_a_study_of_other_figures_is_not_drawn(
    bend: Callable[[dict[str, Any]], object], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    body = json.loads(FULL.read_text())
    bend(body)
    (tmp_path / "study.json").write_text(json.dumps(body))
    assert program.main(["--from", str(tmp_path / "study.json"), "--docs", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / page.POWER).exists()


def test_the_folder_for_pictures_is_made(tmp_path: Path) -> None:
    assert program.main(["--from", str(FULL), "--docs", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / page.CLAIMS).read_text().startswith("<svg")


def test_a_page_without_a_place_for_the_table_is_known_before_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "study", lambda *_, **__: pytest.fail("it ran"))
    (tmp_path / page.PAGE).write_text("no marks")
    assert program.main(["--docs", str(tmp_path)]) == 2
    assert "no place for the table" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--campaigns", "9" * 20], ["--campaigns", "10001"], ["--processes", "9999"]]
)
def test_more_campaigns_than_fit_the_memory_are_not_begun(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(words)
    assert end.value.code == 2
    assert "is no count from 1 to" in capsys.readouterr().err


def test_nothing_to_shuffle_is_told_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Ledger.open(tmp_path / "l.db").close()
    assert program.main(["--permute", str(tmp_path / "l.db"), "--campaigns", "1"]) == 0
    assert "no verdict of this ledger can be shuffled" in capsys.readouterr().out


@pytest.mark.parametrize("seed", ["-5", "x", "9" * 19])
def test_a_seed_that_no_dice_take_is_refused(
    seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(["--ordering", f"--seed={seed}"])
    assert end.value.code == 2
    assert "is no seed" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--docs", "--from"])
def test_an_option_without_effect_on_orders_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--ordering", "--campaigns", "1", option, str(tmp_path)]) == 2
    assert f"{option} goes without --ordering" in capsys.readouterr().err


def test_a_second_interrupt_does_not_break_off_the_end_of_the_workers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), pool(1) as workers:  # noqa: PT012
        assert workers.submit(abs, -1).result() == 1
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
