"""Replies that must have a form: the small model says by itself nothing of the kind."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from servers import Running

PLACE = {"type": "string", "enum": ["Köln", "<b>Bonn</b>", 'a\n"b"']}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": PLACE,
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "wind": {"$ref": "#/$defs/wind"},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
    "$defs": {"wind": {"type": "boolean"}},
}
NOW: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": NOW}},
]
ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 400,
}


def right(name: str, arguments: dict[str, Any]) -> bool:
    """Whether a call is one that the schemas allow."""
    if name == "now":
        return arguments == {}
    good = arguments["place"] in PLACE["enum"] and arguments["days"] in range(1, 10)
    return good and isinstance(arguments.get("wind", True), bool)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("thinking", [False, True])
def test_a_required_call_comes_and_fits_its_schema(
    server: Running, seed: int, thinking: bool
) -> None:
    extra = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    biased = {str(think_end(server)): 8} if thinking else {}
    answer = server.client().chat.completions.create(
        **ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed,
        temperature=1.0, extra_body=extra, logit_bias=biased,
    ).choices[0]  # fmt: skip
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content
    (call,) = answer.message.tool_calls or []
    assert right(call.function.name, json.loads(call.function.arguments))  # type: ignore[union-attr]


def think_end(server: Running) -> int:
    """The id that closes a thinking part."""
    _, shown = server.post(json.dumps(ASK).encode(), "/v1/chat/completions/render")
    return int(shown["tokens"][-1])


@pytest.mark.parametrize("name", ["weather", "now"])
def test_a_named_call_is_the_one_that_comes_in_every_protocol(server: Running, name: str) -> None:
    chat = server.client().chat.completions.create(
        **ASK, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}},
        parallel_tool_calls=False,
    )  # fmt: skip
    call = (chat.choices[0].message.tool_calls or [])[0]
    assert call.function.name == name  # type: ignore[union-attr]

    tools: Any = [
        {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS
    ]
    choice: Any = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
    message = server.anthropic().messages.create(**ASK, tools=tools, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert block.type == "tool_use"
    assert block.name == name
    assert right(block.name, dict(block.input))

    functions: Any = [{"type": "function", **t["function"], "strict": True} for t in TOOLS]
    response = server.client().responses.create(
        model="tiny", input="Say something.", tools=functions, parallel_tool_calls=False,
        tool_choice={"type": "function", "name": name}, max_output_tokens=400,
    )  # fmt: skip
    assert [item.type for item in response.output] == ["function_call"]
    assert response.output[0].name == name  # type: ignore[union-attr]


def test_a_streamed_call_is_the_same_as_a_whole_one(server: Running) -> None:
    asked = {**ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 0}
    asked["parallel_tool_calls"] = False
    whole = server.client().chat.completions.create(**asked).choices[0].message
    arguments = ""
    for chunk in server.client().chat.completions.create(**asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            arguments += (call.function and call.function.arguments) or ""
    assert arguments == (whole.tool_calls or [])[0].function.arguments  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_json_of_a_schema_is_what_comes(server: Running, seed: int, stream: bool) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    got = server.client().chat.completions.create(
        **ASK, response_format=wanted, seed=seed, temperature=1.0, stream=stream
    )
    text = (
        "".join(c.choices[0].delta.content or "" for c in got)
        if stream
        else got.choices[0].message.content
    )
    assert right("weather", json.loads(text))


def test_responses_enforce_a_schema_too(server: Running) -> None:
    response = server.client().responses.create(
        model="tiny", input="Say something.", max_output_tokens=400,
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER}},
    )  # fmt: skip
    assert right("weather", json.loads(response.output_text))


def test_a_json_object_begins_as_one(server: Running) -> None:
    answer = server.client().chat.completions.create(
        **{**ASK, "max_tokens": 20}, response_format={"type": "json_object"}, temperature=0
    )
    assert (answer.choices[0].message.content or "").startswith("{")


def test_a_schema_that_nobody_can_follow_is_refused(server: Running) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"type": "moon"}}}
    with pytest.raises(openai.BadRequestError, match="schema cannot be enforced"):
        server.client().chat.completions.create(**ASK, response_format=wanted)
