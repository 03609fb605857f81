"""The terminal chat without a server: commands, turns, and what a reply may do to a terminal."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flywheel.chat import slash
from flywheel.chat.screen import Screen
from flywheel.chat.talk import Answer, Talk, pace
from flywheel.chat.wire import Endpoint
from flywheel.cli import app as cli
from flywheel.errors import UsageError


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": None}]}


def test_an_answer_is_put_together_from_its_chunks() -> None:
    answer = Answer()
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}
    for one in (
        chunk(role="assistant", content=""), chunk(reasoning_content="hm"), chunk(content="a"),
        chunk(tool_calls=[call]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"x": 1}'}}]),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 4}},
    ):  # fmt: skip
        answer.hear(one)
    assert (answer.reasoning, answer.content, answer.finish) == ("hm", "a", "tool_calls")
    assert answer.calls[0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert answer.message["tool_calls"] == answer.calls
    assert answer.usage == {"completion_tokens": 4}


def test_a_question_without_an_answer_is_taken_back() -> None:
    talk = Talk()
    talk.say("one")
    talk.take(Answer())
    assert talk.messages == []
    talk.say("two")
    talk.take(Answer(content="half"))
    assert [m["role"] for m in talk.messages] == ["user", "assistant"]


def test_commands_change_what_is_asked() -> None:
    talk = Talk()
    talk.say("hi")
    slash.obey(talk, "/system Be brief.")
    slash.obey(talk, "/effort max")
    body = talk.ask("m")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["thinking"], body["reasoning_effort"]) == ({"type": "enabled"}, "max")
    slash.obey(talk, "/think off")
    assert "reasoning_effort" not in talk.ask("m")
    slash.obey(talk, "/system")
    slash.obey(talk, "/new")
    assert talk.ask("m")["messages"] == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("/nope", "/help lists"), ("/think maybe", "on or off"), ("/effort much", "one of low"),
     ("/save", "name of a file"), ("/load /nowhere/x", "cannot be read"),
     ("/save /nowhere/x", "cannot be written")],
)  # fmt: skip
def test_a_wrong_command_is_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        slash.obey(Talk(), line)


def test_help_names_every_command_and_quit_leaves() -> None:
    told = slash.obey(Talk(), "/help")
    assert all(f"/{name}" in told for name in slash.COMMANDS)
    with pytest.raises(slash.Quit):
        slash.obey(Talk(), "/quit")


def test_a_conversation_is_saved_and_loaded(tmp_path: Path) -> None:
    talk = Talk(system="s", thinking=True, effort="low")
    talk.say("Grüße 🙂")
    talk.take(Answer(content="a", reasoning="r"))
    slash.obey(talk, f"/save {tmp_path / 'talk.json'}")
    assert (tmp_path / "talk.json").stat().st_mode & 0o777 == 0o600
    other = Talk()
    slash.obey(other, f"/load {tmp_path / 'talk.json'}")
    assert other.messages == talk.messages
    assert (other.system, other.thinking, other.effort) == ("s", True, "low")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"messages": 3}', '{"messages": [1]}'])
def test_a_file_without_a_conversation_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    talk = Talk()
    talk.say("kept")
    with pytest.raises(UsageError, match="holds no conversation"):
        slash.obey(talk, f"/load {tmp_path / 'x'}")
    assert talk.messages


def test_pace_says_only_what_the_server_told() -> None:
    assert pace(Answer(usage={"completion_tokens": 1})) == "1 token"
    timings = {"predicted_n": 9, "predicted_per_second": 40.0, "rounds": 4, "draft_n": 20,
               "draft_n_accepted": 4}  # fmt: skip
    told = pace(Answer(timings=timings))
    assert told == "40.0 tok/s · 9 tokens · 2.00 a round · 4 of 20 drafts accepted (20 %)"


class Stream(BaseHTTPRequestHandler):
    """Answers every request with what its class holds."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Any:
    server = HTTPServer(("127.0.0.1", 0), Stream)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()


def talked(endpoint: Endpoint, text: str, status: int = 200) -> tuple[str, str]:
    """What a chat in a terminal shows, and says aside, after one line."""
    Stream.status, Stream.body = status, text.encode()
    page, aside = io.StringIO(), io.StringIO()
    screen = Screen(
        endpoint, "m", Talk(), page=Console(file=page, width=200),
        aside=Console(file=aside, width=200), bare=True,
    )  # fmt: skip
    screen._heed("hi")
    return page.getvalue(), aside.getvalue()


def sse(*chunks: Any) -> str:
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


def test_a_reply_cannot_steer_the_terminal(endpoint: Endpoint) -> None:
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31mred\rback\x08\x00 [bold]kept[/bold]\n"
    shown, _ = talked(endpoint, sse(chunk(content=hostile)))
    assert shown == "[2J]0;title31mredback [bold]kept[/bold]\n\n"


def test_pings_and_cut_lines_do_not_disturb(endpoint: Endpoint) -> None:
    text = ": still working\n\n" + sse(chunk(content="a"), chunk(content="b"))
    assert talked(endpoint, text)[0] == "ab\n"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (503, '{"error": {"message": "The model is still being loaded."}}', "still being loaded"),
        (503, '{"status": "away", "message": "Back at 07:00."}', "Back at 07:00"),
        (401, "", "wants an API key"),
        (500, "<html>", "status 500"),
        (200, sse({"error": {"message": "The logits are not finite."}}), "not finite"),
        (200, 'data: {"choices": []}\n\n', "broke off"),
    ],
)
def test_what_goes_wrong_is_a_sentence_aside(
    endpoint: Endpoint, status: int, body: str, sentence: str
) -> None:
    shown, aside = talked(endpoint, body, status)
    assert sentence in aside
    assert "Traceback" not in aside
    assert sentence not in shown


@pytest.mark.parametrize(
    "one",
    [
        {"choices": [5]},
        {"choices": {"a": 1}},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 10**9}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": -1}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
    ],
)
def test_a_server_of_another_kind_is_a_sentence(endpoint: Endpoint, one: Any) -> None:
    shown, aside = talked(endpoint, sse(one))
    assert "is no chat completion" in aside
    assert shown.strip() == ""


def test_numbers_that_are_none_are_not_told(endpoint: Endpoint) -> None:
    odd = {"usage": 5, "timings": {"predicted_per_second": "x", "rounds": 2, "draft_n": -3}}
    assert talked(endpoint, sse({**chunk(content="a"), **odd})) == ("a\n", "")
    answer = Answer(usage={"completion_tokens": "9", "prompt_tokens": 1e400}, timings={"rounds": 2})
    assert pace(answer) == "0 tokens"


def test_an_error_cannot_steer_the_terminal_either(endpoint: Endpoint) -> None:
    hostile = {"error": {"message": "\x1b[2Jgone\u202e"}}
    assert talked(endpoint, sse(hostile))[1] == "[2Jgone\n"
    assert talked(endpoint, json.dumps(hostile), 500)[1] == "[2Jgone\n"


def test_brackets_without_end_are_no_answer(endpoint: Endpoint) -> None:
    assert "broke off" in talked(endpoint, "data: " + "[" * 100_000 + "\n\n")[1]
    assert "status 500" in talked(endpoint, "[" * 100_000, 500)[1]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1",
     "http://a b/", f"http://{'a' * 80}.x", "http://127.0.0.1/\u00fc", "http://x/\n", "http://"],
)  # fmt: skip
def test_what_is_no_address_is_a_mistake(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Endpoint(url)


def test_a_key_that_no_header_can_hold_is_a_mistake() -> None:
    for key in ("\u043a\u043b\u044e\u0447", "a\nb"):
        with pytest.raises(UsageError, match="printable ASCII"):
            Endpoint("http://127.0.0.1:9", key)


def test_no_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", "--url", "http://127.0.0.1:9", "hi"]) == 3
    said = capsys.readouterr().err
    assert "no server listens at http://127.0.0.1:9" in said
    assert said.count("\n") == 1
    assert cli.main(["chat", "--url", "localhost", "hi"]) == 2
