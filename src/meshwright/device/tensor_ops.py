"""What is known of tensor ops on types whose sizes may be symbols.

Every fact is a rule of the op. Symbolic dims are given numbers that occur nowhere else, and read back from the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.factors import Factors, pointwise
from meshwright.core.facts import Fusion
from meshwright.core.limits import refuse_impossible
from meshwright.core.linearity import LinearGroup
from meshwright.core.op import Cost, No, Op, is_contraction
from meshwright.core.program import Program
from meshwright.core.signature import signature_of
from meshwright.core.types import TensorType
from meshwright.device.dims import Dim, Size, Sizes, readable, unwitness, witness
from meshwright.device.function import DeviceEqn, DeviceValue, Number, Operand
from meshwright.device.ops import DeviceOp, is_structural
from meshwright.device.types import Tensor, elements
from meshwright.engine import compile as _compile  # noqa: F401  (runs the regions of scan and cond)
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops.named import IndependentOperands, Params

Arg = tuple[Sizes, DType]


def signature(x: Tensor | Number) -> Arg:
    """What inference needs to know of an operand."""
    return ((), x.dtype) if isinstance(x, Number) else (x.shape, x.dtype)


@lru_cache(maxsize=16384)
def plain(arg: Arg) -> TensorType:
    """A type with every symbol replaced by a number of its own."""
    return TensorType(witness(arg[0]), arg[1])


def _witnessed(params: Params) -> dict[str, Any]:
    return {key: witness(value) for key, value in params.items()}


def params_of(eqn: DeviceEqn) -> dict[str, Any]:
    """The params of the op of an equation: its attributes without the device it is on."""
    return {key: value for key, value in eqn.attributes.items() if key != "device"}


@lru_cache(maxsize=16384)
def _infer(op: Op, args: tuple[Arg, ...], params: tuple[tuple[str, Any], ...]) -> tuple[Arg, ...]:
    if isinstance(op, DeviceOp):
        _check_params(op, dict(params))
    found = op.type(*map(plain, args), **_witnessed(dict(params)))
    results = found if isinstance(found, tuple) else (found,)
    wrong = next((t.dtype for t in results if not isinstance(t.dtype, np.dtype)), None)
    if wrong is not None:
        raise TypeError(f"{unwitness(wrong)} is not a dtype")
    return tuple((unwitness(t.shape), t.dtype) for t in results)


def _check_params(op: Op, params: Params) -> None:
    """Refuse params that an op of device programs does not have, and those that are no numbers."""
    known = list(signature_of(op.type).params)
    for key, value in params.items():
        if key not in known:
            raise ShapeError(
                f"{op} has no param {key}.",
                why=f"its params are {', '.join(known) or 'none'}",
                fix=f"{op}(…, {known[0]}=…)" if known else f"{op}(…)",
            )
        if not isinstance(value, int | float | np.ndarray):
            raise ShapeError(f"The {key} of {op} is {value!r}.", why="it is a number", fix=f"{op}(…, {key}=1)")


def infer(op: Op, args: Sequence[Arg], params: Params) -> tuple[Arg, ...]:
    """Shapes and dtypes of an op's results."""
    try:
        key = tuple(params.items())
        try:
            hash(key)
        except TypeError:  # a param such as an array is no key of a cache
            return _infer.__wrapped__(op, tuple(args), key)
        return _infer(op, tuple(args), key)
    except MeshwrightError as error:
        error.what, error.why, error.fix = readable(error.what), readable(error.why), readable(error.fix)
        error.where = ""  # the equation, which is known to the caller
        raise
    except Exception as error:  # a rule may stumble in any way over operands and params that are not its own
        text = re.sub(r"^[\w.<>]+\(\)", op.name, readable(str(error)) or type(error).__name__)
        raise ShapeError(
            f"{op} cannot be used so.",
            why=text,
            fix=f"{op}(…) with the operands and params of the op of that name",
        ) from error


def is_tensor_eqn(eqn: DeviceEqn) -> bool:
    """Whether an equation computes on one device."""
    return not is_structural(eqn.op)


def tensor_of(x: Operand) -> Tensor:
    """The type of an operand; of a tuple, that of its elements."""
    if isinstance(x, Number):
        return Tensor((), dtype=x.dtype)
    assert x.type is not None, f"{x.name} has no type"
    return elements(x.type)


def signatures(operands: Sequence[Operand]) -> list[Arg]:
    return [signature(tensor_of(x)) for x in operands]


def plain_types(operands: Sequence[Operand]) -> list[TensorType]:
    """The types of operands, with numbers for symbols."""
    return [plain(arg) for arg in signatures(operands)]


def _asked(eqn: DeviceEqn) -> tuple[list[TensorType], list[TensorType], dict[str, Any]]:
    """What the rules of an op are asked with."""
    return plain_types(eqn.inputs), plain_types(eqn.outputs), _witnessed(params_of(eqn))


def rule_of(eqn: DeviceEqn) -> Factors | None:
    """The factor rule of an equation, None for one that needs its operands whole."""
    try:  # inference says what is wrong before the factor rule stumbles over it
        infer(eqn.op, signatures(eqn.inputs), params_of(eqn))
    except MeshwrightError as error:
        error.where = error.where or repr(eqn)
        raise
    return None if isinstance(eqn.op.factors, No) else eqn.op.factors(*_asked(eqn))


def linear_groups(eqn: DeviceEqn) -> tuple[LinearGroup, ...]:
    """The groups of operands of an equation that may be summands together; the results then are, too."""
    return eqn.op.groups(*_asked(eqn))


def contracts(eqn: DeviceEqn) -> bool:
    """Whether an equation runs at the rate of matmuls."""
    return is_tensor_eqn(eqn) and is_contraction(eqn.op, *_asked(eqn))


def localize(op: Op, params: Params, args: Sequence[Arg], results: Sequence[Arg]) -> Params:
    """The params of the same op on shards of those types."""
    found = op.localize(_witnessed(params), [*map(plain, args)], [*map(plain, results)])
    return {key: unwitness(value) if not isinstance(value, Program) else value for key, value in found.items()}


def is_elementwise(eqn: DeviceEqn) -> bool:
    """Whether each element of the one result comes from the same element of the operands."""
    op = eqn.op
    return len(eqn.outputs) == 1 and (
        op.factors is pointwise or (isinstance(op, DeviceOp) and op.fusion is Fusion.ELEMENTWISE)
    )


def shares_of(eqn: DeviceEqn) -> tuple[IndependentOperands, ...]:
    """The parts of an equation that are computed from different operands; most have one."""
    if isinstance(eqn.op, DeviceOp) and eqn.op.shares is not None:
        return eqn.op.shares(len(eqn.inputs))
    return (IndependentOperands(tuple(range(len(eqn.inputs))), tuple(range(len(eqn.outputs)))),)


def operands_of(eqn: DeviceEqn) -> list[list[Operand]]:
    """The operands that each result of an equation is computed from."""
    own = {result: share for share in shares_of(eqn) for result in share.results}
    return [[eqn.inputs[n] for n in own[result].operands] for result in range(len(eqn.outputs))]


def evaluate(op: Op, arrays: Sequence[Any], params: Params) -> tuple[Any, ...]:
    """The results of an op on arrays."""
    try:
        with np.errstate(all="ignore"):
            found = op.evaluate(NUMPY, *arrays, **params)
    except (ValueError, OverflowError):
        types = op.type(*[TensorType(x.shape, x.dtype) for x in arrays], **params)
        refuse_impossible(op.name, types if isinstance(types, tuple) else (types,))
        raise
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def cost(op: Op, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> Cost:
    """Work of one call; dims must be numbers."""
    return op.cost([*map(plain, args)], [*map(plain, results)], params)


SYMBOL_SIZE = 1024  # what a symbol counts as where work and bytes are compared


def _counted(size: Size) -> int:
    return int(size.coefficient * SYMBOL_SIZE) if isinstance(size, Dim) else size


def nbytes_of(value: DeviceValue) -> float:
    """Bytes of a value; symbols count as `SYMBOL_SIZE`."""
    t = tensor_of(value)
    return float(prod(_counted(n) for n in t.shape) * t.dtype.itemsize)


def flops_of(eqn: DeviceEqn) -> float:
    """Work of an equation; symbols count as `SYMBOL_SIZE`."""
    args, results = (
        [(tuple(_counted(n) for n in shape), dtype) for shape, dtype in signatures(xs)]
        for xs in (eqn.inputs, eqn.outputs)
    )
    return cost(eqn.op, args, results, params_of(eqn)).flops
