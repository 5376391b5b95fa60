"""``jax.shard_map``: where JAX does not check what varies, results are taken to be what ``out_specs`` say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from meshwright.api import shard_map as api
from meshwright.core import tree
from meshwright.sharding.mesh import BaseMesh, get_mesh
from meshwright.sharding.spec import P, read_axis


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    mesh: BaseMesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Iterable[str] | None = None,
    check_vma: bool = True,
) -> Any:
    """``f`` on every device of a mesh; with ``check_vma=False``, a result is the same along axes its spec leaves out.

    >>> import meshwright.jax as jax
    >>> mesh = jax.make_mesh((2,), ("i",))
    >>> gather = lambda x: jax.lax.all_gather(x, "i", tiled=True)
    >>> jax.shard_map(gather, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P(), check_vma=False)(jax.numpy.arange(2.0))
    Array([0., 1.], dtype=float32)
    """
    given: dict[str, Any] = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs, "axis_names": axis_names}
    if f is None:
        return partial(shard_map, **given, check_vma=check_vma)
    on = mesh if mesh is not None else get_mesh()
    if not check_vma and out_specs is not None and isinstance(on, BaseMesh):
        given["out_specs"] = tree.map(lambda spec: _replicated(spec, on.axis_names), out_specs)
    return api.shard_map(f, **given)


def _replicated(spec: Any, axes: Iterable[str]) -> Any:
    """A spec by which a value leaves that is the same along all axes it does not name."""
    if not isinstance(spec, P):
        return spec
    entries = [one for entry in spec for one in (entry if isinstance(entry, tuple) else (entry,))]
    named = {read_axis(one).name for one in entries if isinstance(one, str)}
    rest = frozenset(axes) - named - spec.unreduced
    return P(*spec, unreduced=spec.unreduced, replicated=spec.replicated | rest)
