"""Logits that stay non-finite: a fault of the engine, which is loaded again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from poisoned_server import ONCE
from scripted import SCRIPTS
from servers import HERE, Running, metric, started

from engine.errors import NumericsError
from engine.server.doubt import TOLERATED
from engine.server.service import MOST_FAULTS

ROW = TOLERATED[NumericsError] + 1


def said(server: Running, content: str = "Name a colour.", model: str = "tiny") -> str | None:
    """The answer; who is told that the model is being loaded comes back, as a client does."""
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "model": model}
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = server.client().chat.completions.create(**ask, temperature=0, max_tokens=60)
        except openai.InternalServerError as error:
            if error.status_code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return answer.choices[0].message.content


def refused(server: Running, times: int, *ask: str) -> None:
    """Each of so many requests is told of logits that are not finite."""
    for _ in range(times):
        with pytest.raises(openai.InternalServerError, match="not finite"):
            said(server, *ask)


@contextmanager
def poisonable(best: Path, poison: Path) -> Iterator[Running]:
    command = [str(HERE / "poisoned_server.py"), "--config", str(best), "--name", "tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POISON", str(poison))
        with started(command) as one:
            yield one


def test_weights_that_went_bad_in_memory_are_read_again(
    best: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    poison = tmp_path / "poison"
    with poisonable(best, poison) as server:
        before = said(server)
        poison.write_text(ONCE)
        refused(server, ROW)
        assert said(server) == before
        assert server.get("/health")[1]["faults"] == metric(server, "engine_faults") == 1
    (line,) = re.findall("Engine fault (.*); the engine is loaded again", capfd.readouterr().err)
    assert line.startswith(f"1 ended 1 answers: NumericsError: {ROW} requests in a row failed. ")


def test_what_no_load_heals_ends_the_server(
    best: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    poison = tmp_path / "poison"
    poison.write_text("for ever")
    with poisonable(best, poison) as server:
        refused(server, ROW * (MOST_FAULTS + 1))
        assert server.process.wait(30) == 1
    assert f"The engine failed {MOST_FAULTS + 1} times in a row." in capfd.readouterr().err


def test_a_request_that_ends_well_between_clears_the_engine() -> None:
    with started([str(HERE / "scripted.py")]) as server:
        for _ in range(2):
            refused(server, ROW - 1, "@fault at once", "scripted")
            assert said(server, "@plain", "scripted") == SCRIPTS["plain"]
        assert server.get("/health")[1]["faults"] == 0
        refused(server, ROW, "@fault at once", "scripted")
        assert said(server, "@plain", "scripted") == SCRIPTS["plain"]
        assert server.get("/health")[1]["faults"] == 1
