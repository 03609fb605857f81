"""The next turn's prompt goes on from the very tokens of the reply, over ten turns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import spelled
from servers import Running

from engine.server.deployment import EMBEDDED
from engine.tokenizer import Tokenizer

TURNS = 10
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "now")]


def rendered(server: Running, body: dict[str, Any]) -> list[int]:
    path = "/v1/chat/completions/render"
    tokens: list[int] = server.post(json.dumps(body).encode(), path)[1]["tokens"]
    return tokens


@pytest.mark.parametrize("script", ["odd call", "odd thought"])
@pytest.mark.parametrize("shape", ["as it came", "without reasoning", "arguments written anew"])
def test_ten_turns_of_odd_tokens_are_repeated_exactly(
    scripted: Running, script: str, shape: str
) -> None:
    reply = spelled(Tokenizer.load(EMBEDDED), script)
    thinking = {"type": "enabled" if "thought" in script else "disabled"}
    messages: list[Any] = [{"role": "user", "content": f"Go. @{script}"}]
    body = {"model": "scripted", "messages": messages, "tools": TOOLS, "thinking": thinking}
    client = scripted.client().with_options(max_retries=0)
    for turn in range(TURNS):
        prompt = rendered(scripted, body)
        extra = {"thinking": thinking}
        answer = client.chat.completions.create(
            model="scripted",
            messages=messages,
            tools=TOOLS,
            extra_body=extra,  # type: ignore[arg-type]
        )
        said = answer.choices[0].message.model_dump(exclude_none=True)
        assert len(said["tool_calls"]) == 2
        if shape == "without reasoning":
            said.pop("reasoning_content", None)
        if shape == "arguments written anew":
            for call in said["tool_calls"]:
                anew = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
                call["function"]["arguments"] = anew
        messages.append(said)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"{turn}"}
            for call in said["tool_calls"]
        ]
        messages.append({"role": "user", "content": f"@{script}"})
        assert rendered(scripted, body)[: len(prompt) + len(reply)] == [*prompt, *reply]


def test_a_reply_that_was_edited_is_written_anew(scripted: Running) -> None:
    messages: list[Any] = [{"role": "user", "content": "Go. @odd call"}]
    body = {"model": "scripted", "messages": messages, "tools": TOOLS}
    answer = scripted.client().chat.completions.create(
        model="scripted",
        messages=messages,
        tools=TOOLS,  # type: ignore[arg-type]
    )
    said = answer.choices[0].message.model_dump(exclude_none=True)
    arguments = said["tool_calls"][0]["function"]["arguments"]
    said["tool_calls"][0]["function"]["arguments"] = arguments.replace("Köln", "Bonn")
    messages += [said, {"role": "user", "content": "And?"}]
    path = "/v1/chat/completions/render"
    prompt = scripted.post(json.dumps(body).encode(), path)[1]["prompt"]
    assert "Bonn" in prompt
    assert "Köln" not in prompt
