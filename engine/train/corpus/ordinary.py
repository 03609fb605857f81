"""Short everyday chats, so that the model also knows how to stop early."""

from __future__ import annotations

import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.concepts import CONCEPTS
from engine.train.corpus.functions import example, functions
from engine.train.corpus.phrase import say
from engine.train.corpus.questions import one
from engine.train.corpus.words import DAYS, NAMES, TOPICS


def make(rng: random.Random) -> Chat:
    """A greeting, a single fact, one function, or a sentence of thanks."""
    return rng.choice((_greeting, _fact, _fact, _function, _idea, _self, _thanks))(rng)


def _greeting(rng: random.Random) -> Chat:
    name = rng.choice(NAMES)
    return ask(
        "ordinary",
        say(
            rng, "[Hello|Hi|Good morning|Hey|Good evening][!|.|, I am {n}.|, how are you?]", n=name
        ),
        say(
            rng,
            "[Hello|Hi|Good to see you|Welcome]! [What can I do for you?|How can I help you"
            " today?|What would you like to know?|Tell me what you need.]",
        ),
    )


def _fact(rng: random.Random) -> Chat:
    question, answer = one(rng)
    thinking = rng.random() < 0.2
    return ask(
        "ordinary",
        question,
        answer,
        reasoning="This is a short question with a known answer." if thinking else "",
    )


def _function(rng: random.Random) -> Chat:
    (f,) = functions(rng, 1)
    question = say(
        rng,
        "[Write a function|I need a Python function|Give me one function] `{n}` that {p}.",
        n=f.name,
        p=f.purpose,
    )
    return ask(
        "ordinary",
        question,
        f"```python\n{f.source()}\n```\n\n{f.how} For example,"
        f" {example(f).replace(' == ', ' gives ', 1)}.",
    )


def _idea(rng: random.Random) -> Chat:
    c = rng.choice(CONCEPTS)
    question = say(
        rng, "[In one sentence, what is {n}?|Define {n} briefly.|{n}, in short?]", n=c.name
    )
    return ask("ordinary", question, f"{c.definition}. {c.analogy}.")


def _self(rng: random.Random) -> Chat:
    question = say(rng, "[Who are you?|What are you?|What can you do?|Are you a person?]")
    answer = say(
        rng,
        "I am a [very small|tiny] language model, trained from scratch on made-up chats, code and"
        " old books. I can [explain simple ideas, write short Python functions and sort small"
        " lists|answer simple questions and edit short pieces of code], but I make mistakes, so"
        " check what I say.",
    )
    return ask("ordinary", question, answer)


def _thanks(rng: random.Random) -> Chat:
    day, topic = rng.choice(DAYS), rng.choice(TOPICS)
    return ask(
        "ordinary",
        say(
            rng,
            "[Thank you|Thanks][!|, that helped.| for your help with {t}.] [See you on"
            " {d}.|Goodbye.|Bye!]",
            t=topic,
            d=day,
        ),
        say(
            rng,
            "[You are welcome|Any time|Glad to help]! [See you soon.|Have a good {d}.|Good luck"
            " with {t}.]",
            t=topic,
            d=day,
        ),
    )
