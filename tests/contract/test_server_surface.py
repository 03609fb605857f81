"""Everything beside chat: text completions, log-probabilities, ids, rendering, metrics, models."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx2
import openai
import pytest
from servers import Running, metric

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "The sky is", "max_tokens": 12, "temperature": 0}


def test_a_text_completion_is_the_same_whole_and_streamed(server: Running) -> None:
    client = server.client().completions
    whole = client.create(**TEXT)
    *said, last = client.create(**TEXT, stream=True, stream_options={"include_usage": True})
    assert whole.choices[0].text
    assert "".join(c.choices[0].text for c in said) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in said][-1] == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens <= 12


def test_an_echo_repeats_the_prompt_and_a_stop_cuts_the_rest(server: Running) -> None:
    client = server.client().completions
    said = client.create(**TEXT).choices[0].text
    assert client.create(**TEXT, echo=True).choices[0].text == f"The sky is{said}"
    streamed = client.create(**TEXT, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == f"The sky is{said}"
    stop = said[len(said) // 2 :][:2]
    cut = client.create(**TEXT, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (said[: said.index(stop)], "stop")


def test_ids_and_several_prompts_are_prompts_too(server: Running) -> None:
    _, found = server.post(
        json.dumps({"prompt": "The sky is", "add_special_tokens": True}).encode(), "/tokenize"
    )
    one = server.client().completions.create(**TEXT)
    both = server.client().completions.create(
        **{**TEXT, "prompt": [found["tokens"], found["tokens"][:2]]}
    )
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == one.choices[0].text
    assert both.usage is not None
    assert both.usage.prompt_tokens == found["count"] + 2


def test_n_draws_choices_that_differ_and_repeat_with_the_seed(server: Running) -> None:
    def draw() -> list[str | None]:
        answer = server.client().chat.completions.create(
            **ASK, n=3, seed=5, temperature=1.5, max_tokens=8
        )
        assert [c.index for c in answer.choices] == [0, 1, 2]
        return [c.message.content for c in answer.choices]

    first = draw()
    assert len(set(first)) > 1
    assert draw() == first
    stream = server.client().chat.completions.create(
        **ASK, n=3, seed=5, temperature=1.5, max_tokens=8, stream=True
    )
    heard = ["", "", ""]
    for chunk in stream:
        heard[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert heard == first


def test_logprobs_are_the_targets_own_whole_and_streamed(server: Running) -> None:
    client = server.client().chat.completions
    asked = {**ASK, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = client.create(**asked).choices[0]
    assert whole.logprobs is not None
    told = whole.logprobs.content or []
    assert b"".join(bytes(t.bytes or []) for t in told).decode() == whole.message.content
    for token in told:
        assert token.logprob < 0
        assert [t.logprob for t in token.top_logprobs] == sorted(
            (t.logprob for t in token.top_logprobs), reverse=True
        )
        assert token.top_logprobs[0].token == token.token  # greedy
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) <= 1 + 1e-9
    streamed = [
        t
        for chunk in client.create(**asked, stream=True)
        if chunk.choices[0].logprobs is not None
        for t in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == told


def test_logprobs_of_a_text_completion_have_offsets_into_its_text(server: Running) -> None:
    choice = server.client().completions.create(**TEXT, logprobs=2).choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert "\ufffd" in token or choice.text[offset:].startswith(token)
    assert all(len(top) == 2 for top in told.top_logprobs or [])


def test_bias_and_stop_ids_are_obeyed(server: Running) -> None:
    free = server.client().completions.create(**TEXT, logprobs=1).choices[0]
    _, found = server.post(json.dumps({"prompt": free.text}).encode(), "/tokenize")
    banned = found["tokens"][0]
    other = server.client().completions.create(**TEXT, logit_bias={str(banned): -100})
    assert other.choices[0].text != free.text
    cut = server.client().completions.create(**TEXT, extra_body={"stop_token_ids": [banned]})
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("", "stop")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["x"] * 65}, "prompt"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"echo": True, "prompt": [1, 2]}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_a_wrong_value_is_named(server: Running, change: dict[str, Any], param: str) -> None:
    status, body = server.post(json.dumps({**TEXT, **change}).encode(), "/v1/completions")
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize("prompt", [[5000], [-1]])
def test_tokens_outside_the_vocabulary_are_a_400(server: Running, prompt: list[int]) -> None:
    raw = json.dumps({**TEXT, "prompt": prompt}).encode()
    assert server.post(raw, "/v1/completions")[0] == 400
    raw = json.dumps({"tokens": prompt}).encode()
    assert server.post(raw, "/detokenize")[0] == 400


def test_ids_and_text_turn_into_each_other(server: Running) -> None:
    text = "Grüße 🙂 <｜User｜> "
    _, found = server.post(json.dumps({"content": text}).encode(), "/tokenize")
    assert found["count"] == len(found["tokens"])
    _, back = server.post(json.dumps({"tokens": found["tokens"]}).encode(), "/detokenize")
    assert back == {"prompt": text, "content": text}


def test_a_rendered_prompt_is_the_one_that_is_answered(server: Running) -> None:
    raw = json.dumps(ASK).encode()
    _, shown = server.post(raw, "/v1/chat/completions/render")
    assert shown["prompt"].startswith("<｜begin▁of▁sentence｜><｜User｜>Say something.")
    assert server.post(raw, "/apply-template")[1] == shown
    assert server.post(raw, "/tokenize")[1] == shown
    answer = server.client().chat.completions.create(**ASK, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == shown["count"]


def test_every_answer_names_its_request(server: Running) -> None:
    own = httpx2.get(f"{server.url}/nowhere", headers={"x-request-id": "r-1"})
    assert own.headers["x-request-id"] == own.headers["request-id"] == "r-1"
    answer = server.client().chat.completions.with_raw_response.create(**ASK, max_tokens=1)
    assert str(answer.headers["x-request-id"]).startswith("req_")


def test_metrics_count_what_usage_says(server: Running) -> None:
    names = ("requests_total", "prompt_tokens_total", "completion_tokens_total", "errors_total")
    before = [metric(server, name) for name in names]
    answer = server.client().chat.completions.create(**ASK, max_tokens=9)
    with pytest.raises(openai.BadRequestError):
        server.client().chat.completions.create(**ASK, max_tokens=9_999_999)
    after = [metric(server, name) for name in names]
    usage = answer.usage
    assert usage is not None
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        1, usage.prompt_tokens, usage.completion_tokens, 1,
    ]  # fmt: skip
    assert metric(server, "tokens_per_verify") >= 1
    assert metric(server, "decode_tokens_per_second") > 0
    assert metric(server, "queue_depth") == metric(server, "requests_running") == 0


def test_anthropics_client_lists_the_model_too(server: Running) -> None:
    client = server.anthropic()
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").type == "model"
