"""scan: a loop with a carry over the rows of arrays, and its derivatives, which are scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from meshwright.core.facts import Structure
from meshwright.core.op import Cost, Linear, Linearity, Op, Runs, Types, Value, define_op
from meshwright.core.program import Atom, Eqn, Params, Program, Var
from meshwright.core.trace import run
from meshwright.core.types import TensorType, Variance
from meshwright.errors import ShapeError
from meshwright.ops.basic import add, move_dim, zeros
from meshwright.transform.batch import batch_program
from meshwright.transform.jvp import jvp_program, linearize_program
from meshwright.transform.recompute import Recomputation, second_run, split_by_size, used_inputs
from meshwright.transform.regions.region import (
    NO_FACTORS,
    Mask,
    as_type,
    batch_type,
    broadcast_batch,
    check_counts,
    cut,
    depends,
    fill,
    fixpoint,
    instantiate,
    pick,
    present,
    program_cost,
    reached,
    region,
    region_with,
    same_types,
    show_types,
    spread,
)
from meshwright.transform.simplify import cse, dce
from meshwright.transform.transpose import transpose_program


def _slice_type(t: TensorType) -> TensorType:
    return t.row()


def _stack_type(t: TensorType, length: int) -> TensorType:
    return t.stack(length)


def _scan_type(
    *types: TensorType, body: Program, consts: int, carry: int, length: int, reverse: bool
) -> tuple[TensorType, ...]:
    check_counts("scan", len(types), consts=consts, carry=carry)
    if length < 0:
        raise ShapeError(f"scan cannot take {length} steps.", why="their number is from 0", fix="length=10")
    const_types, carry_types, xs_types = cut(types, consts, carry)
    for x in xs_types:
        if x.ndim == 0 or x.shape[0] != length:
            raise ShapeError(
                f"scan over {length} steps cannot take {x.short()}.",
                why="each scanned array has the number of steps as its first dim",
                fix=f"pass arrays with {length} rows, or length=…",
            )
    expected = [*const_types, *carry_types, *map(_slice_type, xs_types)]
    if not same_types(body.in_types, expected) or not same_types(body.out_types[:carry], carry_types):
        raise ShapeError(
            "The body of a scan does not fit its operands.",
            why=f"it takes ({show_types(body.in_types)}) and returns ({show_types(body.out_types)}), "
            f"for operands ({show_types(expected)}) of which {carry} are carried",
            fix="return a carry of the types it came with",
        )
    return body.out_types[:carry] + tuple(_stack_type(t, length) for t in body.out_types[carry:])


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

    likely = reached(body, const_mask, present(init_ts), xs_mask, inexact=True)
    carry_mask, (program, ys_mask) = fixpoint(present(init_ts), with_carry, likely)
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

    What the derivative needs of the loop's constants and of the scanned arrays is not copied step by step, and what is
    cheap to make again of other values is.
    """
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    types = cut(body.in_types, n_consts, n_carry)
    const_ts, init_ts, xs_ts = cut(tangents, n_consts, n_carry)
    const_mask, xs_mask = present(const_ts), present(xs_ts)

    def with_carry(carry_mask: Mask) -> tuple[Mask, Any]:
        def forward(*args: Any) -> tuple[list[Any], Any]:
            outs, linear = linearize_program(body, args, (*const_mask, *carry_mask, *xs_mask))
            return outs + linear.residuals, linear

        program, linear = region_with(forward, body.in_types)
        return linear.nonzero[:n_carry], (program, linear)

    likely = reached(body, const_mask, present(init_ts), xs_mask, inexact=True)
    carry_mask, (program, linear) = fixpoint(present(init_ts), with_carry, likely)
    steps = _with_residuals(program, linear.program, params, len(body.outputs))
    outs = op(*primals, **{**params, "body": steps.first})
    carry, ys, saved = cut(outs, n_carry, len(body.outputs) - n_carry)

    consts, _, xs = cut(primals, n_consts, n_carry)
    fixed, rows = run(steps.fixed, consts), [*saved, *pick(xs, steps.rows)]
    ys_mask = linear.nonzero[n_carry:]
    active_init = [instantiate(t, x.type) for t, x in zip(init_ts, primals[n_consts:], strict=False)]

    def linear_step(*args: Any) -> list[Any]:
        fixed_, const_ts_, carry_ts_, rows_, xs_ts_ = cut(args, len(fixed), sum(const_mask), sum(carry_mask), len(rows))
        residuals = run(steps.again, [*fixed_, *rows_])
        out_ts = spread(run(steps.linear, [*residuals, *const_ts_, *carry_ts_, *xs_ts_]), linear.nonzero)
        carried = [as_type(instantiate(t, c), c) for t, c in zip(out_ts[:n_carry], types[1], strict=True)]
        return pick(carried, carry_mask) + pick(out_ts[n_carry:], ys_mask)

    in_types = [
        *(x.type for x in fixed), *pick(types[0], const_mask), *pick(types[1], carry_mask),
        *(_slice_type(x.type) for x in rows), *pick(types[2], xs_mask),
    ]  # fmt: skip
    out_ts = op(
        *fixed, *pick(const_ts, const_mask), *pick(active_init, carry_mask), *rows, *pick(xs_ts, xs_mask),
        body=region(linear_step, in_types), consts=len(fixed) + sum(const_mask), carry=sum(carry_mask),
        length=params["length"], reverse=params["reverse"],
    )  # fmt: skip
    carry_ts, ys_ts = cut(out_ts, sum(carry_mask))
    return carry + ys, spread(carry_ts, carry_mask) + spread(ys_ts, ys_mask)


class LoopWithResiduals(NamedTuple):
    """A loop and its derivative: ``first`` is the body that also returns what is kept of each step. ``again`` makes the
    residuals that ``linear`` takes, of what ``fixed`` returns for the constants of the loop, of what is kept, and of
    the scanned rows that the mask marks."""

    first: Program
    fixed: Program
    again: Program
    rows: Mask
    linear: Program


def _with_residuals(program: Program, linear: Program, params: Params, count: int) -> LoopWithResiduals:
    """The steps of a body that returns ``count`` outputs, and then the residuals that ``linear`` takes first."""
    n_consts, n_carry = params["consts"], params["carry"]
    linear = dce(linear)
    n_residuals = len(program.outputs) - count
    used = used_inputs(linear)[:n_residuals]
    linear = replace(linear, inputs=(*pick(linear.inputs[:n_residuals], used), *linear.inputs[n_residuals:]))
    given = [not n_consts <= n < n_consts + n_carry for n in range(len(program.inputs))]
    found = split_by_size(cse(program), [False] * count + list(used), given)
    kept, consts, carry, xs = cut(found.again.inputs, found.kept, n_consts, n_carry)
    _, const_mask, carry_mask, rows = cut(used_inputs(found.again), found.kept, n_consts, n_carry)
    first = found.first
    kept += pick(carry, carry_mask)
    # What is the same in every step is computed once, before the loop.
    varying: set[Atom] = set(first.inputs[n_consts:])
    for eqn in first.eqns:
        if not varying.isdisjoint(eqn.inputs):
            varying.update(eqn.outputs)
    stacked = [v for v in kept if v in varying]
    fixed = [*pick(consts, const_mask), *(v for v in kept if v not in varying)]
    before = dce(replace(first, outputs=tuple(fixed)), effects=False)
    return LoopWithResiduals(
        dce(replace(first, outputs=(*first.outputs[:count], *stacked))),
        replace(before, inputs=first.inputs[:n_consts]),
        second_run(replace(found.again, inputs=(*fixed, *stacked, *pick(xs, rows)))),
        tuple(rows),
        linear,
    )


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
        return _transpose_after_known(op, cts, inputs, params, linear)
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


def _transpose_after_known(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params, linear: Sequence[Mask]
) -> list[Value | None]:
    """What a loop carries that does not depend on its linear inputs (a counter, say) is run ahead; the linear rest of
    the loop then reads it row by row."""
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    consts, init, xs = cut(inputs, n_consts, n_carry)
    in_types = cut(body.in_types, n_consts, n_carry)
    known = tuple(not is_linear for is_linear in linear[1])
    groups = zip((consts, init, xs), linear, strict=True)
    fixed, start, stepped = (pick(group, [not is_linear for is_linear in mask]) for group, mask in groups)
    known_outs = tuple(pick(body.outputs[:n_carry], known))
    ahead = dce(Program(body.inputs, body.eqns, known_outs, body.constants), effects=False)

    def step(*args: Any) -> list[Any]:
        fixed_, state, stepped_ = cut(args, len(fixed), len(start))
        values = fill(fixed_, linear[0]) + fill(state, linear[1]) + fill(stepped_, linear[2])
        return run(ahead, [instantiate(x, t) for x, t in zip(values, body.in_types, strict=True)]) + state

    step_types = [x.type for x in [*fixed, *start]] + [_slice_type(x.type) for x in stepped]
    steps = {"length": params["length"], "reverse": params["reverse"]}
    ran = op(*fixed, *start, *stepped, body=dce(region(step, step_types)), consts=len(fixed), carry=len(start), **steps)

    def rest(*args: Any) -> list[Any]:
        consts_, carry, xs_, past = cut(args, n_consts, sum(linear[1]), len(xs))
        state = [old if x is None else x for x, old in zip(spread(carry, linear[1]), spread(past, known), strict=True)]
        outs = run(body, [*consts_, *state, *xs_])
        return pick(outs[:n_carry], linear[1]) + outs[n_carry:]

    rest_types = [*in_types[0], *pick(in_types[1], linear[1]), *in_types[2], *pick(in_types[1], known)]
    found = _scan_transpose(
        op,
        [*pick(cts[:n_carry], linear[1]), *cts[n_carry:]],
        [*consts, *pick(init, linear[1]), *xs, *ran[len(start) :]],
        {"body": region(rest, rest_types), "consts": n_consts, "carry": sum(linear[1]), **steps},
    )
    ct_consts, ct_init, ct_xs, _ = cut(found, n_consts, sum(linear[1]), len(xs))
    return ct_consts + spread(ct_init, linear[1]) + ct_xs


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

    carry_mask, (program, ys_mask) = fixpoint(init_mask, with_carry, reached(body, const_mask, init_mask, xs_mask))
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


def _scan_reaches(eqn: Eqn, marked: Sequence[bool]) -> Mask:
    """What is carried is followed through any number of steps."""
    body, n_carry = eqn.params["body"], eqn.params["carry"]
    consts, init, xs = (tuple(part) for part in cut(marked, eqn.params["consts"], n_carry))
    carry = reached(body, consts, init, xs)
    return carry + depends(body, (*consts, *carry, *xs))[n_carry:]


def _scan_recompute(
    eqn: Eqn, wanted: Sequence[bool], split: Callable[[Program, Mask], Recomputation]
) -> tuple[Eqn, Eqn, Sequence[Var]]:
    """What is kept of each step is stacked; the second loop carries only what its wanted results follow from."""
    params = eqn.params
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    ys_mask = tuple(wanted[n_carry:])

    def with_carry(carry_mask: Mask) -> tuple[Mask, Recomputation]:
        found = split(body, (*carry_mask, *ys_mask))
        return cut(used_inputs(found.again), found.kept + n_consts, n_carry)[1], found  # type: ignore[return-value]

    carry_mask, found = fixpoint(tuple(wanted[:n_carry]), with_carry)
    kept = [Var(_stack_type(t, params["length"])) for t in found.first.out_types[len(body.outputs) :]]
    first = Eqn(eqn.op, eqn.inputs, {**params, "body": found.first}, (*eqn.outputs, *kept), eqn.source)

    kept_ins, consts, carry, xs = cut(found.again.inputs, found.kept, n_consts, n_carry)
    _, const_mask, _, xs_mask = cut(used_inputs(found.again), found.kept, n_consts, n_carry)
    inputs = (*pick(consts, const_mask), *pick(carry, carry_mask), *pick(xs, xs_mask), *kept_ins)
    again_body = Program(inputs, found.again.eqns, found.again.outputs, found.again.constants)
    mask = (*const_mask, *carry_mask, *xs_mask)
    again_params = {**params, "body": again_body, "consts": sum(const_mask), "carry": sum(carry_mask)}
    outputs = pick(eqn.outputs, (*carry_mask, *ys_mask))
    return first, Eqn(eqn.op, (*pick(eqn.inputs, mask), *kept), again_params, outputs, eqn.source), kept


scan: Op = define_op(
    "scan",
    type=_scan_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_scan_jvp,
    linearize=_scan_linearize,
    transpose=_scan_transpose,
    batch=_scan_batch,
    structure=Structure.ROWS,
    evaluate=_scan_evaluate,
    cost=_scan_cost,
    runs=lambda eqn, name: Runs(eqn.params["length"]),
    reaches=_scan_reaches,
    recompute=_scan_recompute,
    samples=lambda: [],
)
