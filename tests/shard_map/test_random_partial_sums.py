"""Programs on partial sums: one value for each device, whether they run at once, under jit, or on placed arrays.

The answer is NumPy's, on one array per device: a ``shard_map`` that returns by ``P(sum=…)`` leaves each device what it
computed, what is linear works on each, and a ``shard_map`` that takes by ``P(sum=…)`` sees each by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

SIZES = {"i": 2, "j": 3}
MESH = mw.make_mesh(tuple(SIZES.values()), tuple(SIZES))
SHAPE = (2, 3)  # of what a device holds


class Step(NamedTuple):
    """Something linear: on a partial sum, and on what one device holds of it."""

    name: str
    ours: Callable[[Any], Any]
    each: Callable[[Any], Any]


W = np.random.default_rng(7).integers(-3, 4, (3, 3)).astype(np.float32)
LINEAR = [
    Step("double", lambda x: x * 2, lambda x: x * 2),
    Step("halve", lambda x: x / 2, lambda x: x / 2),
    Step("negate", lambda x: -x, lambda x: -x),
    Step("turn", lambda x: x.T.T[::-1], lambda x: x[::-1]),
    Step("matmul", lambda x: x @ W, lambda x: x @ W),
    Step("weights", lambda x: x * W[:2], lambda x: x * W[:2]),
    Step("with itself", lambda x: x + 3 * x, lambda x: 4 * x),
    Step("roll", lambda x: mnp.roll(x, 1, 1), lambda x: np.roll(x, 1, 1)),
    Step("pad", lambda x: mnp.concatenate([x, x])[1:3], lambda x: np.concatenate([x, x])[1:3]),
    Step("sum", lambda x: mnp.broadcast_to(x.sum(0), (2, 3)), lambda x: np.broadcast_to(x.sum(0), (2, 3))),
    Step("loop", lambda x: lax.fori_loop(0, 2, lambda _, c: c * 2, x), lambda x: x * 4),
    Step("rows", lambda x: lax.scan(lambda c, row: (c, row * 2), 0, x)[1], lambda x: x * 2),
    Step("branch", lambda x: lax.cond(True, lambda x: x * 3, lambda x: x, x), lambda x: x * 3),
    Step("jit", mw.jit(lambda x: x * 5), lambda x: x * 5),
]


class Case(NamedTuple):
    """A program: over which axes a sum is open, what is done to it, and how it is closed."""

    summed: tuple[str, ...]
    steps: tuple[Step, ...]
    close: str

    @property
    def rest(self) -> tuple[str, ...]:
        return tuple(axis for axis in SIZES if axis not in self.summed)

    def first(self, x: Any) -> Any:
        """The open sum."""
        spec = P(self.rest or None, unreduced=set(self.summed))
        return mw.shard_map(lambda x: x * x, mesh=MESH, in_specs=P(tuple(SIZES)), out_specs=spec)(x)

    def between(self, x: Any) -> Any:
        for step in self.steps:
            x = step.ours(x)
        return x

    def last(self, x: Any) -> Any:
        if self.close == "reshard":
            return mw.reshard(x, mw.NamedSharding(MESH, P()))
        spec = P(self.rest or None, unreduced=set(self.summed))
        result = P(self.rest or None)
        return mw.shard_map(lambda x: lax.psum(x * x - x, self.summed), mesh=MESH, in_specs=spec, out_specs=result)(x)

    def program(self, x: Any) -> Any:
        return self.last(self.between(self.first(x)))

    def expected(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The answer."""
        rows = self.rows(x)
        return rows.sum(0) if self.close == "reshard" else (rows * rows - rows).sum(0)

    def rows(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What the devices along the axes of the open sum hold before it is closed; blocks by device, i major."""
        blocks = (x * x).reshape(2, 3, *SHAPE)
        order = [tuple(SIZES).index(axis) for axis in (*self.summed, *self.rest)]
        counts = [SIZES[axis] for axis in self.summed]
        rows = blocks.transpose(*order, 2, 3).reshape(int(np.prod(counts)), -1, SHAPE[1])
        return np.stack([self._each(row) for row in rows])

    def _each(self, row: Any) -> Any:
        for step in self.steps:
            row = step.each(row)
        return row


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    summed = (("i",), ("j",), ("i", "j"))[rng.integers(3)]
    whole = [
        step for step in LINEAR if summed == ("i", "j") or step.name in ("double", "halve", "negate", "with itself")
    ]
    whole += [step for step in LINEAR if step.name in ("matmul", "jit", "loop", "branch", "rows")]
    steps = tuple(whole[n] for n in rng.integers(len(whole), size=rng.integers(0, 4)))
    return Case(summed, steps, ("shard_map", "reshard")[int(rng.random() < 0.3)])


def check(seed: int) -> None:
    case = random_case(seed)
    x = np.random.default_rng(seed).integers(-4, 5, (12, 3)).astype(np.float32)
    placed = mw.device_put(x, mw.NamedSharding(MESH, P(("i", "j"))))
    right = case.expected(x)
    what = f"seed {seed}: {case.summed} {[step.name for step in case.steps]} {case.close}"
    found = {
        "at once": case.program(x),
        "at once, placed": case.program(placed),
        "jit": mw.jit(case.program)(x),
        "jit, placed": mw.jit(case.program)(placed),
        "jit of each part": mw.jit(case.last)(mw.jit(case.between)(mw.jit(case.first)(placed))),
        "jit of the middle": case.last(mw.jit(case.between)(case.first(x))),
        "compiled": mw.jit(case.last).lower(case.between(case.first(x))).compile()(case.between(case.first(x))),
    }
    for way, value in found.items():
        np.testing.assert_array_equal(np.asarray(value), right, err_msg=f"{way} of {what}")
    for total in (case.between(case.first(x)), mw.jit(case.between)(case.first(placed))):
        for n, shard in enumerate(total.addressable_shards):
            at = dict(zip(SIZES, divmod(n, 3), strict=True))
            row = case.rows(x)[int(np.ravel_multi_index([at[a] for a in case.summed], [SIZES[a] for a in case.summed]))]
            np.testing.assert_array_equal(np.asarray(shard.data), row[shard.index], err_msg=f"device {n} of {what}")
    total = mw.jit(case.between)(case.first(placed))
    assert set(mw.typeof(total).unreduced) == set(case.summed) == set(total.sharding.spec.unreduced), what
    np.testing.assert_array_equal(np.asarray(total), case._replace(close="reshard").expected(x), err_msg=what)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_on_partial_sums_has_one_meaning(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 700, 50))
def test_many_random_programs_on_partial_sums_have_one_meaning(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)


@pytest.mark.parametrize("step", LINEAR, ids=[step.name for step in LINEAR])
def test_what_is_linear_works_on_the_summands(step: Step) -> None:
    case = Case(("i", "j"), (step,), "shard_map")
    x = np.random.default_rng(1).integers(-4, 5, (12, 3)).astype(np.float32)
    placed = mw.device_put(x, mw.NamedSharding(MESH, P(("i", "j"))))
    for value in (case.program(x), mw.jit(case.program)(x), case.program(placed), mw.jit(case.program)(placed)):
        np.testing.assert_array_equal(np.asarray(value), case.expected(x))


# Derivatives: of what depends on the sum alone they are those of the whole, of all else they are refused

X = np.random.default_rng(3).integers(-3, 4, (12, 3)).astype(np.float32)
BOTH = P(sum=("i", "j"))


def squares(x: Any) -> Any:
    return mw.shard_map(lambda x: x * x, mesh=MESH, in_specs=P(("i", "j")), out_specs=BOTH)(x)


def through(body: Callable[[Any], Any], out_spec: Any) -> Callable[[Any], Any]:
    return mw.shard_map(body, mesh=MESH, in_specs=BOTH, out_specs=out_spec)


def whole(x: Any) -> Any:
    return mw.reshard(x, mw.NamedSharding(MESH, P()))


def total(x: Any) -> Any:
    return (x * x).reshape(6, 2, 3).sum(0)


AXES = ("i", "j")


def scattered(y: Any) -> Any:
    return lax.psum_scatter(lax.psum(y, "j"), "i") ** 2


def looped(y: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, c: c * 2, lax.psum(y, AXES))


Function = Callable[[Any], Any]
OF_THE_SUM: dict[str, tuple[Function, Function]] = {
    "reshard": (lambda x: whole(squares(x)) ** 2, lambda x: total(x) ** 2),
    "linear, then reshard": (lambda x: whole(squares(x) @ W) ** 2, lambda x: (total(x) @ W) ** 2),
    "psum": (lambda x: through(lambda y: lax.psum(y, AXES) ** 2, P())(squares(x)), lambda x: total(x) ** 2),
    "multiples": (lambda x: whole(through(lambda y: 3 * y, BOTH)(squares(x))) ** 3, lambda x: (3 * total(x)) ** 3),
    "scattered": (lambda x: through(scattered, P("i"))(squares(x)), lambda x: total(x) ** 2),
    "one axis, then the other": (
        lambda x: whole(through(lambda y: lax.psum(y, "i"), P(sum="j"))(squares(x))) ** 2,
        lambda x: total(x) ** 2,
    ),
    "in a loop": (lambda x: through(looped, P())(squares(x)) ** 2, lambda x: (4 * total(x)) ** 2),
    "with what is whole": (
        lambda x: whole(squares(x) * x[:2]) ** 2 + x[:2] ** 2,
        lambda x: (total(x) * x[:2]) ** 2 + x[:2] ** 2,
    ),
}
OF_SUMMANDS: dict[str, Function] = {
    "squares": lambda x: through(lambda y: lax.psum(y**2, AXES), P())(squares(x)),
    "of some devices": lambda x: through(lambda y: lax.psum(y * lax.axis_index("i"), AXES), P())(squares(x)),
    "blocks": lambda x: through(lambda y: y, P(AXES))(squares(x)),
    "largest": lambda x: through(lambda y: lax.pmax(y, AXES), P())(squares(x)),
    "sent on": lambda x: through(lambda y: lax.psum(lax.ppermute(y, "j", [(0, 1)]), AXES), P())(squares(x)),
}
RUNS: dict[str, Function] = {
    "at once": lambda f: f(X),
    "jit": lambda f: mw.jit(f)(X),
    "placed": lambda f: f(mw.device_put(X, mw.NamedSharding(MESH, P(AXES)))),
    "jit, placed": lambda f: mw.jit(f)(mw.device_put(X, mw.NamedSharding(MESH, P(AXES)))),
}


@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("name", OF_THE_SUM)
def test_derivatives_of_a_function_of_the_sum_are_those_of_the_whole(name: str, how: str) -> None:
    ours, plain = OF_THE_SUM[name]
    once, right = (mw.grad(lambda x, f=f: (f(x) / 64).sum()) for f in (ours, plain))
    np.testing.assert_allclose(np.asarray(RUNS[how](once)), np.asarray(right(X)), rtol=1e-4, atol=1e-4)
    twice, right = (mw.grad(lambda x, f=f: (f(x) ** 2 / 4096).sum()) for f in (once, right))
    np.testing.assert_allclose(np.asarray(RUNS[how](twice)), np.asarray(right(X)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("name", OF_SUMMANDS)
def test_derivatives_of_a_function_of_summands_by_themselves_are_refused(name: str, how: str) -> None:
    with pytest.raises(mw.MeshwrightError, match="shard_map has no derivative in an argument that enters by"):
        RUNS[how](mw.grad(lambda x: OF_SUMMANDS[name](x).sum()))
