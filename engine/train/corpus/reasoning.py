"""Chats in thinking mode: a worked trace, then the answer with its reasons."""

from __future__ import annotations

import random
import re

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.phrase import say
from engine.train.corpus.puzzles_numbers import (
    binary,
    euclid,
    factors,
    shopping,
    statistics,
)
from engine.train.corpus.puzzles_stories import (
    ages,
    calendar,
    intervals,
    race_order,
    running_stock,
    travel,
    walk,
)
from engine.train.corpus.puzzles_traces import bfs, bubble, insertion, set_split, stack_trace


def make(rng: random.Random) -> Chat:
    """A puzzle, the steps that solve it, and an answer that repeats what matters."""
    solved = [kind(rng) for kind in rng.sample(KINDS, rng.choice((1, 2, 2, 2)))]
    opening = say(
        rng,
        "[Let me work through this step by step.|I will go through it slowly.|Let me take it one"
        " step at a time.|First I write down what is known, then I follow the steps.|Let me be"
        " careful here.]",
    )
    closing = say(
        rng,
        "[That settles it.|Now I can answer.|So the answer is clear.|I have what I need.|That is "
        "everything.]",
    )
    notes = ["\n".join(_note(step) for step in steps) for _, steps, _ in solved]
    if len(solved) == 1:
        return ask(
            "reasoning", solved[0][0], solved[0][2], reasoning=f"{opening}\n{notes[0]}\n{closing}"
        )
    question = say(
        rng,
        "[Two tasks|Two questions|Please solve both]:\n[(1) {a}\n(2) {b}|First: {a}\nSecond: {b}]",
        a=solved[0][0],
        b=solved[1][0],
    )
    second = say(rng, "[Now the second one.|On to the other one.|Next, task two.]")
    thought = f"{opening}\n{notes[0]}\n{second}\n{notes[1]}\n{closing}"
    answer = f"**First task.** {solved[0][2]}\n\n**Second task.** {solved[1][2]}"
    return ask("reasoning", question, answer, reasoning=thought)


_FILLER = re.compile(
    r"\b(?:The|From|Take|So|the|and|it|so|that|to|put|take|from|is|with|which|on|by|of|has|makes|"
    r"becomes|now|at|them|go|be|they|in|a|End|pair|list|remainder)\b ?"
)


def _note(step: str) -> str:
    """A step as one jots it down: no filler words, tight sums, lists without brackets."""
    text = re.sub(r"\[([\d, ]*)\]", lambda m: m.group(1).replace(",", ""), step)
    text = re.sub(r" ([-+*/=]) ", r"\1", text)
    return _FILLER.sub("", text).replace(" ,", ",").replace(" :", ":").rstrip(". ")


KINDS = (
    running_stock,
    insertion,
    bubble,
    euclid,
    binary,
    ages,
    walk,
    shopping,
    factors,
    stack_trace,
    statistics,
    calendar,
    set_split,
    bfs,
    intervals,
    race_order,
    travel,
)
