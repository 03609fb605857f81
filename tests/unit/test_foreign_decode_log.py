"""A foreign decode log counts when all of it agrees with itself, and otherwise says why not."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from foreign_logs import Point, header, log, suite
from hypothesis import given, settings, strategies as st

from flywheel.errors import UsageError
from flywheel.foreign import admission, reading
from flywheel.foreign.decode_log import Reader
from flywheel.foreign.figures import figures
from flywheel.foreign.reading import Reading
from flywheel.foreign.record import DecodeLog
from flywheel.foreign.source import Stream


def read(text: str) -> Reading:
    return reading.reread("decode", "a.log", text.encode("utf-8", "surrogateescape"))


def code(text: str) -> str:
    found = read(text)
    assert not found.ok
    assert found.measurements() == ()
    assert all(r.detail for r in found.reasons)
    return found.reasons[0].code


def decoded(found: Reading) -> DecodeLog:
    assert isinstance(found.log, DecodeLog)
    return found.log


def test_a_whole_log_counts_and_keeps_exact_ratios() -> None:
    found = read(log())
    assert found.reasons == ()
    told = figures(decoded(found))
    # Rounds of 7 and 4 tokens: 36 rounds make 198, the 37th passes 200.
    assert (told.tokens, told.forwards) == (8 * 205, 8 * 37)
    assert told.mean_of_exact == told.pooled == Fraction(205, 37)
    assert told.mean_of_printed == Fraction("5.54")
    assert told.base_tok_s == Fraction("12.5")


def test_the_three_means_of_one_table_differ() -> None:
    points = [Point(n, (6,) if n < 3 else (0, 2)) for n in range(9)]
    told = figures(decoded(read(log(points))))
    assert told.mean_of_printed == Fraction(2 * 7 + 6 * 2, 8)
    assert told.mean_of_exact != told.pooled


def test_decoding_past_the_end_of_a_sequence_is_flagged_and_is_no_tau() -> None:
    found = read(log(suite(eos=(2, 5))))
    facts = found.facts()
    assert facts["decodes_past_eos"] == 2
    assert facts["is_a_tau"] is False
    assert "not a tau" in str(facts["why_not"])
    mine = [m for m in found.measurements() if m.metric == "tokens_per_forward"]
    assert [m.prompt for m in mine if not m.counted] == ["0", "2", "5"]
    assert not any(m.metric == "tau" for m in found.measurements())


def test_a_log_without_any_seen_end_is_still_no_tau() -> None:
    facts = read(log(suite(eos=()))).facts()
    assert facts["is_a_tau"] is False
    assert "never stops there" in str(facts["why_not"])


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("MATCH 5/5", "MATCH 4/5", "gate_failed"),
        ("verify argmax: 11111 7", "verify argmax: 11111 9", "inconsistent"),
        ("argmax = 11111 ", "argmax = 22222 ", "gate_failed"),
        ("(expect 11111)  -> GATE PASS", "(expect 11111)  -> GATE FAIL", "gate_failed"),
        ("first 8 tokens match base AR -> PASS",
         "diverges from base AR at token 5 (3 vs 4) -> GATE FAIL", "not_lossless"),
        ("[spec] tokens: 11111 7 8", "[spec] tokens: 11111 7 9", "not_lossless"),
        ("generated 205 tokens", "generated 206 tokens", "inconsistent"),
        ("over 37 verifies", "over 36 verifies", "inconsistent"),
        ("-> +7 tokens", "-> +6 tokens", "inconsistent"),
        ("cpos=12", "cpos=13", "inconsistent"),
        ("accepted 6/6 (K=7)", "accepted 6/6 (K=6)", "inconsistent"),
        ("|            5.54 |", "|            5.55 |", "inconsistent"),
        ("tok/s  (vs base M=1 80.0", "tok/s  (vs base M=1 nan", "impossible_rate"),
        ("WARM decode: 80.0 ms/tok = 12.50", "WARM decode: nan ms/tok = inf", "impossible_rate"),
        ("WARM decode: 80.0 ms/tok = 12.50", "WARM decode: 81.0 ms/tok = 12.35", "inconsistent"),
        ("tokens (160.0 ms)", "tokens (inf ms)", "impossible_rate"),
        ("tokens (160.0 ms)", "tokens (140.0 ms)", "inconsistent"),
        ("tokens (160.0 ms)", "tokens (many ms)", "malformed_line"),
        ("adaptK=1.50, prompt=0", "adaptK=2.00, prompt=0", "inconsistent"),
        ("[decode] mem 1.5", "[decode] mom 1.5", "no_end"),
    ],
)
def test_one_changed_place_is_one_reason(before: str, after: str, wanted: str) -> None:
    text = log()
    assert before in text
    assert code(text.replace(before, after, 1)) == wanted


@pytest.mark.parametrize(
    ("bend", "wanted"),
    [
        (lambda t: t[: t.index("[decode] mem")] + "cuda k.cu:9 an illegal memory access was "
         "encountered\n", "engine_died"),
        (lambda t: "========= COMPUTE-SANITIZER\n" + t, "sanitizer"),
        (lambda t: t.replace("\n[spec] using", "\n[dprof] GATE PASS\n[spec] using", 1),
         "instrumented"),
        (lambda t: t.replace("[spec] decoding", "[capture] wrote x\n[spec] decoding", 1),
         "capture_run"),
        (lambda t: t.replace("\n", "\r\n"), "line_ends"),
        (lambda t: t + "\udcff\n", "not_utf8"),
        (lambda t: t[:-1], "cut_line"),
        (lambda t: t.replace("\n", "\n\0\0\0\n", 1), "malformed_line"),
        (lambda t: t.replace("weights somewhere", "weights \0somewhere"), "malformed_line"),
        (lambda t: t + t, "out_of_order"),
        (lambda t: t + "x" * 70_000 + "\n", "malformed_line"),
        (lambda t: t.replace("-> token 11111", "-> token " + "1" * 5000), "malformed_line"),
        (lambda t: header(), "ended_while_loading"),
        (lambda t: "\n".join(t.splitlines()[:6]) + "\n", "ended_while_loading"),
    ],
)  # fmt: skip
def test_a_spoilt_file_is_refused(bend: Callable[[str], str], wanted: str) -> None:
    assert code(bend(log())) == wanted


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ([Point(n, (4, 1), width=5) for n in range(9)], "width: 5 is not 6"),
        ([Point(n, (6,), adapt_k="2.00") for n in range(9)], "adapt_k: 2.0 is not 1.5"),
        ([Point(n, (6,), tokens=60) for n in range(9)], "tokens: 60 is not 200"),
        ([Point(n, (6,)) for n in range(8)], "prompts: 8 prompts without [8]"),
    ],
)
def test_another_ruler_is_refused_and_the_field_is_named(points: list[Point], told: str) -> None:
    found = read(log(points))
    assert {r.code for r in found.reasons} == {"other_ruler"}
    assert told in found.reasons[0].detail


def test_a_duplicated_point_is_refused() -> None:
    text = log([*suite(), Point(8, (6, 3))])
    assert "duplicate_point" in [r.code for r in read(text).reasons]


def test_lines_that_only_quote_a_gate_count_for_nothing() -> None:
    prose = ("I saw `[decode] first decoded token argmax = 11111  (expect 11111)  -> GATE PASS`\n"
             "> [spec] LOSSLESS GATE: first 8 tokens match base AR -> PASS\n")
    assert code(prose) == "not_a_log"
    found = read(prose + log())
    assert found.ok
    assert found.facts()["quoted_gate_lines"] == [1, 2]


def test_a_gate_string_at_the_start_of_a_line_without_an_engine_is_no_log() -> None:
    assert code("[spec] LOSSLESS GATE: first 8 tokens match base AR -> PASS\n") == "not_a_log"


def test_a_log_cut_after_any_line_is_refused_with_a_reason() -> None:
    reader = Reader()
    lines = log().splitlines()
    for number, line in enumerate(lines, 1):
        found = admission.reasons(reader.log())
        assert found, f"whole after {number - 1} of {len(lines)} lines"
        assert found[0].code in {"not_a_log", "ended_while_loading", "open_point", "no_end"}
        reader.feed(number, line)
    assert admission.reasons(reader.log()) == ()


def test_shuffled_lines_never_count() -> None:
    lines = log(suite((6, 3))).splitlines(keepends=True)
    for seed in range(10):
        random.Random(seed).shuffle(lines)
        assert code("".join(lines))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_one_line_moved_dropped_or_doubled_changes_no_number(data: st.DataObject) -> None:
    lines = log().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    what = data.draw(st.sampled_from(("drop", "double", "move")))
    line = lines[at]
    if what == "drop":
        del lines[at]
    elif what == "double":
        lines.insert(at, line)
    else:
        lines.insert(data.draw(st.integers(0, len(lines) - 1)), lines.pop(at))
    found = read("".join(lines))
    # Prose, and the margins that no figure uses, may come and go; anything else is a reason.
    whole = figures(decoded(read(log())))
    assert not found.ok or figures(decoded(found)) == whole


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 3000))
def test_any_bytes_are_refused_or_read_and_never_an_exception(noise: bytes, at: int) -> None:
    raw = log(suite((6,))).encode()
    for text in (noise, raw[:at] + noise + raw[at:]):
        found = reading.reread("decode", "a.log", text)
        assert found.ok or found.reasons


def test_a_file_without_end_is_given_up_early() -> None:
    class Endless(io.RawIOBase):
        def readline(self, _size: int | None = -1) -> bytes:
            return b"x" * 1000

    stream = Stream(Endless(), "endless.log", most_bytes=10_000)
    with pytest.raises(UsageError, match="no log of a run"):
        list(stream.lines())


def test_memory_follows_rounds_and_not_prose() -> None:
    reader = Reader()
    for line in range(1, 200_001):
        reader.feed(line, "[arena] GATE PASS was quoted here")
    assert len(reader.log().quoted) <= 20
