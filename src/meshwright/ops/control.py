"""Ops with regions: scan, while, cond. Their rules transform their regions, so they stand above ``transform``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.op import Cost, Linear, Linearity, No, Op, Types, Value, define_op
from meshwright.core.program import Atom, Params, Program
from meshwright.core.trace import Tracer, close, run, trace
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError, ShapeError
from meshwright.ops.basic import add, broadcast_in_dim, convert, move_dim, zeros
from meshwright.ops.elementwise import eq, le, select
from meshwright.ops.reduction import reduce_or
from meshwright.transform.batch import batch_program
from meshwright.transform.derivative import jvp_program, linearize_program
from meshwright.transform.transpose import transpose_program

Mask = tuple[bool, ...]
NO_FACTORS = No("propagation goes through its regions, not over it")


def region(function: Callable[..., Sequence[Any]], types: Sequence[TensorType]) -> Program:
    """The program of ``function`` for use as a region: what it captures, if anything, is constant."""
    return close(*trace(function, types))


def region_with(function: Callable[..., tuple[Sequence[Any], Any]], types: Sequence[TensorType]) -> tuple[Program, Any]:
    """The region of a function that returns its outputs and something to know about them."""
    facts = []

    def outputs_only(*args: Any) -> Sequence[Any]:
        outputs, fact = function(*args)
        facts.append(fact)
        return outputs

    return region(outputs_only, types), facts[0]


def program_cost(program: Program) -> Cost:
    """The work of a whole program, region ops included."""
    costs = [e.op.cost([a.type for a in e.inputs], [v.type for v in e.outputs], e.params) for e in program.eqns]
    return Cost(sum(c.flops for c in costs), sum(c.nbytes for c in costs))


def instantiate(value: Value | None, type: TensorType) -> Value:
    """A value where None stands for zero."""
    return zeros(type) if value is None else value


def as_type(value: Value, type: TensorType) -> Value:
    """``value`` with the weakness of ``type``, so that a loop's carry keeps its type."""
    return value if value.type is type else convert(value, dtype=type.dtype, weak=type.weak)


def pick(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The items that the mask marks."""
    return [item for item, keep in zip(items, mask, strict=True) if keep]


def spread(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The items in the places that the mask marks, None elsewhere."""
    rest = iter(items)
    return [next(rest) if keep else None for keep in mask]


def present(values: Sequence[Any]) -> Mask:
    return tuple(v is not None for v in values)


def cut(items: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Consecutive parts of the given sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(items[start : start + size]))
        start += size
    return [*parts, list(items[start:])]


def fixpoint(initial: Mask, step: Callable[[Mask], tuple[Mask, Any]]) -> tuple[Mask, Any]:
    """The least mask above ``initial`` that ``step`` does not grow, and what ``step`` returned with it."""
    mask = initial
    while True:
        grown, result = step(mask)
        joined = tuple(a or b for a, b in zip(mask, grown, strict=True))
        if joined == mask:
            return mask, result
        mask = joined


def depends(program: Program, mask: Sequence[bool]) -> Mask:
    """Which outputs depend on the inputs that the mask marks."""
    found: set[Atom] = set(pick(program.inputs, mask))
    for eqn in program.eqns:
        if not found.isdisjoint(eqn.inputs):
            found.update(eqn.outputs)
    return tuple(a in found for a in program.outputs)


def same_type(a: TensorType, b: TensorType) -> bool:
    """Equal but for weakness."""
    return a.shape == b.shape and a.dtype == b.dtype


# scan


def _slice_type(t: TensorType) -> TensorType:
    return t.with_(shape=t.shape[1:])


def _stack_type(t: TensorType, length: int) -> TensorType:
    return t.with_(shape=(length, *t.shape))


def _scan_type(
    *types: TensorType, body: Program, consts: int, carry: int, length: int, reverse: bool
) -> tuple[TensorType, ...]:
    const_types, carry_types, xs_types = cut(types, consts, carry)
    for x in xs_types:
        if x.ndim == 0 or x.shape[0] != length:
            raise ShapeError(
                f"scan over {length} steps cannot take {x.short()}.",
                why="each scanned array has the number of steps as its first dim",
                fix=f"pass arrays with {length} rows, or length=…",
            )
    expected = [*const_types, *carry_types, *map(_slice_type, xs_types)]
    if not _same_types(body.in_types, expected) or not _same_types(body.out_types[:carry], carry_types):
        raise ShapeError(
            "The body of a scan does not fit its operands.",
            why=f"it takes ({_show(body.in_types)}) and returns ({_show(body.out_types)}), "
            f"for operands ({_show(expected)}) of which {carry} are carried",
            fix="return a carry of the types it came with",
        )
    return body.out_types[:carry] + tuple(_stack_type(t, length) for t in body.out_types[carry:])


def _same_types(left: Sequence[TensorType], right: Sequence[TensorType]) -> bool:
    return len(left) == len(right) and all(map(same_type, left, right))


def _show(types: Sequence[TensorType]) -> str:
    return ", ".join(t.short() for t in types)


def _scan_evaluate(
    xp: Any, *args: Any, body: Program, consts: int, carry: int, length: int, reverse: bool
) -> tuple[Any, ...]:
    step = xp.function(body)
    const_values, state, xs = cut(args, consts, carry)
    ys = [xp.empty((length, *t.shape), dtype=t.dtype) for t in body.out_types[carry:]]
    for i in reversed(range(length)) if reverse else range(length):
        outs = step(*const_values, *state, *[x[i] for x in xs])
        state = outs[:carry]
        for y, value in zip(ys, outs[carry:], strict=True):
            y[i] = value
    return (*state, *ys)


def _scan_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """One scan that carries values and tangents side by side."""
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    types = cut(body.in_types, n_consts, n_carry)
    const_ts, init_ts, xs_ts = cut(tangents, n_consts, n_carry)
    const_mask, xs_mask = present(const_ts), present(xs_ts)

    def with_carry(carry_mask: Mask) -> tuple[Mask, tuple[Program, Mask]]:
        masks = (const_mask, carry_mask, xs_mask)

        def pushed(*args: Any) -> tuple[list[Any], tuple[Mask, Mask]]:
            values, ts = [], []
            rest: list[Any] = list(args)
            for group, mask in zip(types, masks, strict=True):
                part, active, rest = cut(rest, len(group), sum(mask))
                values += part
                ts += spread(active, mask)
            outs, out_ts = jvp_program(body, values, ts)
            carried = [as_type(instantiate(t, c), c) for t, c in zip(out_ts[:n_carry], types[1], strict=True)]
            ys_mask = present(out_ts[n_carry:])
            kept = pick(carried, carry_mask), pick(out_ts[n_carry:], ys_mask)
            return outs[:n_carry] + kept[0] + outs[n_carry:] + kept[1], (present(out_ts[:n_carry]), ys_mask)

        in_types = [t for group, mask in zip(types, masks, strict=True) for t in [*group, *pick(group, mask)]]
        program, (grown, ys_mask) = region_with(pushed, in_types)
        return grown, (program, ys_mask)

    carry_mask, (program, ys_mask) = fixpoint(present(init_ts), with_carry)
    consts, init, xs = cut(primals, n_consts, n_carry)
    active_init = [instantiate(t, x.type) for t, x in zip(init_ts, init, strict=True)]
    outs = op(
        *consts, *pick(const_ts, const_mask), *init, *pick(active_init, carry_mask), *xs, *pick(xs_ts, xs_mask),
        body=program, consts=n_consts + sum(const_mask), carry=n_carry + sum(carry_mask),
        length=params["length"], reverse=params["reverse"],
    )  # fmt: skip
    carry, carry_ts, ys, ys_ts = cut(outs, n_carry, sum(carry_mask), len(body.outputs) - n_carry)
    return carry + ys, spread(carry_ts, carry_mask) + spread(ys_ts, ys_mask)


def _scan_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """A forward scan that also returns what the derivative needs of each step, and a linear scan over that.

    What the derivative needs of the loop's constants and of the scanned arrays is not copied step by step.
    """
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    types = cut(body.in_types, n_consts, n_carry)
    const_ts, init_ts, xs_ts = cut(tangents, n_consts, n_carry)
    const_mask, xs_mask = present(const_ts), present(xs_ts)

    def with_carry(carry_mask: Mask) -> tuple[Mask, Any]:
        def forward(*args: Any) -> tuple[list[Any], Any]:
            outs, linear = linearize_program(body, args, (*const_mask, *carry_mask, *xs_mask))
            position = {arg.variable: n for n, arg in enumerate(args)}
            found: list[tuple[str, Any]] = []  # where the linear scan gets each residual from
            saved: list[Any] = []
            for r in linear.residuals:
                n = position.get(r.variable, -1) if isinstance(r, Tracer) else -1
                if 0 <= n < n_consts:
                    found.append(("const", n))
                elif n >= n_consts + n_carry:
                    found.append(("xs", n - n_consts - n_carry))
                else:
                    found.append(("saved", len(saved)))
                    saved.append(r)
            return outs + saved, (linear, found)

        program, (linear, found) = region_with(forward, body.in_types)
        return linear.nonzero[:n_carry], (program, linear, found)

    carry_mask, (program, linear, found) = fixpoint(present(init_ts), with_carry)
    outs = op(*primals, **{**params, "body": program})
    carry, ys, saved = cut(outs, n_carry, len(body.outputs) - n_carry)

    sources = {"const": primals[:n_consts], "xs": primals[n_consts + n_carry :], "saved": saved}
    fixed = [(place, n) for place, n in found if place == "const"]
    stepped = [(place, n) for place, n in found if place != "const"]
    ys_mask = linear.nonzero[n_carry:]
    active_init = [instantiate(t, x.type) for t, x in zip(init_ts, primals[n_consts:], strict=False)]

    def linear_step(*args: Any) -> list[Any]:
        parts = cut(args, len(fixed), sum(const_mask), sum(carry_mask), len(stepped))
        residual = {**dict(zip(fixed, parts[0], strict=True)), **dict(zip(stepped, parts[3], strict=True))}
        nonzero = run(linear.program, [*(residual[f] for f in found), *parts[1], *parts[2], *parts[4]])
        out_ts = spread(nonzero, linear.nonzero)
        carried = [as_type(instantiate(t, c), c) for t, c in zip(out_ts[:n_carry], types[1], strict=True)]
        return pick(carried, carry_mask) + pick(out_ts[n_carry:], ys_mask)

    stepped_values = [sources[place][n] for place, n in stepped]
    in_types = [
        *(sources[place][n].type for place, n in fixed), *pick(types[0], const_mask), *pick(types[1], carry_mask),
        *(_slice_type(x.type) for x in stepped_values), *pick(types[2], xs_mask),
    ]  # fmt: skip
    out_ts = op(
        *(sources[place][n] for place, n in fixed), *pick(const_ts, const_mask),
        *pick(active_init, carry_mask), *stepped_values, *pick(xs_ts, xs_mask),
        body=region(linear_step, in_types), consts=len(fixed) + sum(const_mask), carry=sum(carry_mask),
        length=params["length"], reverse=params["reverse"],
    )  # fmt: skip
    carry_ts, ys_ts = cut(out_ts, sum(carry_mask))
    return carry + ys, spread(carry_ts, carry_mask) + spread(ys_ts, ys_mask)


def _scan_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """The scan backward: it carries the cotangents of the carry and sums those of the linear constants."""
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    consts, init, xs = cut(inputs, n_consts, n_carry)
    types = cut(body.in_types, n_consts, n_carry)
    linear = [tuple(isinstance(x, Linear) for x in group) for group in (consts, init, xs)]
    # A carry may start from a known value, which is zero if the scan is linear, and become linear on the way.
    linear[1], _ = fixpoint(
        linear[1], lambda carry_mask: (depends(body, (*linear[0], *carry_mask, *linear[2]))[:n_carry], None)
    )
    if not all(linear[1]):
        raise DifferentiationError(
            "This scan cannot be transposed.",
            why="it carries a value that does not depend linearly on the transposed inputs",
            fix="take the gradient with mw.grad or mw.vjp, which separate the two",
        )
    fixed = [x for x, is_linear in zip(consts, linear[0], strict=True) if not is_linear]
    stepped = [x for x, is_linear in zip(xs, linear[2], strict=True) if not is_linear]
    ct_carry, ct_ys = cut(cts, n_carry)
    ys_mask = present(ct_ys)
    summed = pick(types[0], linear[0])

    def backward(*args: Any) -> list[Any]:
        fixed_, sums, ct_state, stepped_, ct_y = cut(args, len(fixed), len(summed), n_carry, len(stepped))
        values = [*fill(fixed_, linear[0]), *[None] * n_carry, *fill(stepped_, linear[2])]
        ct_in = transpose_program(body, sum(linear, ()), values, [*ct_state, *spread(ct_y, ys_mask)])
        ct_consts, ct_init, ct_xs = cut(ct_in, n_consts, n_carry)
        added = [s if ct is None else as_type(add(s, ct), s.type)
                 for s, ct in zip(sums, pick(ct_consts, linear[0]), strict=True)]  # fmt: skip
        carried = [as_type(instantiate(ct, t), t) for ct, t in zip(ct_init, types[1], strict=True)]
        stacked = [instantiate(ct, t) for ct, t in zip(pick(ct_xs, linear[2]), pick(types[2], linear[2]), strict=True)]
        return added + carried + stacked

    starts = [zeros(t) for t in summed]
    starts += [as_type(instantiate(ct, t), t) for ct, t in zip(ct_carry, types[1], strict=True)]
    stepped_values = [*stepped, *pick(ct_ys, ys_mask)]
    in_types = [*(x.type for x in fixed), *(x.type for x in starts), *(_slice_type(x.type) for x in stepped_values)]
    outs = op(
        *fixed, *starts, *stepped_values,
        body=region(backward, in_types), consts=len(fixed), carry=len(starts),
        length=params["length"], reverse=not params["reverse"],
    )  # fmt: skip
    ct_consts, ct_init, ct_xs = cut(outs, len(summed), n_carry)
    started = [ct if isinstance(x, Linear) else None for ct, x in zip(ct_init, init, strict=True)]
    return spread(ct_consts, linear[0]) + started + spread(ct_xs, linear[2])


def fill(values: Sequence[Any], linear: Mask) -> list[Any]:
    """The values in the places that are not linear."""
    return spread(values, [not is_linear for is_linear in linear])


def broadcast_batch(x: Value, is_batched: bool, size: int) -> Value:
    """``x`` with a batch dim in front, repeated if it has none."""
    if is_batched:
        return x
    return broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))


def batch_type(t: TensorType, is_batched: bool, size: int) -> TensorType:
    return t.with_(shape=(size, *t.shape)) if is_batched else t


def _scan_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    consts, init, xs = cut(args, n_consts, n_carry)
    const_mask, init_mask, xs_mask = (tuple(part) for part in cut(batched, n_consts, n_carry))

    def with_carry(carry_mask: Mask) -> tuple[Mask, tuple[Program, Mask]]:
        flags = (*const_mask, *carry_mask, *xs_mask)

        def step(*values: Any) -> tuple[list[Any], tuple[Mask, Mask]]:
            outs, out_flags = batch_program(body, size, values, flags)
            carried = [
                broadcast_batch(x, b, size) if wanted else x
                for x, b, wanted in zip(outs, out_flags, carry_mask, strict=False)
            ]
            return carried + outs[n_carry:], (tuple(out_flags[:n_carry]), tuple(out_flags[n_carry:]))

        program, (grown, ys_mask) = region_with(
            step, [batch_type(t, b, size) for t, b in zip(body.in_types, flags, strict=True)]
        )
        return grown, (program, ys_mask)

    carry_mask, (program, ys_mask) = fixpoint(init_mask, with_carry)
    start = [
        broadcast_batch(x, b, size) if wanted else x for x, b, wanted in zip(init, init_mask, carry_mask, strict=True)
    ]
    rows = [move_dim(x, 0, 1) if b else x for x, b in zip(xs, xs_mask, strict=True)]
    outs = op(*consts, *start, *rows, **{**params, "body": program})
    carry, ys = cut(outs, n_carry)
    return carry + [move_dim(y, 1, 0) if b else y for y, b in zip(ys, ys_mask, strict=True)], [*carry_mask, *ys_mask]


def _scan_cost(operands: Types, results: Types, params: Params) -> Cost:
    once = program_cost(params["body"])
    return Cost(params["length"] * once.flops, params["length"] * once.nbytes)


scan: Op = define_op(
    "scan",
    type=_scan_type,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=_scan_jvp,
    linearize=_scan_linearize,
    transpose=_scan_transpose,
    batch=_scan_batch,
    evaluate=_scan_evaluate,
    cost=_scan_cost,
    samples=lambda: [],
)

# while


def _while_type(
    *types: TensorType, cond: Program, body: Program, cond_consts: int, body_consts: int
) -> tuple[TensorType, ...]:
    carry = types[cond_consts + body_consts :]
    if len(cond.outputs) != 1 or cond.out_types[0].shape != () or cond.out_types[0].dtype != dtypes.BOOL:
        raise ShapeError(
            f"The condition of a while loop returns {_show(cond.out_types)}.",
            why="it must return one bool scalar",
            fix="return a comparison such as `i < n`",
        )
    if not _same_types(body.out_types, carry):
        raise ShapeError(
            "The body of a while loop does not return what it is given.",
            why=f"it takes ({_show(carry)}) and returns ({_show(body.out_types)})",
            fix="return a carry of the types it came with",
        )
    return body.out_types


def _while_evaluate(
    xp: Any, *args: Any, cond: Program, body: Program, cond_consts: int, body_consts: int
) -> tuple[Any, ...]:
    test, step = xp.function(cond), xp.function(body)
    for_cond, for_body, state = cut(args, cond_consts, body_consts)
    while test(*for_cond, *state)[0]:
        state = step(*for_body, *state)
    return tuple(state)


def _while_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """One loop over values and tangents; the condition looks at the values alone."""
    cond, body, n_cond, n_body = (params[k] for k in ("cond", "body", "cond_consts", "body_consts"))
    for_cond, for_body, init = cut(primals, n_cond, n_body)
    _, body_ts, init_ts = cut(tangents, n_cond, n_body)
    body_mask = present(body_ts)
    n = len(init)

    def with_carry(carry_mask: Mask) -> tuple[Mask, Program]:
        def pushed(*args: Any) -> tuple[list[Any], Mask]:
            consts, const_ts, state, state_ts = cut(args, n_body, sum(body_mask), n)
            ts = [*spread(const_ts, body_mask), *spread(state_ts, carry_mask)]
            outs, out_ts = jvp_program(body, [*consts, *state], ts)
            carried = [as_type(instantiate(t, x.type), x.type) for t, x in zip(out_ts, init, strict=True)]
            return outs + pick(carried, carry_mask), present(out_ts)

        types = [x.type for x in [*for_body, *pick(for_body, body_mask), *init, *pick(init, carry_mask)]]
        program, grown = region_with(pushed, types)
        return grown, program

    carry_mask, program = fixpoint(present(init_ts), with_carry)
    active_init = pick([instantiate(t, x.type) for t, x in zip(init_ts, init, strict=True)], carry_mask)
    test = region(
        lambda *args: run(cond, args[: n_cond + n]), [*cond.in_types, *(x.type for x in pick(init, carry_mask))]
    )
    outs = op(
        *for_cond, *for_body, *pick(body_ts, body_mask), *init, *active_init,
        cond=test, body=program, cond_consts=n_cond, body_consts=n_body + sum(body_mask),
    )  # fmt: skip
    values, out_ts = cut(outs, n)
    return values, spread(out_ts, carry_mask)


def _while_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """The number of steps is not known ahead, so the derivative runs the loop again rather than keep its steps."""
    return list(op(*primals, **params)), _while_jvp(op, primals, tangents, params)[1]


def _while_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """Loop until no example wants to go on; an example that is done keeps its values."""
    cond, body, n_cond, n_body = (params[k] for k in ("cond", "body", "cond_consts", "body_consts"))
    for_cond, for_body, init = cut(args, n_cond, n_body)
    cond_mask, body_mask, init_mask = (tuple(part) for part in cut(batched, n_cond, n_body))

    def types(consts: Sequence[TensorType], mask: Mask, carry_mask: Mask) -> list[TensorType]:
        carried = body.in_types[n_body:]
        return [batch_type(t, b, size) for t, b in zip([*consts, *carried], (*mask, *carry_mask), strict=True)]

    def with_carry(carry_mask: Mask) -> tuple[Mask, tuple[Program, Program, bool]]:
        def test(*values: Any) -> tuple[list[Any], bool]:
            outs, flags = batch_program(cond, size, values, (*cond_mask, *carry_mask))
            return [reduce_or(outs[0], axes=(0,)) if flags[0] else outs[0]], flags[0]

        cond_program, each_decides = region_with(test, types(cond.in_types[:n_cond], cond_mask, carry_mask))

        def step(*values: Any) -> tuple[list[Any], Mask]:
            cond_values, body_values, state = cut(values, n_cond, n_body)
            outs, flags = batch_program(body, size, [*body_values, *state], (*body_mask, *carry_mask))
            outs = [
                broadcast_batch(x, b, size) if wanted else x
                for x, b, wanted in zip(outs, flags, carry_mask, strict=True)
            ]
            if each_decides and all(carry_mask):
                going, _ = batch_program(cond, size, [*cond_values, *state], (*cond_mask, *carry_mask))
                outs = [_select_rows(going[0], new, old) for new, old in zip(outs, state, strict=True)]
            return outs, tuple(b or each_decides for b in flags)

        consts = [*cond.in_types[:n_cond], *body.in_types[:n_body]]
        program, grown = region_with(step, types(consts, (*cond_mask, *body_mask), carry_mask))
        return grown, (cond_program, program, each_decides)

    carry_mask, (cond_program, program, _) = fixpoint(init_mask, with_carry)
    start = [
        broadcast_batch(x, b, size) if wanted else x for x, b, wanted in zip(init, init_mask, carry_mask, strict=True)
    ]
    outs = op(
        *for_cond, *for_cond, *for_body, *start,
        cond=cond_program, body=program, cond_consts=n_cond, body_consts=n_cond + n_body,
    )  # fmt: skip
    return list(outs), list(carry_mask)


def _select_rows(pred: Value, on_true: Value, on_false: Value) -> Value:
    """``select`` by a predicate per row."""
    if pred.shape != on_true.shape:
        pred = broadcast_in_dim(pred, shape=on_true.shape, dims=(0,))
    return select(pred, on_true, on_false)


while_: Op = define_op(
    "while",
    type=_while_type,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=_while_jvp,
    linearize=_while_linearize,
    transpose=No(
        "a while loop keeps no record of its steps, so it cannot be run backward; "
        "use lax.scan, or lax.fori_loop with bounds known while tracing"
    ),
    batch=_while_batch,
    evaluate=_while_evaluate,
    cost=lambda operands, results, params: program_cost(params["body"]),  # of one step: the number of steps is unknown
    samples=lambda: [],
)

# cond


def _cond_type(index: TensorType, *operands: TensorType, branches: tuple[Program, ...]) -> tuple[TensorType, ...]:
    first = branches[0]
    for branch in branches:
        if not _same_types(branch.in_types, operands) or not _same_types(branch.out_types, first.out_types):
            raise ShapeError(
                "The branches of a cond do not fit together.",
                why=f"one returns ({_show(first.out_types)}), another ({_show(branch.out_types)})",
                fix="return values of the same shapes and dtypes from every branch",
            )
    return tuple(
        t.with_(weak=all(branch.out_types[n].weak for branch in branches)) for n, t in enumerate(first.out_types)
    )


def _cond_evaluate(xp: Any, index: Any, *operands: Any, branches: tuple[Program, ...]) -> tuple[Any, ...]:
    taken = branches[min(max(int(index), 0), len(branches) - 1)]
    return tuple(xp.function(taken)(*operands))


def _cond_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    branches = params["branches"]
    index, *operands = primals
    mask = present(tangents[1:])
    types = [x.type for x in [*operands, *pick(operands, mask)]]
    n = len(operands)

    def pushed(branch: Program, wanted: Mask | None) -> tuple[Program, Mask]:
        def both(*args: Any) -> tuple[list[Any], Mask]:
            outs, out_ts = jvp_program(branch, args[:n], spread(args[n:], mask))
            kept = out_ts if wanted is None else pick(
                [instantiate(t, x.type) for t, x in zip(out_ts, outs, strict=True)], wanted
            )  # fmt: skip
            return outs + [t for t in kept if t is not None], present(out_ts)

        return region_with(both, types)

    union = tuple(map(any, zip(*(pushed(branch, None)[1] for branch in branches), strict=True)))
    outs = op(
        index, *operands, *pick(tangents[1:], mask), branches=tuple(pushed(branch, union)[0] for branch in branches)
    )
    values, out_ts = cut(outs, len(branches[0].outputs))
    return values, spread(out_ts, union)


def _cond_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Every branch returns the residuals of all branches, with zeros for those of the others; equal types share."""
    branches = params["branches"]
    index, *operands = primals
    mask = present(tangents[1:])
    n_out = len(branches[0].outputs)
    linear, needed = [], []

    for branch in branches:

        def forward(*args: Any, branch: Program = branch) -> tuple[list[Any], Any]:
            outs, found = linearize_program(branch, args, mask)
            return outs + found.residuals, found

        program, found = region_with(forward, [x.type for x in operands])
        linear.append(found)
        needed.append((program, program.out_types[n_out:]))

    slots: list[TensorType] = []
    places = []  # per branch, the slot of each of its residuals
    for _, residual_types in needed:
        free = list(range(len(slots)))
        mine = []
        for t in residual_types:
            slot = next((s for s in free if slots[s] is t), None)
            if slot is None:
                slot = len(slots)
                slots.append(t)
            else:
                free.remove(slot)
            mine.append(slot)
        places.append(mine)

    def saving(program: Program, mine: list[int]) -> Program:
        def outputs(*args: Any) -> list[Any]:
            outs, residuals = cut(run(program, args), n_out)
            at = dict(zip(mine, residuals, strict=True))
            return outs + [at[s] if s in at else zeros(t) for s, t in enumerate(slots)]

        return region(outputs, program.in_types)

    forward_branches = tuple(saving(program, mine) for (program, _), mine in zip(needed, places, strict=True))
    outs, saved = cut(op(index, *operands, branches=forward_branches), n_out)
    union = tuple(map(any, zip(*(found.nonzero for found in linear), strict=True)))
    active_types = [x.type for x in pick(operands, mask)]

    def tangent_branch(found: Any, mine: list[int]) -> Program:
        def push(*args: Any) -> list[Any]:
            residuals, ts = cut(args, len(slots))
            out_ts = spread(run(found.program, [*(residuals[s] for s in mine), *ts]), found.nonzero)
            return pick([instantiate(t, x.type) for t, x in zip(out_ts, outs, strict=True)], union)

        return region(push, [*slots, *active_types])

    out_ts = op(
        index, *saved, *pick(tangents[1:], mask),
        branches=tuple(tangent_branch(found, mine) for found, mine in zip(linear, places, strict=True)),
    )  # fmt: skip
    return outs, spread(out_ts, union)


def _cond_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    index, *operands = inputs
    linear = tuple(isinstance(x, Linear) for x in operands)
    known = [x for x in operands if not isinstance(x, Linear)]
    linear_types = [x.type for x in pick(operands, linear)]
    ct_mask = present(cts)
    ct_values = pick(cts, ct_mask)

    def backward(branch: Program) -> Program:
        def pull(*args: Any) -> list[Any]:
            values, out_cts = cut(args, len(known))
            found = transpose_program(branch, linear, fill(values, linear), spread(out_cts, ct_mask))
            return [instantiate(ct, t) for ct, t in zip(pick(found, linear), linear_types, strict=True)]

        return region(pull, [x.type for x in [*known, *ct_values]])

    outs = op(index, *known, *ct_values, branches=tuple(map(backward, params["branches"])))
    return [None, *spread(outs, linear)]


def _cond_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    branches = params["branches"]
    index, *operands = args
    mask = tuple(batched[1:])
    if batched[0]:
        return _cond_batch_each(size, index, operands, mask, branches)
    types = [x.type for x in operands]

    def batch(branch: Program, wanted: Mask | None) -> tuple[Program, Mask]:
        def step(*values: Any) -> tuple[list[Any], Mask]:
            outs, flags = batch_program(branch, size, values, mask)
            if wanted is not None:
                outs = [broadcast_batch(x, b, size) if w else x for x, b, w in zip(outs, flags, wanted, strict=True)]
            return outs, tuple(flags)

        return region_with(step, types)

    union = tuple(map(any, zip(*(batch(branch, None)[1] for branch in branches), strict=True)))
    outs = op(index, *operands, branches=tuple(batch(branch, union)[0] for branch in branches))
    return list(outs), list(union)


def _cond_batch_each(
    size: int, index: Value, operands: Sequence[Value], mask: Mask, branches: Sequence[Program]
) -> tuple[list[Value], list[bool]]:
    """Each example takes a branch of its own: run all branches and select row by row."""
    results = []
    for branch in branches:
        outs, flags = batch_program(branch, size, operands, mask)
        results.append([broadcast_batch(x, b, size) for x, b in zip(outs, flags, strict=True)])
    chosen = results[-1]
    for n in reversed(range(len(branches) - 1)):
        # out-of-range indices take the nearest branch
        here = eq(index, n) if n else le(index, 0)
        chosen = [_select_rows(here, mine, other) for mine, other in zip(results[n], chosen, strict=True)]
    return chosen, [True] * len(chosen)


def _cond_cost(operands: Types, results: Types, params: Params) -> Cost:
    """The dearest branch."""
    return max((program_cost(branch) for branch in params["branches"]), key=lambda cost: cost.flops)


cond: Op = define_op(
    "cond",
    type=_cond_type,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=_cond_jvp,
    linearize=_cond_linearize,
    transpose=_cond_transpose,
    batch=_cond_batch,
    evaluate=_cond_evaluate,
    cost=_cond_cost,
    samples=lambda: [],
)
