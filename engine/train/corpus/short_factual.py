"""Chats with several short questions at once; the answers come from the tables of facts."""

from __future__ import annotations

import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.phrase import bullets, count_word, say
from engine.train.corpus.questions import KINDS, shape


def make(rng: random.Random) -> Chat:
    """Eight to ten questions, mixed or on one subject, and a numbered answer to each."""
    count = rng.randint(8, 10)
    if rng.random() < 0.3:
        kind = rng.choice([k for k in KINDS if k is not shape])
        makers = [kind] * count
        head = "[Some|A few] questions [on one subject|of the same kind]"
    else:
        makers = rng.sample(KINDS, count) if count <= len(KINDS) else list(KINDS)
        head = (
            "[Quick questions|A short quiz|Please answer briefly|Some facts, please|I have {n}"
            " questions]"
        )
    pairs: dict[str, str] = {}
    for maker in makers:
        question, answer = maker(rng)
        if answer not in pairs.values():
            pairs.setdefault(question, answer)
    mark = rng.choice(("1.", "1.", "-"))
    prompt = say(rng, head, n=count_word(len(pairs))) + f":\n{bullets(list(pairs), mark)}"
    opening = say(rng, "[Here are the answers|The answers, in order|In order|Answers]:")
    closing = say(
        rng,
        "[That covers all {n} questions.|These are the {n} answers.|Each answer is a fact that any "
        "reference book confirms.|Ask again if you want more detail on one of them.]",
        n=count_word(len(pairs)),
    )
    return ask(
        "short_factual", prompt, f"{opening}\n{bullets(list(pairs.values()), mark)}\n\n{closing}"
    )
