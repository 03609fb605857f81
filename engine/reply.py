"""What a model wrote, taken apart: reasoning, content and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import ReplyError
from engine.tokenizer import (
    DSML,
    EOS,
    THINK,
    THINK_END,
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it; ``arguments`` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply. ``reasoning`` is None when the reply has no thinking part."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


_BLOCK_OPEN: Final = f"<{DSML}tool_calls>\n"


_BLOCK_CLOSE: Final = f"</{DSML}tool_calls>"


_INVOKE_OPEN: Final = re.compile(rf'<{DSML}invoke name="([^"\n]*)">\n')


_INVOKE_CLOSE: Final = f"</{DSML}invoke>\n"


_PARAMETER_OPEN: Final = re.compile(rf'<{DSML}parameter name="([^"\n]*)" string="(true|false)">')


# Payloads are not escaped: a closing tag counts only where the strict shape goes on after it.
_PARAMETER_CLOSE: Final = re.compile(
    rf'</{DSML}parameter>\n(?=<{DSML}parameter name="[^"\n]*" string="(?:true|false)">'
    rf"|</{DSML}invoke>\n(?:<{DSML}invoke name=|</{DSML}tool_calls>))"
)


def parse_reply(text: str, *, thinking: bool | None = None) -> Reply:
    """Split a reply into reasoning, content and tool calls.

    Args:
        text: the generated text, from after the reply header, with or without the EOS spelling.
        thinking: True if the prompt opened a thinking part, so that a reply cut before its end
            is all reasoning; False if it did not, so that nothing is; None to go by the text.

    Raises:
        ReplyError: a tool call block that breaks the strict shape.
    """
    text = text.removesuffix(EOS)
    reasoning: str | None = None
    if thinking is not False:
        head, mark, tail = text.partition(THINK_END)
        if mark or thinking:
            reasoning, text = head if thinking else head.removeprefix(THINK), tail
    content, mark, block = text.partition(f"\n\n{_BLOCK_OPEN}")
    if not mark and text.startswith(_BLOCK_OPEN):
        content, mark, block = "", _BLOCK_OPEN, text[len(_BLOCK_OPEN) :]
    calls = tuple(_parse_block(block)) if mark else ()
    return Reply(content, reasoning, calls)


def _parse_block(block: str) -> Iterator[ToolCall]:
    """Calls of a block whose opening tag has been read."""
    position = 0
    while not block.startswith(_BLOCK_CLOSE, position):
        opening = _INVOKE_OPEN.match(block, position)
        if opening is None:
            raise ReplyError("A tool call block holds something that is not a call.")
        position = opening.end()
        arguments: dict[str, Any] = {}
        while not block.startswith(_INVOKE_CLOSE, position):
            name, value, position = _parse_parameter(block, position)
            if name in arguments:
                raise ReplyError(f"A tool call gives its parameter {name!r} twice.")
            arguments[name] = value
        position += len(_INVOKE_CLOSE)
        yield ToolCall(opening.group(1), json.dumps(arguments, ensure_ascii=False))
    if block[position + len(_BLOCK_CLOSE) :].strip():
        raise ReplyError("A reply goes on after its tool call block.")


def _parse_parameter(block: str, position: int) -> tuple[str, Any, int]:
    opening = _PARAMETER_OPEN.match(block, position)
    if opening is None:
        raise ReplyError("A tool call holds something that is not a parameter.")
    closing = _PARAMETER_CLOSE.search(block, opening.end())
    if closing is None:
        raise ReplyError(f"The tool parameter {opening.group(1)!r} has no end.")
    raw = block[opening.end() : closing.start()]
    if opening.group(2) == "true":
        return opening.group(1), raw, closing.end()
    try:
        return opening.group(1), json.loads(raw), closing.end()
    except ValueError:
        raise ReplyError(f"The tool parameter {opening.group(1)!r} is not JSON.") from None
