"""Partial results after propagation: nobody loses what is unreduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.propagate.graph import FunctionOp, Graph, GraphOp, GraphValue, Known, inside_first
from meshwright.propagate.problem import Kind, Refusal
from meshwright.sharding.axes import Axes, AxisRef

_SUMMING = (Kind.CONSTRAINT, Kind.RESHARD, Kind.BARRIER)


def verify_unreduced(graph: Graph) -> None:
    """Check that partial results are combined by a reshard or a collective, and none is lost on the way.

    What an op is given unreduced it returns unreduced, over as many axes at least; a function or a computation returns
    what it says, and calls pass what the function says.
    """
    functions = {function.name: function for function in graph.functions}
    for function in graph.functions:
        for op in inside_first(function.block):
            if op.kind is None:
                _check_return(op)
            elif op.kind is Kind.CALL:
                _check_call(op, functions[op.callee])
            elif op.kind not in _SUMMING and not (op.node is not None and op.node.sums):
                _check_op(op)


def _seen(value: GraphValue) -> tuple[Axes, str]:
    """The axes that a value is unreduced over where it is seen, and by what they are reduced."""
    sharding = value.known
    manual: tuple[str, ...] = ()
    if value.edge is None and value.block is not None and isinstance(value.block.parent, GraphOp):
        parent = value.block.parent
        if parent.kind in (Kind.MANUAL, Kind.NAMED):
            sharding = parent.in_shardings[value.index] if parent.in_shardings else None
            manual = parent.manual_axes
    elif value.edge is None and value.op is not None and value.op.kind in (Kind.MANUAL, Kind.NAMED):
        sharding = value.op.out_shardings[value.index] if value.op.out_shardings else None
    if sharding is None:
        return (), "sum"
    return tuple(axis for axis in sharding.unreduced if axis.name not in manual), sharding.reduction


def _unreduced(values: Iterable[GraphValue]) -> list[tuple[AxisRef, str]]:
    return [(axis, by) for axes, by in map(_seen, values) for axis in axes]


def _before_barriers(value: GraphValue) -> GraphValue:
    """The value that propagation barriers were put behind: they say nothing of it."""
    while value.op is not None and value.op.kind is Kind.BARRIER and value.known is None:
        value = value.op.operands[0].value
    return value


def _is_made_by_reshard(value: GraphValue) -> bool:
    """Whether a user asked for this very value to be unreduced; Shardy lets what uses it do as it likes."""
    return value.op is not None and value.op.kind in (Kind.CONSTRAINT, Kind.RESHARD)


def _check_op(op: GraphOp) -> None:
    values = [_before_barriers(use.value) for use in op.operands]
    given = _unreduced(value for value in values if not _is_made_by_reshard(value))
    made = _unreduced(op.results)
    across = op.node.across if op.node is not None else None
    for axis, by in given:
        kept = [other_by for other, other_by in made if other.contains(axis)]
        if not kept and across == by:
            continue
        if not kept:
            raise _lost(op, axis, by, across)
        if by not in kept:
            message = f"cannot change the reduction operator of kept unreduced axes from {by} to {kept[0]}."
            raise Refusal(
                f"{_name(op)} cannot make partial results of another kind of those over {axis}.",
                where=_where(op),
                why=f"its operand is to be combined by {by}, its result by {kept[0]}",
                fix=f"sdy.reshard to the sharding without unreduced={{{axis}}} first",
                message=f"'{_name(op)}' op {message}",
            )
    new = [axis for axis, _ in made if not any(other.contains(axis) for other, _ in given)]
    if across is not None and new:
        raise Refusal(
            f"{_name(op)} cannot leave its result unreduced over {new[0]}.",
            where=_where(op),
            why="it combines the values of devices, and its operand is not unreduced over that axis",
            fix=f"a sharding without unreduced={{{new[0]}}}",
            message=f"'{_name(op)}' op cannot add new unreduced axis '{_plain(new[0])}'.",
        )


_BLESSED = "without a blessed operation (e.g., sdy.reshard). This is an invalid transition from unreduced to reduced."


def _plain(axis: AxisRef) -> str:
    return str(axis).replace('"', "")


def _lost(op: GraphOp, axis: AxisRef, by: str, across: str | None) -> Refusal:
    if across:
        why = f"it combines values by {across}, and its operand is to be combined by {by}"
        message = f"cannot reduce '{by}' unreduced axes. Expected '{across}'."
    else:
        why = f"an operand of it is unreduced over {axis}, and no result is"
        message = f"dropped unreduced axis '{_plain(axis)}' {_BLESSED}"
    return Refusal(
        f"{_name(op)} loses the partial results over {axis}.",
        where=_where(op),
        why=why,
        message=f"'{_name(op)}' op {message}",
        fix=f"sdy.reshard to the sharding without unreduced={{{axis}}} first",
    )


def _check_return(end: GraphOp) -> None:
    assert end.parent is not None
    parent = end.parent.parent
    said: Sequence[Known | None]
    manual: tuple[str, ...] = ()
    if isinstance(parent, FunctionOp):
        said, name = parent.result_shardings, f"The function {parent.name!r}"
    elif parent.kind in (Kind.MANUAL, Kind.NAMED) and parent.out_shardings is not None:
        said, manual, name = parent.out_shardings, parent.manual_axes, _name(parent)
    else:
        return
    for number, (use, sharding) in enumerate(zip(end.operands, said, strict=True)):
        if sharding is not None:
            expected = [axis for axis in sharding.unreduced if axis.name not in manual]
            ends, where = end.parent.end
            place = f"'{ends}' op", f"at return value {number} {_BLESSED}", where
            _check_same(_seen(use.value)[0], expected, f"{name} returns as result {number}", place)


def _check_call(op: GraphOp, callee: FunctionOp) -> None:
    for use, argument in zip(op.operands, callee.block.arguments, strict=True):
        what = f"The call of {callee.name!r} has as operand {use.index}"
        place = f"'{_name(op)}' op", f"at call argument {use.index}.", _where(op)
        if not _is_made_by_reshard(_before_barriers(use.value)):
            _check_same(_seen(_before_barriers(use.value))[0], _seen(argument)[0], what, place)
    for value, sharding in zip(op.results, callee.result_shardings, strict=True):
        what = f"The call of {callee.name!r} has as result {value.index}"
        place = f"'{_name(op)}' op", f"at call result {value.index}.", _where(op)
        _check_same(_seen(value)[0], sharding.unreduced if sharding is not None else (), what, place)


def _check_same(found: Iterable[AxisRef], said: Iterable[AxisRef], what: str, place: tuple[str, str, str]) -> None:
    found, said = set(found), set(said)
    if found != said:
        begins, ends, where = place
        first = _plain(min(found ^ said, key=str))
        raise Refusal(
            f"{what} a value that is unreduced over {_shown(found)}, where {_shown(said)} is said.",
            where=where,
            message=f"{begins} has unreduced axes mismatch for '{first}' {ends}",
            why="partial results are combined by a reshard or a collective, and lost by anything else",
            fix="sdy.reshard between the two",
        )


def _shown(axes: Iterable[AxisRef]) -> str:
    return ", ".join(sorted(map(str, axes))) or "nothing"


def _name(op: GraphOp) -> str:
    if op.node is not None and op.node.name:
        return op.node.name
    return op.kind.value if op.kind is not None else "return"


def _where(op: GraphOp) -> str:
    return op.node.where if op.node is not None else ""
