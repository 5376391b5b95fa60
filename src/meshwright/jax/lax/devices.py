"""Collectives of ``jax.lax`` that are named or default otherwise there, or that move tokens and platforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright import lax as _lax
from meshwright.core import tree as _tree
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import MeshwrightError
from meshwright.jax.devices import default_backend
from meshwright.lax.over_axes import AxisName


def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """What the device at place ``source`` along an axis has, on all devices along it.

    >>> import meshwright.jax as jax
    >>> mesh = jax.make_mesh((2,), ("i",))
    >>> f = jax.shard_map(lambda x: pbroadcast(x, "i", 1), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    >>> f(jax.numpy.arange(2.0)).tolist()
    [1.0, 1.0]
    """
    return _tree.map(lambda leaf: _lax.index_in_dim(_lax.all_gather(leaf, axis_name, tiled=False), source, 0, False), x)


def pshuffle(x: Any, axis_name: AxisName, perm: Sequence[int]) -> Any:
    """Each device along an axis has what the device at the place ``perm`` says for it had."""
    if set(perm) != set(range(len(perm))):
        raise MeshwrightError(
            f"pshuffle is given {list(perm)} as its permutation.",
            where=here(),
            why="it has every place along the axis once",
            fix="perm=[(i + 1) % n for i in range(n)]",
        )
    return _lax.ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def pswapaxes(x: Any, axis_name: AxisName, axis: int, *, axis_index_groups: Any = None) -> Any:
    """A dim that has one row for each device along an axis, exchanged with that axis."""
    return _lax.all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups, tiled=False)


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """The function for the platform that programs run on here, of these arguments; ``default`` if there is none."""
    chosen = per_platform.get(default_backend(), default)
    if chosen is None:
        raise MeshwrightError(
            f"platform_dependent has no function for {default_backend()}.",
            where=here(),
            why=f"it has one for {', '.join(per_platform) or 'no platform'}, and no default",
            fix="platform_dependent(x, …, default=f)",
        )
    return chosen(*args)


def create_token(_: Any = None) -> Value:
    """A value without contents, which orders what is passed it: programs run in the order of their effects as it is."""
    return _lax.full((0,), False, bool)


def after_all(*operands: Any) -> Value:
    """A token that is there when these are."""
    for one in operands:
        if not isinstance(one, Value):
            raise TypeError(f"after_all takes tokens, not {type(one).__name__}")
    return create_token()


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Says that a value is used. Values that nothing reads are not computed here, and that is seen by nobody."""


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """``decomposition`` itself: no compiler here has an operation of that name."""
    if not isinstance(name, str) or not name:
        raise ValueError("a composite has a name")

    def decorated(*args: Any, **kwargs: Any) -> Any:
        return decomposition(*args, **kwargs)

    decorated.__name__ = name
    return decorated
