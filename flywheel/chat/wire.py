"""One request to the server and its answer piece by piece; whoever closes it ends the work."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flywheel.errors import FlywheelError, Refused, UsageError

CONNECT_S = 5.0
# Between two pieces: longer than the server's own pings are apart, by much.
SILENCE_S = 120.0
# A server must not be able to move the cursor, set titles, repaint the screen or turn text around.
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), *_TURNS])


def clean(text: str) -> str:
    """What may reach a terminal of a text that comes from elsewhere."""
    return text.translate(_CONTROLS)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, up to and without its /v1, and the key that it may want."""

    url: str
    key: str = ""

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise UsageError(f"{self.url!r} is no address such as http://127.0.0.1:8000.")
        if not (self.key.isascii() and self.key.isprintable()):
            raise UsageError("an API key is printable ASCII text; this one holds something else.")

    def get(self, path: str) -> dict[str, Any]:
        """The JSON of a GET; Refused with the server's own sentence when it has one."""
        connection = self._connect(CONNECT_S)
        try:
            answer = self._send(connection, "GET", path)
            return _object(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def model(self) -> str | None:
        """The first model that the server has; None where it lists none."""
        data = self.get("/v1/models").get("data")
        first = data[0] if isinstance(data, list) and data else None
        return str(first.get("id")) if isinstance(first, dict) else None

    def stream(self, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """The chunks of a chat completion. Closing the iterator closes the connection."""
        connection = self._connect(SILENCE_S)
        try:
            answer = self._send(connection, "POST", "/v1/chat/completions", body)
            for data in _events(answer):
                if data == "[DONE]":
                    return
                chunk = _object(data.encode())
                if error := chunk.get("error"):
                    said = error.get("message") if isinstance(error, dict) else error
                    raise FlywheelError(clean(str(said)))
                yield chunk
            raise FlywheelError("the answer broke off: the server closed the connection.")
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        assert parts.hostname is not None
        connection = kind(parts.hostname, parts.port, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            raise Refused(
                f"no server listens at {self.url} ({error}); flywheel serve starts one."
            ) from error
        connection.sock.settimeout(timeout_s)
        return connection

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json, text/event-stream"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        connection.request(method, urlsplit(self.url).path.rstrip("/") + path, data, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise _refusal(answer)
        return answer

    def _lost(self, error: Exception) -> FlywheelError:
        silent = isinstance(error, TimeoutError)
        why = "it is silent" if silent else clean(str(error).strip() or repr(error))
        return FlywheelError(f"the connection to {self.url} was lost: {why}.")


def _is_address(url: str) -> bool:
    """Whether a connection can be tried at all: what a browser would mend is no address here."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        return parts.scheme in ("http", "https") and bool((host or "").encode("idna")) and port != 0
    except ValueError:  # brackets without an end, a port that is no number, a name too long
        return False


def _refusal(answer: http.client.HTTPResponse) -> Refused:
    body = _object(answer.read())
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else body.get("message")
    if answer.status == 401:
        return Refused("the server wants an API key: --api-key or FLYWHEEL_API_KEY.")
    if not said and body.get("status"):
        said = f"The server is not ready: {body['status']}."
    return Refused(clean(str(said or f"the server answered with status {answer.status}.")))


def _events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The data of server-sent events; comments, which keep a connection alive, are skipped."""
    data: list[str] = []
    for raw in answer:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
