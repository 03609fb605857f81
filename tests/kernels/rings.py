"""The kernels that write a layer's rings and rows in place, as `Operation`s.

Each works on copies of the buffers, which count as outputs: so the gates see whatever is written,
and that nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gates import Inputs, Operation, as_tuple, bits
from operations import BF16_RTOL, normal, parts as packing
from torch import Tensor

from kernels.oracle import packed, rounding
from kernels.packed import Packed, Rows, tensors
from kernels.pool import Pool

CONTEXT = 300


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer; a pool is (ratio, channels of a row)."""

    q_rank: int = 40
    heads: int = 3
    head_dim: int = 128
    pairs: int = 32
    slots: int = 24  # of the window
    main: tuple[int, int] | None = None
    keys: tuple[int, int] | None = None
    index_heads: int = 0
    overlapping: bool = True
    dtype: torch.dtype = torch.float32
    stored: torch.dtype = torch.float32
    rounds: bool = False
    packed: bool = False  # the rows of the pools

    def __str__(self) -> str:
        kind = "window" if self.main is None else f"{self.main[0]}-{'o' * self.overlapping}"
        kind += "-keys" * (self.keys is not None) + "-rounds" * self.rounds
        kind += "-packed" * self.packed
        return f"{kind}-{self.head_dim}-{self.dtype}-{self.stored}"

    @property
    def pools(self) -> tuple[tuple[int, int], ...]:
        return tuple(pool for pool in (self.main, self.keys) if pool is not None)

    @property
    def columns(self) -> int:
        """Compressor inputs of a row, and some more columns."""
        return sum(2 * self.width(d) for _, d in self.pools) + 5

    def width(self, d: int) -> int:
        return 2 * d if self.overlapping else d


def intake(layer: Layer, start: int, name: str = "store", **options: object) -> Operation:
    """`kernels.intake.store` or `rows` from position `start`."""
    from kernels import intake as kernel
    from kernels.oracle import intake as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        given = _projected(layer, rows, start, g)
        if name == "store":
            return given | _buffers(layer, g)
        return {k: v for k, v in given.items() if k not in ("y16", "window")}

    return _operation(
        f"intake.{name}", layer, start, getattr(kernel, name), getattr(oracle, name), make, options
    )


def passage(layer: Layer, start: int, reach: int, **options: object) -> Operation:
    """`kernels.passage.store` from position `start`."""
    from kernels import passage as kernel
    from kernels.oracle import passage as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return _projected(layer, rows, start, g) | _buffers(layer, g) | {"reach": reach}

    return _operation("passage.store", layer, start, kernel.store, oracle.store, make, options)


def prepare(layer: Layer, start: int, **options: object) -> Operation:
    """`kernels.heads.prepare` from position `start`."""
    from kernels import heads as kernel
    from kernels.oracle import heads as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        index_dim = layer.keys[1] if layer.keys else 0
        width = layer.heads * layer.head_dim + layer.index_heads * index_dim
        given: Inputs = {"y": normal(g, rows, width, dtype=layer.dtype) * 2}
        given |= _place(layer, start, g) | _buffers(layer, g)
        del given["window"]
        shape = {"heads": layer.heads, "head_dim": layer.head_dim, "index_dim": index_dim}
        return given | shape | {"eps": 1e-6, "rounds": layer.rounds}

    return _operation("heads.prepare", layer, start, kernel.prepare, oracle.prepare, make, options)


def extend(layer: Layer, stages: int, start: int, count: int, **options: object) -> Operation:
    """`kernels.context.extend` of `count` rows from position `start`."""
    from kernels import context as kernel
    from kernels.oracle import context as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        place = _place(layer, start, g)
        return {
            "y": normal(g, rows, stages * layer.head_dim, dtype=layer.dtype) * 2,
            "norms": normal(g, stages, layer.head_dim).to(layer.dtype),
            "cos": place["cos"],
            "sin": place["sin"],
            "start": place["position"],
            "count": torch.tensor([min(count, rows)]),
            "rings": normal(g, stages, layer.slots, layer.head_dim, dtype=layer.stored),
            "eps": 1e-6,
            "rounds": layer.rounds,
        }

    name = f"context.extend-{stages}-{count}"
    return _operation(name, layer, start, kernel.extend, oracle.extend, make, options)


def pools_of(given: Inputs) -> list[Pool]:
    """The pools whose parts are among `given`, without their copies."""
    names = [name for name in ("main", "keys") if f"{name}.ape" in given]
    fixed = ("ape", "norm", "inputs")
    return [
        Pool(
            **{part: given[f"{name}.{part}"] for part in fixed},
            rows=packing.rows_of(given, f"{name}.rows"),
        )
        for name in names
    ]


def in_place(call: Callable[..., Any], **given: Any) -> tuple[Tensor, ...]:
    """The outputs of `call`, then its buffers; those `given` stay as they are."""
    pools = pools_of(given)
    pools = [p._replace(inputs=copied(p.inputs), rows=_copied_rows(p.rows)) for p in pools]
    rest = {name: value for name, value in given.items() if "." not in name}
    buffers = {name: copied(rest[name]) for name in ("window", "rings") if name in rest}
    more = {"pools": pools} if "y16" in given or "heads" in given else {}
    outputs = call(**rest | buffers | more)
    found = () if outputs is None else as_tuple(tuple(o for o in _flat(outputs) if o is not None))
    return (*found, *buffers.values(), *(t for p in pools for t in (p.inputs, *tensors(p.rows))))


def buffers(given: Inputs) -> list[Tensor]:
    """What is written in place, in the order of `in_place`."""
    first = [given[name] for name in ("window", "rings") if name in given]
    return first + [t for pool in pools_of(given) for t in (pool.inputs, *tensors(pool.rows))]


def check_places(op: Operation, rows: int, device: str) -> None:
    """Rows of the buffers that the oracle leaves alone, the kernel leaves alone to the bit."""
    inputs = op.inputs(rows, device)
    before = buffers(inputs)
    got, want = (run(**inputs)[-len(before) :] for run in (op.kernel, op.oracle))
    for old, g, w in zip(before, got, want, strict=True):
        left = (w == old).all(-1)
        assert torch.equal(bits(g[left]), bits(old[left]))


def check_steps(op: Operation, rows: int, device: str) -> None:
    """One step returns and leaves the same bits as its rows one by one, or in two steps.

    Under the interpreter, where a launch takes long: as some rows one by one, then the rest.
    """
    inputs = op.inputs(rows, device)
    whole, held = op.run(inputs), len(buffers(inputs))
    mixed = [1] * (rows - 3) + [3]
    for sizes in (mixed,) if device == "cpu" else ([1] * rows, [3, rows - 3]):
        outputs, state = [], buffers(inputs)
        for part in parts(inputs, sizes):
            found = op.run(part | named(part, state))
            outputs.append(found[: len(found) - held])
            state = list(found[len(found) - held :])
        joined = (torch.cat(pieces) for pieces in zip(*outputs, strict=True))
        for got, want in zip((*joined, *state), whole, strict=True):
            assert torch.equal(bits(got), bits(want)), sizes


def check_packed(
    make: Callable[[Layer], Operation], layer: Layer, device: str, rows: int, *, twin: bool = False
) -> None:
    """Packed rows are left with the numbers of plain ones, and all else with the same bits.

    By the kernel, or by its `twin`.
    """
    op = make(replace(layer, packed=True))
    given = op.inputs(rows, device)
    run = (lambda given: op.oracle(**given)) if twin else op.run
    got, held = run(given), len(buffers(given))
    want = run(_unpacked(given, layer))
    left = _unpacked(given | named(given, list(got[-held:])), layer)
    assert len(got) - held == len(want) - len(buffers(left))
    for g, w in zip((*got[:-held], *buffers(left)), want, strict=True):
        assert torch.equal(bits(g), bits(w))


def _unpacked(given: Inputs, layer: Layer) -> Inputs:
    plain = {n: v for n, v in given.items() if ".rows." not in n}
    for name in ("main.rows", "keys.rows"):
        if f"{name}.codes" in given:
            plain[name] = packed.plain(packing.rows_of(given, name), layer.stored)
    return plain


def check_rounded(layer: Layer, start: int, device: str) -> None:
    """What rounding kernels keep and return is the rounding of what the others do.

    `layer` stores float32, so that nothing else rounds what is kept.
    """
    for make in (intake, prepare):
        op = make(layer, start)
        inputs = op.inputs(8, device)
        before = named(inputs, buffers(inputs))
        free, rounded = (op.run(inputs | {"rounds": rounds}) for rounds in (False, True))
        held = len(before)
        for (name, old), f, r in zip(before.items(), free[-held:], rounded[-held:], strict=True):
            new = (f != old).any(-1)
            assert new.any() == (name == "window" or name.endswith("rows") == (make is prepare))
            assert torch.equal(bits(f[~new]), bits(r[~new]))
            if name in ("window", "main.rows"):
                assert torch.equal(r[new], rounding.cache_round(f[new], 2 * layer.pairs))
            elif name == "keys.rows":
                assert _nearest(r[new], rounding.hadamard(f[new]))
            else:
                assert torch.equal(bits(f), bits(r))
        assert torch.equal(bits(free[0]), bits(rounded[0]))
        if make is prepare and layer.keys:
            assert _nearest(rounded[1].float(), rounding.hadamard(free[1].float()))


def _nearest(got: Tensor, wide: Tensor) -> bool:
    """Whether `got` is `wide` on the FP4 grid, but for numbers in the middle of two codes."""
    around = [rounding.fp4_round(wide * (1 + off)) for off in (-(2.0**-14), 0.0, 2.0**-14)]
    return bool(torch.stack([got == near for near in around]).any(0).all())


def take_steps(given: Inputs, sizes: list[int]) -> None:
    """Steps of `sizes` rows that leave their rows and inputs in the buffers of `given`."""
    from kernels import heads, intake as kernel

    d = given["kv_norm"].shape[0]
    for part in parts(given, sizes):
        pools, y = pools_of(part), part["y8"].new_zeros((part["y8"].shape[0], d))
        kernel.store(**arguments(part), pools=pools)
        heads.prepare(
            y, part["cos"], part["sin"], part["position"], pools,
            heads=1, head_dim=d, eps=part["eps"], rounds=part["rounds"],
        )  # fmt: skip


def arguments(given: Inputs) -> Inputs:
    """What `intake.store` takes, but for the pools."""
    return {name: value for name, value in given.items() if "." not in name and name != "reach"}


def clones(given: Inputs) -> Inputs:
    """`given` with tensors of its own."""
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in given.items()}


def parts(given: Inputs, sizes: list[int]) -> Iterator[Inputs]:
    """The inputs of steps of `sizes` rows, one after another."""
    first = 0
    for size in sizes:
        rows = slice(first, first + size)
        named = {n: given[n][rows] for n in ("y", "y8", "y16") if given.get(n) is not None}
        yield given | named | {"position": given["position"] + first}
        first += size


def named(given: Inputs, state: list[Tensor]) -> Inputs:
    """The buffers of `given` as `state` has them, which is in the order of `buffers`."""
    names: list[str] = [name for name in ("window", "rings") if name in given]
    pools = [name for name in ("main", "keys") if f"{name}.ape" in given]
    for pool in pools:
        names += [f"{pool}.inputs", *(name for name in given if name.startswith(f"{pool}.rows"))]
    return dict(zip(names, state, strict=True))


def _copied_rows(rows: Rows) -> Rows:
    return Packed(*map(copied, tensors(rows))) if isinstance(rows, Packed) else copied(rows)


def copied(tensor: Tensor) -> Tensor:
    """A copy that lies as far from alignment as the original."""
    first = tensor.storage_offset()
    room = torch.zeros(first + tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    room[first:] = tensor.flatten()
    return room[first:].view(tensor.shape)


def _flat(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _operation(
    name: str, layer: Layer, start: int, kernel: Callable[..., Any], oracle: Callable[..., Any],
    make: Callable[[int, torch.Generator], Inputs], options: dict[str, object],
) -> Operation:  # fmt: skip
    exact = torch.float32 == layer.dtype == layer.stored
    return Operation(
        f"{name}-{layer}-{start}",
        partial(in_place, kernel),
        partial(in_place, oracle),
        make,
        rows=(),
        rtol=2e-5 if exact else 2 * BF16_RTOL,
        atol=1e-5 if exact else 2e-2,
        options=options,
        widen=False,
    )


def _place(layer: Layer, start: int, g: torch.Generator) -> Inputs:
    angles = torch.rand(CONTEXT, layer.pairs, generator=g) * 7
    return {"cos": angles.cos(), "sin": angles.sin(), "position": torch.tensor([start])}


def _projected(layer: Layer, rows: int, start: int, g: torch.Generator) -> Inputs:
    y8 = normal(g, rows, layer.q_rank + layer.head_dim, dtype=layer.dtype) * 2
    return {
        "y8": y8,
        "y16": normal(g, rows, layer.columns) if layer.pools else None,
        "q_norm": normal(g, layer.q_rank).to(layer.dtype),
        "kv_norm": normal(g, layer.head_dim).to(layer.dtype),
        **_place(layer, start, g),
        "eps": 1e-6,
        "rounds": layer.rounds,
    }


def _buffers(layer: Layer, g: torch.Generator) -> Inputs:
    """Rings and rows as other positions left them."""
    given: Inputs = {"window": normal(g, layer.slots, layer.head_dim, dtype=layer.stored)}
    for name, pool in zip(("main", "keys"), layer.pools, strict=False):
        ratio, d = pool
        width = layer.width(d)
        slots = ratio * (2 if layer.overlapping else 1) + 8
        given[f"{name}.ape"] = normal(g, ratio, width)
        given[f"{name}.norm"] = normal(g, d).to(layer.dtype)
        given[f"{name}.inputs"] = normal(g, slots, 2 * width) * 2
        capacity = CONTEXT // ratio + 1
        if not layer.packed:
            given[f"{name}.rows"] = normal(g, capacity, d, dtype=layer.stored)
        elif name == "main":
            rows = packing.random_rows(g, capacity, d, 2 * layer.pairs, layer.stored)
            given |= packing.named("main.rows", rows)
        else:
            given |= packing.named("keys.rows", packing.random_keys(g, capacity, d))
    return given
