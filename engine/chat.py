"""The conversation format of the V4 family: messages to prompt.

A prompt is a list of pieces, each either one control token or text. ``encode`` turns control
pieces into ids directly and text through the plain encoder, so nothing that a user, a tool or a
model wrote earlier can smuggle in a control token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import PromptError
from engine.reply import Reply, ToolCall, parse_reply
from engine.tokenizer import (
    ASSISTANT,
    BOS,
    DSML,
    EOS,
    REMINDER,
    THINK,
    THINK_END,
    USER,
    Tokenizer,
)

__all__ = [
    "Piece",
    "Replay",
    "Reply",
    "ToolCall",
    "encode",
    "encode_pieces",
    "parse_reply",
    "pieces",
    "render",
    "text_of",
]

Message = Mapping[str, Any]
_ROLES: Final = frozenset({"system", "user", "developer", "assistant", "tool", "latest_reminder"})
_ASKING: Final = frozenset({"user", "developer"})

TOOLS_HEADING: Final = "## Tools"
RESPONSE_HEADING: Final = "## Response format"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of prompt: ``control`` pieces are exactly one control token.

    ``ids``, where there are any, are the tokens of the text, instead of those that spell it anew.
    """

    text: str
    control: bool = False
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """The tokens of a reply as it was generated; an assistant's message may carry it as ``replay``.

    ``reasoning`` is None where that part is to be written from the message.
    """

    reasoning: tuple[int, ...] | None
    rest: tuple[int, ...]  # content and calls


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message after merging: ``parts`` are the text blocks of a user turn."""

    role: str
    message: Message
    parts: tuple[str, ...] = ()


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    response_format: Mapping[str, Any] | None = None,
    effort_prefix: str = "",
) -> str:
    """The prompt as one readable string. For ids use ``encode``: this text is ambiguous where
    somebody's words spell a control token."""
    return "".join(
        piece.text
        for piece in pieces(
            messages,
            tools=tools,
            thinking=thinking,
            response_format=response_format,
            effort_prefix=effort_prefix,
        )
    )


def encode(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    response_format: Mapping[str, Any] | None = None,
    effort_prefix: str = "",
) -> list[int]:
    """The prompt as token ids, starting with BOS; control tokens come only from the format."""
    return encode_pieces(
        tokenizer,
        pieces(
            messages,
            tools=tools,
            thinking=thinking,
            response_format=response_format,
            effort_prefix=effort_prefix,
        ),
    )


def encode_pieces(tokenizer: Tokenizer, parts: Sequence[Piece]) -> list[int]:
    """Ids of pieces; neighbouring text is joined first, so that cuts leave no trace in the ids."""
    ids: list[int] = []
    text: list[str] = []
    for piece in (*parts, Piece("", control=True)):
        if not piece.control and not piece.ids:
            text.append(piece.text)
            continue
        if joined := "".join(text):
            ids.extend(tokenizer.encode(joined))
        text.clear()
        if piece.ids:
            ids.extend(piece.ids)
        elif piece.text:
            ids.append(tokenizer.control_id(piece.text))
    return ids


def pieces(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    response_format: Mapping[str, Any] | None = None,
    effort_prefix: str = "",
) -> list[Piece]:
    """The prompt as pieces.

    Args:
        messages: OpenAI-shaped messages (role, content, reasoning_content, tool_calls ...).
        tools: schemas offered by the request; they join the leading system message.
        thinking: whether the reply opens with reasoning.
        response_format: a JSON schema that the reply must follow.
        effort_prefix: the checkpoint's own paragraph for a reasoning effort; thinking mode only.

    Raises:
        PromptError: unknown role, no message, content that is not text.
    """
    if not messages:
        raise PromptError("A conversation needs at least one message.")
    turns = _turns(_with_request_fields(messages, tools, response_format))
    keeps_reasoning = any(turn.message.get("tools") for turn in turns)
    last_asked = max((i for i, t in enumerate(turns) if t.role in _ASKING), default=-1)
    drops = thinking and not keeps_reasoning
    out = [Piece(BOS, control=True)]
    if thinking and effort_prefix:
        out.append(Piece(effort_prefix))
    for index, turn in enumerate(turns):
        older = drops and index < last_asked
        if older and turn.role == "developer":
            continue
        out.extend(_turn_pieces(turn, reasons=thinking and not older))
        if turn.role in _ASKING and _opens_reply(turns, index, last_asked):
            out.append(Piece(ASSISTANT, control=True))
            out.append(Piece(THINK if thinking and not older else THINK_END, control=True))
    return [piece for piece in out if piece.text or piece.ids]


def _opens_reply(turns: Sequence[_Turn], index: int, last_asked: int) -> bool:
    followed = index + 1 < len(turns) and turns[index + 1].role == "assistant"
    return followed or index == last_asked


def _with_request_fields(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    response_format: Mapping[str, Any] | None,
) -> list[Message]:
    extra: dict[str, Any] = {}
    if tools:
        extra["tools"] = list(tools)
    if response_format:
        extra["response_format"] = response_format
    if not extra:
        return list(messages)
    if messages[0].get("role") == "system":
        return [{**messages[0], **extra}, *messages[1:]]
    return [{"role": "system", "content": "", **extra}, *messages]


def _turns(messages: Sequence[Message]) -> list[_Turn]:
    """Messages with neighbouring user and tool messages merged into one user turn."""
    turns: list[_Turn] = []
    calls: Sequence[Mapping[str, Any]] = ()
    run: list[Message] = []

    def close_run() -> None:
        if run:
            turns.append(_user_turn(run, calls))
            run.clear()

    for message in messages:
        role = message.get("role")
        if role not in _ROLES:
            raise PromptError(f"Unknown message role {role!r}.")
        if role in ("user", "tool"):
            run.append(message)
            continue
        close_run()
        if role == "assistant":
            calls = message.get("tool_calls") or ()
        turns.append(_Turn(str(role), message))
    close_run()
    return turns


def _user_turn(run: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> _Turn:
    """One user turn; tool results take their places in the order in which they were called."""
    order = {call.get("id"): place for place, call in enumerate(calls)}
    results = sorted(
        (m for m in run if m["role"] == "tool"),
        key=lambda m: order.get(m.get("tool_call_id"), len(order)),
    )
    pending = iter(results)
    texts = ((m["role"], text_of(next(pending) if m["role"] == "tool" else m)) for m in run)
    parts = tuple(
        f"<tool_result>{text}</tool_result>" if role == "tool" else text for role, text in texts
    )
    merged: dict[str, Any] = {"role": "user"}
    if any(m.get("tools") for m in run):
        merged["tools"] = [tool for m in run for tool in m.get("tools") or ()]
    return _Turn("user", merged, parts)


def text_of(message: Message) -> str:
    """Content as text: a string, null, or a list of text blocks."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(
        isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in content
    ):
        return "\n\n".join(block["text"] for block in content)
    raise PromptError("Message content must be text or a list of text blocks.")


def _turn_pieces(turn: _Turn, *, reasons: bool) -> Iterator[Piece]:
    message = turn.message
    if turn.role == "assistant":
        replay: Replay | None = message.get("replay")
        if reasons:
            told = str(message.get("reasoning_content") or message.get("reasoning") or "")
            again = None if replay is None else replay.reasoning
            yield Piece(told) if again is None else Piece("", ids=again)
            yield Piece(THINK_END, control=True)
        if replay is not None:
            yield Piece("", ids=replay.rest)
        else:
            yield Piece(text_of(message))
            yield from _call_pieces(message.get("tool_calls") or ())
        yield Piece(EOS, control=True)
        return
    if turn.role == "latest_reminder":
        yield Piece(REMINDER, control=True)
    elif turn.role in _ASKING:
        yield Piece(USER, control=True)
    body = "\n\n".join(turn.parts) if turn.role == "user" else text_of(message)
    yield Piece(body)
    sections: list[list[Piece]] = []
    if message.get("tools"):
        sections.append(_tools_section(message["tools"]))
    if message.get("response_format"):
        sections.append(_response_section(message["response_format"]))
    for section in sections:
        yield Piece("\n\n")
        yield from section


def _tag(text: str) -> list[Piece]:
    """Text in which every ``｜DSML｜`` is the control token."""
    head, *rest = text.split(DSML)
    out = [Piece(head)]
    for part in rest:
        out += [Piece(DSML, control=True), Piece(part)]
    return out


def _tools_section(tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    schemas = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return [
        *_tag(
            f"{TOOLS_HEADING}\n\nYou can call the tools listed below. "
            f"To call some, end your reply with a block of this shape:\n\n"
            f"<{DSML}tool_calls>\n"
            f'<{DSML}invoke name="TOOL">\n'
            f'<{DSML}parameter name="PARAMETER" string="true|false">VALUE</{DSML}parameter>\n'
            f"</{DSML}invoke>\n"
            f"</{DSML}tool_calls>\n\n"
            'Write text as it is with string="true"; write any other value as JSON with '
            'string="false".\n\n### Schemas\n\n'
        ),
        Piece("\n".join(schemas)),
    ]


def _response_section(response_format: Mapping[str, Any]) -> list[Piece]:
    schema = response_format.get("json_schema", response_format)
    text = json.dumps(schema, ensure_ascii=False)
    return [Piece(f"{RESPONSE_HEADING}\n\nReply with one JSON value that fits:\n{text}")]


def _call_pieces(calls: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
    if not calls:
        return
    yield from _tag(f"\n\n<{DSML}tool_calls>\n")
    for call in calls:
        function = call.get("function", call)
        yield from _tag(f"<{DSML}invoke name=")
        yield Piece(f'"{function.get("name", "")}">\n')
        for name, value in _arguments(function.get("arguments")).items():
            is_text = isinstance(value, str)
            shown = value if is_text else json.dumps(value, ensure_ascii=False)
            yield from _tag(f"<{DSML}parameter name=")
            yield Piece(f'"{name}" string="{str(is_text).lower()}">{shown}')
            yield from _tag(f"</{DSML}parameter>\n")
        yield from _tag(f"</{DSML}invoke>\n")
    yield from _tag(f"</{DSML}tool_calls>")


def _arguments(arguments: Any) -> dict[str, Any]:
    """A call's arguments as a mapping; what does not parse is kept whole under one name."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not arguments:
        return {}
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError):
        return {"arguments": arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
