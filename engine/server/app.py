"""The routes. Each handler reads, asks the service, and writes; decisions are made elsewhere."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.errors import EngineError
from engine.server import wire
from engine.server.errors import failure, no_route, wrong_method
from engine.server.http import ClientDisconnect, EventStream, listening, read_body
from engine.server.reply import ReplyParts
from engine.server.request import ChatRequest, parse_chat, parse_json
from engine.server.service import Answer, Service

log = logging.getLogger("engine.server")


def create_app(service: Service) -> Starlette:
    """The application that serves `service`."""

    async def health(_: Request) -> Response:
        status, body = service.health()
        return JSONResponse(body, status)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        entry = _model(service)
        service.check_model(request.path_params["name"])
        return JSONResponse(entry)

    async def chat_completions(request: Request) -> Response:
        return await _chat(service, request)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            EngineError: _error,
            ClientDisconnect: _nobody,
            Exception: _error,
        },
    )


async def _chat(service: Service, request: Request) -> Response:
    service.check_ready()
    asked = parse_chat(parse_json(await read_body(request)))
    service.check_model(asked.model)
    answer = await service.submit(asked)
    head = wire.Head.new(service.deployment.name)
    parts = ReplyParts(thinking=asked.thinking, tools=bool(asked.tools))
    headers = _identity(request)
    if asked.stream:
        return EventStream(_frames(head, asked, answer, parts), answer.cancel, headers)
    async with listening(request.receive, answer.cancel):
        found = [p async for text in answer.texts() for p in parts.feed(text or "")]
    rest, calls = parts.finish()
    body = wire.completion(head, [*found, *rest], calls, answer.finish, answer.usage)
    return JSONResponse(body, headers=headers)


async def _frames(
    head: wire.Head, asked: ChatRequest, answer: Answer, parts: ReplyParts
) -> AsyncIterator[str]:
    """The events of a streamed answer. An error after the first one can only be an event itself."""
    yield wire.frame(wire.opening(head))
    try:
        async for text in answer.texts():
            if text is None:
                yield wire.PING
                continue
            for part in parts.feed(text):
                yield wire.frame(wire.text_chunk(head, part))
    except Exception as error:
        _report(error)
        yield wire.frame(failure(error).body)
        return
    for value in _ending(head, asked, answer, parts):
        yield wire.frame(value)
    yield wire.DONE


def _ending(
    head: wire.Head, asked: ChatRequest, answer: Answer, parts: ReplyParts
) -> Iterable[dict[str, Any]]:
    rest, calls = parts.finish()
    for part in rest:
        yield wire.text_chunk(head, part)
    yield from wire.call_chunks(head, calls)
    yield wire.chunk(head, {}, wire.finish_reason(answer.finish, calls))
    if asked.include_usage:
        yield wire.usage_chunk(head, answer.usage)


def _model(service: Service) -> dict[str, Any]:
    model = service.loaded
    return wire.model(service.deployment.name, model.created, model.engine.config.context)


def _identity(request: Request) -> dict[str, str]:
    """The client's own id for the request, given back."""
    own = request.headers.get("x-request-id")
    return {"X-Request-Id": own} if own else {}


def _report(error: BaseException) -> None:
    """Faults of our own belong in the log, with everything that helps to find them."""
    if failure(error).status == 500:
        log.error("The engine failed while it answered.", exc_info=error)


async def _error(request: Request, error: Exception) -> Response:
    if isinstance(error, EngineError):  # all others are raised again, and logged, by Starlette
        _report(error)
    answer = failure(error)
    headers = {**answer.headers, **_identity(request)}
    return JSONResponse(answer.body, answer.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    make = wrong_method if status == 405 else no_route
    return await _error(request, make(request.method, request.url.path))


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)
