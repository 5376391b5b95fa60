"""The groups of operands in which ops are linear, by brute force: an op distributes over sums of the operands of each
group, integers wrapping around, and over sums of no other operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.linearity import LinearGroup, Magnitude, keeps_sums, stays_finite
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.trace import to_array
from tests.ops.drawing import draw, rng

OPS = [op for _, op in sorted(REGISTRY.items()) if any(sample.operands for sample in op.samples())]
# Sets of operands that wait for their sums all the same: each such op would scale summands by what may be too much for
# them, or rounds only once, or (the barrier) leaves each of its results in a dtype of its own.
WAIT: dict[str, set[tuple[int, ...]]] = {
    "fma": {(0, 2), (1, 2)},
    "nextafter": {(0,), (0, 1)},
    "optimization_barrier": {(0, 1, 2)},
    "shift_left": {(0,), (1,), (0, 1)},
    "shift_right_logical": {(0,), (1,), (0, 1)},
    "triangular_solve": {(1,)},
}
DTYPES = (dtypes.BOOL, dtypes.INT8, dtypes.UINT32, dtypes.FLOAT32, dtypes.BFLOAT16, dtypes.COMPLEX64)


@pytest.fixture(autouse=True)
def _sixty_four_bits(x64: None) -> Iterator[None]:
    yield


def drawn(op: Op, sample: Sample, dtype: DType | None, *key: object) -> list[Any]:
    """Operands; integers that are no indices from the whole range of their dtype."""
    found = [np.asarray(x) for x in draw(sample, dtype, op.name, *key)]
    generator = rng("whole range", op.name, *key)
    for n, (x, operand) in enumerate(zip(found, sample.operands, strict=True)):
        if operand.dtype is None and dtypes.is_integer(x.dtype):
            info = np.iinfo(x.dtype)
            found[n] = generator.integers(info.min, info.max, x.shape, x.dtype, endpoint=True)
    return found


def results(op: Op, operands: Sequence[Any], sample: Sample) -> list[Any]:
    outs = op(*operands, **sample.params)
    return [np.asarray(x) for x in (outs if isinstance(outs, tuple) else (outs,))]


def coarse(x: Any) -> Any:
    """Halves instead of floats, whose sums are exact in every dtype."""
    if not dtypes.is_inexact(x.dtype):
        return x
    real, *imaginary = (
        np.clip(np.round(part.astype(np.float64) * 2) / 2, -1.5, 1.5)
        for part in ((x.real, x.imag) if dtypes.is_complex(x.dtype) else (x,))
    )
    return (real + 1j * imaginary[0] if imaginary else real).astype(x.dtype)


def added(x: Any, y: Any) -> Any:
    """The sum as devices take it: bools by or, integers wrapping around."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x | y if x.dtype == dtypes.BOOL else x + y).astype(x.dtype)


def distributes(op: Op, sample: Sample, dtype: DType | None, chosen: Sequence[int]) -> bool:
    """Whether the op of a sum is the sum of the op, for sums of the chosen operands while the others are held."""
    for attempt in range(4):
        one, other = (drawn(op, sample, dtype, attempt, side) for side in range(2))
        summands = [[coarse(x) if n in chosen else one[n] for n, x in enumerate(side)] for side in (one, other)]
        total = [added(x, y) if n in chosen else x for n, (x, y) in enumerate(zip(*summands, strict=True))]
        whole = results(op, total, sample)
        parts = [results(op, side, sample) for side in summands]
        for found, x, y in zip(whole, *parts, strict=True):
            if not close(found, added(x, y), 1e-4 if min(z.dtype.itemsize for z in (*total, *whole)) > 2 else 0.1):
                return False
    return True


def close(found: Any, expected: Any, tolerance: float) -> bool:
    if not dtypes.is_inexact(found.dtype):
        return bool(np.array_equal(found, expected))
    wide = np.complex128 if dtypes.is_complex(found.dtype) else np.float64
    return bool(np.allclose(found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True))


@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_an_op_distributes_over_the_sums_of_its_groups_and_over_no_others(op: Op) -> None:
    missed: dict[tuple[Any, ...], bool] = {}
    for index, sample in enumerate(op.samples()):
        own = all(operand.dtype is not None for operand in sample.operands)
        for dtype in (None,) if own else (d for d in op.dtypes if d in DTYPES):
            operands = drawn(op, sample, dtype)
            types = [to_array(x).type for x in operands]
            outs = [to_array(x).type for x in results(op, operands, sample)]
            groups = {group.operands for group in op.groups(types, outs, sample.params)}
            for chosen in (c for size in range(1, len(types) + 1) for c in combinations(range(len(types)), size)):
                linear = distributes(op, sample, dtype, chosen)
                what = f"{op.name} {index} {dtype} {dict(sample.params)} in {chosen}"
                assert linear or chosen not in groups, f"not linear: {what}"
                # One sample may be linear by chance, or because there is nothing to it.
                missed[dtype, chosen] = missed.get((dtype, chosen), True) and linear and chosen not in groups
            if dtypes.BOOL in (dtype, *(t.dtype for t in outs)):
                missed.update(dict.fromkeys((key for key in missed if key[0] == dtype), False))  # or is no sum
    found = {chosen for (_, chosen), linear in missed.items() if linear}
    assert found <= WAIT.get(op.name, set()), f"{op.name} is linear in {found}"


def pairs_of(dtype: DType) -> tuple[Any, Any]:
    """Numbers to add up by which conversions that do not keep sums show: those that round, overflow and wrap around."""
    if dtype == dtypes.BOOL:
        return np.array([True, True, False]), np.array([True, False, False])
    if dtypes.is_integer(dtype):
        info, generator = np.iinfo(dtype), rng("pairs", dtype)
        some = [generator.integers(info.min, info.max, 30, dtype, endpoint=True) for _ in range(2)]
        one, other = (np.append(x, np.array(y, dtype)) for x, y in zip(some, ([info.max, 1], [1, 0]), strict=True))
        other[-1] = ~other[-1]  # with 1, all bits set are 0
        return one, other
    limits = ml_dtypes.finfo(dtypes.real_part(dtype))  # type: ignore[no-untyped-call]
    most, step, least = (float(x) for x in (limits.max, limits.eps, limits.smallest_subnormal))
    unit = 1 + 1j if dtypes.is_complex(dtype) else 1
    one, other = np.array([1 + step, most, least, 0.5]) * unit, np.array([-1, -most, least, 0.5]) * unit
    return one.astype(dtype), other.astype(dtype)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_conversions_that_keep_sums(source: DType) -> None:
    convert = REGISTRY["convert"]
    one, other = pairs_of(source)
    for target in dtypes.ALL:
        whole, *parts = (np.asarray(convert(x, dtype=target, weak=False)) for x in (added(one, other), one, other))
        same = np.array_equal(whole, added(*parts))
        assert keeps_sums(source, target) == same, f"{source} to {target}"


def test_factors_and_divisors_that_summands_stand() -> None:
    floats, integers = [to_array(np.float32(1)).type] * 2, [to_array(np.int32(1)).type] * 2
    product, quotient = LinearGroup((0,), factors=(1,)), LinearGroup((0,), divisors=(1,))

    def stands(group: LinearGroup, number: Any, types: Any = floats) -> bool:
        return stays_finite(group, types, lambda n: None if number is None else Magnitude.of(number))

    assert all(stands(product, number) for number in (None, 0.0, 1.0, -1.0, 0.5, [0.1, -0.9], 0.6 - 0.6j, []))
    assert not any(stands(product, number) for number in (2.0, -1.5, [0.5, 3.0], np.inf, np.nan, 1 + 1j))
    assert all(stands(quotient, number) for number in (None, 1.0, -8.0, [2.0, 3.0]))
    assert not any(stands(quotient, number) for number in (0.0, 0.5, [2.0, 0.0], np.inf, np.nan))
    assert stands(product, 1000, integers)
