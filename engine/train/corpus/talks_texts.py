"""Talks that end in a text: stories, letters, teams."""

from __future__ import annotations

import random

from engine.train.corpus.phrase import bullets, listed, say
from engine.train.corpus.talks_plans import Turn, noted
from engine.train.corpus.words import (
    COLOURS,
    DAYS,
    GOODS,
    HABITATS,
    NAMES,
    PLACES,
    TOPICS,
    WEATHER,
)


def story(rng: random.Random) -> list[Turn]:
    hero, friend = rng.sample(NAMES, 2)
    place, thing, colour = rng.choice(PLACES), rng.choice(GOODS), rng.choice(COLOURS)
    weather, spot = rng.choice(WEATHER), rng.choice(HABITATS)
    ending = say(
        rng,
        "[One morning in {p}|In {p}, on a quiet morning|Early one day in {p}] {h} woke up to {w}."
        " [On the table lay|At the door stood|Under the window lay] a {c} box with {t}, and nobody"
        ' knew [where it came from|who had left it].\n\n{h} took the box to {f}. "[Have you seen'
        ' this before?|Is this yours?|Do you know whose this is?]" asked {h}. {f} looked at it for'
        ' a long time and said: "[It belongs to {s}|I saw one like it near {s}|My uncle kept such a'
        ' box at {s}]. [We should go there at once|Let us go and look]."\n\nSo they walked to {s}.'
        " [The path was wet and slow|The path was steep|It took them two hours], and [the {c} paint"
        " shone in the grey light|the box grew heavier with every step]. [Behind an old tree|Below"
        ' a flat stone|Beside the water] they found a letter. It said: ["Thank you for bringing it'
        ' back|"I hoped that someone honest would come|"Share it with the village]. [Keep half of'
        ' the {t}|Take what you need]."\n\n[In the evening|When the sun went down] {h} and {f} [sat'
        " by the fire and laughed|told the story to all of {p}]. [From that day on|Ever since], a"
        " {c} box stands in the hall of {p}, and {h} [still keeps the letter|visits {s} once a"
        " year].",
        p=place,
        h=hero,
        f=friend,
        w=weather,
        c=colour,
        t=thing,
        s=spot,
    )
    return [
        (
            say(
                rng,
                "[I want a story about|Let us write a story about|Invent a story with] {h} and {f}"
                " in {p}.",
                h=hero,
                f=friend,
                p=place,
            ),
            noted(rng, f"{hero} and {friend} in {place}"),
        ),
        (
            f"There should be a {colour} box with {thing}, {weather}, and {spot}.",
            noted(rng, f"a {colour} box, {weather} and {spot}"),
        ),
        (
            say(rng, "[Now write the story.|Please tell the whole story.|Write it down, please.]"),
            ending,
        ),
    ]


def letter(rng: random.Random) -> list[Turn]:
    sender, receiver = rng.sample(NAMES, 2)
    item, day, place = rng.choice(GOODS), rng.choice(DAYS), rng.choice(PLACES)
    count, broken = rng.randint(10, 30), rng.randint(2, 6)
    unit = rng.choice(("crates", "boxes", "sacks", "barrels"))
    tone = rng.choice(("friendly", "formal", "short and firm"))
    hello = {"friendly": f"Hello {receiver},", "formal": f"Dear {receiver},"}.get(
        tone, f"{receiver},"
    )
    bye = {"friendly": "Warm wishes", "formal": "Yours sincerely"}.get(tone, "Regards")
    ending = say(
        rng,
        "[Here is the letter|This is a {tone} letter|A draft]:\n\n{hello}\n\n[On {d} we"
        " received|Your delivery of {d} brought us] {c} {u} of {i} in {p}. [Thank you for sending"
        " them|We are glad that they came]. [Sadly|Unfortunately], {b} of the {u} were damaged, so"
        " that only {g} can be used.\n\n[We would like to ask you|Please let us ask you] to [send"
        " {b} new {u}|replace the {b} {u}] before next {d}. [The damaged ones are stored in {p}|You"
        " can look at the damaged ones in {p}] [and can be picked up at any time|until you decide"
        " what to do with them]. [If that is not possible|Should that be difficult], [we ask for"
        " the price of {b} {u} instead|please take the {b} {u} off the bill].\n\n[We have always"
        " been content with your {i}|So far your {i} has been very good] [and hope to order again"
        " soon|and we want to go on ordering].\n\n{bye}\n{s}\n\n[The tone is {tone}|I kept it"
        " {tone}]; [the numbers are {c}, {b} and {g}|the numbers {c}, {b} and {g} are from your"
        " notes]. [Tell me if you want it shorter.|Shall I change the date?]",
        tone=tone,
        hello=hello,
        d=day,
        c=count,
        u=unit,
        i=item,
        p=place,
        b=broken,
        g=count - broken,
        bye=bye,
        s=sender,
    )
    return [
        (
            (
                f"I need a letter to {receiver}. On {day} {count} {unit} of {item} came to {place},"
                f" but {broken} were damaged."
            ),
            noted(rng, f"{count} {unit} of {item}, {broken} of them damaged"),
        ),
        (
            f"My name is {sender}, and I want new ones within a week.",
            noted(rng, f"a letter from {sender} to {receiver}"),
        ),
        (
            say(
                rng,
                "[Make it {t} and write it now.|Write the letter; it should be {t}.|The tone should"
                " be {t}. Go ahead.]",
                t=tone,
            ),
            ending,
        ),
    ]


def teams(rng: random.Random) -> list[Turn]:
    people = rng.sample(NAMES, 6)
    skills = [rng.choice(TOPICS) for _ in people]
    colours = rng.sample(COLOURS, 2)
    swap = (people[1], people[2])
    first, second = [people[i] for i in (0, 2, 4)], [people[i] for i in (1, 3, 5)]
    know = dict(zip(people, skills, strict=True))

    def group(colour: str, members: list[str]) -> str:
        return f"**Team {colour}**\n" + bullets(
            [
                say(rng, "{p}, who [knows {s}|is good at {s}|brings {s}]", p=p, s=know[p])
                for p in members
            ]
        )

    place, day = rng.choice(PLACES), rng.choice(DAYS)
    ending = say(
        rng,
        "[After the change the teams are|The teams now]:\n\n{a}\n\n{b}\n\n{x} and {y} have changed"
        " places. [Both teams have three people|Each team still has three people]. They meet on {d}"
        " in {p}; {f} leads the first team and {g} the second. [If one of them is ill, {h} can step"
        " in.|{h} writes the notes.] [Each team should choose a task that fits what its members"
        " know.|Let each team start with what its members know best.]",
        a=group(colours[0], first),
        b=group(colours[1], second),
        x=swap[0],
        y=swap[1],
        d=day,
        p=place,
        f=first[0],
        g=second[-1],
        h=first[1],
    )
    told = listed([f"{p} ({s})" for p, s in know.items()])
    before = (
        f"{listed(people[0:2] + people[4:5])} in team {colours[0]},"
        f" {listed([people[2], people[3], people[5]])} in team {colours[1]}"
    )
    return [
        (f"I have six people: {told}.", noted(rng, "six people with their skills")),
        (f"Put {before}.", noted(rng, before)),
        (
            say(
                rng,
                "[Now swap {x} and {y}|Let {x} and {y} change places] and list both teams. They"
                " meet on {d} in {p}.",
                x=swap[0],
                y=swap[1],
                d=day,
                p=place,
            ),
            ending,
        ),
    ]
