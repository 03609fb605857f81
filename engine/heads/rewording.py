"""The generators' set sentences, said in other words.

What every prompt of a kind begins with gives no prompt away, but the n-gram rule cannot know that:
a kind whose frame alone fills an n-gram would be missing from the corpus as a whole. So a prompt
that shares one is said again in other words, and refused only when it still shares one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, Final

# Raised by hand with any change of the sentences below.
VERSION: Final = 1

# A pattern of the user's text, and what may stand in its place; \1 is a slot of the pattern.
SENTENCES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # agentic_format: plans
    (
        r"Do not call anything yet\.",
        (
            "Please hold every call for the moment.",
            "No tool is to run at this point.",
            "Wait with all calls until I say so.",
            "Leave the tools alone to begin with.",
        ),
    ),
    (
        r"Only plan for now\.",
        (
            "At this stage I just want to see a plan.",
            "Planning comes first, the work later.",
            "Think it through before anything runs.",
            "Nothing but planning, please.",
        ),
    ),
    (
        r"Write a numbered plan for this:",
        (
            "Number the steps you would take for:",
            "Give me numbered steps that cover these wishes:",
            "List, one number each, how you would go about:",
        ),
    ),
    (
        r"Make a plan with tool names for this:",
        (
            "Say step by step which tool serves each of these:",
            "Lay out the steps and name a tool for every one:",
            "Which tool comes when? Plan these:",
        ),
    ),
    # code_gen: programs, classes and modules
    (
        r"adds up the (\w+) by name and prints a sorted report\. Use this data:",
        (
            r"sums each name's \1 and shows a report in order. The data are",
            r"totals \1 for every name, then prints the totals sorted. Take these:",
            r"works out a total \1 per name and lists them alphabetically. Work on",
        ),
    ),
    (
        r"Explain each method briefly\.",
        ("A line about every method, please.", "Say in short what all of them do."),
    ),
    (r"Add docstrings\.", ("Each one needs a docstring.", "Document it with docstrings.")),
    (
        r"Explain how to use it\.",
        ("Tell me in a few words how one uses it.", "Usage notes are welcome."),
    ),
    (
        r"Keep it simple, without type hints\.",
        ("Leave type hints out and stay simple.", "Simple code is best; no annotations."),
    ),
    (r"Use type hints\.", ("Annotate all types.", "I like annotated code.")),
    # reasoning: stories and traces
    (
        r"starts at \(0, 0\) on a grid, where east adds to the first number and north to the"
        r" second\. The moves are:",
        (
            "stands on a grid at (0, 0); the first number grows eastwards, the second northwards."
            " What follows are the moves:",
            "is at (0, 0), with east counted by the first number and north by the other one. Each"
            " move in turn:",
        ),
    ),
    (
        r"What is the final position, and how far is it from the start in steps\?",
        (
            "Which point is reached, and how many steps lead straight back?",
            "At what place does this stop, and how many steps away from the origin?",
        ),
    ),
    (
        r"Which things do both have, and what does only one of them have\?",
        (
            "Tell me what they have in common, then what just one of the two owns.",
            "What belongs to the two of them alike, and what to a single one?",
        ),
    ),
    (
        r"Give the order of breadth-first search that starts at A\.",
        (
            "Starting from A, which sequence of nodes results from a search by breadth?",
            "List all nodes as a breadth-first walk out of A meets them.",
        ),
    ),
    (r"A stack is empty at first\.", ("We begin with a stack that holds nothing.",)),
    # multi_turn: plans by the week
    (
        r"Make a plan for (\d+) weeks\.",
        (r"Lay it out over \1 weeks, please.", r"What would \1 weeks of that look like?"),
    ),
)


def reworded(
    rng: random.Random, messages: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """The conversation with every set sentence of the user's said in other words."""
    return tuple(
        {**m, "content": _said_again(rng, str(m["content"]))} if m["role"] == "user" else m
        for m in messages
    )


def _said_again(rng: random.Random, text: str) -> str:
    for pattern, others in SENTENCES:
        text = re.sub(pattern, rng.choice(others), text)
    return text
