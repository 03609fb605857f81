"""Attention and the choice of its rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from gates import Inputs, Operation
from torch import Tensor

from kernels.oracle.packed import plain
from kernels.packed import Packed
from operations.draws import BF16_RTOL, lists, normal, table
from operations.parts import joined, joining, named, random_keys, random_rows, spoilt


def weight_roundings(given: Inputs, oracle: Callable[..., Tensor]) -> Tensor:
    """How far BF16 weights may move each element: 2 ** -8 of the sum of weights times |values|.

    The weights are rounded once for the tensor cores, as the model's own kernels do; all else is
    float32. Sizes go through the oracle as channels of their own, which no query looks at.
    """
    d, pairs = given["queries"].shape[-1], given["cos"].shape[-1]
    both = joined(given)
    if isinstance(both.get("rows"), Packed):
        both["rows"] = plain(both["rows"], given["queries"].dtype)
    for name in ("ring", "kv", "rows", "block"):
        if both.get(name) is not None:
            both[name] = torch.cat((both[name], both[name].abs()), -1)
    both["queries"] = torch.cat((given["queries"], torch.zeros_like(given["queries"])), -1)
    both["cos"], both["sin"] = torch.ones_like(given["cos"]), torch.zeros_like(given["sin"])
    size = oracle(**both)[..., d:]
    # A rotation moves what is off in one of a pair to the other.
    turned = size[..., d - 2 * pairs :].unflatten(-1, (pairs, 2)).norm(dim=-1, keepdim=True)
    turned = turned.expand(*turned.shape[:-1], 2).flatten(-2)
    return 2**-8 * torch.cat((size[..., : d - 2 * pairs], turned), -1) + 1e-5


def attend(
    heads: int,
    d: int,
    pairs: int,
    window: int,
    start: int,
    *,
    kind: str,
    capacity: int = 0,
    ratio: int = 0,
    count: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    packed: bool = False,
    **options: object,
) -> Operation:
    """`kernels.attention`: `attend`, `attend_long` or `attend_block` (`kind`), from `start`.

    Compressed rows where `capacity` is not zero, plain or `packed`, of which `count` are listed
    where that is not; what no row may see is NaN.
    """
    from kernels import attention as kernel
    from kernels.oracle import attention as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        cos, sin = table(start + rows + 1, pairs)
        given: Inputs = {"queries": normal(g, rows, heads, d, dtype=dtype)}
        if kind == "attend_block":
            ring = normal(g, window, d, dtype=dtype)
            ring[start:] = torch.nan
            given |= {"ring": ring, "block": normal(g, rows, d, dtype=dtype)}
        elif kind == "attend_long":
            kv = normal(g, window - 1 + rows, d, dtype=dtype)
            kv[: max(0, window - 1 - start)] = torch.nan
            given["kv"] = kv
        else:
            ring = normal(g, window + 8, d, dtype=dtype)
            ring[start + max(rows, 1) :] = torch.nan
            given["ring"] = ring
        given |= {"sink": normal(g, heads), "cos": cos, "sin": sin}
        at = torch.tensor([start])
        if kind == "attend_block":
            return given | {"length": at, "scale": d**-0.5}
        far = normal(g, capacity, d, dtype=dtype) if capacity and not packed else None
        if far is not None:
            far[(start + rows) // ratio :] = torch.nan
        chosen = lists(g, rows, start, ratio, count) if count else None
        given |= {"rows": far, "indices": chosen, "position": at}
        if packed:
            del given["rows"]
            parts = random_rows(g, capacity, d, 2 * pairs, dtype)
            given |= named("rows", spoilt(parts, (start + rows) // ratio))
        return given | {"window": window, "ratio": ratio, "scale": d**-0.5}

    exact = dtype == torch.float32
    return Operation(
        f"{kind}-{heads}x{d}-{window}-at{start}-{capacity}:{ratio}:{count}-{dtype}"
        + "-packed" * packed,
        joining(getattr(kernel, kind)),
        joining(getattr(oracle, kind)),
        make,
        rows=("queries", "indices"),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 2e-3,
        options=dict(options),
        start="position",
        slack=None if exact else partial(weight_roundings, oracle=getattr(oracle, kind)),
    )


def choose_rows(
    heads: int,
    d: int,
    capacity: int,
    start: int,
    *,
    ratio: int = 4,
    count: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    packed: bool = False,
    **options: object,
) -> Operation:
    """`kernels.indexer.choose` on small whole numbers: exact sums, and many scores are equal.

    Keys are plain or `packed`; those that no row sees are NaN.
    """
    from kernels import indexer as kernel
    from kernels.oracle import indexer as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        keys = torch.randint(-2, 3, (capacity, d), generator=g).to(dtype)
        keys[(start + max(rows, 1)) // ratio :] = torch.nan
        queries = torch.randint(-2, 3, (rows, heads, d), generator=g).to(dtype)
        weights = torch.randint(-4, 5, (rows, heads), generator=g) * 0.25
        given: Inputs = {"queries": queries, "keys": keys, "weights": weights}
        if packed:
            del given["keys"]
            parts = random_keys(g, capacity, d)
            given |= named("keys", spoilt(parts, (start + max(rows, 1)) // ratio))
        return given | {"position": torch.tensor([start]), "ratio": ratio, "count": count}

    return Operation(
        f"choose-{count}-of-{capacity}x{heads}x{d}-at{start}:{ratio}-{dtype}" + "-packed" * packed,
        joining(kernel.choose),
        joining(oracle.choose),
        make,
        rows=("queries", "weights"),
        rtol=0.0,
        atol=0.0,
        options=dict(options),
        start="position",
    )
