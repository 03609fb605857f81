"""What a load with a head measures, and what the loop decides of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from head_arms import HELD, MADE, SUITE, Rounds, better, head, measured_with, steady
from records import WIDTH, lever

from flywheel import suite
from flywheel.errors import BlockError, LeverError, UsageError
from flywheel.heads import archive
from flywheel.heads.judge import verdict
from flywheel.lever import fingerprint
from flywheel.statistics.campaign import HEADS
from flywheel.statistics.tau import HELD_OUT, tau_block


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


def test_suite_and_hold_out_stand_in_one_file_by_category(tmp_path: Path) -> None:
    assets = suite.engine_assets() / "suites"
    path, prompts = suite.beside(assets / "tiny-v1.json", assets / "tiny-holdout-v1.json", tmp_path)
    both = suite.load(path)
    assert both.ids == prompts
    held = [p for p in prompts if p.startswith(HELD_OUT)]
    assert len(held) == len(suite.load(assets / "tiny-holdout-v1.json").ids)
    categories = [c for _, c in both.prompts]
    assert categories == sorted(categories, key=categories.index)
    assert suite.beside(assets / "tiny-v1.json", None, tmp_path)[0] == assets / "tiny-v1.json"


def written(path: Path, *prompts: str, **fields: object) -> Path:
    """A suite of prompts that are named by their category and a number."""
    entries = [{"id": p, "category": p.partition("-")[0], "messages": [p]} for p in prompts]
    path.write_text(json.dumps({"name": "same", "version": 1, "prompts": entries, **fields}))
    return path


def test_suite_and_hold_out_of_other_categories_stand_in_the_engine_s_order(tmp_path: Path) -> None:
    own = written(tmp_path / "own.json", "code_edit-0", "code_gen-0")
    held = written(tmp_path / "held.json", "long_context-0", "reasoning-0", "code_gen-0")
    _, prompts = suite.beside(own, held, tmp_path / "made")
    assert prompts == (
        "holdout/long_context-0", "code_edit-0", "holdout/reasoning-0", "code_gen-0",
        "holdout/code_gen-0",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["same", "../../up", "n" * 400])
def test_what_was_measured_stays_when_a_suite_is_edited_or_another_is_named_alike(
    tmp_path: Path, name: str
) -> None:
    own, held = tmp_path / "own.json", written(tmp_path / "held.json", "reasoning-0", name=name)
    folder = tmp_path / "deep" / "made"
    made = []
    for prompt in ("code_gen-0", "code_gen-1", "code_gen-0"):
        path, _ = suite.beside(written(own, prompt, name=name), held, folder)
        assert path.parent == folder
        made.append((path, path.read_bytes()))
    assert made[0] == made[2]
    assert made[0][0] != made[1][0]
    assert all(path.read_bytes() == content for path, content in made)
    copy = suite.copied(own, folder)
    assert suite.load(copy).ids == suite.load(own).ids
    own.unlink()
    assert suite.load(copy).ids == ("code_gen-0",)


def test_a_suite_may_not_name_its_prompts_as_a_hold_out_s(tmp_path: Path) -> None:
    own = written(tmp_path / "own.json", "holdout/code_gen-0")
    for held in (None, written(tmp_path / "held.json", "code_gen-0")):
        with pytest.raises(UsageError, match="only a hold-out's"):
            suite.beside(own, held, tmp_path / "made")


def test_a_prompt_that_guards_is_none_of_the_suite(tmp_path: Path) -> None:
    own = written(tmp_path / "own.json", "code_gen-0", "code_gen-1")
    assert suite.shared(written(tmp_path / "a.json", "code_gen-2", "code_gen-1"), own)
    assert suite.shared(written(tmp_path / "b.json", "code_gen-2"), own) is None
    assets = suite.engine_assets() / "suites"
    for name in (suite.DEFAULT_SUITE, suite.DEFAULT_HEADS):
        held = assets / f"{suite.DEFAULT_HOLDOUT}.json"
        assert suite.shared(held, assets / f"{name}.json") is None
