"""Real logs of another engine give the numbers that are known of them, or their known reasons.

The folder is not part of the project; without it these tests skip and say so.
"""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from flywheel import release
from flywheel.foreign import arms
from flywheel.foreign.figures import figures
from flywheel.foreign.reading import Reading, read, read_arms
from flywheel.foreign.record import DecodeLog

EVIDENCE = Path(
    os.environ.get("FLYWHEEL_EVIDENCE", Path(__file__).parents[3] / "shared" / "evidence")
)
if not (EVIDENCE / "expected.json").is_file():
    pytest.skip(f"SKIPPED: no evidence at {EVIDENCE}", allow_module_level=True)
EXPECTED: dict[str, Any] = json.loads((EVIDENCE / "expected.json").read_text())

TABLE = EVIDENCE.parent / "reference" / "arms.json"

REASONS = {
    "cycle5.log": ("engine_died", "illegal memory access after 12 complete points; no end marker"),
    "initcheck.log": ("sanitizer", "0.25 tok/s"),
    "killed_while_loading.log": ("ended_while_loading", "no point and no end marker"),
    "nvfp4_woa.log": ("not_lossless", "at token 5 (270, not 16603) although the match line says"),
    "prefill_long.log": ("impossible_rate", "inf"),
    "s1_c0_cap.log": ("capture_run", "8 tokens a point, a transient (5.58"),
    "s3_eval_adaptk2.0.log": ("other_ruler", "adapt_k: 2.0 is not 1.5"),
    "vkplus_suite.log": ("other_ruler", "width: 5 is not 6"),
    "uint2.log": ("engine_died", "misaligned address inside the point of prompt 0"),
}


def decoded(found: Reading) -> DecodeLog:
    assert isinstance(found.log, DecodeLog)
    return found.log


def same(exact: Fraction, printed: float) -> bool:
    """Whether the printed number is the exact one rounded to four decimals, either way at a tie."""
    return abs(exact - Fraction(str(printed))) <= Fraction(1, 20_000)


@pytest.mark.parametrize("name", EXPECTED["admissible"])
def test_an_admissible_log_gives_its_known_numbers(name: str) -> None:
    known = EXPECTED["admissible"][name]
    found = read(EVIDENCE / "admissible" / name)
    assert found.reasons == ()
    log, told = decoded(found), figures(decoded(found))
    assert (told.points, told.prompts) == (known["points"], known["suite_prompts"])
    assert (told.tokens, told.forwards) == (known["tokens"], known["target_forwards"])
    assert same(told.mean_of_exact, known["suite_tau_mean_of_exact_ratios"])
    assert same(told.mean_of_printed, known["suite_tau_mean_of_printed_2dp"])
    assert same(told.tok_s, known["suite_tok_s"])
    assert told.base_tok_s == Fraction(str(known["ar_tok_s"]))
    assert {p.width for p in log.points} == {known["draft_width"]}
    assert {p.asked for p in log.points} == {known["tokens_per_point"]}
    assert {float(p.adapt_k) for p in log.points} == {known["adaptk_effective"]}
    eos = {str(n): at for n, at in told.first_eos}
    assert eos == known["first_eos_within_printed_40_tokens"]
    assert told.past_eos == 6


@pytest.mark.parametrize("name", EXPECTED["refuse"])
def test_a_log_that_must_not_count_is_refused_for_its_reason(name: str) -> None:
    found = read(EVIDENCE / "refuse" / name)
    wanted, words = REASONS[name]
    assert found.measurements() == ()
    assert found.reasons[0].code == wanted
    assert words in found.reasons[0].detail
    known = EXPECTED["refuse"][name]
    if "suite_tau_mean_of_exact_ratios" in known:
        assert len(found.reasons) == 1, "complete and passing, but another ruler"
        assert same(figures(decoded(found)).mean_of_exact, known["suite_tau_mean_of_exact_ratios"])
    if "complete_points" in known:
        assert len(decoded(found).complete_points) == known["complete_points"]


def test_the_long_prefill_also_has_four_tokens_a_point() -> None:
    found = read(EVIDENCE / "refuse" / "prefill_long.log")
    told = [r.detail for r in found.reasons]
    assert "tokens: 4 is not 200" in told
    assert any("0.00 tok/s" in detail for detail in told)


@pytest.mark.parametrize("name", ["clean_exit.log", "memguard.log"])
def test_a_guard_log_gives_its_known_numbers(name: str) -> None:
    known = EXPECTED["guard"][name]
    facts: Any = read(EVIDENCE / "guard" / name).facts()
    assert facts["kills"] == known.get("kills", known.get("kill_lines"))
    assert len(facts["kills_that_freed_nothing"]) == known.get("kills_that_freed_nothing", 0)
    for field in ("low_water_mb", "peak_fall_mb_s"):
        assert field not in known or facts[field] == known[field]


def test_every_cut_of_a_real_log_is_refused(tmp_path: Path) -> None:
    lines = (EVIDENCE / "admissible" / "s3_eval.log").read_bytes().splitlines(keepends=True)
    for cut in range(0, len(lines), 97):
        path = tmp_path / "cut.log"
        path.write_bytes(b"".join(lines[:cut]))
        assert not read(path).ok


def by_category(name: str) -> dict[str, Fraction]:
    found = read(EVIDENCE / "admissible" / name)
    return {m.category: Fraction(m.numerator, m.denominator)
            for m in found.measurements() if m.metric == "tokens_per_forward"}  # fmt: skip


def test_a_promoted_head_that_trades_copying_for_loops_misses_its_floors() -> None:
    stock = by_category("baseline_blk6_suite.log")
    kept = release.floors(by_category("s3_eval.log"), stock, by_category("s1_eval.log"))
    short = {f.category: f for f in kept if not f.kept}
    assert set(short) == {"long_context", "agentic_format", "code_edit"}
    assert short["long_context"].candidate == Fraction(201, 51)
    assert short["long_context"].shortfall == Fraction(205, 37) - Fraction(1, 5) - Fraction(201, 51)
    assert short["code_edit"].shortfall < Fraction(4, 100)


@pytest.fixture
def table() -> arms.Table:
    if not TABLE.is_file():
        pytest.skip(f"SKIPPED: no table of arms at {TABLE}")
    found = read_arms(TABLE).log
    assert isinstance(found, arms.Table)
    return found


def test_the_known_verdicts_come_out_of_our_rule(table: arms.Table) -> None:
    stood = {v.arm.name: v for v in arms.judge(table, arms.AS_IT_STOOD)}
    ruled = {v.arm.name: v for v in arms.judge(table, arms.BY_THE_RULE)}
    assert stood["s1"].ending == ruled["s1"].ending == "refused"
    assert "needs more than 3.6600" in stood["s1"].said
    assert stood["s2"].ending == ruled["s2"].ending == "refused"
    assert stood["s2-abl-ce1.0_tv0.0"].ending == "refused"
    assert ruled["s2-abl-ce1.0_tv0.0"].ending == "promoted"
    assert stood["s3"].ending == ruled["s3"].ending == "promoted"
    for world in (stood, ruled):
        assert world["s3recap-p25-b0.1"].ending == "promoted"
        assert "+4.13 %" in world["s3recap-p25-b0.1"].said
        assert "+1.23 %" in world["auto-ace0p5"].said
        for name in ("auto-ace0p5", "auto-ace0p3", "auto-beta0p05"):
            assert world[name].ending == "refused"
    assert arms.flips(table) == ("s1", "s2-abl-ce1.0_tv0.0")


def test_every_stated_verdict_is_ours_too_where_the_incumbents_stood(table: arms.Table) -> None:
    for verdict in arms.judge(table, arms.AS_IT_STOOD):
        stated = {"promoted-then-refused": "refused"}.get(verdict.arm.stated, verdict.arm.stated)
        assert verdict.ending == stated, verdict.arm.name


def test_the_release_floors_give_their_exact_shortfalls(table: arms.Table) -> None:
    kept = {f.category: f.shortfall for f in arms.floors(table)["s3recap-p25-b0.1"]}
    assert kept == {
        "long_context": Fraction("0.27"), "agentic_format": Fraction("0.05"),
        "reasoning": Fraction("0.13"), "code_edit": 0, "explanation": 0, "code_gen": 0,
    }  # fmt: skip
    means = arms.means(table)
    assert means["s3recap-p25-b0.1@5 tau"] == Fraction("3.84125")
    assert means["s3recap-p25-b0.1@5 tok/s"] == Fraction("28.3825")
