"""What every protocol provides, and the one way in which all of them are answered."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.server.answer import Answer
from engine.server.ask import Ask
from engine.server.errors import Failure, RequestError, failure
from engine.server.fields import parse_json
from engine.server.http import EventStream, identity, listening, read_body
from engine.server.reply import Spoken
from engine.server.service import Service
from engine.server.usage import Usage

log = logging.getLogger("engine.server")
PROOF_HEADER = "x-flywheel-proof"


class Exchange(Protocol):
    """One request in one protocol: what is asked, and how the answer is written.

    A stream is `opening`, then `spoken` for everything that is said, then `closing`; a whole answer
    is `whole` after the same calls of `spoken`.
    """

    ask: Ask
    ping: str  # sent while nothing can be said

    def opening(self, usage: Usage) -> Iterable[str]:
        """Frames before the first word."""

    def spoken(self, spoken: Spoken) -> Iterable[str]:
        """Frames of what was just said."""

    def closing(self, usage: Usage) -> Iterable[str]:
        """Frames after the last word."""

    def failed(self, failure: Failure) -> Iterable[str]:
        """Frames for an error after the stream has begun."""

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The whole answer."""


# (body, the name of the model that is served) -> Exchange
Open = Callable[[dict[str, Any], str], Exchange]


def new_id(prefix: str) -> str:
    """An id that nobody had before."""
    return f"{prefix}{secrets.token_hex(12)}"


def now_s() -> int:
    """Seconds since 1970, as every protocol dates its answers."""
    return int(time.time())


async def exchanged(service: Service, request: Request, make: Open) -> Response:
    """Read, ask and answer one request."""
    service.check_ready()
    service.check_open(request.headers.get(PROOF_HEADER))
    exchange = make(parse_json(await read_body(request, service.limits)), service.deployment.name)
    service.check_model(exchange.ask.model)
    answer = await service.submit(exchange.ask)
    if exchange.ask.stream:
        frames = _frames(service, exchange, answer)
        return EventStream(frames, answer.cancel, identity(request), service.limits.write_s)
    async with listening(request.receive, answer.cancel):
        async for spoken in answer.spoken():
            if spoken is not None:
                list(exchange.spoken(spoken))
    return JSONResponse(exchange.whole(answer.usage), headers=identity(request))


async def _frames(service: Service, exchange: Exchange, answer: Answer) -> AsyncIterator[str]:
    """The events of a streamed answer. An error after the first one can only be an event itself."""
    for frame in exchange.opening(answer.usage):
        yield frame
    try:
        async for spoken in answer.spoken():
            for frame in (exchange.ping,) if spoken is None else exchange.spoken(spoken):
                yield frame
    except Exception as error:
        report(service, error)
        for frame in exchange.failed(failure(error)):
            yield frame
        return
    for frame in exchange.closing(answer.usage):
        yield frame


def report(service: Service, error: BaseException) -> None:
    """Count an error; faults of our own belong in the log, with everything that helps."""
    service.metrics.errors.inc()
    if failure(error).status == 500 and not isinstance(error, RequestError):
        log.error("The engine failed while it answered.", exc_info=error)
