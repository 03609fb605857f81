"""Talks that end in a plan: trips, menus, weeks, budgets, courses, gardens."""

from __future__ import annotations

import random

from engine.train.corpus.phrase import bullets, capital, count_word, listed, plural, say, table
from engine.train.corpus.words import (
    COLOURS,
    DAYS,
    DISHES,
    INGREDIENTS,
    MONTHS,
    NAMES,
    PLACES,
    TOPICS,
)

Turn = tuple[str, str]


def noted(rng: random.Random, what: str) -> str:
    return say(
        rng,
        "[Noted|Good|All right|Understood|Thank you|Got it]: {what}. [What else should I"
        " know?|Anything else?|Tell me more when you are ready.|What comes next?|Shall I go on?]",
        what=what,
    )


def trip(rng: random.Random) -> list[Turn]:
    name, month = rng.choice(NAMES), rng.choice(MONTHS)
    towns = rng.sample(PLACES, 3)
    friends = rng.sample([n for n in NAMES if n != name], 2)
    nights = [rng.randint(1, 4) for _ in towns]
    price = rng.randint(2, 6) * 10
    liked = rng.sample(TOPICS, 2)
    total = sum(nights)
    stays = [f"{town} ({plural(n, 'night')})" for town, n in zip(towns, nights, strict=True)]
    legs = []
    for i, (town, n) in enumerate(zip(towns, nights, strict=True)):
        start = 1 + sum(nights[:i])
        legs.append(
            f"{town}, {plural(n, 'night')}: "
            + say(
                rng,
                "arrive on day {d}, [walk through the old town|visit the market|see the"
                " harbour|climb the tower] and [have dinner with {f}|talk about {t} with {f}|meet"
                " {f} in the evening].",
                d=start,
                f=rng.choice(friends),
                t=rng.choice(liked),
            )
        )
    ending = say(
        rng,
        "**Trip in {month} for {name}, {f}**\n\n{legs}\n\n{n} nights at {p} coins each cost {n} *"
        " {p} = {c} coins. [Since you like|Because you enjoy] {a} and {b}, [leave one free"
        " afternoon in {t} for that|I kept one afternoon in {t} open]. [Pack light, and check the"
        " weather before you leave.|Book the first night early; the rest can wait.] [Shall I change"
        " anything?|Tell me if a stop should be longer.]",
        month=month,
        name=name,
        f=listed(friends),
        legs=bullets(legs, "1."),
        n=total,
        p=price,
        c=total * price,
        a=liked[0],
        b=liked[1],
        t=towns[-1],
    )
    return [
        (
            say(
                rng,
                "[I am {n} and I plan a trip in {m}|My name is {n}; I want to travel in {m}|Help me"
                " plan a trip in {m}. I am {n}]. {f} come along.",
                n=name,
                m=month,
                f=listed(friends),
            ),
            noted(rng, f"a trip in {month} with {listed(friends)}"),
        ),
        (
            f"We want to see {listed(stays)}. A night costs {price} coins.",
            noted(rng, f"{total} nights in three towns, {price} coins each"),
        ),
        (
            f"We like {liked[0]} and {liked[1]}. "
            + say(
                rng,
                "[Write the whole plan, please.|Now make the plan.|Please put "
                "everything together.]",
            ),
            ending,
        ),
    ]


def menu(rng: random.Random) -> list[Turn]:
    guests, factor = rng.choice(NAMES), rng.randint(2, 4)
    dish = rng.choice(DISHES)
    parts = rng.sample(INGREDIENTS, 5)
    amounts = [rng.randint(1, 6) for _ in parts]
    unit = [rng.choice(("cups", "spoons", "pieces", "handfuls")) for _ in parts]
    rows = [
        (p, f"{a} {u}", f"{a * factor} {u}") for p, a, u in zip(parts, amounts, unit, strict=True)
    ]
    ending = say(
        rng,
        "For {k} people, everything is multiplied by {f}:\n\n{t}\n\n[Then cook it like this|The"
        " work goes in this order]:\n{s}\n\n[Taste it before {g} arrives.|Keep a bowl for {g}.] [A"
        " larger pot needs a few minutes more.|Use the largest pot that you have.]",
        k=4 * factor,
        f=factor,
        g=guests,
        t=table(("ingredient", "for 4", f"for {4 * factor}"), rows),
        s=bullets(
            [
                f"Wash and cut the {parts[0]} and the {parts[1]}.",
                f"Warm the {parts[2]} slowly.",
                f"Add the {parts[3]} and stir for {rng.randint(5, 15)} minutes.",
                f"Finish with the {parts[4]} and let it rest for {rng.randint(3, 9)} minutes.",
            ],
            "1.",
        ),
    )
    recipe = listed([f"{a} {u} of {p}" for p, a, u in zip(parts, amounts, unit, strict=True)])
    return [
        (
            f"I want to cook {dish} for {guests}. For four people I use {recipe}.",
            noted(rng, f"{dish} for four with {listed(parts)}"),
        ),
        (
            say(
                rng,
                "[Now {k} people will come.|We will be {k} people.|It has to be enough for {k}.]"
                " Scale the recipe and tell me the order of the work.",
                k=4 * factor,
            ),
            ending,
        ),
    ]


def week(rng: random.Random) -> list[Turn]:
    name = rng.choice(NAMES)
    days = DAYS[: rng.randint(5, 6)]
    tasks = {
        d: f"{rng.choice(('call', 'visit', 'write to', 'meet', 'help'))} {rng.choice(NAMES)}"
        for d in days
    }
    hours = {d: rng.randint(8, 17) for d in days}
    moved = rng.choice(days)
    new = rng.choice([h for h in range(8, 18) if h != hours[moved]])
    lines = []
    for d in days:
        h = new if d == moved else hours[d]
        part = "morning" if h < 12 else "afternoon"
        lines.append(
            say(
                rng,
                "{d} at {h}: {t}. [That leaves the {o} free.|It is your only {p} appointment.|Keep"
                " the {o} for other work.|The {p} is taken, then.]",
                d=d,
                h=h,
                t=tasks[d],
                p=part,
                o="afternoon" if part == "morning" else "morning",
            )
        )
    early = min(days, key=lambda d: new if d == moved else hours[d])
    ending = say(
        rng,
        "[Here is the week of {n}|The plan for {n}|{n}, this is your week]:\n\n{l}\n\nOnly {m}"
        " changed, from {a} to {b}. [The earliest start is on|You start earliest on] {e}. [There"
        " are {c} appointments in all|That makes {c} appointments], [and the weekend is quiet|one a"
        " day].",
        n=name,
        l=bullets(lines),
        m=moved,
        a=hours[moved],
        b=new,
        e=early,
        c=count_word(len(days)),
    )
    told = "; ".join(f"{d} at {hours[d]} {tasks[d]}" for d in days)
    return [
        (
            f"I am {name}. My week: {told}.",
            noted(rng, f"{count_word(len(days))} appointments for {name}"),
        ),
        (
            say(
                rng,
                "[Move {m} to {b}|The one on {m} is now at {b}|On {m} I can only come at {b}] and"
                " [show me the whole week|list the week again].",
                m=moved,
                b=new,
            ),
            ending,
        ),
    ]


def budget(rng: random.Random) -> list[Turn]:
    name, income = rng.choice(NAMES), rng.randint(9, 20) * 10
    costs = {
        c: rng.randint(5, 25)
        for c in rng.sample(("rent", "food", "travel", "books", "phone", "clothes", "repairs"), 5)
    }
    cut, amount = rng.choice(list(costs)), rng.randint(1, 4)
    left, rows = income, []
    for c, v in costs.items():
        value = v - amount if c == cut else v
        rows.append((c, value, left - value))
        left -= value
    spent = income - left
    big = max(rows, key=lambda r: r[1])
    ending = say(
        rng,
        "[Here is the plan for|The budget of] {n} with less for {c}:\n\n{t}\n\n[All costs together"
        " are {s}, so {l} of {i} are left|Of {i} coins {s} are spent and {l} are left]. The largest"
        " item is {b} with {v}. [Because {c} went down by {a}, there are {a} more to save.|Without"
        " the cut of {a} for {c}, only {m} would be left.]\n\n[Two hints|Advice]: [put the {l}"
        " coins aside at the start of the month|save first and spend later], and [look at {b}"
        " again, because a small cut there helps most|write down every coin for {b}].",
        n=name,
        c=cut,
        t=table(("item", "cost", "left after it"), rows),
        s=spent,
        l=left,
        i=income,
        b=big[0],
        v=big[1],
        a=amount,
        m=left - amount,
    )
    return [
        (
            (
                f"My income is {income} coins a month. I am {name}. I spend "
                f"{listed([f'{v} on {c}' for c, v in costs.items()])}."
            ),
            noted(rng, f"an income of {income} and five kinds of costs"),
        ),
        (
            say(
                rng,
                "[I can spend {a} less on {c}.|Cut {c} by {a}.|Take {a} away from {c}.] [Make the"
                " budget.|Now show the whole budget.]",
                a=amount,
                c=cut,
            ),
            ending,
        ),
    ]


def course(rng: random.Random) -> list[Turn]:
    topic, name, weeks = rng.choice(TOPICS), rng.choice(NAMES), rng.randint(4, 5)
    hours, day = rng.randint(2, 5), rng.choice(DAYS)
    goals = (
        "learn the words and the tools",
        "copy a simple example",
        "repeat the example without help",
        "try a harder task and note every mistake",
        "make something of your own and show it to a friend",
    )
    lines = [
        say(
            rng,
            "Week {w}: {g}. [Read for one hour and practise for {p}.|Spend {p} on practice and one"
            " hour on reading.] [On {d}, look back at what worked.|Meet on {d} to compare"
            " notes.|Finish on {d} with a short test.]",
            w=w,
            g=g,
            p=plural(hours - 1, "hour"),
            d=day,
        )
        for w, g in enumerate(goals[:weeks], 1)
    ]
    ending = say(
        rng,
        "[Here is a plan for|A study plan for] {n} in {t}, {k} weeks long with {h} hours a"
        " week:\n\n{l}\n\nIn all that is {k} * {h} = {s} hours. [If a week fails, repeat it instead"
        " of rushing.|Do not skip a week; repeat it if needed.] [{c} needs patience, and small"
        " steps are enough.|Good luck with {t}!]",
        n=name,
        t=topic,
        k=weeks,
        h=hours,
        l=bullets(lines),
        s=weeks * hours,
        c=capital(topic),
    )
    return [
        (
            say(
                rng,
                "[I want to learn|Teach me|I would like to start with] {t}. I am {n}.",
                t=topic,
                n=name,
            ),
            noted(rng, f"{name} wants to learn {topic}"),
        ),
        (
            f"I have {hours} hours a week, and {day} is my free day.",
            noted(rng, f"{hours} hours a week with {day} free"),
        ),
        (f"Make a plan for {weeks} weeks.", ending),
    ]


def garden(rng: random.Random) -> list[Turn]:
    beds = rng.sample(COLOURS, 4)
    crops = rng.sample(
        [i for i in INGREDIENTS if i not in ("butter", "cream", "flour", "eggs", "cheese", "rice")],
        4,
    )
    months = sorted(rng.sample(range(2, 7), 2))
    rows = [
        (b, c, rng.randint(2, 9), MONTHS[rng.choice(months)])
        for b, c in zip(beds, crops, strict=True)
    ]
    name = rng.choice(NAMES)
    lines = [
        say(
            rng,
            "The {b} bed: sow {n} rows of {c} in {m}. [Water them every {w} days|They need water"
            " every {w} days] and [pull weeds once a week|keep the soil loose].",
            b=b,
            n=n,
            c=c,
            m=m,
            w=rng.randint(2, 4),
        )
        for b, c, n, m in rows
    ]
    total = sum(r[2] for r in rows)
    ending = say(
        rng,
        "[The garden of {n}|A plan for {n}]:\n\n{l}\n\n[Together that makes|In all there are] {s} ="
        " {t} rows. [The largest bed is the {g} one|Most of the work is in the {g} bed]. [Next"
        " year, move each plant to another bed so that the soil can rest.|Change the beds next"
        " year, because the same plant tires the soil.] [Start with {m}; there is nothing to sow"
        " before.|The first month with work is {m}.]",
        n=name,
        l=bullets(lines),
        s=" + ".join(str(r[2]) for r in rows),
        t=total,
        g=max(rows, key=lambda r: r[2])[0],
        m=min((r[3] for r in rows), key=MONTHS.index),
    )
    return [
        (
            f"I am {name} and have four garden beds: {listed(beds)}.",
            noted(rng, f"four beds, {listed(beds)}"),
        ),
        (
            "; ".join(f"{c} go into the {b} bed, {n} rows in {m}" for b, c, n, m in rows) + ".",
            noted(rng, f"{listed(crops)} in four beds"),
        ),
        (
            say(rng, "[Write the plan.|Turn this into a plan, please.|What is the whole plan?]"),
            ending,
        ),
    ]
