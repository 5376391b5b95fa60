"""``jax.experimental.shard_map``: ``shard_map`` with its older arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api import shard_map as api
from meshwright.sharding.mesh import BaseMesh


def shard_map(
    f: Callable[..., Any],
    mesh: BaseMesh,
    in_specs: Any,
    out_specs: Any,
    check_rep: bool = True,
    auto: frozenset[str] = frozenset(),
) -> Callable[..., Any]:
    """``jax.shard_map``, where ``auto`` are the axes that the function is not written for.

    >>> import meshwright.jax as jax
    >>> mesh = jax.make_mesh((2,), ("i",))
    >>> shard_map(lambda x: jax.lax.psum(x, "i"), mesh, jax.P("i"), jax.P())(jax.numpy.arange(2.0)).tolist()
    [1.0]
    """
    names = tuple(name for name in mesh.axis_names if name not in auto)
    return api.shard_map(  # type: ignore[no-any-return]
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_rep, axis_names=names
    )
