"""Chats about a longer text in the prompt: the answer is found, copied or rearranged from it."""

from __future__ import annotations

import json
import random

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.documents import DOCUMENTS, Document
from engine.train.corpus.phrase import bullets, count_word, listed, plural, say, table


def make(rng: random.Random) -> Chat:
    """A document of 16 to 24 entries and one task on it."""
    document = rng.choice(DOCUMENTS)(rng, rng.randint(16, 24))
    question, answer = rng.choice(TASKS)(rng, document)
    body = f"# {document.title}\n\n" + "\n".join(
        f"{i}. {e.text}" for i, e in enumerate(document.entries, 1)
    )
    order = rng.choice(("{q}\n\n{b}", "{b}\n\n{q}", "{b}\n\nTask: {q}"))
    return ask("long_context", order.format(q=question, b=body), answer)


def _choose(
    rng: random.Random, d: Document, low: int = 4, high: int = 9
) -> tuple[str, str, list[int]]:
    """A field, a value of it, and the places of the entries that have it."""
    options = []
    for key in d.keys:
        for value in sorted({str(e.fields[key]) for e in d.entries}):
            hits = [i for i, e in enumerate(d.entries) if e.fields[key] == value]
            options.append(
                (abs(len(hits) - 9) if not low <= len(hits) <= high else 0, key, value, hits)
            )
    best = min(o[0] for o in options)
    _, key, value, hits = rng.choice([o for o in options if o[0] == best])
    return key, value, hits


def many(noun: str) -> str:
    """Plural of a document's noun."""
    return "entries" if noun == "entry" else f"{noun}s"


def _filter(rng: random.Random, d: Document) -> tuple[str, str]:
    key, value, hits = _choose(rng, d, 8, 12)
    question = say(
        rng,
        "[List every {n} whose {k} is {v}.|Find all {m} with {k} {v} and copy them.|Which {m} have"
        " {v} as {k}? Quote each of them.|Copy out all {m} for the {k} {v}.]",
        n=d.noun,
        m=many(d.noun),
        k=key,
        v=value,
    )
    lines = [f"Number {i + 1}: {d.entries[i].text}" for i in hits]
    return question, say(
        rng,
        "[There are {c} {m} with {k} {v}|The {k} {v} occurs in {c} {m}|I found {c} {m} for"
        " {v}]:\n\n{l}\n\n{e}",
        c=count_word(len(hits)),
        m=many(d.noun),
        k=key,
        v=value,
        l=bullets(lines),
        e=_total(rng, d, hits, key),
    )


def _total(rng: random.Random, d: Document, hits: list[int], asked: str) -> str:
    first, last = d.entries[hits[0]].fields, d.entries[hits[-1]].fields
    key = next(k for k in d.keys if k != asked)
    text = say(
        rng,
        "[The first of them is number {a} and the last is number {b}|They run from number {a} to"
        " number {b}]. [In the first the {k} is {x}, in the last it is {y}.|The {k} goes from {x}"
        " to {y}.]",
        a=hits[0] + 1,
        b=hits[-1] + 1,
        k=key,
        x=first[key],
        y=last[key],
    )
    return (
        f"{text} The other {plural(len(d.entries) - len(hits), d.noun, many(d.noun))} do not match."
    )


def _range(rng: random.Random, d: Document) -> tuple[str, str]:
    size = rng.randint(9, 12)
    start = rng.randint(0, len(d.entries) - size)
    hits = list(range(start, start + size))
    question = say(
        rng,
        "[Copy the {m} from number {a} to number {b} word for word.|Repeat {m} {a} to {b}"
        " exactly.|Quote numbers {a} to {b}.]",
        m=many(d.noun),
        a=start + 1,
        b=start + size,
    )
    lines = "\n".join(f"{i + 1}. {d.entries[i].text}" for i in hits)
    return question, say(
        rng,
        "[Here are the {m} from {a} to {b}|These are numbers {a} to {b}]:\n\n{l}\n\n[That makes {c}"
        " {m}.|These {c} {m} are copied without any change.] {e}",
        m=many(d.noun),
        a=start + 1,
        b=start + size,
        l=lines,
        c=count_word(size),
        e=say(
            rng,
            "[The document has {n} in all.|There are {n} {m} in the whole text.]",
            n=len(d.entries),
            m=many(d.noun),
        ),
    )


def _backwards(rng: random.Random, d: Document) -> tuple[str, str]:
    size = rng.randint(8, 10)
    hits = list(range(len(d.entries) - 1, len(d.entries) - 1 - size, -1))
    question = say(
        rng,
        "[Give me the last {c} {m}, newest first.|List the final {c} {m} in reverse order.]",
        c=count_word(size),
        m=many(d.noun),
    )
    lines = [f"Number {i + 1}: {d.entries[i].text}" for i in hits]
    return question, say(
        rng,
        "[The last {c} {m}, starting from the end|In reverse order]:\n\n{l}\n\n[The list starts"
        " with number {a} and ends with number {b}.|I stopped at number {b}.] {e}",
        c=count_word(size),
        m=many(d.noun),
        l=bullets(lines),
        a=hits[0] + 1,
        b=hits[-1] + 1,
        e=_frequent(d),
    )


def _frequent(d: Document) -> str:
    key = d.keys[0]
    counts: dict[str, int] = {}
    for e in d.entries:
        counts[str(e.fields[key])] = counts.get(str(e.fields[key]), 0) + 1
    top = max(counts, key=lambda v: counts[v])
    return f"In the whole text the most frequent {key} is {top}, with {counts[top]} {many(d.noun)}."


def _table(rng: random.Random, d: Document) -> tuple[str, str]:
    size = rng.randint(9, 12)
    start = rng.randint(0, len(d.entries) - size)
    names = [k for k in d.entries[0].fields if k != "unit"][:4]
    rows = [(i + 1, *[d.entries[i].fields[k] for k in names]) for i in range(start, start + size)]
    question = say(
        rng,
        "[Make a table of|Turn into a table] the {m} {a} to {b} with the columns {c}.",
        m=many(d.noun),
        a=start + 1,
        b=start + size,
        c=listed(names),
    )
    return question, say(
        rng,
        "[Here is the table|The {m} as a table]:\n\n{t}\n\n[Each row is one {n} of the text.|The"
        " first column is the number of the {n}.] {e}",
        m=many(d.noun),
        n=d.noun,
        t=table(("number", *names), rows),
        e=_frequent(d),
    )


def _json(rng: random.Random, d: Document) -> tuple[str, str]:
    key, value, hits = _choose(rng, d, 8, 11)
    names = [k for k in d.entries[0].fields if k not in ("unit", key)][:3]
    rows = [
        json.dumps({"id": i + 1, **{k: d.entries[i].fields[k] for k in names}}, ensure_ascii=False)
        for i in hits
    ]
    question = say(
        rng,
        "[Return as JSON|Extract as a JSON list] all {m} with {k} {v}; keep {n}.",
        m=many(d.noun),
        k=key,
        v=value,
        n=listed(names),
    )
    body = "[\n  " + ",\n  ".join(rows) + "\n]"
    return question, say(
        rng,
        "[The {m} with {k} {v}|Extracted for the {k} {v}]:\n\n```json\n{b}\n```\n\n[The list has"
        " {c} items.|There are {c} items in it.] {e}",
        m=many(d.noun),
        k=key,
        v=value,
        b=body,
        c=count_word(len(hits)),
        e=_total(rng, d, hits, key),
    )


def _groups(rng: random.Random, d: Document) -> tuple[str, str]:
    key = d.keys[0]
    question = say(
        rng,
        "[Group the first {c} {m} by {k}.|Sort the first {c} {m} into groups, one for each {k}.]",
        c=12,
        m=many(d.noun),
        k=key,
    )
    groups: dict[str, list[str]] = {}
    for i, e in enumerate(d.entries[:12], 1):
        groups.setdefault(str(e.fields[key]), []).append(f"{i}: {e.text}")
    parts = "\n\n".join(
        f"**{name}** ({len(lines)})\n{bullets(lines)}" for name, lines in groups.items()
    )
    return question, say(
        rng,
        "[The first twelve {m}, grouped by {k}|Grouped by {k}]:\n\n{p}\n\n[That gives {c}"
        " groups.|There are {c} groups.]",
        m=many(d.noun),
        k=key,
        p=parts,
        c=count_word(len(groups)),
    )


def _lookup(rng: random.Random, d: Document) -> tuple[str, str]:
    hits = sorted(rng.sample(range(len(d.entries)), 9))
    key = d.keys[0]
    question = say(
        rng,
        "[Who or what is the {k} in numbers {l}? Quote each {n}.|Look up the numbers {l}: name the"
        " {k} and quote the {n}.]",
        k=key,
        l=listed([str(i + 1) for i in hits]),
        n=d.noun,
    )
    lines = [
        f'Number {i + 1}, {key} {d.entries[i].fields[key]}: "{d.entries[i].text}"' for i in hits
    ]
    return question, say(
        rng,
        "[I looked up the {c} {m}|Here are the {c} {m}]:\n\n{l}\n\n{e}",
        c=count_word(len(hits)),
        m=many(d.noun),
        l=bullets(lines),
        e=_frequent(d),
    )


TASKS = (_filter, _filter, _range, _backwards, _table, _json, _groups, _lookup)
