"""What an op takes: how many operands, which params, and of what kind. All of it is read off the op's type rule.

    def rule(x: TensorType, shape: Shape, dims: tuple[int, ...] = ()) -> TensorType
             one operand    param         param that may be left out

A rule with ``*types: TensorType`` takes any number of operands. ``**params: Unpack[Windows]`` names params by a
``TypedDict``, for rules that share them. The annotation of a param is what it may be, and every part of it counts:
``tuple[int, int]`` is a pair, and ``int`` is no bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import Parameter
from inspect import Signature as PythonSignature
from inspect import signature as python_signature
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from meshwright.core import dtypes
from meshwright.core.program import Program, Rule
from meshwright.core.types import Spec, TensorType

# The kinds that are not made of others: what they are called alone, and several of them.
_NAMES: dict[Any, tuple[str, str]] = {
    int: ("an int", "ints"),
    bool: ("True or False", "bools"),
    float: ("a float", "floats"),
    str: ("a string", "strings"),
    NoneType: ("None", "Nones"),
    np.dtype: ("a dtype", "dtypes"),
    Any: ("anything", "anything"),
    Program: ("a program", "programs"),
    Rule: ("a rule", "rules"),
    Spec: ("a partition spec", "partition specs"),
    TensorType: ("a type", "types"),
}


class Signature(NamedTuple):
    """How many operands an op takes (``most`` is None: any number), its params, and those it needs."""

    least: int
    most: int | None
    params: Mapping[str, Any]
    needed: tuple[str, ...]

    def fault(self, op: str, operands: int, params: Mapping[str, Any]) -> str:
        """What is wrong with a call, or nothing."""
        if operands < self.least or (self.most is not None and operands > self.most):
            return f"{op} takes {self._count()}, not {operands}"
        if not params and not self.needed:
            return ""
        for name in self.needed:
            if name not in params:
                return f"{op} missing 1 required positional argument: {name!r}"
        for name, value in params.items():
            kind = self.params.get(name)
            if kind is None:
                return f"{op} got an unexpected keyword argument {name!r}"
            if not _is(value, kind):
                return f"{name} {_wanted(value, kind)}"
        return ""

    def _count(self) -> str:
        if self.least == self.most:
            return f"{self.least or 'no'} operand{'s' * (self.least != 1)}"
        return f"at least {self.least} operand{'s' * (self.least != 1)}"


@lru_cache(maxsize=1024)
def signature_of(rule: Callable[..., Any]) -> Signature:
    """The signature of a type rule."""
    least, most = 0, 0
    params: dict[str, Any] = {}
    needed: list[str] = []
    several = False
    for parameter in python_signature(rule, eval_str=True).parameters.values():
        kind = parameter.annotation
        if kind is Parameter.empty:
            raise ValueError(f"a type rule does not say what {parameter.name!r} is: annotate it")
        if parameter.kind is Parameter.VAR_POSITIONAL:
            several = True
        elif parameter.kind is Parameter.VAR_KEYWORD:
            (fields,) = get_args(kind) or (kind,)
            params.update(get_type_hints(fields))
            needed.extend(name for name in fields.__annotations__ if name in fields.__required_keys__)
        elif kind is TensorType and parameter.kind is not Parameter.KEYWORD_ONLY:
            least, most = least + 1, most + 1
        else:
            params[parameter.name] = kind
            if parameter.default is Parameter.empty:
                needed.append(parameter.name)
    return Signature(least, None if several else most, params, tuple(needed))


def declare(rule: Callable[..., Any], operands: int, params: Mapping[str, Any]) -> None:
    """Say what a rule that is written for any number of operands takes in fact."""
    names = [Parameter(f"x{n}", Parameter.POSITIONAL_ONLY, annotation=TensorType) for n in range(operands)]
    names += [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in params.items()]
    rule.__signature__ = PythonSignature(names)  # type: ignore[attr-defined]


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind."""
    if kind is int:
        return type(value) is int
    origin = get_origin(kind)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        parts = get_args(kind)
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_is(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_is, value, parts))
    if origin is UnionType or origin is Union:
        return any(_is(value, part) for part in get_args(kind))
    if kind is np.dtype or origin is np.dtype:
        return is_dtype(value)
    return kind is Any or isinstance(value, kind)


def is_dtype(value: object) -> bool:
    """Whether a value is a dtype that arrays can have."""
    return isinstance(value, np.dtype) and dtypes.is_supported(value)


def _called(kind: Any, several: bool = False) -> str:
    """How an error calls values of a kind: one, or several."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType or origin is Union:
        return " or ".join(_called(part, several) for part in parts)
    if origin is not tuple:
        known = next(base for base in (origin or kind).__mro__ if base in _NAMES) if kind is not Any else Any
        return _NAMES[known][several]
    if len(parts) == 2 and parts[1] is Ellipsis:
        return f"{'tuples' if several else 'a tuple'} of {_called(parts[0], several=True)}"
    if len(set(parts)) > 1:
        return f"{'tuples' if several else 'a tuple'} of {' and '.join(map(_called, parts))}"
    name = {2: "pairs", 3: "triples"}.get(len(parts), "tuples") if several else "a tuple"
    return f"{name} of {_called(parts[0], several=True)}"


def _wanted(value: Any, kind: Any) -> str:
    """What a param is that a value is not."""
    parts = get_args(kind)
    fixed = get_origin(kind) is tuple and Ellipsis not in parts
    if fixed and type(value) is tuple and len(value) != len(parts):
        return f"has {len(parts)} entries, not {len(value)}"
    return f"is {_called(kind)}, not {show_value(value)}"


def show_value(value: object) -> str:
    """A param as an error shows it."""
    if isinstance(value, Program):
        return "a program"
    if isinstance(value, TensorType):
        return value.short()
    text = dtypes.short_name(value) if is_dtype(value) else repr(value)  # type: ignore[arg-type]
    return text if len(text) <= 60 else f"{text[:50]}…"
