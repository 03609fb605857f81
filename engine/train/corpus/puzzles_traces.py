"""Puzzles that run an algorithm: sorting, a stack, a graph search, sets."""

from __future__ import annotations

import random

from engine.train.corpus.phrase import bullets, count_word, listed, say
from engine.train.corpus.puzzles_numbers import (
    Solved,
)
from engine.train.corpus.words import GOODS, NAMES


def insertion(rng: random.Random) -> Solved:
    numbers = rng.sample(range(1, 50), rng.randint(5, 6))
    done: list[int] = []
    steps = []
    for number in numbers:
        place = sum(1 for n in done if n < number)
        done.insert(place, number)
        where = "at the front" if place == 0 else f"after {done[place - 1]}"
        steps.append(f"Take {number} and put it {where}: {done}.")
    question = say(
        rng,
        "[Sort|Please sort|Put in order] the numbers {numbers} [by insertion|with insertion sort]"
        " and show the list after every step.",
        numbers=listed([str(n) for n in numbers]),
    )
    answer = say(
        rng,
        "The sorted list is **{done}**.\n\n[Insertion sort|The method] takes the numbers one by one"
        " and puts each into its place among those before it. [The {count} steps were|Step by"
        " step]:\n{steps}\n\nThe smallest number is {low} and the largest is {high}.",
        done=done,
        count=count_word(len(steps)),
        steps=bullets(steps, "1."),
        low=done[0],
        high=done[-1],
    )
    return question, steps, answer


def bubble(rng: random.Random) -> Solved:
    numbers = rng.sample(range(1, 40), 5)
    current = list(numbers)
    steps, passes = [], []
    for end in range(len(current) - 1, 0, -1):
        swaps = 0
        for i in range(end):
            if current[i] > current[i + 1]:
                steps.append(f"{current[i]} > {current[i + 1]}, so they swap.")
                current[i], current[i + 1] = current[i + 1], current[i]
                swaps += 1
        passes.append(f"{swaps} swap{'s' * (swaps != 1)}, the list is {current}")
        steps.append(f"End of pass {len(passes)}: {current}.")
        if not swaps:
            break
    question = say(
        rng,
        "[Run|Carry out] bubble sort on {numbers}. [How does the list look after each pass?|Show"
        " every pass.]",
        numbers=numbers,
    )
    lines = [f"Pass {i}: {text}." for i, text in enumerate(passes, 1)]
    answer = say(
        rng,
        "The list ends as **{current}**.\n\n{lines}\n\n[Each pass moves the largest remaining"
        " number to the end|After a pass the largest remaining number is in place]. There were"
        " {count} passes in all.",
        current=current,
        lines=bullets(lines),
        count=count_word(len(passes)),
    )
    return question, steps, answer


def stack_trace(rng: random.Random) -> Solved:
    stack: list[int] = []
    told, steps, popped = [], [], []
    for _ in range(rng.randint(7, 9)):
        if stack and rng.random() < 0.35:
            value = stack.pop()
            popped.append(value)
            told.append("pop")
            steps.append(f"pop removes {value}, which leaves {stack}.")
        else:
            value = rng.randint(1, 30)
            stack.append(value)
            told.append(f"push {value}")
            steps.append(f"push {value} makes it {stack}.")
    question = say(
        rng,
        "[A stack is empty at first.|Start with an empty stack.] [Carry out|Execute] {told}. [What"
        " is on the stack now?|What remains, from bottom to top?]",
        told=", ".join(told),
    )
    out = listed([str(p) for p in popped]) if popped else "nothing"
    answer = say(
        rng,
        "[The stack is|From bottom to top the stack holds] **{stack}**.\n\n[Here is the trace|The"
        " operations one by one]:\n{steps}\n\nThe values that were popped are {out}. [A stack"
        " returns the newest value first.|The last value in is always the first one out.]",
        stack=stack,
        steps=bullets(steps, "1."),
        out=out,
    )
    return question, steps, answer


def set_split(rng: random.Random) -> Solved:
    a, b = rng.sample(NAMES, 2)
    pool = rng.sample([g.split()[-1] for g in GOODS[:24]], 8)
    pool = list(dict.fromkeys(pool))
    left, right = sorted(rng.sample(pool, 5)), sorted(rng.sample(pool, 5))
    steps = [f"{item}: {b} has it too." if item in right else f"{item}: only {a}." for item in left]
    steps += [f"{item}: only {b}." for item in right if item not in left]
    both = [i for i in left if i in right]
    only_a, only_b = [i for i in left if i not in right], [i for i in right if i not in left]
    question = f"{a} has {listed(left)}. {b} has {listed(right)}. " + say(
        rng,
        "[Which things do both have, and what does only one of them have?|What is shared and what"
        " is not?]",
    )
    answer = (
        f"Both have **{listed(both) or 'nothing'}**.\n\n- Only {a} has"
        f" {listed(only_a) or 'nothing'}.\n- Only {b} has {listed(only_b) or 'nothing'}.\n\n"
        + say(
            rng,
            "[I went through the list of {a} and looked for each thing in the list of {b}.|For each"
            " thing of {a} I checked whether {b} has it.] The check in detail:\n{steps}\n\nTogether"
            " there are {n} different things.",
            a=a,
            b=b,
            steps=bullets(steps),
            n=count_word(len(set(left) | set(right))),
        )
    )
    return question, steps, answer


def bfs(rng: random.Random) -> Solved:
    nodes = list("ABCDEFG")[: rng.randint(6, 7)]
    edges: dict[str, list[str]] = {n: [] for n in nodes}
    for i, node in enumerate(nodes[1:], 1):
        for other in rng.sample(nodes[:i], min(i, rng.choice((1, 1, 2)))):
            edges[other].append(node)
    queue, seen, steps, order = ["A"], ["A"], [], []
    while queue:
        node = queue.pop(0)
        order.append(node)
        new = [n for n in edges[node] if n not in seen]
        seen += new
        queue += new
        gained = f"adds {listed(new)}" if new else "adds nothing new"
        steps.append(f"Visit {node}: it {gained}; the queue is {' '.join(queue) or 'empty'}.")
    roads = "; ".join(f"{n} leads to {listed(edges[n])}" for n in nodes if edges[n])
    question = say(
        rng,
        "[In a graph|In a directed graph], {roads}. [In what order does breadth-first search from A"
        " visit the nodes?|Give the order of breadth-first search that starts at A.]",
        roads=roads,
    )
    answer = say(
        rng,
        "The order is **{order}**.\n\n[Breadth-first search takes nodes from the front of a queue"
        " and adds unseen neighbours at its end|The search always continues with the node that has"
        " waited longest]:\n{steps}\n\nAll {n} nodes were reached, and {last} came last.",
        order=" ".join(order),
        steps=bullets(steps, "1."),
        n=count_word(len(order)),
        last=order[-1],
    )
    return question, steps, answer
