"""The pages for people: files as they are, under a policy that lets nothing else in or out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# Scripts and styles are files of ours, requests go to this server, and text never becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGES = {"/": "chat.html", "/about": "about.html"}


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.tag}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def routes() -> list[Route]:
    """The pages, and at /web/ the files that they consist of."""
    return [Route(path, _handler(one)) for path, one in _places().items()]


def paths() -> frozenset[str]:
    """Where they are."""
    return frozenset(_places())


@cache
def _places() -> Mapping[str, _Page]:
    files = _files()
    places = {path: files[name] for path, name in PAGES.items()}
    return places | {f"/web/{n}": one for n, one in files.items() if not n.endswith(".html")}


def story(path: Path | None) -> Mapping[str, Any]:
    """What the optimisation loop left to be told about what is served; empty without a loop.

    It is read for every request: the file is small, and the loop writes it anew.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _handler(page: _Page) -> Any:
    async def handler(request: Request) -> Response:
        return page.answer(request)

    return handler


def _files() -> dict[str, _Page]:
    found = {}
    for entry in resources.files("engine.server").joinpath("web").iterdir():
        if (media_type := TYPES.get(entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[entry.name] = _Page(body, media_type, tag)
    return found
