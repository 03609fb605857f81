"""A head in service must take the rounds that were measured."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from head_arms import MADE, better, measured_with

from flywheel.box.clock import SystemClock
from flywheel.loop import prove
from flywheel.loop.wishes import Wish, Wishes
from flywheel.statistics.tau import tau_block

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
asked = []
class H(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def say(self, body):
        self.send_response(200); self.end_headers(); self.wfile.write(body.encode())
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.say("{}")
    def do_GET(self):
        if self.path == "/v1/models":
            return self.say('{"data": [{"id": "tiny"}]}')
        rounds = ROUNDS * len(asked)
        tokens = 32.0 * len(asked)
        self.say(f"flywheel_verifies_total {rounds}.0\\nflywheel_round_tokens_total {tokens}\\n")
staged = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
assert staged["head"], staged
server = HTTPServer(("127.0.0.1", 0), H)
print(f"Serving at http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
server.serve_forever()
"""


@pytest.fixture
def wishes(tmp_path: Path) -> Wishes:
    """Nobody wants anything, until there is a STOP file."""
    return Wishes(tmp_path / "ledger.db", SystemClock())


@pytest.mark.parametrize(("rounds", "holds"), [(10, True), (11, False)])
def test_the_served_head_must_take_the_measured_rounds(
    rounds: int, holds: bool, tmp_path: Path, wishes: Wishes
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("ROUNDS", str(rounds)))
    wanted = prove.Signature(("a", "b"), 64, 20)
    chats = {name: {"messages": [{"role": "user", "content": "x"}]} for name in "ab"}
    found = prove.prove(
        {"head": "there"}, tmp_path, wanted, chats, max_new_tokens=33,
        command=(sys.executable, str(script)), wishes=wishes,
    )  # fmt: skip
    assert found.holds is holds
    assert f"64 tokens in {2 * rounds} rounds, measured 64 in 20" in found.detail
    assert not (tmp_path / prove.STAGED).exists()


@pytest.mark.parametrize(
    ("told_in", "pause_s", "proved"),
    [("        asked.append", 60, False), ("        rounds = ROUNDS", 0, True)],
    ids=["while it answers", "once it has answered"],
)
def test_a_stop_is_heard_beside_a_server_that_heeds_nothing(
    tmp_path: Path, wishes: Wishes, told_in: str, pause_s: int, proved: bool
) -> None:
    told, script = tmp_path / "told", tmp_path / "server.py"
    tell = (
        f"        pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        f"        time.sleep({pause_s})\n"
    )
    script.write_text(
        "import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + SERVER.replace(told_in, tell + told_in).replace("ROUNDS", "10")
    )
    stopped_s: list[float] = []

    def stop() -> None:
        while not (told.exists() and told.read_text()):
            time.sleep(0.02)
        time.sleep(0.5)
        stopped_s.append(time.monotonic())
        (tmp_path / "STOP").touch()

    threading.Thread(target=stop, daemon=True).start()
    wanted = prove.Signature(("a",), 32, 10)
    found = prove.prove(
        {"head": "there"}, tmp_path, wanted, {"a": {"messages": []}}, max_new_tokens=33,
        command=(sys.executable, str(script)), wishes=wishes,
    )  # fmt: skip
    assert time.monotonic() - stopped_s[0] < 2.0
    assert isinstance(found, prove.Proof if proved else Wish)
    assert not proved or found.holds
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_server_that_dies_proves_nothing(tmp_path: Path, wishes: Wishes) -> None:
    wanted = prove.Signature(("a",), 1, 1)
    found = prove.prove(
        {"head": "x"}, tmp_path, wanted, {}, max_new_tokens=3,
        command=(sys.executable, "-c", "print('no such head'); raise SystemExit(2)"),
        wishes=wishes,
    )  # fmt: skip
    assert not found.holds
    assert "left with status 2: no such head" in found.detail


def test_a_signature_asks_only_what_a_chat_request_can() -> None:
    rows = tau_block(measured_with(better(2))).by_prompt
    said = [{"role": "user", "content": "hello"}]
    chats: dict[str, Mapping[str, Any]] = {
        r.prompt: {"thinking": r.category != "reasoning", "messages": said} for r in rows
    }
    found = prove.signature(rows, chats)
    assert all(p.startswith("reasoning-") for p in found.prompts)
    assert found.tokens == MADE * prove.PROMPTS


@pytest.mark.parametrize(
    "entry",
    [
        {"thinking": True}, {"take": 12}, {"messages": [{"role": "developer", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "tools": [{}]}]},
    ],
)  # fmt: skip
def test_a_suite_that_nobody_could_ask_proves_nothing_and_ends_no_night(
    tmp_path: Path, wishes: Wishes, entry: Mapping[str, Any]
) -> None:
    rows = tau_block(measured_with(better(2))).by_prompt
    plain = {"thinking": False, "messages": [{"role": "user", "content": "hello"}]}
    for chats in ({r.prompt: {**plain, **entry} for r in rows}, {}):
        wanted = prove.signature(rows, chats)
        assert wanted.prompts == ()
        found = prove.prove(
            {}, tmp_path, wanted, chats, max_new_tokens=3,
            command=(sys.executable, "-c", "1/0"), wishes=wishes,
        )  # fmt: skip
        assert not found.holds
        assert "no prompt of the suite can be asked" in found.detail
        assert list(tmp_path.iterdir()) == []
