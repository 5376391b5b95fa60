"""Random programs of integers that wrap around, partitioned in random layouts: they are exact, so that a sum that is
taken too late, twice or not at all shows, whatever happens to it on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.check import check
from meshwright.engine.compile import compile_program
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import rng
from tests.partition.partitioning import layouts, partitioned
from tests.partition.test_random_programs import program_of

MESHES = [mw.make_mesh((4,), ("x",)), mw.make_mesh((2, 2), ("x", "y")), mw.make_mesh((2, 3), ("x", "y"))]
DTYPES = ("int8", "int32", "uint32", "int16")
Value = Any


class Writer:
    """Applies steps drawn at random to values drawn at random; the same seed writes the same program again."""

    def __init__(self, seed: int, values: list[Value]) -> None:
        self.draw, self.values = rng("integer programs", seed), values
        self.used: list[Value] = list(values)

    def pick(self, fits: Callable[[Value], bool] = lambda x: True) -> Value:
        """One of the values, and most often its only use: a sum that several equations need is taken before them."""
        found = [x for x in self.values if fits(x)] or [x for x in self.used if fits(x)]
        x = found[-1 - min(int(self.draw.geometric(0.6)) - 1, len(found) - 1)]
        if self.draw.integers(4):
            self.used.append(x)
            self.values = [y for y in self.values if y is not x]
        return x

    def axis(self, x: Value) -> int:
        return int(self.draw.integers(x.ndim))

    def number(self) -> int:
        return int(self.draw.integers(1, 100))

    def indices(self, n: int) -> Value:
        """Places in a dim of size ``n``, and some outside, made of what there is."""
        x = self.pick(lambda x: x.ndim > 0)
        return mnp.abs(lax.rem(x.reshape(-1)[:3].astype("int32"), np.int32(n + 1)))

    def start(self, n: int) -> Value:
        return mnp.abs(lax.rem(self.pick().sum().astype("int32"), np.int32(n + 1)))

    def step(self) -> Value:
        steps = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        x = steps[self.draw.integers(len(steps))]()
        self.values.append(x)
        return x

    # Sums over dims, which leave partial sums where these are split

    def do_sum(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        return lax.reduce_sum(x, (self.axis(x),))

    def do_product(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        y = self.pick(lambda y: y.ndim > 0 and y.shape[0] == x.shape[-1]) if self.draw.integers(2) else x.T
        wanted = DTYPES[self.draw.integers(len(DTYPES))] if self.draw.integers(2) else None
        dims = (((x.ndim - 1,), (0,)), ((), ()))
        out = lax.dot_general(x, y, dims, preferred_element_type=wanted)
        return out if out.ndim <= 3 else out.sum((0, 1))

    def do_running_sum(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        return mnp.cumsum(x, axis=self.axis(x), dtype=x.dtype)

    # Elementwise

    def do_scaled(self) -> Value:
        return self.pick() * self.number()

    def do_divided(self) -> Value:
        x = self.pick()
        return lax.div(x, mnp.asarray(self.number(), x.dtype))

    def do_remainder(self) -> Value:
        return self.pick() % self.number()

    def do_negative(self) -> Value:
        return -self.pick()

    def do_converted(self) -> Value:
        return self.pick().astype(DTYPES[self.draw.integers(len(DTYPES))])

    def do_through_a_float(self) -> Value:
        return self.pick().astype("float32").astype("int32")

    def do_two(self) -> Value:
        x = self.pick()
        y = self.pick(lambda y: y.shape == x.shape).astype(x.dtype)
        return [mnp.add, mnp.subtract, mnp.multiply, mnp.maximum, mnp.bitwise_xor][self.draw.integers(5)](x, y)

    def do_choice(self) -> Value:
        x = self.pick()
        y = self.pick(lambda y: y.shape == x.shape).astype(x.dtype)
        pred = self.pick(lambda y: y.shape == x.shape) > self.number()
        return mnp.where(pred, x, y)

    # Rearrangements

    def do_turned(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        return [mnp.transpose, mnp.ravel, lambda x: mnp.flip(x, 0), lambda x: x[None]][self.draw.integers(4)](x)

    def do_joined(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        y = self.pick(lambda y: y.ndim == x.ndim and y.shape[1:] == x.shape[1:]).astype(x.dtype)
        return mnp.concatenate([x, y])

    def do_cut(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0 and x.shape[0] > 1)
        return x[int(self.draw.integers(x.shape[0] - 1)) :: int(self.draw.integers(1, 3))]

    def do_padded(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        return mnp.pad(x, [(1, 2)] + [(0, 0)] * (x.ndim - 1), constant_values=self.number())

    # Reads and writes at places that are computed

    def do_read(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        return mnp.take(x, self.indices(x.shape[0]), axis=0, mode=("fill", "clip")[self.draw.integers(2)])

    def do_slice(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0 and x.shape[0] > 1)
        return lax.dynamic_slice_in_dim(x, self.start(x.shape[0]), int(self.draw.integers(1, x.shape[0])), 0)

    def do_written(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        at = x.at[self.indices(x.shape[0])]
        how = [at.set, at.add, at.multiply, at.max][self.draw.integers(4)]
        y = self.pick().sum().astype(x.dtype) if self.draw.integers(2) else self.number() % 7
        return how(y)

    def do_slice_written(self) -> Value:
        x = self.pick(lambda x: x.ndim > 0)
        y = lax.reduce_sum(x, (0,))[None].astype(x.dtype)
        return lax.dynamic_update_slice_in_dim(x, y, self.start(x.shape[0]), 0)


def case(seed: int) -> None:
    generator = rng("arguments", seed)
    shapes = [(4, 6, 4), (4, 4), (6, 4), (4, 4, 6)]
    arrays = []
    for shape in shapes:
        dtype = np.dtype(DTYPES[generator.integers(len(DTYPES))])
        info = np.iinfo(dtype)
        arrays.append(generator.integers(info.min, info.max, shape, dtype, endpoint=True))

    def function(*values: Value) -> list[Value]:
        writer = Writer(seed, [lax.reduce_sum(x, (0,)) for x in values])
        made = [writer.step() for _ in range(5)]
        return made[-1 - seed % 2 :]

    program = program_of(function, arrays)
    mesh = MESHES[generator.integers(len(MESHES))]

    def one(rank: int, summed: bool) -> TensorSharding:
        found = [s for s in layouts(mesh, rank) if not summed or s.dims[0].axes]
        return found[generator.integers(len(found))]

    ins = [one(x.ndim, True) for x in arrays]
    outs = [one(t.ndim, False) if generator.integers(2) else None for t in program.out_types]
    done = partitioned(program, mesh, ins, outs)
    check(done.whole, "partitioning")
    for x, y in zip(compile_program(done.whole)(*arrays), compile_program(program)(*arrays), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=f"{program}\n{[str(s) for s in ins]} -> {[str(s) for s in outs]}")


@pytest.mark.parametrize("seed", range(40))
def test_integer_programs(seed: int) -> None:
    case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
def test_many_integer_programs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        case(seed)
