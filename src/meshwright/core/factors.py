"""Factor rules: einsum-like text from which shapes, propagation, partitioning and batching follow.

A factor is an index that an op iterates over. Each dim of each operand and result is a product of factors, major to
minor: a matmul is ``i k, k j -> i j``, a reshape that splits a dim is ``(i j) -> i j``. A factor that appears in no
result is *reduced*: a device that holds a part of it has a partial result, to be combined (``sum``, ``max``, …).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError, TextError

Dims = tuple[tuple[str, ...], ...]  # per dim, its factors from major to minor
COMBINATIONS = ("sum", "prod", "max", "min", "and", "or")  # by which devices make one result of those of parts


class Factors(NamedTuple):
    """The factor rule of one op on operands of given shapes.

    ``replicated`` factors must be whole on every device, ``permuted`` ones may stay split at the price of talking to
    neighbours, ``reduced`` ones are in no result and leave partial results, combined by ``combine``; all others pass
    through. These kinds, and ``blocked`` (never propagated along), are what propagation looks at.

    ``guarded`` factors are those along which the op on parts does not give the parts of the results, whatever their
    kind: neighbours must be seen, indices into a split dim be shifted and masked, a cut that does not line up be moved.
    A factor of size 1 on a longer dim is one of them: it stands for a dim that nothing is known about.

    ``fillable``: what changes nothing in ``combine`` changes nothing in an operand, either, as in the max of elements
    themselves, but not in that of their squares. It may then stand beyond the end of a dim that devices do not divide.
    Of a sum that is linear in the operand this is known without.

    >>> rule = Factors.parse("i k, k j -> i j", sizes={"i": 2, "k": 3, "j": 4})
    >>> sorted(rule.reduced), str(rule)
    (['k'], 'i k, k j -> i j  sum=k')
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: dict[str, int]
    replicated: frozenset[str] = frozenset()
    permuted: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    combine: str = "sum"
    reduced: frozenset[str] = frozenset()
    guarded: frozenset[str] = frozenset()
    fillable: bool = False

    @property
    def passing(self) -> frozenset[str]:
        """The factors that ask for nothing."""
        return frozenset(self.sizes) - self.reduced - self.replicated - self.permuted

    @property
    def separable(self) -> frozenset[str]:
        """The factors along which the op on parts gives the parts of the results, or what ``combine`` makes them of."""
        return frozenset(self.sizes) - self.replicated - self.guarded

    @property
    def elementwise(self) -> bool:
        """Whether each element of the results is made of those at its place in the operands; scalars are of all.

        >>> Factors.parse("i j, i j -> i j", {"i": 2, "j": 3}).elementwise
        True
        """
        dims = self.results[0]
        plain = all(len(dim) == 1 for dim in dims) and self.separable == self.passing == frozenset(self.sizes)
        return plain and all(other == dims or not other for other in (*self.operands, *self.results[1:]))

    @property
    def iterations(self) -> int:
        """How many points the op iterates over: the product of all factors."""
        return prod(self.sizes.values())

    @staticmethod
    def parse(
        text: str,
        sizes: dict[str, int],
        *,
        replicated: Iterable[str] = (),
        permuted: Iterable[str] = (),
        blocked: Iterable[str] = (),
        combine: str = "sum",
        fillable: bool = False,
    ) -> Factors:
        """Read ``i k, k j -> i j``; parentheses group the factors of one dim."""
        if text.count("->") != 1:
            raise TextError(f"A factor rule has one arrow: {text!r}", fix='"i k, k j -> i j"')
        left, right = (tuple(_parse_dims(text, part) for part in side.split(",")) for side in text.split("->"))
        used = {name for dims in (*left, *right) for dim in dims for name in dim}
        if used != set(sizes):
            raise TextError(
                f"The sizes of a factor rule do not fit it: {text!r}",
                why=f"it has the factors {_show(used)}, the sizes are for {_show(sizes)}",
                fix=f"sizes={{{', '.join(f'{name!r}: …' for name in sorted(used))}}}",
            )
        returned = {name for dims in right for dim in dims for name in dim}
        whole, moved = frozenset(replicated), frozenset(permuted)
        reduced = frozenset(name for name in sizes if name not in returned | whole | moved)
        asked = (whole, moved, frozenset(blocked), combine, reduced)
        return Factors(left, right, dict(sizes), *asked, guarded=moved, fillable=fillable)

    def __str__(self) -> str:
        def show(dims: Dims) -> str:
            return " ".join(dim[0] if len(dim) == 1 else "(" + " ".join(dim) + ")" for dim in dims)

        text = f"{', '.join(map(show, self.operands))} -> {', '.join(map(show, self.results))}"
        text = re.sub(" +", " ", text).strip()  # a scalar has no factors, and leaves no gap
        for label, names in (
            (self.combine, self.reduced),
            ("replicated", self.replicated),
            ("permuted", self.permuted),
            ("blocked", self.blocked),
            ("guarded", self.guarded - self.permuted),
        ):
            if names:
                text += f"  {label}={','.join(sorted(names))}"
        return text


def _parse_dims(text: str, part: str) -> Dims:
    groups = re.findall(r"\(([^()]*)\)|([^\s()]+)", part)
    if re.sub(r"\([^()]*\)|[^\s()]+", "", part).strip():
        raise TextError(
            f"A parenthesis of a factor rule does not match: {text!r}",
            why="parentheses group the factors of one dim, and are not nested",
            fix='"(i j) k -> i (j k)"',
        )
    found = tuple(tuple(group.split()) if not single else (single,) for group, single in groups)
    twice = [name for name, count in Counter(name for dim in found for name in dim).items() if count > 1]
    if twice:
        raise TextError(
            f"A factor stands twice in one tensor: {text!r}",
            why=f"{part.strip()!r} has {_show(twice)} more than once; a diagonal is not a factor rule",
            fix="give each dim factors of its own",
        )
    return found


def _check_combination(op: str, rule: Factors) -> None:
    if rule.combine not in COMBINATIONS:
        raise ShapeError(
            f"The factor rule of {op} combines parts by {rule.combine!r}: {rule}",
            where=here(),
            why=f"devices combine their results by one of {', '.join(COMBINATIONS)}",
            fix='combine="sum", or replicated=["k"] for a factor k that must be whole on every device',
        )


def check_fit(op: str, rule: Factors, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Factors:
    """The factor rule that an op gave for these types; one for other types is refused.

    What is known of a dim that must be whole, or whose neighbours are asked, need not be its size.
    """
    _check_combination(op, rule)
    fault = _fault("operand", rule, rule.operands, operands) or _fault("result", rule, rule.results, results)
    if fault is not None:
        raise ShapeError(
            f"The factor rule of {op} does not fit its types: {rule}",
            where=here(),
            why=fault,
            fix="a factor of its size for each dim: Factors.parse('i k -> i k', {'i': x.shape[0], 'k': x.shape[1]})\n"
            "or, of an op without operands: FactorBuilder(operands, results)",
        )
    return rule


def _fault(what: str, rule: Factors, given: tuple[Dims, ...], types: Sequence[TensorType]) -> str | None:
    if len(given) != len(types):
        return f"{what}s in it: {len(given)}, {what}s of the op: {len(types)}"
    for n, (dims, t) in enumerate(zip(given, types, strict=True)):
        if len(dims) != t.ndim:
            return f"dims of {what} {n} in it: {len(dims)}, but {what} {n} is {t.short()}"
        for dim, names in enumerate(dims):
            size = prod(rule.sizes[name] for name in names)
            if size != t.shape[dim] and rule.separable.issuperset(names):
                return f"the size of dim {dim} of {what} {n} in it: {size}, but {what} {n} is {t.short()}"
    return None


def _show(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def name(index: int) -> str:
    """The factor name with a number: i, j, …, z, z_1, z_2, …"""
    letters = "ijklmnopqrstuvwxyz"
    return letters[index] if index < len(letters) else f"z_{index - len(letters) + 1}"


def names(count: int) -> list[str]:
    """The first ``count`` factor names."""
    return [name(index) for index in range(count)]


def pointwise(operands: Sequence[TensorType], results: Sequence[TensorType], params: object = None) -> Factors:
    """One factor per dim, shared by everything; rank-0 operands have none.

    >>> import numpy as np
    >>> t = TensorType((2, 3), np.dtype("float32"))
    >>> str(pointwise([t, t], [t]))
    'i j, i j -> i j'
    """
    shape = results[0].shape
    letters = names(len(shape))
    dims = tuple((letter,) for letter in letters)
    return Factors(
        tuple(dims if t.ndim else () for t in operands),
        tuple(dims for _ in results),
        dict(zip(letters, shape, strict=True)),
    )


class FactorBuilder:
    """Builds a rule dim by dim: ``add`` makes a factor and puts it on one dim of some tensors.

    Tensors are numbered operands first, then results; a dim that is never mentioned gets a guarded factor of size 1.
    """

    def __init__(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> None:
        self._types = [*operands, *results]
        self._operand_count = len(operands)
        self._dims: list[list[list[str]]] = [[[] for _ in t.shape] for t in self._types]
        self._sizes: dict[str, int] = {}
        self._kinds: dict[str, set[str]] = {kind: set() for kind in ("replicated", "permuted", "reduced")}
        self._blocked: set[str] = set()
        self._guarded: set[str] = set()

    def add(
        self, size: int, *places: tuple[int, int], kind: str = "", blocked: bool = False, guarded: bool | None = None
    ) -> str:
        """A factor of ``size`` appended (as the minor one) to each (tensor, dim) of ``places``.

        A permuted factor is guarded unless said otherwise.
        """
        factor = name(len(self._sizes))
        self._sizes[factor] = size
        for tensor, dim in places:
            self._dims[tensor][dim].append(factor)
        if kind:
            self._kinds[kind].add(factor)
        if blocked:
            self._blocked.add(factor)
        if guarded or (guarded is None and kind == "permuted"):
            self._guarded.add(factor)
        return factor

    def build(self, combine: str = "sum", fillable: bool = False) -> Factors:
        for tensor, t in enumerate(self._types):
            for dim, size in enumerate(t.shape):
                if not self._dims[tensor][dim]:
                    self.add(1, (tensor, dim), guarded=size != 1)
        dims = tuple(tuple(tuple(factors) for factors in tensor) for tensor in self._dims)
        return Factors(
            dims[: self._operand_count],
            dims[self._operand_count :],
            self._sizes,
            frozenset(self._kinds["replicated"]),
            frozenset(self._kinds["permuted"]),
            frozenset(self._blocked),
            combine,
            frozenset(self._kinds["reduced"]),
            frozenset(self._guarded),
            fillable,
        )
