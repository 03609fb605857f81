"""What constraints cannot say, as triggers: history stays, and dead runs are worth nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Table, UniqueConstraint

from flywheel.ledger import models

# (name, table, when, what is wrong): a row that contradicts another row or itself.
_GUARDS = (
    (
        "run_end_ok_left_well",
        "run_end",
        "NEW.outcome = 'ok' AND NEW.exit_status <> 0",
        "a run that left with another status than 0 is not ok",
    ),
    (
        "block_of_good_runs",
        "block",
        "EXISTS (SELECT 1 FROM block_void WHERE block_id = NEW.block_id) OR EXISTS "
        "(SELECT 1 FROM run LEFT JOIN run_end ON run_end.run_id = run.id "
        "WHERE run.block_id = NEW.block_id AND run_end.outcome IS NOT 'ok')",
        "a void block, or one with a run that is not ok, has no estimate",
    ),
    (
        "block_of_no_screen",
        "block",
        "EXISTS (SELECT 1 FROM screen_plan WHERE block_id = NEW.block_id)",
        "a screen lends no estimate",
    ),
    (
        "screen_of_good_runs",
        "screen",
        "EXISTS (SELECT 1 FROM block_void WHERE block_id = NEW.block_id) OR EXISTS "
        "(SELECT 1 FROM run LEFT JOIN run_end ON run_end.run_id = run.id "
        "WHERE run.block_id = NEW.block_id AND run_end.outcome IS NOT 'ok')",
        "a void block, or one with a run that is not ok, screens nothing",
    ),
    (
        "screen_opening_good",
        "screen_opening",
        "NOT EXISTS (SELECT 1 FROM run_end WHERE run_id = NEW.run_id AND outcome = 'ok')",
        "a run that is not ok opens no screen",
    ),
    (
        "run_not_opened_twice",
        "run",
        "NEW.slot = 0 AND EXISTS (SELECT 1 FROM screen_opening WHERE block_id = NEW.block_id)",
        "a screen that opens with an earlier load has no first load of its own",
    ),
    (
        "block_void_unmeasured",
        "block_void",
        "EXISTS (SELECT 1 FROM block WHERE block_id = NEW.block_id)",
        "a measured block cannot become void",
    ),
    (
        "decision_promoted_by_numbers",
        "decision",
        "NEW.ending = 'promoted' AND (NEW.n < 1 OR NEW.mean IS NULL)",
        "nothing is promoted without a measured gain",
    ),
    (
        "decision_promoted_exact",
        "decision",
        "NEW.ending = 'promoted' AND EXISTS (SELECT 1 FROM variant JOIN lever "
        "ON lever.identity = variant.lever_identity WHERE variant.id = NEW.variant_id "
        "AND lever.metric = 'lossy_ms_per_token')",
        "what changes the text is never promoted",
    ),
)


def triggers() -> tuple[str, ...]:
    """The SQL of every trigger, each as SQLite stores it."""
    found = []
    for table in models.metadata.sorted_tables:
        found += [*_append_only(table), *_documents(table)]
    found += [
        _trigger(name, f"INSERT ON {table} WHEN {when}", what)
        for name, table, when, what in _GUARDS
    ]
    return tuple(found)


def _append_only(table: Table) -> Iterator[str]:
    name = table.name
    for verb in ("UPDATE", "DELETE"):
        said = f"history is append-only: no {verb} on {name}"
        yield _trigger(f"{name}_no_{verb.lower()}", f"{verb} ON {name}", said)
    # INSERT OR REPLACE deletes the old row without asking the DELETE trigger.
    taken = " OR ".join(f"EXISTS (SELECT 1 FROM {name} WHERE {key})" for key in _keys(table))
    said = f"history is append-only: this {name} is recorded already"
    yield _trigger(f"{name}_no_replace", f"INSERT ON {name} WHEN {taken}", said)


def _keys(table: Table) -> list[str]:
    unique = [c for c in table.constraints if isinstance(c, UniqueConstraint)]
    keys = [[c.name for c in table.primary_key]]
    keys += sorted([c.name for c in constraint.columns] for constraint in unique)
    return [" AND ".join(f"{c} = NEW.{c}" for c in key) for key in keys]


def _documents(table: Table) -> Iterator[str]:
    """JSON columns hold JSON, and no number in it is infinite."""
    columns = [c.name for c in table.columns if c.info.get("json")]
    if columns:
        bad = " OR ".join(
            f"NOT json_valid(NEW.{c}) OR EXISTS (SELECT 1 FROM json_tree(NEW.{c}) "
            "WHERE type = 'real' AND abs(atom) >= 1e300)"
            for c in columns
        )
        said = f"a column of {table.name} that must be JSON with finite numbers is not"
        yield _trigger(f"{table.name}_json", f"INSERT ON {table.name} WHEN {bad}", said)


def _trigger(name: str, event: str, said: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {event} BEGIN SELECT RAISE(ABORT, '{said}'); END"
