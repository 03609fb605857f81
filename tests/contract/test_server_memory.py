"""The prefix cache as clients see it: fewer tokens to read, and never another answer."""

from __future__ import annotations

from typing import Any

import pytest
from servers import Running, metric

SYSTEM = "You answer in one short sentence. " * 12


def ask(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def chat(server: Running, body: dict[str, Any]) -> tuple[str | None, int, int]:
    """What was said, the tokens of the prompt, and those of them that were remembered."""
    answer = server.client().chat.completions.create(**body)
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens or 0
    return answer.choices[0].message.content, usage.prompt_tokens, cached


def test_a_repetition_is_remembered_and_says_the_same(server: Running) -> None:
    said, prompt, _ = chat(server, ask("Where is the sea?"))
    again, _, cached = chat(server, ask("Where is the sea?"))
    assert again == said
    assert prompt // 2 < cached < prompt


def test_the_next_turn_goes_on_from_the_last(server: Running) -> None:
    body = ask("Where is the moon?")
    said, prompt, _ = chat(server, body)
    body["messages"] += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And the sun?"},
    ]
    _, longer, cached = chat(server, body)
    assert longer > prompt
    assert cached > prompt // 2


def test_every_protocol_reports_what_was_remembered(server: Running) -> None:
    chat(server, ask("Where is the hill?"))
    _, prompt, cached = chat(server, ask("Where is the hill?"))
    message = server.anthropic().messages.create(
        model="tiny", system=SYSTEM, max_tokens=2,
        messages=[{"role": "user", "content": "Where is the hill?"}],
    )  # fmt: skip
    assert message.usage.cache_read_input_tokens == cached
    assert message.usage.input_tokens == prompt - cached
    response = server.client().responses.create(
        model="tiny", instructions=SYSTEM, input="Where is the hill?", max_output_tokens=2
    )
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == cached
    text = server.client().completions.create(model="tiny", prompt=SYSTEM, n=2, max_tokens=2)
    assert text.usage is not None
    assert text.usage.prompt_tokens_details is not None
    assert (text.usage.prompt_tokens_details.cached_tokens or 0) < text.usage.prompt_tokens


def test_metrics_count_what_was_remembered(server: Running) -> None:
    before = metric(server, "cached_prompt_tokens_total")
    _, _, first = chat(server, ask("Where is the road?"))
    _, _, second = chat(server, ask("Where is the road?"))
    assert metric(server, "cached_prompt_tokens_total") - before == first + second
    assert 0 < metric(server, "prefix_cache_hit_ratio") < 1


@pytest.mark.parametrize("seed", [1, 2])
def test_sampled_answers_do_not_change_either(server: Running, seed: int) -> None:
    body = ask(f"Where is house {seed}?", seed=seed, temperature=1.0, logprobs=True)
    answers = [server.client().chat.completions.create(**body).choices[0] for _ in range(2)]
    assert answers[0].message == answers[1].message
    assert answers[0].logprobs == answers[1].logprobs
