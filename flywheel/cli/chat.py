"""`flywheel chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flywheel.cli.terminal import FAILED, JsonOption, console, emit, error_console
from flywheel.errors import UsageError


def chat(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]", help="Ask this once, and leave.")
    ] = None,
    url: Annotated[
        str, typer.Option("--url", envvar="FLYWHEEL_URL", help="The server, without its /v1.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="FLYWHEEL_API_KEY", help="If the server wants one.")
    ] = "",
    model: Annotated[
        str | None, typer.Option("--model", help="The server's only one by default.")
    ] = None,
    system: Annotated[str, typer.Option("--system", help="The system prompt.")] = "",
    think: Annotated[bool, typer.Option("--think", help="Let the model think first.")] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=2, help="The server's by default.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="As many as fit by default.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Answer all of standard input, once, and leave.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Chat with a server in the terminal; /help lists the commands.

    Ctrl-C stops an answer, Ctrl-D leaves. --json implies --once.

    Example: echo "Name three colours." | flywheel chat --once
    """
    from flywheel.chat import screen
    from flywheel.chat.talk import Talk
    from flywheel.chat.wire import Endpoint

    endpoint = Endpoint(url, api_key)
    talk = Talk(system, think, temperature=temperature, max_tokens=max_tokens)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    shown = screen.Screen(
        endpoint, model, talk, page=console(), aside=error_console(), bare=not terminal
    )
    if once or json_ or words:
        text = " ".join(words) if words else screen.piped_text()
        if not text.strip():
            raise UsageError("there is nothing to ask: standard input is empty.")
        answer = shown.once(text.strip())
        if json_:
            emit(answer.as_dict())
        else:
            shown.tell(answer)
        return 0
    if terminal:
        shown.greet()
    shown.run()
    # In a pipe nobody sees what went wrong but the exit code.
    return FAILED if shown.failed and not terminal else 0
