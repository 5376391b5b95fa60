"""``jax._src.util``: the few helpers that JAX's libraries take from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

from meshwright.jax.absent import absent

__getattr__ = absent("jax._src.util")


def safe_zip(*sequences: Iterable[Any]) -> list[tuple[Any, ...]]:
    """``zip`` of sequences that are equally long.

    >>> safe_zip([1, 2], "ab")
    [(1, 'a'), (2, 'b')]
    """
    return list(zip(*sequences, strict=True))


def safe_map(f: Callable[..., Any], *sequences: Iterable[Any]) -> list[Any]:
    """``map`` over sequences that are equally long, as a list."""
    return [f(*each) for each in zip(*sequences, strict=True)]


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first ones of pairs, and the second ones.

    >>> unzip2([(1, "a"), (2, "b")])
    ((1, 2), ('a', 'b'))
    """
    found = list(pairs)
    return tuple(a for a, _ in found), tuple(b for _, b in found)


def unzip3(
    triples: Iterable[tuple[Any, Any, Any]],
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The first ones of triples, the second ones, and the third ones."""
    found = list(triples)
    return tuple(a for a, _, _ in found), tuple(b for _, b, _ in found), tuple(c for _, _, c in found)


def canonicalize_axis(axis: Any, num_dims: int) -> int:
    """A dim counted from the front.

    >>> canonicalize_axis(-1, 3)
    2
    """
    found = index(axis)
    if not -num_dims <= found < num_dims:
        raise ValueError(f"axis {found} is out of bounds for array of dimension {num_dims}")
    return found % num_dims


def canonicalize_axis_tuple(axis: Any, ndim: int, allow_duplicate: bool = False) -> tuple[int, ...]:
    """Dims counted from the front; all of them for ``None``."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(canonicalize_axis(one, ndim) for one in (axis if isinstance(axis, Sequence) else (axis,)))


def tuple_insert(t: tuple[Any, ...], idx: int, val: Any) -> tuple[Any, ...]:
    """A tuple with one more entry.

    >>> tuple_insert((1, 3), 1, 2)
    (1, 2, 3)
    """
    return (*t[:idx], val, *t[idx:])


def tuple_delete(t: tuple[Any, ...], idx: int) -> tuple[Any, ...]:
    """A tuple without one of its entries."""
    return (*t[:idx], *t[idx + 1 :])


def set_module(module: str) -> Callable[[Any], Any]:
    """A decorator that says where a function is imported from."""

    def wrapper(f: Any) -> Any:
        f.__module__ = module
        return f

    return wrapper
