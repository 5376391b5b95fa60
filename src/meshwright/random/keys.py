"""Keys, and the random bits they stand for. Everything else in ``meshwright.random`` is made from these.

A key is an array of two uint32 words, or one element of the dtype of keys (``key_dtype``), which holds both: arrays of
these have the shape of the keys. The n-th element of a random array is the hash of n under the key, so it depends
neither on the other elements nor on where it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from math import prod
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, broadcast_shapes, convert, is_number, stack_values, value
from meshwright.arrays.static import placed, static_shape
from meshwright.compile.jit import jit
from meshwright.core import dtypes
from meshwright.core.dtypes import UINT8, UINT16, UINT32, UINT64, DType, as_dtype, short_name
from meshwright.core.source import here
from meshwright.core.trace import Tracer, Value, state
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import Shape
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops.basic import add, broadcast_in_dim, mul, reshape
from meshwright.ops.bits import bitcast, or_, shift_left, shift_right_logical, xor
from meshwright.ops.random import threefry2x32
from meshwright.ops.shape import concatenate, iota, slice_

IMPLEMENTATION = "threefry2x32"
PLACES_IN_A_WORD = 2**32


class Sampler:
    """A function of arrays and of static keyword arguments, compiled when it is called with known arrays.

    While tracing it adds its equations one by one, so that each has the line of the user's code it serves.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[function.__code__.co_argcount :]
        static = names[: function.__code__.co_kwonlyargcount]
        self.compiled = jit(function, static_argnames=static, engine="numpy")

    def __call__(self, *arrays: Value, **static: Any) -> Any:
        traced = state.builder is not None or any(x.__class__ is Tracer for x in arrays)
        return (self.function if traced else self.compiled)(*arrays, **static)


# Making keys


def key(seed: ArrayLike, *, impl: str | None = None, dtype: str | None = None) -> Value:
    """The key of an integer seed: its high and low 32 bits.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.key(42))
    array([ 0, 42], dtype=uint32)
    """
    _check_implementation(impl, dtype)
    return stack_values(_seed_words(seed), 0)


def _check_implementation(*names: str | None) -> None:
    for name in names:
        if name is not None and not (isinstance(name, str) and name == IMPLEMENTATION):
            raise MeshwrightError(
                f"There is no random number generator {name!r}.",
                where=here(),
                why=f"keys belong to {IMPLEMENTATION}, whose numbers do not depend on the layout of an array",
                fix="mw.random.key(seed)",
            )


def PRNGKey(seed: ArrayLike, *, impl: str | None = None) -> Value:
    """As ``key``; in JAX the two differ in type."""
    return key(seed, impl=impl)


def _seed_words(seed: ArrayLike) -> list[Value]:
    if isinstance(seed, int) and not isinstance(seed, np.generic):
        if not -(2**63) <= seed < 2**63:
            raise ShapeError(
                f"key cannot take the seed {seed}.",
                where=here(),
                why="a seed has 64 bits",
                fix=f"mw.random.key({seed % 2**63})",
            )
        low = np.array(seed & 0xFFFFFFFF, np.uint32)
        high = np.array(seed >> 32 & 0xFFFFFFFF if dtypes.config.enable_x64 else 0, np.uint32)
        return [value(high), value(low)]
    x = value(seed)
    if not dtypes.is_integer(x.dtype) or x.ndim:
        raise ShapeError(
            f"key cannot take a seed of type {x.type.short()}.",
            where=here(),
            why="a seed is one integer",
            fix="one key: mw.random.key(0); one for each of several seeds: mw.vmap(mw.random.key)(seeds)",
        )
    low = convert(x, UINT32)
    high = convert(shift_right_logical(x, 32), UINT32) if x.dtype.itemsize == 8 else value(np.uint32(0))
    return [high, low]


def key_data(keys: ArrayLike) -> Value:
    """The words of one or more keys: an array of ``uint32`` whose last dim has size 2.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.key_data(typed_key(7)))
    array([0, 7], dtype=uint32)
    """
    return checked_keys("key_data", keys)


def typed_key(seed: ArrayLike, *, impl: str | None = None, dtype: str | None = None) -> Value:
    """The key of an integer seed as one element of the dtype of keys.

    >>> typed_key(7).shape
    ()
    """
    return typed(key(seed, impl=impl, dtype=dtype))


def typed(words: Value) -> Value:
    """Keys given as words, as elements of the dtype of keys."""
    return bitcast(words, dtype=dtypes.KEY)


def is_typed(keys: Any) -> bool:
    """Whether keys are elements of the dtype of keys."""
    return getattr(keys, "dtype", None) == dtypes.KEY


def _like(keys: ArrayLike, words: Value) -> Value:
    """New keys, of the kind that was given."""
    return typed(words) if is_typed(keys) else words


def key_impl(keys: ArrayLike) -> str:
    """The name of the generator that keys belong to."""
    checked_keys("key_impl", keys)
    return IMPLEMENTATION


def key_dtype(impl_spec: str | None = None) -> DType:
    """The dtype of keys."""
    _check_implementation(impl_spec)
    return dtypes.KEY


def wrap_key_data(key_bits_array: ArrayLike, *, impl: str | None = None, dtype: str | None = None) -> Value:
    """One or more keys from their words, which here are the keys themselves."""
    _check_implementation(impl, dtype)
    return checked_keys("wrap_key_data", key_bits_array)


def clone(key: ArrayLike) -> Value:
    """The same key, to say that it is used again on purpose."""
    return _like(key, checked_keys("clone", key))


def split(key: ArrayLike, num: int | tuple[int, ...] = 2) -> Value:
    """New keys, ``num`` of them (or an array of keys of that shape), that stand for unrelated numbers.

    >>> import meshwright as mw
    >>> key, subkey = mw.random.split(mw.random.key(0))
    >>> key.shape
    (2,)
    """
    shape = checked_shape("split", num, "num")
    return _like(key, _split(checked_key("split", key), shape=shape))


@Sampler
def _split(key: Value, *, shape: Shape) -> Value:
    return stack_values(_hash(key, shape), len(shape))


def rows_of_split(key: Value) -> tuple[Value, Value]:
    """The two new keys of a checked key, inside a sampler."""
    high, low = _hash(key, (2,))
    first, second = (
        concatenate(*(slice_(word, starts=(n,), limits=(n + 1,), strides=(1,)) for word in (high, low)), dim=0)
        for n in (0, 1)
    )
    return first, second


def fold_in(key: ArrayLike, data: ArrayLike) -> Value:
    """A new key from a key and an integer, say the number of a step or a layer."""
    one = checked_key("fold_in", key)
    number = is_number(data) and isinstance(data, int)
    if number and not 0 <= data < 2**32:
        raise ShapeError(
            f"fold_in cannot take data={data}.",
            where=here(),
            why="data is a 32-bit unsigned integer",
            fix=f"mw.random.fold_in(key, {data % 2**32})",
        )
    x = value(np.uint32(data) if number else data)
    if not dtypes.is_integer(x.dtype) or x.ndim:
        raise ShapeError(
            f"fold_in cannot take data of type {x.type.short()}.",
            where=here(),
            why="data is one integer",
            fix="one key: mw.random.fold_in(key, 1); several: "
            "mw.vmap(lambda n: mw.random.fold_in(key, n))(mnp.arange(8))",
        )
    return _like(key, _fold_in(one, convert(x, UINT32)))


@Sampler
def _fold_in(key: Value, data: Value) -> Value:
    return stack_values(threefry2x32(*words(key), 0, data), 0)


# Bits


def bits(key: ArrayLike, shape: Any = (), dtype: DTypeLike = None, *, out_sharding: Any = None) -> Value:
    """Random bits as unsigned integers of any width.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.bits(mw.random.key(0), (2,)))
    array([4070199207, 4202968722], dtype=uint32)
    """
    wanted = checked_dtype("bits", np.uint64 if dtype is None else dtype, dtypes.UNSIGNED)
    found = _bits(checked_key("bits", key), shape=checked_shape("bits", shape), dtype=wanted)
    return placed(found, None, out_sharding)


def random_bits(key: Value, shape: Shape, dtype: DType) -> Value:
    """Random bits of a checked key, inside another sampler."""
    return each_word(*_hash(key, shape), dtype)


def each_word(high: Value, low: Value, dtype: DType) -> Value:
    """The two words of a hash as one unsigned integer."""
    if dtype == UINT64:
        return or_(shift_left(convert(high, dtype), 32), convert(low, dtype))
    return convert(xor(high, low), dtype)


@Sampler
def _bits(key: Value, *, shape: Shape, dtype: DType) -> Value:
    return random_bits(key, shape, dtype)


def words(key: Value) -> tuple[Value, Value]:
    """The two words of one key."""
    first, second = (reshape(slice_(key, starts=(n,), limits=(n + 1,), strides=(1,)), shape=()) for n in (0, 1))
    return first, second


def _hash(key: Value, shape: Shape) -> tuple[Value, Value]:
    """The hash of each element's place, counted through the whole array in 64 bits."""
    found: tuple[Value, Value] = threefry2x32(*words_of_places(key, shape))
    return found


def words_of_places(key: Value, shape: Shape) -> tuple[Any, Any, Any, Any]:
    """What is hashed for each element of an array: the words of the key, and those of the element's place."""
    return *words(key), *_places(shape)


def _places(shape: Shape) -> tuple[Any, Any]:
    if not shape:
        return 0, 0
    dtype = UINT32 if prod(shape) <= PLACES_IN_A_WORD else UINT64
    total: Any = None
    stride = prod(shape)
    for dim, size in enumerate(shape):
        stride = stride // max(size, 1)
        along = iota(dtype=dtype, shape=(size,), dim=0)
        if stride != 1:
            along = mul(along, stride)
        if len(shape) > 1:
            along = broadcast_in_dim(along, shape=shape, dims=(dim,))
        total = along if total is None else add(total, along)
    if dtype == UINT32:
        return 0, total
    return convert(shift_right_logical(total, 32), UINT32), convert(total, UINT32)


UINT_OF_WIDTH: dict[int, DType] = {1: UINT8, 2: UINT16, 4: UINT32, 8: UINT64}


# Checking arguments


def checked_key(name: str, key: ArrayLike) -> Value:
    """One key."""
    x = checked_keys(name, key)
    if x.ndim > 1:
        raise ShapeError(
            f"{name} takes one key, and this is an array of keys {value(key).type.short()}.",
            where=here(),
            why=f"one call of {name} draws from one key",
            fix=f"mw.vmap(lambda key: mw.random.{name}(key, …))(keys)",
        )
    return x


def checked_keys(name: str, keys: ArrayLike) -> Value:
    """An array of keys."""
    if isinstance(keys, int) or keys is None or isinstance(keys, str):
        raise _not_a_key(name, repr(keys), f"mw.random.key({keys if isinstance(keys, int) else 0})")
    x = value(keys)
    if x.dtype == dtypes.KEY:
        return bitcast(x, dtype=UINT32)
    if x.dtype != UINT32 or x.ndim == 0 or x.shape[-1] != 2:
        raise _not_a_key(name, x.type.short(), "key = mw.random.key(0)")
    return x


def _not_a_key(name: str, given: str, fix: str) -> ShapeError:
    return ShapeError(
        f"{name} cannot use {given} as a key.",
        where=here(),
        why="a key is an array of two uint32 words, u32[2]",
        fix=fix,
    )


def checked_shape(name: str, shape: Any, what: str = "shape") -> Shape:
    """A static shape without negative sizes."""
    found = static_shape(shape, f"{what} of mw.random.{name}")
    if any(n < 0 for n in found):
        raise ShapeError(
            f"{name} cannot take {what}={shape!r}.",
            where=here(),
            why="a size cannot be negative",
            fix=f"{what}={tuple(abs(n) for n in found)}",
        )
    return found


def checked_dtype(name: str, dtype: DTypeLike, allowed: tuple[DType, ...]) -> DType:
    """One of the ``allowed`` dtypes, at the width in force."""
    try:
        found = None if isinstance(dtype, ValueClass | np.ndarray) else as_dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in allowed:
        accepted = ", ".join(short_name(d) for d in allowed)
        shown = dtype if found is None else found.name
        usual = next(d for d in (dtypes.FLOAT32, dtypes.INT32, UINT32) if d in allowed)
        raise ShapeError(
            f"{name} cannot make numbers of dtype {shown}.",
            where=here(),
            why=f"{name} makes {accepted}",
            fix=f"dtype='{usual.name}'",
        )
    return found


def checked_parameter(name: str, what: str, x: ArrayLike, dtype: DType) -> Value:
    """A parameter of a distribution in the dtype of the samples."""
    given = value(x)
    if dtypes.is_complex(given.dtype) and not dtypes.is_complex(dtype):
        raise ShapeError(
            f"{name} cannot take {what} of type {given.type.short()}.",
            where=here(),
            why=f"{what} is compared with samples of dtype {short_name(dtype)}, which are real",
            fix=f"{what}={what}.real",
        )
    return convert(given, dtype)


def fitting_shape(name: str, shape: Any, **parameters: Value) -> Shape:
    """The shape of the samples, which the parameters broadcast to; without one, what they broadcast to together."""
    shapes = [x.shape for x in parameters.values()]
    found = broadcast_shapes(*shapes) if shape is None else checked_shape(name, shape)
    together = None if found is None else broadcast_shapes(found, *shapes)
    if found is None or together != found:
        shown = " and ".join(f"{what} {x.type.short()}" for what, x in parameters.items() if x.ndim)
        over = "over one shape" if shape is None else f"over shape {found}"
        raise ShapeError(
            f"{name} cannot spread {shown} {over}.",
            where=here(),
            why="the shape of the samples is one that every parameter broadcasts to",
            fix=f"shape={together}" if together else "give the parameters one shape, or sizes of 1",
        )
    return found


def spread(x: Value, shape: Shape) -> Value:
    """A parameter beside samples of ``shape``; a rank-0 one stays as it is."""
    if x.ndim == 0 or x.shape == shape:
        return x
    return broadcast_in_dim(x, shape=shape, dims=tuple(range(len(shape) - x.ndim, len(shape))))
