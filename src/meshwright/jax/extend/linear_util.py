"""``jax.extend.linear_util``: a function and what is known of it, on its way to be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.jax.absent import absent


class WrappedFun:
    """A function, to be called by ``call_wrapped``."""

    def __init__(self, f: Callable[..., Any], params: dict[str, Any], debug_info: Any = None) -> None:
        self.f, self.params, self.debug_info = f, params, debug_info

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **{**self.params, **kwargs})


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """A function as one to be traced.

    >>> wrap_init(lambda x, n: x**n, {"n": 2}).call_wrapped(3)
    9
    """
    return WrappedFun(f, params or {}, debug_info)


def transformation2(gen: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """A function of a function, and of what else it is given, as one that wraps it.

    >>> twice = transformation2(lambda f, factor, x: factor * f(x))
    >>> twice(wrap_init(abs), 2).call_wrapped(-3)
    6
    """

    def transformed(fun: WrappedFun, *given: Any) -> WrappedFun:
        return WrappedFun(lambda *args: gen(fun.call_wrapped, *given, *args), {}, fun.debug_info)

    return transformed


__getattr__ = absent("jax.extend.linear_util")

__all__ = ["WrappedFun", "transformation2", "wrap_init"]
