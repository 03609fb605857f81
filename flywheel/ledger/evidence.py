"""What the runs have shown about memory: figures for admission and for the guard, in bytes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal_column, select

from flywheel.ledger import models

_end = models.run_end
_OK = _end.c.outcome == "ok"
# How many runs back a peak is looked for by its checkpoint.
_NEWEST = 200


def peak_bytes(connection: Connection, checkpoint_sha256: str | None = None) -> int | None:
    """The most resident memory of any good run, or of the measured runs on one checkpoint.

    None when there is no such run.
    """
    peak = func.max(_evidence("$.exit.peak_rss_bytes"))
    if checkpoint_sha256 is None:
        return _figure(connection, select(peak).where(_OK))
    ran_on = func.json_extract(models.ruler.c.fields, "$.checkpoint_sha256")
    measured = _end.join(models.run).join(
        models.block, models.block.c.block_id == models.run.c.block_id
    )
    query = select(peak).select_from(measured.join(models.ruler))
    return _figure(connection, query.where(_OK, ran_on == checkpoint_sha256))


def peak_bytes_of(connection: Connection, checkpoint: str) -> int | None:
    """The most resident memory of the newest good runs on a checkpoint, by its folder's name."""
    folder = func.json_extract(models.run.c.manifest, "$.config.checkpoint")
    # Chosen before anything is read from their documents, which would take long in a long history.
    newest = (
        select(_end.c.run_id).where(_OK).order_by(literal_column("run_end.rowid").desc())
    ).limit(_NEWEST)
    query = (
        select(func.max(_evidence("$.exit.peak_rss_bytes")))
        .select_from(_end.join(models.run, models.run.c.id == _end.c.run_id))
        .where(_end.c.run_id.in_(newest), folder == checkpoint)
    )
    return _figure(connection, query)


def low_water_bytes(connection: Connection) -> int | None:
    """The least available memory that a guard saw in a good run; None when no guard has told."""
    return _figure(
        connection, select(func.min(_evidence("$.exit.guard.low_water_bytes"))).where(_OK)
    )


def _evidence(path: str) -> ColumnElement[Any]:
    return func.json_extract(_end.c.evidence, path)


def _figure(connection: Connection, query: Select[Any]) -> int | None:
    found = connection.execute(query).scalar()
    return None if found is None else int(found)
