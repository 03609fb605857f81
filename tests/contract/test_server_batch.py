"""Several answers at once: places, fairness, faults of the engine, and a restart after them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from scripted import SCRIPTS
from servers import HERE, Running, metric, started

PLACES = 3


COMMAND = [str(HERE / "scripted.py"), "--clients", str(PLACES)]


@pytest.fixture(scope="module")
def several() -> Iterator[Running]:
    """The scripted server with three places, and one to wait."""
    with started(COMMAND) as running:
        yield running


def ask(script: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"@{script}"}]
    return {"model": "scripted", "messages": messages, "temperature": 0, **more}


def said(server: Running, script: str, **more: Any) -> str | None:
    answer = server.client().chat.completions.create(**ask(script, **more))
    return answer.choices[0].message.content


@contextlib.contextmanager
def talking(server: Running, script: str = "endless") -> Iterator[Iterator[Any]]:
    """An answer that is listened to until the block is left; its first word has come."""
    stream = server.client().chat.completions.create(**ask(script), stream=True)
    try:
        words = iter(stream)
        next(words)
        yield words
    finally:
        stream.close()


def test_answers_come_side_by_side(several: Running) -> None:
    with talking(several), talking(several):
        several.until_running(2, 0)
        assert said(several, "plain") == SCRIPTS["plain"]  # nobody waited for the endless ones
    several.until_idle(2)


def test_who_comes_to_a_full_house_waits_and_then_is_served(several: Running) -> None:
    with contextlib.ExitStack() as house, ThreadPoolExecutor(1) as pool:
        for _ in range(PLACES - 1):
            house.enter_context(talking(several))
        with talking(several):
            several.until_running(PLACES, 0)
            late = pool.submit(said, several, "plain")
            several.until_running(PLACES, 1)
            with pytest.raises(openai.RateLimitError):
                said(several, "plain")
            assert not late.done()
        assert late.result(10) == SCRIPTS["plain"]


def test_a_request_for_many_choices_keeps_nobody_out(several: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(said, several, "endless", n=8, max_tokens=30)
        several.until_running(1, 0)
        started_s = time.monotonic()
        assert said(several, "plain") == SCRIPTS["plain"]
        assert time.monotonic() - started_s < 4  # eight times thirty words take longer
        assert not many.done()
        assert many.result(60)


def test_whoever_leaves_makes_room_within_a_turn(several: Running) -> None:
    with talking(several):
        for _ in range(5):
            with talking(several):
                several.until_running(2, 0)
            started_s = time.monotonic()
            several.until_running(1, 0)
            assert time.monotonic() - started_s < 0.5


def test_one_that_fails_leaves_the_others_alone(several: Running) -> None:
    before = several.get("/health")[1]["faults"]
    with talking(several) as words:
        with pytest.raises(openai.InternalServerError):
            said(several, "bug at once")
        assert next(words)
    assert several.get("/health")[1]["faults"] == before


def test_a_fault_of_the_engine_ends_every_answer_cleanly_and_is_healed(several: Running) -> None:
    before = several.get("/health")[1]["faults"]
    with talking(several) as words:
        several.until_running(1, 0)
        with pytest.raises(openai.APIError, match="the server's log has the details"):
            said(several, "engine fault")
        with pytest.raises(openai.APIError, match="the server's log has the details"):
            list(words)
    several.until_idle(10)
    assert said(several, "plain") == SCRIPTS["plain"]
    assert several.get("/health")[1]["faults"] == metric(several, "engine_faults") == before + 1


def test_those_who_wait_are_served_after_a_fault(several: Running) -> None:
    with contextlib.ExitStack() as house, ThreadPoolExecutor(2) as pool:
        for _ in range(PLACES - 1):
            house.enter_context(talking(several))
        broken = pool.submit(said, several, "engine fault")
        several.until_running(PLACES, 0)
        waiting = pool.submit(said, several, "plain")
        with pytest.raises(openai.APIError):
            broken.result(20)
        assert waiting.result(20) == SCRIPTS["plain"]


def test_an_engine_that_only_fails_ends_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    with started(COMMAND) as server:
        for _ in range(4):
            server.until_idle(10)
            with pytest.raises(openai.APIError):
                said(server, "engine fault")
        assert server.process.wait(20) == 1
    told = capfd.readouterr().err
    assert "Engine fault 1 ended 1 answers: DeviceError: The device fell off the bus.; the" in told
    assert "The engine failed 4 times in a row." in told


# ------------------------------------------------------------------ the real engine


def stream(server: Running, body: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """When each piece of content came, and what it was."""
    url = f"{server.url}/v1/chat/completions"
    with httpx2.stream("POST", url, json={**body, "stream": True}, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
                if text:
                    yield time.monotonic(), text


def test_a_long_prompt_does_not_stop_those_who_speak(server: Running) -> None:
    """Tokens go on between the chunks of a prompt, not only after its last one."""
    talk = {
        "model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 150, "logit_bias": {"1": -100}, "temperature": 0,
    }  # fmt: skip
    words = ["river", "engine", "window", "garden", "number", "winter", "apple", "stone"]
    text = " ".join(f"{word} {i}" for i in range(75) for word in words)[:4000]
    long = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        pieces = stream(server, talk)
        next(pieces)
        sent_s = time.monotonic()
        reading = pool.submit(server.post, json.dumps(long).encode())
        arrivals = [at for at, _ in pieces]
        status, answer = reading.result(60)
    read_s = time.monotonic() - sent_s
    assert status == 200
    assert answer["usage"]["prompt_tokens"] > 15 * 64
    meanwhile = [at for at in arrivals if sent_s < at < sent_s + read_s]
    assert len(meanwhile) >= 10
    gaps = [b - a for a, b in zip(meanwhile, meanwhile[1:], strict=False)]
    assert max(gaps) < read_s / 4
