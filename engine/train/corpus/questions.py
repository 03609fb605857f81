"""Single questions of fact and their answers, from the tables in ``facts``."""

from __future__ import annotations

import random
from collections.abc import Callable

from engine.train.corpus.facts import (
    ALGORITHMS,
    BUILTINS,
    CONVERSIONS,
    COUNTRIES,
    ELEMENTS,
    HTTP,
    NATO,
    PLANETS,
    PORTS,
    SHAPES,
    SI_UNITS,
)
from engine.train.corpus.phrase import capital, ordinal
from engine.train.corpus.words import DAYS, MONTHS

Pair = tuple[str, str]


def _element(rng: random.Random) -> Pair:
    symbol, name, number, kind, note = rng.choice(ELEMENTS)
    question = rng.choice(
        (
            f"What is the chemical symbol of {name}?",
            f"Which element has the symbol {symbol}?",
            f"Which element has atomic number {number}?",
            f"What is {name} known for?",
            f"What kind of element is {name}?",
        )
    )
    article = "an" if kind[0] in "aeiou" else "a"
    return (
        question,
        (
            f"{capital(name)} has the symbol {symbol} and the atomic number {number}. It is"
            f" {article} {kind}, and {note}."
        ),
    )


def _planet(rng: random.Random) -> Pair:
    name, place, kind, moons, note = rng.choice(PLANETS)
    question = rng.choice(
        (
            f"Which planet is the {ordinal(place)} from the Sun?",
            f"How many moons does {name} have?",
            f"What is special about the planet {name}?",
            f"What kind of planet is {name}?",
        )
    )
    kind = kind if kind.startswith("a") else f"a {kind} planet"
    return (
        question,
        (
            f"{name} is the {ordinal(place)} planet from the Sun. It is {kind} with {moons}, and"
            f" {note}."
        ),
    )


def _country(rng: random.Random) -> Pair:
    country, town, continent, money, sight = rng.choice(COUNTRIES)
    question = rng.choice(
        (
            f"What is the capital of {country}?",
            f"Of which country is {town} the capital?",
            f"Which currency is used in {country}?",
            f"On which continent is {country}?",
        )
    )
    return (
        question,
        (
            f"The capital of {country} is {town}. The country lies in {continent} and pays with the"
            f" {money}; the city is known for {sight}."
        ),
    )


def _http(rng: random.Random) -> Pair:
    code, reason, meaning = rng.choice(HTTP)
    question = rng.choice(
        (f"What does HTTP status {code} mean?", f"Which HTTP status is called {reason}?")
    )
    group = {2: "successes", 3: "redirections", 4: "client errors", 5: "server errors"}[code // 100]
    return question, f"HTTP status {code} is called {reason}: {meaning}. It belongs to the {group}."


def _port(rng: random.Random) -> Pair:
    name, port, transport, purpose = rng.choice(PORTS)
    question = rng.choice(
        (f"Which port does {name} use?", f"What is port {port} used for?", f"What does {name} do?")
    )
    return question, f"{name} uses {transport} port {port} by default. It {purpose}."


def _si(rng: random.Random) -> Pair:
    quantity, unit, symbol, tool = rng.choice(SI_UNITS)
    question = rng.choice(
        (
            f"What is the SI unit of {quantity}?",
            f"What does the {unit} measure?",
            f"Which unit has the symbol {symbol}?",
        )
    )
    return (
        question,
        f"The SI unit of {quantity} is the {unit}, written {symbol}. It is measured with {tool}.",
    )


def _conversion(rng: random.Random) -> Pair:
    one, many, factor = rng.choice(CONVERSIONS)
    count = rng.randint(2, 9)
    article = "an" if one[0] in "aeh" and one != "hectare" else "a"
    question = rng.choice(
        (
            f"How many {many} are in {article} {one}?",
            f"How many {many} are {count} {plural_of(one)}?",
        )
    )
    return (
        question,
        (
            f"{capital(article)} {one} has {factor} {many}. So {count} {plural_of(one)} make"
            f" {count} * {factor} = {count * factor} {many}."
        ),
    )


def plural_of(word: str) -> str:
    """Plural of a unit name."""
    return {"foot": "feet", "century": "centuries", "dozen": "dozen"}.get(word, f"{word}s")


def shape(rng: random.Random) -> Pair:
    name, sides, angles = rng.choice(SHAPES)
    article = "an" if name[0] in "aeiou" else "a"
    question = rng.choice(
        (
            f"How many sides does {article} {name} have?",
            f"What is the angle sum of {article} {name}?",
        )
    )
    return (
        question,
        (
            f"{capital(article)} {name} has {sides} sides and as many corners. Its inner angles add"
            f" up to {angles} degrees, from ({sides} - 2) * 180."
        ),
    )


def _nato(rng: random.Random) -> Pair:
    word = "".join(rng.sample("ABCDEGHIKLMNOPRSTUVW", 3))
    spelled = ", ".join(NATO[ord(c) - 65] for c in word)
    question = rng.choice(
        (f"How is {word} spelled in the NATO alphabet?", f"Spell {word} on the radio.")
    )
    return (
        question,
        (
            f"In the NATO alphabet, {word} is spelled {spelled}. Each word stands for its first"
            " letter."
        ),
    )


def _builtin(rng: random.Random) -> Pair:
    name, does, example, value = rng.choice(BUILTINS)
    question = rng.choice(
        (f"What does `{name}` do in Python?", f"What is the value of `{example}` in Python?")
    )
    return question, f"In Python, `{name}` {does}. For example, `{example}` gives `{value}`."


def _algorithm(rng: random.Random) -> Pair:
    name, cost, idea = rng.choice(ALGORITHMS)
    question = rng.choice(
        (f"What does {name} cost?", f"How does {name} work?", f"What is the complexity of {name}?")
    )
    return (
        question,
        f"{capital(name)} takes {cost} steps for n items or a graph of that size: {idea}.",
    )


def _ascii(rng: random.Random) -> Pair:
    letter = chr(rng.randint(65, 90)) if rng.random() < 0.5 else chr(rng.randint(97, 122))
    code = ord(letter)
    question = rng.choice(
        (f"What is the ASCII code of {letter}?", f"Which character has ASCII code {code}?")
    )
    other = letter.swapcase()
    return (
        question,
        (
            f"The ASCII code of {letter} is {code}, or {code:x} in hexadecimal. Its partner {other}"
            f" has the code {ord(other)}, which differs by 32."
        ),
    )


def _calendar(rng: random.Random) -> Pair:
    if rng.random() < 0.4:
        i = rng.randrange(7)
        return (
            f"Which day comes after {DAYS[i]}?",
            (
                f"The day after {DAYS[i]} is {DAYS[(i + 1) % 7]}, and the day before it is"
                f" {DAYS[(i - 1) % 7]}."
            ),
        )
    i = rng.randrange(12)
    days = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[i]
    leap = ", or 29 in a leap year" if i == 1 else ""
    question = rng.choice(
        (f"How many days does {MONTHS[i]} have?", f"Which month of the year is {MONTHS[i]}?")
    )
    return (
        question,
        (
            f"{MONTHS[i]} is the {ordinal(i + 1)} month and has {days} days{leap}. The month after"
            f" it is {MONTHS[(i + 1) % 12]}."
        ),
    )


def roman(rng: random.Random) -> Pair:
    number = rng.randint(4, 89)
    text, rest, parts = "", number, []
    for value, sign in ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while rest >= value:
            text, rest = text + sign, rest - value
            parts.append(str(value))
    question = rng.choice(
        (f"How is {number} written in Roman numerals?", f"Which number is {text}?")
    )
    return (
        question,
        f"The number {number} is {text} in Roman numerals, because {' + '.join(parts)} = {number}.",
    )


def _hex(rng: random.Random) -> Pair:
    number = rng.randint(17, 255)
    high, low = divmod(number, 16)
    question = rng.choice((f"What is {number} in hexadecimal?", f"Which number is 0x{number:x}?"))
    return (
        question,
        f"The number {number} is 0x{number:x} in hexadecimal: {high} * 16 + {low} = {number}.",
    )


def _times(rng: random.Random) -> Pair:
    a, b = rng.randint(3, 12), rng.randint(3, 12)
    return (
        f"What is {a} times {b}?",
        f"{a} times {b} is {a * b}. Turned round, {a * b} divided by {b} is {a}.",
    )


KINDS: tuple[Callable[[random.Random], Pair], ...] = (
    _element,
    _planet,
    _country,
    _http,
    _port,
    _si,
    _conversion,
    shape,
    _nato,
    _builtin,
    _algorithm,
    _ascii,
    _calendar,
    roman,
    _hex,
    _times,
)


def one(rng: random.Random) -> Pair:
    """A single question with its short answer."""
    return rng.choice(KINDS)(rng)
