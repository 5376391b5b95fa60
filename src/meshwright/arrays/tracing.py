"""From a Python function of pytrees to a program of arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from meshwright.arrays.operands import as_dtype
from meshwright.arrays.static import static_flag, static_shape
from meshwright.core import dtypes, tree
from meshwright.core.check import check
from meshwright.core.program import Program
from meshwright.core.source import here, traced_apart
from meshwright.core.trace import Array, Tracer, Value, close, leaked, state, to_array, trace
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError, TracerError, TreeError
from meshwright.transform.simplify import dce


class ShapeDtypeStruct:
    """A shape and a dtype in the place of an array; ``vma`` are the mesh axes that a kernel's result varies over.

    >>> ShapeDtypeStruct((2, 3), "float32")
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    __slots__ = ("sharding", "type", "vma")

    def __init__(
        self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False, vma: Any = None
    ) -> None:
        type = TensorType(static_shape(shape), as_dtype(dtype), static_flag(weak_type, "weak_type"))
        if sharding is not None:
            from meshwright.arrays.device_put import check_places

            check_places((sharding,))
        if hasattr(sharding, "shard_shape"):
            sharding.shard_shape(type.shape)  # refuses more dims than there are, at this line
        self.type = sharding.typed(type) if hasattr(sharding, "typed") else type
        self.sharding = sharding
        if vma is not None and not (
            isinstance(vma, set | frozenset | list | tuple) and all(isinstance(a, str) for a in vma)
        ):
            raise ShapeError(
                f"ShapeDtypeStruct is given vma={vma!r}.",
                where=here(),
                why="it is a set of names of mesh axes",
                fix="vma={'x'}",
            )
        self.vma: frozenset[str] | None = None if vma is None else frozenset(vma)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> dtypes.DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def weak_type(self) -> bool:
        return self.type.weak

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """This with some of its parts replaced.

        >>> ShapeDtypeStruct((2, 3), "float32").update(shape=(4,))
        ShapeDtypeStruct(shape=(4,), dtype=float32)
        """
        sharding = None if "shape" in changes and len(changes["shape"]) != self.ndim else self.sharding
        own = {"sharding": sharding, "weak_type": self.weak_type, "vma": self.vma}
        return ShapeDtypeStruct(**{"shape": self.shape, "dtype": self.dtype, **own, **changes})

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """The shape, the dtype and the sharding of an array, or of what can be one.

        >>> ShapeDtypeStruct.like(1.5)
        ShapeDtypeStruct(shape=(), dtype=float32)
        """
        type, sharding = leaf_type(x), x._sharding if x.__class__ is Array else getattr(x, "sharding", None)
        return cls(type.shape, type.dtype, sharding=sharding, weak_type=type.weak)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, ShapeDtypeStruct) and self.type is other.type and self.vma == other.vma
        return same and self.sharding == other.sharding  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.type, self.sharding, self.vma))

    def __repr__(self) -> str:
        sharding = f", sharding={self.sharding}" if self.sharding is not None else ""
        vma = f", vma={sorted(self.vma)}" if self.vma is not None else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{sharding}{vma})"


def typeof(x: Any) -> TensorType:
    """The type of a value: ``float32[3,4]``; of an array on a mesh with its sharding: ``float32[3@x,4@(y,z)]``.

    >>> print(typeof(1.5))
    float32[]
    """
    type = leaf_type(x)
    sharding: Any = x._sharding if x.__class__ is Array else getattr(x, "sharding", None)
    return type.with_(sharding=sharding.to_tensor_sharding(type.ndim)) if hasattr(sharding, "spec") else type


def is_of_jax(x: Any) -> bool:
    """Whether an argument is an array of JAX's, or its ``ShapeDtypeStruct``."""
    return type(x).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(x, "sharding")


_said_by_jax: ContextVar[tuple[Any, ...]] = ContextVar("said_by_jax", default=())


@contextmanager
def typed_by_jax(leaves: Sequence[Any]) -> Iterator[None]:
    """While a function is traced for these arguments, its functions of JAX are traced with the shardings that JAX has
    in their types: over Explicit axes."""
    found = tuple(x if is_of_jax(x) and any("Explicit" in str(t) for t in _axis_types(x)) else None for x in leaves)
    token = _said_by_jax.set(found if any(x is not None for x in found) else ())
    try:
        yield
    finally:
        _said_by_jax.reset(token)


def _axis_types(x: Any) -> tuple[Any, ...]:
    return getattr(getattr(x.sharding, "mesh", None), "axis_types", ())


def said_by_jax(leaves: Sequence[Any]) -> Sequence[Any]:
    """The shardings in JAX's types of these values, if they are the arguments of the function that is traced."""
    said = _said_by_jax.get()
    if len(said) != len(leaves) or any(
        j is not None and j.shape != getattr(x, "shape", None) for j, x in zip(said, leaves, strict=True)
    ):
        return [None] * len(leaves)
    return [None if j is None else j.sharding for j in said]


def leaf_array(x: Any) -> Value:
    """A leaf as a value, as `to_array` has it; arrays of JAX can be keys, too."""
    if not is_of_jax(x):
        return to_array(x)
    from meshwright.interop.jaxpr.arguments import numbers_of

    return numbers_of(x)


def leaf_type(x: Any) -> TensorType:
    """The type of a leaf: an array, a number, or a ShapeDtypeStruct in its place."""
    return x.type if isinstance(x, Value | ShapeDtypeStruct) else leaf_array(x).type


def leaf_value(x: Any, what: str, enter: bool = True) -> Value:
    """A leaf as a value, or an error that says what it is: "a result of the function", "argument 0['w']".

    In a branch or a loop that devices decide differently, a value from outside is taken as it ``enter``s there.
    """
    if isinstance(x, Value):
        if x.__class__ is Tracer and x.builder.closed:
            raise leaked(x)
        if enter and state.builder is not None and state.builder.floored and (x.__class__ is Tracer or x.ndim):
            return state.builder.entering(x)  # type: ignore[no-any-return]
        return x
    try:
        return leaf_array(x)
    except (ShapeError, TypeError, ValueError):
        raise TreeError(
            f"{what[0].upper()}{what[1:]} is not an array or a number: its type is {type(x).__name__}.",
            where=here(),
            why="the leaves of what goes in and comes out must be arrays, NumPy arrays or numbers",
            fix="pass an array, or mark an argument static: mw.jit(f, static_argnums=…)",
        ) from None


def check_function(fun: Any, taker: str, call: str = "") -> None:
    """Refuse what cannot be called, before it fails somewhere inside. ``call`` shows how to use a ``taker`` that calls
    the function itself; without it, ``taker`` is a transformation."""
    if not callable(fun):
        raise MeshwrightError(
            f"{taker} is given {fun!r}, which is not a function.",
            where=here(),
            why=f"{taker} calls the function it is given" if call else f"mw.{taker} takes a function and returns one",
            fix=call or f"mw.{taker}(f)(x), where f computes what you want from x",
        )


def argument_numbers(given: Any, transformation: str, meaning: str) -> tuple[int, ...]:
    """Positions of arguments as a tuple, from one number or several."""
    numbers = tuple(given) if isinstance(given, tuple | list | set | frozenset | range) else (given,)
    for n in numbers:
        try:
            if isinstance(n, bool):
                raise TypeError
            operator.index(n)
        except TypeError:
            raise MeshwrightError(
                f"{transformation} is given {n!r} among the {meaning}.",
                where=here(),
                why="positions are counted from 0",
                fix="one number, or a tuple of numbers such as (0, 1)",
            ) from None
    return tuple(operator.index(n) for n in numbers)


class TracedFunction(NamedTuple):
    """A traced function: its program, the outside values that are the program's leading inputs, and its output tree."""

    program: Program
    captured: list[Value]
    out_tree: tree.TreeDef

    @property
    def closed(self) -> Program:
        """The program with its captured arrays as constants."""
        for value in self.captured:
            if not isinstance(value, Array):
                raise TracerError(
                    f"The function uses a traced value {value.type} of an enclosing trace.",
                    where=here(),
                    why="a program that stands alone can close over concrete arrays only",
                    fix="pass the value as an argument",
                )
        return close(self.program, self.captured)


def trace_flat(
    function: Callable[..., Any],
    in_tree: tree.TreeDef,
    types: Sequence[TensorType],
    known: Sequence[Value] | None = None,
    floor: tuple[str, ...] = (),
) -> TracedFunction:
    """Trace ``function(*args, **kwargs)`` where ``in_tree`` is the tree of ``(args, kwargs)``."""
    out_trees: list[tree.TreeDef] = []

    def flat(*leaves: Any) -> list[Value]:
        args, kwargs = tree.unflatten(in_tree, leaves)
        outs, out_tree = tree.flatten(function(*args, **kwargs))
        out_trees.append(out_tree)
        return [leaf_value(x, "a result of the function") for x in outs]

    program, captured = trace(flat, types, known, floor)
    return TracedFunction(program, captured, out_trees[0])


def make_program(function: Callable[..., Any]) -> Callable[..., Program]:
    """The program of ``function`` for given arguments (arrays, numbers or ``ShapeDtypeStruct``s).

    >>> import meshwright.numpy as mnp
    >>> print(make_program(lambda x: mnp.sin(x) * 2)(mnp.ones(3)).to_text(sources=False))
    program(a: f32[3]) {
      b: f32[3] = sin a
      c: f32[3] = mul b 2.0
      return c
    }
    """

    check_function(function, "make_program")

    def maker(*args: Any, **kwargs: Any) -> Program:
        leaves, in_tree = tree.flatten((args, kwargs))
        traced = traced_apart(trace_flat)(function, in_tree, [leaf_type(x) for x in leaves])
        return check(dce(traced.closed), "tracing")

    return maker


def eval_shape(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes ``function`` returns, without computing anything.

    >>> import meshwright.numpy as mnp
    >>> eval_shape(lambda x: x @ x.T, ShapeDtypeStruct((2, 3), "float32"))
    ShapeDtypeStruct(shape=(2, 2), dtype=float32)
    """
    check_function(function, "eval_shape", "mw.eval_shape(f, x)")
    leaves, in_tree = tree.flatten((args, kwargs))
    traced = trace_flat(function, in_tree, [leaf_type(x) for x in leaves])
    outs = [ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak) for t in traced.program.out_types]
    return tree.unflatten(traced.out_tree, outs)
