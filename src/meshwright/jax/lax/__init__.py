"""``jax.lax`` over ``meshwright.lax``: gathers and scatters add and remove a dim unless told that they are tiled."""

from __future__ import annotations

from typing import Any

from meshwright import lax as _lax
from meshwright.core.op import REGISTRY as _REGISTRY
from meshwright.jax.lax import linalg as linalg
from meshwright.lax import *  # type: ignore[no-redef]  # noqa: F403
from meshwright.lax.collectives import AxisName


def all_gather(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False,
    to: str | None = None,
) -> Any:  # fmt: skip
    """``lax.all_gather``, by default along a new dim; ``to="reduced"`` says that all devices hold the result.

    >>> import meshwright.jax as jax
    >>> mesh = jax.make_mesh((2,), ("i",))
    >>> f = jax.shard_map(lambda x: all_gather(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    >>> f(jax.numpy.arange(2.0)).shape
    (4, 1)
    """
    gather = _lax.all_gather_invariant if to in ("reduced", "invariant") else _lax.all_gather
    if axis_index_groups is not None:
        return _lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled)
    return gather(x, axis_name, axis=axis, tiled=tiled)


def psum_scatter(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """``lax.psum_scatter``, by default of a dim that has one row for each device, and that the result has not."""
    return _lax.psum_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
    )


def all_to_all(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, split_axis: int, concat_axis: int, *,
    axis_index_groups: Any = None, tiled: bool = False,
) -> Any:  # fmt: skip
    """``lax.all_to_all``, by default of a dim that has one row for each device."""
    return _lax.all_to_all(x, axis_name, split_axis, concat_axis, axis_index_groups=axis_index_groups, tiled=tiled)


def __getattr__(name: str) -> Any:
    """``lax.exp_p``, JAX's primitive, is here the op ``exp``: policies of ``checkpoint`` are given it."""
    found = _REGISTRY.find(name.removesuffix("_p")) if name.endswith("_p") else None
    return getattr(_lax, name) if found is None else found
