"""Real server processes on free loopback ports, ended by their own process handle."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic
    import openai

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Running:
    """A server process and its address."""

    process: subprocess.Popen[str]
    url: str

    def client(self) -> openai.OpenAI:
        """The official client, which by itself would hide errors behind retries."""
        import openai  # seconds, which whoever only hands tests out need not spend

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def anthropic(self) -> anthropic.Anthropic:
        """The same for Anthropic's."""
        import anthropic

        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a GET."""
        return self.send(urllib.request.Request(self.url + path))

    def post(self, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
        """Status and JSON of a POST of raw bytes."""
        return self.send(urllib.request.Request(self.url + path, data=body))

    def send(self, request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
        """Status and JSON of any request."""
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until_idle(self, within_s: float) -> float:
        """Seconds until nothing runs or waits; fails after `within_s`."""
        started = time.monotonic()
        while (spent_s := time.monotonic() - started) < within_s:
            health = self.get("/health")[1]
            if health.get("running") == health.get("waiting") == 0:
                return spent_s
            time.sleep(0.02)
        raise AssertionError(f"The server was still at work after {within_s} s.")

    def until_running(self, running: int, waiting: int) -> None:
        """Wait for exactly so much work."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            health = self.get("/health")[1]
            if (health.get("running"), health.get("waiting")) == (running, waiting):
                return
            time.sleep(0.02)
        raise AssertionError(f"Never saw {running} running and {waiting} waiting.")


def metric(server: Running, name: str) -> float:
    """One number of /metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(x for x in lines if x.startswith(f"flywheel_{name} ")).split()[1])


@contextlib.contextmanager
def started(command: list[str], *, ready: bool = True) -> Iterator[Running]:
    """A server started with `--port 0`; its first lines say where it listens."""
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    try:
        yield Running(process, _address(process) if ready else "")
    finally:
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Serving"):
            return line.partition(" at ")[2].partition("/v1")[0]
    raise AssertionError(f"The server ended with status {process.wait()} before it was ready.")
