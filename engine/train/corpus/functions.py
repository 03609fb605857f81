"""A library of small Python functions with names and constants left open.

Every entry is correct by construction and is executed whenever an example of it is shown, so the
corpus never claims an output that the code does not give.
"""

from __future__ import annotations

import random

from engine.train.corpus import recipes_numbers, recipes_texts
from engine.train.corpus.recipe import Function, Recipe, run
from engine.train.corpus.words import DISHES, GOODS, NAMES, PLACES

_LIST = ("values", "numbers", "readings", "scores", "prices", "samples", "weights", "ages")
_ONE = ("value", "number", "reading", "score", "price", "sample", "weight", "age")

RECIPES: tuple[Recipe, ...] = (*recipes_numbers.RECIPES, *recipes_texts.RECIPES)


def ints(rng: random.Random, count: int = 0) -> list[int]:
    """A short list of small distinct numbers."""
    return rng.sample(range(1, 60), count or rng.randint(4, 7))


def _literals(rng: random.Random, kinds: str) -> tuple[str, ...]:
    out: list[str] = []
    members: list[int] = []
    for kind in kinds.split(","):
        if kind in ("ints", "sorted"):
            members = ints(rng)
            out.append(str(sorted(members) if kind == "sorted" else members))
        elif kind == "rows":
            out.append(str([ints(rng, 3) for _ in range(rng.randint(2, 3))]))
        elif kind == "table":
            out.append(str({rng.choice(GOODS).split()[-1]: n for n in ints(rng, 3)}))
        elif kind == "words":
            words = [rng.choice(GOODS).split()[-1] for _ in range(rng.randint(4, 5))]
            out.append(str([*words, words[0]]))
        else:
            out.append(repr(_scalar(rng, kind, members)))
    return tuple(out)


def _scalar(rng: random.Random, kind: str, members: list[int]) -> int | str:
    if kind == "member":
        return rng.choice(members)
    if kind == "word":
        return rng.choice(["level", "radar", "civic", "rotor", *rng.sample(NAMES, 4)])
    if kind == "brackets":
        return rng.choice(["(a[b]c)", "([)]", "((x)", "[1, (2)]", "(])", "[(])", "([])"])
    if kind == "text":
        form = rng.choice(("{} sent {} to {}", "{} stores {} near {}", "{} likes {} from {}"))
        return form.format(
            rng.choice(NAMES), rng.choice(GOODS + DISHES), rng.choice(PLACES)
        ).lower()
    low, high = {
        "int": (5, 60),
        "small": (2, 4),
        "n": (3, 8),
        "big": (65, 240),
        "low": (10, 20),
        "high": (30, 45),
    }[kind]
    return rng.randint(low, high)


def fill(rng: random.Random, recipe: Recipe) -> Function:
    """Choose names and example arguments for a recipe."""
    which = rng.randrange(len(_LIST))
    name = rng.choice(recipe.names.split("|"))

    def put(text: str) -> str:
        return text.replace("$xs", _LIST[which]).replace("$x", _ONE[which]).replace("$f", name)

    wrong = recipe.wrong
    return Function(
        name=name,
        params=put(recipe.params),
        returns=recipe.returns,
        doc=put(recipe.doc),
        body=put(recipe.body),
        how=put(recipe.how),
        purpose=put(recipe.purpose),
        arguments=_literals(rng, recipe.inputs),
        wrong=(put(wrong[0]), put(wrong[1]), put(wrong[2])),
        guard=put(recipe.guard),
    )


def functions(rng: random.Random, count: int, *, need: str = "") -> list[Function]:
    """Different functions; ``need`` "wrong" or "guard" keeps those that have one."""
    pool = [r for r in RECIPES if need == "" or (r.wrong[0] if need == "wrong" else r.guard)]
    return [fill(rng, recipe) for recipe in rng.sample(pool, count)]


def example(function: Function) -> str:
    """``call == value``, computed by running the function."""
    return f"{function.call()} == {run(function.source(), function.call())!r}"
