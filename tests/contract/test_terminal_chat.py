"""`flywheel chat` as a process: in a pipe, and at a terminal with a person who presses Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

from servers import HERE, Running

CTRL_C, CTRL_D = b"\x03", b"\x04"


def chat(server: Running, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flywheel", "chat", "--url", server.url, *words],
        input=given, capture_output=True, text=True, timeout=60, cwd=HERE.parents[1],
    )  # fmt: skip


def test_a_pipe_gets_the_answer_and_nothing_else(scripted: Running) -> None:
    done = chat(scripted, "--once", given="@plain\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "One, two, three. Grüße 🙂🙃 aus Köln.\n"
    assert chat(scripted, "@plain").stdout == done.stdout


def test_json_is_one_document(scripted: Running) -> None:
    told = json.loads(chat(scripted, "--json", "--think", given="@thought").stdout)
    assert (told["answer"], told["reasoning"]) == ("Yes.", "Let me see. 2 < 3.")
    assert told["finish_reason"] == "stop"
    assert told["usage"]["completion_tokens"] == told["timings"]["predicted_n"]


def test_lines_of_a_pipe_are_turns_and_commands(scripted: Running, tmp_path: Path) -> None:
    kept = tmp_path / "talk.json"
    done = chat(scripted, given=f"@plain\n@plain\n/save {kept}\n/nope\n")
    assert done.stdout.count("One, two, three.") == 2
    assert "there is no /nope" in done.stderr
    assert done.returncode == 1
    assert len(json.loads(kept.read_text())["messages"]) == 4


def test_a_fault_of_the_engine_is_a_sentence(scripted: Running) -> None:
    done = chat(scripted, "@fault at once")
    assert done.returncode == 1
    assert done.stderr == "flywheel: The logits are not finite.\n"


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, server: Running, home: Path) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flywheel", "chat", "--url", server.url],
            stdin=slave, stdout=slave, stderr=slave, cwd=HERE.parents[1], start_new_session=True,
            env={**os.environ, "XDG_STATE_HOME": str(home), "TERM": "xterm", "COLUMNS": "100"},
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it controls us now
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def until(self, pattern: str, within_s: float = 20.0) -> str:
        """What is shown until a pattern comes; it is then forgotten."""
        deadline = time.monotonic() + within_s
        while (match := re.search(pattern, self.seen)) is None:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"waited for {pattern!r} in {self.seen[-500:]!r}"
            if select.select([self._master], [], [], left_s)[0]:
                self.seen += os.read(self._master, 65536).decode("utf-8", "replace")
        shown, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return shown

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_ctrl_c_stops_the_answer_and_not_the_program(scripted: Running, tmp_path: Path) -> None:
    terminal = Terminal(scripted, tmp_path)
    try:
        assert "scripted" in terminal.until("> ")
        terminal.press(b"@endless\n")
        terminal.until("so so so so")
        assert scripted.get("/health")[1]["running"] == 1
        terminal.press(CTRL_C)
        assert scripted.until_idle(1.5) < 1.5
        terminal.until("stopped")
        terminal.until("> ")
        terminal.press(CTRL_C)
        terminal.until("/quit leaves")
        terminal.until("> ")
        terminal.press(b"@plain\n")
        terminal.until("Köln")
        assert "tokens" in terminal.until("> ")
        terminal.press(b"/stats\n")
        assert "2 answers" in terminal.until("in all")
        terminal.until("> ")  # an end that is typed before the prompt is no line's end
        terminal.press(CTRL_D)
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()
    kept = tmp_path / "flywheel" / "chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "@endless" in kept.read_text()
