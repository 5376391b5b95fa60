"""Tracing: a function run on tracers leaves behind the program of what it did.

``apply`` is the one way an op is used. With no trace going on it computes; inside one it adds an equation to the
innermost builder. A value from outside a builder (an array, or a tracer of an enclosing trace) is *captured*: it
becomes an extra leading input, and the caller of ``trace`` decides how to pass it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.current import current_device, current_mesh, current_processes
from meshwright.core.facts import Structure
from meshwright.core.limits import out_of_memory, refuse_impossible
from meshwright.core.linearity import Does
from meshwright.core.program import Atom, Eqn, Literal, Params, Program, Var, operand_types
from meshwright.core.source import Source, forget_frames, here, traced_source, user_call
from meshwright.core.types import Shape, TensorType, Variance, union
from meshwright.errors import DonatedError, MeshwrightError, ShapeError, TracerError, VarianceError

if TYPE_CHECKING:
    from meshwright.arrays.placement import Placed
    from meshwright.core.op import Op
    from meshwright.numpy.methods import Methods
    from meshwright.numpy.operators import Operators

    class ValueMembers(Operators, Methods, Placed):
        """The operators and methods that ``meshwright.numpy`` gives to values, and what arrays say of their devices:
        for type checkers."""

else:
    ValueMembers = object


class Value(ValueMembers):
    """What programs compute with: an ``Array`` or a ``Tracer``. ``meshwright.numpy`` adds operators and methods."""

    __slots__ = ("__weakref__",)
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.type.shape

    @property
    def dtype(self) -> dtypes.DType:  # type: ignore[override]
        return self.type.dtype

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.type.ndim

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.type.size

    @property
    def weak_type(self) -> bool:
        return self.type.weak


class Array(Value):
    """An array of known contents.

    >>> import meshwright.numpy as mnp
    >>> x = mnp.array([1.0, 2.0])
    >>> isinstance(x, Array), x.shape, x.dtype
    (True, (2,), dtype('float32'))
    """

    __slots__ = ("_data", "_sharding", "type")

    def __init__(self, data: Any, type: TensorType, sharding: Any = None) -> None:
        # The global contents, once, however many devices hold them. Of a partial sum: what each device holds, with a
        # dim in front for each mesh axis that the type is unreduced over.
        self._data = data
        self.type = type if sharding is None else sharding.typed(type)
        # Where they are; None, or a default device: they were put nowhere.
        self._sharding = current_device.place if sharding is None else sharding

    @property
    def data(self) -> Any:
        """The contents, of a partial sum the sum; an error after the array was donated."""
        if self._data is None:
            raise DonatedError(
                f"This array {self.type} has no contents any more.",
                where=here(),
                why="it was donated to a jitted function, which may overwrite it, or deleted",
                fix="use the function's result instead, or do not donate this argument",
            )
        rows = self._data if self._data.__class__ is np.ndarray else self._rows
        unreduced = len(self.type.unreduced)
        if unreduced and rows.ndim > self.type.ndim:
            assert _sum_rows is not None
            with building(None):
                total = Array(rows, TensorType(rows.shape, rows.dtype))
                for _ in range(unreduced):
                    total = _sum_rows(total)
            return total.data
        return rows

    @property
    def _rows(self) -> np.ndarray[Any, Any]:
        """The contents as NumPy has them, of a partial sum what each device holds."""
        if self._data.__class__ is np.ndarray:
            return self._data  # type: ignore[no-any-return]
        found = on_host(self._data, self.type.shape)
        if not hasattr(self._data, "sharding"):  # what is on devices stays there
            self._data = found
        return found


def on_host(data: Any, shape: Shape) -> np.ndarray[Any, Any]:
    """Contents that are on devices, or a number, as an array of NumPy: without padding, which their last dims may have
    there."""
    front = np.ndim(data) - len(shape)
    if not prod(shape):  # of which JAX does not put shards together
        return np.empty((*np.shape(data)[:front], *shape), data.dtype)
    if getattr(data, "is_fully_addressable", True) or data.is_fully_replicated:
        try:
            found = np.asarray(data if getattr(data, "is_fully_addressable", True) else data.addressable_data(0))
        except RuntimeError as error:  # of the program that was to make it
            raise current_processes.all.lost(error) from None
    else:
        raise MeshwrightError(
            f"This process has only some shards of an array {data.dtype}[{','.join(map(str, shape))}].",
            where=here(),
            why="the others are on devices of other processes",
            fix="mw.jit(lambda x: x, out_shardings=mw.NamedSharding(mesh, mw.P()))(x),"
            " which brings all of it everywhere",
        )
    inside: Any = (..., *(slice(n) for n in shape))
    return found if found.shape[front:] == shape else found[inside]


class Tracer(Value):
    """A value of the program being traced."""

    __slots__ = ("builder", "type", "variable")

    def __init__(self, builder: Builder, var: Var) -> None:
        self.builder = builder
        self.variable = var
        self.type = var.type


@dataclass(frozen=True)
class Manual:
    """What code written for one device can know: the mesh axes it runs over by hand.

    ``mesh`` is the whole mesh; ``axes`` are the sizes of those axes; ``level`` the trace of the body each belongs to;
    ``parts`` the parts of an axis that was cut, by its name; ``automatic`` whether values are made varying where they
    must vary; ``checked`` whether what varies over which axis is asked of the user: otherwise all values vary.
    """

    mesh: Any
    axes: Mapping[str, int]
    level: Mapping[str, int]
    parts: Mapping[str, tuple[str, ...]]
    automatic: bool
    checked: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """What a program traced here depends on."""
        return tuple(self.axes.items()), tuple(self.parts.items()), self.automatic, self.checked


class Mapped(NamedTuple):
    """The mesh of a shard_map: the program's own if the function names no other."""

    mesh: Any


class _TraceState(threading.local):
    builder: Builder | None = None  # the innermost trace going on
    source: Source | None = None  # set while a transform replays an equation
    manual: Manual | None = None  # set while code for one device is traced
    meshes: list[Any] | None = None  # where the meshes that a function names are noted while jit traces it
    mesh: Any = None  # the one that a program of several meshes runs on; constraints about others name theirs
    watch: Any = None  # told of every op computed at once; what it returns, if anything, is the result


state = _TraceState()
_namespace: Any = None
_pbroadcast: Op | None = None
_with_summands: Callable[..., Any] | None = None
_sum_rows: Callable[[Array], Array] | None = None
_left_open: Callable[..., Any] | None = None
_places: Callable[..., Any] | None = None


def set_namespace(namespace: Any) -> None:
    """Choose the array namespace that concrete values are computed with."""
    global _namespace
    _namespace = namespace


def set_pbroadcast(op: Op) -> None:
    """Name the op that lifts a value which is the same on all devices to one that may differ."""
    global _pbroadcast
    _pbroadcast = op


def set_summands(compute: Callable[..., Any], sum_rows: Callable[[Array], Array]) -> None:
    """Say how an op is computed on arrays of which devices hold summands, and what takes their sum."""
    global _with_summands, _sum_rows
    _with_summands, _sum_rows = compute, sum_rows


def set_left_open(compute: Callable[..., Any]) -> None:
    """Say how an op is computed on arrays on a mesh that leaves the sum over devices open."""
    global _left_open
    _left_open = compute


def set_places(places: Callable[..., Any]) -> None:
    """Say where the results of an op on arrays on a mesh are, when it is computed at once."""
    global _places
    _places = places


MOST_LEVELS = 48  # Python's own stack ends soon after


class Builder:
    """A program in the making. ``level`` is how many traces are open around it."""

    __slots__ = (
        "calls",
        "captured",
        "closed",
        "copied",
        "eqns",
        "floor",
        "floored",
        "indexed",
        "inputs",
        "known",
        "level",
        "made_varying",
        "makers",
        "parent",
    )

    def __init__(self, parent: Builder | None, floor: tuple[str, ...] = ()) -> None:
        self.floor = floor  # the mesh axes that what is captured must vary over
        self.floored: bool = bool(floor) or (parent is not None and parent.floored)
        self.parent = parent
        self.level: int = parent.level + 1 if parent else 0
        if self.level >= MOST_LEVELS:
            raise MeshwrightError(
                f"Loops, branches and transformed functions are nested more than {MOST_LEVELS} deep.",
                where=here(),
                why=f"each is traced inside of the one around it, {MOST_LEVELS} deep at most",
                fix="one loop for many: lax.scan over all steps; one choice for many: lax.switch(i, [f, g, h], x)",
            )
        self.inputs: list[Var] = []
        self.eqns: list[Eqn] = []
        self.captured: dict[int, tuple[Var, Value]] = {}
        self.copied: dict[int, tuple[Any, Array]] = {}  # NumPy arrays that the trace met, and the arrays made of them
        self.made_varying: dict[Any, tuple[Any, Tracer]] = {}  # values that were made to vary, and over which axes
        self.makers: dict[Atom, Eqn] = {}  # the equation of each value, as far as anybody asked
        self.indexed = 0
        self.calls: dict[Atom, Any] = {}  # the user's call that each value was made in, where that matters
        self.known: dict[Atom, Any] | None = None  # values of the inputs, when tracing was asked to keep them
        self.closed = False

    def input(self, type: TensorType) -> Tracer:
        var = Var(type)
        self.inputs.append(var)
        return Tracer(self, var)

    def atom(self, x: Any) -> Atom:
        """How an equation of this builder refers to ``x``."""
        if x.__class__ is Tracer:
            if x.builder is self and not self.closed:
                return x.variable  # type: ignore[no-any-return]
            if x.builder.closed:
                raise leaked(x)
        elif x.type.ndim == 0 and x.__class__ is Array and not x.type.unreduced and x.type.dtype != dtypes.KEY:
            return Literal(python_number(x.data), x.type)
        if self.floored:
            x = self.entering(x)
        found = self.captured.get(id(x))
        if found is None:
            found = self.captured[id(x)] = (Var(x.type), x)
        return found[0]

    def entering(self, x: Any) -> Any:
        """``x`` as all traces that it enters on its way here demand it, made varying outside of the first of them."""
        outermost, floor = None, x.type.varying
        builder: Builder | None = self
        while builder is not None and builder is not getattr(x, "builder", None):
            if builder.floor:
                outermost, floor = builder, union((floor, builder.floor))
            builder = builder.parent
        return x if outermost is None or outermost.parent is None else outermost.parent.make_varying(x, floor)

    def agree(self, args: Sequence[Any], atoms: list[Atom]) -> list[Atom]:
        """The operands of a first-order op, made to vary over the same mesh axes."""
        varying = union(a.type.varying for a in atoms)
        asked = _by_hand()  # for every pbroadcast of a value: the type rule names those that are missing
        return [
            a
            if a.__class__ is Literal or a.type.varying == varying or (asked and not _is_constant(x))
            else self.atom(self.make_varying(x, varying))
            for x, a in zip(args, atoms, strict=True)
        ]

    def make_varying(self, x: Any, varying: tuple[str, ...], numbers: bool = False) -> Any:
        """``x`` as a value that varies over ``varying``, too: made so once, in the outermost trace where that can be.

        So a value that a loop closes over is made varying before the loop, and the transpose has one sum, after it.
        """
        axes = tuple(axis for axis in varying if axis not in x.type.varying)
        if not axes:
            return x
        if _by_hand() and not numbers and not _is_constant(x):
            raise _not_made_varying(x, axes)
        parts = _smaller(x, axes)
        if parts is not None:
            return _made_again(x.builder, x.variable, parts, varying)
        home: Builder = self
        if state.manual is not None:
            level = x.builder.level if x.__class__ is Tracer else self.level if x.ndim == 0 else 0
            level = max(level, *(state.manual.level.get(axis, 0) for axis in axes))
            while home.level > level and home.parent is not None:
                home = home.parent
        key = (x.variable if x.__class__ is Tracer else id(x), axes)
        found = home.made_varying.get(key)
        if found is None:
            assert _pbroadcast is not None
            type = x.type.with_(varying=union((x.type.varying, axes)))
            found = home.made_varying[key] = (x, home.emit(_pbroadcast, [home.atom(x)], {"axes": axes}, type))
        return found[1]

    def made_by(self, var: Atom) -> Eqn | None:
        """The equation that a value of this builder comes from; None of an input."""
        for eqn in self.eqns[self.indexed :]:
            self.makers.update(dict.fromkeys(eqn.outputs, eqn))
        self.indexed = len(self.eqns)
        return self.makers.get(var)

    def emit(self, op: Op, atoms: Sequence[Atom], params: Params, types: Any) -> Any:
        """Add an equation and return its outputs as tracers: one, or a tuple where ``types`` is a tuple."""
        source = state.source or traced_source()
        if types.__class__ is tuple:
            outs = [Var(t) for t in types]
            if _by_hand():
                self.calls.update(dict.fromkeys(outs, user_call()))
            self.eqns.append(Eqn(op, atoms, params, outs, source))
            return tuple(Tracer(self, v) for v in outs)
        var = Var(types)
        if _by_hand():
            self.calls[var] = user_call()
        self.eqns.append(Eqn(op, atoms, params, (var,), source))
        return Tracer(self, var)

    def finish(self, outputs: Sequence[Any]) -> tuple[Program, list[Value]]:
        """The program and the captured values, which are its leading inputs."""
        outs = tuple(self.atom(x) for x in outputs)
        captured = list(self.captured.values())
        if state.manual is not None:  # what was captured and then made varying outside is not used in here
            used = {a for eqn in self.eqns for a in eqn.inputs} | set(outs)
            captured = [(var, x) for var, x in captured if var in used]
        self.closed = True
        inputs = tuple(var for var, _ in captured) + tuple(self.inputs)
        return Program(inputs, tuple(self.eqns), outs), [value for _, value in captured]


def _by_hand() -> bool:
    """Whether the code being traced is to write every pbroadcast itself; not what a transform makes of it."""
    return state.manual is not None and not state.manual.automatic and state.source is None


def _is_constant(x: Any) -> bool:
    """Whether a value follows from numbers alone, in the library function that is running: it is not the user's, and
    has no derivative, which could need a sum."""
    if x.__class__ is not Tracer:
        return not isinstance(x, Value) or x.ndim == 0
    builder = x.builder
    if builder.calls.get(x.variable) != user_call():
        return False
    known: dict[Atom, bool] = dict.fromkeys(builder.inputs, False)
    known.update((var, _is_constant(value)) for var, value in builder.captured.values())
    return _from_numbers(builder, x.variable, known)


def _from_numbers(builder: Builder, var: Atom, known: dict[Atom, bool]) -> bool:
    todo = [var]
    while todo:
        atom = todo[-1]
        eqn = None if atom in known or atom.__class__ is Literal else builder.made_by(atom)
        rest = [] if eqn is None else [a for a in eqn.inputs if a.__class__ is Var and a not in known]
        if rest:
            todo += rest
            continue
        if eqn is not None:
            known[atom] = all(a.__class__ is Literal or known[a] for a in eqn.inputs)
        todo.pop()
    return var.__class__ is Literal or known.get(var, False)


def follows_from(x: Any, source: Any) -> bool:
    """Whether a traced value was computed from another; in a function, loop or branch that is traced inside of that
    one's trace, whether it may have been: what the arguments of such a function will be, it does not know."""
    if x is source:
        return True
    if x.__class__ is not Tracer or source.__class__ is not Tracer or x.builder.level < source.builder.level:
        return False
    inside = x.builder is not source.builder
    captured = dict(x.builder.captured.values())
    todo, seen = [x.variable], {x.variable}
    while todo:
        var = todo.pop()
        if var is source.variable or (inside and var in x.builder.inputs):
            return True
        if inside and var in captured and follows_from(captured[var], source):
            return True
        eqn = x.builder.made_by(var)
        fresh = [a for a in eqn.inputs if a.__class__ is Var and a not in seen] if eqn is not None else []
        todo += fresh
        seen.update(fresh)
    return False


def _not_made_varying(x: Value, axes: tuple[str, ...]) -> VarianceError:
    names = repr(axes[0] if len(axes) == 1 else axes)
    return VarianceError(
        f"A loop or a branch takes {x.type.short()} as a value that varies over {', '.join(axes)}.",
        where=here(),
        why="it is the same on all devices, and with auto_pbroadcast=False every pbroadcast is yours to write",
        fix=f"lax.pbroadcast(x, {names}), and the loop or the branch on that",
    )


_MOST_MOVES = 32  # equations in a row that a value is followed back through


def _smaller(x: Any, axes: tuple[str, ...]) -> frozenset[Var] | None:
    """Values that ``x`` was made of by only moving their elements, if they are fewer than its own.

    A value is made varying before it is repeated: the transpose then sums over devices what there was of it at first.
    """
    if x.__class__ is not Tracer or x.builder.closed or not dtypes.is_inexact(x.type.dtype):
        return None
    if state.manual is not None and any(x.builder.level < state.manual.level.get(axis, 0) for axis in axes):
        return None  # it comes from outside of the devices
    found = _parts(x.builder, x.variable, {}, _MOST_MOVES)
    return found if sum(a.type.size for a in found) < x.type.size else None


def _parts(builder: Builder, var: Var, known: dict[Var, frozenset[Var]], depth: int) -> frozenset[Var]:
    """The fewest elements that a value is made of."""
    if var not in known:
        eqn = builder.made_by(var) if depth else None
        given = _moved_operands(eqn) if eqn is not None else []
        parts = frozenset().union(*(_parts(builder, a, known, depth - 1) for a in given))
        known[var] = parts if given and sum(a.type.size for a in parts) <= var.type.size else frozenset({var})
    return known[var]


def _moved_operands(eqn: Eqn) -> list[Var]:
    """The operands of an equation that does nothing but to move their elements to its result; integers, which have no
    derivatives, may say where."""
    if len(eqn.outputs) != 1 or eqn.op.variance is not Variance.EQUAL:
        return []
    result = eqn.outputs[0].type
    given = {n: a for n, a in enumerate(eqn.inputs) if isinstance(a, Var) and dtypes.is_inexact(a.type.dtype)}
    groups = eqn.op.groups([a.type for a in eqn.inputs], [result], eqn.params)
    moves = any(group.does is Does.MOVES and set(given) <= set(group.operands) for group in groups)
    return list(given.values()) if moves and all(a.type.dtype == result.dtype for a in given.values()) else []


def _made_again(builder: Builder, var: Var, parts: frozenset[Var], varying: tuple[str, ...]) -> Any:
    """A value made again of parts that are made varying first."""
    key = (var, varying)
    if key not in builder.made_varying:
        eqn = builder.made_by(var)
        if var in parts or eqn is None or not dtypes.is_inexact(var.type.dtype):
            value = builder.make_varying(Tracer(builder, var), varying)
        else:
            operands = [
                _made_again(builder, a, parts, varying) if isinstance(a, Var) else read({}, a) for a in eqn.inputs
            ]
            with building(builder), at_source(eqn.source):
                value = apply(eqn.op, operands, eqn.params)
        builder.made_varying[key] = (var, value)
    return builder.made_varying[key][1]


def apply(op: Op, args: Sequence[Any], params: Params) -> Any:
    """Use an op: compute it, or add it to the program being traced.

    A Python number among ``args`` takes the dtype of the last array operand.
    """
    builder = state.builder
    for x in args:
        if x.__class__ is Tracer and (builder is None or x.builder.level > builder.level):
            builder = x.builder
    if builder is None:
        return _compute(op, args, params)
    atoms: list[Any] = []
    numbers = False
    for x in args:
        if isinstance(x, Value):
            atoms.append(builder.atom(x))
        elif is_number(x):
            numbers = True
            atoms.append(x)
        else:
            atoms.append(builder.atom(to_array(x)))
    if numbers:
        dtype = _number_dtype(atoms)
        atoms = [a if isinstance(a, Var | Literal) else _literal(a, dtype) for a in atoms]
    if op.variance is Variance.EQUAL and any(a.type.varying for a in atoms):
        if any(a.type.varying != atoms[0].type.varying for a in atoms):
            atoms = builder.agree(args, atoms)
        types = op.type(*operand_types(op, atoms), **params)
    else:
        types = op.type(*[a.type for a in atoms], **params)
    return builder.emit(op, atoms, params, types)


def make_varying(x: Any, varying: tuple[str, ...], numbers: bool = False) -> Any:
    """``x`` as a value that varies over ``varying``, too; ``numbers`` are no value of the user's."""
    if all(axis in x.type.varying for axis in varying):
        return x
    builder = state.builder
    if x.__class__ is Tracer and (builder is None or x.builder.level > builder.level):
        builder = x.builder
    assert builder is not None, "a value varies over a mesh axis inside of a trace only"
    return builder.make_varying(x, varying, numbers)


def is_number(x: Any) -> bool:
    """Whether ``x`` is a Python number; NumPy's scalars are arrays, though some derive from one."""
    return x.__class__ in _NUMBERS or (isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic))


_NUMBERS = frozenset({bool, int, float, complex})


def _number_dtype(operands: Sequence[Any]) -> dtypes.DType:
    for x in reversed(operands):
        if not is_number(x):
            return x.type.dtype  # type: ignore[no-any-return]
    return dtypes.promote(*(dtypes.of_python_scalar(x) for x in operands))[0]


def _literal(value: Any, dtype: dtypes.DType) -> Literal:
    return Literal(python_number(np.asarray(value, dtype)), TensorType((), dtype, True))


def python_number(scalar: Any) -> bool | int | float | complex:
    """The Python number equal to a rank-0 array."""
    kind = scalar.dtype.kind
    return scalar.item() if kind in "biufc" else float(scalar)  # type: ignore[no-any-return]


def _compute(op: Op, args: Sequence[Any], params: Params) -> Any:
    operands: list[Any] = [x if is_number(x) else to_array(x) for x in args]
    if not all(x.__class__ is Array for x in operands):
        dtype = _number_dtype(operands)
        operands = [
            x if x.__class__ is Array else Array(np.asarray(x, dtype), TensorType((), dtype, True)) for x in operands
        ]
    types = op.type(*[x.type for x in operands], **params)
    if state.watch is not None:
        found = state.watch(op, operands, types, params)
        if found is not None:
            return found
    try:
        with np.errstate(all="ignore"):
            if _any_unreduced(operands, types):
                assert _with_summands is not None and _left_open is not None
                explicit = any(x.type.sharding is not None for x in operands)
                if explicit and op.structure is not Structure.DEVICE:
                    return _left_open(op, operands, params)
                several = types.__class__ is tuple
                found = _with_summands(_namespace, op, operands, types if several else (types,), params)
                outs = found if several else found[0]
            else:
                outs = op.evaluate(_namespace, *[x.data for x in operands], **params)
    except MemoryError as error:
        out_of_memory(error)
    except (ValueError, OverflowError):
        refuse_impossible(op.name, types if isinstance(types, tuple) else (types,))
        raise
    for x in operands:
        if x._sharding is not None:
            return _placed(op, operands, outs, types, params)
    if current_mesh.get() is not None:
        return _placed(op, operands, outs, types, params)
    if types.__class__ is tuple:
        return tuple(Array(np.asarray(out), t) for out, t in zip(outs, types, strict=True))
    return Array(np.asarray(outs), types)  # type: ignore[arg-type]


def _any_unreduced(operands: Sequence[Array], types: Any) -> bool:
    """Whether an operand or a result is a partial sum."""
    for x in operands:
        if x.type.unreduced:
            return True
    return any(t.unreduced for t in types) if types.__class__ is tuple else bool(types.unreduced)


def computed(op: Op, *data: Any, **params: Any) -> Any:
    """What an op makes of contents, whatever is being traced."""
    with np.errstate(all="ignore"):
        return op.evaluate(_namespace, *data, **params)


def _placed(op: Op, operands: Sequence[Array], outs: Any, types: Any, params: Params) -> Any:
    """The results of an op on arrays that were put somewhere, or that is computed while a mesh is current."""
    assert _places is not None
    several = types.__class__ is tuple
    found = (outs, types) if several else ((outs,), (types,))
    places = _places(op, operands, found[1], params)
    arrays = [Array(np.asarray(x), t, place) for x, t, place in zip(*found, places, strict=True)]
    return tuple(arrays) if several else arrays[0]


def to_array(x: Any) -> Value:
    """``x`` as a value: NumPy arrays, Python numbers and nested lists become arrays at the width in force.

    Arrays do not change, so what a NumPy array holds is copied: once per trace, however often the trace uses it.
    """
    if isinstance(x, Value):
        return x
    if state.builder is not None and isinstance(x, np.ndarray):
        seen = state.builder.copied
        if id(x) not in seen:
            seen[id(x)] = (x, _copied(x))
        return seen[id(x)][1]
    return _copied(x)


_LARGE = 1e38  # numbers beyond may be infinite in a narrower dtype


def _copied(x: Any) -> Array:
    if is_number(x):
        dtype, weak = dtypes.of_python_scalar(x)
        try:
            if abs(x) > _LARGE:
                with np.errstate(over="ignore"):
                    return Array(np.asarray(x, dtype), TensorType((), dtype, weak))
            return Array(np.asarray(x, dtype), TensorType((), dtype, weak))
        except OverflowError:
            raise out_of_range(x, dtype) from None
    try:
        data = np.asarray(x)
    except ValueError:
        raise ragged() from None
    if not dtypes.is_supported(data.dtype):
        raise ShapeError(
            f"A value of type {type(x).__name__} with dtype {data.dtype} is not an array of numbers.",
            where=here(),
            why=f"arrays hold {', '.join(dtypes.SHORT_NAMES)}",
            fix="pass an array of numbers, or mark the argument static: mw.jit(f, static_argnums=…)",
        )
    kept = dtypes.canonical(data.dtype)
    if kept != data.dtype:
        with np.errstate(over="ignore"):
            data = data.astype(kept)
    elif data is x or data.base is not None:
        data = data.copy()
    weak = getattr(x, "weak_type", False) is True  # of JAX's arrays
    return Array(data, TensorType(data.shape, data.dtype, weak))


def ragged() -> ShapeError:
    """The error for lists in lists that are not one array."""
    return ShapeError(
        "A list whose rows differ in length is not one array.",
        where=here(),
        why="all rows at one depth become one dim, so they have one length",
        fix="pad the rows to one length, or keep a list of arrays: [mnp.array(row) for row in rows]",
    )


def out_of_range(x: int, dtype: dtypes.DType) -> ShapeError:
    """The error for a Python integer that a dtype does not have."""
    limits = dtypes.integer_limits(dtype)
    return ShapeError(
        f"The Python integer {x if abs(x) < 10**30 else f'of {x.bit_length()} bits'} is not a number of {dtype.name}.",
        where=here(),
        why=f"{dtype.name} holds {limits.min} to {limits.max}",
        fix="a float: mnp.array(float(n)), or a wider dtype; 64-bit ones need mw.config.update('enable_x64', True)",
    )


def type_of(x: Any) -> TensorType:
    """The type of a value, array or number."""
    return to_array(x).type


@contextmanager
def building(builder: Builder | None) -> Iterator[None]:
    """Make ``builder`` the one ops are added to."""
    before, state.builder = state.builder, builder
    source, state.source = state.source, None
    try:
        yield
    finally:
        state.builder, state.source = before, source


@contextmanager
def at_source(source: Source | None) -> Iterator[None]:
    """Give equations added here the line of the one they are made from."""
    before, state.source = state.source, source or state.source
    try:
        yield
    finally:
        state.source = before


def trace(
    function: Callable[..., Sequence[Any]],
    types: Sequence[TensorType],
    known: Sequence[Value] | None = None,
    floor: tuple[str, ...] = (),
) -> tuple[Program, list[Value]]:
    """The program of ``function`` on values of ``types``, and the outside values that became its leading inputs.

    With ``known`` (the actual arguments), Python may branch on traced values: they are computed when asked for.
    Outside values come in as varying over the mesh axes ``floor`` at least.
    """
    builder = Builder(state.builder, floor)
    try:
        tracers = [builder.input(t) for t in types]
        if known is not None:
            builder.known = {t.variable: x for t, x in zip(tracers, known, strict=True)}
        with building(builder):
            outputs = function(*tracers)
            return builder.finish([to_array(x) for x in outputs])
    finally:
        builder.closed = True
        if builder.parent is None:
            forget_frames()


def close(program: Program, captured: Sequence[Value]) -> Program:
    """The program with its captured arrays bound as constants."""
    constants = tuple(
        (var, x._rows if x.type.unreduced else x.data)  # type: ignore[attr-defined]
        for var, x in zip(program.inputs, captured, strict=False)
    )
    return Program(program.inputs[len(captured) :], program.eqns, program.outputs, constants)


def run(program: Program, args: Sequence[Any]) -> list[Value]:
    """Apply a program's equations to ``args``, in the trace going on or by computing."""
    env: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    for var, data in program.constants:
        env[var] = Array(data, var.type)
    for eqn in program.eqns:
        with at_source(eqn.source):
            outs = apply(eqn.op, [read(env, a) for a in eqn.inputs], eqn.params)
        write(env, eqn, outs)
    return [read(env, a) for a in program.outputs]


def read(env: dict[Atom, Any], atom: Atom) -> Any:
    """The value of an atom while walking a program."""
    if atom.__class__ is Literal:
        return Array(np.asarray(atom.value, atom.type.dtype), atom.type)
    return env[atom]


def write(env: dict[Atom, Any], eqn: Eqn, outs: Any) -> None:
    """Bind the outputs of an equation to what ``apply`` returned."""
    if outs.__class__ is tuple or outs.__class__ is list:
        env.update(zip(eqn.outputs, outs, strict=True))
    else:
        env[eqn.outputs[0]] = outs


def concrete(tracer: Tracer) -> Any:
    """The contents of a traced value where they follow from known ones, else None."""
    builder = tracer.builder
    if builder.known is None or builder.closed:
        return None
    needed: set[Var] = {tracer.variable}
    slice_: list[Eqn] = []
    for eqn in reversed(builder.eqns):
        if any(v in needed for v in eqn.outputs):
            slice_.append(eqn)
            needed.update(a for a in eqn.inputs if isinstance(a, Var))
    env: dict[Atom, Any] = {}
    env.update(builder.known)
    env.update(builder.captured.values())
    for var, value in list(env.items()):
        if isinstance(value, Tracer):
            if var not in needed:
                continue
            data = concrete(value)
            if data is None:
                return None
            env[var] = Array(data, value.type)
    with building(None):
        for eqn in reversed(slice_):
            write(env, eqn, apply(eqn.op, [read(env, a) for a in eqn.inputs], eqn.params))
    return env[tracer.variable].data


def leaked(x: Tracer) -> TracerError:
    """The error for a tracer used after its trace ended."""
    made = next((eqn for eqn in x.builder.eqns if x.variable in eqn.outputs), None)
    origin = f"\nit was made at {made.source.show()}" if made and made.source else ""
    return TracerError(
        f"A traced value {x.type} is used after the function it belongs to has returned.",
        where=here(),
        why="inside jit, grad, vmap or scan a value stands for many runs and has no contents of its own;"
        f" it was kept in a global, an attribute or a closure{origin}",
        fix="return the value from the function, and use what the call returns; give it to a kernel as an operand",
    )
