"""The routes. Each handler reads, asks the service, and writes; decisions are made elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.errors import EngineError
from engine.server import metrics, models, pages, tokens
from engine.server.chat import Chat
from engine.server.completions import Completions
from engine.server.errors import failure, no_route, wrong_method
from engine.server.exchange import Open, exchanged, report
from engine.server.fields import parse_json
from engine.server.guard import Guard
from engine.server.http import ClientDisconnect, identity, read_body
from engine.server.messages import Messages, count_tokens
from engine.server.openapi import document
from engine.server.responses import Responses
from engine.server.service import Service

Handler = Callable[[Request], Awaitable[Response]]
Look = Callable[[Service, dict[str, Any]], Awaitable[dict[str, Any]]]
EXCHANGES: dict[str, Open] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completions,
    "/v1/messages": Messages,
    "/v1/responses": Responses,
}
LOOKS: dict[str, Look] = {
    "/v1/messages/count_tokens": count_tokens,
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
    "/apply-template": tokens.render,
    "/v1/chat/completions/render": tokens.render,
}


def create_app(service: Service, *, key: str | None = None, origins: Sequence[str] = ()) -> ASGIApp:
    """The application that serves `service`, to all or to those who hold the `key`.

    Browsers let pages of the `origins` read its answers.
    """
    app: ASGIApp = _routed(service)
    if key is not None:
        app = Guard(app, key, lambda request, error: _error(service, request, error))
    if origins:
        allowed = ("GET", "POST")
        app = CORSMiddleware(app, origins, allow_methods=allowed, allow_headers=["*"])
    return app


def _routed(service: Service) -> Starlette:

    async def health(_: Request) -> Response:
        status, body = service.health()
        return JSONResponse(body, status)

    async def about(_: Request) -> Response:
        return JSONResponse(pages.story(service.deployment.about))

    async def measured(_: Request) -> Response:
        return Response(service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def described(_: Request) -> Response:
        return JSONResponse(document(service.deployment.name))

    async def model_list(request: Request) -> Response:
        return JSONResponse(models.listed(service, request.headers))

    async def model(request: Request) -> Response:
        entry = models.entry(service, request.headers)
        service.check_model(request.path_params["name"])
        return JSONResponse(entry)

    async def error(request: Request, error: Exception) -> Response:
        return _error(service, request, error)

    def exchange(make: Open) -> Handler:
        async def handler(request: Request) -> Response:
            return await exchanged(service, request, make)

        return handler

    def look(at: Look) -> Handler:
        async def handler(request: Request) -> Response:
            service.check_ready()
            body = parse_json(await read_body(request, service.limits))
            return JSONResponse(await at(service, body), headers=identity(request))

        return handler

    return Starlette(
        routes=[
            *pages.routes(),
            Route("/about.json", about),
            Route("/health", health),
            Route("/metrics", measured),
            Route("/openapi.json", described),
            Route("/v1/models", model_list),
            Route("/v1/models/{name:path}", model),
            *(Route(path, exchange(make), methods=["POST"]) for path, make in EXCHANGES.items()),
            *(Route(path, look(at), methods=["POST"]) for path, at in LOOKS.items()),
        ],
        exception_handlers={
            HTTPException: error,
            EngineError: error,
            ClientDisconnect: _nobody,
            Exception: error,
        },
    )


def _error(service: Service, request: Request, error: Exception) -> Response:
    """The answer to a request that failed, in the shape of the protocol that it spoke."""
    more: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        more = error.headers or {}  # the methods that are allowed
        make = wrong_method if error.status_code == 405 else no_route
        error = make(request.method, request.url.path)
    if isinstance(error, EngineError):  # all others are raised again, and logged, by Starlette
        report(service, error)
    found = failure(error)
    headers = {**more, **found.headers, **identity(request)}
    body = found.openai
    if request.url.path.startswith("/v1/messages"):
        body = {**found.anthropic, "request_id": headers["Request-Id"]}
    return JSONResponse(body, found.status, headers=headers)


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)
