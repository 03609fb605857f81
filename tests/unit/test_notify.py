"""Notices arrive as JSON or text, are tried again, and cost the loop no time."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import NOW

from flywheel.cli import app as cli
from flywheel.errors import UsageError
from flywheel.notify import __main__ as program
from flywheel.notify.notice import END, PROMOTION, Notice
from flywheel.notify.send import LOG, send
from flywheel.notify.target import Command, NotDelivered, Webhook, parse

TOLD = Notice(PROMOTION, "threads -> 2: promoted", "box", "/l/ledger.db", NOW, {"gain": 0.1})


class Hook:
    """A web server on the loopback that answers as told, and keeps what it was sent."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.got = list(answers), list[tuple[str, str]]()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                hook.got.append((self.headers["Content-Type"], body))
                self.send_response(hook.answers.pop(0) if hook.answers else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing on the test's stderr."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hooks() -> Iterator[Any]:
    made: list[Hook] = []

    def make(*answers: int) -> Hook:
        made.append(Hook(*answers))
        return made[-1]

    yield make
    for hook in made:
        hook.server.shutdown()
        hook.server.server_close()


def command(folder: Path, body: str) -> str:
    script = folder / "told.py"
    script.write_text(body)
    return f"{sys.executable} {script}"


KEEP = (
    "import json, os, pathlib, sys\n"
    "told = {'stdin': json.load(sys.stdin), 'event': os.environ['FLYWHEEL_EVENT'],\n"
    "        'text': os.environ['FLYWHEEL_TEXT']}\n"
    "path = pathlib.Path(__file__).parent / 'got.json'\n"
    "path.with_suffix('.part').write_text(json.dumps(told))\n"
    "path.with_suffix('.part').rename(path)\n"
)


def test_a_webhook_gets_the_notice_as_json(hooks: Any) -> None:
    hook = hooks()
    parse(hook.url).deliver(TOLD)
    ((kind, body),) = hook.got
    assert kind == "application/json"
    told = json.loads(body)
    assert Notice.from_json(told) == TOLD
    assert told["content"] == "flywheel on box: threads -> 2: promoted"


def test_a_webhook_for_people_gets_a_line_of_text(hooks: Any) -> None:
    hook = hooks()
    parse(f"text+{hook.url}").deliver(TOLD)
    assert hook.got == [("text/plain; charset=utf-8", "flywheel on box: threads -> 2: promoted")]


def test_a_command_gets_json_on_stdin_and_the_line_in_its_environment(tmp_path: Path) -> None:
    parse(command(tmp_path, KEEP)).deliver(TOLD)
    got = json.loads((tmp_path / "got.json").read_text())
    assert Notice.from_json(got["stdin"]) == TOLD
    assert (got["event"], got["text"]) == ("promotion", TOLD.line)


def test_what_does_not_arrive_is_tried_again_after_a_while(hooks: Any) -> None:
    hook, slept = hooks(500, 429), []
    assert program.deliver(parse(hook.url), TOLD, (1.0, 2.0, 3.0), slept.append) is None
    assert slept == [1.0, 2.0]
    assert len(hook.got) == 3


def test_an_answer_that_will_not_change_is_taken_as_it_is(hooks: Any) -> None:
    hook, slept = hooks(404), []
    assert program.deliver(parse(hook.url), TOLD, (1.0,), slept.append) == "it answered 404"
    assert slept == []


def test_the_last_failure_is_the_reason(tmp_path: Path) -> None:
    slept: list[float] = []
    failing = parse(command(tmp_path, "raise SystemExit(3)"))
    assert program.deliver(failing, TOLD, (1.0, 2.0), slept.append) == "it left with status 3"
    assert slept == [1.0, 2.0]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    body = (
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(NotDelivered, match="longer than 2 s"):
        parse(command(tmp_path, body)).deliver(TOLD, timeout_s=2.0)
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    deadline = time.monotonic() + 5
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("port", ["1", "9"])
def test_a_webhook_that_nobody_answers_is_no_crash(port: str) -> None:
    with pytest.raises(NotDelivered, match="cannot be reached") as failed:
        parse(f"http://127.0.0.1:{port}/").deliver(TOLD)
    assert not failed.value.lasting


class Raw:
    """A server on the loopback that answers each request with these bytes, and pauses between."""

    def __init__(self, answer: bytes, pause_s: float = 0.0) -> None:
        self.answer, self.pause_s = answer, pause_s
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                with contextlib.suppress(OSError), client:
                    client.recv(1 << 16)
                    for byte in self.answer:
                        client.sendall(bytes([byte]))
                        time.sleep(self.pause_s)
                    client.shutdown(socket.SHUT_WR)
                    # A socket that is closed with a part of the request unread resets its answer.
                    while client.recv(1 << 16):
                        pass


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
)
def test_what_is_no_web_server_is_said_and_tried_again(answer: bytes, tmp_path: Path) -> None:
    server, slept = Raw(answer), []
    with contextlib.closing(server.socket):
        said = program.deliver(parse(server.url), TOLD, (1.0,), slept.append)
    assert said is not None
    assert said.startswith("it does not answer as a web server")
    assert "\n" not in said
    assert slept == [1.0]


def test_a_webhook_that_answers_a_letter_at_a_time_is_not_waited_for() -> None:
    server = Raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 5000, pause_s=0.2)
    began = time.monotonic()
    with contextlib.closing(server.socket), pytest.raises(NotDelivered, match="longer than 2 s"):
        Webhook(server.url, plain=False).deliver(TOLD, timeout_s=1.0)
    assert time.monotonic() - began < 10


def test_a_missing_program_is_no_crash() -> None:
    with pytest.raises(NotDelivered, match="cannot be started"):
        parse("/nowhere/at/all").deliver(TOLD)


def test_sending_does_not_wait_and_the_log_says_what_became_of_it(
    hooks: Any, tmp_path: Path
) -> None:
    hook = hooks()
    began = time.monotonic()
    slow = command(tmp_path, "import time; time.sleep(3)")
    assert send([hook.url, slow], TOLD, tmp_path) is None
    assert time.monotonic() - began < 1.0
    log, deadline = tmp_path / LOG, time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first, second = log.read_text().splitlines()
    assert first == f"{NOW} promotion: webhook at 127.0.0.1: delivered"
    assert "command" in second
    assert "secret" not in log.read_text()


def test_nobody_to_tell_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert send([], TOLD, tmp_path) is None
    said = send(["https://example.org"], TOLD, tmp_path)
    assert said is not None
    assert said.startswith("a notice could not be sent")


@pytest.mark.parametrize(
    "text",
    ["", "ftp://x/y", "http://", "https://a b/c", "text+file:///etc", "'open", "http://x:0/",
     "http://h/ü", "http://me:word@h/x"],
)  # fmt: skip
def test_what_is_no_target_is_said_before_the_night(text: str) -> None:
    with pytest.raises(UsageError, match="--notify"):
        parse(text)


def test_what_is_a_target_is_known_by_its_beginning() -> None:
    assert parse("https://h/x") == Webhook("https://h/x", plain=False)
    assert parse("text+https://h/x") == Webhook("https://h/x", plain=True)
    assert parse("mail -s 'a b' me") == Command(("mail", "-s", "a b", "me"))


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no event"):
        Notice("party", "x", "b", "l", NOW)
    assert Notice(END, "x", "b", "l", NOW).facts == {}


def test_the_command_says_whether_it_arrived(
    hooks: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_NOTIFY", f"\n {hooks(404).url}\n")
    assert cli.main(["notify", "--notify", f"text+{hooks().url}", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["targets"]
    assert [one["delivered"] for one in told] == [True, False]
    assert told[1]["why"] == "it answered 404"
    monkeypatch.delenv("FLYWHEEL_NOTIFY")
    assert cli.main(["notify"]) == 2
    assert "must name" in capsys.readouterr().err
    assert cli.main(["run", "--notify", "ftp://x/"]) == 2
    assert "--notify wants an address" in capsys.readouterr().err
