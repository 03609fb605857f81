"""Synthetic documents: titled lists of records that can be asked about."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from engine.train.corpus.phrase import say
from engine.train.corpus.words import (
    ANIMALS,
    COLOURS,
    GOODS,
    HABITATS,
    MODULES,
    NAMES,
    PLACES,
    SERVICES,
    TOPICS,
    UNITS,
    WEATHER,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a document: its sentence and its fields, who and where first."""

    text: str
    fields: dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Document:
    """A titled list of entries; ``keys`` are the fields that repeat and can be asked for."""

    title: str
    noun: str
    entries: list[Entry]
    keys: tuple[str, ...]
    sum_of: str


def _pool(rng: random.Random, words: list[str] | tuple[str, ...], count: int = 3) -> list[str]:
    return rng.sample(list(words), count)


def _build(
    rng: random.Random, count: int, template: str, draw: Callable[[], dict[str, str | int]]
) -> list[Entry]:
    entries = []
    for _ in range(count):
        fields = draw()
        entries.append(Entry(say(rng, template, **fields), fields))
    return entries


def _shipments(rng: random.Random, count: int) -> Document:
    people, places, goods = _pool(rng, NAMES), _pool(rng, PLACES), _pool(rng, GOODS, 6)
    unit = rng.choice(UNITS)
    unit_many = "boxes" if unit == "box" else f"{unit}s"
    entries = _build(
        rng,
        count,
        "[{person} [logged|received|counted|signed for] {number} {unit} of {item} at"
        " {place}.|{place}: {number} {unit} of {item}, signed by {person}.|At {place} {person} took"
        " in {number} {unit} of {item}.|{number} {unit} of {item} went through {place}; {person}"
        " was there.]",
        lambda: {
            "person": rng.choice(people),
            "place": rng.choice(places),
            "item": rng.choice(goods),
            "number": rng.randint(2, 40),
            "unit": unit_many,
        },
    )
    return Document(
        f"Shipment log, week {rng.randint(1, 52)}",
        "shipment",
        entries,
        ("person", "place"),
        "number",
    )


def _sightings(rng: random.Random, count: int) -> Document:
    people, spots, animals = _pool(rng, NAMES), _pool(rng, HABITATS, 4), _pool(rng, ANIMALS, 6)
    entries = _build(
        rng,
        count,
        "[At {hour}:00 {person} saw {number} of the kind {animal} near {place} in"
        " {weather}.|{person}, {hour}:00, {weather}: {animal}, {number} seen near {place}.|Near"
        " {place}, {animal} times {number}, noted by {person} at {hour}:00 in {weather}.|{weather}"
        " at {hour}:00, yet {person} counted {number} ({animal}) by {place}.]",
        lambda: {
            "person": rng.choice(people),
            "place": rng.choice(spots),
            "animal": rng.choice(animals),
            "number": rng.randint(1, 9),
            "hour": rng.randint(5, 20),
            "weather": rng.choice(WEATHER),
        },
    )
    return Document(
        f"Field notes from {rng.choice(PLACES)}", "sighting", entries, ("person", "place"), "number"
    )


def _server_log(rng: random.Random, count: int) -> Document:
    services, levels = _pool(rng, SERVICES, 4), ["INFO", "WARN", "ERROR"]
    entries = _build(
        rng,
        count,
        "{hour}:{minute} {level} {service}: [{event} after {number} ms|{event}, took {number}"
        " ms|{number} ms passed, {event}|{event} ({number} ms)]",
        lambda: {
            "hour": rng.randint(10, 23),
            "minute": rng.randint(10, 59),
            "level": rng.choice(levels),
            "service": rng.choice(services),
            "number": rng.randint(5, 900),
            "event": rng.choice(
                (
                    "request done",
                    "cache miss",
                    "retry sent",
                    "connection lost",
                    "job queued",
                    "disk slow",
                    "token renewed",
                    "reply late",
                )
            ),
        },
    )
    return Document(
        f"Log of host {rng.choice(MODULES)}-{rng.randint(1, 9)}",
        "line",
        entries,
        ("level", "service"),
        "number",
    )


def _minutes(rng: random.Random, count: int) -> Document:
    people, topics = _pool(rng, NAMES, 4), _pool(rng, TOPICS, 4)
    entries = _build(
        rng,
        count,
        "[{person} will {task} for the {topic} group by the {number}th.|For {topic}: {person} has"
        " to {task} until the {number}th.|By the {number}th {person} promised to {task}, on behalf"
        " of {topic}.|{topic} needs someone to {task}; {person} takes it, due on the {number}th.]",
        lambda: {
            "person": rng.choice(people),
            "topic": rng.choice(topics),
            "number": rng.randint(4, 19),
            "task": rng.choice(
                (
                    "write a report",
                    "book a room",
                    "order material",
                    "invite a guest",
                    "check the bill",
                    "print the leaflets",
                    "repair the lamp",
                    "collect the fees",
                )
            ),
        },
    )
    return Document(
        f"Minutes of the meeting in {rng.choice(PLACES)}",
        "task",
        entries,
        ("person", "topic"),
        "number",
    )


def _library(rng: random.Random, count: int) -> Document:
    people, topics = _pool(rng, NAMES, 4), _pool(rng, TOPICS, 4)
    entries = _build(
        rng,
        count,
        "[{person} borrowed the {colour} book about {topic}, shelf {shelf}, for {number} days.|From"
        " shelf {shelf} the {colour} volume on {topic} went to {person}, {number} days.|{topic},"
        " {colour} cover, shelf {shelf}: lent to {person} for {number} days.|For {number} days"
        " {person} keeps a book on {topic} ({colour}, shelf {shelf}).]",
        lambda: {
            "person": rng.choice(people),
            "topic": rng.choice(topics),
            "colour": rng.choice(COLOURS),
            "shelf": f"{rng.choice('ABCDEF')}{rng.randint(1, 9)}",
            "number": rng.randint(3, 30),
        },
    )
    return Document("Loans of the library", "loan", entries, ("person", "topic"), "number")


def _voyage(rng: random.Random, count: int) -> Document:
    people, places = _pool(rng, NAMES), _pool(rng, PLACES, 4)
    entries = _build(
        rng,
        count,
        "[{weather}; {person} had the watch, and the ship made {number} miles towards"
        " {place}.|{number} miles in {weather} on the way to {place}, with {person} at the"
        " wheel.|Heading for {place}: {person} steered through {weather} and logged {number}"
        " miles.|{person} took over in {weather}; we came {number} miles closer to {place}.]",
        lambda: {
            "weather": rng.choice(WEATHER),
            "person": rng.choice(people),
            "place": rng.choice(places),
            "number": rng.randint(8, 60),
        },
    )
    return Document(
        f"Diary of the ship {rng.choice(NAMES)}", "entry", entries, ("person", "place"), "number"
    )


def _tickets(rng: random.Random, count: int) -> Document:
    people, modules = _pool(rng, NAMES), _pool(rng, MODULES, 4)
    entries = _build(
        rng,
        count,
        "[Ticket {number}: the {module} {fault}; assigned to {person}, priority"
        " {priority}.|{person} looks after number {number}: the {module} {fault} ({priority}"
        " priority).|Priority {priority}, ticket {number}, owner {person}: the {module}"
        " {fault}.|The {module} {fault}, says ticket {number}; {person} has it with {priority}"
        " priority.]",
        lambda: {
            "number": rng.randint(100, 900),
            "module": rng.choice(modules),
            "person": rng.choice(people),
            "priority": rng.choice(("low", "high", "normal")),
            "fault": rng.choice(
                (
                    "stops without a message",
                    "writes an empty file",
                    "ignores the time limit",
                    "uses too much memory",
                    "sorts in the wrong order",
                    "loses the last line",
                    "starts twice",
                )
            ),
        },
    )
    return Document("Open tickets", "ticket", entries, ("person", "module", "priority"), "")


def _sales(rng: random.Random, count: int) -> Document:
    people, goods, places = _pool(rng, NAMES), _pool(rng, GOODS, 4), _pool(rng, PLACES)
    entries = _build(
        rng,
        count,
        "[{person} sold {item} for {number} coins in {place}.|In {place} {person} earned {number}"
        " coins with {item}.|{item} brought {person} {number} coins at {place}.|{place}: {number}"
        " coins for {item}, seller {person}.]",
        lambda: {
            "person": rng.choice(people),
            "item": rng.choice(goods),
            "number": rng.randint(3, 90),
            "place": rng.choice(places),
        },
    )
    return Document(
        f"Sales of the market in {rng.choice(PLACES)}",
        "sale",
        entries,
        ("person", "item", "place"),
        "number",
    )


DOCUMENTS = (_shipments, _sightings, _server_log, _minutes, _library, _voyage, _tickets, _sales)
