"""Chats with tools: calls in the model's own markup, reports on results, structured output."""

from __future__ import annotations

import json
import random

from engine.train.corpus.chat_sample import Chat
from engine.train.corpus.functions import functions
from engine.train.corpus.phrase import bullets, capital, count_word, listed, ordinal, say, table
from engine.train.corpus.tools import TOOLS, Call, draw, system_message, tool_calls
from engine.train.corpus.words import (
    DAYS,
    GOODS,
    MODULES,
    NAMES,
    PLACES,
    SERVICES,
    WEATHER,
)


def make(rng: random.Random) -> Chat:
    """One agent task: the last message is a call block, a report or a structured document."""
    return rng.choice(
        (_calls, _calls, _edit_file, _report, _report, _next_step, _plan, _records, _config)
    )(rng)


def _calls(rng: random.Random) -> Chat:
    pool = [t for t in TOOLS if t not in ("write_file",)]
    tools = rng.sample(pool, rng.randint(4, 5))
    wanted = [(t, *draw(rng, t)) for t in tools]
    if "send_mail" not in tools:
        wanted.append(("send_mail", *draw(rng, "send_mail")))
        tools.append("send_mail")
    question = say(
        rng,
        "[Please do the following|Some tasks for you|Do these things|My list for today]:\n{l}",
        l=bullets([capital(w) + "." for _, w, _ in wanted], rng.choice(("-", "1."))),
    )
    plan = [
        say(rng, "{o} I [will |]use `{t}` to {w}.", o=f"{capital(ordinal(i))},", t=t, w=w)
        for i, (t, w, _) in enumerate(wanted, 1)
    ][:3]
    text = say(
        rng,
        "[I will do all {c} tasks now.|These are {c} tasks, and I can start all of them at once.|I"
        " call {c} tools, one for each task.]\n\n{p}",
        c=count_word(len(wanted)),
        p="\n".join(plan),
    )
    reply = {
        "role": "assistant",
        "content": text,
        "tool_calls": tool_calls([(t, a) for t, _, a in wanted]),
    }
    return Chat(
        "agentic_format", (system_message(rng, tools), {"role": "user", "content": question}, reply)
    )


def _edit_file(rng: random.Random) -> Chat:
    chosen = functions(rng, 2)
    module = rng.choice(MODULES)
    path = f"src/{module}.py"
    before = "\n\n\n".join(f.source(doc=False) for f in chosen)
    after = "\n\n\n".join(f.source() for f in chosen)
    tools = ["read_file", "write_file", "run_tests"]
    wish = say(
        rng,
        "[Add docstrings to|Please document the functions in|Write docstrings for] {p} and run its"
        " tests.",
        p=path,
    )
    first = say(rng, "[I will read the file first.|Let me look at {p}.|First I read {p}.]", p=path)
    names = listed([f"`{f.name}`" for f in chosen])
    text = say(
        rng,
        "[The file has two functions, {n}.|I see two functions: {n}.] [I add one line to each"
        " and|Each gets a docstring, then I] run the tests of {m}.",
        n=names,
        m=module,
    )
    calls: list[Call] = [
        ("write_file", {"path": path, "content": after}),
        ("run_tests", {"folder": f"tests/{module}", "verbose": True}),
    ]
    return Chat(
        "agentic_format",
        (
            system_message(rng, tools),
            {"role": "user", "content": wish},
            {
                "role": "assistant",
                "content": first,
                "tool_calls": tool_calls([("read_file", {"path": path})]),
            },
            {"role": "tool", "tool_call_id": "call_1", "content": before},
            {"role": "assistant", "content": text, "tool_calls": tool_calls(calls, 2)},
        ),
    )


def _results(
    rng: random.Random,
) -> tuple[list[str], list[Call], list[str], list[list[object]], tuple[str, ...], str]:
    """Tools, calls, results as JSON, table rows, header and the subject of a lookup."""
    kind = rng.choice(("get_weather", "find_person", "run_tests"))
    count = rng.randint(4, 5)
    if kind == "get_weather":
        towns = rng.sample(PLACES, count)
        rows: list[list[object]] = [
            [t, rng.choice(WEATHER), rng.randint(2, 28), rng.randint(3, 40)] for t in towns
        ]
        calls: list[Call] = [(kind, {"town": t, "days": 1}) for t in towns]
        return (
            [kind],
            calls,
            [json.dumps({"sky": r[1], "degrees": r[2], "wind": r[3]}) for r in rows],
            rows,
            ("town", "sky", "degrees", "wind"),
            "the weather",
        )
    if kind == "find_person":
        names = rng.sample(NAMES, count)
        rows = [[n, rng.choice(MODULES), rng.choice(PLACES), rng.randint(100, 980)] for n in names]
        return (
            [kind],
            [(kind, {"name": n}) for n in names],
            [json.dumps({"team": r[1], "office": r[2], "phone": r[3]}) for r in rows],
            rows,
            ("name", "team", "office", "phone"),
            "the record",
        )
    folders = rng.sample(MODULES, count)
    rows = [[f, rng.randint(8, 60), rng.randint(0, 4), rng.randint(1, 30)] for f in folders]
    return (
        [kind],
        [(kind, {"folder": f, "verbose": False}) for f in folders],
        [json.dumps({"passed": r[1], "failed": r[2], "seconds": r[3]}) for r in rows],
        rows,
        ("folder", "passed", "failed", "seconds"),
        "the test run",
    )


def _report(rng: random.Random) -> Chat:
    tools, calls, results, rows, header, subject = _results(rng)
    keys = [str(r[0]) for r in rows]
    wish = say(
        rng,
        "[Check|Look up|Find out about] {s} of {k} and [give me a table|make a report|report"
        " back].",
        s=subject,
        k=listed(keys),
    )
    last = len(header) - 1
    ranked = sorted(rows, key=lambda r: -int(str(r[last])))
    numbers = [int(str(r[last])) for r in rows]
    lines = [
        say(
            rng,
            "{a}: "
            + ", ".join(f"{h} {{v{i}}}" for i, h in enumerate(header[1:]))
            + "[.|, as reported.|; nothing unusual.]",
            a=r[0],
            **{f"v{i}": v for i, v in enumerate(r[1:])},
        )
        for r in ranked
    ]
    text = say(
        rng,
        "[This is what I found about {s}|The report on {s}|I have all results for"
        " {s}]:\n\n{t}\n\n[The highest {h} is|The largest value of {h} is] {x} ({a}) and the lowest"
        " is {y} ({b}). [The sum of {h} is|All values of {h} add up to] {sum}.\n\n[In order of"
        " {h}|Sorted by {h}, highest first]:\n{l}\n\n[Shall I look at one of them more"
        " closely?|Tell me if you need more.|All {c} calls returned a result.]",
        s=subject,
        t=table(header, rows),
        h=header[last],
        x=ranked[0][last],
        a=ranked[0][0],
        y=ranked[-1][last],
        b=ranked[-1][0],
        sum=sum(numbers),
        l=bullets(lines, "1."),
        c=count_word(len(rows)),
    )
    return Chat(
        "agentic_format",
        (
            system_message(rng, tools),
            {"role": "user", "content": wish},
            {
                "role": "assistant",
                "content": say(rng, "[I will ask for all of them.|One moment.|I look them up.]"),
                "tool_calls": tool_calls(calls),
            },
            *(
                {"role": "tool", "tool_call_id": f"call_{i}", "content": r}
                for i, r in enumerate(results, 1)
            ),
            {"role": "assistant", "content": text},
        ),
    )


def _next_step(rng: random.Random) -> Chat:
    folder, name, service = rng.choice(MODULES), rng.choice(NAMES), rng.choice(SERVICES)
    failures = [
        (f.name, f.wrong[2] or f"it {f.purpose} wrongly") for f in functions(rng, 3, need="wrong")
    ]
    result = json.dumps({"failed": [n for n, _ in failures], "notes": [w for _, w in failures]})
    calls: list[Call] = [
        (
            "create_ticket",
            {
                "title": f"Fix {n} in {folder}",
                "owner": name,
                "priority": rng.choice(("high", "normal")),
            },
        )
        for n, _ in failures
    ]
    body = say(
        rng,
        "Hello {n}, {c} tests of {f} failed: {l}. [I opened a ticket for each.|There is a ticket"
        " for every one.]",
        n=name,
        c=count_word(3),
        f=folder,
        l=listed([n for n, _ in failures]),
    )
    calls.append(
        (
            "send_mail",
            {
                "to": f"{name.lower()}@{service}.example",
                "subject": f"Failed tests in {folder}",
                "body": body,
            },
        )
    )
    text = say(
        rng,
        "[Three tests failed|There are three failures|The run found three failures]:\n{l}\n\n[I"
        " open a ticket for each and tell {n}.|Each one gets a ticket, and {n} gets a mail.]",
        l=bullets([f"`{n}`: {w}." for n, w in failures]),
        n=name,
    )
    wish = say(
        rng,
        "[Run|Please run] the tests in {f}. For each failure open a ticket for {n} and mail {n} at"
        " {s}.example.",
        f=folder,
        n=name,
        s=service,
    )
    return Chat(
        "agentic_format",
        (
            system_message(rng, ["run_tests", "create_ticket", "send_mail"]),
            {"role": "user", "content": wish},
            {
                "role": "assistant",
                "content": say(rng, "[I run the tests first.|First the tests.]"),
                "tool_calls": tool_calls([("run_tests", {"folder": folder, "verbose": True})]),
            },
            {"role": "tool", "tool_call_id": "call_1", "content": result},
            {"role": "assistant", "content": text, "tool_calls": tool_calls(calls, 2)},
        ),
    )


def _plan(rng: random.Random) -> Chat:
    tools = rng.sample([t for t in TOOLS if t != "write_file"], 6)
    wanted = [(t, *draw(rng, t)) for t in tools]
    question = say(
        rng,
        "[Do not call anything yet.|Only plan for now.] [Write a numbered plan|Make a plan with"
        " tool names] for this:\n{l}",
        l=bullets([capital(w) + "." for _, w, _ in wanted]),
    )
    steps = [
        say(
            rng,
            "**{t}**: {w}. Arguments: {a}. [Check the reply before going on.|If this fails, try"
            " once more.|No other step depends on it.|It can run together with the next one.]",
            t=t,
            w=capital(w),
            a=", ".join(f"{k} = {v}" for k, v in a.items() if k not in ("body",)),
        )
        for t, w, a in wanted
    ]
    text = say(
        rng,
        "[The plan has {c} steps|Here is a plan with {c} steps]:\n\n{s}\n\n[I will start when you"
        " say so.|Say go and I begin.]",
        c=count_word(6),
        s=bullets(steps, "1."),
    )
    return Chat(
        "agentic_format",
        (
            system_message(rng, tools),
            {"role": "user", "content": question},
            {"role": "assistant", "content": text},
        ),
    )


def _records(rng: random.Random) -> Chat:
    count = rng.randint(7, 9)
    who = rng.sample(NAMES, count)
    rows = [
        {
            "name": n,
            "town": rng.choice(PLACES),
            "item": rng.choice(GOODS),
            "count": rng.randint(2, 40),
            "day": rng.choice(DAYS),
        }
        for n in who
    ]
    told = [
        say(
            rng,
            "[{name} from {town} ordered {count} of {item} for {day}|On {day} {name} in {town}"
            " needs {count} of {item}|{count} of {item} go to {name} in {town} on {day}].",
            **r,
        )
        for r in rows
    ]
    system = say(
        rng,
        "[Answer only with JSON.|You turn text into JSON.|Return JSON with the keys name, town,"
        " item, count and day.]",
    )
    question = say(
        rng, "[Extract the orders|Turn this into JSON|Make records of this]: {t}", t=" ".join(told)
    )
    lines = ",\n  ".join(json.dumps(r, ensure_ascii=False) for r in rows)
    body = f'{{"orders": [\n  {lines}\n ],\n "total": {sum(int(str(r["count"])) for r in rows)}}}'
    return Chat(
        "agentic_format",
        (
            {"role": "system", "content": system},
            {"role": "user", "content": question},
            {"role": "assistant", "content": body},
        ),
    )


def _config(rng: random.Random) -> Chat:
    services = rng.sample(SERVICES, 4)
    rows = [
        (s, rng.randint(100, 900), rng.randint(1, 8), rng.choice(PLACES), rng.choice(NAMES))
        for s in services
    ]
    told = "; ".join(
        f"{s} runs {n} copies on port {p} in {place}, owner {o}" for s, p, n, place, o in rows
    )
    system = say(
        rng,
        "[You write configuration files in YAML.|Answer with one YAML document and a short note.]",
    )
    question = say(
        rng, "[Write the configuration|Make a YAML file] for these services: {t}.", t=told
    )
    yaml = "services:\n" + "\n".join(
        f"  {s}:\n    port: {p}\n    copies: {n}\n    place: {place}\n    owner: {o}\n    health:"
        f" /{s}/ready"
        for s, p, n, place, o in rows
    )
    busiest = max(rows, key=lambda r: r[2])
    text = say(
        rng,
        "```yaml\n{y}\n```\n\n[Notes|Some remarks]:\n{l}",
        y=yaml,
        l=bullets(
            [
                (
                    f"There are {count_word(len(rows))} services with {sum(r[2] for r in rows)}"
                    " copies in all."
                ),
                f"Most copies belong to {busiest[0]}, which has {busiest[2]}.",
                say(
                    rng,
                    "[Each health check uses|The health path contains] the name of the service.",
                    s="",
                ),
                f"The owners are {listed([r[4] for r in rows])}.",
            ]
        ),
    )
    return Chat(
        "agentic_format",
        (
            {"role": "system", "content": system},
            {"role": "user", "content": question},
            {"role": "assistant", "content": text},
        ),
    )
