"""Operands under Triton's interpreter: how they are made alike is worked out once for each kind.

Which types two operands take, and which constant a number becomes, follows from their types alone.
What the interpreter answered once is kept, and everything that it refuses it is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_block = tl.core.block_type.__init__
_tensor = tl.core.tensor.__init__
_element = tl.core.block_type.with_element_ty
_handle_check = interpreter.TensorHandle.__post_init__
_numpy_type = interpreter._get_np_dtype
_convert = interpreter._convert_float
_broadcast = TritonSemantic.broadcast_impl_value
_check = TritonSemantic.binary_op_type_checking_impl
_cast = TritonSemantic.cast
_expand = TritonSemantic.expand_dims
_same = tl.dtype.__eq__

_INTEGERS = frozenset((*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES))
# Between these, `astype` is all that a cast does; to a bool it is a comparison.
_CAST_FROM = _INTEGERS | {"fp32", "fp64"}
_CAST_TO = _CAST_FROM - {"int1"}


@dataclass(frozen=True)
class Shape:
    """What is known of all tensors of one shape; it stands beside the shape of their types."""

    dims: tuple[int, ...]
    extents: tuple[Any, Any]  # the `shape` and `numel` of a tensor
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)  # attributes, by element type


@dataclass(frozen=True)
class Constant:
    """What a number becomes beside a tensor of some type."""

    tensor_type: Any | None  # that the tensor is cast to
    value: np.ndarray[Any, Any]  # [1]
    element: Any
    element_of_handle: Any


_SCALAR = (tl.core.tuple([]), tl.constexpr(1))
_shapes: dict[tuple[int, ...], Any] = {}  # of types
_numpy_types: dict[str, np.dtype[Any]] = {}
_tables: dict[tuple[str, str, Any], np.ndarray[Any, Any]] = {}
_types: dict[tuple[Any, ...], tuple[Any | None, Any | None]] = {}
_constants: dict[tuple[Any, ...], Constant] = {}
_meetings: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
_expanded: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}


# ------------------------------------------------------------------ types and tensors


def _known(kind: Any) -> Shape | None:
    known: Shape | None = vars(kind.shape).get("known") if type(kind) is tl.block_type else None
    return known


def type_of_block(self: Any, element: Any, shape: Any) -> None:
    """The type of a tensor; only a shape that passed its checks is known."""
    known = vars(shape).get("known") if type(shape) is tl.core.tuple else None
    if known is None:
        dims = tuple(s.value if type(s) is tl.constexpr else s for s in shape)
        sound = all(type(size) is int for size in dims)
        kept = _shapes.get(dims) if sound else None
        if kept is None:
            _block(self, element, shape)
            if not sound:
                return
            kept = _shapes[dims] = self.shape
            shape_of_tensor = tl.core.tuple([tl.constexpr(size) for size in dims])
            extents = (shape_of_tensor, tl.constexpr(self.numel))
            vars(kept)["known"] = Shape(dims, extents)
        known = vars(kept)["known"]
    attributes = known.kinds.get(element.name)
    if attributes is None:
        kept = _shapes[known.dims]
        _block(self, element, kept)
        self.shape = kept
        attributes = known.kinds[element.name] = dict(vars(self))
    vars(self).update(attributes)
    self.element_ty = element


def with_element(self: Any, element: Any) -> Any:
    """The type of a tensor of this shape with another element."""
    known = vars(self.shape).get("known")
    attributes = None if known is None else known.kinds.get(element.name)
    if attributes is None:
        return _element(self, element)
    kind = tl.block_type.__new__(tl.block_type)
    vars(kind).update(attributes)
    kind.element_ty = element
    return kind


def same(self: Any, other: Any) -> bool:
    """Whether two types of numbers are one."""
    if type(self) is tl.dtype and type(other) is tl.dtype:
        equal: bool = self.name == other.name
        return equal
    return bool(_same(self, other))


def new_tensor(self: Any, handle: Any, kind: Any) -> None:
    """A tensor; those of one shape share its description."""
    if type(kind) is tl.block_type:
        known = vars(kind.shape).get("known")
        if known is None:
            _tensor(self, handle, kind)
            return
        self.shape, self.numel = known.extents
    else:
        self.shape, self.numel = _SCALAR
    self.handle, self.type, self.dtype = handle, kind, kind.scalar


def new_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
    """Numbers with their type, which has to have room for them."""
    self.data, self.dtype = data, dtype
    self.attr = {} if attr is None else attr
    size = data.itemsize
    if size > 1 and type(dtype) is not tl.pointer_type and size * 8 > dtype.primitive_bitwidth:
        _handle_check(self)


def type_in_numpy(kind: Any) -> np.dtype[Any]:
    """The type of an array of that kind of number."""
    known = _numpy_types.get(kind.name)
    if known is None:
        known = _numpy_types[kind.name] = _numpy_type(kind)
    return known


# ------------------------------------------------------------------ casts


def convert_float(given: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Numbers of one float format in another; of short ones in a longer all results are known."""
    if source.primitive_bitwidth <= 16 and target.primitive_bitwidth > source.primitive_bitwidth:
        key = (source.name, target.name, rounding)
        table = _tables.get(key)
        if table is None:
            every = np.arange(1 << source.primitive_bitwidth)
            every = every.astype(f"uint{source.primitive_bitwidth}")
            table = _tables[key] = _convert(every, source, target, rounding)
        return table[given.view(f"uint{source.primitive_bitwidth}")]
    if source.name == "fp32" and target.name == "bf16":
        return _shortened(given, source, target, rounding)
    return _convert(given, source, target, rounding)


def _shortened(given: Any, source: Any, target: Any, rounding: Any) -> Any:
    """float32 as BF16, where a carry is lost as in the interpreter."""
    bits = given.view(np.uint32)
    if ((bits & 0x7F800000 == 0) & (bits & 0x7FFFFF != 0)).any():  # subnormal
        return _convert(given, source, target, rounding)
    short = (bits >> 16).astype(np.uint16)
    if rounding == interpreter._ir.ROUNDING_MODE.RTNE:
        up = ((bits >> 15) & 1).astype(np.uint16)
        short = (short & 0xFF80) | ((short & 0x7F) + up)
    return short


def cast(self: Any, given: Any, kind: Any, fp_downcast_rounding: Any = None) -> Any:
    """A tensor with other elements."""
    source, target = given.dtype, kind.scalar
    if source.name == target.name and not source.is_ptr():
        return given
    block = given.type.is_block()
    if (
        source.name not in _CAST_FROM
        or target.name not in _CAST_TO
        or fp_downcast_rounding is not None
        or (kind.is_block() and not block)
    ):
        return _cast(self, given, kind, fp_downcast_rounding)
    data = given.handle.data.astype(type_in_numpy(target))
    made = given.type.with_element_ty(target) if block else kind
    return tl.tensor(interpreter.TensorHandle(data, target), made)


# ------------------------------------------------------------------ two operands


def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Two tensors of one shape."""
    if lhs.shape is rhs.shape:
        return lhs, rhs
    left, right = _known(lhs.type), _known(rhs.type)
    if left is not None and rhs.shape is _SCALAR[0]:
        return lhs, _splat(rhs, lhs.type, left)
    if right is not None and lhs.shape is _SCALAR[0]:
        return _splat(lhs, rhs.type, right), rhs
    if left is None or right is None:
        return _broadcast(self, lhs, rhs)
    met = _meetings.get((left.dims, right.dims))
    if met is None:
        one, other = _broadcast(self, lhs, rhs)
        _meetings[left.dims, right.dims] = tuple(one.handle.data.shape)
        return one, other
    return _spread(lhs, left.dims, met), _spread(rhs, right.dims, met)


def expand_dims(self: Any, given: Any, axis: int) -> Any:
    """A tensor with one more axis, of length one."""
    known = _known(given.type)
    dims = None if known is None else _expanded.get((known.dims, axis))
    if dims is None:
        made = _expand(self, given, axis)
        if known is not None:
            _expanded[known.dims, axis] = tuple(made.handle.data.shape)
        return made
    handle = interpreter.TensorHandle(given.handle.data.reshape(dims), given.handle.dtype.scalar)
    return tl.tensor(handle, tl.block_type(given.dtype, _shapes[dims]))


def _splat(scalar: Any, kind: Any, shape: Shape) -> Any:
    handle = scalar.handle
    if isinstance(handle.dtype, tl.block_type):
        data = np.full(shape.dims, handle.data[0], type_in_numpy(handle.dtype))
    else:
        data = np.empty(shape.dims, type_in_numpy(handle.dtype))
        np.copyto(data, handle.data, casting="unsafe")
    made = interpreter.TensorHandle(data, handle.dtype.scalar)
    return tl.tensor(made, kind.with_element_ty(scalar.dtype))


def _spread(tensor: Any, dims: tuple[int, ...], met: tuple[int, ...]) -> Any:
    if dims == met:
        return tensor
    data = np.broadcast_to(tensor.handle.data, met)  # which puts new axes first, too
    handle = interpreter.TensorHandle(data, tensor.handle.dtype.scalar)
    return tl.tensor(handle, tl.block_type(tensor.dtype, _shapes[met]))


def alike(
    self: Any,
    lhs: Any,
    rhs: Any,
    allow_lhs_ptr: bool = False,
    allow_rhs_ptr: bool = False,
    arithmetic_check: bool = True,
    div_or_mod: bool = False,
) -> tuple[Any, Any]:
    """Two operands, tensors or numbers, with the types and the shape that an operation wants."""
    rules = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
    one, other = type(lhs) is tl.tensor, type(rhs) is tl.tensor
    if one and other:
        return _tensors(self, lhs, rhs, rules)
    if one and (type(rhs) is int or (type(rhs) is float and rhs != 0.0)):  # of which there are two
        return _with_number(self, lhs, rhs, rules, True)
    if other and (type(lhs) is int or (type(lhs) is float and lhs != 0.0)):
        return _with_number(self, rhs, lhs, rules, False)[::-1]
    return _check(self, lhs, rhs, *rules)


def _tensors(self: Any, lhs: Any, rhs: Any, rules: tuple[bool, ...]) -> tuple[Any, Any]:
    source = lhs.dtype, rhs.dtype
    if source[0].is_ptr() and source[1].is_ptr():  # whose names do not tell all
        return _check(self, lhs, rhs, *rules)
    key = (source[0].name, source[1].name, rules)
    known = _types.get(key)
    if known is None:
        one, other = _check(self, lhs, rhs, *rules)
        _types[key] = (_changed(source[0], one.dtype), _changed(source[1], other.dtype))
        return one, other
    if known[0] is not None:
        lhs = self.cast(lhs, known[0])
    if known[1] is not None:
        rhs = self.cast(rhs, known[1])
    return broadcast(self, lhs, rhs)


def _with_number(
    self: Any, tensor: Any, number: float, rules: tuple[bool, ...], behind: bool
) -> tuple[Any, Any]:
    key = (tensor.dtype.name, type(number), number, rules, behind)
    known = _constants.get(key)
    if known is None:
        if behind:
            one, other = _check(self, tensor, number, *rules)
        else:
            other, one = _check(self, number, tensor, *rules)
        value = other.handle.data.reshape(-1)[:1].copy()
        changed = _changed(tensor.dtype, one.dtype)
        _constants[key] = Constant(changed, value, other.dtype, other.handle.dtype)
        return one, other
    if known.tensor_type is not None:
        tensor = self.cast(tensor, known.tensor_type)
    handle = interpreter.TensorHandle(known.value.copy(), known.element_of_handle)
    return broadcast(self, tensor, tl.tensor(handle, known.element))


def _changed(before: Any, after: Any) -> Any | None:
    return None if before.name == after.name else after


QUICK: tuple[tuple[Any, str, Any], ...] = (
    (tl.dtype, "__eq__", same),
    (tl.core.block_type, "__init__", type_of_block),
    (tl.core.block_type, "with_element_ty", with_element),
    (tl.core.tensor, "__init__", new_tensor),
    (interpreter.TensorHandle, "__init__", new_handle),
    (interpreter, "_get_np_dtype", type_in_numpy),
    (interpreter, "_convert_float", convert_float),
    (TritonSemantic, "cast", cast),
    (TritonSemantic, "expand_dims", expand_dims),
    (TritonSemantic, "broadcast_impl_value", broadcast),
    (TritonSemantic, "binary_op_type_checking_impl", alike),
)
"""What to put in place of what: owner, name, replacement."""
