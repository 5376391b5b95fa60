"""Calls of a compiled function on arrays alone, in straight code written for their number and types.

    def call(args):
        if len(args) == 1:
            x0, = args
            try:
                if (d0 := x0._data).__class__ is kind and x0._sharding is None and … and state.builder is None and …:
                    outs = function(d0)
                    return Array(outs[0], type, sharding)
            except (AttributeError, ValueError):
                pass
        return MISSED

What the general call does in a loop over arguments, and looks up in a table, takes longer than a small function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes, tree
from meshwright.core.current import current_engine, current_mesh
from meshwright.core.trace import Array, state
from meshwright.core.types import TensorType

DirectCall = Callable[[tuple[Any, ...]], Any]
MISSED: Any = object()  # what a direct call returns for arguments, or settings, that it was not written for
MOST_ARGUMENTS = 16
ANY = "any"  # engine: that of a call that depends on no settings


def direct_call(
    function: Callable[..., Sequence[Any]],
    types: Sequence[TensorType],
    kind: type,
    results: tuple[tree.TreeDef, Sequence[TensorType], Sequence[Any]],
    engine: str | None,
) -> DirectCall:
    """A function of a tuple of arguments: the results, or `MISSED` unless they are arrays that were put nowhere, of
    these types and with contents of one ``kind``, while all that a program depends on is as it is now.

    ``results`` are their containers, types and shardings; ``engine`` is the current one if the call depends on that,
    `ANY` if it depends on no settings at all.
    """
    out_tree, out_types, out_shardings = results
    bound: dict[str, Any] = {
        "Array": Array, "MISSED": MISSED, "config": dtypes.config, "current_engine": current_engine,
        "current_mesh": current_mesh, "engine": engine, "function": function, "kind": kind,
        "mesh": current_mesh.get(), "state": state, "wide": dtypes.config._enable_x64,
    }  # fmt: skip
    tests = []
    for n, t in enumerate(types):
        bound[f"t{n}"] = t
        tests.append(f"(d{n} := x{n}._data).__class__ is kind and x{n}._sharding is None")
        tests.append(f"(x{n}.type is t{n} or x{n}.type == t{n})")
    tests.append("state.builder is None")
    if engine != ANY:
        tests += ["config._enable_x64 is wide", "current_mesh.get() is mesh"]
    if engine not in (ANY, None):
        tests.append("current_engine.name == engine")
    if out_tree.is_leaf():
        bound.update(type=out_types[0], sharding=out_shardings[0])
        result = "Array(outs[0], type, sharding)"
    else:
        bound.update(unflatten=tree.unflatten, tree=out_tree, types=out_types, shardings=out_shardings)
        result = "unflatten(tree, map(Array, outs, types, shardings))"
    lines = ["def call(args):", f" if len(args) == {len(types)}:"]
    if types:
        lines.append(f"  {''.join(f'x{n}, ' for n in range(len(types)))}= args")
    lines += [
        "  try:",
        f"   if {' and '.join(tests)}:",
        f"    outs = function({', '.join(f'd{n}' for n in range(len(types)))})",
        f"    return {result}",
        "  except (AttributeError, ValueError):",  # no array; an array that is elsewhere, says JAX
        "   pass",
        " return MISSED",
    ]
    exec("\n".join(lines), bound)  # names are ours
    found: DirectCall = bound["call"]
    return found
