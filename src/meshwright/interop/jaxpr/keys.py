"""Random keys in JAX's programs: here a key is its two words, the last dim of an array of ``uint32``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright import lax, random
from meshwright.api.vmap import vmap
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import MeshwrightError


def is_key(aval: Any) -> bool:
    """Whether a value of JAX is an array of keys rather than of numbers."""
    import jax

    dtypes: Any = jax.dtypes
    return hasattr(aval, "dtype") and dtypes.issubdtype(aval.dtype, dtypes.prng_key)


def check_kind(aval: Any) -> None:
    """Refuse keys whose numbers other generators make."""
    if str(aval.dtype) != "key<fry>":
        raise MeshwrightError(
            f"Random numbers of {aval.dtype} are not those of this package.",
            where=here(),
            why="its keys are those of threefry2x32, whose numbers are the same on every mesh",
            fix="jax.random.key(seed, impl='threefry2x32')",
        )


def of_words(
    function: Callable[[list[Value]], Sequence[Value]], xs: Sequence[Value], keys: Sequence[bool]
) -> list[Value]:
    """What an equation that only moves elements does to keys: the same to each of their two words."""
    halves = []
    for word in (0, 1):
        given = [lax.index_in_dim(x, word, x.ndim - 1, keepdims=False) if key else x
                 for x, key in zip(xs, keys, strict=True)]  # fmt: skip
        halves.append(function(given))
    return [lax.concatenate([lax.expand_dims(half, (half.ndim,)) for half in pair], pair[0].ndim)
            for pair in zip(*halves, strict=True)]  # fmt: skip


def _each(function: Callable[..., Value], dims: int, *arrays: Value) -> Value:
    """A function of single keys and numbers on arrays of them."""
    for _ in range(dims):
        function = vmap(function)
    return function(*arrays)


def _seed(seeds: Value, impl: Any) -> Value:
    return _each(random.key, seeds.ndim, seeds)


def _bits(key: Value, bit_width: int, shape: Any) -> Value:
    made = lambda one: random.bits(one, tuple(map(int, shape)), np.dtype(f"uint{bit_width}"))
    return _each(made, key.ndim - 1, key)


def _split(key: Value, shape: Any) -> Value:
    return _each(lambda one: random.split(one, tuple(map(int, shape))), key.ndim - 1, key)


def _fold_in(key: Value, data: Value) -> Value:
    dims = max(key.ndim - 1, data.ndim)
    shape = key.shape[:-1] if key.ndim > data.ndim else data.shape
    key = lax.broadcast_in_dim(key, (*shape, 2), tuple(range(dims - key.ndim + 1, dims + 1)))
    data = lax.broadcast_in_dim(data, shape, tuple(range(dims - data.ndim, dims)))
    return _each(random.fold_in, dims, key, data)


def _gamma(key: Value, a: Value, log_space: bool) -> Value:
    draw = random.loggamma if log_space else random.gamma
    return _each(lambda one, a: draw(one, a, dtype=a.dtype), key.ndim - 1, key, a)


# What only moves elements, and so moves keys word by word
MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather",
    "reshape", "rev", "scatter", "select_n", "slice", "split", "squeeze", "stack", "transpose",
    "unstack",
})  # fmt: skip

RULES: dict[str, Callable[..., Any]] = {
    "random_wrap": lambda words, impl: words,
    "random_unwrap": lambda key: key,
    "random_clone": lambda key: key,
    "random_seed": _seed,
    "random_bits": _bits,
    "random_split": _split,
    "random_fold_in": _fold_in,
    "random_gamma": _gamma,
}
