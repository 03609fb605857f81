"""Chats that ask for an explanation, composed from the notes in ``concepts``."""

from __future__ import annotations

import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.concepts import CONCEPTS, Concept
from engine.train.corpus.phrase import bullets, capital, count_word, say
from engine.train.corpus.words import DAYS, NAMES, PLACES, TOPICS


def make(rng: random.Random) -> Chat:
    """A question about one or two ideas and an answer of several short paragraphs."""
    kind = rng.choice((_plain, _plain, _audience, _compare, _compare, _steps, _questions))
    question, answer = kind(rng)
    if rng.random() < 0.6:
        before, head = _occasion(rng)
        question, answer = f"{before} {question}", f"{head}\n\n{answer}"
    return ask("explanation", question, answer)


def _occasion(rng: random.Random) -> tuple[str, str]:
    """Who asks and what for, and an opening that takes it up."""
    slots = {
        "n": rng.choice(NAMES),
        "p": rng.choice(PLACES),
        "d": rng.choice(DAYS),
        "t": rng.choice(TOPICS),
    }
    event = rng.choice(
        ("a talk", "a lesson", "an evening course", "a short speech", "a club meeting")
    )
    before = say(
        rng,
        "[I am {n} and I prepare {e} in {p} for {d}.|My name is {n}; on {d} I give {e} in {p}.|On"
        " {d} there is {e} in {p}, and I, {n}, have to speak.|{n} here, from the {t} group in {p}."
        " I need this for {e} on {d}.]",
        e=event,
        **slots,
    )
    head = say(
        rng,
        "[{n}, here is something for {e} on {d}.|For {e} in {p}, you could say this.|Good luck on"
        " {d}, {n}! You can use this text.|Here is a text for {p}, {n}.]",
        e=event,
        **slots,
    )
    return before, head


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if not text.startswith("I ") else text


def _why(rng: random.Random, c: Concept) -> str:
    return say(
        rng,
        "[It matters because {why}.|The reason behind it: {why}.|The idea exists because {why}.]",
        why=c.why,
    )


def _how(rng: random.Random, c: Concept) -> str:
    if rng.random() < 0.5:
        return say(
            rng,
            "[How it works|Step by step|The parts in order]:\n{s}",
            s=bullets([f"{capital(s)}." for s in c.steps], rng.choice(("1.", "-"))),
        )
    a, b, d, e = c.steps
    return say(
        rng,
        "First, {a}. [Then|Next|After that], {b}. [Then|Next|After that], {d}. [Finally|Last],"
        " {e}.",
        a=a,
        b=b,
        d=d,
        e=e,
    )


def _example(rng: random.Random, c: Concept) -> str:
    return say(
        rng,
        "[For example|As an example|Here is an example|A case from practice]: {x}.",
        x=(
            _lower(c.example)
            if c.example.split()[0] in ("A", "An", "The", "If", "In", "Among", "Two", "At", "With")
            else c.example
        ),
    )


def _pitfall(rng: random.Random, c: Concept) -> str:
    return say(
        rng,
        "[One thing to watch|A common mistake|Keep in mind|A caution]: {p}.",
        p=_lower(c.pitfall),
    )


def _use(rng: random.Random, c: Concept) -> str:
    return say(rng, "[{u}.|Where it is used: {l}.|In practice, {l}.]", u=c.use, l=_lower(c.use))


def _closing(rng: random.Random, c: Concept) -> str:
    return say(rng, "[In short|To sum up|In one line|The main point]: {x}.", x=c.contrast)


def _related(rng: random.Random, c: Concept) -> tuple[str, str]:
    """The wish to hear about a second idea, and a paragraph that grants it."""
    other = rng.choice([o for o in CONCEPTS if o is not c])
    wish = say(
        rng,
        "[ Add a word on {o}.| Mention {o} as well.| Then say a little about {o}.| Also touch on"
        " {o}.]",
        o=other.name,
    )
    near = (
        "[A related idea|A neighbour of this idea|From the same field]"
        if c.field == other.field
        else ("[A different idea|An idea from another field|The other idea]")
    )
    head = say(rng, f"{near} is {{o}}. ", o=other.name)
    return (
        wish,
        f"{head}{other.definition}. {other.analogy}. {_example(rng, other)} {_pitfall(rng, other)}",
    )


def _plain(rng: random.Random) -> tuple[str, str]:
    c = rng.choice(CONCEPTS)
    wish, related = _related(rng, c)
    question = say(
        rng,
        "[Explain {n}.|What is {n}?|Can you explain {n}?|Please explain {n} with an example.|Tell"
        " me about {n}.|I want to understand {n}.|How would you explain {n}?|Describe {n} and where"
        " it is used.|Give me an overview of {n}.]",
        n=c.name,
    )
    middle = [_how(rng, c), _example(rng, c), _pitfall(rng, c), _use(rng, c)]
    if rng.random() < 0.5:
        middle[1:] = rng.sample(middle[1:], 3)
    body = [f"{c.definition}. {c.analogy}.", _why(rng, c), *middle, related, _closing(rng, c)]
    return question + wish, "\n\n".join(body)


_AUDIENCES = (
    ("a child", "Think of something you know"),
    ("a beginner", "Start with a picture"),
    ("a colleague", "A picture helps"),
    ("a student", "To picture it"),
    ("my grandmother", "Picture this"),
    ("a new team member", "A comparison first"),
    ("a visitor", "Imagine this"),
)


def _audience(rng: random.Random) -> tuple[str, str]:
    c = rng.choice(CONCEPTS)
    who, start = rng.choice(_AUDIENCES)
    wish, related = _related(rng, c)
    question = say(
        rng,
        "[Explain {n} to {who}.|How can I explain {n} to {who}?|I have to explain {n} to {who}."
        " What should I say?|Explain {n} to {who}, with an analogy.]",
        n=c.name,
        who=who,
    )
    body = [
        f"{start}. {c.analogy}.",
        f"{say(rng, '[Now the idea itself|More exactly|Said plainly]')}: {_lower(c.definition)}.",
        _why(rng, c),
        _how(rng, c),
        _example(rng, c),
        _pitfall(rng, c),
        related,
        say(
            rng,
            "[A good question to end with|You can close with a question]: where have you seen {n}"
            " before? {u}.",
            n=c.name,
            u=c.use,
        ),
    ]
    return question + wish, "\n\n".join(body)


def _compare(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(CONCEPTS, 2)
    question = say(
        rng,
        "[Compare {a} and {b}.|What do {a} and {b} have in common, and how do they differ?|Explain"
        " {a} and {b} side by side.|Explain first {a} and then {b}.]",
        a=a.name,
        b=b.name,
    )
    field = (
        f"Both belong to {a.field}."
        if a.field == b.field
        else f"The first belongs to {a.field}, the second to {b.field}."
    )

    def part(c: Concept) -> str:
        return (
            f"**{capital(c.name)}.** {c.definition}. {c.analogy}. {_why(rng, c)} {_how(rng, c)}\n\n"
            f"{_example(rng, c)} {_pitfall(rng, c)}"
        )

    ending = say(
        rng,
        "[The difference in one line|In short|To compare them]: with {a}, {x}; with {b}, {y}.",
        a=a.name,
        x=a.contrast,
        b=b.name,
        y=b.contrast,
    )
    uses = f"{_use(rng, a)} {_use(rng, b)}"
    return question, "\n\n".join([field, part(a), part(b), uses, ending])


def _steps(rng: random.Random) -> tuple[str, str]:
    c = rng.choice(CONCEPTS)
    wish, related = _related(rng, c)
    question = say(
        rng,
        "[How does {n} work, step by step?|Walk me through {n}.|Give me the steps of {n}.|Explain"
        " {n} in {k} steps.]",
        n=c.name,
        k=count_word(len(c.steps)),
    )
    body = [
        say(
            rng,
            "[In {k} steps|Step by step|The {k} steps]:\n{s}",
            k=count_word(len(c.steps)),
            s=bullets([f"{capital(s)}." for s in c.steps], "1."),
        ),
        (
            f"{say(rng, '[What it is|Behind the steps|The whole picture]')}:"
            f" {_lower(c.definition)}. {c.analogy}."
        ),
        _why(rng, c),
        _example(rng, c),
        _use(rng, c),
        _pitfall(rng, c),
        related,
        _closing(rng, c),
    ]
    return question + wish, "\n\n".join(body)


def _questions(rng: random.Random) -> tuple[str, str]:
    c = rng.choice(CONCEPTS)
    wish, related = _related(rng, c)
    asked = [
        ("What is it?", f"{c.definition}."),
        ("What is it like?", f"{c.analogy}."),
        ("Why does it exist?", f"Because {c.why}."),
        ("How does it work?", f"{capital('; '.join(c.steps))}."),
        ("Can you give an example?", f"{c.example}."),
        ("What goes wrong?", f"{c.pitfall}."),
        ("Who uses it?", f"{c.use}."),
        ("What should I remember?", f"{capital(c.contrast)}."),
    ]
    keep = sorted(rng.sample(range(len(asked)), 7))
    question = say(
        rng,
        "[Make a list of questions and answers about|Write a short FAQ about|Explain as a dialogue]"
        " {n}.",
        n=c.name,
    )
    lines = [f"**{asked[i][0]}**\n{asked[i][1]}" for i in keep]
    head = say(
        rng, "[Questions and answers about|A short FAQ about|Here is a small FAQ on] {n}:", n=c.name
    )
    return question + wish, "\n\n".join([head, *lines, related])
