"""The account for people: tables that say where their numbers come from.

No digit is ever left out: a line that is wider than the terminal is wrapped by it.
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from engine.inventory.account import Account

_GIB, _GB, _MB = 2**30, 1e9, 1e6
_WORDS = ("part", "how")  # columns of words; all others hold numbers
_WIDEST = 1000  # columns of text: more than any table takes


def show(account: Account, console: Console) -> None:
    """Print everything."""
    console.print(
        f"[bold]{account.model}[/]: {account.tensors:,} tensors, {account.stored_bytes:,} bytes, "
        f"from {account.tensors_from}",
        highlight=False,
    )
    _print(console, _parts(account))
    console.print(_sources(account), highlight=False)
    groups = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in account.groups().items())
    console.print(f"Memory by part, GiB: {groups}.", highlight=False)
    console.print(_floor(account), highlight=False)
    _print(console, _widths(account))
    draft = ", ".join(f"{name} {size / _MB:,.0f}" for name, size in account.draft.items())
    console.print(
        f"One draft reads at most {sum(account.draft.values()) / _GB:.2f} GB (MB: {draft}).",
        highlight=False,
    )
    _print(console, _memory(account))
    more = ", ".join(f"{form} {size:,.0f}" for form, size in account.growth.items())
    console.print(f"Each token more adds, on average, bytes: {more}.", highlight=False)


def _print(console: Console, table: Table) -> None:
    table.width = Measurement.get(console, console.options.update_width(_WIDEST), table).maximum
    console.print(table, crop=False)


def _table(title: str, *columns: str, source: str) -> Table:
    table = Table(
        title=title, title_justify="left", caption=source, caption_justify="left",
        box=SIMPLE_HEAD, padding=0, show_edge=False,
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column in _WORDS else "right", no_wrap=True)
    return table


def _parts(account: Account) -> Table:
    table = _table(
        "Weights, and what one plainly decoded token reads of them",
        "part", "tensors", "bytes", "read a token", "how",
        source=f"from {account.tensors_from}, by these fields:",
    )  # fmt: skip
    for part in account.parts:
        kind = part.kind
        table.add_row(
            kind.name, f"{part.tensors:,}", f"{part.stored_bytes:,}", f"{part.read_bytes:,}",
            kind.read,
        )  # fmt: skip
    table.add_section()
    table.add_row(
        "all", f"{account.tensors:,}", f"{account.stored_bytes:,}", f"{account.read_bytes:,}", ""
    )
    return table


def _sources(account: Account) -> str:
    return "\n".join(f"  {part.kind.name}: {part.kind.source}" for part in account.parts)


def _floor(account: Account) -> str:
    floor = account.bandwidth.floor_ms(account.read_bytes)
    if floor is None or account.bandwidth.gb_s is None:
        return f"Floor of plain decode: the read bandwidth is {account.bandwidth.source}."
    return (
        f"Floor of plain decode: {floor:.3f} ms a token, {1e3 / floor:.0f} tok/s, at "
        f"{account.bandwidth.gb_s:,.0f} GB/s ({account.bandwidth.source})."
    )


def _widths(account: Account) -> Table:
    table = _table(
        "A step by its rows, if every token chose its experts at random",
        "rows", "experts a layer", "read GB", "of plain", "floor ms",
        source="from config: E (1 - (1 - k / E) ^ rows), E n_routed_experts, k num_experts_per_tok",
    )  # fmt: skip
    for width in account.widths:
        floor = account.bandwidth.floor_ms(width.read_bytes)
        table.add_row(
            str(width.rows), f"{width.experts:.2f}", f"{width.read_bytes / _GB:.2f}",
            f"{width.of_plain:.2f}", "-" if floor is None else f"{floor:.2f}",
        )  # fmt: skip
    return table


def _memory(account: Account) -> Table:
    table = _table(
        "One sequence by context, MB",
        "context", "rows", "window", "draft", "inputs", "compressed", "keys", "held",
        "read", "torch",
        source="read: by one token; torch: what the torch backend holds. From config: "
        "sliding_window, compress_ratios, head_dim, index_head_dim, index_topk",
    )  # fmt: skip
    for m in account.memory:
        sizes = (m.window, m.draft, m.partial, m.compressed, m.keys, m.held, m.read)
        table.add_row(
            f"{m.context:,}", m.format, *(f"{size / _MB:.1f}" for size in sizes),
            f"{account.torch_state[m.context] / _MB:.1f}",
        )  # fmt: skip
    return table
