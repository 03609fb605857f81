"""Beginnings of prompts that were computed before, in a tree of prefill chunks.

A prompt is always prefilled in chunks that start at multiples of their size, so the steps after a
remembered boundary are exactly those of a run without memory: a hit is bit-equal to a cold run on
every machine. Hence only whole chunks of prompts are kept, never what rounds committed.

What a sequence remembers comes in two kinds. Compressed rows only ever grow, so each chunk keeps
those that it completed, shared by all prompts that go through it. The rest (window, raw inputs,
draft rows) has a fixed size and is kept at some boundaries only: a sequence can start there. Those
starting points are forgotten least recently used first, and with the last one behind them the rows
that led there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

SPACING = 4  # chunks between the starting points that a prompt leaves on its way


class Rows(Protocol):
    """Compressed rows [layers, windows, ...] of the layers that share a ratio."""

    @property
    def ratio(self) -> int:
        """Tokens a window."""

    @property
    def kept(self) -> Mapping[str, Tensor]:
        """Their tensors by name, with one line a window."""


class Memory(Protocol):
    """What a backend remembers of a sequence."""

    length: int  # committed tokens
    draft_length: int  # those that the draft head knows, from the first on

    @property
    def pools(self) -> Mapping[str, Rows]:
        """Compressed rows by name; `tensors` has each one's tensor `part` as `name.part`."""

    def tensors(self) -> dict[str, Tensor]:
        """Every buffer by name."""

    def span(self) -> int:
        """Rows after the committed ones that one step may have."""


@dataclass(eq=False, slots=True)
class _Node:
    """What one chunk added; `rest` and `draft_length` are there where a sequence can start."""

    parent: _Node | None
    tokens: tuple[int, ...] = ()
    rows: dict[str, Tensor] = field(default_factory=dict)
    rest: dict[str, Tensor] | None = None
    draft_length: int = 0
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    kept: bool = False  # part of the tree


class PrefixCache:
    """Remembered beginnings under a budget of bytes. One thread at a time."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size_bytes = 0
        self._roots: dict[Hashable, _Node] = {}
        self._points: dict[_Node, None] = {}  # least recently used first

    def __len__(self) -> int:
        """Boundaries at which a sequence can start."""
        return len(self._points)

    def open(self, owner: Hashable, prompt: Sequence[int], chunk: int) -> Passage:
        """The way of `prompt` through the tree of `owner`: whatever else decides the state."""
        root = self._roots.setdefault(owner, _Node(None, kept=True))
        return Passage(self, root, prompt, chunk)

    def touch(self, node: _Node) -> None:
        """Make a starting point the most recently used."""
        self._points[node] = self._points.pop(node, None)

    def keep(self, chain: Sequence[_Node]) -> None:
        """Take up new nodes, each the parent of the next; the last is a starting point."""
        for node in chain:
            if not node.kept and node.parent is not None:
                node.parent.children[node.tokens] = node
                node.kept = True
                self.size_bytes += _size(node.rows)
        last = chain[-1]
        self.size_bytes += _size(last.rest or {})
        self.touch(last)
        while self.size_bytes > self.budget_bytes and self._points:
            self._forget(next(iter(self._points)))

    def _forget(self, node: _Node) -> None:
        """Drop a starting point, and the rows before it that lead nowhere else."""
        del self._points[node]
        self.size_bytes -= _size(node.rest or {})
        node.rest = None
        while not node.children and node.rest is None and node.parent is not None:
            del node.parent.children[node.tokens]
            node.kept = False
            self.size_bytes -= _size(node.rows)
            node = node.parent


class Passage:
    """One prompt's way: what of it is known, and what it leaves behind."""

    def __init__(self, cache: PrefixCache, root: _Node, prompt: Sequence[int], chunk: int) -> None:
        self._cache = cache
        self._prompt = prompt
        self._chunk = chunk
        self._way = [root]  # the nodes of the prompt's first chunks
        while self._tokens(len(self._way)) in self._way[-1].children:
            self._way.append(self._way[-1].children[self._tokens(len(self._way))])
        self._fork = len(self._way) - 1

    def restore(self, state: Memory) -> int:
        """Bring a new `state` to the last known start before the prompt's end; tokens saved."""
        usable = (len(self._prompt) - 1) // self._chunk  # the last token's logits are needed
        starts = [i for i, n in enumerate(self._way) if n.rest is not None and i <= usable]
        if not starts:
            self._way = self._way[:1]
            return 0
        self._way = self._way[: starts[-1] + 1]
        for index, node in enumerate(self._way[1:]):
            for name, rows in node.rows.items():
                pool, _, part = name.rpartition(".")
                first = index * self._chunk // state.pools[pool].ratio
                state.pools[pool].kept[part][:, first : first + rows.shape[1]] = rows
        last = self._way[-1]
        tensors = state.tensors()
        for name, content in (last.rest or {}).items():
            tensors[name].copy_(content)
        state.length, state.draft_length = starts[-1] * self._chunk, last.draft_length
        self._cache.touch(last)
        return state.length

    def note(self, state: Memory) -> None:
        """Remember the chunk that `state` has just committed."""
        count, over = divmod(state.length, self._chunk)
        if over or len(self._way) != count:
            return
        parent, tokens = self._way[-1], self._tokens(count)
        known = parent.children.get(tokens)
        node = known or _Node(parent, tokens, self._grown(state, count))
        self._way.append(node)
        if node.rest is None and self._starts(count):
            chain = self._unkept()
            if _fits(chain[0]):
                node.rest, node.draft_length = _rest(state), state.draft_length
                self._cache.keep(chain)

    def _starts(self, count: int) -> bool:
        """Whether sequences may start after chunk `count`: now and then, where this prompt leaves
        the known way (others may share the same beginning), and at its end, once for a longer
        prompt and once for the same one, whose last token must be left to compute."""
        length, chunk = len(self._prompt), self._chunk
        return count in (self._fork, length // chunk, (length - 1) // chunk) or not count % SPACING

    def _unkept(self) -> list[_Node]:
        """The newest node, after those on the way to it that are not in the tree yet."""
        first = len(self._way) - 1
        while not self._way[first].kept and not self._way[first - 1].kept and first > 1:
            first -= 1
        return self._way[first:]

    def _tokens(self, count: int) -> tuple[int, ...]:
        """Chunk `count` of the prompt, from 1; a part of one is in no tree."""
        return tuple(self._prompt[(count - 1) * self._chunk : count * self._chunk])

    def _grown(self, state: Memory, count: int) -> dict[str, Tensor]:
        """Compressed rows that chunk `count` completed."""
        start, stop = (count - 1) * self._chunk, count * self._chunk
        return {
            f"{name}.{part}": rows[:, start // pool.ratio : stop // pool.ratio].clone()
            for name, pool in state.pools.items()
            for part, rows in pool.kept.items()
        }


def _fits(node: _Node) -> bool:
    """Whether `node` has its place in the tree: its parent was not forgotten meanwhile, and no
    other run put the same chunk there."""
    parent = node.parent
    return parent is not None and parent.kept and parent.children.get(node.tokens, node) is node


def _rest(state: Memory) -> dict[str, Tensor]:
    """Copies of all but the compressed rows."""
    rows = {f"{name}.{part}" for name, pool in state.pools.items() for part in pool.kept}
    return {name: t.clone() for name, t in state.tensors().items() if name not in rows}


def _size(tensors: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())
