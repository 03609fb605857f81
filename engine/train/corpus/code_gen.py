"""Chats that ask for new code: modules of functions, classes and small programs."""

from __future__ import annotations

import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.classes import class_source
from engine.train.corpus.functions import example, functions
from engine.train.corpus.phrase import bullets, count_word, listed, say
from engine.train.corpus.recipe import Function, run
from engine.train.corpus.words import GOODS, MODULES, NAMES


def make(rng: random.Random) -> Chat:
    """A request for code and an answer whose code runs."""
    kind = rng.choice((_module, _module, _module, _class, _class, _pipeline))
    question, answer = kind(rng)
    return ask("code_gen", question, answer)


def _opening(rng: random.Random, what: str) -> str:
    return say(
        rng,
        "[Here is|Below is|This is|The following is] {what}[.|, written in plain Python.|, ready to"
        " copy.|; it needs only the standard library.]",
        what=what,
    )


def _module(rng: random.Random) -> tuple[str, str]:
    chosen = functions(rng, rng.choice((3, 3, 4)))
    module = rng.choice(MODULES)
    wishes = [f"`{f.name}`, which {f.purpose}" for f in chosen]
    hints = rng.random() < 0.7
    question = say(
        rng,
        "[Write|Please write|I need|Can you write] a Python module named {module} with "
        "[these functions|the following functions|{count} functions]:\n{wishes}\n"
        "[{hint}|{hint} Show an example of each.|{hint} Add a short explanation.]",
        module=module,
        count=count_word(len(chosen)),
        wishes=bullets(wishes, rng.choice(("-", "1.", "*"))),
        hint="Use type hints." if hints else "Keep it simple, without type hints.",
    )
    code = "\n\n\n".join(f.source(hints=hints) for f in chosen)
    opening = _opening(rng, f"the module `{module}` with {count_word(len(chosen))} functions")
    return question, f"{opening}\n\n```python\n{code}\n```\n\n{_notes(rng, chosen)}"


def _notes(rng: random.Random, chosen: list[Function]) -> str:
    style = rng.randrange(3)
    if style == 0:
        lines = [f"`{f.name}`: {f.how}" for f in chosen]
        head = say(rng, "[How it works|What each part does|Notes]:")
        return f"{head}\n{bullets(lines)}\n\n{_examples(rng, chosen[:2])}"
    if style == 1:
        return f"{_examples(rng, chosen)}\n\n" + " ".join(
            f"`{f.name}` {f.purpose}. {f.how}" for f in chosen[:2]
        )
    tests = "\n".join(f"assert {example(f)}" for f in chosen)
    head = say(rng, "[You can check it with|These checks pass|A quick test]:")
    closing = say(rng, "[In short|To sum up|In a few words]: {how}", how=chosen[0].how)
    return f"{head}\n\n```python\n{tests}\n```\n\n{closing}"


def _examples(rng: random.Random, chosen: list[Function]) -> str:
    lines = [f"`{f.call()}` gives `{run(f.source(), f.call())!r}`" for f in chosen]
    return f"{say(rng, '[Examples|Some calls and their results|For example]')}:\n{bullets(lines)}"


def _class(rng: random.Random) -> tuple[str, str]:
    name, purpose, source, chosen = class_source(rng)
    variable = f"{rng.choice(MODULES)}_{rng.choice(('one', 'two', 'main', 'test', 'copy', 'data'))}"
    names = listed([f"`{m[0]}`" for m in chosen])
    question = say(
        rng,
        "[Write|Create|Please implement|I would like] a Python class {name} that {purpose}. [It"
        " should have the methods|Give it the methods|It needs] {names}. [Explain each method"
        " briefly.|Add docstrings.|Explain how to use it.] [Show it with an object called|Call the"
        " object in your example|My object will be named] `{variable}`.",
        name=f"`{name}`",
        purpose=purpose,
        names=names,
        variable=variable,
    )
    opening = _opening(rng, f"the class `{name}`, which {purpose}")
    notes = bullets([f"`{m[0]}` {m[3]}." for m in chosen], rng.choice(("-", "*")))
    return (
        question,
        (
            f"{opening}\n\n```python\n{source}\n```\n\n"
            f"{say(rng, '[The methods in short|What the methods do|Overview]')}:\n{notes}\n\n"
            f"{_use(rng, name, variable)}"
        ),
    )


def _use(rng: random.Random, name: str, variable: str) -> str:
    person = rng.choice(NAMES)
    return say(
        rng,
        "[Create one with|Start with|To use it, write] `{variable} = {name}()` and call its"
        " methods. [Every object has data of its own, so two of them never mix.|Nothing is shared"
        " between objects, which keeps tests simple.|{person} can read the code from top to"
        " bottom.]",
        variable=variable,
        name=name,
        person=person,
    )


def _pipeline(rng: random.Random) -> tuple[str, str]:
    """A program that reads records, keeps some and prints a report."""
    item, other = rng.sample([g.split()[-1] for g in GOODS], 2)
    limit = rng.randint(10, 40)
    rows = [(item, rng.randint(5, 60)), (other, rng.randint(5, 60)), (item, rng.randint(5, 60))]
    entry = rng.choice(("record", "order", "delivery", "sale", "entry"))
    amount = rng.choice(("count", "amount", "price", "weight"))
    kept = [(n, a) for n, a in rows if a >= limit]
    data = ", ".join(f'("{n}", {a})' for n, a in rows)
    source = (
        f"{entry.upper()}_DATA = [{data}]\n\n\n"
        f"def select({entry}_list, limit):\n"
        f'    """Keep each {entry} with at least the given {amount}."""\n'
        f"    return [({'name'}, {amount}) for name, {amount} in {entry}_list if {amount} >="
        " limit]\n\n\n"
        f"def totals({entry}_list):\n"
        f'    """Add up the {amount} of every name."""\n'
        "    result = {}\n"
        f"    for name, {amount} in {entry}_list:\n"
        f"        result[name] = result.get(name, 0) + {amount}\n"
        "    return result\n\n\n"
        "def main():\n"
        f"    chosen = select({entry.upper()}_DATA, {limit})\n"
        f"    for name, {amount} in sorted(totals(chosen).items()):\n"
        f'        print(f"{{name}}: {{{amount}}}")\n\n\n'
        'if __name__ == "__main__":\n    main()'
    )
    sums: dict[str, int] = {}
    for name, value in kept:
        sums[name] = sums.get(name, 0) + value
    output = "\n".join(f"{n}: {v}" for n, v in sorted(sums.items())) or "(nothing)"
    question = say(
        rng,
        "[Write|Please write] a small Python program that [reads|takes] {entry} data for {item} and"
        " {other}, keeps each {entry} whose {amount} is at least {limit}, adds up the {amount} by"
        " name and prints a sorted report. Use this data: {data}.",
        entry=entry,
        item=item,
        other=other,
        amount=amount,
        limit=limit,
        data=data,
    )
    opening = _opening(rng, f"a program with three small functions for the {entry} data")
    explain = say(
        rng,
        "`select` keeps {kept} of the {n} rows, because the others are under {limit}. `totals` adds"
        " up what is left by name, and `main` prints the result in alphabetical order.",
        kept=count_word(len(kept)),
        n=count_word(len(rows)),
        limit=limit,
    )
    head = say(rng, "[It prints|The output is|Running it shows]")
    return (
        question,
        f"{opening}\n\n```python\n{source}\n```\n\n{head}:\n\n```\n{output}\n```\n\n{explain}",
    )
