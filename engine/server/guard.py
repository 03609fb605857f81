"""Who may ask: whoever holds the key, where there is one."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import ConfigError
from engine.server import pages
from engine.server.errors import no_key

# What supervisors ask, and pages that say nothing until they have asked with the key themselves.
OPEN = frozenset({"/health", *pages.paths()})
VARIABLE = "FLYWHEEL_API_KEY"


Refuse = Callable[[Request, Exception], Response]


class Guard:
    """Lets requests with the key through; `refuse` answers all others."""

    def __init__(self, app: ASGIApp, key: str, refuse: Refuse) -> None:
        self._app = app
        self._key = key.encode()
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        free = scope["type"] != "http" or scope["path"] in OPEN
        if free or self._holds_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        await self._refuse(Request(scope, receive), no_key())(scope, receive, send)

    def _holds_key(self, headers: Headers) -> bool:
        """Both spellings are compared, in a time that tells nothing about the key."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else ""
        as_bearer = hmac.compare_digest(given.encode(), self._key)
        as_header = hmac.compare_digest(headers.get("x-api-key", "").encode(), self._key)
        return as_bearer or as_header


def checked(key: str) -> str:
    """`key` without the space around it; ConfigError for one that no header could carry."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("The API key must be printable ASCII text, and not empty.")
    return key
