"""A small HTTP client that can do what real ones cannot be made to: read slowly, leave, lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers in lower case, and the body as it comes."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]

    async def json(self) -> dict[str, Any]:
        """The whole body."""
        body = b"".join([piece async for piece in self.pieces])
        found: dict[str, Any] = json.loads(body)
        return found

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The JSON of server-sent events."""
        held = b""
        async for piece in self.pieces:
            *whole, held = (held + piece).split(b"\n\n")
            for event in whole:
                _, _, data = event.rpartition(b"data: ")
                if data.startswith(b"{"):
                    yield json.loads(data)


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to a server on a loopback port, with a connection for every request."""

    port: int

    @contextlib.asynccontextmanager
    async def ask(self, body: Mapping[str, Any], path: str = PATH) -> AsyncIterator[Reply]:
        """Post JSON; leaving the block hangs up."""
        raw = json.dumps(body).encode()
        async with self.connected() as (reader, writer):
            writer.write(head("POST", path, len(raw)) + raw)
            await writer.drain()
            yield await read_reply(reader)

    async def get(self, path: str) -> bytes:
        """The body of a GET."""
        async with self.connected() as (reader, writer):
            writer.write(head("GET", path, 0))
            await writer.drain()
            reply = await read_reply(reader)
            return b"".join([piece async for piece in reply.pieces])

    async def health(self) -> dict[str, Any]:
        """What /health says."""
        found: dict[str, Any] = json.loads(await self.get("/health"))
        return found

    async def idle(self, within_s: float) -> float:
        """Seconds until nothing runs or waits; TimeoutError after `within_s`."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        async with asyncio.timeout(within_s):
            while True:
                health = await self.health()
                if health.get("running") == health.get("waiting") == 0:
                    return loop.time() - started_s
                await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection that is gone after the block, whatever is still on its way."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def head(method: str, path: str, length: int) -> bytes:
    """The head of a request that says so many bytes will follow."""
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The head of a reply; its body is read when it is asked for."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Reply(int(first.split()[1]), headers, _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers.get("content-length", "0")))
        return
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
