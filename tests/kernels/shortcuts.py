"""Triton's interpreter, quicker: what it works out for every value is worked out once.

The numbers are those of the plain interpreter. It patches the whole language again at every call of
a device function, describes the shape of every tensor anew, and computes integers a second time in
int64 for an assertion on overflow that it then leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

# The release whose inner workings these are; under any other, launches are slower, nothing else.
RELEASE = "3.6"

_block = tl.core.block_type.__init__
_tensor = tl.core.tensor.__init__
_numpy_type = interpreter._get_np_dtype
_patch = interpreter._patch_lang
_launch = interpreter.GridExecutor.__call__
_shapes: dict[tuple[Any, ...], dict[str, Any]] = {}
_extents: dict[tuple[int, ...], tuple[Any, Any]] = {(): (tl.core.tuple([]), tl.constexpr(1))}
_numpy_types: dict[str, np.dtype[Any]] = {}
_LANGUAGES = {id(tl), id(tl.core)}
_patched: set[int] = set()  # the modules of the language that are patched for the launch


def _type_of_block(self: Any, element: Any, shape: Any) -> None:
    """The type of a tensor; only a shape that passed its checks is known."""
    key = (element.name, *[s.value if type(s) is tl.constexpr else s for s in shape])
    known = _shapes.get(key)
    if known is None or not all(type(size) is int for size in key[1:]):
        _block(self, element, shape)
        known = _shapes[key] = dict(vars(self))
    vars(self).update(known)
    self.element_ty = element


def _new_tensor(self: Any, handle: Any, kind: Any) -> None:
    """A tensor; those of one shape share its description."""
    shape = tuple(kind.shape) if kind.is_block() else ()
    known = _extents.get(shape)
    if known is None:
        _tensor(self, handle, kind)
        known = _extents[shape] = (self.shape, self.numel)
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.shape, self.numel = known


def _type_in_numpy(kind: Any) -> np.dtype[Any]:
    known = _numpy_types.get(kind.name)
    if known is None:
        known = _numpy_types[kind.name] = _numpy_type(kind)
    return known


def _patch_once(function: Any) -> Any:
    """The language as `function` sees it, unless the launch under way has patched it already."""
    seen = {id(value) for value in function.__globals__.values()} & _LANGUAGES
    if seen <= _patched:
        return interpreter._LangPatchScope()
    _patched.update(seen)
    return _patch(function)


def _launch_afresh(self: Any, *args: Any, **kwargs: Any) -> None:
    """A launch, which takes back its own patches at its end."""
    _patched.clear()
    _launch(self, *args, **kwargs)


_QUICK: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (tl.core.block_type, "__init__", _type_of_block),
    (tl.core.tensor, "__init__", _new_tensor),
    (interpreter, "_get_np_dtype", _type_in_numpy),
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
