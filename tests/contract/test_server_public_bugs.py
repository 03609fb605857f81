"""Bugs that other servers had in public, one test each, where no other test is named after one.

Elsewhere: malformed calls (B1), log-probabilities under speculation (B9), the grammar after the
thinking (B10), clients that leave (B11, B21), overflow in the words that clients match (B15), pings
(B19), hits of the prefix cache (B20), the key (B24), streams that hold up the end (D12).
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from scripted import SCRIPTS
from servers import HERE, Running, started

from engine.tokenizer import DSML

TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("weather", "now")]
BLOCKS = (1, 3, 8, 200)


def ask(script: str, block: int = 1, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"@{script}:{block}"}]
    return {"model": "scripted", "messages": messages, "temperature": 0, **more}


def both(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choice of a whole answer, and of a streamed one put together."""
    client = server.client()
    whole = client.chat.completions.create(**body).choices[0].model_dump(exclude_none=True)
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
    for chunk in client.chat.completions.create(**body, stream=True):
        (choice,) = chunk.choices
        delta = choice.delta.model_dump(exclude_none=True)
        for name in ("content", "reasoning_content"):
            said[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(said["calls"]):
                said["calls"].append({"name": call["function"]["name"], "arguments": ""})
            said["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
        said["finish"] = choice.finish_reason
    message = whole["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = {name: message.get(name, "") for name in ("content", "reasoning_content")}
    return [{**texts, "calls": calls, "finish": whole["finish_reason"]}, said]


@pytest.mark.parametrize("block", BLOCKS)
def test_b2_what_quotes_markup_is_no_call_and_arguments_hold_none(
    scripted: Running, block: int
) -> None:
    for said in both(scripted, ask("quoted tag", block, tools=TOOLS)):
        assert (said["calls"], said["finish"]) == ([], "stop")
    for said in both(scripted, ask("call", block, tools=TOOLS)):
        assert all(DSML not in call["arguments"] for call in said["calls"])
        assert [call["name"] for call in said["calls"]] == ["weather", "now"]


@pytest.mark.parametrize("block", BLOCKS)
def test_b3_without_a_choice_of_tools_no_markup_is_shown(scripted: Running, block: int) -> None:
    for said in both(scripted, ask("call", block, tools=TOOLS, tool_choice="none")):
        assert DSML not in said["content"]
        assert said["content"].startswith("I will look.")
        assert (said["calls"], said["finish"]) == ([], "stop")


@pytest.mark.parametrize("block", BLOCKS)
def test_b4_text_stays_text_and_a_field_may_be_called_arguments(
    scripted: Running, block: int
) -> None:
    for said in both(scripted, ask("typed call", block, tools=TOOLS)):
        arguments = json.loads(said["calls"][0]["arguments"])
        assert arguments == {"arguments": '5, true, 🙂 "old town"', "days": [1, 2]}


@pytest.mark.parametrize("block", BLOCKS)
def test_b4_text_that_was_held_back_comes_at_the_end(scripted: Running, block: int) -> None:
    for said in both(scripted, ask("cut comparison", block, tools=TOOLS, stop=["<|"])):
        assert said["content"] == SCRIPTS["cut comparison"]


@pytest.mark.parametrize("block", BLOCKS)
def test_b5_a_stop_string_wins_over_the_limit_in_the_same_block(
    scripted: Running, block: int
) -> None:
    text = SCRIPTS["plain"]
    (whole,) = both(scripted, ask("plain", 200))[:1]
    assert whole["content"] == text
    for limit in (12, 14, 40):
        for said in both(scripted, ask("plain", block, stop=[" three"], max_tokens=limit)):
            assert (said["content"], said["finish"]) == ("One, two,", "stop")


def test_b8_log_probabilities_end_with_the_text(server: Running) -> None:
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": "Tell me about the river."}],
        "temperature": 0, "max_tokens": 40, "logprobs": True, "logit_bias": {"1": -100},
    }  # fmt: skip
    client = server.client()
    text = client.chat.completions.create(**body).choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    choice = client.chat.completions.create(**body, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    spelt = b"".join(bytes(t.bytes or ()) for t in choice.logprobs.content or ())
    content = (choice.message.content or "").encode()
    assert spelt.startswith(content)
    assert spelt.decode(errors="ignore").find(stop) == len(content.decode())
    assert len(spelt) <= len(content) + len(stop.encode()) + 32  # the token that completed it


def test_b14_messages_tell_what_the_cache_did(server: Running) -> None:
    message = server.anthropic().messages.create(
        model="tiny", max_tokens=2, messages=[{"role": "user", "content": "Hello."}]
    )
    usage = message.usage.model_dump()
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["cache_read_input_tokens"] >= 0


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_b16_thinking_comes_back_under_either_name(scripted: Running, name: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    said = {"role": "assistant", name: "A thought to keep.", "tool_calls": [call]}
    body = {
        "messages": [
            {"role": "user", "content": "Go."}, said,
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
        "tools": TOOLS, "thinking": {"type": "enabled"},
    }  # fmt: skip
    answer = scripted.post(json.dumps(body).encode(), "/v1/chat/completions/render")[1]
    assert "A thought to keep.</think>" in answer["prompt"]


def test_b17_items_of_a_stream_are_those_of_the_response(scripted: Running) -> None:
    tools: Any = [{"type": "function", "name": name} for name in ("weather", "now")]
    stream = scripted.client().responses.create(
        model="scripted", input="@thought call:3", tools=tools, reasoning={"effort": "low"},
        stream=True,
    )  # fmt: skip
    events = list(stream)
    assert events[-1].type == "response.completed"
    done = [e.item.to_dict() for e in events if e.type == "response.output_item.done"]
    added = [e.item.id for e in events if e.type == "response.output_item.added"]
    final = [item.to_dict() for item in events[-1].response.output]
    assert done == final
    assert added == [item["id"] for item in final]


@pytest.mark.parametrize("block", BLOCKS)
def test_b22_a_call_within_the_thinking_is_no_call(scripted: Running, block: int) -> None:
    body = ask("early call", block, tools=TOOLS, extra_body={"thinking": {"type": "enabled"}})
    for said in both(scripted, body):
        assert (said["calls"], said["finish"], said["content"]) == ([], "stop", "No.")
        assert said["reasoning_content"].startswith("I could say")


@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": ""}, {"reasoning_content": None}])
def test_b23_turns_with_calls_need_no_reasoning(
    scripted: Running, reasoning: dict[str, Any]
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    body = {
        "model": "scripted", "tools": TOOLS, "thinking": {"type": "enabled"},
        "messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": None, "tool_calls": [call], **reasoning},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
    }  # fmt: skip
    assert scripted.post(json.dumps(body).encode())[0] == 200


def test_d13_leaving_is_noticed_behind_the_key_and_the_origins() -> None:
    options = ["--key", "k", "--origin", "https://chat.example"]
    with started([str(HERE / "scripted.py"), *options]) as server:
        client = server.client().with_options(api_key="k")
        stream = client.chat.completions.create(**ask("endless"), stream=True)
        next(iter(stream))
        stream.close()
        left_s = time.monotonic()
        server.until_idle(2)
        assert time.monotonic() - left_s < 1
