"""What the synthetic chats claim is true: their code runs, their sums add up, their facts agree."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator

import pytest

from engine import chat
from engine.train.corpus import build, code_edit, questions
from engine.train.corpus.chat_sample import CATEGORIES, Chat, stream
from engine.train.corpus.concepts import CONCEPTS
from engine.train.corpus.facts import BUILTINS, ELEMENTS
from engine.train.corpus.functions import RECIPES, example, fill
from engine.train.corpus.recipe import Recipe

COUNT = 60


def samples(category: str) -> Iterator[Chat]:
    for index in range(COUNT):
        yield build.MAKERS[category](stream("truth", category, index))


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)\n```", text, flags=re.DOTALL)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.names.split("|")[0])
def test_every_function_runs_in_each_of_its_states(recipe: Recipe) -> None:
    for index in range(8):
        f = fill(stream("truth", "functions", index), recipe)
        assert eval_in(f.source(), f"({example(f)})")
        for hints in (True, False):
            exec(f.source(hints=hints, doc=False, guard=True), {})
        if f.wrong[0]:
            assert f.source(broken=True) != f.source()
            exec(f.source(broken=True), {})


def test_named_mistakes_change_a_result() -> None:
    for recipe in RECIPES:
        if recipe.wrong[0]:
            assert any(_mistake_shows(recipe, index) for index in range(40)), recipe.names


def _mistake_shows(recipe: Recipe, index: int) -> bool:
    f = fill(stream("truth", "mistakes", index), recipe)
    # Some mistakes need a number that is in no list, or a text that repeats its words.
    rest, last = f.arguments[:-1], f.arguments[-1]
    others = ("0", f"{last} + ' ' + {last}") if last.startswith("'") else ("0",)
    for call in (f.call(), *(f"{f.name}({', '.join([*rest, other])})" for other in others)):
        try:
            good = eval_in(f.source(), call)
        except Exception:
            continue
        try:
            if eval_in(f.source(broken=True), call) != good:
                return True
        except Exception:
            return True
    return False


def eval_in(source: str, expression: str) -> object:
    scope: dict[str, object] = {}
    exec(source, scope)
    return eval(expression, scope)


def test_generated_code_runs_and_prints_what_the_answer_says() -> None:
    for sample in samples("code_gen"):
        text = str(sample.answer["content"])
        scope: dict[str, object] = {"__name__": "__main__"}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            for block in blocks(text):
                exec(block, scope)
        if shown := re.search(r":\n\n```\n(.*?)\n```\n", text, flags=re.DOTALL):
            assert (out.getvalue().strip() or "(nothing)") == shown.group(1)
        for call, value in re.findall(r"- `(\w+\(.*\))` gives `(.*)`", text):
            assert repr(eval(call, scope)) == value


def test_edited_code_is_valid_and_the_claimed_values_hold() -> None:
    for sample in samples("code_edit"):
        text = str(sample.answer["content"])
        (after,) = blocks(text)
        ast.parse(after)
        scope: dict[str, object] = {"print": lambda *_: None}
        exec(after, scope)
        for call, value in re.findall(r"(?:Now|example,) (\w+\(.*\)) gives (.*)\.$", text, re.M):
            assert repr(eval(call, scope)) == value


def test_edits_change_the_code() -> None:
    for index in range(COUNT):
        sample = code_edit.make(stream("truth", "edit", index))
        (before,) = blocks(str(sample.messages[0]["content"]))
        (after,) = blocks(str(sample.answer["content"]))
        assert before != after


def all_text(sample: Chat) -> str:
    return f"{sample.answer.get('reasoning_content', '')}\n{sample.answer['content']}"


SUM = re.compile(
    r"(?<![\d*+/.)x-])(\d+(?: ?[-+*/] ?\d+)+) ?= ?(-?\d+(?: ?[-+*/] ?\d+)*)(?![\d/.]*\d)"
)


@pytest.mark.parametrize(
    ("category", "least"), [("reasoning", 300), ("short_factual", 60), ("multi_turn", 15)]
)
def test_every_sum_is_right(category: str, least: int) -> None:
    checked = 0
    for sample in samples(category):
        for left, right in SUM.findall(all_text(sample)):
            value, claimed = eval(left), eval(right)
            # Halving in the conversion to binary keeps the whole part and names the remainder.
            assert value == claimed or int(value) == claimed, (left, right)
            checked += 1
    assert checked >= least


def test_reasoning_is_in_thinking_mode_and_nothing_else_is() -> None:
    for category in CATEGORIES:
        for sample in samples(category):
            assert sample.thinking == (category == "reasoning")
            assert bool(sample.answer.get("reasoning_content")) == sample.thinking


def test_sorted_lists_are_sorted_and_hold_the_numbers_asked_for() -> None:
    seen = 0
    for sample in samples("reasoning"):
        found = re.search(
            r"[Nn]umbers ((?:\d+, )+\d+ and \d+) (?:by|with) insertion", str(sample.prompt[0])
        )
        if found:
            numbers = sorted(map(int, re.findall(r"\d+", found.group(1))))
            assert f"**{numbers}**" in str(sample.answer["content"])
            seen += 1
    assert seen


def test_tool_calls_parse_and_use_offered_tools() -> None:
    seen = 0
    for sample in samples("agentic_format"):
        whole = chat.render(sample.messages)
        reply = chat.parse_reply(whole[len(chat.render(sample.prompt)) :])
        offered = {t["name"]: t for m in sample.messages for t in m.get("tools", ())}
        for call in reply.tool_calls:
            properties = offered[call.name]["parameters"]["properties"]
            assert set(json.loads(call.arguments)) == set(properties)
            seen += 1
    assert seen > COUNT


def test_quoted_records_stand_in_the_document() -> None:
    for sample in samples("long_context"):
        document = str(sample.prompt[-1]["content"])
        for number, text in re.findall(
            r"^- Number (\d+): (.*)$", str(sample.answer["content"]), re.M
        ):
            assert f"\n{number}. {text}\n" in f"{document}\n"


def test_structured_answers_are_valid_json() -> None:
    seen = 0
    for category in ("long_context", "agentic_format"):
        for sample in samples(category):
            text = str(sample.answer["content"])
            for body in re.findall(r"```json\n(.*?)\n```", text, flags=re.DOTALL):
                json.loads(body)
                seen += 1
            if text.startswith("{"):
                orders = json.loads(text)
                assert orders["total"] == sum(o["count"] for o in orders["orders"])
                seen += 1
    assert seen


def test_builtin_examples_are_true() -> None:
    for _, _, expression, value in BUILTINS:
        assert repr(eval(expression)) == value


def test_tables_are_consistent() -> None:
    assert len({e[0] for e in ELEMENTS}) == len(ELEMENTS)
    assert [e[2] for e in ELEMENTS] == sorted(e[2] for e in ELEMENTS)
    assert len({c.name for c in CONCEPTS}) == len(CONCEPTS)
    assert all(len(c.steps) == 4 for c in CONCEPTS)


def test_roman_numerals_follow_the_rules() -> None:
    pattern = re.compile(r"The number (\d+) is ([LXVI]+) in Roman numerals, because (.*) = (\d+)\.")
    for index in range(200):
        _, answer = questions.roman(stream("truth", "roman", index))
        found = pattern.fullmatch(answer)
        assert found
        number, text, parts, total = found.groups()
        assert re.fullmatch(r"(XL|L?X{0,3})(IX|IV|V?I{0,3})", text)
        assert eval(parts) == int(total) == int(number)


def test_no_slot_or_choice_is_left_in_any_text() -> None:
    for category in (*CATEGORIES, "ordinary"):
        for sample in samples(category):
            text = chat.render(sample.messages, thinking=sample.thinking)
            assert not re.search(r"\{[a-z]\}|\$x", text)
            assert not re.search(r"\[[^\]\[\n]*[a-z]\|[^\]\n]*\]", text)
