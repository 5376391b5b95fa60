"""while and cond: loops of unknown length, and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.facts import Structure
from meshwright.core.op import Cost, Linear, Linearity, No, Op, Runs, Types, Value, define_op
from meshwright.core.program import Eqn, Params, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import run
from meshwright.core.types import TensorType, Variance, union
from meshwright.errors import ShapeError, VarianceError
from meshwright.ops.basic import broadcast_in_dim, zeros
from meshwright.ops.collective import meets
from meshwright.ops.elementwise import eq, ge, le, select, stop_gradient
from meshwright.ops.reduction import reduce_or
from meshwright.transform.batch import batch_program
from meshwright.transform.jvp import jvp_program, linearize_program
from meshwright.transform.recompute import Recomputation
from meshwright.transform.regions.region import (
    NO_FACTORS,
    Mask,
    as_type,
    batch_type,
    broadcast_batch,
    check_call,
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
from meshwright.transform.regions.trip_count import trip_count
from meshwright.transform.simplify import dce
from meshwright.transform.transpose import transpose_program

# while


def _while_type(
    *types: TensorType, cond: Program, body: Program, cond_consts: int, body_consts: int
) -> tuple[TensorType, ...]:
    check_counts("while", len(types), cond_consts=cond_consts, body_consts=body_consts)
    for_cond, for_body, carry = cut(types, cond_consts, body_consts)
    check_call("The condition of a while loop", cond, [*for_cond, *carry])
    check_call("The body of a while loop", body, [*for_body, *carry])
    if len(cond.outputs) != 1 or cond.out_types[0].shape != () or cond.out_types[0].dtype != dtypes.BOOL:
        raise ShapeError(
            f"The condition of a while loop returns {show_types(cond.out_types)}.",
            where=here(),
            why="it must return one bool scalar",
            fix="return a comparison such as `i < n`",
        )
    refuse_meeting("while", cond.out_types[0].varying, (cond, body))
    if not same_types(body.out_types, carry):
        raise ShapeError(
            "The body of a while loop does not return what it is given.",
            why=f"it takes ({show_types(carry)}) and returns ({show_types(body.out_types)})",
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

    likely = reached(body, body_mask, present(init_ts), inexact=True)
    carry_mask, program = fixpoint(present(init_ts), with_carry, likely)
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

    likely = reached(body, body_mask, init_mask)
    if depends(cond, (*cond_mask, *likely))[0]:  # each example decides when to stop
        likely = (True,) * len(likely)
    carry_mask, (cond_program, program, _) = fixpoint(init_mask, with_carry, likely)
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


def _while_runs(eqn: Eqn, name: str) -> Runs:
    """The condition is asked once more than the body runs."""
    steps = trip_count(eqn)
    return Runs(None if steps is None else steps + (name == "cond"))


def _while_reaches(eqn: Eqn, marked: Sequence[bool]) -> Mask:
    """What decides when a loop ends decides on all that it carries."""
    params = eqn.params
    for_cond, for_body, carry = cut(marked, params["cond_consts"], params["body_consts"])
    found = reached(params["body"], tuple(for_body), tuple(carry))
    return (True,) * len(found) if depends(params["cond"], (*for_cond, *found))[0] else found


while_: Op = define_op(
    "while",
    type=_while_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_while_jvp,
    linearize=_while_linearize,
    transpose=No(
        "a while loop keeps no record of its steps, so it cannot be run backward; "
        "use lax.scan, or lax.fori_loop with bounds known while tracing"
    ),
    batch=_while_batch,
    structure=Structure.LOOP,
    evaluate=_while_evaluate,
    cost=lambda operands, results, params: program_cost(params["body"]),  # of one step: the number of steps is unknown
    runs=_while_runs,
    reaches=_while_reaches,
    samples=lambda: [],
)

# cond


def _cond_type(index: TensorType, *operands: TensorType, branches: tuple[Program, ...]) -> tuple[TensorType, ...]:
    if not branches:
        raise ShapeError("A cond has no branches.", where=here(), why="one of them is taken", fix="two branches")
    if index.ndim or not (dtypes.is_integer(index.dtype) or index.dtype == dtypes.BOOL):
        raise ShapeError(
            f"A cond cannot choose its branch by {index.short()}.",
            where=here(),
            why="branches are chosen by one integer, or by a bool",
            fix="index.astype('int32'), of an array without dims",
        )
    first = branches[0]
    for branch in branches:
        if not same_types(branch.in_types, operands) or not same_types(branch.out_types, first.out_types):
            raise ShapeError(
                "The branches of a cond do not fit together.",
                where=here(),
                why=f"one returns ({show_types(first.out_types)}), another ({show_types(branch.out_types)})",
                fix="return values of the same types from every branch",
            )
    refuse_meeting("cond" if len(branches) == 2 else "switch", index.varying, branches)
    return tuple(
        t.with_(weak=all(branch.out_types[n].weak for branch in branches), varying=union((t.varying, index.varying)))
        for n, t in enumerate(first.out_types)
    )


def refuse_meeting(what: str, varying: tuple[str, ...], regions: Sequence[Program]) -> None:
    """Devices that take different ways must not wait for each other on one of them."""
    for axis in varying:
        if any(meets(region, axis) for region in regions):
            same = f"lax.pmax(index, {axis!r})" if what == "switch" else f"lax.pmax(pred.astype('int32'), {axis!r}) > 0"
            raise VarianceError(
                f"A collective over {axis} is inside of a {what} that devices along {axis} decide differently.",
                where=here(),
                why="a device that goes another way never comes to the collective, and the others wait for it",
                fix=f"do the collective outside of the {what}, or decide by a value that is the same on all devices: "
                f"{same}",
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

    def pushed(branch: Program) -> tuple[Program, Mask]:
        def both(*args: Any) -> tuple[list[Any], Mask]:
            outs, out_ts = jvp_program(branch, args[:n], spread(args[n:], mask))
            return outs + [t for t in out_ts if t is not None], present(out_ts)

        return region_with(both, types)

    # Each branch is differentiated once, and the tangents that others have besides are added to what came out.
    found = [pushed(branch) for branch in branches]
    union = _any_of([nonzero for _, nonzero in found])
    n_out = len(branches[0].outputs)

    def fitted(program: Program, nonzero: Mask) -> Program:
        def both(*args: Any) -> list[Any]:
            outs, out_ts = cut(run(program, args), n_out)
            full = [instantiate(t, x.type) for t, x in zip(spread(out_ts, nonzero), outs, strict=True)]
            return outs + pick(full, union)

        return program if nonzero == union else region(both, types)

    outs = op(index, *operands, *pick(tangents[1:], mask), branches=tuple(fitted(*one) for one in found))
    values, out_ts = cut(outs, n_out)
    return values, spread(out_ts, union)


def _any_of(masks: Sequence[Mask]) -> Mask:
    return tuple(map(any, zip(*masks, strict=True)))


def _without_constants(program: Program, kept: int, varying: tuple[str, ...]) -> tuple[Program, Program, list[int]]:
    """A branch without those results after the first few that devices which take different branches have in common;
    the program of these; and where each result is, among what is left and then these.

    All that enters the branch varies over the axes along which devices decide differently. So what does not is made of
    nothing that enters, and can be computed again, though a region that it comes out of may take what enters."""
    outputs = program.outputs[kept:]
    constant = [not set(varying) <= set(a.type.varying) for a in outputs]
    left, common = (pick(outputs, [c is wanted for c in constant]) for wanted in (False, True))
    places = [n for n, c in enumerate(constant) if not c] + [n for n, c in enumerate(constant) if c]
    alone = dce(Program(program.inputs, program.eqns, tuple(common), program.constants), effects=False)
    rest = Program(program.inputs, program.eqns, (*program.outputs[:kept], *left), program.constants)
    order = [places.index(n) for n in range(len(outputs))]
    return rest, alone, order


def _takes(program: Program, number: int) -> bool:
    """Whether an equation of the program takes its input of this number."""
    return any(program.inputs[number] in eqn.inputs for eqn in program.eqns)


def _shared_slots(needed: Sequence[Sequence[TensorType]]) -> tuple[list[TensorType], list[list[int]]]:
    """Slots for the residuals of all branches, equal types shared between them; per branch, the slot of each of its."""
    slots: list[TensorType] = []
    slots_of = []
    for types in needed:
        free = list(range(len(slots)))
        mine = []
        for t in types:
            slot = next((s for s in free if slots[s] is t), None)
            if slot is None:
                slot = len(slots)
                slots.append(t)
            else:
                free.remove(slot)
            mine.append(slot)
        slots_of.append(mine)
    return slots, slots_of


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
        program, constants, order = _without_constants(program, n_out, index.type.varying)
        linear.append((found, constants, order))
        needed.append((program, program.out_types[n_out:]))

    slots, slots_of = _shared_slots([residual_types for _, residual_types in needed])

    def saving(program: Program, mine: list[int]) -> Program:
        def outputs(*args: Any) -> list[Any]:
            outs, residuals = cut(run(program, args), n_out)
            at = dict(zip(mine, residuals, strict=True))
            return outs + [at[s] if s in at else zeros(t) for s, t in enumerate(slots)]

        return region(outputs, program.in_types)

    forward_branches = tuple(saving(program, mine) for (program, _), mine in zip(needed, slots_of, strict=True))
    outs, saved = cut(op(index, *operands, branches=forward_branches), n_out)
    union = _any_of([found.nonzero for found, _, _ in linear])
    active_types = [x.type for x in pick(operands, mask)]
    entering = [any(_takes(constants, n) for _, constants, _ in linear) for n in range(len(operands))]
    again = pick(operands, entering)

    def tangent_branch(found: Any, constants: Program, order: list[int], mine: list[int]) -> Program:
        def push(*args: Any) -> list[Any]:
            residuals, rest = cut(args, len(slots))
            entered, ts = cut(rest, len(again))
            given = [*(residuals[s] for s in mine), *run(constants, spread(entered, entering))]
            out_ts = spread(run(found.program, [*(given[n] for n in order), *ts]), found.nonzero)
            return pick([instantiate(t, x.type) for t, x in zip(out_ts, outs, strict=True)], union)

        return region(push, [*slots, *(x.type for x in again), *active_types])

    out_ts = op(
        index, *saved, *again, *pick(tangents[1:], mask),
        branches=tuple(tangent_branch(*found, mine) for found, mine in zip(linear, slots_of, strict=True)),
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

    def batch(branch: Program) -> tuple[Program, Mask]:
        def step(*values: Any) -> tuple[list[Any], Mask]:
            outs, flags = batch_program(branch, size, values, mask)
            return outs, tuple(flags)

        return region_with(step, types)

    found = [batch(branch) for branch in branches]
    union = _any_of([flags for _, flags in found])

    def fitted(program: Program, flags: Mask) -> Program:
        def step(*values: Any) -> list[Any]:
            outs = run(program, values)
            return [broadcast_batch(x, b, size) if w else x for x, b, w in zip(outs, flags, union, strict=True)]

        return program if flags == union else region(step, types)

    outs = op(index, *operands, branches=tuple(fitted(*one) for one in found))
    return list(outs), list(union)


def _cond_batch_each(
    size: int, index: Value, operands: Sequence[Value], mask: Mask, branches: Sequence[Program]
) -> tuple[list[Value], list[bool]]:
    """Each example takes a branch of its own: run all branches and select row by row."""
    chosen: list[Value] = []
    last = len(branches) - 1
    for n in reversed(range(len(branches))):
        # out-of-range indices take the nearest branch
        chosen_here = le(index, 0) if n == 0 else ge(index, last) if n == last else eq(index, n)
        args, batched = operands, mask
        if last:
            # No derivative comes back from the rows of other branches, where it may be 0 · inf. An operand that is the
            # same on devices which decide differently stays so.
            cut_off = [dtypes.is_inexact(x.dtype) and set(index.type.varying) <= set(x.type.varying) for x in operands]
            batched = tuple(b or c for b, c in zip(mask, cut_off, strict=True))
            args = [
                _differentiable_rows(chosen_here, broadcast_batch(x, b, size)) if c else x
                for x, b, c in zip(operands, mask, cut_off, strict=True)
            ]
        outs, flags = batch_program(branches[n], size, args, batched)
        mine = [broadcast_batch(x, b, size) for x, b in zip(outs, flags, strict=True)]
        chosen = (
            [_select_rows(chosen_here, x, other) for x, other in zip(mine, chosen, strict=True)] if chosen else mine
        )
    return chosen, [True] * len(chosen)


def _differentiable_rows(here: Value, x: Value) -> Value:
    """``x``, with a derivative only in the rows that ``here`` marks."""
    return _select_rows(here, x, stop_gradient(x))


def _cond_cost(operands: Types, results: Types, params: Params) -> Cost:
    """The dearest branch."""
    return max((program_cost(branch) for branch in params["branches"]), key=lambda cost: cost.flops)


def _cond_reaches(eqn: Eqn, marked: Sequence[bool]) -> Mask:
    index, *operands = marked
    return (True,) * len(eqn.outputs) if index else _any_of([depends(b, operands) for b in eqn.params["branches"]])


def _cond_recompute(
    eqn: Eqn, wanted: Sequence[bool], split: Callable[[Program, Sequence[bool]], Recomputation]
) -> tuple[Eqn, Eqn, Sequence[Var]]:
    """Every branch returns what all branches keep, with zeros for what the others do; equal types share."""
    index, *operands = eqn.inputs
    branches = eqn.params["branches"]
    n_out, varying = len(branches[0].outputs), index.type.varying
    splits = [split(branch, wanted) for branch in branches]
    kept_types = [
        [t.with_(varying=union((t.varying, varying))) for t in found.first.out_types[n_out:]] for found in splits
    ]
    slots, slots_of = _shared_slots(kept_types)

    def keeping(found: Recomputation, mine: list[int]) -> Program:
        def outputs(*args: Any) -> list[Any]:
            outs, values = cut(run(found.first, args), n_out)
            at = dict(zip(mine, values, strict=True))
            return outs + [as_type(at[s], t) if s in at else zeros(t) for s, t in enumerate(slots)]

        return region(outputs, found.first.in_types)

    def from_kept(found: Recomputation, mine: list[int]) -> Program:
        def outputs(*args: Any) -> list[Any]:
            values, entered = cut(args, len(slots))
            return run(found.again, [*(values[s] for s in mine), *entered])

        return region(outputs, [*slots, *(a.type for a in operands)])

    first_branches = tuple(map(keeping, splits, slots_of))
    again_branches = tuple(map(from_kept, splits, slots_of))
    kept = [Var(t) for t in slots]
    first = Eqn(eqn.op, eqn.inputs, {"branches": first_branches}, (*eqn.outputs, *kept), eqn.source)
    inputs, outputs = (index, *kept, *operands), pick(eqn.outputs, wanted)
    return first, Eqn(eqn.op, inputs, {"branches": again_branches}, outputs, eqn.source), kept


cond: Op = define_op(
    "cond",
    type=_cond_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_cond_jvp,
    linearize=_cond_linearize,
    transpose=_cond_transpose,
    batch=_cond_batch,
    structure=Structure.BRANCH,
    evaluate=_cond_evaluate,
    cost=_cond_cost,
    runs=lambda eqn, name: Runs(or_another=True),
    reaches=_cond_reaches,
    recompute=_cond_recompute,
    samples=lambda: [],
)
