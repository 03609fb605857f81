"""The ledger projected into the three Markdown files; the same ledger gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from flywheel.ledger import models, views
from flywheel.lever import Lever
from flywheel.report import heads_md, levers_md, runs_md


def texts(connection: Connection, declared: Sequence[Lever]) -> dict[str, str]:
    """File name to content: LEVERS.md, RUNS.md, HEAD_REGISTRY.md."""
    view = views.load(connection)
    resolved = levers_md.resolved(view, views.effective_configs(connection))
    return {
        "LEVERS.md": levers_md.render(view, declared, resolved),
        "RUNS.md": runs_md.render(view),
        "HEAD_REGISTRY.md": heads_md.render(view, _imported_heads(connection)),
    }


def _imported_heads(connection: Connection) -> list[heads_md.ImportedHead]:
    told = models.foreign_verdict.c
    query = select(told.world, told.arm, told.stated, told.ending, told.sentence).order_by(told.id)
    return [heads_md.ImportedHead(*row) for row in connection.execute(query)]
