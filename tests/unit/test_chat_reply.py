"""Replies taken apart: what was rendered comes back, what is broken is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine import chat
from engine.chat import parse_reply
from engine.errors import ReplyError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAME = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
PLAIN = st.text(max_size=20).filter(lambda t: "｜DSML｜" not in t and "</think>" not in t)


def rendered_reply(message: dict[str, Any], *, thinking: bool) -> str:
    question = {"role": "user", "content": "q"}
    whole = chat.render([question, message], thinking=thinking)
    return whole[len(chat.render([question], thinking=thinking)) :]


@given(PLAIN, PLAIN, st.lists(st.tuples(NAME, st.dictionaries(NAME, JSON, max_size=3)), max_size=3))
def test_what_was_rendered_comes_back(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [
            {"id": str(i), "function": {"name": n, "arguments": json.dumps(a)}}
            for i, (n, a) in enumerate(calls)
        ],
    }
    reply = parse_reply(rendered_reply(message, thinking=True), thinking=True)
    assert reply.reasoning == reasoning
    assert reply.content == content
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == calls
    plain = parse_reply(rendered_reply(message, thinking=False), thinking=False)
    assert plain.reasoning is None
    assert plain.content == content


@pytest.mark.parametrize(
    "payload",
    [
        "</｜DSML｜parameter>",
        "</｜DSML｜parameter>\n</｜DSML｜invoke>",
        "</｜DSML｜parameter>\nmore",
        "</｜DSML｜tool_calls>",
        "\n\n<｜DSML｜tool_calls>\n",
        '<｜DSML｜parameter name="x" string="true">',
    ],
)
def test_payloads_may_hold_tags(payload: str) -> None:
    call = {"function": {"name": "f", "arguments": {"a": payload, "b": 1}}}
    message = {"role": "assistant", "content": "c", "tool_calls": [call]}
    (parsed,) = parse_reply(rendered_reply(message, thinking=False)).tool_calls
    assert json.loads(parsed.arguments) == {"a": payload, "b": 1}


def test_plain_reply_is_all_content() -> None:
    assert parse_reply("hello") == chat.Reply("hello", None, ())


def test_reply_cut_while_thinking_is_all_reasoning() -> None:
    assert parse_reply("let me see", thinking=True) == chat.Reply("", "let me see", ())


def test_end_of_thinking_in_a_chat_reply_stays_content() -> None:
    assert parse_reply("a</think>b", thinking=False).content == "a</think>b"
    assert parse_reply("a</think>b").reasoning == "a"


def test_argument_order_is_kept() -> None:
    call = {"function": {"name": "f", "arguments": '{"z": 1, "a": 2}'}}
    text = rendered_reply(
        {"role": "assistant", "content": "", "tool_calls": [call]}, thinking=False
    )
    (parsed,) = parse_reply(text).tool_calls
    assert parsed.arguments == '{"z": 1, "a": 2}'


GOOD = (
    "\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('string="false">1<', 'string="false">one<'),
        ('string="false"', 'string="maybe"'),
        ("</｜DSML｜tool_calls>", ""),
        ("</｜DSML｜invoke>\n", ""),
        ("</｜DSML｜parameter>\n", ""),
        ("</｜DSML｜tool_calls>", "</｜DSML｜tool_calls> and more"),
        ('<｜DSML｜invoke name="f">\n', "call f\n"),
    ],
)
def test_broken_blocks_are_refused(old: str, new: str) -> None:
    assert len(parse_reply(GOOD).tool_calls) == 1
    assert old in GOOD
    with pytest.raises(ReplyError):
        parse_reply(GOOD.replace(old, new, 1))


def test_repeated_parameter_is_refused() -> None:
    line = '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    with pytest.raises(ReplyError, match="twice"):
        parse_reply(GOOD.replace(line, line * 2))


@given(st.integers(0, len(GOOD) - 1))
def test_truncated_block_never_yields_a_call(cut: int) -> None:
    try:
        assert parse_reply(GOOD[:cut]).tool_calls == ()
    except ReplyError:
        assert "tool_calls>\n" in GOOD[:cut]
