"""Replies are repeated token by token to whom they belong, and to nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat import Replay
from engine.server.replay import Kept, Replies
from engine.server.reply import Call

CALL = Call("call_1", "read", '{"file": "a", "line": 1}')


def kept(
    content: str = "", calls: tuple[Call, ...] = (CALL,), reasoning: str = "Hm.", size: int = 3
) -> Kept:
    return Kept((1, 2), tuple(range(10, 10 + size)), reasoning, content, calls)


def message(**more: Any) -> dict[str, Any]:
    function = {"name": "read", "arguments": '{"line":1,"file":"a"}'}
    call = {"id": "call_1", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def recalled(replies: Replies, said: dict[str, Any]) -> Replay | None:
    (found,) = replies.recall([said])
    replay: Replay | None = found.get("replay")
    return replay


@pytest.mark.parametrize("more", [{}, {"reasoning_content": "Hm."}, {"content": None}])
def test_a_call_brings_its_own_tokens_back(more: dict[str, Any]) -> None:
    replies = Replies()
    replies.keep(kept())
    assert recalled(replies, message(**more)) == Replay((1, 2), (10, 11, 12))


def test_reasoning_that_was_edited_is_written_anew() -> None:
    replies = Replies()
    replies.keep(kept())
    assert recalled(replies, message(reasoning_content="No!")) == Replay(None, (10, 11, 12))


@pytest.mark.parametrize(
    "change",
    [
        {"content": "Something else."},
        {"tool_calls": []},
        {"tool_calls": [{"id": "call_1", "function": {"name": "write", "arguments": "{}"}}]},
        {"tool_calls": [{"id": "call_1", "function": {"name": "read", "arguments": "{"}}]},
        {
            "tool_calls": [
                {"id": "call_2", "function": {"name": "read", "arguments": CALL.arguments}}
            ]
        },
        {"tool_calls": message()["tool_calls"] * 2},
        {"role": "user"},
    ],
)
def test_a_message_that_says_something_else_finds_nothing(change: dict[str, Any]) -> None:
    replies = Replies()
    replies.keep(kept())
    assert recalled(replies, message(**change)) is None


def test_text_alone_never_brings_the_reasoning_of_somebody_else() -> None:
    replies = Replies()
    replies.keep(kept("Yes.", (), "What the other one asked."))
    said = {"role": "assistant", "content": "Yes."}
    assert recalled(replies, said) == Replay(None, (10, 11, 12))
    own = {**said, "reasoning_content": "What the other one asked."}
    assert recalled(replies, own) == Replay((1, 2), (10, 11, 12))


def test_the_least_recently_used_goes_first() -> None:
    replies = Replies(most_tokens=12)
    for name in "ab":
        replies.keep(kept(name, ()))
    assert recalled(replies, {"role": "assistant", "content": "a"})
    replies.keep(kept("c", ()))
    assert recalled(replies, {"role": "assistant", "content": "b"}) is None
    assert recalled(replies, {"role": "assistant", "content": "a"})


def test_a_reply_longer_than_the_memory_leaves_it_empty() -> None:
    replies = Replies(most_tokens=4)
    replies.keep(kept("a", ()))
    assert recalled(replies, {"role": "assistant", "content": "a"}) is None
    replies.keep(kept("b", (), size=1))
    assert recalled(replies, {"role": "assistant", "content": "b"})
