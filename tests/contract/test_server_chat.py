"""Chat completions through the official client, on the real engine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from servers import Running, started

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}]}


def test_health_names_what_is_served(server: Running) -> None:
    status, health = server.get("/health")
    assert status == 200
    assert health["status"] == "ok"
    assert health["decision"] == 7
    assert health["config"]["draft_width"] == 3
    assert len(health["checkpoint"]["sha256"]) == 64
    assert health["context_length"] == health["config"]["context"] > 0


def test_the_model_list_has_the_one_model(server: Running) -> None:
    models = list(server.client().models.list())
    assert [m.id for m in models] == ["tiny"]
    context = server.get("/health")[1]["context_length"]
    assert server.get("/v1/models")[1]["data"][0]["max_model_len"] == context
    assert server.client().models.retrieve("tiny").id == "tiny"


def test_a_whole_answer_and_a_streamed_one_are_the_same(server: Running) -> None:
    whole = server.client().chat.completions.create(**ASK, max_tokens=24, temperature=0)
    chunks = list(
        server.client().chat.completions.create(
            **ASK, max_completion_tokens=24, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *said, last = chunks
    assert said[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in said) == (
        whole.choices[0].message.content
    )
    reasons = [c.choices[0].finish_reason for c in said]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert last.choices == []
    assert last.usage == whole.usage
    assert len({c.id for c in chunks}) == 1


def test_usage_comes_only_for_those_who_ask(server: Running) -> None:
    chunks = list(server.client().chat.completions.create(**ASK, max_tokens=3, stream=True))
    assert all(c.choices and c.usage is None for c in chunks)


def test_the_limit_ends_an_answer_with_length(server: Running) -> None:
    answer = server.client().chat.completions.create(**ASK, max_tokens=2, temperature=0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2


def test_a_stop_string_ends_an_answer_and_is_not_part_of_it(server: Running) -> None:
    free = server.client().chat.completions.create(**ASK, max_tokens=24, temperature=0)
    text = free.choices[0].message.content or ""
    stop = text[len(text) // 2 :][:3]
    cut = server.client().chat.completions.create(
        **ASK, max_tokens=24, temperature=0, stop=["never said", stop]
    )
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.usage is not None
    assert free.usage is not None
    assert cut.usage.completion_tokens <= free.usage.completion_tokens


def test_the_same_seed_gives_the_same_text_and_another_seed_another(server: Running) -> None:
    def draw(seed: int) -> str | None:
        answer = server.client().chat.completions.create(
            **ASK, max_tokens=16, temperature=1.5, top_p=0.99, seed=seed, extra_body={"top_k": 500}
        )
        return answer.choices[0].message.content

    assert draw(5) == draw(5)
    assert len({draw(seed) for seed in (5, 6, 7)}) > 1


def test_too_long_a_request_is_said_in_the_words_that_clients_look_for(server: Running) -> None:
    context = server.get("/health")[1]["context_length"]
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(**ASK, max_tokens=context)
    assert caught.value.code == "context_length_exceeded"
    assert f"This model's maximum context length is {context} tokens. However, you requested" in (
        caught.value.message
    )
    long = {**ASK, "messages": [{"role": "user", "content": "word " * 3 * context}]}
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        server.client().chat.completions.create(**long)


def test_a_client_that_leaves_frees_the_engine(server: Running) -> None:
    stream = server.client().chat.completions.create(
        **ASK, stream=True, temperature=2, extra_body={"min_p": 0.0}
    )
    next(iter(stream))
    stream.close()
    assert server.until_idle(5) < 5


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_open_streams_and_the_process_within_two_seconds(
    best: Path, sign: signal.Signals
) -> None:
    with started(["-m", "engine.server", "--config", str(best), "--name", "tiny"]) as running:
        stream = iter(running.client().chat.completions.create(**ASK, stream=True, temperature=2))
        next(stream)
        begun = time.monotonic()
        running.process.send_signal(sign)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert running.process.wait(5) == 0
        assert time.monotonic() - begun < 2


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_loads(
    best: Path, sign: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with started(["-m", "engine.server", "--config", str(best)], ready=False) as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline().startswith("Loading")
        running.process.send_signal(sign)
        assert running.process.wait(20) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "Cannot read"),
        ("{", "not valid JSON"),
        (json.dumps({"config": {"drafts": 3}}), "Unknown configuration field 'drafts'"),
        (json.dumps({"checkpoint": "/nowhere", "config": {}}), "/nowhere"),
        (json.dumps({"checkpoint": ".", "config": {}}), "Cannot read the tokenizer"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_status_2(
    tmp_path: Path, content: str | None, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.json"
    if content is not None:
        path.write_text(content)
    with started(["-m", "engine.server", "--config", str(path)], ready=False) as running:
        assert running.process.wait(30) == 2
    told = capfd.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_a_taken_port_is_one_sentence(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    from engine.server.command import main

    assert main(["--port", server.url.rpartition(":")[2]]) == 2
    assert "Cannot listen on 127.0.0.1" in capfd.readouterr().err
