"""What a host asks of the server: numbers beside an answer, a proof, a drain, another config."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from servers import HERE, Running, started

ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell a story."}],
    "temperature": 0,
    "max_tokens": 40,
    "logit_bias": {"1": -100},  # no end before the limit, inside a block least of all
}
EXTRAS = {"timings_per_token": True, "return_token_ids": True}


def test_numbers_come_with_every_chunk_to_who_asks(server: Running) -> None:
    whole = server.client().chat.completions.create(**ASK, extra_body=EXTRAS)
    stream = server.client().chat.completions.create(**ASK, extra_body=EXTRAS, stream=True)
    ids: list[int] = []
    seen: list[dict[str, Any]] = []
    for chunk in stream:
        ids += getattr(chunk.choices[0], "token_ids", [])
        if (timings := getattr(chunk, "timings", None)) is not None:
            seen.append(timings)
    told = whole.model_dump()
    assert ids == told["choices"][0]["token_ids"]
    assert len(ids) == whole.usage.completion_tokens == seen[-1]["predicted_n"]
    counts = ("predicted_n", "rounds", "draft_n", "draft_n_accepted")
    assert [told["timings"][name] for name in counts] == [seen[-1][name] for name in counts]
    assert [t["predicted_n"] for t in seen] == sorted(t["predicted_n"] for t in seen)
    last = seen[-1]
    assert last["predicted_n"] - 1 == last["rounds"] + last["draft_n_accepted"]
    assert sum(last["offered_by_position"]) == last["draft_n"]
    assert sum(last["accepted_by_position"]) == last["draft_n_accepted"]
    pairs = zip(last["accepted_by_position"], last["offered_by_position"], strict=True)
    assert all(accepted <= offered for accepted, offered in pairs)


def test_nobody_else_sees_them(server: Running) -> None:
    told = server.client().chat.completions.create(**ASK).model_dump()
    assert "timings" not in told
    assert "token_ids" not in told["choices"][0]


def proven(word: str | None, running: Running) -> int:
    request = urllib.request.Request(
        f"{running.url}/v1/chat/completions", data=json.dumps({**ASK, "model": None}).encode()
    )
    if word is not None:
        request.add_header("X-Flywheel-Proof", word)
    return running.send(request)[0]


def test_only_the_prover_is_answered_until_the_server_is_opened(
    best: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_PROOF", "sesame")
    with started(["-m", "engine.server", "--config", str(best), "--name", "tiny"]) as running:
        assert running.get("/health")[1]["status"] == "proving"
        assert [proven(word, running) for word in (None, "other", "sesame")] == [503, 503, 200]
        running.process.send_signal(signal.SIGUSR1)
        until(lambda: running.get("/health")[0] == 200)
        assert proven(None, running) == 200


def until(what: Any, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_drain_finishes_what_was_begun_and_begins_nothing() -> None:
    with started([str(HERE / "scripted.py"), "--drain-s", "20"]) as running:
        ask = {"model": "scripted", "messages": [{"role": "user", "content": "@endless"}]}
        stream = iter(running.client().chat.completions.create(**ask, stream=True, max_tokens=100))
        next(stream)
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.get("/health")[1]["status"] == "draining")
        status, body = running.post(json.dumps(ask).encode())
        assert status == 503
        assert "finishing" in body["error"]["message"]
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert running.process.wait(5) == 0


def test_a_second_signal_does_not_wait_for_the_drain() -> None:
    with started([str(HERE / "scripted.py"), "--drain-s", "60"]) as running:
        ask = {"model": "scripted", "messages": [{"role": "user", "content": "@endless"}]}
        stream = running.client().chat.completions.create(**ask, stream=True)
        next(iter(stream))
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.get("/health")[1]["status"] == "draining")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(5) == 0


def test_another_configuration_takes_over_without_dropping_a_stream(
    best: Path, tmp_path: Path
) -> None:
    config = tmp_path / "best.json"
    raw = json.loads(best.read_text())
    config.write_text(json.dumps(raw))
    with started(["-m", "engine.server", "--config", str(config), "--name", "tiny"]) as running:
        before = running.get("/health")[1]

        def switched(**fields: Any) -> dict[str, Any]:
            count = running.get("/health")[1]["reloads"]["count"]
            config.write_text(json.dumps({**raw, **fields}))
            running.process.send_signal(signal.SIGHUP)
            until(lambda: running.get("/health")[1]["reloads"]["count"] > count)
            return running.get("/health")[1]

        stream = iter(running.client().chat.completions.create(
            **{**ASK, "temperature": 1, "max_tokens": 120}, stream=True,
        ))  # fmt: skip
        next(stream)
        ends: list[str | None] = []
        reader = threading.Thread(
            target=lambda: ends.extend(c.choices[0].finish_reason for c in stream)
        )
        reader.start()
        now = switched(config={"draft_width": 1}, decision=8)
        reader.join(60)
        assert ends[-1] == "length"
        assert (now["decision"], now["config"]["draft_width"]) == (8, 1)
        assert now["fingerprint"] != before["fingerprint"]
        assert now["reloads"] == {"count": 1, "refused": None}
        whole = running.client().chat.completions.create(**ASK, extra_body=EXTRAS).model_dump()
        assert len(whole["timings"]["offered_by_position"]) == 1

        for fields, sentence in (
            ({"config": {"dtype": "bfloat16"}}, "needs a load of its own"),
            ({"config": {"nonsense": 1}}, "Unknown configuration field"),
            ({"checkpoint": str(HERE)}, "Another checkpoint needs a restart"),
        ):
            refused = switched(**fields)
            assert sentence in refused["reloads"]["refused"]
            assert refused["fingerprint"] == now["fingerprint"]
        assert running.client().chat.completions.create(**ASK).choices
