"""Suites: what a file must hold, which answers count, and what the shipped ones are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine import suite
from engine.errors import ConfigError
from engine.suite import (
    CATEGORIES,
    HEADS_PLAN,
    PLANS,
    SHIPPED,
    Suite,
    counted,
    distinct_4gram,
)
from engine.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(suite.ASSETS / "tiny-v4")


def prompt(
    prompt_id: str = "code_gen-0", category: str = "code_gen", **rest: Any
) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"id": prompt_id, "category": category, "thinking": False, "messages": messages, **rest}


def data(*prompts: dict[str, Any]) -> dict[str, Any]:
    return {"name": "s", "version": 1, "prompts": list(prompts)}


def test_200_tokens_before_eos_count_and_199_do_not() -> None:
    assert counted(201, "eos", 1.0) is None
    assert counted(200, "eos", 1.0) == "short"
    assert counted(200, "length", 1.0) is None
    assert counted(199, "length", 1.0) == "short"


def test_loops_are_excluded_under_one_half() -> None:
    assert counted(300, "eos", 0.5) is None
    assert counted(300, "eos", 0.499) == "loop"
    assert counted(100, "eos", 0.1) == "short"


def test_unknown_stop_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown stop"):
        counted(300, "abort", 1.0)


def test_distinct_4grams_of_known_sequences() -> None:
    assert distinct_4gram([]) == 1.0
    assert distinct_4gram([1, 1, 1]) == 1.0
    assert distinct_4gram([1, 1, 1, 1, 1]) == 0.5
    assert distinct_4gram(list(range(50))) == 1.0
    assert distinct_4gram([1, 2, 3] * 100) == 3 / 297


@given(st.lists(st.integers(0, 3), max_size=40))
def test_distinct_4grams_are_a_share(ids: list[int]) -> None:
    assert 0 < distinct_4gram(ids) <= 1


def test_hash_depends_on_content_and_not_on_layout() -> None:
    one = Suite.parse(data(prompt()))
    shuffled = json.loads(json.dumps(data(dict(reversed(prompt().items())))))
    assert Suite.parse(shuffled).sha256 == one.sha256
    other = prompt(messages=[{"role": "user", "content": "hi!"}])
    assert Suite.parse(data(other)).sha256 != one.sha256
    assert Suite.parse({**data(prompt()), "version": 2}).sha256 != one.sha256


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {"name": "s", "prompts": []},
        {**data(prompt()), "extra": 1},
        {**data(prompt()), "version": "1"},
        data(),
        data(prompt(), prompt()),
        data(prompt(category="poetry")),
        data(prompt(), prompt("long_context-0", "long_context")),
        data(prompt(thinking="yes")),
        data(prompt(messages=[])),
        data(prompt(messages=[{"role": "assistant", "content": "x"}])),
        data({"id": "a"}),
        {**data(prompt()), "prompts": None},
        data(prompt(messages=["x"])),
        data(prompt(messages=[{"role": "user", "content": "half \ud800"}])),
    ],
)
def test_broken_suites_are_refused(broken: Any) -> None:
    with pytest.raises(ConfigError):
        Suite.parse(broken)


def test_missing_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main([str(tmp_path / "none.json")]) == 2
    assert "Cannot read the suite" in capsys.readouterr().err


def test_selection_keeps_the_order_asked_for() -> None:
    loaded = Suite.load(PLANS[0].path)
    ids = [loaded.prompts[3].id, loaded.prompts[0].id]
    assert [p.id for p in loaded.select(ids)] == ids
    with pytest.raises(ConfigError, match="no prompt"):
        loaded.select(["poetry-0"])


@pytest.mark.parametrize("plan", SHIPPED, ids=lambda p: p.name)
def test_shipped_suites_cover_all_categories_in_order(plan: suite.Plan) -> None:
    loaded = Suite.load(plan.path)
    seen = list(dict.fromkeys(p.category for p in loaded.prompts))
    assert seen == list(CATEGORIES)
    for p in loaded.prompts:
        assert p.thinking == (p.category == "reasoning")
        ids = p.encode(TOKENIZER)
        assert ids[0] == TOKENIZER.bos_id
        assert len(ids) <= 1400, "a prompt must leave room for its answer in 2048 tokens"


@pytest.mark.parametrize("plan", SHIPPED, ids=lambda p: p.name)
def test_shipped_prompts_are_the_generated_ones(plan: suite.Plan) -> None:
    generated = suite.generate(plan, TOKENIZER)
    assert len(generated.prompts) == plan.per_category * len(CATEGORIES) - len(plan.left_out)
    assert generated.sha256 == Suite.load(plan.path).sha256


def test_prompts_left_out_of_a_plan_are_not_generated() -> None:
    plan = dataclasses.replace(PLANS[1], left_out=frozenset({"reasoning-1"}))
    ids = {p.id for p in suite.generate(plan, TOKENIZER).prompts}
    assert "reasoning-1" not in ids
    assert "reasoning-2" in ids


def test_suites_share_no_prompt() -> None:
    first, second = (Suite.load(plan.path) for plan in PLANS)
    asked = [json.dumps(p.messages, sort_keys=True) for s in (first, second) for p in s.prompts]
    assert len(set(asked)) == len(asked)


def test_heads_are_judged_on_the_suite_and_more_of_its_kind() -> None:
    short, held, long = (
        {(p.category, json.dumps(p.messages)) for p in Suite.load(plan.path).prompts}
        for plan in (*PLANS, HEADS_PLAN)
    )
    assert short < long
    assert not held & long


def test_a_written_suite_reads_back_the_same(tmp_path: Path) -> None:
    loaded = Suite.load(PLANS[0].path)
    loaded.write(tmp_path / "s.json")
    assert Suite.load(tmp_path / "s.json") == loaded
