"""``mnp.einsum``: text, to terms of labels, to a cached list of op applications.

>>> import meshwright.numpy as mnp
>>> mnp.einsum("ij,j->i", mnp.ones((2, 3)), mnp.arange(3.0))
Array([3., 3.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, convert, promote_operands, value
from meshwright.arrays.static import OPEN, check_precision, laid_out_as, no_out, placed
from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.program import Params
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.ops import basic
from meshwright.ops.contraction import dot_general
from meshwright.ops.reduction import reduce_or
from meshwright.ops.shape import slice_

# One operand replaced by an op of it, or (with a partner) two operands by an op of both, which joins at the end.
_Step = tuple[int, int | None, Op, dict[str, Any]]

# Labels for the dims under an ellipsis, counted from the right; no text can contain them.
_ELLIPSIS_LABELS = tuple(chr(0xE000 + n) for n in range(64))


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """Products of arrays summed over labels that the result does not have, as in Einstein's notation.

    >>> import meshwright.numpy as mnp
    >>> q = mnp.ones((2, 5, 4, 8))
    >>> mnp.einsum("bqhd,bkhd->bhqk", q, q).shape
    (2, 4, 5, 5)
    """
    check_precision(precision)
    no_out(out, "mnp.einsum")
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists(subscripts, operands)
    values = [value(x) for x in promote_operands([value(x) for x in operands])] if operands else []
    terms, result = _parse(subscripts, tuple(x.type.ndim for x in values))
    wanted = None if preferred_element_type is None else as_dtype(preferred_element_type)
    steps = _plan(subscripts, terms, result, tuple(x.type.shape for x in values), wanted)
    for number, (index, partner, op, params) in enumerate(steps):
        if out_sharding is not None and op in (dot_general, basic.reduce_sum):
            order = next(
                (after["permutation"] for _, _, op, after in steps[number + 1 :] if op is basic.transpose), None
            )
            if partner is not None:
                last = len(values) == 2
                params = {**params, **_asked(values[index], values[partner], params, not last, out_sharding, order)}
            elif len(values) == 1 and _leaves_sums(out_sharding):
                kind = values[0].type
                params = {**params, **laid_out_as((kind,), out_sharding, kind.ndim - len(params["axes"]), order)}
        if partner is None:
            truths = (
                op is basic.reduce_sum and values[index].type.dtype == dtypes.BOOL
            )  # their sum is whether one holds
            values[index] = apply(reduce_or if truths else op, (values[index],), params)
        else:
            x, y = values[index], values[partner]
            values = [v for n, v in enumerate(values) if n not in (index, partner)]
            values.append(apply(op, (x, y), params))
    found = values[0]
    return placed(found if wanted is None else convert(found, wanted), None, out_sharding)


def _leaves_sums(out_sharding: Any) -> bool:
    """Whether a result is asked for with sums left open."""
    return bool(getattr(getattr(out_sharding, "spec", out_sharding), "unreduced", None))


def _asked(x: Value, y: Value, params: Params, more: bool, out_sharding: Any, order: Any) -> Params:
    """How a product in an einsum is laid out: the last one as ``out_sharding`` says, others as their operands say."""
    rank = x.ndim + y.ndim - 2 * len(params["contract"][0]) - len(params["batch"][0])
    types = (x.type, y.type)
    return laid_out_as(types, OPEN, rank) if more else laid_out_as(types, out_sharding, rank, order)


def _from_lists(first: ArrayLike, rest: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The other calling form, ``einsum(x, [0, 1], y, [1, 2], [0, 2])``, as text."""
    given = (first, *rest)
    lists = given[1::2] + (given[-1:] if len(given) % 2 else ())
    if len(given) < 2 or not all(isinstance(sub, list | tuple) for sub in lists):
        raise ShapeError(
            f"mnp.einsum cannot take {len(given)} arguments without subscripts.",
            where=here(),
            why="its first argument is text, or each operand is followed by a list of labels",
            fix="mnp.einsum('ij,jk->ik', x, y)",
        )
    text = [
        "...".join("".join(ascii_letters[n] for n in part) for part in _around_ellipsis(sub)) for sub in given[1::2]
    ]
    output = None
    if len(given) % 2:
        output = "...".join("".join(ascii_letters[n] for n in part) for part in _around_ellipsis(given[-1]))
        return ",".join(text) + "->" + output, given[0:-1:2]
    return ",".join(text), given[0::2]


def _around_ellipsis(sub: Sequence[Any]) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for label in sub:
        if label is Ellipsis:
            parts.append([])
        else:
            parts[-1].append(int(label))
    return parts


# Text to terms


def _error(text: str, why: str, fix: str) -> ShapeError:
    return ShapeError(f'mnp.einsum cannot take "{text}".', where=here(), why=why, fix=fix)


@lru_cache(maxsize=4096)
def _parse(text: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """One string of labels per operand, and that of the result; an ellipsis becomes labels too."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise _error(
            text, f"it has {len(terms)} terms for {len(ranks)} operands", "one term per operand, e.g. 'ij,jk->ik'"
        )
    for part in (*terms, right):
        if part.count("...") > 1 or not all(c in ascii_letters for c in part.replace("...", "")):
            raise _error(
                text, f"'{part}' is not letters with at most one '...'", "'bij,bjk->bik' or '...ij,...jk->...ik'"
            )
    expanded, longest = [], 0
    for term, rank in zip(terms, ranks, strict=True):
        hidden = rank - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            shown = term or "''"
            raise _error(text, f"'{shown}' has {len(term.replace('...', ''))} labels for an operand of rank {rank}",
                         f"one label per dim, e.g. '{ascii_letters[8 : 8 + rank]}', or '...' for some")  # fmt: skip
        longest = max(longest, hidden)
        expanded.append(term.replace("...", "".join(reversed(_ELLIPSIS_LABELS[:hidden]))))
    dots = "".join(reversed(_ELLIPSIS_LABELS[:longest]))
    if arrow:
        if longest and "..." not in right:
            raise _error(text, "the operands have dims under '...' that the result leaves out", f"'{left}->...{right}'")
        result = right.replace("...", dots)
        for label in result:
            if result.count(label) > 1:
                raise _error(text, f"the result has '{label}' twice", "name each dim of the result once")
            if not any(label in term for term in expanded):
                raise _error(
                    text, f"the result has '{label}', and no operand has", f"leave '{label}' out of the result"
                )
    else:
        # Without an arrow, the labels that occur once, in alphabetical order.
        joined = "".join(expanded)
        result = dots + "".join(sorted(c for c in set(joined) if joined.count(c) == 1 and c in ascii_letters))
    return tuple(expanded), result


# Terms to steps


@lru_cache(maxsize=4096)
def _plan(
    text: str, terms: tuple[str, ...], result: str, shapes: tuple[Shape, ...], dtype: dtypes.DType | None
) -> tuple[_Step, ...]:
    """The op applications that compute an einsum of operands of these shapes."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, n in zip(term, shape, strict=True):
            known = sizes.setdefault(label, n)
            if known == 1:
                sizes[label] = n
            elif n not in (1, known):
                name = label if label in ascii_letters else "..."
                raise _error(
                    text,
                    f"label '{name}' has sizes {known} and {n}: the operands are {', '.join(map(str, shapes))}",
                    "give dims that are multiplied together one size, or labels of their own",
                )
    steps: list[_Step] = []
    labels = [
        _one_operand(steps, k, term, shape, sizes) for k, (term, shape) in enumerate(zip(terms, shapes, strict=True))
    ]
    for k, own in enumerate(labels):
        others = "".join(labels[:k] + labels[k + 1 :]) + result
        labels[k] = _sum_out(steps, k, own, others)
    while len(labels) > 1:
        i, j = _cheapest_pair(labels, result, sizes)
        kept = set("".join(x for n, x in enumerate(labels) if n not in (i, j)) + result)
        last = len(labels) == 2
        joined = _contract(steps, i, j, labels, kept, result if last else None, sizes, dtype)
        labels = [x for n, x in enumerate(labels) if n not in (i, j)] + [joined]
    if labels[0] != result:
        steps.append((0, None, basic.transpose, {"permutation": tuple(labels[0].index(c) for c in result)}))
    return tuple(steps)


def _one_operand(steps: list[_Step], k: int, term: str, shape: Shape, sizes: dict[str, int]) -> str:
    """Drop dims of size 1 that broadcast, and take the diagonal of labels that occur twice."""
    dropped = [d for d, (c, n) in enumerate(zip(term, shape, strict=True)) if n == 1 and sizes[c] != 1]
    if dropped:
        shape = tuple(n for d, n in enumerate(shape) if d not in dropped)
        term = "".join(c for d, c in enumerate(term) if d not in dropped)
        steps.append((k, None, basic.reshape, {"shape": shape}))
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            rest = [d for d in range(len(term)) if d not in (first, second)]
            n, lead = shape[first], tuple(shape[d] for d in rest)
            steps.append((k, None, basic.transpose, {"permutation": (*rest, first, second)}))
            steps.append((k, None, basic.reshape, {"shape": (*lead, n * n)}))
            strided = {
                "starts": (0,) * (len(lead) + 1),
                "limits": (*lead, n * n),
                "strides": (1,) * len(lead) + (n + 1,),
            }
            steps.append((k, None, slice_, strided))
            term, shape = "".join(term[d] for d in rest) + label, (*lead, n)
    return term


def _sum_out(steps: list[_Step], k: int, own: str, others: str) -> str:
    axes = tuple(d for d, c in enumerate(own) if c not in others)
    if axes:
        steps.append((k, None, basic.reduce_sum, {"axes": axes}))
    return "".join(c for c in own if c in others)


def _cheapest_pair(labels: list[str], result: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The two operands whose product saves the most elements, of those the one of the least work."""
    if len(labels) == 2:
        return 0, 1
    best, found = None, (0, 1)
    for i in range(len(labels)):
        for j in range(i + 1, len(labels)):
            kept = set("".join(x for n, x in enumerate(labels) if n not in (i, j)) + result)
            together = {*labels[i], *labels[j]}
            size = prod(sizes[c] for c in together & kept)
            price = size - sum(prod(sizes[c] for c in labels[n]) for n in (i, j)), prod(sizes[c] for c in together)
            if best is None or price < best:
                best, found = price, (i, j)
    return found


def _contract(
    steps: list[_Step],
    i: int,
    j: int,
    labels: list[str],
    kept: set[str],
    result: str | None,
    sizes: dict[str, int],
    dtype: dtypes.DType | None,
) -> str:
    """One product of two operands; the labels of what it gives."""
    x, y = labels[i], labels[j]
    shared = [c for c in x if c in y]
    batch = [c for c in shared if c in kept]
    contracted = [c for c in shared if c not in kept]
    if not contracted and dtype is None:
        return _multiply(steps, i, j, x, y, result, sizes)
    if result is not None:
        batch.sort(key=result.index)
        if _product_labels(batch, y, x) == result != _product_labels(batch, x, y):
            i, j, x, y = j, i, y, x
    pairs = [tuple(tuple(map(side.index, chosen)) for side in (x, y)) for chosen in (contracted, batch)]
    steps.append((i, j, dot_general, {"contract": pairs[0], "batch": pairs[1], "dtype": dtype}))
    return _product_labels(batch, x, y)


def _product_labels(batch: list[str], x: str, y: str) -> str:
    """The labels of a dot_general: batch, then what is left of each operand."""
    return "".join(batch) + "".join(c for c in x if c not in y) + "".join(c for c in y if c not in x)


def _multiply(steps: list[_Step], i: int, j: int, x: str, y: str, result: str | None, sizes: dict[str, int]) -> str:
    """A product without a sum: both operands spread over all labels."""
    every = x + "".join(c for c in y if c not in x)
    if result is not None:
        every = "".join(c for c in result if c in every)
    shape = tuple(sizes[c] for c in every)
    for k, own in ((i, x), (j, y)):
        order = sorted(own, key=every.index)
        if list(own) != order:
            steps.append((k, None, basic.transpose, {"permutation": tuple(map(own.index, order))}))
        if own and len(own) != len(every):
            steps.append((k, None, basic.broadcast_in_dim, {"shape": shape, "dims": tuple(map(every.index, order))}))
    steps.append((i, j, basic.mul, {}))
    return every


def einsum_path(
    subscripts: Any, /, *operands: Any, optimize: bool | str | list[tuple[int, ...]] = "auto"
) -> tuple[list[tuple[int, ...]], Any]:
    """The order in which products of several arrays are taken two at a time, and a text that compares their costs.

    >>> import meshwright.numpy as mnp
    >>> mnp.einsum_path("ij,jk,k->i", mnp.ones((9, 9)), mnp.ones((9, 9)), mnp.ones(9))[0]
    [(1, 2), (0, 1)]
    """
    shaped: list[Any] = [
        x if isinstance(x, list | tuple | str) else np.broadcast_to(np.float32(0), value(x).shape) for x in operands
    ]
    how: Any = {"auto": True, True: "optimal"}.get(optimize, optimize) if isinstance(optimize, str | bool) else optimize
    (_, *path), shown = np.einsum_path(subscripts, *shaped, optimize=how)
    return path, shown
