"""What propagation is asked: a program as values and nodes, with the shardings somebody wrote.

A ``Problem`` is plain data. It has no op names: a node is its factor rule, its place in the program and a few facts
that decide when and in which direction it passes shardings on. Whoever fills one in (a reader of modules, a tracer)
numbers all values of all functions and regions 0, 1, 2, … in ``Problem.values`` and refers to them by number.

What must be filled in, by kind of node:

=============  =========================================================================================
``OP``         ``rule`` (None if the op has none: nothing is propagated through it), and the facts below. Regions that
               are not control flow (the body of a reduction) are left out unless they use values from outside.
``CONSTRAINT`` one operand, one result; the sharding written in it is that of its result value.
``RESHARD``    as a constraint; nothing is ever propagated through it.
``GROUP``      one operand, no result, ``group`` is the number of the sharding group.
``EDGE``       a data-flow edge that is already in the program: one operand, which is the owner it stands for (a result
               or a block argument), one result with the edge's sharding. (Most problems have none: import adds them.)
``FUNC_EDGE``  the same, for arguments of functions that are called and for results of calls.
``BARRIER``    one operand, one result, ``direction`` is the allowed one.
``WHILE``      regions (condition, body), each with one argument per operand; the body returns one value per result.
``CASE``       the operand is the branch number, one region per branch.
``FENCE``      an optimization barrier: one result per operand, no region.
``MANUAL``     one region; ``in_shardings``, ``out_shardings``, ``manual_axes``. Values inside have local shapes.
``NAMED``      one region; ``in_shardings``, ``out_shardings`` (either may be None), ``callee`` is its name.
``CALL``       ``callee`` names a function of the problem.
=============  =========================================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from math import prod
from typing import Any, ClassVar, NamedTuple

from meshwright.core.factors import Factors
from meshwright.errors import ShardingError
from meshwright.sharding.named import TensorSharding


class Refusal(ShardingError):
    """A program that a pass refuses; ``message`` is what Shardy says of it, in one line."""

    def __init__(self, what: str, *, message: str, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, why=why, fix=fix)
        self.message = message


class Direction(enum.IntEnum):
    """The direction in which shardings may pass a node: forward is from operands to results."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3

    def union(self, other: Direction) -> Direction:
        """The directions that either of the two allows."""
        return Direction(self | other)

    def intersection(self, other: Direction) -> Direction:
        """The directions that both allow."""
        return Direction(self & other)


class Kind(enum.Enum):
    """What a node is to propagation; see the table of the module."""

    OP = "op"
    CONSTRAINT = "constraint"
    RESHARD = "reshard"
    GROUP = "group"
    EDGE = "edge"
    FUNC_EDGE = "function edge"
    BARRIER = "barrier"
    WHILE = "while"
    CASE = "case"
    FENCE = "fence"
    MANUAL = "manual computation"
    NAMED = "named computation"
    CALL = "call"


Dims = tuple[tuple[int, ...], ...]  # per dim, the numbers of its factors from major to minor


class FactorRule:
    """A factor rule with factors by number, as propagation uses it. Equal rules are the same object.

    ``operands`` and ``results`` give each tensor's factors per dim. The order of the factors counts: it is the order in
    which they are tried. ``passing`` are the factors that are neither reduced, nor replicated, nor permuted.

    >>> rule = FactorRule.of(Factors.parse("i k, k j -> i j", sizes={"i": 2, "k": 3, "j": 4}))
    >>> rule.operands, rule.results, rule.sizes, sorted(rule.passing)
    ((((0,), (1,)), ((1,), (2,))), (((0,), (2,)),), (2, 3, 4), [0, 2])
    """

    __slots__ = ("__weakref__", "blocked", "cache", "operands", "passing", "results", "sizes")

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    passing: frozenset[int]
    blocked: frozenset[int]
    cache: dict[Any, Any]  # what propagation remembers about the rule

    _interned: ClassVar[dict[Any, FactorRule]] = {}

    def __new__(
        cls,
        operands: Iterable[Dims],
        results: Iterable[Dims],
        sizes: Iterable[int],
        passing: Iterable[int],
        blocked: Iterable[int] = (),
    ) -> FactorRule:
        key = (tuple(operands), tuple(results), tuple(sizes), frozenset(passing), frozenset(blocked))
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.operands, found.results, found.sizes, found.passing, found.blocked = key
            found.cache = {}
            found = cls._interned.setdefault(key, found)
        return found

    @classmethod
    def of(cls, factors: Factors) -> FactorRule:
        """The rule with its factors numbered in the order of ``factors.sizes``."""
        number = {name: index for index, name in enumerate(factors.sizes)}

        def numbered(tensors: tuple[tuple[tuple[str, ...], ...], ...]) -> tuple[Dims, ...]:
            return tuple([tuple([tuple([number[name] for name in dim]) for dim in dims]) for dims in tensors])

        return cls(
            numbered(factors.operands),
            numbered(factors.results),
            factors.sizes.values(),
            [number[name] for name in factors.passing],
            [number[name] for name in factors.blocked],
        )

    @classmethod
    def identity(cls, shape: tuple[int, ...], operands: int = 1) -> FactorRule:
        """One factor per dim, shared by ``operands`` operands and one result."""
        dims = tuple((dim,) for dim in range(len(shape)))
        return cls((dims,) * operands, (dims,), shape, range(len(shape)))

    def tensor_size(self, dims: Dims) -> int:
        """The number of elements of a tensor, as the product of its factors."""
        return prod(self.sizes[factor] for dim in dims for factor in dim)

    def __reduce__(self) -> tuple[Any, ...]:
        return FactorRule, (self.operands, self.results, self.sizes, self.passing, self.blocked)


class ProblemValue(NamedTuple):
    """A value of the program.

    ``shape`` is None for tokens and everything else that is no tensor of static shape. ``sharding`` is what was written
    for it: on a function's argument, on the result of an op, in a constraint (its result), in an edge (its result);
    priorities included; None if nothing was written. ``name`` and ``where`` are shown to people: ``%3#1``,
    ``model.py:41``.
    """

    shape: tuple[int, ...] | None
    sharding: TensorSharding | None = None
    name: str = ""
    where: str = ""


class ProblemBlock(NamedTuple):
    """The only block of a region: its arguments, its nodes in order, and the values its terminator returns.

    ``end`` is shown to people: the name of the terminator, and where it was written.
    """

    arguments: tuple[int, ...]
    nodes: tuple[ProblemNode, ...]
    returns: tuple[int, ...]
    end: tuple[str, str] = ("", "")


class ProblemNode(NamedTuple):
    """One op of the program. See the module's table for what each kind needs.

    ``elementwise``: maps dims one to one, with the same computation at each place (also select, clamp, constraints,
    barriers, a bitcast of equal width). ``passes``: its directions in the first rounds of op priorities: BOTH for
    elementwise ops, reshape, transpose and moves between host and device, FORWARD for dynamic slices and updates, NONE
    for all others. ``backward_only``: a broadcast, which passes shardings forward in the last round only. ``pure``: it
    may be erased if nobody uses its results. ``constant``: it makes a value out of nothing (a constant, an iota).
    ``folds``: its value is constant if all its operands are (a pure elementwise op, broadcast, reshape, slice).
    ``spreads_scalar``: a broadcast of a scalar. ``sums``: it takes partial sums over mesh axes. ``across``: it combines
    the values of groups of devices, by ``sum``, ``max``, ``min`` or otherwise (""), None for all other ops. ``key``:
    nodes of equal key, operands and result shardings compute the same values, so that equal constants can become one;
    None if that is not known. ``shows_rule``: its rule is to be written on it. ``ref`` is the reader's: whatever it
    needs to find its op again. The answer is a ``Problem`` too, with every sharding filled in; its nodes and their
    clones keep ``ref``; nodes that were added have None, and dead nodes are gone.
    """

    kind: Kind
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: FactorRule | None = None
    regions: tuple[ProblemBlock, ...] = ()
    elementwise: bool = False
    passes: Direction = Direction.NONE
    backward_only: bool = False
    pure: bool = True
    constant: bool = False
    folds: bool = False
    spreads_scalar: bool = False
    sums: bool = False
    across: str | None = None
    key: Hashable = None
    group: int = 0
    direction: Direction = Direction.BOTH
    in_shardings: tuple[TensorSharding, ...] | None = None
    out_shardings: tuple[TensorSharding, ...] | None = None
    manual_axes: tuple[str, ...] = ()
    callee: str = ""
    name: str = ""
    where: str = ""
    ref: Any = None
    shows_rule: bool = False


class ProblemFunction(NamedTuple):
    """A function: its block, whose arguments carry their shardings, and the shardings written for its results.

    ``private``: it may be removed if nobody calls it. ``result_where``: where the result shardings were written.
    ``original_name``: the name of the function that it was copied from, if it is known to be a copy. In an answer,
    ``origin`` is the function of the problem whose attributes it has, "" if it was made of the computation ``ref``.
    ``calls``: of a function whose body nobody looks into (it is only declared, or has branches), those that it names.
    """

    name: str
    block: ProblemBlock
    result_shardings: tuple[TensorSharding | None, ...]
    private: bool = False
    result_where: tuple[str, ...] = ()
    origin: str = ""
    original_name: str = ""
    ref: Any = None
    calls: tuple[str, ...] | None = None


class Problem(NamedTuple):
    """All functions of a program, in order, and all their values by number. The main one is the only one, or ``main``.

    ``meshes`` are the declared ones; shardings name them by ``mesh.name``.
    """

    values: tuple[ProblemValue, ...]
    functions: tuple[ProblemFunction, ...]
    meshes: tuple[Any, ...] = ()
