"""Many clients at once: nobody hears another's answer, and whoever leaves leaves nothing behind."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from servers import Running, metric

CLIENTS = 6
WORDS = ("river", "engine", "window", "garden", "number", "winter")


def ask(word: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me about the {word}. " * 6}]
    return {"model": "tiny", "messages": messages, "max_tokens": 10, "temperature": 0}


def said(server: Running, word: str) -> tuple[str | None, int]:
    answer = server.client().chat.completions.create(**ask(word))
    assert answer.usage is not None
    return answer.choices[0].message.content, answer.usage.prompt_tokens


def left(server: Running, word: str, after: int) -> None:
    """Listen to a few pieces of a stream and go."""
    body = {**ask(word), "stream": True, "max_tokens": 200}
    url = f"{server.url}/v1/chat/completions"
    with httpx2.stream("POST", url, json=body, timeout=60) as answer:
        for _ in zip(range(after), answer.iter_lines(), strict=False):
            pass


def test_answers_are_those_of_a_lone_client(server: Running) -> None:
    alone = [said(server, word) for word in WORDS]
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(2):
            assert list(pool.map(lambda word: said(server, word), WORDS)) == alone


def test_whoever_leaves_leaves_nothing_behind(server: Running) -> None:
    alone = [said(server, word) for word in WORDS]
    draw = random.Random(5)
    with ThreadPoolExecutor(CLIENTS) as pool:
        leavers = [pool.submit(left, server, w, draw.randrange(6)) for w in WORDS * 2]
        for leaver in leavers:
            leaver.result(60)
    server.until_idle(10)
    assert metric(server, "requests_running") == metric(server, "queue_depth") == 0
    assert [said(server, word) for word in WORDS] == alone
