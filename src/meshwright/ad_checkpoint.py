"""Recomputation under the names of ``jax.ad_checkpoint``: ``checkpoint``, its policies, names for values, and what is
kept for a derivative.

>>> import meshwright as mw, meshwright.numpy as mnp
>>> from meshwright import ad_checkpoint
>>> f = ad_checkpoint.checkpoint(lambda x: mnp.sin(mnp.sin(x)), policy=mw.checkpoint_policies.nothing_saveable)
>>> float(mw.grad(f)(0.0))
1.0
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from meshwright.api.custom import checkpoint, checkpoint_name
from meshwright.arrays.tracing import check_function, leaf_value, trace_flat
from meshwright.core import tree
from meshwright.core.dtypes import is_inexact
from meshwright.core.facts import Structure
from meshwright.core.program import Atom, Literal, Program
from meshwright.core.types import TensorType
from meshwright.transform import policies as checkpoint_policies
from meshwright.transform.jvp import linearize_program
from meshwright.transform.regions.region import region

remat = checkpoint


def saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[TensorType, str]]:
    """What a derivative of ``fun`` keeps of its forward run: the type of each value, and where it is from.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> def layer(x, w):
    ...     return mnp.tanh(x @ w)
    >>> x, w = mnp.ones((2, 3)), mnp.ones((3, 4))
    >>> policy = checkpoint_policies.dots_saveable
    >>> [kind.short() for kind, _ in saved_residuals(checkpoint(layer), x, w)]
    ['f32[2,3]', 'f32[3,4]']
    >>> [kind.short() for kind, _ in saved_residuals(checkpoint(layer, policy=policy), x, w)]
    ['f32[2,3]', 'f32[3,4]', 'f32[2,4]']
    """
    check_function(fun, "saved_residuals")
    leaves, in_tree = tree.flatten((args, kwargs))
    types = [leaf_value(x, "an argument").type for x in leaves]
    found = trace_flat(fun, in_tree, types)
    outside = len(found.captured)
    active = [False] * outside + [is_inexact(t.dtype) for t in types]
    both = region(lambda *xs: linearize_program(found.program, xs, active)[1].residuals, found.program.in_types)
    kept = dict.fromkeys(a for a in both.outputs if a.__class__ is not Literal)
    rows = [(v.type, "a value from outside" if n < outside else f"argument {n - outside}")
            for n, v in enumerate(both.inputs) if v in kept]  # fmt: skip
    rows += [(v.type, "a constant") for v, _ in both.constants if v in kept]
    return rows + [(v.type, _maker(both, v)) for e in both.eqns for v in e.outputs if v in kept]


def print_saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print what a derivative of ``fun`` keeps of its forward run, a value a line, and names of policies that none has.

    >>> import meshwright.numpy as mnp
    >>> print_saved_residuals(lambda x: mnp.sin(x) * 2.0, mnp.ones(3))  # doctest: +ELLIPSIS
    f32[3] of cos, <doctest ...>:1
    """
    for kind, origin in saved_residuals(fun, *args, **kwargs):
        print(kind.short(), origin)
    leaves, in_tree = tree.flatten((args, kwargs))
    program = trace_flat(fun, in_tree, [leaf_value(x, "an argument").type for x in leaves]).program
    there, wanted = _names(program)
    for name in sorted(wanted - there):
        near = get_close_matches(name, there, 1)
        print(f"nothing is named {name!r}, which a policy names" + (f"; {near[0]!r} is" if near else ""))


def _names(program: Program) -> tuple[set[str], set[str]]:
    """The names that values of a program have, and those that its policies speak of."""
    there, wanted = set[str](), set[str]()
    for eqn in program.eqns:
        if eqn.op.structure is Structure.NAMED:
            there.add(eqn.params["name"])
        policy = str(eqn.params.get("policy", ""))
        if "_names" in policy:
            wanted |= set(re.findall(r"'([^']*)'", re.sub(r"offload_(?:src|dst)='[^']*'", "", policy)))
        for _, inside in eqn.regions():
            inner = _names(inside)
            there, wanted = there | inner[0], wanted | inner[1]
    return there, wanted


def _maker(program: Program, var: Atom) -> str:
    """The equation that makes a value, found in the programs that are only called, and its line."""
    eqn = next(eqn for eqn in program.eqns if var in eqn.outputs)
    if eqn.op.calls is not None:
        inner = eqn.params[eqn.op.calls]
        output = inner.outputs[list(eqn.outputs).index(var)]  # type: ignore[arg-type]
        if any(output in e.outputs for e in inner.eqns):
            return _maker(inner, output)
    if eqn.op.structure is Structure.OFFLOAD:
        return f"offloaded, {_maker(program, eqn.inputs[0])}"
    named = f"named {eqn.params['name']!r}" if eqn.op.structure is Structure.NAMED else f"of {eqn.op.name}"
    return f"{named}, {eqn.source}" if eqn.source else named


__all__ = [
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "print_saved_residuals",
    "remat",
    "saved_residuals",
]
