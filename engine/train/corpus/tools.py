"""The tools of the synthetic agents: schemas, wishes, calls."""

from __future__ import annotations

import json
import random
from typing import Any

from engine.train.corpus.phrase import capital, say
from engine.train.corpus.words import (
    DAYS,
    DISHES,
    GOODS,
    MODULES,
    NAMES,
    PLACES,
    SERVICES,
    TOPICS,
)

Call = tuple[str, dict[str, Any]]


# tool: description, parameters with their JSON types
TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    "read_file": ("Read a text file.", {"path": "string"}),
    "write_file": ("Write a text file.", {"path": "string", "content": "string"}),
    "run_tests": ("Run the tests of a folder.", {"folder": "string", "verbose": "boolean"}),
    "search_code": ("Search the code for a word.", {"word": "string", "limit": "integer"}),
    "send_mail": ("Send a mail.", {"to": "string", "subject": "string", "body": "string"}),
    "get_weather": ("Get the weather of a town.", {"town": "string", "days": "integer"}),
    "book_room": (
        "Book a meeting room.",
        {"room": "string", "day": "string", "hour": "integer", "people": "integer"},
    ),
    "create_ticket": (
        "Open a ticket.",
        {"title": "string", "owner": "string", "priority": "string"},
    ),
    "add_stock": (
        "Add goods to a store.",
        {"item": "string", "count": "integer", "place": "string"},
    ),
    "set_timer": ("Set a timer.", {"label": "string", "minutes": "integer"}),
    "find_person": ("Look up a person.", {"name": "string"}),
    "restart": ("Restart a service.", {"service": "string", "wait_s": "integer"}),
    "order_food": ("Order a dish.", {"dish": "string", "portions": "integer", "spicy": "boolean"}),
    "translate": ("Translate a text.", {"text": "string", "language": "string"}),
}


def _schema(name: str) -> dict[str, Any]:
    description, params = TOOLS[name]
    return {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": {k: {"type": t} for k, t in params.items()}},
    }


def system_message(rng: random.Random, tools: list[str]) -> dict[str, Any]:
    text = say(
        rng,
        "[You are a careful assistant|You are an agent|You help a small team|You work for a small"
        " company] that [uses tools|can call tools].[ Say what you do before you call a tool.| Be"
        " brief and exact.| Always explain your plan first.]",
    )
    return {
        "role": "system",
        "content": text,
        "tools": [_schema(t) for t in rng.sample(tools, len(tools))],
    }


def tool_calls(calls: list[Call], start: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": n, "arguments": json.dumps(a, ensure_ascii=False)},
        }
        for i, (n, a) in enumerate(calls, start)
    ]


def draw(rng: random.Random, tool: str) -> tuple[str, dict[str, Any]]:
    """A wish in words and the arguments that fulfil it."""
    name, place, item, day = (
        rng.choice(NAMES),
        rng.choice(PLACES),
        rng.choice(GOODS),
        rng.choice(DAYS),
    )
    number, module, topic = rng.randint(2, 20), rng.choice(MODULES), rng.choice(TOPICS)
    if tool == "send_mail":
        body = say(
            rng,
            "[Hello|Dear] {n}, [the {i} for {p} will be there on {d}|we need {k} more of {i} on"
            " {d}|please meet me in {p} on {d}]. [Please confirm.|Thank you.|See you soon.]",
            n=name,
            i=item,
            p=place,
            d=day,
            k=number,
        )
        subject = say(rng, "{t} on {d}", t=capital(topic), d=day)
        return f'mail {name} with the subject "{subject}" and the text "{body}"', {
            "to": f"{name.lower()}@{module}.example",
            "subject": subject,
            "body": body,
        }
    wishes: dict[str, tuple[str, dict[str, Any]]] = {
        "read_file": (
            f"read {module}/{topic.split()[0]}.txt",
            {"path": f"{module}/{topic.split()[0]}.txt"},
        ),
        "run_tests": (
            f"run the tests in {module} without details",
            {"folder": module, "verbose": False},
        ),
        "search_code": (
            f"search the code for {module}, at most {number} hits",
            {"word": module, "limit": number},
        ),
        "get_weather": (
            f"get the weather of {place} for {number} days",
            {"town": place, "days": number},
        ),
        "book_room": (
            f"book the room {place} on {day} at {number} for {number + 2} people",
            {"room": place, "day": day, "hour": number, "people": number + 2},
        ),
        "create_ticket": (
            f'open a ticket "{capital(module)} loses {item}" for {name} with high priority',
            {"title": f"{capital(module)} loses {item}", "owner": name, "priority": "high"},
        ),
        "add_stock": (
            f"add {number} units of {item} in {place}",
            {"item": item, "count": number, "place": place},
        ),
        "set_timer": (
            f"set a timer of {number} minutes for {topic}",
            {"label": topic, "minutes": number},
        ),
        "find_person": (f"look up {name}", {"name": name}),
        "restart": (
            f"restart {rng.choice(SERVICES)} and wait {number} seconds",
            {"service": "", "wait_s": number},
        ),
        "order_food": (
            f"order {number} portions of {rng.choice(DISHES)}, not spicy",
            {"dish": "", "portions": number, "spicy": False},
        ),
        "translate": (
            f'translate "{item} from {place}" into French',
            {"text": f"{item} from {place}", "language": "French"},
        ),
    }
    wish, arguments = wishes[tool]
    if tool == "restart":
        arguments["service"] = wish.split()[1]
    if tool == "order_food":
        arguments["dish"] = wish.split(" of ")[1].split(",")[0]
    return wish, arguments
