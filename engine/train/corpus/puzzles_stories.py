"""Puzzles told as small stories: stores, ages, walks, calendars, races, travel."""

from __future__ import annotations

import random
from itertools import pairwise

from engine.train.corpus.phrase import bullets, capital, listed, ordinal, say
from engine.train.corpus.puzzles_numbers import (
    Solved,
)
from engine.train.corpus.words import DAYS, GOODS, NAMES, PLACES


def running_stock(rng: random.Random) -> Solved:
    name, item, place = rng.choice(NAMES), rng.choice(GOODS), rng.choice(PLACES)
    unit = rng.choice(("crates", "boxes", "sacks", "barrels"))
    stock = start = rng.randint(20, 60)
    told, steps = [], [f"{name} starts with {start} {unit} of {item}."]
    for day in DAYS[: rng.randint(4, 6)]:
        amount = rng.randint(2, 15)
        if rng.random() < 0.5 and stock > amount:
            told.append(f"on {day} {amount} {unit} are sold")
            steps.append(f"{day}: {stock} - {amount} = {stock - amount} {unit} after the sale.")
            stock -= amount
        else:
            told.append(f"on {day} {amount} {unit} arrive")
            steps.append(f"{day}: {stock} + {amount} = {stock + amount} {unit} after the delivery.")
            stock += amount
    question = say(
        rng,
        "{name} keeps a store in {place} with {start} {unit} of {item}. [During the week|Then]:"
        " {told}. How many {unit} are there at the end?",
        name=name,
        place=place,
        start=start,
        unit=unit,
        item=item,
        told=", ".join(told),
    )
    change = stock - start
    trend = (
        f"{abs(change)} {'more' if change > 0 else 'fewer'} than"
        if change
        else "exactly as many as"
    )
    answer = say(
        rng,
        "[At the end|After the last day] {name} has **{stock}** {unit} of {item}.\n\n[The store"
        " began with|The starting stock was] {start}, and the days changed it like"
        " this:\n{days}\n\nThat is {trend} at the start.",
        name=name,
        stock=stock,
        unit=unit,
        item=item,
        start=start,
        trend=trend,
        days=bullets(steps[1:]),
    )
    return question, steps, answer


def ages(rng: random.Random) -> Solved:
    names = rng.sample(NAMES, rng.randint(4, 5))
    ages = [rng.randint(8, 40)]
    told = [f"{names[0]} is {ages[0]} years old"]
    steps = [f"{names[0]} is {ages[0]}."]
    for previous, name in pairwise(names):
        gap = rng.randint(2, 9)
        older = rng.random() < 0.6 or ages[-1] <= gap
        told.append(f"{name} is {gap} years {'older' if older else 'younger'} than {previous}")
        age = ages[-1] + gap if older else ages[-1] - gap
        steps.append(f"{name}: {ages[-1]} {'+' if older else '-'} {gap} = {age}.")
        ages.append(age)
    order = sorted(zip(ages, names, strict=True))
    total = sum(ages)
    question = say(
        rng,
        "{told}. [Who is the oldest, and how old are they together?|Who is oldest and what is "
        "the sum of the ages?]",
        told="; ".join(told),
    )
    sums = " + ".join(map(str, ages))
    answer = say(
        rng,
        "The oldest is **{who}**, who is {age}. Together they are **{total}** years old.\n\n[The"
        " ages one by one|Working along the chain]:\n{steps}\n\nFrom youngest to oldest the order"
        " is {order}. The sum is {sums} = {total}.",
        who=order[-1][1],
        age=order[-1][0],
        total=total,
        steps=bullets(steps),
        sums=sums,
        order=listed([f"{n} ({a})" for a, n in order]),
    )
    return question, [*steps, f"Sum: {sums} = {total}.", f"The largest is {order[-1][0]}."], answer


def walk(rng: random.Random) -> Solved:
    name, x, y = rng.choice(NAMES), 0, 0
    told, steps = [], ["The start is (0, 0)."]
    for _ in range(rng.randint(5, 7)):
        word, dx, dy = rng.choice(
            (("north", 0, 1), ("south", 0, -1), ("east", 1, 0), ("west", -1, 0))
        )
        n = rng.randint(1, 6)
        x, y = x + dx * n, y + dy * n
        told.append(f"{n} {word}")
        steps.append(f"{capital(word)} by {n}: now at ({x}, {y}).")
    question = say(
        rng,
        "{name} starts at (0, 0) on a grid, where east adds to the first number and north to the"
        " second. The moves are: {told}. [Where does {name} end|What is the final position], and"
        " how far is it from the start in steps?",
        name=name,
        told=", ".join(told),
    )
    answer = say(
        rng,
        "{name} ends at **({x}, {y})**.\n\nThe path [was|went like this]:\n{steps}\n\nGoing"
        " straight back takes {ax} steps along the first axis and {ay} along the second, which is"
        " {ax} + {ay} = **{d}** steps.",
        name=name,
        x=x,
        y=y,
        steps=bullets(steps, "1."),
        ax=abs(x),
        ay=abs(y),
        d=abs(x) + abs(y),
    )
    return question, [*steps, f"Distance: {abs(x)} + {abs(y)} = {abs(x) + abs(y)}."], answer


def calendar(rng: random.Random) -> Solved:
    start, name = rng.randrange(7), rng.choice(NAMES)
    jumps = [rng.randint(3, 30) for _ in range(3)]
    day, steps, told = start, [f"The first day is {DAYS[start]}."], []
    for i, jump in enumerate(jumps, 1):
        weeks, rest = divmod(jump, 7)
        new = (day + jump) % 7
        steps.append(
            f"{jump} = {weeks} * 7 + {rest}, so from {DAYS[day]} go on by {rest} to {DAYS[new]}."
        )
        told.append(f"the {ordinal(i)} visit is {jump} days {'later' if i == 1 else 'after that'}")
        day = new
    question = say(
        rng,
        "{name} sees the dentist on a {day}; {told}. [On which weekday is the last visit?|What"
        " weekday is the final visit?]",
        name=name,
        day=DAYS[start],
        told=", ".join(told),
    )
    answer = say(
        rng,
        "The last visit of {name} is on a **{day}**.\n\n[Whole weeks do not change the weekday, so"
        " only the remainder counts|Seven days bring the same weekday back, so I keep the"
        " remainder]:\n{steps}\n\nIn total {total} days pass between the first and the last visit,"
        " because {sum} = {total}.",
        name=name,
        day=DAYS[day],
        steps=bullets(steps, "1."),
        total=sum(jumps),
        sum=" + ".join(map(str, jumps)),
    )
    return question, steps, answer


def intervals(rng: random.Random) -> Solved:
    names = rng.sample(NAMES, 4)
    spans = {}
    for n in names:
        start = rng.randint(8, 14)
        spans[n] = (start, start + rng.randint(3, 7))
    low, high = spans[names[0]]
    steps = [f"{names[0]}: from {low} to {high}."]
    for n in names[1:]:
        s, e = spans[n]
        low, high = max(low, s), min(high, e)
        steps.append(f"With {n} ({s} to {e}): latest start {low}, earliest end {high}.")
    told = "; ".join(f"{n} is free from {s} to {e}" for n, (s, e) in spans.items())
    fits = low < high
    verdict = (
        f"They can all meet **from {low} to {high}**."
        if fits
        else "There is **no hour** that suits all."
    )
    reason = (
        f"The common time lasts {high} - {low} = {high - low} hours."
        if fits
        else f"The latest start is {low}, but the earliest end is {high}, which is not later."
    )
    question = say(
        rng, "{told}. [When can all four meet?|Which hours suit all of them?]", told=told
    )
    lines = [f"{n}: {s} to {e}, which is {e - s} hours" for n, (s, e) in spans.items()]
    answer = say(
        rng,
        "{verdict}\n\n[The free hours are|These are the free hours]:\n{lines}\n\n[A common time"
        " begins with the latest start and stops at the earliest end.|The latest start and the"
        " earliest end bound the common time.] {reason}",
        verdict=verdict,
        lines=bullets(lines),
        reason=reason,
    )
    return question, [*steps, f"{low} is {'before' if fits else 'not before'} {high}."], answer


def race_order(rng: random.Random) -> Solved:
    names = rng.sample(NAMES, 5)
    told = [f"{a} finished before {b}" for a, b in pairwise(names)]
    shuffled = rng.sample(told, len(told))
    steps = [f"The winner is never named second, so {names[0]} is first."]
    steps += [
        f"{a} is before {b}, so {b} is {ordinal(i)}." for i, (a, b) in enumerate(pairwise(names), 2)
    ]
    question = say(
        rng,
        "In a race, {told}, and nobody came between those pairs. [What was the order?|List the"
        " places.]",
        told="; ".join(shuffled),
    )
    places = [f"{capital(ordinal(i))} place: {n}" for i, n in enumerate(names, 1)]
    answer = say(
        rng,
        "The order was:\n{places}\n\n**{first}** won and {last} came last. [The clues form a"
        " chain|Each clue links two neighbours], so I started with the only runner who is never"
        " behind another one and followed the links. {middle} was right in the middle, with {a} and"
        " {b} in front and {c} and {d} behind.",
        places=bullets(places),
        first=names[0],
        last=names[4],
        middle=names[2],
        a=names[0],
        b=names[1],
        c=names[3],
        d=names[4],
    )
    return question, steps, answer


def travel(rng: random.Random) -> Solved:
    stops = rng.sample(PLACES, rng.randint(4, 5))
    hour, minute = rng.randint(6, 10), rng.choice((0, 10, 15, 20, 30, 45))
    steps, told, clock = [f"Start in {stops[0]} at {hour}:{minute:02d}."], [], hour * 60 + minute
    rows = []
    for a, b in pairwise(stops):
        ride = rng.choice((15, 20, 25, 30, 35, 40, 45, 50))
        told.append(f"{ride} minutes to {b}")
        before = f"{clock // 60}:{clock % 60:02d}"
        clock += ride
        after = f"{clock // 60}:{clock % 60:02d}"
        steps.append(f"From {a} to {b}: {before} plus {ride} minutes is {after}.")
        rows.append(f"{b}: arrival {after} after {ride} minutes")
    total = clock - hour * 60 - minute
    question = say(
        rng,
        "A bus leaves {start} at {time}. It takes {told}. [When does it reach {end}|At what time is"
        " it in {end}], and how long is the ride?",
        start=stops[0],
        time=f"{hour}:{minute:02d}",
        told=listed(told),
        end=stops[-1],
    )
    answer = say(
        rng,
        "The bus reaches {end} at **{time}**.\n\n[The stops on the way|Stop by"
        " stop]:\n{rows}\n\nThe whole ride from {start} to {end} takes {total} minutes, that is {h}"
        " h {m} min.",
        end=stops[-1],
        time=f"{clock // 60}:{clock % 60:02d}",
        rows=bullets(rows),
        start=stops[0],
        total=total,
        h=total // 60,
        m=total % 60,
    )
    return question, steps, answer
