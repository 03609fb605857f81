"""README.md of a head: a projection of the ledger and the archive's card. Deterministic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from flywheel.heads.numbers import Standing, Taus
from flywheel.report.levers_md import table_row


def render(
    head: Standing, card: dict[str, Any], stock: Taus | None, missing: tuple[str, ...]
) -> str:
    """The model card: the table by category first, for a mean hides what it costs where."""
    parts = [f"# {head.name}", "", _what(card), ""]
    parts += _table(head, stock) if head.measured else ["It was never measured.", ""]
    parts += ["## Verdict", "", _verdict(head), ""]
    if missing:
        parts += ["Not released:", "", *(f"- {one}" for one in missing), ""]
    parts += ["## Training", "", *_training(card), "", "## Files", ""]
    parts += [table_row(("file", "bytes", "sha256")), "|---|--:|---|"]
    parts += [
        table_row((name, str(known["bytes"]), known["sha256"]))
        for name, known in sorted(card["files"].items())
    ]
    return "\n".join(parts) + "\n"


def _what(card: dict[str, Any]) -> str:
    start = card.get("start", "the checkpoint's own head")
    return (
        "A DSpark draft head for speculative decoding: it changes how fast a model decodes, never "
        f"what it says. Trained from {start}. Tau is committed tokens per target forward, greedy, "
        "before the end of the sequence; a mean of the prompts' own ratios."
    )


def _table(head: Standing, stock: Taus | None) -> list[str]:
    mine = head.measured
    assert mine is not None
    now, before = mine.candidate, mine.before
    names = [head.name, f"incumbent ({mine.incumbent})"]
    lines = ["## Acceptance by category", ""]
    if stock is not None and mine.incumbent != "stock":
        names.append("stock")
    lines += [table_row(("category", *names, "hold-out", "hold-out incumbent")),
              "|---" + "|--:" * (len(names) + 2) + "|"]  # fmt: skip
    # A hold-out may have categories that the suite has not.
    for category in sorted({*now.categories, *now.held_out_categories}):
        cells = [now.categories.get(category), before.categories.get(category)]
        if len(names) == 3 and stock is not None:
            cells.append(stock.categories.get(category))
        held = [t.held_out_categories.get(category) for t in (now, before)]
        lines.append(table_row((category, *map(_tau, cells), *map(_tau, held))))
    total = [now.suite, before.suite] + ([stock.suite] if len(names) == 3 and stock else [])
    lines.append(table_row(("mean", *map(_tau, total), _tau(now.held_out), _tau(before.held_out))))
    return [*lines, ""]


def _tau(value: Fraction | None) -> str:
    return "" if value is None else f"{float(value):.3f}"


def _verdict(head: Standing) -> str:
    if head.decision is None:
        return "None yet."
    stage = "" if head.stage is None else f" Staging: {head.stage.replace('_', ' ')}."
    decision = head.decision
    return f"D{decision.number}: {decision.ending}, {decision.sentence}.{stage}"


def _training(card: dict[str, Any]) -> list[str]:
    training = card.get("training", {})
    lines = [
        f"- {name}: {training[name]}"
        for name in ("steps", "blocks", "sequences", "seconds", "trained_parameters")
        if name in training
    ]
    recipe = training.get("recipe", {})
    if recipe:
        lines.append("- recipe: " + ", ".join(f"{k} {v}" for k, v in sorted(recipe.items())))
    return lines or ["Nothing is on record."]
