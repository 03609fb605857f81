"""An agent lives on the server: ten turns of calls and results, in each protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers import Running

pytestmark = pytest.mark.slow
TURNS = 10
SCHEMA = {
    "type": "object",
    "properties": {"file": {"enum": ["a.py", "b.py", "Größe.md"]}, "line": {"enum": [1, 20, 300]}},
    "required": ["file", "line"],
}
SYSTEM = "You read files, one after the other."


def test_ten_turns_of_chat_go_on_from_each_other(server: Running) -> None:
    tools: Any = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Read them."},
    ]
    before: list[int] = []
    for turn in range(TURNS):
        body = {"model": "tiny", "messages": messages, "tools": tools}
        prompt = server.post(json.dumps(body).encode(), "/v1/chat/completions/render")[1]["tokens"]
        assert prompt[: len(before)] == before
        answer = server.client().chat.completions.create(
            **body, tool_choice="required", parallel_tool_calls=False, max_tokens=120, seed=turn
        )
        choice, usage = answer.choices[0], answer.usage
        assert choice.finish_reason == "tool_calls"
        assert usage is not None
        assert usage.prompt_tokens == len(prompt)
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        assert cached >= len(before) // 64 * 64  # all whole chunks of the turn before
        messages.append(choice.message.model_dump(exclude_none=True))
        (call,) = choice.message.tool_calls or []
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"line {turn}"})
        before = prompt


def test_ten_turns_of_messages(server: Running) -> None:
    tools: Any = [{"name": "read", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": "Read them."}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    cached = 0
    for turn in range(TURNS):
        with server.anthropic().messages.stream(
            model="tiny", system=SYSTEM, messages=messages, tools=tools, tool_choice=choice,
            max_tokens=120,
        ) as stream:  # fmt: skip
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        (block,) = message.content
        assert block.type == "tool_use"
        assert block.input["file"] in SCHEMA["properties"]["file"]["enum"]  # type: ignore[index]
        assert (message.usage.cache_read_input_tokens or 0) >= cached
        cached = message.usage.cache_read_input_tokens or 0
        messages.append({"role": "assistant", "content": message.to_dict()["content"]})
        result = {"type": "tool_result", "tool_use_id": block.id, "content": f"line {turn}"}
        messages.append({"role": "user", "content": [result]})
    assert cached > 0


def test_ten_turns_of_responses(server: Running) -> None:
    tools: Any = [{"type": "function", "name": "read", "parameters": SCHEMA}]
    items: list[Any] = [{"role": "user", "content": "Read them."}]
    for turn in range(TURNS):
        response = server.client().responses.create(
            model="tiny", instructions=SYSTEM, input=items, tools=tools, tool_choice="required",
            parallel_tool_calls=False, max_output_tokens=120, store=False,
        )  # fmt: skip
        (call,) = response.output
        assert call.type == "function_call"
        assert json.loads(call.arguments)["line"] in (1, 20, 300)
        items.append(call.to_dict())
        output = {"type": "function_call_output", "call_id": call.call_id}
        items.append({**output, "output": f"line {turn}"})
