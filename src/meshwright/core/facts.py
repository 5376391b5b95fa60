"""What stages must know of an op beyond its meaning: how it fuses, what it does to memory, how it is split where a run
on blocks is not enough, and what it is in the structure of a program.

How it fuses follows from the factor rule and the cost, unless the op says otherwise. That results have memory of their
own, which an engine may write over, is known only of ops that say so. Most ops are split by their factor rule alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from meshwright.core.factors import Factors
from meshwright.core.linearity import Types
from meshwright.core.program import Params


class Fusion(Enum):
    """How a compiler runs an op among its neighbours."""

    VIEW = "the same value in other words, which costs nothing"
    CHEAP = "elementwise, and computed again wherever it is read"
    ELEMENTWISE = "elementwise, and computed once"
    PERMUTATION = "elementwise in another order of dims, and a view where contractions alone read it"
    REDUCTION = "the end of a kernel, unless its rows stay on the chip"
    CONTRACTION = "a kernel of its own, at the rate of matrix products"
    ALONE = "a kernel of its own"

    @property
    def alone(self) -> bool:
        return self is Fusion.CONTRACTION or self is Fusion.ALONE


class Memory(Enum):
    """Where the results of an op lie."""

    SHARED = "perhaps in the memory of its operands"
    FRESH = "in memory of their own"
    IN_PLACE = "in memory of their own; a compiler writes them over the first operand where nobody reads it again"


class Across(Enum):
    """How an op looks across the blocks of a dim, and which of its params say where."""

    NOT = "it does not: blocks of operands give blocks of results, as the factor rule says"
    COUNTED = "it counts along ``dim``, and a block counts from where it begins"
    CUT = "it keeps what lies between ``starts`` and ``limits``, every ``strides``"
    PADDED = "it puts ``low``, ``high`` and ``interior`` elements around and between those of a dim"
    REVERSED = "it turns ``dims`` around"
    JOINED = "it joins its operands along ``dim``"
    CONVOLVED = "it multiplies windows of its first operand with its second, which slides over it"
    WINDOWED = "each element of the result is made of a window of its last operand"
    UNWINDOWED = "each element of its first operand is put into a window of its second"
    READ = "it reads windows of its first operand at the vectors of its second"
    WRITTEN = "it combines windows of its third operand into its first at the vectors of its second"
    READ_AT = "it reads a window of its first operand that begins at the scalars after it"
    WRITTEN_AT = "it writes its second operand into its first at the scalars after them"
    RUNNING = "it reduces all that come before along ``axis``, or after if ``reverse``"
    EXTREME = "it says where the first extreme stands along ``axis``"
    LARGEST = "it takes the ``k`` largest along the last dim, and says where they stand"


_PARAMS: dict[Across, str] = {
    Across.COUNTED: "shape dim",
    Across.CUT: "starts limits strides",
    Across.PADDED: "low high interior",
    Across.REVERSED: "dims",
    Across.JOINED: "dim",
    Across.CONVOLVED: "dims strides padding lhs_dilation rhs_dilation feature_groups batch_groups",
    Across.WINDOWED: "window strides padding base_dilation window_dilation",
    Across.UNWINDOWED: "window strides padding base_dilation window_dilation select",
    Across.READ: "slice_sizes offset_dims collapsed_dims start_index_map operand_batch_dims indices_batch_dims mode",
    Across.WRITTEN: "update_window_dims inserted_window_dims scatter_dims_to_operand_dims operand_batch_dims "
    "scatter_indices_batch_dims mode",
    Across.READ_AT: "sizes",
    Across.RUNNING: "axis reverse",
    Across.EXTREME: "axis dtype",
    Across.LARGEST: "k",
}


def params_for(across: Across) -> tuple[str, ...]:
    """The params that an op must have which looks across blocks so."""
    return tuple(_PARAMS.get(across, "").split())


class Split(NamedTuple):
    """What devices do with an op where a dim is split that it looks across: how it does, and how elements combine."""

    across: Across = Across.NOT
    combine: str = "sum"


BLOCKS = Split()


class ExplicitFacts(NamedTuple):
    """What the shardings of results on Explicit axes depend on, beside the factor rule."""

    product: bool  # linear in each operand: what it sums over may be split in several of them
    joins: bool
    compares: bool  # blocks of a dim that no result has, as a reduction does: where an extreme stands
    unwindows: bool  # its first operand into windows of its second
    constraint: bool


class Structure(Enum):
    """What an op is in the structure of a program, for stages that follow values through it."""

    ROWS = "a loop over the rows of arrays"
    LOOP = "a loop until a test fails"
    BRANCH = "one of several programs, which an index chooses"
    DEVICE = "a program written for one device of a mesh"
    COLLECTIVE = "what devices along axes do together, in a program written for one of them"
    VARYING = "its operand, which from here on may differ along axes"
    SUMMED = "its operand, whose partial sums are summed over axes"
    KERNEL = "a kernel written by hand"
    CONSTRAINT = "its operand, in a sharding that somebody asked for"
    OFFLOAD = "its operand, moved to the memory of the host"
    RELOAD = "its operand, moved back from the memory of the host"
    NAMED = "its operand, by a ``name`` that says whether it is kept for a derivative"
    PMAP = "a program for each device of its operands, in a program that names devices"
    MOVE = "its operands on other devices, in a program that names devices"
    TUPLE = "its operands side by side, or one of those, in a program that names devices"


FusionRule = Callable[[Types, Types, Params], Fusion]
MemoryRule = Callable[[Types, Types, Params], Memory]

CHEAP_FLOPS = 8.0  # in one element of what is rather computed again than read


def fusion_by_factors(rule: Factors, flops: float, results: Types) -> Fusion:
    """How an op fuses that says nothing of it: what is summed over in several operands at once is a contraction.

    >>> rule = Factors.parse("i k, k j -> i j", sizes={"i": 2, "k": 3, "j": 4})
    >>> fusion_by_factors(rule, 48.0, ()).name
    'CONTRACTION'
    """
    reduced = {name for name in rule.reduced if rule.sizes[name] > 1}
    holding = [sum(any(name in dim for dim in dims) for dims in rule.operands) for name in reduced]
    if reduced:
        return Fusion.CONTRACTION if max(holding) > 1 else Fusion.REDUCTION
    elements = sum(t.size for t in results)
    return Fusion.CHEAP if flops <= CHEAP_FLOPS * max(1, elements) else Fusion.ELEMENTWISE
