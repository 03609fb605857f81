"""A benchmark's result: plain values for machines, tables for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.bench.session import CategoryRow
from engine.bench.spread import Ratio, Spread

_ROUNDINGS = {
    "exact": "no rounding",
    "cache": "cache and indexer rows rounded as in the model's reference",
    "reference": "cache rows and activations rounded as in the model's reference",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One contestant."""

    name: str
    threads: int
    thread_ms: dict[int, float]  # best ms/token of each thread count tried
    times: Spread
    prefill_ms: float  # median time to the first token
    weights_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class Result:
    """All that one run found."""

    command: str
    machine: dict[str, object]
    checkpoint: str
    checkpoint_sha256: str
    dtype: str
    config: dict[str, Any]
    prompts: list[str]
    tokens: int
    repeats: int
    lines: list[Line]
    ratios: dict[str, Ratio]
    categories: list[CategoryRow]
    lossless: tuple[int, int]  # prompts whose speculative text is the plain one, of all
    agreement: dict[str, tuple[int, int]]  # first tokens equal to the peer's, of those compared
    peer_missing: str | None
    peak_rss_bytes: int

    @property
    def note(self) -> str:
        """How the numbers that are compared differ in what they compute."""
        return (
            f"This engine was timed under numerics {self.config['numerics']} "
            f"({_ROUNDINGS[self.config['numerics']]}). transformers has no rounding, so texts may "
            "part later on; first tokens are compared under numerics exact, which has none either, "
            "on prompts cut so short that the indexer keeps every row (ties go either way)."
        )

    def json(self) -> dict[str, Any]:
        """Plain values; the unit is part of every name."""
        raw = asdict(self)
        raw["categories"] = [{**asdict(row), "speedup": row.speedup} for row in self.categories]
        raw["note"] = self.note
        return raw


def show(result: Result, console: Console) -> None:
    """Print everything."""
    m = result.machine
    console.print(f"[bold]{m['processor']}[/], {m['cores']} cores, load {m['load_1m']:.1f}")
    console.print(
        f"Python {m['python']}, torch {m['torch']}, transformers {m['transformers'] or 'absent'}, "
        f"engine {m['engine']}"
    )
    console.print(
        f"{result.checkpoint} ({result.checkpoint_sha256[:12]}), {result.dtype}, greedy; "
        f"{len(result.prompts)} prompts, {result.repeats} repeats, up to {result.tokens} tokens"
    )
    console.print(_contestants(result))
    for line in result.lines:
        if line.thread_ms:
            console.print(_threads(line))
    for name, ratio in result.ratios.items():
        console.print(
            f"[bold]{name}: {ratio.mean:.2f}x[/] "
            f"(prompts from {ratio.lowest:.2f}x to {ratio.highest:.2f}x)"
        )
    console.print(_categories(result))
    same, of = result.lossless
    colour = "green" if same == of else "bold red"
    console.print(f"[{colour}]Speculative text equals plain text on {same} of {of} prompts.[/]")
    if result.agreement:
        shown = ", ".join(f"{a}/{b}" for a, b in result.agreement.values())
        console.print(f"First tokens equal to those of transformers, numerics exact: {shown}.")
        console.print(result.note)
    if result.peer_missing:
        console.print(f"[yellow]{result.peer_missing}[/]")
    console.print(f"Peak memory of the whole run: {_mebibytes(result.peak_rss_bytes)}.")
    console.print(f"Command: {result.command}", highlight=False, soft_wrap=True)


def _contestants(result: Result) -> Table:
    table = Table(title="Decode, ms per token (prefill, in ms, is apart; warm-up excluded)")
    for heading in ("", "threads", "min", "median", "spread", "tok/s", "prefill", "weights"):
        table.add_column(heading, justify="left" if not heading else "right")
    for line in result.lines:
        t = line.times
        table.add_row(
            line.name,
            str(line.threads),
            f"{t.minimum:.2f}",
            f"[bold]{t.median:.2f}[/]",
            f"{t.repeat_spread:.1%}",
            f"{1000 / t.median:.1f}",
            f"{line.prefill_ms:.0f}",
            _mebibytes(line.weights_bytes),
        )
    return table


def _threads(line: Line) -> str:
    tried = ", ".join(f"{n}: {ms:.2f} ms" for n, ms in line.thread_ms.items())
    return f"Threads tried for {line.name}: {tried}."


def _categories(result: Result) -> Table:
    table = Table(title="Speculation by category")
    for heading in ("category", "prompts", "tau", "plain ms", "speculative ms", "speed-up"):
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for row in result.categories:
        table.add_row(
            row.category,
            str(row.prompts),
            f"{row.tau:.2f}",
            f"{row.plain_ms:.2f}",
            f"{row.speculative_ms:.2f}",
            f"[bold]{row.speedup:.2f}x[/]",
        )
    return table


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
