"""Replies as they stream: no cut changes what is heard, and no markup of calls reaches anybody."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings, strategies as st

from engine.server.reply import Heard, ReplyParts, Spoken
from engine.tokenizer import DSML, THINK_END


def call(name: str, *parameters: tuple[str, bool, str]) -> str:
    inner = "".join(
        f'<{DSML}parameter name="{key}" string="{str(text).lower()}">{value}</{DSML}parameter>\n'
        for key, text, value in parameters
    )
    return f'<{DSML}invoke name="{name}">\n{inner}</{DSML}invoke>\n'


def block(*calls: str) -> str:
    return f"\n\n<{DSML}tool_calls>\n{''.join(calls)}</{DSML}tool_calls>"


def heard(pieces: Iterable[str], *, thinking: bool = False, tools: bool = True) -> Heard:
    parts, whole = ReplyParts(thinking=thinking, tools=tools), Heard()
    for piece in pieces:
        whole.hear(Spoken(0, tuple(parts.feed(piece))))
    rest, found = parts.finish()
    whole.hear(Spoken(0, tuple(rest)))
    whole.finish = json.dumps([[c.name, json.loads(c.arguments)] for c in found])
    return whole


WEATHER = call("weather", ("city", True, 'Köln 🙂 "x" </b> 2 < 3'), ("days", False, "[1, 2]"))
TRANSCRIPTS = {
    "text": "One < two, ｜ and </ three.\n\n",
    "thought": f"Is 2 < 3?{THINK_END}Yes.",
    "call": f"I look.{block(WEATHER, call('now'))}",
    "thought call": f"Hm.{THINK_END}{block(WEATHER)}",
    "no end": f"Well.\n\n<{DSML}tool_calls>\n{WEATHER}",
    "no name": f"Well.{block(call(''))}",
    "no JSON": f"Well.{block(call('f', ('n', False, 'nope')))}",
    "goes on": f"Well.{block(WEATHER)} And then?",
    "quoted": f"A {DSML} and </{DSML}invoke> are text.",
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
@pytest.mark.parametrize("tools", [False, True])
def test_a_cut_at_any_place_changes_nothing(name: str, tools: bool) -> None:
    text, thinking = TRANSCRIPTS[name], "thought" in name
    whole = heard([text], thinking=thinking, tools=tools)
    for place in range(len(text) + 1):
        assert heard([text[:place], text[place:]], thinking=thinking, tools=tools) == whole
    assert heard(text, thinking=thinking, tools=tools) == whole
    assert DSML not in whole.content
    assert whole.content or whole.reasoning or whole.finish != "[]"  # nothing ends silently empty


# vllm 41240: text stays text, names like `arguments` are only names, and held text is not lost.
def test_arguments_keep_their_types_and_odd_names() -> None:
    odd = call("f", ("arguments", True, "12"), ("input", False, "12"), ("html", True, "</b>\n</"))
    told = json.loads(heard([block(odd)]).finish or "")
    assert told == [["f", {"arguments": "12", "input": 12, "html": "</b>\n</"}]]
    assert heard(["2 <"]).content == "2 <"


# vllm 53227: a payload that quotes the markup is neither cut nor taken for a call.
def test_a_payload_may_quote_the_markup() -> None:
    quoted = f'<{DSML}invoke name="g">\n</{DSML}invoke>'
    told = json.loads(heard([block(call("f", ("text", True, quoted)))]).finish or "")
    assert told == [["f", {"text": quoted}]]


# sglang 35736: with tool_choice none the markup of a call that comes anyway is not shown.
def test_without_tools_a_call_is_text_without_markup() -> None:
    said = heard([TRANSCRIPTS["call"]], tools=False)
    assert said.finish == "[]"
    assert said.content.startswith("I look.")
    assert DSML not in said.content


FRAGMENTS = [
    DSML, THINK_END, "<", "</", ">", "\n", "\n\n", "tool_calls>", 'invoke name="f">',
    'parameter name="a" string="true">', 'parameter name="a" string="false">', "parameter>",
    "invoke>", "text", "🙂", "1", WEATHER, block(WEATHER),
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20), st.booleans(), st.booleans(), st.data())
def test_any_markup_streams_as_it_reads_whole(
    fragments: list[str], thinking: bool, tools: bool, data: st.DataObject
) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    streamed = heard(pieces, thinking=thinking, tools=tools)
    assert streamed == heard([text], thinking=thinking, tools=tools)
    assert DSML not in streamed.content
