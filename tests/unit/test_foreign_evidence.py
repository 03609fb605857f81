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

from flywheel.foreign.figures import figures
from flywheel.foreign.reading import Reading, read
from flywheel.foreign.record import DecodeLog

EVIDENCE = Path(
    os.environ.get("FLYWHEEL_EVIDENCE", Path(__file__).parents[3] / "shared" / "evidence")
)
if not (EVIDENCE / "expected.json").is_file():
    pytest.skip(f"SKIPPED: no evidence at {EVIDENCE}", allow_module_level=True)
EXPECTED: dict[str, Any] = json.loads((EVIDENCE / "expected.json").read_text())

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
