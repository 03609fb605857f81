"""Puzzles about numbers: each gives a question, its steps and an answer."""

from __future__ import annotations

import random

from engine.train.corpus.phrase import bullets, capital, count_word, listed, say
from engine.train.corpus.words import GOODS, NAMES, PLACES

Solved = tuple[str, list[str], str]


def euclid(rng: random.Random) -> Solved:
    while True:
        factor = rng.randint(2, 9)
        a, b = factor * rng.randint(5, 40), factor * rng.randint(3, 30)
        x, y = max(a, b), min(a, b)
        steps = []
        while y:
            steps.append(f"{x} = {x // y} * {y} + {x % y}, so the pair becomes {y} and {x % y}.")
            x, y = y, x % y
        if len(steps) > 2:
            break
    question = say(
        rng,
        "[What is|Find|Compute] the greatest common divisor of {a} and {b}, and reduce the fraction"
        " {a}/{b}.",
        a=a,
        b=b,
    )
    answer = say(
        rng,
        "The greatest common divisor of {a} and {b} is **{x}**.\n\n[Euclid's method divides again"
        " and again|The method of Euclid keeps the remainders]:\n{steps}\n\nThe last remainder is"
        " zero, so {x} is the answer. Dividing both by {x}: {a} / {x} = {p} and {b} / {x} = {q}."
        " The fraction {a}/{b} becomes {p}/{q}.",
        a=a,
        b=b,
        x=x,
        p=a // x,
        q=b // x,
        steps=bullets(steps, "1."),
    )
    return question, steps, answer


def binary(rng: random.Random) -> Solved:
    number = rng.randint(40, 250)
    steps, digits, n = [], "", number
    while n:
        steps.append(f"{n} / 2 = {n // 2}, remainder {n % 2}.")
        digits = str(n % 2) + digits
        n //= 2
    powers = [2 ** (len(digits) - 1 - i) for i, d in enumerate(digits) if d == "1"]
    question = say(
        rng,
        "[Write the number {n} in binary|Convert the number {n} to binary|Please convert {n} to"
        " binary] [and check the result|and verify it with powers of two].",
        n=number,
    )
    answer = say(
        rng,
        "In binary, {n} is **{digits}**.\n\nThe remainders, read from the last to the first, are"
        " the digits:\n{steps}\n\n[Check|To check]: {powers} = {n}. [The sum is right.|That"
        " matches.]",
        n=number,
        digits=digits,
        steps=bullets(steps),
        powers=" + ".join(map(str, powers)),
    )
    return question, [*steps, f"Read upwards: {digits}."], answer


def shopping(rng: random.Random) -> Solved:
    name = rng.choice(NAMES)
    steps, told, rows, total = [], [], [], 0
    for item in rng.sample(GOODS, rng.randint(4, 5)):
        count, price = rng.randint(2, 6), rng.randint(2, 12)
        total_before, total = total, total + count * price
        told.append(f"{count} of {item} at {price} coins each")
        rows.append(f"{capital(item)}: {count} * {price} = {count * price} coins.")
        steps.append(
            f"{count} * {price} = {count * price}; {total_before} + {count * price} = {total}."
        )
    paid = (total // 10 + rng.randint(1, 3)) * 10
    question = say(
        rng,
        "{name} buys {told}, and pays with {paid} coins. [What is the change?|How much comes"
        " back?]",
        name=name,
        told=listed(told),
        paid=paid,
    )
    answer = say(
        rng,
        "The change is **{back}** coins.\n\n[The bill has these lines|Each line of the"
        " bill]:\n{rows}\n\nAll lines together make {total} coins. {name} gave {paid}, so {paid} -"
        " {total} = {back} coins come back. [The dearest line is the one that matters most for the"
        " total.|A quick check: {total} + {back} = {paid}.]",
        back=paid - total,
        rows=bullets(rows),
        total=total,
        paid=paid,
        name=name,
    )
    return question, [*steps, f"Change: {paid} - {total} = {paid - total}."], answer


def factors(rng: random.Random) -> Solved:
    numbers = [
        rng.choice((2, 3, 5, 7)) * rng.choice((4, 6, 9, 10, 11, 13)) * rng.choice((2, 3, 5))
        for _ in "ab"
    ]
    steps, lines, found = [], [], []
    for number in numbers:
        n, divisor, factors = number, 2, []
        while n > 1:
            while n % divisor == 0:
                steps.append(f"{n} / {divisor} = {n // divisor}.")
                factors.append(divisor)
                n //= divisor
            divisor += 1
        steps.append(f"So {number} = {' * '.join(map(str, factors))}.")
        lines.append(f"{number} = {' * '.join(map(str, factors))}")
        found.append(factors)
    shared = sorted(set(found[0]) & set(found[1]))
    question = say(
        rng,
        "[Factorise|Find the prime factors of] {a} and {b}. Which primes do they share?",
        a=numbers[0],
        b=numbers[1],
    )
    answer = say(
        rng,
        "[The factorisations are|Here are the prime factors]:\n{lines}\n\nThe first number has {ca}"
        " prime factors and the second has {cb}, counted with repeats. The primes that occur in"
        " both are **{shared}**. [I divided by the smallest prime that fits until nothing but one"
        " was left.|Each division used the smallest divisor that leaves no remainder, so every"
        " factor is prime.] [Multiplying the factors again gives back {a} and {b}.|As a check, the"
        " products are {a} and {b} again.]",
        lines=bullets(lines),
        ca=count_word(len(found[0])),
        cb=count_word(len(found[1])),
        a=numbers[0],
        b=numbers[1],
        shared=listed([str(p) for p in shared]) if shared else "none",
    )
    return question, steps, answer


def statistics(rng: random.Random) -> Solved:
    numbers = rng.sample(range(2, 40), 5)
    numbers[-1] += (5 - sum(numbers) % 5) % 5
    ordered = sorted(numbers)
    steps, total = [f"Sorted: {ordered}."], 0
    for n in numbers:
        steps.append(f"{total} + {n} = {total + n}.")
        total += n
    mean, median = total // 5, ordered[2]
    steps += [
        f"Mean: {total} / 5 = {mean}.",
        f"Median: {median}.",
        f"Range: {ordered[-1]} - {ordered[0]} = {ordered[-1] - ordered[0]}.",
    ]
    place = rng.choice(PLACES)
    question = say(
        rng,
        "[A station in {place} measured|In {place} five readings were taken:|The scores from"
        " {place} are] {numbers}. Give the mean, the median and the range.",
        place=place,
        numbers=listed([str(n) for n in numbers]),
    )
    answer = say(
        rng,
        "For the five numbers from {place}:\n- The mean is **{mean}**, because the sum is {total}"
        " and {total} / 5 = {mean}.\n- The median is **{median}**, the middle one of the sorted"
        " list {ordered}.\n- The range is **{spread}**, since {high} - {low} ="
        " {spread}.\n\n{compare}",
        place=place,
        mean=mean,
        total=total,
        median=median,
        ordered=ordered,
        spread=ordered[-1] - ordered[0],
        high=ordered[-1],
        low=ordered[0],
        compare=(
            "Mean and median agree."
            if mean == median
            else (
                f"The mean is {'above' if mean > median else 'below'} the median by"
                f" {abs(mean - median)}."
            )
        ),
    )
    return question, steps, answer
