"""The shipped proposers: a model behind an endpoint, and a coding agent's command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flywheel.propose import agent, openai, prompt
from flywheel.propose.answer import SCHEMA, Lever, Patch, read

ROOT = Path(__file__).parents[2]
LEVER = {"kind": "config", "name": "a", "field": "threads", "value": 4, "claim": "c",
         "falsify": "f", "predicted_gain": 0.02}  # fmt: skip
BRIEF: dict[str, Any] = {
    "task": "Make it faster.", "rules": ["One thing."], "schema": SCHEMA,
    "hardware": {"box": "a box"}, "incumbent": {"config": {"threads": 1}},
    "fields": {"threads": {"default": 1}, "moe": {"choices": ["loop", "fused"]}},
    "levers": {"open": [], "closed": [{"name": f"old{n}", "change": {"x": n}, "ending": "rejected",
                                       "why": "less than 1 %"} for n in range(50)]},
}  # fmt: skip


class Endpoint:
    """A server whose answer to each request is what the test says."""

    def __init__(self, reply: Callable[[int, dict[str, Any]], tuple[int, Any, dict[str, str]]]):
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _say(self, status: int, body: Any, headers: dict[str, str]) -> None:
                raw = json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                self._say(200, {"data": [{"id": "the-model"}]}, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.headers.append(dict(self.headers))
                self._say(*reply(len(outer.asked), body))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoints() -> Iterator[list[Endpoint]]:
    """Servers that are closed afterwards."""
    made: list[Endpoint] = []
    yield made
    for one in made:
        one.close()


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": 9}}


def run(module: str, *words: str, brief: Any = BRIEF, cwd: Path = ROOT,
        **env: str) -> subprocess.CompletedProcess[str]:  # fmt: skip
    return subprocess.run(
        [sys.executable, "-P", "-m", f"flywheel.propose.{module}", *words],
        input=json.dumps(brief), capture_output=True, text=True, cwd=cwd, check=False, timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd), **env},
    )  # fmt: skip


# ---------------------------------------------------------------- a model


def test_a_model_is_asked_with_a_schema_and_a_key_from_the_environment(
    endpoints: list[Endpoint],
) -> None:
    text = f"Here you are:\n```json\n{json.dumps({'levers': [LEVER]})}\n```"
    endpoints.append(one := Endpoint(lambda *_: (200, said(text), {})))
    done = run("openai", "--url", one.url, "--key-env", "KEY", KEY="abc")
    found = read(done.stdout)
    assert found.errors == (), done.stderr
    assert isinstance(found.items[0].offer, Lever)
    assert found.usage == {"total_tokens": 9}
    (body,) = one.asked
    assert body["model"] == "the-model"
    assert one.headers[0]["Authorization"] == "Bearer abc"
    form = body["response_format"]["json_schema"]["schema"]["properties"]["levers"]["items"]
    assert form["anyOf"][0]["properties"]["field"] == {"enum": ["moe", "threads"]}
    assert "One thing." in body["messages"][0]["content"]
    assert "old49" in body["messages"][1]["content"]


def test_too_many_requests_are_a_limit_with_its_pause(endpoints: list[Endpoint]) -> None:
    endpoints.append(one := Endpoint(lambda *_: (429, {"error": "slow"}, {"Retry-After": "90"})))
    found = read(run("openai", "--url", one.url, "--model", "m").stdout)
    assert found.limited is not None
    assert found.limited.retry_after_s == 90.0


def test_an_endpoint_without_schemas_is_asked_without(endpoints: list[Endpoint]) -> None:
    def reply(number: int, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if "response_format" in body:
            return 400, {"error": "response_format is unknown"}, {}
        return 200, said(json.dumps({"levers": [LEVER]})), {}

    endpoints.append(one := Endpoint(reply))
    done = run("openai", "--url", one.url)
    assert read(done.stdout).errors == (), done.stderr
    assert len(one.asked) == 2


def test_a_model_with_little_room_is_told_less(endpoints: list[Endpoint]) -> None:
    def reply(number: int, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if sum(len(m["content"]) for m in body["messages"]) > 2500:
            return 400, {"error": "maximum context length is 700 tokens"}, {}
        return 200, said(json.dumps({"levers": []})), {}

    endpoints.append(one := Endpoint(reply))
    done = run("openai", "--url", one.url)
    assert json.loads(done.stdout)["levers"] == [], done.stderr
    assert "old49" in one.asked[-1]["messages"][1]["content"]


def test_what_was_wrong_is_told_back_to_the_model() -> None:
    back = {**BRIEF, "told_back": {"answer": "{}", "errors": ["no list `levers`"]}}
    roles = [(m["role"], m["content"]) for m in openai.messages(back, 9000)]
    assert [role for role, _ in roles] == ["system", "user", "assistant", "user"]
    assert "no list `levers`" in roles[-1][1]


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("--url", "ftp://x"), 2, "begins with https:// or http://"),
        (("--url", "http://127.0.0.1:9/v1", "--model", "m"), 1, "it cannot be asked"),
        (("--url", "http://127.0.0.1:9/v1"), 1, "it lists no model"),
        (("--url", "http://127.0.0.1:9/v1", "--key-env", "NO_KEY"), 1, "NO_KEY is not set"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    words: tuple[str, ...], status: int, sentence: str
) -> None:
    done = run("openai", *words)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}"]
)
def test_what_is_no_web_server_is_one_sentence(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        done = run("openai", "--url", url, "--model", "m")
    assert done.returncode == 1
    assert "it cannot be asked" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "pause_s"), [("90", 90.0), ("1.5", 1.5), ("\xb2", None),
                                               ("9" * 400, None), ("Wed, 21 Oct", None)])
def test_a_pause_is_a_number_of_seconds_or_none(text: str, pause_s: float | None) -> None:
    assert openai._seconds(text) == pause_s


def test_an_answer_without_text_is_one_sentence(endpoints: list[Endpoint]) -> None:
    endpoints.append(one := Endpoint(lambda *_: (200, {"choices": []}, {})))
    done = run("openai", "--url", one.url)
    assert (done.returncode, "holds no message" in done.stderr) == (1, True)


def test_a_prompt_keeps_to_its_length_and_to_whole_entries() -> None:
    for most in (200, 1000, 5000):
        text = prompt.user(BRIEF, most)
        assert len(text) <= most
        lines = [x for x in text.splitlines() if x.startswith("{")]
        assert all(json.loads(line) is not None for line in lines)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('first {"a": 1} then {"levers": []} end', '{"levers": []}'),
        ('{"levers": [1]} and better {"levers": [2]}', '{"levers": [2]}'),
        ('{"x": {"levers": []}}', None),
        ("nothing { here", None),
    ],
)
def test_the_json_in_a_text_is_found(text: str, found: str | None) -> None:
    assert prompt.found_json(text) == found


# ---------------------------------------------------------------- an agent


def agent_script(folder: Path, body: str) -> tuple[str, ...]:
    script = folder / "agent.py"
    script.write_text("import json, pathlib, sys\ntext = sys.stdin.read()\n" + body)
    return ("--", sys.executable, str(script))


def test_an_agent_answers_in_a_file_or_in_what_it_prints(tmp_path: Path) -> None:
    lever = json.dumps({"levers": [LEVER]})
    for body in (f"pathlib.Path('answer.json').write_text({lever!r}); print('done')",
                 f"print('I propose:'); print({lever!r})"):  # fmt: skip
        done = run("agent", *agent_script(tmp_path, body), cwd=tmp_path)
        assert read(done.stdout).errors == (), done.stdout + done.stderr
        (tmp_path / "answer.json").unlink(missing_ok=True)


def test_an_agent_gets_the_brief_as_text_and_as_a_file(tmp_path: Path) -> None:
    body = (
        "brief = json.load(open('brief.json'))\n"
        "assert 'Make it faster.' in text and 'old49' in text and brief['task'] in text\n"
        "print(json.dumps({'levers': []}))\n"
    )
    done = run("agent", *agent_script(tmp_path, body), cwd=tmp_path)
    assert read(done.stdout).errors == (), done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository with one file of an engine."""
    root = tmp_path / "repository"
    (root / "engine").mkdir(parents=True)
    (root / "engine/rows.py").write_text("WIDTH = 1\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b",
                                                 "commit", "-qm", "first")):  # fmt: skip
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    return root


def test_what_an_agent_changes_in_its_copy_becomes_a_patch(
    tmp_path: Path, repository: Path
) -> None:
    body = (
        "pathlib.Path('code/engine/rows.py').write_text('WIDTH = 2\\n')\n"
        "words = {'name': 'wider', 'claim': 'c', 'falsify': 'f', 'predicted_gain': 0.02}\n"
        "pathlib.Path('patch.json').write_text(json.dumps(words))\n"
        f"pathlib.Path('answer.json').write_text({json.dumps({'levers': [LEVER]})!r})\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    words = ("--code", str(repository), *agent_script(tmp_path, body))
    done = run("agent", *words, cwd=work)
    found = read(done.stdout)
    assert found.errors == (), done.stdout + done.stderr
    config, patch = (item.offer for item in found.items)
    assert isinstance(config, Lever)
    assert isinstance(patch, Patch)
    assert "+WIDTH = 2" in patch.diff
    assert (repository / "engine/rows.py").read_text() == "WIDTH = 1\n"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("sys.stderr.write('Usage limit reached. Resets at 5pm\\n'); sys.exit(1)", "limited"),
        ("print('Error: rate limit, try again'); sys.exit(1)", "limited"),
        ("sys.stderr.write('no such option\\n'); sys.exit(2)", "failed"),
        ("print('The rate limit of the bus is known: ' + json.dumps({'levers': []}))", "answered"),
    ],
)
def test_an_agent_at_its_limit_is_told_from_one_that_fails(
    tmp_path: Path, body: str, outcome: str
) -> None:
    done = run("agent", *agent_script(tmp_path, body), cwd=tmp_path)
    found = read(done.stdout)
    told = "limited" if found.limited else "answered" if done.returncode == 0 else "failed"
    assert told == outcome


def test_an_agent_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = run("agent", "--", "/no/such/agent", cwd=tmp_path)
    assert (done.returncode, "No such file" in done.stderr) == (1, True)


def test_a_wrong_answer_is_told_back_to_an_agent() -> None:
    back = {**BRIEF, "told_back": {"answer": "{}", "errors": ["no list `levers`"]}}
    assert "no list `levers`" in agent.instructions(back, code=False)
    assert "code/" in agent.instructions(BRIEF, code=True)
