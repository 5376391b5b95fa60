"""Operands that devices hold as partial sums: producers of every kind, and what may happen to their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import pointwise
from meshwright.core.linearity import Does
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.program import Eqn, Program
from meshwright.core.trace import close, to_array, trace
from meshwright.ops.arithmetic import div
from meshwright.ops.basic import add, convert, mul, neg, reduce_sum, reshape
from meshwright.ops.contraction import dot_general
from meshwright.ops.gathering import gather
from meshwright.ops.index_windows import Windows
from meshwright.ops.indexing import dynamic_slice
from meshwright.ops.shape import slice_
from tests.ops.drawing import draw, edges, rng
from tests.partition.test_every_op import program_of

Value = Any
ROWS = 4

# Values of a dtype are rounded to multiples of a unit, and bounded, so that all of their sums here are exact.
_UNIT = {dtypes.FLOAT8_E5M2: 0.5, dtypes.FLOAT8_E4M3FN: 0.25, dtypes.BFLOAT16: 2.0**-4, dtypes.FLOAT16: 2.0**-5}
_HUGE = {dtypes.FLOAT8_E5M2: 2.0**8, dtypes.FLOAT8_E4M3FN: 2.0**4, dtypes.FLOAT16: 2.0**8}


class Producer(NamedTuple):
    """A way to an operand of which each device holds a summand.

    ``sources(value, generator)`` are arrays whose first dim is to be split, and others that are not; of them ``make``
    makes the value.
    """

    name: str
    dtypes: tuple[DType, ...]
    sources: Callable[[Any, np.random.Generator], list[Any]]
    make: Callable[..., Value]
    split: int = 1  # how many of the sources are split
    exact: bool = False  # whether all but one summand are zeros


# Sums


def on_grid(value: Any) -> Any:
    """The value nearest to one that sums here are exact for."""
    dtype = value.dtype
    if not dtypes.is_inexact(dtype):
        return value
    real = dtypes.real_part(dtype)
    unit, most = _UNIT.get(real, 2.0**-8), 3.0 if real.itemsize == 1 else 8.0 if real.itemsize == 2 else 64.0

    def rounded(x: Any) -> Any:
        return np.clip(np.round(np.asarray(x, np.float64) / unit) * unit, -most, most)

    if dtypes.is_complex(dtype):
        return (rounded(value.real) + 1j * rounded(value.imag)).astype(dtype)
    return rounded(value).astype(dtype)


def summands(value: Any, generator: np.random.Generator) -> Any:
    """Rows whose sum is ``value``, of integers by wrapping around: g, value - g, h, -h in some order."""
    dtype, shape = value.dtype, value.shape
    if dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        g, h = (generator.integers(info.min, info.max, shape, dtype, endpoint=True) for _ in range(2))
    else:
        unit = _UNIT.get(dtypes.real_part(dtype), 1.0)
        g, h = (np.asarray(generator.integers(-1, 2, shape) * unit).astype(dtype) for _ in range(2))
    with np.errstate(over="ignore"):
        rows = [g, value - g, h, (0 - h).astype(dtype)]
    return np.stack([np.asarray(rows[n], dtype) for n in generator.permutation(ROWS)])


def huge_summands(value: Any, generator: np.random.Generator) -> Any:
    """Rows that are so large that most factors make them infinite, and whose sum is zero."""
    dtype = value.dtype
    if not dtypes.is_inexact(dtype):
        return summands(value, generator)
    size = _HUGE.get(dtypes.real_part(dtype), 2.0**100)
    g = np.asarray(generator.choice([-3, -1, 1, 3], value.shape) * size).astype(dtype)
    rows = [g, (0 - g).astype(dtype), np.zeros_like(g), np.zeros_like(g)]
    return np.stack([np.asarray(rows[n], dtype) for n in generator.permutation(ROWS)])


def _signs(dtype: DType, generator: np.random.Generator) -> Any:
    found = generator.choice([1, 1] if dtype in dtypes.UNSIGNED else [-1, 1], ROWS)
    return found.astype(dtype)


def _product_sources(value: Any, generator: np.random.Generator) -> list[Any]:
    rows, signs = summands(value, generator), _signs(value.dtype, generator)
    with np.errstate(over="ignore"):
        return [(rows * signs.reshape(-1, *(1,) * value.ndim)).astype(value.dtype), signs]


def _summed(x: Value) -> Value:
    return reduce_sum(x, axes=(0,))


def _contracted(x: Value, signs: Value) -> Value:
    return dot_general(signs, x, contract=((0,), (0,)), batch=((), ()), dtype=None)


def _mean(x: Value) -> Value:
    return div(_summed(x), ROWS)


SUMS = (
    Producer("sum", dtypes.NUMBERS, lambda value, generator: [summands(value, generator)], _summed),
    Producer("huge", dtypes.INEXACT, lambda value, generator: [huge_summands(value, generator)], _summed),
    Producer("product", dtypes.NUMBERS, _product_sources, _contracted, split=2),
    Producer(
        "mean",
        dtypes.INEXACT,
        lambda value, generator: [(summands(value, generator) * value.dtype.type(ROWS)).astype(value.dtype)],
        _mean,
    ),
)

# Reads of a split dim: one device holds what is read


def at_edges(op: Op, sample: Sample, operands: Sequence[Any], generator: np.random.Generator) -> list[Any]:
    """Operands, but for indices, with some of their numbers replaced by the edges of their dtypes: NaN, infinity, -0.0
    and limits, unless floats are added up or multiplied: then large ones may or may not overflow in another order."""
    found = [np.array(x) for x in operands]
    program = program_of(op, sample, found)
    bounded = any(map(computes, program.eqns))
    for n, (x, operand) in enumerate(zip(found, sample.operands, strict=True)):
        if operand.dtype is None and op.name not in UNSTABLE:
            values = edges(x.dtype)
            if bounded and dtypes.is_inexact(x.dtype):
                sizes = np.abs(values.astype(np.complex128))
                values = values[~np.isfinite(sizes) | (sizes < 4) & ((sizes == 0) | (sizes > 0.1))]
            at = generator.integers(0, 2, x.shape).astype(bool)
            found[n] = np.where(at, generator.choice(values, x.shape), x).astype(x.dtype)
    return found


# Ops whose algorithm for one matrix depends on whether all matrices are finite.
UNSTABLE = {"cholesky", "triangular_solve"}


def _read_sources(value: Any, generator: np.random.Generator) -> list[Any]:
    others = [generator.choice(edges(value.dtype), value.shape).astype(value.dtype) for _ in range(ROWS)]
    others[2] = value
    return [np.stack(others), np.asarray(2, np.int32)]


def _sliced(x: Value, at: Value) -> Value:
    starts, limits = (2, *(0,) * (x.ndim - 1)), (3, *x.shape[1:])
    return reshape(slice_(x, starts=starts, limits=limits, strides=(1,) * x.ndim), shape=x.shape[1:])


def _sliced_at(x: Value, at: Value) -> Value:
    zero = mul(at, 0)
    return reshape(dynamic_slice(x, at, *[zero] * (x.ndim - 1), sizes=(1, *x.shape[1:])), shape=x.shape[1:])


def _gathered(mode: str) -> Callable[[Value, Value], Value]:
    def read(x: Value, at: Value) -> Value:
        windows = Windows(tuple(range(x.ndim - 1)), (0,), (), (), (0,))
        return gather(x, reshape(at, shape=(1,)), **windows.gather((1, *x.shape[1:]), mode))

    return read


READS = tuple(
    Producer(name, dtypes.ALL, _read_sources, make, exact=True)
    for name, make in (
        ("slice", _sliced),
        ("dynamic_slice", _sliced_at),
        *((f"gather_{mode}", _gathered(mode)) for mode in ("clip", "fill", "zero")),
    )
)

# What comes after


def _scaled(x: Value) -> Value:
    """Times a number that is too much for huge summands."""
    dtype = x.dtype
    if not dtypes.is_inexact(dtype):
        return mul(x, 5)
    return mul(x, float(_HUGE.get(dtypes.real_part(dtype), 2.0**100)))


def _quartered(x: Value) -> Value:
    return div(x, 4)


def _as_other(x: Value) -> Value:
    """Of another dtype, in which sums differ."""
    wide = {1: dtypes.INT32, 2: dtypes.INT32, 4: dtypes.INT64}.get(x.dtype.itemsize, dtypes.FLOAT32)
    return convert(x, dtype=dtypes.FLOAT32 if dtypes.is_inexact(x.dtype) else wide, weak=False)


def _all_of_it(x: Value) -> Value:
    return reduce_sum(x, axes=tuple(range(x.ndim)))


def _added_to_itself(x: Value) -> Value:
    return add(x, neg(mul(x, 3)))


CONSUMERS: dict[str, Callable[[Value], Value]] = {
    "returned": lambda x: x,
    "scaled": _scaled,
    "quartered": _quartered,
    "converted": _as_other,
    "summed": _all_of_it,
    "added": _added_to_itself,
}


def consumers_of(dtype: DType, exact: bool) -> list[str]:
    """What may come after a value of a dtype; if it is to stay ``exact``, no sum, which could overflow."""
    if dtype == dtypes.BOOL:
        return ["returned", "converted"]
    left_out = {"converted"} if dtypes.is_inexact(dtype) else set()
    left_out |= {"summed"} if exact else set()
    return [name for name in CONSUMERS if name not in left_out]


# Cases


class Case(NamedTuple):
    """One call of an op with one of its operands given by a producer."""

    op: Op
    index: int
    sample: Sample
    dtype: DType | None
    position: int
    producer: Producer

    def __str__(self) -> str:
        kind = dtypes.short_name(self.dtype) if self.dtype is not None else "fixed"
        return f"{self.op.name} {self.index} {kind} operand {self.position} by {self.producer.name}"

    @property
    def own_dtype(self) -> DType:
        """The dtype of the operand that is produced."""
        found = self.sample.operands[self.position].dtype or self.dtype
        assert found is not None
        return found

    def operands(self) -> list[Any]:
        """All operands; those of floats such that all sums here are exact, or at the edges of their dtypes."""
        found = [np.asarray(x) for x in draw(self.sample, self.dtype, self.op.name, self.index)]
        found = [on_grid(x) for x in found]
        if self.producer.name == "huge":
            found[self.position] = np.zeros_like(found[self.position])
        if self.producer.exact:
            edged = at_edges(self.op, self.sample, found, rng("edges", str(self)))
            found[self.position] = edged[self.position]
        return found


def every_case(producers: Sequence[Producer]) -> Iterator[Case]:
    """Every op, sample, dtype, operand and producer."""
    for _, op in sorted(REGISTRY.items()):
        for index, sample in enumerate(op.samples()):
            own = all(operand.dtype is not None for operand in sample.operands)
            for dtype in (None,) if own else op.dtypes:
                for position in range(len(sample.operands)):
                    for producer in producers:
                        case = Case(op, index, sample, dtype, position, producer)
                        if case.own_dtype in producer.dtypes:
                            yield case


class Written(NamedTuple):
    """A case as a program, and what to run it on: the sources of the producer, then the other operands."""

    case: Case
    body: Callable[..., list[Value]]
    arrays: list[Any]
    sources: int

    @property
    def program(self) -> Program:
        return close(*trace(self.body, [to_array(x).type for x in self.arrays]))

    @property
    def is_coarse(self) -> bool:
        """Whether floats of one byte are added up after they were produced: in another order, their sum is another."""
        narrow = dtypes.is_float(self.case.own_dtype) and self.case.own_dtype.itemsize == 1
        after = [eqn for eqn in self.program.eqns if eqn.op is self.case.op]
        return narrow and (self.case.producer.name == "huge" or any(map(computes, after)))


def written(case: Case, consumer: str | None = None) -> Written:
    """The op on what the producer makes and other operands, then the consumer: any that its results admit."""
    generator = rng("sources", str(case))
    operands = case.operands()
    sources = case.producer.sources(operands[case.position], generator)
    others = [x for n, x in enumerate(operands) if n != case.position]
    after = generator.integers(1 << 30)

    def body(*values: Value) -> list[Value]:
        given = list(values[len(sources) :])
        given.insert(case.position, case.producer.make(*values[: len(sources)]))
        outs = case.op(*given, **case.sample.params)
        outs = list(outs) if isinstance(outs, tuple) else [outs]
        found = []
        for out in outs:
            names = consumers_of(out.dtype, case.producer.exact)
            name = consumer if consumer in names else names[after % len(names)] if consumer is None else "returned"
            found.append(CONSUMERS[name](out))
        return found

    return Written(case, body, [*sources, *others], len(sources))


def _parts(x: Any) -> list[Any]:
    return [x.real, x.imag] if dtypes.is_complex(x.dtype) else [x]


def assert_same_bits(found: Any, expected: Any, text: str) -> None:
    """Raise unless arrays are equal to the sign of their zeros; one NaN is as good as another."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), text
    for x, y in zip(_parts(found), _parts(expected), strict=True):
        if dtypes.is_inexact(x.dtype):
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y), err_msg=text)
            x, y = (np.where(np.isnan(z), np.ones((), z.dtype), z) for z in (x, y))
            assert_same_zeros(x, y, text)
        np.testing.assert_array_equal(x, y, err_msg=text)


def assert_same_zeros(found: Any, expected: Any, text: str) -> None:
    """Raise unless zeros have the same sign."""
    for x, y in zip(_parts(found), _parts(expected), strict=True):
        if dtypes.is_inexact(x.dtype):
            zero = (x == 0) & (y == 0)
            np.testing.assert_array_equal(np.signbit(x) & zero, np.signbit(y) & zero, err_msg=f"signs of zeros, {text}")


def computes(eqn: Eqn) -> bool:
    """Whether an equation combines several elements in an order that the engine chooses."""
    if eqn.op.factors is pointwise:
        return False
    groups = eqn.op.groups([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
    return all(group.does is not Does.MOVES for group in groups)
