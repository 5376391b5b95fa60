"""Loops and branches on traced values: scan, while_loop, fori_loop, cond, switch, map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api import direct
from meshwright.arrays.static import static_flag, static_int, static_size
from meshwright.arrays.tracing import TracedFunction, check_function, leaf_value, trace_flat
from meshwright.core import dtypes, tree
from meshwright.core.current import current_engine
from meshwright.core.program import Literal
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, make_varying, run, state
from meshwright.core.types import TensorType, union
from meshwright.errors import MeshwrightError, ShapeError, ShardingError, TreeError, VarianceError
from meshwright.ops.basic import convert
from meshwright.ops.elementwise import ne
from meshwright.transform.regions import control
from meshwright.transform.regions import region as regions
from meshwright.transform.regions import scan as scan_op

Function = Callable[..., Any]


def _values(x: Any, what: str) -> tuple[list[Value], tree.TreeDef]:
    leaves, structure = tree.flatten(x)
    return [leaf_value(leaf, what) for leaf in leaves], structure


def _trace_on(
    function: Function, structures: Sequence[tree.TreeDef], types: Sequence[TensorType], floor: tuple[str, ...] = ()
) -> TracedFunction:
    """Trace a function of several trees."""
    sizes = [s.num_leaves for s in structures]

    def split(*leaves: Any) -> Any:
        parts = regions.cut(leaves, *sizes)[: len(sizes)]
        return function(*(tree.unflatten(s, part) for s, part in zip(structures, parts, strict=True)))

    in_tree = tree.structure((tuple(range(sum(sizes))), {}))
    return trace_flat(split, in_tree, types, floor=floor)


def _carry_type(value: TensorType, result: TensorType) -> TensorType:
    """A weakly typed start (a Python number) takes the type that the loop gives it, and a start that is the same on
    all devices varies as what becomes of it."""
    varying = union((value.varying, result.varying))
    if value.weak and value.shape == result.shape and _takes(result, value):
        value = result
    return value if value.varying == varying else value.with_(varying=varying)


def _takes(wanted: TensorType, given: TensorType) -> bool:
    """Whether a Python number has its value in another type as well: an integer as a float, and no float as an
    integer."""
    return dtypes.promote((given.dtype, given.weak), (wanted.dtype, wanted.weak))[0] == wanted.dtype


def _widened_carry(
    what: str, init: list[Value], structure: tree.TreeDef, traced: Callable[[list[TensorType]], TracedFunction]
) -> tuple[list[Value], TracedFunction]:
    """Trace a loop's body on the carry's types, widening Python numbers to what the body makes of them."""
    types = [x.type for x in init]
    found = traced(types)
    n = len(types)
    while True:  # what varies may come to meet, step by step, all that is carried
        wider = [_carry_type(t, r) for t, r in zip(types, found.program.out_types[:n], strict=False)]
        stable = len(wider) != n or all(t.varying == w.varying for t, w in zip(types, wider, strict=True))
        if len(wider) == n and wider != types:
            types = wider
            found = traced(types)
        if stable:
            break
    _check_carry(what, structure, types, found)
    return [regions.as_type(x, t) for x, t in zip(init, types, strict=True)], found


def _check_carry(what: str, structure: tree.TreeDef, types: list[TensorType], found: TracedFunction) -> None:
    outs = found.program.out_types[: len(types)]
    names = tree.path_names(tree.unflatten(structure, range(len(types))))
    for name, before, after in zip(names, types, outs, strict=False):
        if before.shape != after.shape or before.dtype != after.dtype:
            raise ShapeError(
                f"{what} changes the type of its carry{' at ' + name if name else ''}: "
                f"it takes {before} and returns {after}.",
                where=here(),
                why="every step must return a carry of the type it was given",
                fix=_carry_fix(before, after),
            )
        if before.sharding is not after.sharding:
            raise ShardingError(
                f"{what} changes the layout of its carry{' at ' + name if name else ''}: "
                f"it takes {before} and returns {after}.",
                where=here(),
                why="every step must return a carry of the type it was given, and the layout over Explicit axes is "
                "part of it",
                fix=f"start from mw.reshard(carry, {_spec(after)}), or return mw.reshard(carry, {_spec(before)})",
            )


def _spec(t: TensorType) -> str:
    from meshwright.sharding.explicit import spec_of  # no program without a mesh needs to load it

    return f"mw.{spec_of(t)!r}"


def _check_rows(rows: list[Value]) -> None:
    """A loop takes one row after the other: over Explicit axes, which must not split the rows among devices."""
    for x in rows:
        if x.type.sharding is not None and x.type.sharding.dims[0].axes:
            whole = x.type.row().stack(x.shape[0])
            raise ShardingError(
                f"scan cannot take the rows of {x.type}.",
                where=here(),
                why="dim 0 is split over devices, and every step needs its row on all of them",
                fix=f"mw.reshard(xs, {_spec(whole)})",
            )


def _carry_fix(before: TensorType, after: TensorType) -> str:
    if before.shape == after.shape:
        return f"carry.astype('{before.dtype.name}') in the body, or start from a carry of dtype {after.dtype.name}"
    return f"start from a carry of shape {after.shape}, or return one of shape {before.shape}"


def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Run ``carry, y = f(carry, x)`` over the rows of ``xs`` and return the last carry and the stacked ys.

    >>> import meshwright.numpy as mnp
    >>> total, sums = scan(lambda c, x: (c + x, c + x), 0.0, mnp.array([1.0, 2.0, 3.0]))
    >>> float(total), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    check_function(f, "scan", "lax.scan(f, init, xs), where carry, y = f(carry, x)")
    rows, xs_tree = _values(xs, "a scanned array")
    steps = _scan_length(rows, length)
    reverse = static_flag(reverse, "reverse of lax.scan")
    _check_unroll("scan", unroll)
    if direct.state.place is not None or (_at_once() and steps):
        return direct.rows(f, init, xs, steps, reverse)
    start, carry_tree = _values(init, "the carry of scan")
    _check_rows(rows)
    row_types = [x.type.row() for x in rows]

    def traced(types: list[TensorType]) -> TracedFunction:
        found = _trace_on(f, [carry_tree, xs_tree], [*types, *row_types])
        result = tree.unflatten(found.out_tree, range(found.out_tree.num_leaves))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                "The function given to scan must return a pair (carry, y).",
                where=here(),
                why=f"it returned {'a tuple of ' + str(len(result)) if isinstance(result, tuple) else 'one value'}",
                fix="return carry, None",
            )
        if tree.structure(result[0]) != carry_tree:
            raise TreeError(
                "The function given to scan returns a carry of another structure than it takes.",
                where=here(),
                why=f"it takes {carry_tree} and returns {tree.structure(result[0])}",
                fix="return a carry with the same containers and keys as the initial one",
            )
        return found

    start, found = _widened_carry("The body of scan", start, carry_tree, traced)
    body = _weak_carry(found, [x.type for x in start])
    outs = scan_op.scan(
        *found.captured, *start, *rows,
        body=body, consts=len(found.captured), carry=len(start), length=steps, reverse=bool(reverse),
    )  # fmt: skip
    return tree.unflatten(found.out_tree, outs)  # type: ignore[no-any-return]


def _weak_carry(found: TracedFunction, types: list[TensorType]) -> Any:
    """The body with a carry exactly as weak as it is given."""
    program, n = found.program, len(types)
    if all(a is b for a, b in zip(program.out_types, types, strict=False)):
        return program

    def body(*args: Any) -> list[Any]:
        outs = run(program, args)
        return [regions.as_type(x, t) for x, t in zip(outs, types, strict=False)] + outs[n:]

    return regions.region(body, program.in_types)


def _check_unroll(name: str, unroll: Any) -> None:
    """How many steps are written out changes no result, and is no reason to take nonsense."""
    if not isinstance(unroll, bool) and static_int(unroll, f"unroll of {name}") < 1:
        raise ShapeError(
            f"unroll of {name} is {unroll}.", where=here(), why="it is a number of steps, 1 or more", fix="unroll=1"
        )


def _scan_length(rows: list[Value], length: int | None) -> int:
    length = None if length is None else static_size(length, "length of scan")
    sizes = {x.shape[0] if x.ndim else None for x in rows} | ({length} if length is not None else set())
    if len(sizes) != 1 or None in sizes:
        raise ShapeError(
            "scan needs one number of steps.",
            where=here(),
            why=f"the scanned arrays are {', '.join(str(x.type) for x in rows) or 'none'}"
            f"{f' and length is {length}' if length is not None else ''}",
            fix="pass arrays with the same number of rows, or length=… without arrays",
        )
    return int(next(iter(sizes)))  # type: ignore[arg-type]


def _at_once() -> bool:
    """Whether loops and branches run as Python's do: under ``disable_jit``, of values that are known."""
    return bool(current_engine.disabled) and state.builder is None


def while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """Run ``val = body_fun(val)`` while ``cond_fun(val)``.

    >>> int(while_loop(lambda n: n < 100, lambda n: n * 2, 1))
    128
    """
    for function in (cond_fun, body_fun):
        check_function(function, "while_loop", "lax.while_loop(lambda v: v < 9, lambda v: v + 1, 0)")
    if direct.state.place is not None or _at_once():
        return direct.repeat(cond_fun, body_fun, init_val, "while_loop")
    start, structure = _values(init_val, "the carry of while_loop")

    def traced(types: list[TensorType]) -> TracedFunction:
        found = _trace_on(body_fun, [structure], types, decided)
        if found.out_tree != structure:
            raise TreeError(
                "The body of while_loop returns another structure than it takes.",
                where=here(),
                why=f"it takes {structure} and returns {found.out_tree}",
                fix="return a value with the same containers and keys as the initial one",
            )
        return found

    decided: tuple[str, ...] = ()  # where devices decide differently when to stop, all that the loop works on varies
    while True:
        start, body = _widened_carry("The body of while_loop", start, structure, traced)
        test = _trace_on(cond_fun, [structure], [x.type for x in start], decided)
        found = union(t.varying for t in test.program.out_types)
        if set(found) <= set(decided):
            break
        decided = union((decided, found))
        start = [make_varying(x, union((x.type.varying, decided))) for x in start]
    outs = control.while_(
        *test.captured, *body.captured, *start,
        cond=test.program, body=_weak_carry(body, [x.type for x in start]),
        cond_consts=len(test.captured), body_consts=len(body.captured),
    )  # fmt: skip
    return tree.unflatten(structure, outs)


def fori_loop(lower: Any, upper: Any, body_fun: Function, init_val: Any, *, unroll: int | bool | None = None) -> Any:
    """Run ``val = body_fun(i, val)`` for i from ``lower`` to ``upper``; bounds known while tracing make it a scan.

    >>> int(fori_loop(0, 5, lambda i, total: total + i, 0))
    10
    """
    check_function(body_fun, "fori_loop", "lax.fori_loop(0, n, lambda i, v: v + i, 0)")
    if unroll is not None:
        _check_unroll("fori_loop", unroll)
    low, high = _bound(lower, "lower"), _bound(upper, "upper")
    if direct.state.place is not None or _at_once():
        return direct.count(lower, upper, body_fun, init_val)
    if _static_int(lower) and _static_int(upper):
        first, steps = int(lower), max(int(upper) - int(lower), 0)

        def step(carry: Any, _: None) -> tuple[Any, None]:
            i, val = carry
            return (i + 1, body_fun(i, val)), None

        start = Array(_int_data(first), TensorType((), dtypes.default_int(), True))  # which takes any carry's dtype
        return scan(step, (start, init_val), None, length=steps)[0][1]
    dtype = dtypes.promote((low.dtype, low.type.weak), (high.dtype, high.type.weak))[0]
    low = convert(low, dtype=dtype, weak=low.type.weak and low.dtype == dtype)
    high = convert(high, dtype=dtype, weak=False)
    low = make_varying(low, union((low.type.varying, high.type.varying)))

    def body(carry: Any) -> Any:
        i, val = carry
        return i + 1, body_fun(i, val)

    return while_loop(lambda carry: carry[0] < high, body, (low, init_val))[1]


def _bound(x: Any, name: str) -> Value:
    """A bound of ``fori_loop``."""
    found = leaf_value(x, f"the {name} bound of fori_loop")
    if found.shape != () or not dtypes.is_integer(found.dtype):
        raise ShapeError(
            f"The {name} bound of fori_loop is {found.type}.",
            where=here(),
            why="it must be one integer",
            fix=f"{name}.astype('int32')",
        )
    return found


def _static_int(x: Any) -> bool:
    return isinstance(x, int) or (isinstance(x, Array) and x.ndim == 0) or type(x).__module__ == "numpy"


def _int_data(value: int) -> Any:
    return dtypes.default_int().type(value)


def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """``branches[index](*operands)``, with the index clamped into range.

    >>> float(switch(1, [lambda x: x, lambda x: -x], 2.0))
    -2.0
    """
    for branch in branches if isinstance(branches, list | tuple) else [branches]:
        check_function(branch, "switch", "lax.switch(i, [f, g], x)")
    if not branches:
        raise MeshwrightError(
            "switch needs at least one branch.", where=here(), why="the list is empty", fix="lax.switch(i, [f, g], x)"
        )
    choice = leaf_value(index, "the index of switch")
    if choice.shape != () or not dtypes.is_integer(choice.dtype):
        raise ShapeError(
            f"The index of switch is {choice.type}.",
            where=here(),
            why="it must be one integer",
            fix="index.astype('int32'), or mw.vmap over an array of indices",
        )
    return _cond(convert(choice, dtype=dtypes.INT32, weak=False), branches, operands, "switch")


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """``true_fun(*operands)`` if ``pred`` else ``false_fun(*operands)``; only the branch taken is computed.

    >>> float(cond(True, lambda x: x + 1, lambda x: x - 1, 1.0))
    2.0
    """
    for branch in (true_fun, false_fun):
        check_function(branch, "cond", "lax.cond(pred, f, g, x)")
    test = leaf_value(pred, "the predicate of cond")
    if test.shape != ():
        raise ShapeError(
            f"The predicate of cond is {test.type}.",
            where=here(),
            why="it must be one bool",
            fix="mnp.where(pred, x, y) chooses element by element; pred.any() or pred.all() makes one bool",
        )
    if dtypes.is_complex(test.dtype):
        raise ShapeError(
            f"The predicate of cond is {test.type}.",
            where=here(),
            why="it is a bool, or a real number that holds where it is not 0",
            fix="lax.cond(z != 0, f, g, x)",
        )
    if test.dtype != dtypes.BOOL:
        test = ne(test, 0)
    return _cond(convert(test, dtype=dtypes.INT32, weak=False), [false_fun, true_fun], operands, "cond")


def _cond(index: Value, branches: Sequence[Function], operands: Sequence[Any], what: str) -> Any:
    if direct.state.place is not None or _at_once():
        return direct.choose(index, branches, operands, what)
    values, _ = _values(tuple(operands), f"an operand of {what}")
    decided = index.type.varying  # where devices take different branches, all that the branches work on varies
    values = [make_varying(x, union((x.type.varying, decided))) for x in values]
    types = [x.type for x in values]
    in_tree = tree.structure((tuple(operands), {}))
    traced = [trace_flat(branch, in_tree, types, floor=decided) for branch in branches]
    first = traced[0]
    for number, other in enumerate(traced[1:], 1):
        if other.out_tree != first.out_tree:
            raise TreeError(
                f"The branches of {what} return different structures.",
                where=here(),
                why=f"branch 0 returns {first.out_tree}, branch {number} returns {other.out_tree}",
                fix="return the same containers with the same keys from every branch",
            )
    out_types = _join_types(traced, what, decided)
    captured = list({id(x): x for t in traced for x in t.captured}.values())

    def fitted(t: TracedFunction) -> Any:
        def branch(*args: Any) -> list[Any]:
            at = {id(x): a for x, a in zip(captured, args, strict=False)}
            outs = run(t.program, [*(at[id(x)] for x in t.captured), *args[len(captured) :]])
            return [regions.as_type(x, wanted) for x, wanted in zip(outs, out_types, strict=True)]

        return regions.region(branch, [*(x.type for x in captured), *types])

    programs = tuple(fitted(t) for t in traced)
    control.refuse_meeting(what, index.type.varying, programs)  # the op does too, but does not know what it is called
    outs = control.cond(index, *captured, *values, branches=programs)
    return tree.unflatten(first.out_tree, outs)


def _join_types(traced: Sequence[TracedFunction], what: str, decided: tuple[str, ...]) -> list[TensorType]:
    """The type of each result: Python numbers take the dtype of the other branches, and a result varies as it does in
    any of them."""
    joined = []
    for n in range(len(traced[0].program.outputs)):
        found = [t.program.out_types[n] for t in traced]
        strong = next((t for t in found if not t.weak), found[0])
        if strong.weak:  # numbers alone: the widest
            strong = next((t for t in found if all(_takes(t, other) for other in found)), strong)
        for number, t in enumerate(found):
            if t.shape != strong.shape or (t.dtype != strong.dtype and not (t.weak and _takes(strong, t))):
                raise ShapeError(
                    f"The branches of {what} return different types.",
                    where=here(),
                    why=f"result {n} is {found[0]} in branch 0 and {found[number or 1]} in branch {number or 1}",
                    fix="convert with .astype(…) or reshape so that all branches agree",
                )
            if t.sharding is not strong.sharding:
                raise ShardingError(
                    f"The branches of {what} return different layouts.",
                    where=here(),
                    why=f"result {n} is {found[0]} in branch 0 and {found[number or 1]} in branch {number or 1}",
                    fix=f"mw.reshard(x, {_spec(strong)}) in the branches where it is another",
                )
        varying = union((decided, *(t.varying for t in found)))
        written = [t.program.outputs[n].type.varying for t in traced if not isinstance(t.program.outputs[n], Literal)]
        if len(set(written)) > 1 and state.manual is not None and not state.manual.automatic:
            raise VarianceError(
                f"The branches of {what} return values of different variance.",
                where=here(),
                why=f"result {n} is {' and '.join(t.short() for t in found)}",
                fix=f"lax.pbroadcast(x, {(varying[0] if len(varying) == 1 else varying)!r}) in the branch where it is "
                "the same on all devices",
            )
        joined.append(strong.with_(varying=varying))
    return joined


def map(f: Function, xs: Any, *, batch_size: int | None = None) -> Any:
    """``f`` applied to each row of ``xs``, one after the other.

    >>> import meshwright.numpy as mnp
    >>> map(lambda x: x * x, mnp.array([1.0, 2.0])).tolist()
    [1.0, 4.0]
    """
    check_function(f, "map", "lax.map(f, xs)")
    if batch_size is not None and static_int(batch_size, "batch_size of map") < 1:
        raise ShapeError(
            f"batch_size of map is {batch_size}.",
            where=here(),
            why="it is a number of rows, 1 or more",
            fix="leave it out",
        )
    return scan(lambda _, x: (None, f(x)), None, xs)[1]
