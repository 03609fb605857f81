"""`flywheel mcp`: an agent reads the ledger and proposes levers (Model Context Protocol).

It can steer within the rules and no further: what it proposes is judged like any other proposal,
and nothing here starts, stops, measures or decides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flywheel.cli import desk
from flywheel.cli.terminal import JsonOption, LedgerOption, console, emit, ledger_path
from flywheel.errors import FlywheelError, UsageError

if TYPE_CHECKING:
    from mcp.server import MCPServer

INSTRUCTIONS = (
    "Flywheel makes one model decode faster on one box, one measured change at a time. Read "
    "`brief` first: it holds the rules, what is closed and by which number, and where time is left "
    "to gain. Propose few levers, each with its mechanism and what would show that it is wrong. "
    "You never decide whether one is faster: the loop measures it."
)
TOOLS = {
    "report": "What was learned: canaries, gain, decisions with their bands, what comes next.",
    "levers": "Levers by state (open, closed or all): the change, the claim, why it may not run.",
    "findings": "The newest findings: numbered, dated sentences with their evidence.",
    "brief": "All that a proposer is told: hardware, profile with residuals, levers, ceilings, "
    "fields with their values, the rules of admission, and the schema of a lever.",
    "propose": "Propose levers (at most 12), each of the schema in `brief`. The answer says of "
    "each whether it was admitted, or why not. Admitted ones wait until the loop measures them.",
}


def mcp(
    ledger: LedgerOption = Path("ledger.db"),
    name: Annotated[
        str, typer.Option("--name", help="How the report calls what is proposed through it.")
    ] = "mcp",
    show: Annotated[
        bool, typer.Option("--list", help="List the tools and end.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Serve an agent over stdin and stdout: report, levers, findings, brief and propose.

    Example: flywheel mcp --ledger night/ledger.db
    """
    path = ledger_path(ledger)
    if show:
        if json_:
            emit({"tools": TOOLS})
        else:
            for tool, said in TOOLS.items():
                console().print(Text(f"{tool}: {said}"))
        return 0
    server(path, name).run("stdio")
    return 0


def server(path: Path, name: str) -> MCPServer:
    """The server for one ledger; UsageError where the SDK is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise UsageError(
            "flywheel mcp needs the package mcp: pip install 'flywheel-engine[mcp]'."
        ) from None

    def said(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        # A mistake is a sentence for the agent, as it is for a person.
        try:
            return work()
        except FlywheelError as error:
            raise ToolError(str(error)) from None

    def report(since: str | None = None) -> dict[str, Any]:
        return said(lambda: desk.report(path, since))

    def levers(state: str = desk.OPEN) -> dict[str, Any]:
        return said(lambda: desk.levers(path, state))

    def findings(last: int = 40) -> dict[str, Any]:
        return said(lambda: desk.findings(path, last))

    def brief() -> dict[str, Any]:
        return said(lambda: desk.brief(path, name))

    def propose(levers: list[dict[str, Any]]) -> dict[str, Any]:
        return said(lambda: desk.propose(path, levers, name))

    made = MCPServer("flywheel", instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (report, levers, findings, brief):
        made.add_tool(
            tool, description=TOOLS[tool.__name__], annotations=ToolAnnotations(read_only_hint=True)
        )
    hint = ToolAnnotations(read_only_hint=False, destructive_hint=False)
    made.add_tool(propose, description=TOOLS["propose"], annotations=hint)
    return made
