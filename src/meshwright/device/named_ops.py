"""The tensor ops that device programs have beside those of the registry: by their names in other systems.

Each is its factor rule, its value by a namespace of functions (NumPy's, or those that are traced), and what transforms
and simulations must know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.core.factors import names
from meshwright.core.linearity import Linearity
from meshwright.core.types import TensorType
from meshwright.device.function import DeviceEqn, DeviceValue
from meshwright.device.types import Tensor
from meshwright.errors import ShapeError

Params = Mapping[str, Any]
Rule = Callable[[Sequence[TensorType], Params], str]


class IndependentOperands(NamedTuple):
    """Operands and results of an op, by number, that have nothing to do with its other operands and results."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


class Named(NamedTuple):
    """An op of device programs alone: its factor rule for given ranks and params, and its value by a namespace.

    The rule ends in the factors that must be whole on a device, as in ``i j -> i j | j``.

    ``shares`` are the independent parts of a call with so many operands, such as the updates of several weights.
    ``like`` is the operand whose dtype a result has, given how many operands there are and which result it is. Results
    of an op ``in_place`` take the memory of operands; one of ``floats`` refuses integers; a
    ``contraction`` runs at the rate of matrix products. ``steps`` are equations that
    do the same and can be split more.
    """

    factors: Callable[[Sequence[TensorType], Params], str]
    evaluate: Callable[..., Any]
    linear: Linearity
    flops_per_point: float = 1.0
    shares: Callable[[int], tuple[IndependentOperands, ...]] | None = None
    like: Callable[[int, int], int] = lambda operands, result: 0
    in_place: bool = False
    results: int = 1
    elementwise: bool = False
    steps: Callable[[DeviceEqn], Sequence[DeviceEqn]] | None = None
    floats: bool = False
    contraction: bool = False


def _rank(t: TensorType) -> str:
    return " ".join(names(t.ndim))


def _matmul(types: Sequence[TensorType], params: Params) -> str:
    """``b i k, k j -> b i j``; a right operand of higher rank has the batch dims of the left."""
    x, y = types
    if x.ndim < 1 or y.ndim not in (2, x.ndim) or (y.ndim > 2 and y.ndim != x.ndim):
        raise ShapeError(
            f"MatMul cannot take {x.short()}, {y.short()}.",
            why="it takes a matrix on the right, or equal batch dims on both sides",
            fix="dot_general(x, y, contract=…, batch=…, dtype=None)",
        )
    batch = [f"b{n}" for n in range(x.ndim - 1 - (y.ndim > 1 and x.ndim > 1))]
    rows = ["i"] if x.ndim > 1 else []
    shared = batch if y.ndim > 2 else []
    return f"{' '.join([*batch, *rows, 'k'])}, {' '.join([*shared, 'k', 'j'])} -> {' '.join([*batch, *rows, 'j'])}"


def _same(operands: int) -> Rule:
    """Elementwise on so many tensors; all but the first may be numbers."""

    def rule(types: Sequence[TensorType], params: Params) -> str:
        shown = _rank(types[0]) if types else "i"
        rest = [" " if t.ndim == 0 else shown for t in types[1:]]
        return f"{', '.join([shown, *rest, *[shown] * operands][:operands])} -> {shown}"

    return rule


def _updates(taken: int, given: int, more: int = 0) -> Rule:
    """The rule of an optimizer: ``taken`` tensors of each weight, then ``more`` numbers, give ``given`` of each.

    All weights come first, then all their gradients, and so on; each weight has factors of its own.
    """

    def rule(types: Sequence[TensorType], params: Params) -> str:
        weights = types[: max((len(types) - more) // taken, 1)]
        sides = [" ".join(f"{letter}_{n}" for letter in names(t.ndim)) for n, t in enumerate(weights)]
        return f"{', '.join([*sides * taken, *[' '] * more])} -> {', '.join(sides * given)}"

    return rule


def _weights(taken: int, given: int, more: int = 0) -> Callable[[int], tuple[IndependentOperands, ...]]:
    """Each weight with its gradient and state; the numbers after them belong to all."""

    def shares(operands: int) -> tuple[IndependentOperands, ...]:
        count = (operands - more) // taken
        numbers = tuple(range(count * taken, operands))
        return tuple(
            IndependentOperands((*range(n, count * taken, count), *numbers), tuple(range(n, count * given, count)))
            for n in range(count)
        )

    return shares


def _softmax_rule(types: Sequence[TensorType], params: Params) -> str:
    ndim = types[0].ndim if types else 1
    axis = params.get("axis", -1)
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ShapeError(f"Softmax has no axis {axis}.", why=f"its operand has {ndim} dims", fix="Softmax(x, axis=-1)")
    letters = names(ndim)
    return f"{' '.join(letters)} -> {' '.join(letters)} | {letters[axis]}"


def _softmax(xp: Any, x: Any, *, axis: int = -1) -> Any:
    parts = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return parts / xp.sum(parts, axis=axis, keepdims=True)


def _layer_norm_rule(types: Sequence[TensorType], params: Params) -> str:
    """Over the last dim, with or without a scale and a bias along it."""
    letters = names(types[0].ndim if types and types[0].ndim else 1)
    more = min(max(len(types) - 1, 0), 2)
    return f"{', '.join([' '.join(letters), *[letters[-1]] * more])} -> {' '.join(letters)} | {letters[-1]}"


def _layer_norm(xp: Any, x: Any, scale: Any = 1.0, bias: Any = 0.0, *, epsilon: float = 1e-5) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(xp.square(centred), axis=-1, keepdims=True) + epsilon) * scale + bias


def _gemm_rule(types: Sequence[TensorType], params: Params) -> str:
    """A matmul; onto a third operand, it needs the summed dim whole, lest each part adds it."""
    left, right = ("k i" if params.get("transA") else "i k"), ("j k" if params.get("transB") else "k j")
    if len(types) < 3:
        return f"{left}, {right} -> i j"
    return f"{left}, {right}, {' '.join(['i', 'j'][2 - min(types[2].ndim, 2) :]) or ' '} -> i j | k"


_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


def _gemm(
    xp: Any, a: Any, b: Any, c: Any = 0.0, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    return alpha * xp.matmul(a.T if transA else a, b.T if transB else b) + beta * c


def _gemm_steps(eqn: DeviceEqn) -> Sequence[DeviceEqn]:
    """A matmul, and a sum with the third operand after it."""
    (out,) = eqn.outputs
    if len(eqn.inputs) < 3 or any(eqn.attributes.get(name, plain) != plain for name, plain in _PLAIN_GEMM.items()):
        return (eqn,)
    assert isinstance(out.type, Tensor)
    added = eqn.inputs[2]
    first = DeviceValue(f"{out.name}_product", out.type)
    found = [DeviceEqn("MatMul", eqn.inputs[:2], (first,))]
    if isinstance(added, DeviceValue) and isinstance(added.type, Tensor) and len(added.type.shape) < 2:
        dims = tuple(range(2 - len(added.type.shape), 2))
        whole = DeviceValue(f"{added.name}_rows", out.type)
        found.append(DeviceEqn("broadcast_in_dim", (added,), (whole,), {"shape": out.type.shape, "dims": dims}))
        added = whole
    return (*found, DeviceEqn("add", (first, added), (out,)))


def _adam(
    xp: Any, *xs: Any, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> tuple[Any, ...]:
    """Weights, gradients, first and second moments, and how many steps there have been, this one included."""
    *tensors, t = xs
    count = len(tensors) // 4
    new: list[tuple[Any, Any, Any]] = []
    for w, g, m, v in zip(*(tensors[n * count : (n + 1) * count] for n in range(4)), strict=True):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        scaled = (m / (1 - beta1**t)) / (xp.sqrt(v / (1 - beta2**t)) + eps)
        new.append((w - lr * scaled, m, v))
    return tuple(x for column in zip(*new, strict=True) for x in column)


def _matmul_grad(xp: Any, x: Any, w: Any, dy: Any) -> tuple[Any, Any]:
    return dy @ w.T, x.T @ dy


NAMED: dict[str, Named] = {
    "MatMul": Named(_matmul, lambda xp, x, y: xp.matmul(x, y), Linearity.EACH, 2.0, contraction=True),
    "MatMulGrad": Named(
        lambda types, params: "i k, k j, i j -> i k, k j",
        _matmul_grad,
        Linearity.NONE,
        4.0,
        like=lambda operands, result: result,
        results=2,
        contraction=True,
    ),
    "Relu": Named(_same(1), lambda xp, x: xp.maximum(x, 0), Linearity.NONE, elementwise=True),
    "ReluGrad": Named(
        _same(2), lambda xp, x, dy: xp.where(x > 0, dy, 0).astype(dy.dtype), Linearity.NONE, elementwise=True
    ),
    "Gelu": Named(
        _same(1), lambda xp, x: x * 0.5 * (1 + xp.erf(x * 0.5**0.5)), Linearity.NONE, 8.0, elementwise=True, floats=True
    ),
    "Softmax": Named(_softmax_rule, _softmax, Linearity.NONE, 5.0, floats=True),
    "LayerNorm": Named(_layer_norm_rule, _layer_norm, Linearity.NONE, 8.0, floats=True),
    "Gemm": Named(_gemm_rule, _gemm, Linearity.NONE, 2.0, steps=_gemm_steps),
    "Loss": Named(_same(3), lambda xp, y, z, n: xp.square(y - z) / n, Linearity.NONE, 3.0, floats=True),
    "LossGrad": Named(_same(3), lambda xp, y, z, n: 2 * (y - z) / n, Linearity.NONE, 3.0, floats=True),
    "SGDOptimizer": Named(
        _updates(2, 1),
        lambda xp, *xs, lr=0.01: tuple(w - lr * g for w, g in zip(xs[: len(xs) // 2], xs[len(xs) // 2 :], strict=True)),
        Linearity.NONE,
        2.0,
        _weights(2, 1),
        like=lambda operands, result: result,
        in_place=True,
        floats=True,
    ),
    "AdamOptimizer": Named(
        _updates(4, 3, 1),
        _adam,
        Linearity.NONE,
        12.0,
        _weights(4, 3, 1),
        # Gradients stand between the weights and their moments.
        like=lambda operands, result: result if result < (operands - 1) // 4 else result + (operands - 1) // 4,
        in_place=True,
        floats=True,
    ),
    "Identity": Named(_same(1), lambda xp, x: x, Linearity.MOVES, 0.0),
}
