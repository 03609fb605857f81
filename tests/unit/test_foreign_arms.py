"""Heads of another project are judged again by our gates: promotion, floors, held-out text."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from flywheel import release
from flywheel.errors import DecisionError
from flywheel.foreign import arms, reading
from flywheel.run.refusal import Refusal

CATEGORIES = (*release.RECONSTRUCTIVE, *release.CONSTRUCTIVE)


def head(name: str, tau: float | None, status: str, width: int | None = 6) -> dict[str, Any]:
    return {"name": name, "draft_width": width, "suite_tau": tau, "suite_tok_s": tau,
            "status": status}  # fmt: skip


def table(*heads: dict[str, Any], **more: Any) -> str:
    return json.dumps({"bar_percent": 3.5, "arms": list(heads), **more})


def parsed(text: str) -> arms.Table:
    found = arms.parse(text)
    assert isinstance(found, arms.Table), found
    return found


def endings(text: str, world: str) -> list[str]:
    return [v.ending for v in arms.judge(parsed(text), world)]


def test_a_wrong_promotion_hides_a_right_one_until_the_rule_alone_is_followed() -> None:
    text = table(
        head("stock", 3.0, "baseline"),
        head("early", 3.09, "promoted-then-refused"),
        head("hidden", 3.11, "refused"),
        head("late", 3.5, "promoted"),
    )
    assert endings(text, arms.AS_IT_STOOD) == ["baseline", "refused", "refused", "promoted"]
    assert endings(text, arms.BY_THE_RULE) == ["baseline", "refused", "promoted", "promoted"]
    assert arms.flips(parsed(text)) == ("early", "hidden")


def test_a_tie_goes_to_the_incumbent_and_the_bar_is_exact() -> None:
    assert endings(table(head("a", 2.0, "baseline"), head("b", 2.07, "refused")),
                   arms.BY_THE_RULE) == ["baseline", "refused"]
    assert endings(table(head("a", 2.0, "baseline"), head("b", 2.0701, "refused")),
                   arms.BY_THE_RULE) == ["baseline", "promoted"]


def test_another_width_needs_the_incumbent_measured_there() -> None:
    heads = (head("a", 3.0, "baseline"), head("b", 3.5, "refused", width=5))
    (_, found) = arms.judge(parsed(table(*heads)), arms.BY_THE_RULE)
    assert (found.ending, found.said) == ("incomparable", "width: a was never measured at width 5")
    again = {"remeasured_at_width_5": {"a": {"suite_tau": 3.2}}}
    assert endings(table(*heads, **again), arms.BY_THE_RULE) == ["baseline", "promoted"]


def test_an_unmeasured_head_has_no_verdict() -> None:
    text = table(head("a", 3.0, "baseline"), head("b", None, "unmeasured", width=None))
    assert endings(text, arms.AS_IT_STOOD) == ["baseline", "unmeasured"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not_a_table"),
        ("[]", "not_a_table"),
        ("[" * 100_000, "not_a_table"),
        (table(), "not_a_table"),
        (table(head("a", 3.0, "baseline")) + "{", "not_a_table"),
        (table(head("a", float("nan"), "baseline")), "impossible_rate"),
        (table(head("a", float("inf"), "baseline")), "impossible_rate"),
        (table(head("a", -3.0, "baseline")), "impossible_rate"),
        (table(head("a", 9.0, "baseline")), "impossible_rate"),
        (table(head("\ud800", 3.0, "baseline")), "not_a_table"),
        (table(head("a", 3.0, "x"), per_category={"columns": ["\ud800@6 tau"]}), "not_a_table"),
        (table(head("a", 3.0, "x")).replace("3.0", "1e999999999"), "impossible_rate"),
        (table(head("a", 3.0, "x")).replace("3.0", "1" * 5000), "impossible_rate"),
        (table(head("a", 3.0, "baseline"), head("a", 3.1, "refused")), "duplicate_arm"),
        (table(head("a", 3.0, "x"), per_category={"columns": ["?"], "rows": {}}), "not_a_table"),
        (table(head("a", 3.0, "x"), per_category={
            "columns": ["a@6 tau"], "rows": {c: [2.0] for c in CATEGORIES}}), "inconsistent"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_its_reason(text: str, code: str) -> None:
    found = arms.parse(text)
    assert isinstance(found, Refusal)
    assert found.code == code
    assert reading.reread("arms", "a.json", text.encode()).measurements() == ()


def test_every_cut_of_a_table_is_refused() -> None:
    text = table(head("a", 3.0, "baseline"), head("b", 3.5, "promoted"))
    assert all(isinstance(arms.parse(text[:cut]), Refusal) for cut in range(len(text)))


def test_floors_hold_copied_text_to_the_stock_head_and_new_text_to_the_incumbent() -> None:
    stock = dict.fromkeys(CATEGORIES, Fraction(5))
    held = dict.fromkeys(CATEGORIES, Fraction(3))
    mine = {**dict.fromkeys(CATEGORIES, Fraction(3)), "long_context": Fraction("4.8"),
            "code_edit": Fraction("4.79"), "code_gen": Fraction("2.99")}  # fmt: skip
    short = {f.category: f.shortfall for f in release.floors(mine, stock, held) if not f.kept}
    assert short == {
        "code_edit": Fraction("0.01"), "agentic_format": Fraction("1.8"),
        "code_gen": Fraction("0.01"),
    }  # fmt: skip
    with pytest.raises(DecisionError, match="reasoning"):
        release.floors(mine, stock, {c: v for c, v in held.items() if c != "reasoning"})


@pytest.mark.parametrize(
    ("change", "word"),
    [("-1.378", "REGRESSED"), ("-0.16", "REGRESSED"), ("-0.15", "saturated"),
     ("0.14", "saturated"), ("0.15", "small"), ("0.35", "improved")],
)  # fmt: skip
def test_a_held_out_loss_has_a_word_of_its_own(change: str, word: str) -> None:
    assert release.holdout(Fraction(change)) == word


def test_a_release_needs_promotion_floors_and_a_held_out_control() -> None:
    even = dict.fromkeys(CATEGORIES, Fraction(3))
    kept = release.floors(even, even, even)
    good, tie = release.rule(Fraction(4), Fraction(3)), release.rule(Fraction(3), Fraction(3))
    assert release.against_release(good, kept, Fraction("0.2")) == ()
    assert "not promoted" in release.against_release(tie, kept, Fraction())[0]
    assert "not measured" in release.against_release(good, kept, None)[0]
    assert "REGRESSED" in release.against_release(good, kept, Fraction("-1.378"))[0]


def test_a_table_on_one_long_line_is_read() -> None:
    text = table(head("a", 3.0, "baseline"), head("b", 3.5, "promoted"), note="n" * 300_000)
    assert reading.reread("arms", "a.json", text.encode()).ok
