"""How every command answers: one JSON document or a page on stdout, one sentence on stderr.

Exit codes: 0 done, 1 failed, 2 asked for wrongly, 3 refused now (busy, halted, STOP).
"""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from flywheel.display.plain import plain
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from flywheel.ledger.store import Ledger

DEFAULT_LEDGER = "ledger.db"
FAILED, WRONG, REFUSED = 1, 2, 3
NARROWEST = 20

LedgerOption = Annotated[
    Path,
    typer.Option(
        "--ledger",
        envvar="FLYWHEEL_LEDGER",
        show_default=True,
        help="The ledger's file; runs/ and best.json lie next to it.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")
]


def ledger_path(path: Path) -> Path:
    """The ledger's own absolute path, whatever links lead to it; it need not exist yet.

    One file has one name here, because its locks, runs and STOP file lie beside it.
    UsageError where no file can be.
    """
    try:
        found = path.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links; the home of nobody
        raise UsageError(f"{path} leads nowhere ({error}); let --ledger name a file.") from error
    require_text(str(found))
    if found.exists() and not found.is_file():
        kind = "a folder" if found.is_dir() else "no regular file"
        raise UsageError(f"{found} is {kind}; let --ledger name a file.")
    return found


def named_path(path: Path, option: str) -> Path:
    """The absolute path that an option names, whatever links lead to it; UsageError for none."""
    try:
        found = path.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links; the home of nobody
        raise UsageError(f"{option}: {path} leads nowhere ({error}).") from error
    require_text(str(found))
    return found


def require_text(word: str) -> None:
    """UsageError for bytes that are no UTF-8: neither JSON nor the ledger has a place for them."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{word!a} is not UTF-8; give it another name.") from None


def open_ledger(path: Path, *, writing: bool = False) -> Ledger:
    """The ledger at a path, to be read unless `writing`; UsageError when nothing is there."""
    if not path.exists():
        raise UsageError(f"there is no ledger at {path}; flywheel run makes one.")
    # Imported here: the ledger brings SQLAlchemy, which `flywheel stop` can do without.
    from flywheel.ledger.store import Ledger

    if writing:
        from flywheel.ledger.opening import require_rules

        opened = Ledger.open(path, create=False)
        try:
            require_rules(opened)
        except BaseException:
            opened.close()
            raise
        return opened
    # A copy in memory: however long a command looks, the loop never waits for it.
    return Ledger.read(path, private=True)


def who() -> str:
    """The user at this terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def one_line(text: str) -> str:
    """A reason as it is recorded: one line, for it is shown on terminals as long as it is kept."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def console() -> Console:
    """The page: standard output."""
    return _page(stderr=False)


def error_console() -> Console:
    """Everything that is no answer: standard error."""
    return _page(stderr=True)


class _Plain(Console):
    """A page on which only the page itself steers the terminal, never a name or a reason."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Before it is laid out: what is spelled out takes more room.
        if isinstance(renderable, str):
            renderable = plain(renderable)
        elif isinstance(renderable, Text) and plain(renderable.plain) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain(renderable.plain)
        return super().render(renderable, options)


def _page(*, stderr: bool) -> Console:
    page = _Plain(stderr=stderr, highlight=False)
    # A terminal without a size says 0 columns, and nothing at all would be shown.
    return page if page.width >= NARROWEST else _Plain(
        stderr=stderr, highlight=False, width=NARROWEST
    )


def emit(value: Any) -> None:
    """The one JSON document; numbers without a JSON form become null.

    Letters that standard output has no bytes for are escaped, so that the document stays true.
    """
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(finite(value), indent=1, ensure_ascii=not unicode, default=str)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def finite(value: Any) -> Any:
    """The value with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def sentence(text: str) -> str:
    """One line that ends like a sentence."""
    line = plain(" ".join(text.split()))
    return line if line.endswith((".", "!", "?")) else line + "."
