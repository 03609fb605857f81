"""OpenAI's responses through the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from scripted import SCRIPTS
from servers import Running

BLOCKS = (1, 3, 100)
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False},
    {"type": "web_search"},
    {"type": "custom", "name": "patch"},
]
THINK: Any = {"effort": "high"}


def ask(script: str, block: int = 1) -> dict[str, Any]:
    return {"model": "scripted", "input": f"@{script}:{block}", "instructions": "Be brief."}


def both(scripted: Running, **body: Any) -> tuple[Any, list[Any]]:
    """The same request whole and streamed, which must say the same; and the stream's events."""
    client = scripted.client().responses
    whole = client.create(**body)
    events = list(client.create(**body, stream=True))
    assert plain(events[-1].response) == plain(whole)
    return whole, events


def plain(response: Any) -> dict[str, Any]:
    """Without ids and dates."""
    told: dict[str, Any] = response.model_dump(exclude={"id": True, "created_at": True})
    for item in told["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return told


@pytest.mark.parametrize("block", BLOCKS)
def test_text_is_a_message(scripted: Running, block: int) -> None:
    whole, events = both(scripted, **ask("plain", block))
    assert whole.output_text == SCRIPTS["plain"]
    assert (whole.status, whole.store) == ("completed", False)
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == SCRIPTS["plain"]


@pytest.mark.parametrize("block", BLOCKS)
def test_reasoning_and_calls_are_items_in_order(scripted: Running, block: int) -> None:
    whole, events = both(scripted, **ask("thought call", block), tools=TOOLS, reasoning=THINK)
    assert [item.type for item in whole.output] == ["reasoning", "function_call", "function_call"]
    thought, weather, now = whole.output
    assert thought.content[0].text == "Ask the tool."
    assert json.loads(weather.arguments) == {"city": 'Köln 🙂 "old town"', "days": [1, 2]}
    assert (now.name, now.arguments) == ("now", "{}")
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [i.model_dump() for i in done] == [i.model_dump() for i in events[-1].response.output]


def test_events_are_numbered_and_in_order(scripted: Running) -> None:
    body = {**ask("call", 4), "tools": TOOLS, "stream": True}
    answer = httpx2.post(f"{scripted.url}/v1/responses", json=body)
    frames = [f.split("\n") for f in answer.text.strip().split("\n\n")]
    events = [(name.removeprefix("event: "), json.loads(data[6:])) for name, data in frames]
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [n.removeprefix("response.") for n, _ in events]
    order = [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]
    call = [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
    ]  # fmt: skip
    assert order == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", *call, *call, "completed",
    ]  # fmt: skip


def test_the_limit_leaves_a_response_incomplete(scripted: Running) -> None:
    whole, events = both(scripted, **ask("plain"), max_output_tokens=2)
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"


def test_a_replayed_turn_is_one_turn_of_the_prompt(scripted: Running) -> None:
    body = ask("plain")
    body["input"] = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"role": "user", "content": "@plain:4"},
    ]  # fmt: skip
    answer = scripted.client().responses.create(
        **body, tools=TOOLS, include=["reasoning.encrypted_content"], prompt_cache_key="k",
        extra_body={"a_field_of_the_future": 1},
    )  # fmt: skip
    assert answer.output_text == SCRIPTS["plain"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [3]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"effort": "huge"}}, "effort"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_wrong_value_is_named(scripted: Running, change: dict[str, Any], param: str) -> None:
    answer = httpx2.post(f"{scripted.url}/v1/responses", json={**ask("plain"), **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_fault_in_a_stream_ends_it_as_failed(scripted: Running) -> None:
    body = {**ask("fault later"), "stream": True}
    text = httpx2.post(f"{scripted.url}/v1/responses", json=body).text
    last = json.loads(text.strip().split("\n\n")[-1].split("\n")[1][6:])
    assert last["type"] == "response.failed"
    assert "not finite" in last["response"]["error"]["message"]
    events = list(scripted.client().responses.create(**ask("fault later"), stream=True))
    assert [e.type for e in events[-2:]] == ["error", "response.failed"]


def test_the_real_engine_answers_the_same_whole_and_streamed(server: Running) -> None:
    asked = {"model": "tiny", "input": "Say something.", "max_output_tokens": 16, "temperature": 0}
    whole, _ = both(server, **asked)
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
