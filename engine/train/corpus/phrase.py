"""A tiny phrase grammar: ``[one|two]`` picks an alternative, ``{slot}`` takes a value."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_CHOICE = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")


def say(rng: random.Random, template: str, **slots: object) -> str:
    """Expand the alternatives (innermost first), then the slots. Slot values are left as they are,
    so they may hold brackets and braces of their own."""
    previous = ""
    while previous != template:
        previous = template
        template = _CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), template)
    return _SLOT.sub(lambda m: str(slots[m.group(1)]), template)


def listed(items: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def bullets(items: Sequence[str], mark: str = "-") -> str:
    """One item a line; ``mark`` "1." numbers them."""
    if mark == "1.":
        return "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return "\n".join(f"{mark} {item}" for item in items)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_COUNTS = "zero one two three four five six seven eight nine ten eleven twelve"


def ordinal(number: int) -> str:
    """``first`` to ``twelfth``."""
    return _ORDINALS.split()[number - 1]


def count_word(number: int) -> str:
    """``one`` to ``twelve``; digits above."""
    words = _COUNTS.split()
    return words[number] if number < len(words) else str(number)


def plural(number: int, one: str, many: str = "") -> str:
    """``1 crate``, ``3 crates``."""
    return f"{number} {one if number == 1 else many or one + 's'}"
