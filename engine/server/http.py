"""What Starlette leaves to its users: bounded bodies, listeners that leave, event streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.errors import body_too_large, too_slow
from engine.server.limits import Limits

# A client that still sends cannot read why it was refused, so a while longer is listened to.
_DRAIN_LIMIT_BYTES = 64 << 20
_ID_LIMIT = 128


def frame(value: Mapping[str, Any], event: str | None = None) -> str:
    """One server-sent event, named or not. JSON has no raw newline, so its data is one line."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n" if event is None else f"event: {event}\ndata: {data}\n\n"


def identity(request: Request) -> dict[str, str]:
    """Headers that name the request: by the client's own id if it has one, always the same."""
    state = request.scope.setdefault("state", {})
    if "id" not in state:
        own = request.headers.get("x-request-id", "")[:_ID_LIMIT]
        state["id"] = own or f"req_{secrets.token_hex(12)}"
    return {"X-Request-Id": state["id"], "Request-Id": state["id"]}


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body; RequestError when it is over the limit (413) or too slow (408)."""
    try:
        async with asyncio.timeout(limits.body_s):
            return await _read_body(request, limits.body_bytes)
    except TimeoutError:
        raise too_slow("The request body", limits.body_s, 408) from None


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    kept, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit_bytes:
            kept += piece
        elif size > _DRAIN_LIMIT_BYTES:
            break
    if size > limit_bytes:
        raise body_too_large(limit_bytes)
    return bytes(kept)


@contextlib.asynccontextmanager
async def listening(receive: Receive, gone: Callable[[], None]) -> AsyncIterator[None]:
    """Call `gone` when the client leaves, and in any case at the end of the block."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        gone()


class EventStream(Response):
    """Server-sent events; whatever way it ends, `gone` is called.

    A client that does not read for `write_s` has left without saying so.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[str],
        gone: Callable[[], None],
        headers: Mapping[str, str],
        write_s: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self._gone = gone
        self._write_s = write_s
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frame after frame until the last, or until nobody listens."""
        async with listening(receive, self._gone):
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            async for frame in self._frames:
                body = {"type": "http.response.body", "body": frame.encode(), "more_body": True}
                try:
                    async with asyncio.timeout(self._write_s):
                        await send(body)
                except TimeoutError:
                    raise ConnectionAbortedError("The client does not read.") from None
            await send({"type": "http.response.body", "body": b"", "more_body": False})


__all__ = [
    "ClientDisconnect",
    "EventStream",
    "frame",
    "identity",
    "listening",
    "read_body",
]
