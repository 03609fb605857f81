"""The ledger projected into the three Markdown files; the same ledger gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from flywheel import heads_md, levers_md, runs_md
from flywheel.ledger import views
from flywheel.lever import Lever


def texts(connection: Connection, declared: Sequence[Lever]) -> dict[str, str]:
    """File name to content: LEVERS.md, RUNS.md, HEAD_REGISTRY.md."""
    view = views.load(connection)
    resolved = levers_md.resolved(view, views.effective_configs(connection))
    return {
        "LEVERS.md": levers_md.render(view, declared, resolved),
        "RUNS.md": runs_md.render(view),
        "HEAD_REGISTRY.md": heads_md.render(view),
    }
