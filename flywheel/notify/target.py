"""Where a notice goes: a webhook, which is posted JSON or plain text, or a command."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

from flywheel.errors import UsageError
from flywheel.notify.notice import Notice

TIMEOUT_S = 10.0
_TEXT = "text+"
# Of the answers that say "not you, not now", these may be another one later.
_PASSING = (408, 425, 429)


class NotDelivered(Exception):  # noqa: N818 - reads as the fact that it is
    """A notice did not arrive; `lasting` says that trying again is of no use."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that is posted each notice, as JSON or, with `plain`, as a line of text."""

    url: str
    plain: bool

    @property
    def name(self) -> str:
        """How it is called in a log: an address may hold a secret in its path."""
        return f"webhook at {urlsplit(self.url).hostname}"

    def deliver(self, notice: Notice, timeout_s: float = TIMEOUT_S) -> None:
        """Post it once; NotDelivered unless the answer is a success."""
        body = notice.line if self.plain else json.dumps(notice.to_json())
        kind = "text/plain; charset=utf-8" if self.plain else "application/json"
        request = urllib.request.Request(
            self.url, body.encode(), {"Content-Type": kind, "User-Agent": "flywheel"}
        )
        # The limit of a socket begins anew with every byte: who sends one a second never meets it.
        failed: list[NotDelivered] = []
        posting = threading.Thread(
            target=_post, args=(request, timeout_s, failed), daemon=True, name="a webhook"
        )
        posting.start()
        posting.join(2 * timeout_s)
        if posting.is_alive():
            raise NotDelivered(f"it took longer than {2 * timeout_s:g} s")
        if failed:
            raise failed[0]


def _post(
    request: urllib.request.Request, timeout_s: float, failed: list[NotDelivered]
) -> None:
    """Post it; what came in between is left in `failed`."""
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        lasting = error.code < 500 and error.code not in _PASSING
        failed.append(NotDelivered(f"it answered {error.code}", lasting=lasting))
    except OSError as error:
        failed.append(NotDelivered(f"it cannot be reached: {getattr(error, 'reason', error)}"))
    except (http.client.HTTPException, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        failed.append(NotDelivered(f"it does not answer as a web server: {said}"))


@dataclass(frozen=True, slots=True)
class Command:
    """A program that gets each notice as JSON on stdin, its event and line in the environment."""

    argv: tuple[str, ...]

    @property
    def name(self) -> str:
        """How it is called in a log."""
        return f"command {os.path.basename(self.argv[0])}"

    def deliver(self, notice: Notice, timeout_s: float = TIMEOUT_S) -> None:
        """Run it once; NotDelivered unless it leaves with status 0 in time."""
        told = {"FLYWHEEL_EVENT": notice.event, "FLYWHEEL_TEXT": notice.line}
        try:
            child = subprocess.Popen(
                self.argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={**os.environ, **told}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotDelivered(f"it cannot be started: {error.strerror}") from error
        try:
            child.communicate((json.dumps(notice.to_json()) + "\n").encode(), timeout_s)
        except subprocess.TimeoutExpired:
            # Its group has its pid until it is reaped, so nothing else can be meant.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise NotDelivered(f"it took longer than {timeout_s:g} s") from None
        if child.returncode != 0:
            raise NotDelivered(f"it left with status {child.returncode}")


Target = Webhook | Command


def parse(text: str) -> Target:
    """`https://...`, `text+https://...`, or a command line; UsageError for anything else."""
    plain = text.startswith(_TEXT)
    url = text.removeprefix(_TEXT)
    if plain or "://" in text.split(" ", 1)[0]:
        return Webhook(_checked(url), plain)
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify {text!r} is no command line: {error}.") from None
    if not argv:
        raise UsageError("--notify wants an address or a command.")
    return Command(argv)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError("--notify wants an address that begins with https:// or http://.")
    if not url.isascii():
        raise UsageError("--notify wants an address of plain letters; write the others as %XX.")
    if "@" in parts.netloc:
        raise UsageError("--notify takes no user name in an address; let a command post it.")
    return url
