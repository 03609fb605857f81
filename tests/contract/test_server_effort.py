"""Every protocol's words for effort, and the paragraph that each puts before the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import EFFORTS
from servers import Running

from engine.tokenizer import BOS

PARAGRAPHS = {
    "minimal": "", "low": "", "medium": EFFORTS.high, "high": EFFORTS.high, "xhigh": EFFORTS.high,
    "max": EFFORTS.max, "ultra": EFFORTS.max,
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "@plain"}]


def prompt(server: Running, **more: Any) -> str:
    body = {"messages": MESSAGES, **more}
    path = "/v1/chat/completions/render"
    rendered: str = server.post(json.dumps(body).encode(), path)[1]["prompt"]
    return rendered


@pytest.mark.parametrize("effort", PARAGRAPHS)
def test_chat_says_its_level(scripted: Running, effort: str) -> None:
    told = f"{BOS}{PARAGRAPHS[effort]}<｜User｜>"
    assert prompt(scripted, reasoning_effort=effort).startswith(told)
    template = {"thinking": True, "reasoning_effort": effort}
    assert prompt(scripted, chat_template_kwargs=template).startswith(told)


def test_thinking_without_a_level_is_high_and_no_thinking_has_none(scripted: Running) -> None:
    assert prompt(scripted, thinking={"type": "enabled"}).startswith(f"{BOS}{EFFORTS.high}<")
    for off in ({}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}):
        assert prompt(scripted, **off).startswith(f"{BOS}<｜User｜>")


@pytest.mark.parametrize("effort", ["low", "high", "max"])
def test_the_other_protocols_say_the_same(scripted: Running, effort: str) -> None:
    rendered = {"messages": MESSAGES, "reasoning_effort": effort}
    path = "/v1/chat/completions/render"
    count = scripted.post(json.dumps(rendered).encode(), path)[1]["count"]
    counted = {"messages": MESSAGES, "output_config": {"effort": effort}}
    path = "/v1/messages/count_tokens"
    assert scripted.post(json.dumps(counted).encode(), path)[1]["input_tokens"] == count
    response = scripted.client().responses.create(
        model="scripted",
        input="@plain",
        reasoning={"effort": effort},  # type: ignore[arg-type]
    )
    assert response.usage is not None
    assert response.usage.input_tokens == count


def test_a_level_that_nobody_knows_is_refused(scripted: Running) -> None:
    body = {"messages": MESSAGES, "reasoning_effort": "enormous"}
    status, answer = scripted.post(json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, "reasoning_effort")
