"""Anthropic's messages through the official client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest
from scripted import SCRIPTS
from servers import Running

BLOCKS = (1, 3, 100)
TOOLS: list[Any] = [
    {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
    {"name": "now", "input_schema": {"type": "object"}},
    {"type": "web_search_20250305", "name": "web_search"},
]
THINK: Any = {"type": "enabled", "budget_tokens": 1024}


def ask(script: str, block: int = 1) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"@{script}:{block}"}]
    return {"model": "scripted", "max_tokens": 900, "system": "Be brief.", "messages": messages}


def both(scripted: Running, **body: Any) -> tuple[anthropic.types.Message, list[str]]:
    """The same request whole and streamed, which must say the same; and the events' names."""
    client = scripted.anthropic().messages
    whole = client.create(**body)
    with client.stream(**body) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    told = [m.model_dump(exclude={"id": True}) for m in (whole, final)]
    for message in told:
        for block in message["content"]:
            block.pop("id", None)
            block.pop("parsed_output", None)
    assert told[0] == {k: v for k, v in told[1].items() if k in told[0]}
    return whole, names


@pytest.mark.parametrize("block", BLOCKS)
def test_text_is_a_block_of_text(scripted: Running, block: int) -> None:
    whole, names = both(scripted, **ask("plain", block))
    assert [b.type for b in whole.content] == ["text"]
    assert whole.content[0].text == SCRIPTS["plain"]  # type: ignore[union-attr]
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    assert (names[0], names[-1]) == ("message_start", "message_stop")


@pytest.mark.parametrize("block", BLOCKS)
def test_thinking_text_and_calls_are_blocks_in_order(scripted: Running, block: int) -> None:
    whole, _ = both(scripted, **ask("thought call", block), tools=TOOLS, thinking=THINK)
    assert [b.type for b in whole.content] == ["thinking", "tool_use", "tool_use"]
    thought, weather, now = (b.model_dump() for b in whole.content)
    assert thought["thinking"] == "Ask the tool."
    assert thought["signature"]
    assert weather["input"] == {"city": 'Köln 🙂 "old town"', "days": [1, 2]}
    assert (now["name"], now["input"]) == ("now", {})
    assert weather["id"] != now["id"]
    assert whole.stop_reason == "tool_use"


def test_one_call_at_most_when_parallel_calls_are_off(scripted: Running) -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    whole, _ = both(scripted, **ask("call"), tools=TOOLS, tool_choice=choice)
    assert [b.type for b in whole.content] == ["text", "tool_use"]


def test_a_stop_sequence_is_named(scripted: Running) -> None:
    whole, _ = both(scripted, **ask("plain", 5), stop_sequences=["never", " three"])
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", " three")
    assert whole.content[0].text == "One, two,"  # type: ignore[union-attr]


def test_the_limit_is_a_reason_of_its_own(scripted: Running) -> None:
    whole, _ = both(scripted, **{**ask("plain"), "max_tokens": 2})
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 2


def test_events_come_in_the_documented_order(scripted: Running) -> None:
    body = {**ask("thought call", 4), "tools": TOOLS, "thinking": THINK, "stream": True}
    answer = httpx2.post(f"{scripted.url}/v1/messages", json=body)
    frames = [f.split("\n") for f in answer.text.strip().split("\n\n")]
    events = [(name.removeprefix("event: "), json.loads(data[6:])) for name, data in frames]
    assert all(name == data["type"] for name, data in events)
    order = [name for i, (name, _) in enumerate(events) if i == 0 or events[i - 1][0] != name]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert order == [
        "message_start", "ping", *block * 3, "message_delta", "message_stop",
    ]  # fmt: skip
    starts = [d["index"] for n, d in events if n == "content_block_start"]
    assert starts == [0, 1, 2]
    started = events[0][1]["message"]
    assert (started["content"], started["stop_reason"]) == ([], None)
    assert started["usage"]["input_tokens"] > 0


def test_a_conversation_with_results_thinking_and_odd_roles_is_accepted(scripted: Running) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "x"}],
    }
    body: dict[str, Any] = {
        **ask("plain"),
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc=1; cch=abc;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    call,
                ],
            },
            {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
            {"role": "ctx", "content": "now"},
            {"role": "user", "content": "@plain:4"},
        ],
        "metadata": {"user_id": "u"},
        "a_field_of_the_future": 1,
    }
    answer = httpx2.post(f"{scripted.url}/v1/messages?beta=true", json=body)
    assert answer.json()["content"] == [{"type": "text", "text": SCRIPTS["plain"]}]
    counted = httpx2.post(f"{scripted.url}/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == answer.json()["usage"]["input_tokens"]
    body["system"][0]["text"] = "x-anthropic-billing-header: cc=1; cch=quite another one;"
    again = httpx2.post(f"{scripted.url}/v1/messages/count_tokens", json=body).json()
    assert again == counted


def test_tokens_are_counted_as_they_are_used(server: Running) -> None:
    messages: Any = [{"role": "user", "content": "Say something."}]
    client = server.anthropic().messages
    counted = client.count_tokens(model="tiny", messages=messages)
    answer = client.create(model="tiny", messages=messages, max_tokens=3)
    usage = answer.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert 0 < usage.output_tokens <= 3


def test_too_long_is_said_in_the_words_that_agents_match(server: Running) -> None:
    context = server.get("/health")[1]["context_length"]
    long = [{"role": "user", "content": "word " * 3 * context}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ max"
    ):
        server.anthropic().messages.create(model="tiny", messages=long, max_tokens=5)
    short = [{"role": "user", "content": "word"}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        server.anthropic().messages.create(model="tiny", messages=short, max_tokens=context)
    assert "input length and `max_tokens` exceed context limit" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": "x"}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400,
         "invalid_request_error"),
        ({"messages": [{"role": "assistant", "content": "prefill"}]}, 400,
         "invalid_request_error"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": TOOLS}, 400,
         "invalid_request_error"),
        ({"tools": [{"description": "nameless"}]}, 400, "invalid_request_error"),
        ({"thinking": {"type": "sometimes"}}, 400, "invalid_request_error"),
        ({"model": "claude-9"}, 404, "not_found_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_shape(
    scripted: Running, change: dict[str, Any], status: int, kind: str
) -> None:
    answer = httpx2.post(f"{scripted.url}/v1/messages", json={**ask("plain"), **change})
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == answer.headers["request-id"]


def test_a_fault_in_a_stream_is_an_error_event(scripted: Running) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite"),
        scripted.anthropic().messages.stream(**ask("fault later")) as stream,
    ):
        list(stream)
