"""JAX's programs (jaxprs) run on our values, equation by equation, each at the line of the user's that it came from.

What has a program inside (a loop, a branch, a checkpoint, a ``shard_map``, a rule for a derivative) becomes what it is
here, so that it is differentiated, partitioned and costed as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.custom import checkpoint_name
from meshwright.core.source import here
from meshwright.core.trace import Value, at_source, run
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.jaxpr import keys, primitives
from meshwright.interop.jaxpr.equations import stablehlo_of
from meshwright.interop.jaxpr.sources import Surroundings, source_of, surroundings
from meshwright.interop.jaxpr.structures import KEPT, OFFLOADED, STRUCTURES, constrained

_NOTHING = Surroundings()
_CALLBACKS = ("debug_callback", "pure_callback", "io_callback", "debug_print", "infeed", "outfeed")


class Reader:
    """Runs jaxprs on values of ours. ``policy`` is that of the checkpoint around: what it keeps is given a name;
    ``outside`` are the scopes around, and the direction."""

    def __init__(self, policy: Any = None, outside: Surroundings = _NOTHING) -> None:
        self.policy = policy
        self.outside = outside

    def function(self, jaxpr: Any) -> Callable[..., tuple[Any, ...]]:
        """A jaxpr, closed or not, as a function of values of ours."""
        inner, consts = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())
        return lambda *xs: self.results(inner, consts, xs)

    def results(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Value]) -> tuple[Any, ...]:
        """The results of a jaxpr on values of ours."""
        env: dict[Any, Any] = {}
        env.update(zip(jaxpr.constvars, map(value_of, consts), strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def atom(x: Any) -> Any:
            return primitives.constant(x.val, x.aval.dtype) if hasattr(x, "val") else env[x]

        for eqn in jaxpr.eqns:
            inside = surroundings(eqn, self.outside)
            with at_source(source_of(eqn, inside)):
                outs = self.equation(eqn, [atom(x) for x in eqn.invars], inside)
            env.update(zip(eqn.outvars, outs, strict=True))
        return tuple(atom(x) for x in jaxpr.outvars)

    def equation(self, eqn: Any, xs: list[Value], inside: Surroundings) -> Sequence[Any]:
        """The results of one equation."""
        structure = STRUCTURES.get(eqn.primitive.name)
        if structure is not None:
            return structure(Reader(self.policy, inside), eqn, xs)
        outs = _plain(eqn, xs)
        if self.policy is None:
            return outs
        said = self.policy(eqn.primitive, *[x.aval for x in eqn.invars], **eqn.params)
        name = OFFLOADED if type(said).__name__ == "Offloadable" else KEPT if said is True or _is_kept(said) else None
        return outs if name is None else [checkpoint_name(x, name) for x in outs]


def _is_kept(said: Any) -> bool:
    return type(said).__name__ == "SaveableType"


def value_of(x: Any) -> Any:
    """A constant of JAX's as a value of ours."""
    if keys.is_key(x):
        import jax

        keys.check_kind(x)
        x = jax.random.key_data(x)
    return primitives.constant(x)


def type_of_aval(aval: Any) -> TensorType:
    """The type of one of JAX's values: a key is its two words."""
    if keys.is_key(aval):
        keys.check_kind(aval)
        return TensorType((*aval.shape, 2), np.dtype(np.uint32))
    return TensorType(tuple(map(int, aval.shape)), np.dtype(aval.dtype))


def _plain(eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """The results of an equation that has no program inside."""
    name, params = eqn.primitive.name, dict(eqn.params)
    are_keys = [keys.is_key(x.aval) for x in eqn.invars]
    for x in (*eqn.invars, *eqn.outvars):
        if keys.is_key(x.aval):
            keys.check_kind(x.aval)
    if name in keys.RULES:
        return primitives.results(keys.RULES[name](*xs, **params))
    if any(are_keys) and name not in keys.MOVES:
        raise MeshwrightError(
            f"JAX's {name} of random keys cannot become part of a program.",
            where=here(),
            why="keys are split, moved and drawn from here, and nothing else is known of them",
            fix="use their words: jax.random.key_data(key)",
        )
    if any(are_keys):
        return keys.of_words(lambda words: _of_numbers(eqn, name, params, words), xs, are_keys)
    return _of_numbers(eqn, name, params, xs)


def _of_numbers(eqn: Any, name: str, params: dict[str, Any], xs: list[Value]) -> Sequence[Any]:
    rule = primitives.RULES.get(name)
    if rule is not None:
        asked = params.get("out_sharding", params.get("sharding"))
        return [constrained(x, asked) for x in primitives.results(rule(*xs, **params))]
    if name in _CALLBACKS:
        raise MeshwrightError(
            f"JAX's {name} cannot become part of a program.",
            where=here(),
            why="it calls back into Python while the program runs",
            fix="return the value from the function, and look at it there",
        )
    return run(stablehlo_of(eqn), xs)
