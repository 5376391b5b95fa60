"""How exactly and by which algorithm something is computed, as ``jax.lax`` asks for it.

What is asked for is met: elementary functions are right to a few units in the last place, and products of floats are
taken in their own dtype. An algorithm that would round more than that is refused where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from meshwright import lax as _lax
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.numpy import log2 as _log2


class AccuracyMode(Enum):
    """How exactly an elementary function is computed."""

    HIGHEST = 1
    DEFAULT = 2


@dataclass(frozen=True)
class Tolerance:
    """By how much a result of an elementary function may be off."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


class RandomAlgorithm(IntEnum):
    """Which generator ``rng_bit_generator`` draws from."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


@dataclass(frozen=True)
class DotAlgorithm:
    """In which dtypes a product reads its operands and adds up, and in how many parts."""

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


DotAlgorithmPreset = Enum(
    "DotAlgorithmPreset",
    "DEFAULT ANY_F8_ANY_F8_F32 ANY_F8_ANY_F8_F32_FAST_ACCUM ANY_F8_ANY_F8_ANY ANY_F8_ANY_F8_ANY_FAST_ACCUM "
    "F16_F16_F16 F16_F16_F32 BF16_BF16_BF16 BF16_BF16_F32 BF16_BF16_F32_X3 BF16_BF16_F32_X6 BF16_BF16_F32_X9 "
    "TF32_TF32_F32 TF32_TF32_F32_X3 F32_F32_F32 F64_F64_F64",
    module=__name__,
)

DotDimensionNumbers = tuple[tuple[Any, Any], tuple[Any, Any]]
PrecisionLike = (
    str
    | _lax.Precision
    | tuple[str, str]
    | tuple[_lax.Precision, _lax.Precision]
    | DotAlgorithm
    | DotAlgorithmPreset
    | None
)
ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | _lax.ConvDimensionNumbers | None


def _check_accuracy(name: str, accuracy: Any) -> None:
    """The functions of NumPy and ours are within a few units in the last place; a bound below that is refused."""
    if accuracy is None or isinstance(accuracy, AccuracyMode):
        return
    if isinstance(accuracy, Tolerance) and (accuracy.ulps >= 4 or accuracy.rtol >= 5e-7 or accuracy.atol >= 1e-6):
        return
    raise MeshwrightError(
        f"lax.{name} cannot be computed with accuracy={accuracy!r}.",
        where=here(),
        why="elementary functions are right to four units in the last place, and bounds are met that allow as much",
        fix="accuracy=lax.Tolerance(ulps=4), lax.AccuracyMode.HIGHEST or None",
    )


def _with_accuracy(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = _log2 if name == "log2" else getattr(_lax, name)

    def computed(x: Any, *, accuracy: Any = None) -> Any:
        _check_accuracy(name, accuracy)
        return function(x)

    computed.__name__ = computed.__qualname__ = name
    computed.__doc__ = f"{(function.__doc__ or name).rstrip()} ``accuracy`` says how exactly."
    return computed


# By name, in this order.
_NAMES = "cbrt cos erfc exp exp2 expm1 log log1p logistic rsqrt sin sqrt tan tanh log2"
ACCURATE = tuple(_with_accuracy(name) for name in _NAMES.split())
