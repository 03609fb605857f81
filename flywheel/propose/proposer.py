"""A proposer as it is named on the command line: `[NAME=]COMMAND`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from flywheel.errors import UsageError

# Those that come with flywheel: `scripted ideas.json` is their whole command.
SHIPPED = ("scripted", "openai", "agent")
_NAMED = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]{0,31})=(?P<command>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Proposer:
    """An external command that answers a brief, and the name that its levers bear."""

    name: str
    argv: tuple[str, ...]


def parse(text: str) -> Proposer:
    """`NAME=COMMAND`, or a command whose program or module gives the name; else UsageError.

    A word that is the path of a file or folder from here means that, wherever the command is run.
    """
    match = _NAMED.fullmatch(text.strip())
    command = match["command"] if match else text
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--proposer {text!r} is no command line: {error}.") from None
    if not argv:
        raise UsageError("--proposer wants a command, or NAME=COMMAND.")
    name = match["name"] if match else _name_of(argv)
    if argv[0] in SHIPPED:
        argv = (sys.executable, "-P", "-m", f"flywheel.propose.{argv[0]}", *argv[1:])
    return Proposer(name, tuple(_at_home(word) for word in argv))


def parse_all(texts: Sequence[str]) -> tuple[Proposer, ...]:
    """Each of them; UsageError for two of one name, which no report could tell apart."""
    found = tuple(parse(text) for text in texts)
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two proposers are named {name}; name them: --proposer NAME=COMMAND.")
    return found


def _name_of(argv: Sequence[str]) -> str:
    if "-m" in argv[:-1]:
        word = argv[argv.index("-m") + 1].rsplit(".", 1)[-1]
    else:
        word = os.path.splitext(os.path.basename(argv[0]))[0]
    plain = re.sub(r"[^a-z0-9._-]", "-", word.lower()).strip("-._")
    return plain[:32] or "proposer"


def _at_home(word: str) -> str:
    # What has no suffix and no slash is a word far more often than a file that is called so.
    is_path = "/" in word or word in (".", "..") or bool(os.path.splitext(word)[1])
    return os.path.abspath(word) if is_path and os.path.exists(word) else word
