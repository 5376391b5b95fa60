"""What stages must know of an op beyond its meaning: how it fuses, and what it does to memory.

How it fuses follows from the factor rule and the cost, unless the op says otherwise. That results have memory of their
own, which an engine may write over, is known only of ops that say so.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

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
