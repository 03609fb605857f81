"""Small classes that run, with a choice of methods."""

from __future__ import annotations

import random

from engine.train.corpus.phrase import capital

# name, field, what it stores, methods: (name, signature, body, sentence)
_CLASSES: tuple[tuple[str, str, str, str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "Stack",
        "items",
        "[]",
        "keeps items and returns the newest first",
        (
            ("push", "item", "self.items.append(item)", "puts an item on top"),
            (
                "pop",
                "",
                (
                    'if not self.items:\n    raise IndexError("the stack is empty")\n'
                    "return self.items.pop()"
                ),
                "removes and returns the top item",
            ),
            ("peek", "", "return self.items[-1] if self.items else None", "shows the top item"),
            ("size", "", "return len(self.items)", "tells how many items there are"),
            ("clear", "", "self.items = []", "removes everything"),
        ),
    ),
    (
        "Queue",
        "waiting",
        "[]",
        "serves whoever came first",
        (
            ("join", "name", "self.waiting.append(name)", "adds a name at the end"),
            (
                "serve",
                "",
                "if not self.waiting:\n    return None\nreturn self.waiting.pop(0)",
                "removes and returns the first name",
            ),
            (
                "position",
                "name",
                "return self.waiting.index(name) + 1",
                "tells the place of a name",
            ),
            ("length", "", "return len(self.waiting)", "tells how many are waiting"),
            (
                "leave",
                "name",
                "if name in self.waiting:\n    self.waiting.remove(name)",
                "takes a name out of the line",
            ),
        ),
    ),
    (
        "Inventory",
        "stock",
        "{}",
        "tracks how many pieces of each item are there",
        (
            (
                "add",
                "item, count",
                "self.stock[item] = self.stock.get(item, 0) + count",
                "adds pieces of an item",
            ),
            (
                "remove",
                "item, count",
                (
                    "if self.stock.get(item, 0) < count:\n"
                    '    raise ValueError("not enough in stock")\nself.stock[item] -= count'
                ),
                "takes pieces out and refuses to go below zero",
            ),
            ("count", "item", "return self.stock.get(item, 0)", "tells how many pieces are left"),
            ("total", "", "return sum(self.stock.values())", "adds up all pieces"),
            ("names", "", "return sorted(self.stock)", "lists the item names in order"),
        ),
    ),
    (
        "Account",
        "history",
        "[]",
        "records payments and knows its balance",
        (
            (
                "deposit",
                "amount",
                (
                    'if amount <= 0:\n    raise ValueError("the amount must be positive")\n'
                    "self.history.append(amount)"
                ),
                "adds money",
            ),
            (
                "withdraw",
                "amount",
                (
                    "if amount > self.balance():\n"
                    '    raise ValueError("the balance is too low")\nself.history.append(-amount)'
                ),
                "takes money out if the balance allows it",
            ),
            ("balance", "", "return sum(self.history)", "adds up the history"),
            ("largest", "", "return max(self.history, default=0)", "finds the largest deposit"),
        ),
    ),
    (
        "Counter",
        "counts",
        "{}",
        "counts how often each key was seen",
        (
            (
                "see",
                "key",
                "self.counts[key] = self.counts.get(key, 0) + 1",
                "counts a key once more",
            ),
            ("count", "key", "return self.counts.get(key, 0)", "tells the count of a key"),
            (
                "most_common",
                "",
                "return max(self.counts, key=lambda key: self.counts[key])",
                "finds the key with the highest count",
            ),
            ("total", "", "return sum(self.counts.values())", "adds up all counts"),
            ("reset", "", "self.counts.clear()", "forgets everything"),
        ),
    ),
    (
        "Schedule",
        "entries",
        "{}",
        "stores one task for each hour",
        (
            (
                "plan",
                "hour, task",
                (
                    "if hour in self.entries:\n"
                    '    raise ValueError("this hour is taken")\nself.entries[hour] = task'
                ),
                "books an hour and refuses double bookings",
            ),
            ("cancel", "hour", "return self.entries.pop(hour, None)", "frees an hour"),
            (
                "at",
                "hour",
                'return self.entries.get(hour, "free")',
                "tells what happens at an hour",
            ),
            ("hours", "", "return sorted(self.entries)", "lists the booked hours"),
            ("first", "", "return self.entries[min(self.entries)]", "returns the earliest task"),
        ),
    ),
    (
        "Recorder",
        "samples",
        "[]",
        "collects measurements and summarises them",
        (
            ("record", "value", "self.samples.append(value)", "stores one measurement"),
            ("mean", "", "return sum(self.samples) / len(self.samples)", "computes the average"),
            (
                "spread",
                "",
                "return max(self.samples) - min(self.samples)",
                "subtracts the smallest from the largest",
            ),
            ("latest", "", "return self.samples[-1]", "returns the last measurement"),
            (
                "above",
                "limit",
                "return [s for s in self.samples if s > limit]",
                "returns the measurements over a limit",
            ),
        ),
    ),
    (
        "Directory",
        "numbers",
        "{}",
        "maps names to phone numbers",
        (
            ("add", "name, number", "self.numbers[name] = number", "stores a number"),
            ("find", "name", 'return self.numbers.get(name, "unknown")', "looks a number up"),
            ("forget", "name", "self.numbers.pop(name, None)", "removes a name"),
            (
                "starting_with",
                "letter",
                "return [n for n in sorted(self.numbers) if n.startswith(letter)]",
                "lists the names that start with a letter",
            ),
            ("size", "", "return len(self.numbers)", "tells how many names there are"),
        ),
    ),
)


_PREFIXES = (
    "",
    "Simple",
    "Small",
    "Tool",
    "Team",
    "Shop",
    "Daily",
    "Paper",
    "Harbour",
    "School",
    "Night",
    "Market",
    "Garden",
    "Travel",
    "Kitchen",
    "Office",
    "Library",
    "Winter",
    "River",
    "Station",
)


def class_source(rng: random.Random) -> tuple[str, str, str, list[tuple[str, str, str, str]]]:
    """Name, purpose, source and chosen methods of a small class that runs."""
    base, field, empty, purpose, methods = rng.choice(_CLASSES)
    needed = [m for m in methods if m[0] == "balance"]
    rest = [m for m in methods if m[0] != "balance"]
    kept = {id(m) for m in (*needed, *rng.sample(rest, min(len(rest), rng.randint(3, 4))))}
    chosen = [m for m in methods if id(m) in kept]
    name = rng.choice(_PREFIXES) + base
    lines = [f"class {name}:", f'    """{capital(purpose)}."""', "", "    def __init__(self):"]
    lines.append(f"        self.{field} = {empty}")
    for method, signature, body, sentence in chosen:
        params = f"self, {signature}" if signature else "self"
        lines += ["", f"    def {method}({params}):", f'        """{capital(sentence)}."""']
        lines += [f"        {line}" for line in body.split("\n")]
    return name, purpose, "\n".join(lines), chosen
