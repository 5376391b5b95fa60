"""``jax.api_util``: functions of containers as functions of leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshwright.core import tree
from meshwright.jax.absent import absent
from meshwright.jax.extend.linear_util import WrappedFun


class DebugInfo(NamedTuple):
    """What a function is called, and who asks."""

    traced_for: str
    func_src_info: str


def debug_info(traced_for: str, fun: Callable[..., Any], args: Sequence[Any], kwargs: Any, **options: Any) -> DebugInfo:
    """What a function is called, and who asks."""
    return DebugInfo(traced_for, str(getattr(fun, "__name__", fun)))


def flatten_fun_nokwargs(f: WrappedFun, in_tree: tree.TreeDef) -> tuple[WrappedFun, Callable[[], tree.TreeDef]]:
    """A function of the leaves of its arguments, and the structure of its results once it was called.

    >>> from meshwright.jax.extend.linear_util import wrap_init
    >>> flat, out_tree = flatten_fun_nokwargs(wrap_init(lambda x: {"a": x[0]}), tree.structure(((0, 0),)))
    >>> flat.call_wrapped(1, 2), tree.unflatten(out_tree(), [3])
    ([1], {'a': 3})
    """
    found: list[tree.TreeDef] = []

    def flat(*leaves: Any) -> list[Any]:
        out, structure = tree.flatten(f.call_wrapped(*tree.unflatten(in_tree, leaves)))
        found[:] = [structure]
        return out

    return WrappedFun(flat, {}, f.debug_info), lambda: found[0]


def flatten_fun(f: WrappedFun, in_tree: tree.TreeDef) -> tuple[WrappedFun, Callable[[], tree.TreeDef]]:
    """As ``flatten_fun_nokwargs``, of positional arguments and those by name."""
    both = WrappedFun(lambda args, kwargs: f.call_wrapped(*args, **kwargs), {}, f.debug_info)
    return flatten_fun_nokwargs(both, in_tree)


__getattr__ = absent("jax.api_util")

__all__ = ["debug_info", "flatten_fun", "flatten_fun_nokwargs"]
