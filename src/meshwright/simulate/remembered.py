"""Functions of programs that answer at once for one of the last programs: a layer comes again on every machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from meshwright.core.program import Program

MOST = 1024  # programs whose answers are kept

T = TypeVar("T")


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """The function of a program and of flags; of a sequence it matters whether it is empty, as the program has it."""
    known: OrderedDict[Any, tuple[Program, T]] = OrderedDict()

    @wraps(function)
    def found(program: Program, *args: Any, **options: Any) -> T:
        flags = [(n, bool(one) if isinstance(one, list | tuple) else one) for n, one in options.items()]
        given = tuple(bool(one) if isinstance(one, list | tuple) else one for one in args)
        key = (id(program), given, *flags)
        if key not in known:
            known[key] = (program, function(program, *args, **options))
        known.move_to_end(key)
        if len(known) > MOST:
            known.popitem(last=False)
        return known[key][1]

    return found
