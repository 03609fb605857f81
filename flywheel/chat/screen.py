"""The chat in a terminal or a pipe: lines in, an answer out as it grows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from flywheel.chat import slash
from flywheel.chat.talk import Answer, Talk, pace
from flywheel.chat.wire import Endpoint, clean
from flywheel.errors import FlywheelError

PROMPT = "> "
HISTORY_LENGTH = 1000


class Screen:
    """One chat. ``bare``: for a pipe, so nothing but answers goes to standard output."""

    def __init__(
        self, endpoint: Endpoint, model: str | None, talk: Talk, *, page: Console, aside: Console,
        bare: bool,
    ) -> None:  # fmt: skip
        self.failed = False
        self._endpoint = endpoint
        self._model = model
        self._talk = talk
        self._page = page
        self._aside = aside
        self._bare = bare

    def run(self) -> None:
        """Converse until the end of the input or /quit."""
        with history(not self._bare):
            while True:
                try:
                    line = self._read()
                except EOFError:
                    return
                except KeyboardInterrupt:
                    self._aside.print(Text("\nCtrl-D or /quit leaves.", style="dim"))
                    continue
                try:
                    self._heed(line)
                except slash.Quit:
                    return

    def greet(self) -> None:
        """Who answers; raises when nobody does."""
        told = self._endpoint.get("/health")
        words = [str(told.get("model") or "a server"), self._endpoint.url, "/help lists commands"]
        if told.get("decision") is not None:
            words.insert(1, f"decision D{str(told['decision']).removeprefix('D')}")
        self._page.print(Text(clean(" · ".join(words)), style="dim"))

    def tell(self, answer: Answer) -> None:
        """A whole answer."""
        self._write(answer.content)
        self._end(answer, stopped=False)

    def once(self, text: str) -> Answer:
        """One question, one answer; raises what went wrong."""
        self._talk.say(text)
        return self._answer(shown=False)

    def _heed(self, line: str) -> None:
        """Do what a line says; what goes wrong is a sentence, and the chat goes on."""
        if not line.strip():
            return
        try:
            if slash.is_command(line):
                self._aside.print(Text(slash.obey(self._talk, line)), soft_wrap=True)
                return
            self._talk.say(line.removeprefix("/") if line.startswith("//") else line)
            self._answer(shown=True)
        except FlywheelError as error:
            self.failed = True
            self._aside.print(Text(str(error), style="red"), soft_wrap=True)

    def _answer(self, *, shown: bool) -> Answer:
        answer = Answer()
        stopped = False
        chunks = self._stream()
        try:
            for chunk in chunks:
                thought, said = answer.hear(chunk)
                if shown:
                    self._show(answer, thought, said)
        except KeyboardInterrupt:
            if not shown:
                raise
            stopped = True
        finally:
            chunks.close()
            self._talk.take(answer)
        if shown:
            self._end(answer, stopped)
        return answer

    def _stream(self) -> Generator[dict[str, Any]]:
        if self._model is None:
            self._model = self._endpoint.model()
        yield from self._endpoint.stream(self._talk.ask(self._model))

    def _show(self, answer: Answer, thought: str, said: str) -> None:
        if thought and not self._bare:
            self._write(thought, "dim italic")
        if said:
            first = answer.content == said
            if first and answer.reasoning and not self._bare:
                self._page.print()
            self._write(said)

    def _write(self, text: str, style: str = "") -> None:
        self._page.print(Text(clean(text), style=style), end="", soft_wrap=True)
        self._page.file.flush()

    def _end(self, answer: Answer, stopped: bool) -> None:
        self._page.print()
        for call in answer.calls:
            function = call["function"]
            said = f"calls {function['name']}({function['arguments']})"
            self._page.print(Text(clean(said), style="cyan"), soft_wrap=True)
        if self._bare:
            return
        words = pace(answer)
        if answer.finish == "length":
            words += " · cut off at the most tokens allowed"
        self._page.print(Text(f"stopped · {words}" if stopped else words, style="dim"))

    def _read(self) -> str:
        lines: list[str] = []
        while True:
            line = input("" if self._bare else (PROMPT if not lines else ". "))
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])


@contextlib.contextmanager
def history(wanted: bool) -> Iterator[None]:
    """Lines typed in earlier chats, at the arrow keys; kept for this user alone."""
    if not wanted:
        yield
        return
    try:
        import readline
    except ImportError:  # not on every system; the chat does without
        yield
        return
    path = history_path()
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LENGTH)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)


def history_path() -> Path:
    """Where the lines are kept."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "flywheel" / "chat_history"


def piped_text() -> str:
    """All of standard input."""
    return sys.stdin.read()
