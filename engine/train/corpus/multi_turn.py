"""Conversations of several turns whose last answer gathers what was said before."""

from __future__ import annotations

import random
from typing import Any

from engine.train.corpus.chat_sample import Chat
from engine.train.corpus.phrase import bullets, say
from engine.train.corpus.talks_plans import budget, course, garden, menu, trip, week
from engine.train.corpus.talks_texts import letter, story, teams
from engine.train.corpus.words import (
    DAYS,
    MONTHS,
    NAMES,
)


def make(rng: random.Random) -> Chat:
    """Two to four turns; the last user turn asks for the whole."""
    turns = rng.choice(KINDS)(rng)
    turns[-1] = (
        turns[-1][0],
        turns[-1][1] + _appendix(rng, [question for question, _ in turns[:-1]]),
    )
    messages: list[dict[str, Any]] = []
    for question, answer in turns:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return Chat("multi_turn", tuple(messages))


def _appendix(rng: random.Random, told: list[str]) -> str:
    """A recap of what the user said and what to do next."""
    recap = [f'{say(rng, "[You said|You told me|From you]")}: "{text}"' for text in told]
    steps = [
        say(
            rng,
            "[Check the numbers|Read it once more|Look over the list] [today|on {d}|before {d}].",
            d=rng.choice(DAYS),
        ),
        say(
            rng,
            "[Show it to|Talk about it with|Send a copy to] {n}[.|, who may have seen something"
            " that I missed.|, and ask for an honest opinion.]",
            n=rng.choice(NAMES),
        ),
        say(
            rng,
            "[Change what does not fit|Cross out what you do not need] and [tell me what is"
            " missing|send it back to me].",
        ),
        say(
            rng,
            "[Keep one copy at home|Write the date on it|Put it where you can see it][.|, so that"
            " nothing gets lost.|; it is easy to forget.]",
        ),
        say(
            rng,
            "[Begin with the smallest part|Start with the easiest part] [on {d}|in {m}][.|, and do"
            " the rest later.]",
            d=rng.choice(DAYS),
            m=rng.choice(MONTHS),
        ),
    ]
    chosen = [steps[i] for i in sorted(rng.sample(range(5), rng.randint(3, 4)))]
    first = say(rng, "**[What I used|From our talk|Your notes]**\n{r}", r=bullets(recap))
    second = say(
        rng,
        "**[Next steps|What to do now|To do]**\n{s}",
        s=bullets(chosen, rng.choice(("1.", "-"))),
    )
    return f"\n\n{first}\n\n{second}"


KINDS = (trip, menu, week, story, budget, letter, course, teams, garden)
