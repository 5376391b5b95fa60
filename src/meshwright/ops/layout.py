"""Where shardings are part of types: values laid out as a type says. Types without them cost one look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.op import REGISTRY, Types, Value
from meshwright.core.types import TensorType


def laid_out(x: Value, type: TensorType) -> Value:
    """``x`` with the sharding of a type, where shardings are part of types."""
    if x.type.sharding is type.sharding:
        return x
    from meshwright.sharding.explicit import asked  # no program without a mesh needs to load it

    given = asked(type.with_(unreduced=()), (type.sharding or x.type.sharding).mesh)
    return REGISTRY["sharding_constraint"](x, spec=given[0], out_sharding=given)  # which is loaded late


def split_first(x: Value, axes: Any, mesh: Any) -> Value:
    """``x`` with its first dim split over Explicit axes of a mesh, and the others as they are."""
    from meshwright.sharding.explicit import left_open  # no program without a mesh needs to load it

    spec = left_open(x.ndim)
    spec = spec.update((axes, *spec.partitions[1:]))
    asked = spec, tuple(mesh.shape.items())
    return REGISTRY["sharding_constraint"](x, spec=spec, out_sharding=asked)  # type: ignore[no-any-return]


def whole_along(x: Value, dims: Sequence[int]) -> Value:
    """``x`` with these dims whole on every device, where shardings are part of types."""
    if x.type.sharding is None:
        return x
    from meshwright.sharding.explicit import whole  # no program without a mesh needs to load it

    return laid_out(x, whole(x.type, dims))


def as_primal(own: TensorType, types: Types, order: Sequence[int] | None = None) -> dict[str, Any]:
    """The params that lay a cotangent, computed by a product of values of ``types``, out as its primal: where shardings
    are part of types, and with the dims of the primal in another ``order``."""
    sharding = next((t.sharding for t in (own, *types) if t.sharding is not None), None)
    if sharding is None:
        return {}
    from meshwright.sharding.explicit import asked  # no program without a mesh needs to load it

    spec, mesh = asked(own.with_(unreduced=()), sharding.mesh)
    return {"out_sharding": (spec if order is None else spec.update([spec.partitions[d] for d in order]), mesh)}


def sums_taken(ndim: int, types: Types) -> dict[str, Any]:
    """The params that lay a product out as its operands say, with all sums taken."""
    sharding = next((t.sharding for t in types if t.sharding is not None), None)
    if sharding is None:
        return {}
    from meshwright.sharding.explicit import left_open  # no program without a mesh needs to load it

    return {"out_sharding": (left_open(ndim), tuple(sharding.mesh.shape.items()))}
