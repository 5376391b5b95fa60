"""Calls that carry a rule of their own: custom derivatives, and checkpoint, which recomputes instead of remembering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.op import Linear, Linearity, No, Op, Value, define_op
from meshwright.core.program import Params, Program
from meshwright.core.source import here
from meshwright.core.trace import run, state
from meshwright.errors import DifferentiationError
from meshwright.ops.basic import reduce_sum
from meshwright.ops.control import (
    NO_FACTORS,
    Mask,
    batch_type,
    broadcast_batch,
    cut,
    fill,
    instantiate,
    pick,
    present,
    program_cost,
    region,
    region_with,
    spread,
)
from meshwright.transform.batch import batch_program
from meshwright.transform.derivative import jvp_program, linearize_program
from meshwright.transform.simplify import dce
from meshwright.transform.transpose import transpose_program


def _batched(program: Program, size: int, mask: Sequence[bool]) -> Program:
    """The program for a batch, with every output batched."""

    def step(*values: Any) -> list[Any]:
        outs, flags = batch_program(program, size, values, mask)
        return [broadcast_batch(x, b, size) for x, b in zip(outs, flags, strict=True)]

    return region(step, [batch_type(t, b, size) for t, b in zip(program.in_types, mask, strict=True)])


def _transpose_call(program: Program, cts: Sequence[Value | None], inputs: Sequence[Value | Linear]) -> list[Any]:
    linear = tuple(isinstance(x, Linear) for x in inputs)
    return transpose_program(program, linear, [None if isinstance(x, Linear) else x for x in inputs], cts)


def _refuse_captured(tangents: Sequence[Value | None], captured: int) -> None:
    """The first ``captured`` operands were closed over: the rule says nothing about their derivative."""
    if any(t is not None for t in tangents[:captured]):
        raise DifferentiationError(
            "A function with a custom derivative closes over a value that is being differentiated.",
            where=state.source.show() if state.source else here(),
            why="its rule gives derivatives for its arguments only, so that value's share would be lost",
            fix="pass the value as an argument of the function and of its rules",
        )


# custom_jvp_call: ``jvp`` takes primals, then all tangents, and returns outputs, then their tangents


def _custom_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    _refuse_captured(tangents, params["captured"])
    full = [instantiate(t, x.type) for t, x in zip(tangents, primals, strict=True)]
    outs = run(params["jvp"], [*primals, *full])
    half = len(params["call"].outputs)
    return outs[:half], list(outs[half:])


def _custom_jvp_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    outs = op(
        *args,
        call=_batched(params["call"], size, batched),
        jvp=_batched(params["jvp"], size, [*batched, *batched]),
        captured=params["captured"],
    )
    return list(outs), [True] * len(outs)


custom_jvp_call: Op = define_op(
    "custom_jvp_call",
    type=lambda *types, call, jvp, captured: call.out_types,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=_custom_jvp,
    transpose=lambda op, cts, inputs, params: _transpose_call(params["call"], cts, inputs),
    batch=_custom_jvp_batch,
    evaluate=lambda xp, *args, call, jvp, captured: tuple(xp.function(call)(*args)),
    cost=lambda operands, results, params: program_cost(params["call"]),
    samples=lambda: [],
)

# custom_vjp_call: ``fwd`` returns outputs, then residuals; ``bwd`` takes residuals, then cotangents of all outputs


def _custom_vjp_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    _refuse_captured(tangents, params["captured"])
    outs, residuals = cut(run(params["fwd"], primals), len(params["call"].outputs))
    full = [instantiate(t, x.type) for t, x in zip(tangents, primals, strict=True)]
    out_tangents = custom_vjp_tangents(
        *residuals, *full, bwd=params["bwd"], residuals=len(residuals), types=params["call"].out_types
    )
    return outs, list(out_tangents)


def _custom_vjp_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    n_out = len(params["call"].outputs)
    fwd = _batched(params["fwd"], size, batched)
    bwd = params["bwd"]

    def backward(*values: Any) -> list[Any]:
        cts, flags = batch_program(bwd, size, values, [True] * len(values))
        return [_fit_cotangent(ct, b, wanted, size) for ct, b, wanted in zip(cts, flags, batched, strict=True)]

    bwd_types = [*fwd.out_types[n_out:], *fwd.out_types[:n_out]]
    outs = op(
        *args,
        call=_batched(params["call"], size, batched),
        fwd=fwd,
        bwd=region(backward, bwd_types),
        captured=params["captured"],
    )
    return list(outs), [True] * len(outs)


def _fit_cotangent(ct: Value, is_batched: bool, wanted: bool, size: int) -> Value:
    """The cotangent of an operand that all examples share is the sum of theirs."""
    full = broadcast_batch(ct, is_batched, size)
    return full if wanted else reduce_sum(full, axes=(0,))


custom_vjp_call: Op = define_op(
    "custom_vjp_call",
    type=lambda *types, call, fwd, bwd, captured: call.out_types,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=No("a function with a custom vjp has no forward-mode derivative; give it a custom_jvp instead"),
    linearize=_custom_vjp_linearize,
    transpose=lambda op, cts, inputs, params: _transpose_call(params["call"], cts, inputs),
    batch=_custom_vjp_batch,
    evaluate=lambda xp, *args, call, fwd, bwd, captured: tuple(xp.function(call)(*args)),
    cost=lambda operands, results, params: program_cost(params["call"]),
    samples=lambda: [],
)


def _no_forward_mode(xp: Any, *args: Any, **params: Any) -> Any:
    raise DifferentiationError(
        "A function with a custom vjp has no forward-mode derivative.",
        why="its rule says how cotangents go back, not how tangents go forward",
        fix="use mw.vjp or mw.grad, or give the function a custom_jvp rule",
    )


def _tangents_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    n = params["residuals"]
    full = [instantiate(ct, t) for ct, t in zip(cts, params["types"], strict=True)]
    return [*[None] * n, *run(params["bwd"], [*inputs[:n], *full])]


def _tangents_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    n = params["residuals"]
    tangent_mask = batched[n:]
    residual_mask = [*batched[:n], *[True] * len(params["types"])]
    bwd = params["bwd"]

    def backward(*values: Any) -> list[Any]:
        cts, flags = batch_program(bwd, size, values, residual_mask)
        return [_fit_cotangent(ct, b, wanted, size) for ct, b, wanted in zip(cts, flags, tangent_mask, strict=True)]

    types = tuple(batch_type(t, True, size) for t in params["types"])
    in_types = [x.type for x in args[:n]] + list(types)
    outs = op(*args, bwd=region(backward, in_types), residuals=n, types=types)
    return list(outs), [True] * len(outs)


custom_vjp_tangents: Op = define_op(
    "custom_vjp_tangents",
    type=lambda *inputs, bwd, residuals, types: types,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=No("it stands for a derivative known only backward"),
    transpose=_tangents_transpose,
    batch=_tangents_batch,
    evaluate=_no_forward_mode,
    cost=lambda operands, results, params: program_cost(params["bwd"]),
    samples=lambda: [],
)

# checkpoint: the derivative recomputes the program from its inputs


def _checkpoint_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    program, mask = params["program"], present(tangents)
    n = len(primals)

    def both(*args: Any) -> tuple[list[Any], Mask]:
        outs, out_ts = jvp_program(program, args[:n], spread(args[n:], mask))
        return outs + [t for t in out_ts if t is not None], present(out_ts)

    active = pick(tangents, mask)
    pushed, nonzero = region_with(both, [x.type for x in [*primals, *active]])
    outs, out_ts = cut(op(*primals, *active, program=pushed), len(program.outputs))
    return outs, spread(out_ts, nonzero)


def _checkpoint_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Keep the inputs alone: the tangents come from a checkpoint that runs the program again."""
    program, mask = params["program"], present(tangents)
    n = len(primals)
    outs = op(*primals, program=program)

    def tangents_only(*args: Any) -> tuple[list[Any], Mask]:
        _, linear = linearize_program(program, args[:n], mask)
        return run(linear.program, [*linear.residuals, *args[n:]]), linear.nonzero

    active = pick(tangents, mask)
    pushed, nonzero = region_with(tangents_only, [x.type for x in [*primals, *active]])
    out_ts = op(*primals, *active, program=dce(pushed))
    return list(outs), spread(out_ts, nonzero)


def _checkpoint_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    linear = tuple(isinstance(x, Linear) for x in inputs)
    known = [x for x in inputs if not isinstance(x, Linear)]
    ct_mask = present(cts)
    active = pick(cts, ct_mask)

    def backward(*args: Any) -> tuple[list[Any], Mask]:
        values, out_cts = cut(args, len(known))
        found = transpose_program(params["program"], linear, fill(values, linear), spread(out_cts, ct_mask))
        return [ct for ct in found if ct is not None], present(found)

    program, nonzero = region_with(backward, [x.type for x in [*known, *active]])
    return spread(op(*known, *active, program=dce(program)), nonzero)


def _checkpoint_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    program = params["program"]

    def step(*values: Any) -> tuple[list[Any], list[bool]]:
        return batch_program(program, size, values, batched)

    found, flags = region_with(step, [batch_type(t, b, size) for t, b in zip(program.in_types, batched, strict=True)])
    return list(op(*args, program=found)), flags


checkpoint: Op = define_op(
    "checkpoint",
    type=lambda *types, program: program.out_types,
    factors=NO_FACTORS,
    linear=Linearity.NONE,
    jvp=_checkpoint_jvp,
    linearize=_checkpoint_linearize,
    transpose=_checkpoint_transpose,
    batch=_checkpoint_batch,
    evaluate=lambda xp, *args, program: tuple(xp.function(program)(*args)),
    cost=lambda operands, results, params: program_cost(params["program"]),
    samples=lambda: [],
)
