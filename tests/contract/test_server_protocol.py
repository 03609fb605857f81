"""Everything that a real model says too rarely: tools, reasoning, faults, a full queue."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from scripted import SCRIPTS
from servers import Running

BLOCKS = (1, 2, 3, 5, 8, 100)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
THINK = {"thinking": {"type": "enabled"}}


def ask(script: str, block: int = 1) -> dict[str, Any]:
    return {
        "model": "scripted",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": f"@{script}:{block}"},
        ],
    }


class Heard:
    """A streamed answer, put together as clients do it."""

    def __init__(self, stream: Any) -> None:
        self.content = self.reasoning = ""
        self.calls: list[tuple[str, str]] = []
        self.finish: list[str] = []
        for chunk in stream:
            delta = chunk.choices[0].delta
            self.content += delta.content or ""
            self.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            for call in delta.tool_calls or []:
                if call.id:
                    assert call.function.arguments == ""
                    self.calls.append((call.function.name, ""))
                else:
                    name, arguments = self.calls[call.index]
                    self.calls[call.index] = (name, arguments + call.function.arguments)
            if chunk.choices[0].finish_reason:
                self.finish.append(chunk.choices[0].finish_reason)


def both(scripted: Running, **body: Any) -> tuple[Any, Heard]:
    """The same request whole and streamed, which must say the same."""
    client = scripted.client().chat.completions
    whole = client.create(**body).choices[0]
    heard = Heard(client.create(**body, stream=True))
    message = whole.message
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
    assert (heard.content, heard.calls) == (message.content or "", calls)
    assert heard.finish == [whole.finish_reason]
    assert heard.reasoning == (message.model_extra or {}).get("reasoning_content", "")
    return whole, heard


@pytest.mark.parametrize("block", BLOCKS)
def test_text_is_whole_whatever_the_block_size(scripted: Running, block: int) -> None:
    _, heard = both(scripted, **ask("plain", block))
    assert heard.content == SCRIPTS["plain"]
    assert heard.finish == ["stop"]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_stop_inside_a_block_trims_what_follows(scripted: Running, block: int) -> None:
    whole, _ = both(scripted, **ask("plain", block), stop=" 🙂🙃 a", max_tokens=60)
    assert whole.message.content == "One, two, three. Grüße"
    assert whole.finish_reason == "stop"


@pytest.mark.parametrize("block", BLOCKS)
def test_reasoning_is_apart_from_content(scripted: Running, block: int) -> None:
    whole, heard = both(scripted, **ask("thought", block), extra_body=THINK)
    assert (heard.reasoning, whole.message.content) == ("Let me see. 2 < 3.", "Yes.")


def test_reasoning_cut_by_the_limit_is_still_reasoning(scripted: Running) -> None:
    whole, heard = both(scripted, **ask("cut thought"), extra_body=THINK, max_tokens=4)
    assert whole.finish_reason == "length"
    assert heard.reasoning
    assert not whole.message.content


def test_reasoning_tokens_are_counted(scripted: Running) -> None:
    answer = scripted.client().chat.completions.create(**ask("thought", 5), extra_body=THINK)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert reasoning is not None
    assert 0 < reasoning < answer.usage.completion_tokens


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("script", "content"), [("call", "I will look."), ("bare call", None)])
def test_tool_calls_arrive_as_calls(
    scripted: Running, script: str, content: str | None, block: int
) -> None:
    whole, heard = both(scripted, **ask(script, block), tools=TOOLS)
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == content
    assert [name for name, _ in heard.calls] == ["weather", "now"]
    assert json.loads(heard.calls[0][1]) == {"city": 'Köln 🙂 "old town"', "days": [1, 2]}
    assert json.loads(heard.calls[1][1]) == {}


def test_a_call_after_reasoning(scripted: Running) -> None:
    whole, heard = both(scripted, **ask("thought call"), tools=TOOLS, extra_body=THINK)
    assert heard.reasoning == "Ask the tool."
    assert len(whole.message.tool_calls or []) == 2


@pytest.mark.parametrize("script", ["call", "broken call", "quoted tag"])
def test_markup_that_is_no_call_is_text_without_markup(scripted: Running, script: str) -> None:
    offered = {"tools": TOOLS} if script != "call" else {"tools": TOOLS, "tool_choice": "none"}
    whole, heard = both(scripted, **ask(script, 3), **offered)
    assert whole.finish_reason == "stop"
    assert not heard.calls
    assert "DSML" not in heard.content
    assert heard.content.startswith(SCRIPTS[script][:5])


def test_a_conversation_with_tool_results_is_accepted(scripted: Running) -> None:
    body = ask("plain")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    body["messages"] = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "@plain:4"},
    ]
    extra = {"a_field_of_the_future": {"x": 1}, **THINK, "chat_template_kwargs": {}}
    answer = scripted.client().chat.completions.create(**body, tools=TOOLS, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": "x"}, "seed"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
         "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
         "messages"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(scripted: Running, change: dict[str, Any], param: str) -> None:
    status, body = scripted.post(json.dumps({**ask("plain"), **change}).encode())
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == param
    assert body["error"]["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
        b'{"max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_a_400(scripted: Running, raw: bytes) -> None:
    status, body = scripted.post(raw)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"


def test_a_huge_body_is_a_413(scripted: Running) -> None:
    status, body = scripted.post(b" " * (17 << 20))
    assert status == 413
    assert body["error"]["code"] == "request_too_large"


def test_unknown_models_routes_and_methods(scripted: Running) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        scripted.client().chat.completions.create(**{**ask("plain"), "model": "gpt-5"})
    assert caught.value.code == "model_not_found"
    assert scripted.get("/v1/models/gpt-5")[0] == 404
    assert scripted.get("/v2")[1]["error"]["code"] == "unknown_url"
    assert scripted.get("/v1/chat/completions")[0] == 405


@pytest.mark.parametrize("script", ["fault at once", "bug at once"])
def test_a_fault_of_the_engine_is_a_500_without_its_insides(scripted: Running, script: str) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        scripted.client().chat.completions.create(**ask(script))
    assert "Traceback" not in str(caught.value.body)
    assert "secret" not in str(caught.value.body)
    assert scripted.client().chat.completions.create(**ask("plain")).choices  # and it goes on


def test_a_fault_in_a_stream_is_an_event_and_ends_it(scripted: Running) -> None:
    stream = scripted.client().chat.completions.create(**ask("fault later"), stream=True)
    with pytest.raises(openai.APIError, match="not finite"):
        list(stream)


def test_streams_are_framed_as_events(scripted: Running) -> None:
    body = {**ask("plain", 7), "stream": True}
    headers = {"x-request-id": "r-1"}
    answer = httpx2.post(f"{scripted.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "r-1"
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    assert all(json.loads(f.removeprefix("data: "))["object"] for f in frames)


@contextlib.contextmanager
def talking(scripted: Running) -> Iterator[None]:
    """An answer without end, listened to until the block is left."""
    stream = scripted.client().chat.completions.create(**ask("endless"), stream=True)
    try:
        next(iter(stream))
        yield
    finally:
        stream.close()


def test_a_full_queue_is_a_429_that_says_when_to_come_back(scripted: Running) -> None:
    with talking(scripted):
        scripted.until_running(1, 0)
        with talking(scripted):
            scripted.until_running(1, 1)
            with pytest.raises(openai.RateLimitError) as caught:
                scripted.client().chat.completions.create(**ask("plain"))
            assert int(caught.value.response.headers["retry-after"]) >= 1
    scripted.until_idle(2)


def test_a_request_waits_for_its_turn(scripted: Running) -> None:
    got: list[str | None] = []

    def quick() -> None:
        answer = scripted.client().chat.completions.create(**ask("plain"))
        got.append(answer.choices[0].message.content)

    thread = threading.Thread(target=quick)
    with talking(scripted):
        scripted.until_running(1, 0)
        thread.start()
        scripted.until_running(1, 1)
        assert not got
    thread.join(10)
    assert got == [SCRIPTS["plain"]]


def test_leaving_frees_the_worker_and_the_queue(scripted: Running) -> None:
    with talking(scripted):
        with talking(scripted):
            scripted.until_running(1, 1)
        scripted.until_running(1, 0)
    assert scripted.until_idle(2) < 1


def test_leaving_a_whole_answer_frees_the_worker_too(scripted: Running) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{scripted.url}/v1/chat/completions", json=ask("endless"), timeout=0.3)
    assert scripted.until_idle(2) < 1
