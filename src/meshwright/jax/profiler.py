"""``jax.profiler``: annotations that mark nothing. What a program does with its time, ``meshwright report`` shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any, TypeVar

from meshwright.jax.absent import absent

F = TypeVar("F", bound=Callable[..., Any])


class TraceAnnotation(ContextDecorator):
    """A part of a program with a name.

    >>> with TraceAnnotation("step"):
    ...     pass
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.name = name

    def __enter__(self) -> TraceAnnotation:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class StepTraceAnnotation(TraceAnnotation):
    """A step of a program with a name and, as ``step_num``, a number."""


def annotate_function(func: F, name: str | None = None, **decorator_kwargs: Any) -> F:
    """``func`` as it is.

    >>> annotate_function(abs)(-1)
    1
    """
    return func


@contextmanager
def trace(log_dir: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A warning: nothing is recorded while a program runs."""
    start_trace(log_dir)
    yield


def start_trace(log_dir: Any, *args: Any, **kwargs: Any) -> None:
    """A warning: nothing is recorded while a program runs."""
    warnings.warn(
        "jax.profiler records nothing here: the time of a program is predicted, "
        "jit(f).lower(…).compile().simulate('h100').to_perfetto('trace.json')",
        stacklevel=2,
    )


def stop_trace() -> None:
    """Nothing: no recording runs."""


__getattr__ = absent("jax.profiler")

__all__ = ["StepTraceAnnotation", "TraceAnnotation", "annotate_function", "start_trace", "stop_trace", "trace"]
