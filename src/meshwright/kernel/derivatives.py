"""Derivatives of kernels by tangents: the body runs once, on memory and values that have a tangent beside them.

Every input that is differentiated, every float output and all float scratch memory gets memory for its tangent, cut
into blocks as it is. What is loaded knows both; an op on it is computed by its own jvp rule, and a store writes both.
So a body needs no other form: its branches and loops are decided by the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn

from meshwright.core import dtypes, trace, tree
from meshwright.core.op import No, Op
from meshwright.core.program import Params, Rule
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.errors import DifferentiationError
from meshwright.kernel.call import KernelCall, Runner
from meshwright.kernel.language.refs import Ref, load, store
from meshwright.kernel.language.spaces import MemoryType

_serial = count()
_FIX = "give the call a derivative of its own: mw.custom_vjp, or mw.custom_jvp, around it"


class Dual:
    """The contents of an array that is differentiated: a value and its tangent.

    ``level`` tells apart what is differentiated twice: the derivative that was taken first has the smaller one.
    """

    __slots__ = ("level", "primal", "tangent")

    is_fully_addressable = True
    sharding = None  # contents that stay what they are

    def __init__(self, primal: Array, tangent: Array, level: int) -> None:
        self.primal = primal
        self.tangent = tangent
        self.level = level

    @property
    def shape(self) -> tuple[int, ...]:
        return self.primal.shape

    @property
    def ndim(self) -> int:
        return self.primal.ndim

    @property
    def dtype(self) -> Any:
        return self.primal.dtype

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise DifferentiationError(
            "A value that a kernel is differentiated by is used as a number.",
            where=here(),
            why="its tangent would be lost there",
            fix=_FIX,
        )


def watch(op: Op, operands: Sequence[Array], types: Any, params: Params) -> Any:
    """The results of an op of which an operand has a tangent; None for others."""
    levels = [x._data.level for x in operands if x._data.__class__ is Dual]
    if not levels:
        return None
    level = min(levels)
    primals, tangents = [], []
    for x in operands:
        mine = x._data.__class__ is Dual and x._data.level == level
        primals.append(x._data.primal if mine else x)
        tangents.append(x._data.tangent if mine else None)
    if types == ():  # it prints, say
        return trace.apply(op, primals, params)
    if op.jvp.__class__ is No:
        raise DifferentiationError(f"{op.name} has no derivative.", where=here(), why=op.jvp.reason, fix=_FIX)  # type: ignore[union-attr]
    outs, found = op.jvp(op, primals, tangents, params)  # type: ignore[operator]
    results = tuple(
        out if t is None or not dtypes.is_inexact(out.type.dtype) else Array(Dual(out, t, level), out.type)
        for out, t in zip(outs, found, strict=True)
    )
    return results if types.__class__ is tuple else results[0]


def _split(value: Array, level: int) -> tuple[Array, Array | None]:
    """A value and its tangent, of one derivative."""
    found = value._data
    return (found.primal, found.tangent) if found.__class__ is Dual and found.level == level else (value, None)


class DualRef(Ref):
    """Memory with memory for its tangent; either may have one itself, where a derivative is differentiated."""

    __slots__ = ("level", "primal", "tangent")

    has_tangent = True

    def __init__(self, primal: Ref, tangent: Ref, level: int) -> None:
        super().__init__(primal.buffer, primal.data, primal.path)
        self.primal, self.tangent, self.level = primal, tangent, level

    @property
    def at(self) -> Any:
        return _DualAt(self)

    def reshape(self, *shape: Any) -> Ref:
        return DualRef(self.primal.reshape(*shape), self.tangent.reshape(*shape), self.level)

    def bitcast(self, dtype: Any) -> Ref:
        raise DifferentiationError(
            f"The bits of {self.buffer.label} are read as {dtypes.as_dtype(dtype).name}, and it is differentiated.",
            where=here(),
            why="bits have no tangent",
            fix=_FIX,
        )

    def __getitem__(self, key: Any) -> Array:
        trace.state.watch = watch  # until the kernel ends
        primal, tangent = load(self.primal, key), load(self.tangent, key)
        return Array(Dual(primal, tangent, self.level), primal.type)

    def __setitem__(self, key: Any, value: Any) -> None:
        primal, tangent = _split(value, self.level) if value.__class__ is Array else (value, None)
        store(self.primal, key, primal)
        store(self.tangent, key, 0.0 if tangent is None else tangent)


class _DualAt:
    __slots__ = ("ref",)

    def __init__(self, ref: DualRef) -> None:
        self.ref = ref

    def __getitem__(self, key: Any) -> DualRef:
        return DualRef(self.ref.primal.at[key], self.ref.tangent.at[key], self.ref.level)


def jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], params: Params) -> tuple[list[Any], list[Any]]:
    """The results of a kernel and their tangents, by one run of it."""
    call = _call(params)
    head, sizes = len(params["mesh"]), call.grid.count(None)
    split = len(primals) - sizes
    given, ts = primals[head:split], tangents[head:split]
    active = [t is not None and dtypes.is_inexact(x.type.dtype) for x, t in zip(given, ts, strict=True)]
    double = with_tangents(call, active)
    rule = Rule(f"{double.name}#jvp{next(_serial)}", Runner(double))
    more = [t for t, one in zip(ts, active, strict=True) if one]
    operands = [*primals[:split], *more, *primals[split:]]
    outs = op(*operands, **{**params, "kernel": rule, "out": double.out_types})
    count = len(call.out_types)
    left = iter(outs[count:])
    return list(outs[:count]), [next(left) if dtypes.is_inexact(t.dtype) else None for t in call.out_types]


def linearize(op: Op, primals: Sequence[Any], tangents: Sequence[Any], params: Params) -> tuple[list[Any], list[Any]]:
    """As `jvp`, with results that do not wait for tangents."""
    return list(op(*primals, **params)), jvp(op, primals, tangents, params)[1]


def _call(params: Params) -> KernelCall:
    runner = params["kernel"].function
    if not isinstance(runner, Runner):
        raise DifferentiationError(
            f"The kernel {params['kernel'].name!r} is not part of this program, and neither is its derivative.",
            where=here(),
            why="the program was read from text, which keeps the name of a kernel and not its Python code",
            fix="trace the function again with mw.make_program(f)(…)",
        )
    call = runner.call
    if call.aliases or call.cores > 1 or any(call.out_semaphores):
        what = (
            "with input_output_aliases" if call.aliases else "on several cores" if call.cores > 1 else "of semaphores"
        )
        raise DifferentiationError(
            f"The kernel {call.name}, {what}, is differentiated.",
            where=call.source.show() if call.source else here(),
            why="the derivative of a kernel is a kernel with a tangent beside each of its operands and results",
            fix=_FIX,
        )
    return call


def with_tangents(call: KernelCall, active: Sequence[bool]) -> KernelCall:
    """The kernel that computes tangents, too: inputs, those of the ``active`` ones, outputs, their tangents."""
    head = sum(t.num_leaves for t in call.in_trees[: call.scalars])
    if any(active[:head]):
        raise DifferentiationError(
            f"A number that {call.name} is given before it starts is differentiated.",
            where=call.source.show() if call.source else here(),
            why="index maps see it: it says which blocks there are",
            fix="an operand of its own for the number, with pl.BlockSpec(memory_space=pltpu.SMEM)",
        )
    level = next(_serial)
    leaf = tree.structure(0)
    inputs, floats = active[head:], [dtypes.is_inexact(t.dtype) for t in call.out_types]
    in_trees, out_trees = call.in_trees[call.scalars :], call.out_trees
    names = [
        name for name, t in zip(call.labels, (*call.in_trees, *out_trees), strict=False) for _ in range(t.num_leaves)
    ]
    ins, outs = names[head : head + len(inputs)], names[head + len(inputs) :]
    named = isinstance(call.scratch, dict)
    scratch, scratch_tree = tree.flatten(call.scratch)
    tangents = [isinstance(one, MemoryType) and dtypes.is_inexact(one.dtype) for one in scratch]

    def kernel(*refs: Any) -> Any:
        left = iter(refs)
        scalars = [next(left) for _ in range(call.scalars)]
        given = _paired(left, inputs, level)
        made = _paired(left, floats, level)
        memory = tree.unflatten(scratch_tree, _paired(left, tangents, level))
        args = [*scalars, *_nested(given, in_trees), *_nested(made, out_trees)]
        return call.kernel(*args, **memory) if named else call.kernel(*args, *memory)

    def of_tangents(values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
        return [value for value, one in zip(values, which, strict=True) if one]

    def titles(labels: Sequence[str], which: Sequence[bool]) -> list[str]:
        return [*labels, *(f"the tangent of {label}" for label in of_tangents(labels, which))]

    scratch_names = ["scratch memory"] * len(scratch)
    return replace(
        call,
        kernel=kernel,
        name=f"jvp_{call.name}",
        in_specs=(*call.in_specs, *of_tangents(call.in_specs, inputs)),
        out_specs=(*call.out_specs, *of_tangents(call.out_specs, floats)),
        labels=(
            *call.labels[: call.scalars],
            *titles(ins, inputs),
            *titles(outs, floats),
            *titles(scratch_names, tangents),
        ),
        out_types=(*call.out_types, *of_tangents(call.out_types, floats)),
        out_axes=(*call.out_axes, *of_tangents(call.out_axes, floats)),
        out_semaphores=(None,) * (len(floats) + sum(floats)),
        in_trees=(*call.in_trees[: call.scalars], *[leaf] * (len(inputs) + sum(inputs))),
        out_trees=(leaf,) * (len(floats) + sum(floats)),
        scratch=[*scratch, *of_tangents(scratch, tangents)],
        in_axes=(*call.in_axes, *of_tangents(call.in_axes[: len(active)], active[: len(call.in_axes)])),
        debug=None,
        given=None,
    )


def _paired(refs: Any, which: Sequence[bool], level: int) -> list[Any]:
    """Refs, of which some have a tangent; their tangents follow."""
    primals = [next(refs) for _ in which]
    return [DualRef(ref, next(refs), level) if one else ref for ref, one in zip(primals, which, strict=True)]


def _nested(refs: Sequence[Ref], trees: Sequence[tree.TreeDef]) -> list[Any]:
    left = iter(refs)
    return [tree.unflatten(t, [next(left) for _ in range(t.num_leaves)]) for t in trees]
