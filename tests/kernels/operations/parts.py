"""Packed rows among the inputs of an operation: by part, as `rows.codes` and so on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from gates import Inputs, Operation, bits
from torch import Tensor

from kernels.oracle import packed
from kernels.packed import CACHE_GROUP, INDEX_GROUP, Packed, Rows

NAN_CODE, NAN_SCALE = 0x7F, 0xFF


def random_rows(
    g: torch.Generator, capacity: int, d: int, tail: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Key/value rows by part, about as large as normal numbers; scales with a byte to spare."""
    codes = torch.randint(0, 256, (capacity, d - tail), generator=g)
    codes[codes & NAN_CODE == NAN_CODE] = 0
    groups = (d - tail) // CACHE_GROUP
    return {
        "codes": codes.to(torch.uint8),
        "scales": torch.randint(117, 121, (capacity, groups + 1), generator=g).to(torch.uint8),
        "tail": torch.randn(capacity, tail, generator=g).to(dtype),
    }


def random_keys(g: torch.Generator, capacity: int, d: int) -> dict[str, Tensor]:
    """Index keys by part, of small multiples of a quarter."""
    scales = torch.randint(126, 129, (capacity, d // INDEX_GROUP), generator=g)
    codes = torch.randint(0, 256, (capacity, d // 2), generator=g)
    return {"codes": codes.to(torch.uint8), "scales": scales.to(torch.uint8)}


def spoilt(parts: dict[str, Tensor], first: int) -> dict[str, Tensor]:
    """`parts` whose rows from `first` on are no numbers."""
    parts["codes"][first:] = NAN_CODE
    parts["scales"][first:] = NAN_SCALE
    if "tail" in parts:
        parts["tail"][first:] = torch.nan
    return parts


def named(name: str, parts: dict[str, Tensor]) -> Inputs:
    """`parts` as inputs of an operation."""
    return {f"{name}.{part}": tensor for part, tensor in parts.items()}


def rows_of(given: Inputs, name: str) -> Rows:
    """The rows called `name`, whole or by part."""
    if name in given:
        rows: Tensor = given[name]
        return rows
    return Packed(given[f"{name}.codes"], given[f"{name}.scales"], given.get(f"{name}.tail"))


def joined(given: Inputs) -> Inputs:
    """`given` with rows in one piece that are there by part."""
    names = {name.partition(".")[0] for name in given if name.endswith(".codes")}
    whole = {name: value for name, value in given.items() if name.partition(".")[0] not in names}
    return whole | {name: rows_of(given, name) for name in names}


def joining(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, for inputs by part."""

    @wraps(call)
    def joins(**given: Any) -> Any:
        return call(**joined(given))

    return joins


def check_packed(op: Operation, rows: int, device: str) -> None:
    """Packed rows, or keys, give the bits that the plain ones give which they stand for."""
    inputs = op.inputs(rows, device)
    dtype = inputs["queries"].dtype
    plain = {
        n: packed.plain(v, dtype) if isinstance(v, Packed) else v for n, v in joined(inputs).items()
    }
    assert set(plain) != set(inputs), "nothing is packed"
    for got, want in zip(op.run(inputs), op.run(plain), strict=True):
        assert torch.equal(bits(got), bits(want))
