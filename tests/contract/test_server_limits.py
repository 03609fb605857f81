"""Who may ask, how much, and for how long."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from scripted import SCRIPTS
from servers import HERE, Running, started

from engine.errors import ConfigError
from engine.server.app import EXCHANGES, LOOKS
from engine.server.command import main
from engine.server.guard import checked

KEY = "a-key-for-tests"
ORIGIN = "https://chat.example"
LIMITS = {"body_s": 0.5, "write_s": 0.5, "answer_s": 4.0, "ping_s": 0.2, "body_bytes": 1 << 20}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    """The scripted server with a key, tight limits and one web origin."""
    options = ["--key", KEY, "--origin", ORIGIN, "--limits", json.dumps(LIMITS)]
    with started([str(HERE / "scripted.py"), *options]) as running:
        yield running


def ask(script: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"@{script}"}]
    return {"model": "scripted", "messages": messages, "temperature": 0, **more}


def client(server: Running, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=20)


# ------------------------------------------------------------------ the key


@pytest.mark.parametrize(
    "path",
    [*EXCHANGES, *LOOKS, "/metrics", "/v1/models", "/v1/models/scripted", "/nowhere", "//health"],
)
def test_b24_the_key_guards_every_path_but_health(guarded: Running, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer another"}, {"x-api-key": KEY[:-1]}):
        for method in ("GET", "POST"):
            request = urllib.request.Request(
                guarded.url + path, data=b"{}" if method == "POST" else None, headers=headers
            )
            status, body = guarded.send(request)
            assert status == 401
            assert KEY not in json.dumps(body)
            shape = body["error"]["type"]
            assert shape == "authentication_error"


def test_health_answers_without_the_key(guarded: Running) -> None:
    assert guarded.get("/health")[0] == 200


def test_both_spellings_of_the_key_open_the_door(guarded: Running) -> None:
    answer = client(guarded).chat.completions.create(**ask("plain"))
    assert answer.choices[0].message.content == SCRIPTS["plain"]
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    models = httpx2.get(f"{guarded.url}/v1/models", headers=headers)
    assert models.status_code == 200


def test_the_clients_know_the_error(guarded: Running) -> None:
    with pytest.raises(openai.AuthenticationError):
        client(guarded, "wrong").chat.completions.create(**ask("plain"))


@pytest.mark.parametrize("key", ["", " \n", "a\nb", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        checked(key)


def test_a_key_file_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--key-file", str(tmp_path / "none"), "--port", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ------------------------------------------------------------------ browsers


def preflight(server: Running, origin: str) -> httpx2.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return httpx2.options(f"{server.url}/v1/chat/completions", headers=headers)


def test_pages_of_a_named_origin_may_read_answers_and_no_others(guarded: Running) -> None:
    assert preflight(guarded, ORIGIN).headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in preflight(guarded, "https://evil.example").headers
    refused = httpx2.post(f"{guarded.url}/v1/messages", json={}, headers={"origin": ORIGIN})
    assert refused.status_code == 401  # readable, or the page could not say why
    assert refused.headers["access-control-allow-origin"] == ORIGIN


def test_no_page_may_read_answers_unless_it_was_asked_for(scripted: Running) -> None:
    assert "access-control-allow-origin" not in preflight(scripted, ORIGIN).headers
    answer = httpx2.get(f"{scripted.url}/health", headers={"origin": ORIGIN})
    assert "access-control-allow-origin" not in answer.headers


# ------------------------------------------------------------------ time and size


def request_head(length: int, path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def connected(server: Running) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects, to matter
    line.settimeout(10)
    line.connect((host, int(port)))
    return line


def test_a_body_that_never_comes_is_a_408(guarded: Running) -> None:
    with connected(guarded) as line:
        line.sendall(request_head(100) + b"{")
        answer = b""
        while b"}}" not in answer and (piece := line.recv(65536)):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"took longer than 0.5 seconds" in answer


def test_a_body_over_the_limit_is_a_413(guarded: Running) -> None:
    body = json.dumps(ask("plain", padding="x" * (1 << 20)))
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx2.post(f"{guarded.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 413


def test_a_client_that_does_not_read_is_dropped(guarded: Running) -> None:
    body = json.dumps({"prompt": "@flood", "stream": True}).encode()
    with connected(guarded) as line:
        line.sendall(request_head(len(body), "/v1/completions") + body)
        guarded.until_running(1, 0)
        guarded.until_idle(3.5)  # before the answer would be too long


def test_an_answer_that_takes_too_long_is_ended_with_the_reason(guarded: Running) -> None:
    with pytest.raises(openai.InternalServerError, match="took longer than 4 seconds") as caught:
        client(guarded).chat.completions.create(**ask("endless"))
    assert caught.value.status_code == 504
    guarded.until_idle(1)
    stream = client(guarded).chat.completions.create(**ask("endless"), stream=True)
    with pytest.raises(openai.APIError, match="took longer than 4 seconds"):
        list(stream)
    guarded.until_idle(1)


@pytest.mark.parametrize(
    ("path", "ping"), [("/v1/chat/completions", ": "), ("/v1/messages", "event: ping")]
)
def test_b19_a_stream_shows_that_it_is_alive_while_a_prompt_is_read(
    guarded: Running, path: str, ping: str
) -> None:
    body = {**ask("late"), "stream": True, "max_tokens": 1000}
    headers = {"authorization": f"Bearer {KEY}"}
    arrivals: list[tuple[float, str]] = []
    with httpx2.stream("POST", guarded.url + path, json=body, headers=headers) as answer:
        for line in answer.iter_lines():
            arrivals.append((time.monotonic(), line))
    words = [at for at, line in arrivals if '"delta"' in line and "One" in line]
    pings = [at for at, line in arrivals if line.startswith(ping) and at < words[0]]
    assert len(pings) >= 3
