"""Calls that carry a rule of their own: custom derivatives, and checkpoint, which recomputes instead of remembering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.op import Cost, Linear, Linearity, No, Op, Value, define_op
from meshwright.core.program import Eqn, Params, Program, Rule, Var
from meshwright.core.source import here
from meshwright.core.trace import run, state, trace
from meshwright.core.types import TensorType, Variance
from meshwright.errors import DifferentiationError
from meshwright.ops.basic import reduce_sum, zeros
from meshwright.ops.collective import psum
from meshwright.ops.rules import traffic
from meshwright.transform.batch import batch_program
from meshwright.transform.jvp import Linearized, jvp_program, linearize_program
from meshwright.transform.policies import keep_rule
from meshwright.transform.recompute import Recomputation, second_run, split_program, used_inputs
from meshwright.transform.regions.region import (
    NO_FACTORS,
    Mask,
    batch_type,
    broadcast_batch,
    check_call,
    check_counts,
    cut,
    depends,
    fill,
    instantiate,
    pick,
    present,
    program_cost,
    region,
    region_with,
    spread,
)
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


# custom_jvp_call: ``jvp`` takes the primals and tangents of the arguments, and returns outputs, then their tangents.
# The first ``captured`` operands are what ``call`` closes over.


def _custom_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    n = params["captured"]
    _refuse_captured(tangents, n)
    full = [instantiate(t, x.type) for t, x in zip(tangents[n:], primals[n:], strict=True)]
    outs = params["jvp"](*primals[n:], *full)
    half = len(params["call"].outputs)
    return outs[:half], list(outs[half:])


def _custom_jvp_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """The rule is linear in the tangents, so it is its own derivative by them, here at zero. Taken that way, values and
    tangents come apart even where the rule computes both at once, say in one loop."""
    n = params["captured"]
    _refuse_captured(tangents, n)
    values, mask = list(primals[n:]), present(tangents[n:])
    values += [zeros(x.type) for x in values]
    program, captured = trace(params["jvp"], [x.type for x in values], values)
    fixed = len(captured) + len(mask)
    outs, linear = linearize_program(program, [*captured, *values], [False] * fixed + list(mask))
    half = len(params["call"].outputs)
    out_ts = spread(run(linear.program, [*linear.residuals, *pick(tangents[n:], mask)]), linear.nonzero)
    return outs[:half], out_ts[half:]


def _batched_rule(rule: Rule, size: int, mask: Sequence[bool], types: Sequence[TensorType]) -> Rule:
    """The rule for a batch, given the types of one example's arguments; every output is batched."""

    def function(*args: Value) -> list[Value]:
        return run(_batched(region(rule, types), size, mask), args)

    return Rule(rule.name, function)


def _custom_jvp_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    n = params["captured"]
    types = params["call"].in_types[n:]
    jvp = _batched_rule(params["jvp"], size, [*batched[n:], *batched[n:]], [*types, *types])
    outs = op(*args, call=_batched(params["call"], size, batched), jvp=jvp, captured=n)
    return list(outs), [True] * len(outs)


def _custom_jvp_type(*types: TensorType, call: Program, jvp: Rule, captured: int) -> tuple[TensorType, ...]:
    return _call_type("custom_jvp_call", types, call, captured)


def _call_type(op: str, types: Sequence[TensorType], call: Program, captured: int) -> tuple[TensorType, ...]:
    check_counts(op, len(types), captured=captured)
    check_call("A function with a custom derivative", call, types)
    return call.out_types


custom_jvp_call: Op = define_op(
    "custom_jvp_call",
    type=_custom_jvp_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_custom_jvp,
    linearize=_custom_jvp_linearize,
    transpose=lambda op, cts, inputs, params: _transpose_call(params["call"], cts, inputs),
    batch=_custom_jvp_batch,
    calls="call",
    evaluate=lambda xp, *args, call, jvp, captured: tuple(xp.function(call)(*args)),
    cost=lambda operands, results, params: program_cost(params["call"]),
    samples=lambda: [],
)

# custom_vjp_call: ``vjp`` takes the arguments and returns outputs, residuals, and the rule that takes residuals and the
# cotangents of all outputs to the cotangents of the arguments.


def _custom_vjp_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    n = params["captured"]
    _refuse_captured(tangents, n)
    outs, residuals, backward = params["vjp"](*primals[n:])
    full = [instantiate(t, x.type) for t, x in zip(tangents[n:], primals[n:], strict=True)]
    out_tangents = custom_vjp_tangents(
        *residuals, *full, backward=backward, residuals=len(residuals), types=params["call"].out_types
    )
    return outs, list(out_tangents)


def _custom_vjp_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    n, call, vjp = params["captured"], params["call"], params["vjp"]
    mask = batched[n:]

    def forward(*values: Value) -> tuple[list[Value], list[Value], Rule]:
        def pair(*one: Value) -> tuple[list[Value], Rule]:
            outs, residuals, backward = vjp(*one)
            return [*outs, *residuals], backward

        program, backward = region_with(pair, call.in_types[n:])
        outs, residuals = cut(run(_batched(program, size, mask), values), len(call.outputs))
        one_types = [*program.out_types[len(call.outputs) :], *call.out_types]
        return outs, residuals, _batched_backward(backward, size, [True] * len(one_types), one_types, mask)

    outs = op(*args, call=_batched(call, size, batched), vjp=Rule(vjp.name, forward), captured=n)
    return list(outs), [True] * len(outs)


def _batched_backward(
    backward: Rule, size: int, mask: Sequence[bool], types: Sequence[TensorType], wanted: Sequence[bool]
) -> Rule:
    """The backward rule for a batch: the cotangent of an argument that all examples share is the sum of theirs."""

    def function(*args: Value) -> list[Value]:
        cts, flags = batch_program(region(backward, types), size, args, mask)
        full = [broadcast_batch(ct, b, size) for ct, b in zip(cts, flags, strict=True)]
        return [ct if own else reduce_sum(ct, axes=(0,)) for ct, own in zip(full, wanted, strict=True)]

    return Rule(backward.name, function)


def _custom_vjp_type(*types: TensorType, call: Program, vjp: Rule, captured: int) -> tuple[TensorType, ...]:
    return _call_type("custom_vjp_call", types, call, captured)


custom_vjp_call: Op = define_op(
    "custom_vjp_call",
    type=_custom_vjp_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=No("a function with a custom vjp has no forward-mode derivative; give it a custom_jvp instead"),
    linearize=_custom_vjp_linearize,
    transpose=lambda op, cts, inputs, params: _transpose_call(params["call"], cts, inputs),
    batch=_custom_vjp_batch,
    calls="call",
    evaluate=lambda xp, *args, call, vjp, captured: tuple(xp.function(call)(*args)),
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
    found = params["backward"](*inputs[:n], *full)
    return [*[None] * n, *(_as_cotangent(ct, x.type) for ct, x in zip(found, inputs[n:], strict=True))]


def _as_cotangent(ct: Value | None, type: TensorType) -> Value | None:
    """The rule is about one device: what it gives back for an argument that all devices share is summed over them."""
    if ct is None:
        return None
    axes = tuple(axis for axis in ct.type.varying if axis not in type.varying)
    return psum(ct, axes=axes) if axes else ct


def _tangents_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    n, types = params["residuals"], params["types"]
    one = [x.type.row() if b else x.type for x, b in zip(args[:n], batched, strict=False)]
    mask = [*batched[:n], *[True] * len(types)]
    backward = _batched_backward(params["backward"], size, mask, [*one, *types], batched[n:])
    outs = op(*args, backward=backward, residuals=n, types=tuple(batch_type(t, True, size) for t in types))
    return list(outs), [True] * len(outs)


def _tangents_type(
    *inputs: TensorType, backward: Rule, residuals: int, types: tuple[TensorType, ...]
) -> tuple[TensorType, ...]:
    check_counts("custom_vjp_tangents", len(inputs), residuals=residuals)
    return types


custom_vjp_tangents: Op = define_op(
    "custom_vjp_tangents",
    type=_tangents_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=No("it stands for a derivative known only backward"),
    transpose=_tangents_transpose,
    batch=_tangents_batch,
    evaluate=_no_forward_mode,
    cost=lambda operands, results, params: Cost(0.0, traffic(operands, results)),
    samples=lambda: [],
)

# checkpoint: the derivative recomputes the program from its inputs and from what its policy keeps


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
    outs, out_ts = cut(op(*primals, *active, **{**params, "program": pushed}), len(program.outputs))
    return outs, spread(out_ts, nonzero)


def _uses(program: Program, op: Op) -> bool:
    return any(eqn.op is op or any(_uses(region, op) for _, region in eqn.regions()) for eqn in program.eqns)


def _checkpoint_linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Keep the inputs and what the policy says: the tangents come from a checkpoint that computes the rest again."""
    program, mask = params["program"], present(tangents)
    n_out = len(program.outputs)

    def known(*args: Any) -> tuple[list[Any], Linearized]:
        outs, linear = linearize_program(program, args, mask)
        return outs + linear.residuals, linear

    both, linear = region_with(known, program.in_types)
    wanted = [False] * n_out + [True] * len(linear.residuals)
    split = split_program(both, wanted, keep_rule(params.get("policy")))
    kept_outs = (*split.first.outputs[:n_out], *split.first.outputs[len(both.outputs) :])
    forward = dce(Program(split.first.inputs, split.first.eqns, kept_outs, split.first.constants))
    # The value of a differentiated custom vjp is what its fwd rule says, and that has derivatives of its own.
    if not split.kept and not _uses(program, custom_vjp_call):
        forward = program
    outs, kept = cut(op(*primals, **{**params, "program": forward}), n_out)
    again = second_run(split.again)

    def tangents_only(*args: Any) -> list[Any]:
        known_, active = cut(args, split.kept + len(primals))
        return run(linear.program, [*run(again, known_), *active])

    given = [*kept, *primals, *pick(tangents, mask)]
    pushed = dce(region(tangents_only, [x.type for x in given]), effects=False)
    used = used_inputs(pushed)
    needed = Program(tuple(pick(pushed.inputs, used)), pushed.eqns, pushed.outputs, pushed.constants)
    out_ts = op(*pick(given, used), **{**params, "program": needed})
    return list(outs), spread(out_ts, linear.nonzero)


def _checkpoint_recompute(
    eqn: Eqn, wanted: Sequence[bool], split: Callable[[Program, Sequence[bool]], Recomputation]
) -> tuple[Eqn, Eqn, Sequence[Var]]:
    """A checkpoint in another: the policy around it decides what is kept of the first run."""
    found = split(eqn.params["program"], wanted)
    kept = [Var(t) for t in found.again.in_types[: found.kept]]
    used = used_inputs(found.again)
    again = Program(tuple(pick(found.again.inputs, used)), found.again.eqns, found.again.outputs, found.again.constants)
    inputs = pick([*kept, *eqn.inputs], used)
    first = Eqn(eqn.op, eqn.inputs, {**eqn.params, "program": found.first}, (*eqn.outputs, *kept), eqn.source)
    return first, Eqn(eqn.op, inputs, {**eqn.params, "program": again}, pick(eqn.outputs, wanted), eqn.source), kept


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
    return spread(op(*known, *active, **{**params, "program": dce(program)}), nonzero)


def _checkpoint_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    program = params["program"]

    def step(*values: Any) -> tuple[list[Any], list[bool]]:
        return batch_program(program, size, values, batched)

    found, flags = region_with(step, [batch_type(t, b, size) for t, b in zip(program.in_types, batched, strict=True)])
    return list(op(*args, **{**params, "program": found})), flags


def _checkpoint_type(*types: TensorType, program: Program, policy: Rule | None = None) -> tuple[TensorType, ...]:
    check_call("The program of a checkpoint", program, types)
    return program.out_types


checkpoint: Op = define_op(
    "checkpoint",
    type=_checkpoint_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_checkpoint_jvp,
    linearize=_checkpoint_linearize,
    transpose=_checkpoint_transpose,
    batch=_checkpoint_batch,
    reaches=lambda eqn, marked: depends(eqn.params["program"], marked),
    recompute=_checkpoint_recompute,
    calls="program",
    evaluate=lambda xp, *args, program, policy=None: tuple(xp.function(program)(*args)),
    cost=lambda operands, results, params: program_cost(params["program"]),
    samples=lambda: [],
)
