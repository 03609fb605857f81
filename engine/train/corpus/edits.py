"""Edits of code: a wish, the code before and after, and the list of changes."""

from __future__ import annotations

import random
import re

from engine.train.corpus.classes import class_source
from engine.train.corpus.functions import example, functions
from engine.train.corpus.phrase import listed, say
from engine.train.corpus.recipe import Function, run
from engine.train.corpus.words import MODULES

Edit = tuple[str, str, str, list[str]]


def _join(parts: list[str]) -> str:
    return "\n\n\n".join(parts)


def fix(rng: random.Random) -> Edit:
    chosen = functions(rng, 3, need="wrong")
    bad = rng.randrange(3)
    f = chosen[bad]
    before = _join([g.source(broken=i == bad) for i, g in enumerate(chosen)])
    after = _join([g.source() for g in chosen])
    wish = say(
        rng,
        "[There is a bug in|Something is wrong with|Please fix the bug in|Find and fix the mistake"
        " in] `{name}`[: {call} should give {value}.|; the expected result of {call} is {value}.|."
        " I expect {call} to return {value}.]",
        name=f.name,
        call=f"`{f.call()}`",
        value=f"`{run(f.source(), f.call())!r}`",
    )
    others = listed([f"`{g.name}`" for g in chosen if g is not f])
    return (
        wish,
        before,
        after,
        [
            f"In `{f.name}`, {f.wrong[2]}.",
            f"I replaced `{f.wrong[1]}` by `{f.wrong[0]}`.",
            f"Now {example(f).replace(' == ', ' gives ', 1)}.",
            f"I also read {others} and found no mistake there.",
        ],
    )


def rename(rng: random.Random) -> Edit:
    chosen = functions(rng, 3)
    f = rng.choice(chosen)
    new = f"{rng.choice(('compute', 'get', 'make', 'do', 'run'))}_{f.name}"
    calls = "\n".join(f"print({g.call()})" for g in chosen)
    before = f"{_join([g.source() for g in chosen])}\n\n\n{calls}"
    after = re.sub(rf"\b{f.name}\b", new, before)
    wish = say(
        rng,
        "[Rename|Please rename|I want to rename] the function `{a}` to `{b}`"
        "[.| everywhere.| and update its calls.]",
        a=f.name,
        b=new,
    )
    return (
        wish,
        before,
        after,
        [
            f"The function `{f.name}` is now called `{new}`.",
            "Its call at the end of the file uses the new name.",
            (
                f"The other functions, {listed([f'`{g.name}`' for g in chosen if g is not f])},"
                " keep theirs."
            ),
        ],
    )


def _per_function(rng: random.Random, need: str = "") -> tuple[list[Function], str]:
    chosen = functions(rng, 3, need=need)
    return chosen, listed([f"`{f.name}`" for f in chosen])


def type_hints(rng: random.Random) -> Edit:
    chosen, names = _per_function(rng)
    wish = say(
        rng, "[Add type hints to|Please annotate|Put type annotations on] {names}.", names=names
    )
    return (
        wish,
        _join([f.source(hints=False) for f in chosen]),
        _join([f.source() for f in chosen]),
        [f"`{f.name}` takes `{f.params}` and returns `{f.returns}`." for f in chosen],
    )


def docstrings(rng: random.Random) -> Edit:
    chosen, names = _per_function(rng)
    wish = say(
        rng,
        "[Add docstrings to|Please document|Write a docstring for each of] {names}.",
        names=names,
    )
    return (
        wish,
        _join([f.source(doc=False) for f in chosen]),
        _join([f.source() for f in chosen]),
        [f"`{f.name}` now says that it {f.purpose}." for f in chosen],
    )


def guards(rng: random.Random) -> Edit:
    chosen, names = _per_function(rng, need="guard")
    wish = say(
        rng,
        "[Validate the arguments of|Add input checks to|Make bad arguments fail early in] {names}.",
        names=names,
    )
    changes = []
    for f in chosen:
        test, error = f.guard.split("\n")
        reason = error.split('"')[1]
        changes.append(f"`{f.name}` checks `{test[3:-1]}` and then reports that {reason}.")
    return (
        wish,
        _join([f.source() for f in chosen]),
        _join([f.source(guard=True) for f in chosen]),
        changes,
    )


def log_calls(rng: random.Random) -> Edit:
    chosen, _ = _per_function(rng)
    module = rng.choice(MODULES)
    word = rng.choice(("calling", "enter", "start of"))

    def build(call: str, head: str) -> str:
        parts = []
        for f in chosen:
            lines = f.source().split("\n")
            parts.append("\n".join([*lines[:2], f'    {call}("{word} {f.name}")', *lines[2:]]))
        return head + _join(parts)

    wish = say(
        rng,
        "[Replace the print calls by logging|Use a logger instead of print|Switch from print "
        "to the logging module]; the logger is called {m}.",
        m=f"`{module}`",
    )
    head = f'import logging\n\nlog = logging.getLogger("{module}")\n\n\n'
    return (
        wish,
        build("print", ""),
        build("log.debug", head),
        [
            "The file imports `logging` at the top.",
            f"A logger named `{module}` replaces the prints.",
            *[f"`{f.name}` writes its message with `log.debug`." for f in chosen],
        ],
    )


def reorder(rng: random.Random) -> Edit:
    chosen, _ = _per_function(rng)
    ordered = sorted(chosen, key=lambda f: f.name)
    if ordered == chosen:
        chosen = chosen[::-1]
    wish = say(
        rng,
        "[Sort the functions by name|Put the functions into alphabetical order|Order the "
        "functions alphabetically].",
    )
    places = ("first", "second", "third")
    return (
        wish,
        _join([f.source() for f in chosen]),
        _join([f.source() for f in ordered]),
        [f"`{f.name}` comes {place}." for f, place in zip(ordered, places, strict=True)],
    )


def remove(rng: random.Random) -> Edit:
    chosen = functions(rng, 4)
    f = rng.choice(chosen)
    rest = [g for g in chosen if g is not f]
    wish = say(
        rng,
        "[Delete|Remove|Take out] the function `{name}`[; nobody uses it.|, please.| from this "
        "file.]",
        name=f.name,
    )
    return (
        wish,
        _join([g.source(hints=False) for g in chosen]),
        _join([g.source(hints=False) for g in rest]),
        [
            f"The function `{f.name}` is gone.",
            *[f"`{g.name}` stays and {g.purpose}." for g in rest],
        ],
    )


def constant(rng: random.Random) -> Edit:
    chosen, _ = _per_function(rng)
    names = rng.sample(("LIMIT", "TIMEOUT_S", "RETRIES", "BATCH", "MARGIN", "WINDOW", "DEPTH"), 3)
    old = [rng.randint(2, 90) for _ in names]
    k = rng.randrange(3)
    new = old[k] + rng.randint(1, 9)
    body = _join([f.source() for f in chosen])

    def head(values: list[int]) -> str:
        return "\n".join(f"{n} = {v}" for n, v in zip(names, values, strict=True)) + "\n\n\n"

    changed = [new if i == k else v for i, v in enumerate(old)]
    wish = say(
        rng,
        "[Set|Change|Raise] {name} [from {old} to {new}|to {new}].",
        name=f"`{names[k]}`",
        old=old[k],
        new=new,
    )
    return (
        wish,
        head(old) + body,
        head(changed) + body,
        [
            f"`{names[k]}` was {old[k]} and is now {new}.",
            *[
                f"`{n}` is still {v}."
                for i, (n, v) in enumerate(zip(names, old, strict=True))
                if i != k
            ],
            f"The functions {listed([f'`{f.name}`' for f in chosen])} are the same as before.",
        ],
    )


def class_rename(rng: random.Random) -> Edit:
    name, _, source, methods = class_source(rng)
    new = f"{rng.choice(('My', 'New', 'Basic', 'Local', 'Main'))}{name}"
    variable = rng.choice(MODULES)
    method = rng.choice(methods)[0]
    label = f"{method}_{rng.choice(('now', 'one', 'safely'))}"
    before = f"{source}\n\n\n{variable} = {name}()"
    after = re.sub(rf"\b{name}\b", new, before)
    after = re.sub(
        rf"\bdef {method}\b|\bself\.{method}\b(?=\()",
        lambda m: m.group().replace(method, label),
        after,
    )
    wish = say(
        rng,
        "[Rename|Please rename] the class `{a}` to `{b}` and its method `{c}` to `{d}`.",
        a=name,
        b=new,
        c=method,
        d=label,
    )
    return (
        wish,
        before,
        after,
        [
            f"The class `{name}` is now `{new}`.",
            f"The method `{method}` is now `{label}`.",
            f"The variable `{variable}` is made from the new class.",
        ],
    )


def class_docs(rng: random.Random) -> Edit:
    name, purpose, source, methods = class_source(rng)
    before = "\n".join(line for line in source.split("\n") if '"""' not in line)
    wish = say(
        rng,
        "[Document the class|Add docstrings to the class|Write docstrings for] `{n}`"
        "[ and its methods.|, one line each.]",
        n=name,
    )
    return (
        wish,
        before,
        source,
        [
            f"The class docstring says that it {purpose}.",
            *[f"`{m[0]}` is described: it {m[3]}." for m in methods],
        ],
    )


def add_function(rng: random.Random) -> Edit:
    chosen = functions(rng, 3)
    f = chosen[-1]
    wish = say(
        rng,
        "[Add a function|Append a function|I also need a function] `{name}` that {purpose}.",
        name=f.name,
        purpose=f.purpose,
    )
    return (
        wish,
        _join([g.source() for g in chosen[:-1]]),
        _join([g.source() for g in chosen]),
        [
            f"The new function `{f.name}` stands at the end.",
            f.how,
            f"For example, {example(f).replace(' == ', ' gives ', 1)}.",
        ],
    )
