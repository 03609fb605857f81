"""The commands of the terminal chat: `/name argument`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flywheel.chat.talk import EFFORTS, Talk
from flywheel.errors import UsageError
from flywheel.files import write_atomic


class Quit(Exception):  # noqa: N818 - no error: the person is done
    """Leave the chat."""


@dataclass(frozen=True, slots=True)
class Slash:
    """A command: what it takes and does, and the sentence that it answers with."""

    takes: str
    does: str
    run: Callable[[Talk, str], str]


def is_command(line: str) -> bool:
    """Whether a line is for the program; two slashes send the rest to the model."""
    return line.startswith("/") and not line.startswith("//")


def obey(talk: Talk, line: str) -> str:
    """Carry out a command; the sentence to show. UsageError for one that makes no sense."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no /{name}; /help lists the commands.")
    return command.run(talk, argument.strip())


def _help(_: Talk, __: str) -> str:
    wide = max(len(f"/{name} {c.takes}") for name, c in COMMANDS.items())
    lines = [f"{f'/{name} {c.takes}':{wide}}  {c.does}" for name, c in COMMANDS.items()]
    return "\n".join(
        [*lines, "A line that ends with \\ goes on; // sends a line that begins with /."]
    )


def _new(talk: Talk, _: str) -> str:
    talk.clear()
    return "A new conversation."


def _system(talk: Talk, text: str) -> str:
    talk.system = text
    return "The system prompt is set." if text else "There is no system prompt."


def _think(talk: Talk, word: str) -> str:
    if word not in ("on", "off"):
        raise UsageError("/think wants on or off.")
    talk.thinking = word == "on"
    return "It thinks first." if talk.thinking else "It answers at once."


def _effort(talk: Talk, level: str) -> str:
    if level not in EFFORTS:
        raise UsageError(f"/effort wants one of {', '.join(EFFORTS)}.")
    talk.effort, talk.thinking = level, True
    return f"It thinks first, with effort {level}."


def _save(talk: Talk, name: str) -> str:
    path = _file(name, "/save")
    try:
        write_atomic(path, talk.dump(), mode=0o600)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return f"Saved in {path}."


def _load(talk: Talk, name: str) -> str:
    path = _file(name, "/load")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    talk.load(text)
    return f"Loaded {len(talk.messages)} messages from {path}."


def _file(name: str, command: str) -> Path:
    if not name:
        raise UsageError(f"{command} wants the name of a file.")
    return Path(name).expanduser()


def _stats(talk: Talk, _: str) -> str:
    return talk.stats()


def _quit(_: Talk, __: str) -> str:
    raise Quit


COMMANDS: Mapping[str, Slash] = {
    "help": Slash("", "this list", _help),
    "new": Slash("", "forget the conversation and begin anew", _new),
    "system": Slash("[TEXT]", "set the system prompt, or take it away", _system),
    "think": Slash("on|off", "whether the model thinks before it answers", _think),
    "effort": Slash("LEVEL", f"how hard it thinks: {', '.join(EFFORTS)}", _effort),
    "save": Slash("FILE", "keep the conversation in a file", _save),
    "load": Slash("FILE", "go on with a conversation from a file", _load),
    "stats": Slash("", "speed, accepted drafts and memory of the last answer", _stats),
    "quit": Slash("", "leave; so does Ctrl-D", _quit),
}
