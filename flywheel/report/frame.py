"""What every HTML form of the report stands in: one file, nothing fetched, a policy. Pure."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources


def frame(title: str, body: str) -> str:
    """A whole page of that title (plain text) around a body (HTML already)."""
    style, script = (_part(name) for name in ("page.css", "page.js"))
    # The policy lets nothing be fetched, and no script run but the page's own.
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{body}</main><script>{script}</script></body></html>\n"
    )


def _part(name: str) -> str:
    return resources.files("flywheel.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
