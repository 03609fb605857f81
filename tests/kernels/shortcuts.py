"""Triton's interpreter, quicker: what it works out for every value is worked out once.

The numbers are those of the plain interpreter. It patches the whole language again at every call of
a device function, makes operands alike by a hundred questions (`operands`), and computes integers a
second time in int64 for an assertion on overflow that it then leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import operands
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

# The release whose inner workings these are; under any other, launches are slower, nothing else.
RELEASE = "3.6"

_patch = interpreter._patch_lang
_launch = interpreter.GridExecutor.__call__
_LANGUAGES = {id(tl), id(tl.core)}
# The modules of the language that a function sees, by the number of its globals, which grows once.
_seen: dict[tuple[Any, int], frozenset[int]] = {}
_patched: set[int] = set()  # those that are patched for the launch
# What patching modules takes where others are patched already.
_patches: dict[tuple[frozenset[int], frozenset[int]], list[tuple[Any, str, Any]]] = {}


def _patch_once(function: Any) -> Any:
    """The language as `function` sees it, unless the launch under way has patched it already."""
    place = function, len(function.__globals__)
    seen = _seen.get(place)
    if seen is None:
        seen = _seen[place] = frozenset(map(id, function.__globals__.values())) & _LANGUAGES
    if seen <= _patched:
        return interpreter._LangPatchScope()
    key = seen, frozenset(_patched)
    _patched.update(seen)
    if key not in _patches:
        scope = _patch(function)
        _patches[key] = [(owner, name, getattr(owner, name)) for owner, name, _ in scope._changes]
        return scope
    scope = interpreter._LangPatchScope()
    for owner, name, value in _patches[key]:
        scope.set_attr(owner, name, value)
    return scope


def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """A function of the language that knows its semantics by itself."""
    semantic = TritonSemantic(builder)

    def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        return member(*args, _semantic=semantic, **kwargs)

    scope.set_attr(owner, name, call)


def _launch_afresh(self: Any, *args: Any, **kwargs: Any) -> None:
    """A launch, which takes back its own patches at its end."""
    _patched.clear()
    _launch(self, *args, **kwargs)


_QUICK: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    *operands.QUICK,
    (interpreter, "_patch_attr", _patch_attr),
    (interpreter, "_patch_lang", _patch_once),
    (interpreter.GridExecutor, "__call__", _launch_afresh),
)
_options = interpreter.interpreter_builder.options
_PLAIN = tuple((owner, name, getattr(owner, name)) for owner, name, _ in _QUICK)


def hasten() -> None:
    """From here on, launches under the interpreter are quick."""
    if not triton.__version__.startswith(f"{RELEASE}."):
        return
    for owner, name, quick in _QUICK:
        setattr(owner, name, quick)
    # Without `debug`, the interpreter asserts nothing of what this makes it compute.
    interpreter.interpreter_builder.options = dataclasses.replace(
        _options, sanitize_overflow=_options.debug
    )


@contextmanager
def plain() -> Iterator[None]:
    """Inside, the interpreter is as Triton ships it."""
    for owner, name, slow in _PLAIN:
        setattr(owner, name, slow)
    interpreter.interpreter_builder.options = _options
    try:
        yield
    finally:
        hasten()
