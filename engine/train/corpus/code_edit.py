"""Chats that change code from the prompt: most of the answer is the prompt's own text."""

from __future__ import annotations

import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.edits import (
    add_function,
    class_docs,
    class_rename,
    constant,
    docstrings,
    fix,
    guards,
    log_calls,
    remove,
    rename,
    reorder,
    type_hints,
)
from engine.train.corpus.phrase import bullets, say


def make(rng: random.Random) -> Chat:
    """A piece of code, a wish, and the whole code after the change."""
    kind = rng.choice(
        (
            fix,
            fix,
            rename,
            type_hints,
            docstrings,
            guards,
            log_calls,
            reorder,
            remove,
            constant,
            class_rename,
            class_docs,
            add_function,
        )
    )
    wish, before, after, changes = kind(rng)
    question = say(
        rng,
        "[{wish}\n\n{code}|{code}\n\n{wish}|Here is some code:\n\n{code}\n\n{wish}|{wish} This is"
        " the code:\n\n{code}]",
        wish=wish,
        code=_fence(before),
    )
    head = say(
        rng,
        "[Here is the edited code|Here is the updated code|Done. The code now reads|This is the new"
        " version|The changed code is below]:",
    )
    label = say(rng, "[Changes|What changed|Summary of the changes|What I did]:")
    tail = say(
        rng,
        "[Everything else is as it was.|The rest of the code is untouched.|Nothing else was"
        " changed.|All other lines stay the same.]",
    )
    answer = f"{head}\n\n{_fence(after)}\n\n{label}\n{bullets(changes)}\n\n{tail}"
    return ask("code_edit", question, answer)


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"
