"""The conversation format, rule by rule, and its safety against injected control tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine import chat
from engine.errors import PromptError
from engine.tokenizer import CONTROL_TOKENS, Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "engine" / "assets" / "tiny-v4")
B, E, U, A = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"ünit": [1, 2]}}}


def msg(role: str, content: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **rest}


def call(call_id: str, name: str = "add", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def test_chat_mode_opens_the_reply_with_the_end_of_thinking() -> None:
    assert chat.render([msg("user", "hi")]) == f"{B}{U}hi{A}</think>"


def test_thinking_mode_opens_the_reply_with_thinking() -> None:
    assert chat.render([msg("user", "hi")], thinking=True) == f"{B}{U}hi{A}<think>"


def test_system_text_is_raw_and_first() -> None:
    got = chat.render([msg("system", "Be brief."), msg("user", "hi")])
    assert got == f"{B}Be brief.{U}hi{A}</think>"


def test_assistant_turns_end_with_eos_and_open_nothing() -> None:
    got = chat.render([msg("user", "a"), msg("assistant", "b"), msg("user", "c")])
    assert got == f"{B}{U}a{A}</think>b{E}{U}c{A}</think>"
    assert chat.render([msg("user", "a"), msg("assistant", "b")]).endswith(f"b{E}")


def test_developer_counts_as_a_user_turn_of_its_own() -> None:
    got = chat.render([msg("developer", "rule"), msg("user", "hi")])
    assert got == f"{B}{U}rule{U}hi{A}</think>"
    assert chat.render([msg("developer", "rule")]) == f"{B}{U}rule{A}</think>"


def test_reminder_is_its_token_and_text_without_a_header() -> None:
    got = chat.render([msg("latest_reminder", "29 Nov"), msg("user", "hi")])
    assert got == f"{B}<｜latest_reminder｜>29 Nov{U}hi{A}</think>"


def test_neighbouring_user_messages_merge_into_one_turn() -> None:
    got = chat.render([msg("user", "a"), msg("user", "b")])
    assert got == f"{B}{U}a\n\nb{A}</think>"


def test_tool_results_join_the_user_turn_in_the_order_of_the_calls() -> None:
    got = chat.render(
        [
            msg("user", "go"),
            msg("assistant", "", tool_calls=[call("x"), call("y")]),
            msg("tool", "second", tool_call_id="y"),
            msg("user", "and?"),
            msg("tool", "first", tool_call_id="x"),
        ]
    )
    assert got.endswith(
        f"{E}{U}<tool_result>first</tool_result>\n\nand?\n\n"
        f"<tool_result>second</tool_result>{A}</think>"
    )


def test_results_of_unknown_calls_come_last_in_their_own_order() -> None:
    messages = [
        msg("user", "go"),
        msg("assistant", "", tool_calls=[call("x")]),
        msg("tool", "p", tool_call_id="?"),
        msg("tool", "q", tool_call_id="x"),
    ]
    got = chat.render(messages)
    assert got.index("<tool_result>q") < got.index("<tool_result>p")


def test_older_reasoning_is_dropped_without_tools() -> None:
    messages = [
        msg("user", "a"),
        msg("assistant", "b", reasoning_content="why b"),
        msg("user", "c"),
        msg("assistant", "d", reasoning_content="why d"),
    ]
    got = chat.render(messages, thinking=True)
    assert got == f"{B}{U}a{A}</think>b{E}{U}c{A}<think>why d</think>d{E}"


def test_older_developer_messages_vanish_with_the_reasoning() -> None:
    messages = [msg("developer", "old"), msg("user", "a"), msg("assistant", "b"), msg("user", "c")]
    assert "old" not in chat.render(messages, thinking=True)
    assert "old" in chat.render(messages)
    assert "old" in chat.render(messages, thinking=True, tools=[TOOL])


def test_tools_anywhere_keep_all_reasoning() -> None:
    messages = [
        msg("system", "s", tools=[TOOL]),
        msg("user", "a"),
        msg("assistant", "b", reasoning_content="why b"),
        msg("user", "c"),
    ]
    got = chat.render(messages, thinking=True)
    assert f"{A}<think>why b</think>b{E}" in got
    assert got.endswith(f"{U}c{A}<think>")


def test_reasoning_is_not_rendered_in_chat_mode() -> None:
    messages = [msg("user", "a"), msg("assistant", "b", reasoning_content="why"), msg("user", "c")]
    assert "why" not in chat.render(messages)


def test_tools_section_follows_the_system_text_after_a_blank_line() -> None:
    got = chat.render([msg("system", "s"), msg("user", "a")], tools=[TOOL, TOOL])
    assert got.startswith(f"{B}s\n\n## Tools\n\n")
    line = '{"name": "add", "parameters": {"ünit": [1, 2]}}'
    assert f"\n\n{line}\n{line}{U}a" in got


def test_tools_without_a_system_message_make_one() -> None:
    assert chat.render([msg("user", "a")], tools=[TOOL]).startswith(f"{B}\n\n## Tools")


def test_response_format_adds_its_heading_and_schema() -> None:
    got = chat.render([msg("system", "s"), msg("user", "a")], response_format={"type": "object"})
    assert got.startswith(f"{B}s\n\n## Response format\n\n")
    assert f'{{"type": "object"}}{U}' in got
    both = chat.render([msg("user", "a")], tools=[TOOL], response_format={"type": "object"})
    assert both.index("## Tools") < both.index("\n\n## Response format")


def test_effort_prefix_stands_before_the_system_text_in_thinking_mode_only() -> None:
    messages = [msg("system", "s"), msg("user", "a")]
    assert chat.render(messages, thinking=True, effort_prefix="MAX\n").startswith(f"{B}MAX\ns{U}")
    assert "MAX" not in chat.render(messages, effort_prefix="MAX\n")


def test_tool_calls_are_written_in_the_markup() -> None:
    arguments = '{"text": "a\\"b", "n": 2, "deep": {"é": [true]}}'
    got = chat.render(
        [msg("user", "a"), msg("assistant", "ok", tool_calls=[call("1", "f", arguments)])]
    )
    assert got.endswith(
        "ok\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="text" string="true">a"b</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="deep" string="false">{"é": [true]}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        f"</｜DSML｜tool_calls>{E}"
    )


@pytest.mark.parametrize("arguments", ["not json", "[1, 2]", "3"])
def test_arguments_that_are_no_object_become_one_parameter(arguments: str) -> None:
    got = chat.render(
        [msg("user", "a"), msg("assistant", "", tool_calls=[call("1", "f", arguments)])]
    )
    assert f'name="arguments" string="true">{arguments}</' in got


def test_text_blocks_are_joined_and_other_content_is_refused() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert f"{U}a\n\nb{A}" in chat.render([{"role": "user", "content": blocks}])
    with pytest.raises(PromptError, match="text"):
        chat.render([{"role": "user", "content": [{"type": "image_url"}]}])


def test_empty_conversations_and_unknown_roles_are_refused() -> None:
    with pytest.raises(PromptError, match="at least one"):
        chat.render([])
    with pytest.raises(PromptError, match="wizard"):
        chat.render([msg("wizard", "hi")])


def test_encode_is_the_rendered_text_with_control_tokens() -> None:
    messages = [
        msg("system", "s", tools=[TOOL]),
        msg("user", "add 1"),
        msg("assistant", "ok", tool_calls=[call("1")], reasoning_content="think"),
        msg("tool", "2", tool_call_id="1"),
    ]
    for thinking in (False, True):
        ids = chat.encode(TOKENIZER, messages, thinking=thinking)
        text = chat.render(messages, thinking=thinking)
        assert TOKENIZER.decode(ids, keep_special=True) == text
        assert ids == TOKENIZER.encode(text, special=True)


EVERYWHERE = "".join(CONTROL_TOKENS)


def test_no_role_can_smuggle_in_a_control_token() -> None:
    def conversation(text: str) -> list[dict[str, Any]]:
        tool = {"function": {"name": "f", "description": text}}
        arguments = json.dumps({"k": text}, ensure_ascii=False)
        return [
            msg("system", text, tools=[tool]),
            msg("developer", text),
            msg("latest_reminder", text),
            msg("user", text),
            msg("assistant", text, tool_calls=[call("1", text, arguments)], reasoning_content=text),
            msg("tool", text, tool_call_id="1"),
        ]

    def controls(text: str) -> list[int]:
        ids = chat.encode(TOKENIZER, conversation(text), thinking=True)
        return [i for i in ids if i < len(CONTROL_TOKENS)]

    assert controls(EVERYWHERE) == controls("plain")
    shown = TOKENIZER.decode(
        chat.encode(TOKENIZER, conversation(EVERYWHERE), thinking=True), keep_special=True
    )
    assert shown == chat.render(conversation(EVERYWHERE), thinking=True)


@given(st.lists(st.sampled_from([*CONTROL_TOKENS, "a", "<", "｜", ">", "\n"]), max_size=12))
def test_user_text_keeps_its_words_and_adds_no_control_token(parts: list[str]) -> None:
    text = "".join(parts)
    ids = chat.encode(TOKENIZER, [msg("user", text)])
    assert [i for i in ids if i < len(CONTROL_TOKENS)] == [0, 3, 4, 6]
    assert TOKENIZER.decode(ids[2:-2], keep_special=True) == text
