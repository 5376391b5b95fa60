"""Every op, walked: its value, derivatives, batching, text, factor rule and cost, against JAX and brute force.

An op is found in the registry and tested on its own ``samples()``. To test one: ``pytest tests/ops -k ":tanh:"``; one
check of one: ``-k "loop and :tanh:"``.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any
from zlib import crc32

import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright.engine.namespace
import meshwright.ops
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.dtypes import DType, short_name
from meshwright.core.factors import Factors
from meshwright.core.op import REGISTRY, Linearity, No, Op, Sample
from meshwright.core.program import Program, param_key
from meshwright.core.text.parse import parse_program
from meshwright.core.trace import apply, run, to_array, trace
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError, MeshwrightError
from meshwright.transform.batch import batch_program
from meshwright.transform.jvp import jvp_program, linearize_program
from meshwright.transform.transpose import transpose_program
from tests.ops.comparing import assert_close, wide
from tests.ops.differences import COMPLEX_DERIVATIVE, NO_DERIVATIVE, at_edges
from tests.ops.drawing import draw, draw_like, edge_operands, stack, strided
from tests.ops.jax_counterparts import COUNTERPARTS, POINTWISE, WITHOUT_COUNTERPART
from tests.ops.splitting import COMBINE, Split, run_in_parts, split_of

MODULES = [f"meshwright.ops.{module.name}" for module in pkgutil.iter_modules(meshwright.ops.__path__)]
for _module in MODULES:
    with suppress(Exception):  # which is a failure of its own below, and not of every other op
        importlib.import_module(_module)

# Ops with regions and across devices, which have tests of their own; every other op has samples and is walked here.
WITH_REGIONS = frozenset(
    {"scan", "while", "cond", "custom_jvp_call", "custom_vjp_call", "custom_vjp_tangents", "checkpoint", "shard_map"}
)
ACROSS_DEVICES = frozenset(
    {"finish_sum", "pallas_call", *(name for name, op in REGISTRY.items() if op.stack is not None)}
)
# What calls a function of Python has no samples: its text names the function, and what it computes is the user's.
CALLING_BACK = frozenset({"debug_callback", "io_callback", "pure_callback"})
WALKED = [op for name, op in sorted(REGISTRY.items()) if name not in WITH_REGIONS | ACROSS_DEVICES | CALLING_BACK]

# Dtypes for checks where one of a kind stands for the others.
MAIN = (dtypes.FLOAT32, dtypes.INT32, dtypes.COMPLEX64)
SMOOTH = (dtypes.FLOAT64, dtypes.COMPLEX128)
ONE = (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32, dtypes.BOOL, dtypes.COMPLEX64)

RARE = frozenset(dtypes.ALL) - {*ONE, dtypes.FLOAT64, dtypes.BFLOAT16}

# Units in the last place by which a value may differ from JAX's, where it is not the dtype's default.
ULPS = {dtypes.FLOAT64: 32.0, dtypes.COMPLEX128: 64.0, dtypes.FLOAT32: 32.0, dtypes.COMPLEX64: 64.0}
DEFAULT_ULPS = 4.0

# The derivative that JAX gives differs on purpose from the slope of the function.
NOT_THE_SLOPE = frozenset({"stop_gradient", "reduce_precision"})

# Ops all of whose factors must be whole on every device.
NEVER_SPLIT: frozenset[str] = frozenset()

FREE = frozenset({"checkpoint_name", "sharding_constraint"})  # which say something of a value and do nothing

# Families for which a factor that could be split must not be marked as one that cannot.
NEVER_TOO_STRICT = frozenset(POINTWISE) | {
    "broadcast_in_dim", "transpose", "dot_general", "optimization_barrier",
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """One sample of an op at one dtype."""

    op: Op
    index: int
    sample: Sample
    dtype: DType | None

    def __str__(self) -> str:
        return f":{self.op.name}:{self.index}:{short_name(self.dtype) if self.dtype else 'fixed'}:"

    def operands(self, *key: object) -> list[Any]:
        return draw(self.sample, self.dtype, self.op.name, self.index, *key)

    @property
    def ulps(self) -> float:
        return ULPS.get(self.dtype, DEFAULT_ULPS) if self.dtype else ULPS[dtypes.FLOAT32]


def cases(chosen: Sequence[DType], *, first: Sequence[DType] = (), differentiable: bool = False) -> list[Case]:
    """Each sample of each op at those of its dtypes that are ``chosen``; the first sample also at ``first``.

    An op that takes none of them is tested at the first dtype it takes.
    """
    found = []
    for op in WALKED:
        for index, sample in enumerate(op.samples()):
            if all(operand.dtype is not None for operand in sample.operands):
                found.append(Case(op, index, sample, None))
                continue
            wanted = {*chosen, *(first if index == 0 else ())}
            taken = [d for d in op.dtypes if d in wanted]
            if not taken and not differentiable:
                taken = [op.dtypes[0]]
            found.extend(Case(op, index, sample, d) for d in taken)
    if differentiable:
        found = [c for c in found if any(_has_tangent(c, n) for n in range(len(c.sample.operands)))]
    return found


def _has_tangent(case: Case, operand: int) -> bool:
    dtype = case.sample.operands[operand].dtype or case.dtype
    return dtype is not None and dtypes.is_inexact(dtype)


def walk(found: Sequence[Case]) -> Any:
    """The cases as tests; of those whose dtype others stand for, every fourth, and the rest among the slow ones."""

    def rest(c: Case) -> bool:
        return c.dtype in RARE and crc32(str(c).encode()) % 4 != 0

    marked = [pytest.param(c, marks=pytest.mark.slow) if rest(c) else c for c in found]
    return pytest.mark.parametrize("case", marked, ids=str)


@pytest.fixture(autouse=True)
def _sixty_four_bits(x64: None) -> Iterator[None]:
    yield


def call(op: Op, operands: Sequence[Any], params: Any) -> list[Any]:
    """The results of an op as arrays."""
    outs = op(*operands, **params)
    return [x.data for x in (outs if isinstance(outs, tuple) else (outs,))]


def types_of(values: Sequence[Any]) -> list[TensorType]:
    return [to_array(x).type for x in values]


@lru_cache(maxsize=256)
def traced(case: Case) -> Program:
    """The program of one equation."""

    def function(*xs: Any) -> list[Any]:
        outs = apply(case.op, xs, case.sample.params)
        return list(outs) if isinstance(outs, tuple) else [outs]

    program, captured = trace(function, types_of(case.operands()))
    assert not captured
    return program


def counterpart(case: Case, *operands: Any) -> list[Any]:
    outs = COUNTERPARTS[case.op.name](*operands, **case.sample.params)
    return list(outs) if isinstance(outs, tuple | list) else [outs]


def active(case: Case) -> list[bool]:
    return [_has_tangent(case, n) for n in range(len(case.sample.operands))]


# Samples and counterparts


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_ops_imports(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize("op", WALKED, ids=lambda op: f":{op.name}:")
def test_every_op_has_samples(op: Op) -> None:
    assert op.samples(), f"{op.name} has no samples; without them none of its rules is tested"


@pytest.mark.parametrize("op", WALKED, ids=lambda op: f":{op.name}:")
def test_every_op_has_a_twin_in_jax(op: Op) -> None:
    assert (op.name in COUNTERPARTS) != (op.name in WITHOUT_COUNTERPART), "give it one in tests/ops/jax_counterparts.py"


# Values


@walk(cases(MAIN, first=dtypes.ALL))
def test_the_value_is_that_of_jax(case: Case) -> None:
    operands = case.operands()
    outs = case.op(*operands, **case.sample.params)
    outs = outs if isinstance(outs, tuple) else (outs,)
    for out in outs:
        assert (out.data.dtype, out.data.shape) == (out.type.dtype, out.type.shape), "the value is not of its type"
    if case.op.name in WITHOUT_COUNTERPART:
        return
    expected = counterpart(case, *operands)
    for index, (out, value) in enumerate(zip(outs, expected, strict=True)):
        assert_close(out.data, value, ulps=case.ulps, context=f"result {index}")


def at_its_edges() -> list[Case]:
    """The pointwise ops, once per params and dtypes: shapes do not matter at edges."""
    found = {}
    for case in cases(dtypes.ALL):
        if case.op.name in POINTWISE:
            own = tuple(operand.dtype for operand in case.sample.operands)
            found.setdefault((case.op, param_key(case.sample.params), own, case.dtype), case)
    return list(found.values())


@walk(at_its_edges())
def test_the_value_at_edges_is_that_of_jax(case: Case) -> None:
    operands = edge_operands(case.sample, case.dtype)
    actual = call(case.op, operands, case.sample.params)
    compared = ~at_edges(case.op.name, operands, case.sample.params)
    for out, value in zip(actual, counterpart(case, *operands), strict=True):
        assert_close(out[compared], np.asarray(value)[compared], ulps=case.ulps, pointwise=True)


@walk(cases(ONE[:1]))
def test_the_value_does_not_depend_on_how_operands_lie_in_memory(case: Case) -> None:
    operands = case.operands()
    actual = call(case.op, [strided(x) for x in operands], case.sample.params)
    for out, value in zip(actual, call(case.op, operands, case.sample.params), strict=True):
        assert_close(out, value, ulps=case.ulps)


@walk([case for case in at_its_edges() if case.dtype in (None, *MAIN) or case.dtype == case.op.dtypes[0]])
def test_a_pointwise_op_takes_each_element_alone_and_none_at_all(case: Case) -> None:
    operands = [np.broadcast_to(x, (2, 4)) for x in case.operands()]
    (whole,) = call(case.op, operands, case.sample.params)
    (none,) = call(case.op, [x[:, :0] for x in operands], case.sample.params)
    assert (none.dtype, none.shape) == (whole.dtype, (2, 0))
    for place in np.ndindex(2, 4):
        (one,) = call(case.op, [np.asarray(x[place]) for x in operands], case.sample.params)
        assert_close(one, np.asarray(whole[place]), ulps=case.ulps, context=f"{place}")


# Derivatives


def jvp(case: Case, operands: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Our results and tangents as arrays; zero tangents are made."""
    primals = [to_array(x) for x in operands]
    outs, out_tangents = jvp_program(traced(case), primals, [None if t is None else to_array(t) for t in tangents])
    for out, t in zip(outs, out_tangents, strict=True):
        assert t is None or (t.dtype, t.shape) == (out.dtype, out.shape), f"tangent {t.type} for {out.type}"
        assert t is None or dtypes.is_inexact(t.dtype), "an integer has a tangent"
    return [x.data for x in outs], [
        np.zeros(x.shape, x.dtype) if t is None else t.data for x, t in zip(outs, out_tangents, strict=True)
    ]


def tangents_of(case: Case, operands: Sequence[Any]) -> list[Any]:
    return [draw_like(x, "tangent", n) if a else None for n, (x, a) in enumerate(zip(operands, active(case)))]


@lru_cache(maxsize=8)
def jax_derivatives(case: Case) -> tuple[list[Any], list[Any]]:
    """JAX's tangents of the inexact results, and cotangents of the active operands."""
    operands = case.operands()
    tangents = tangents_of(case, operands)
    results = [x for x in call(case.op, operands, case.sample.params) if dtypes.is_inexact(x.dtype)]
    where = [n for n, a in enumerate(active(case)) if a]

    def function(*chosen: Any) -> list[Any]:
        full = list(operands)
        for n, x in zip(where, chosen, strict=True):
            full[n] = x
        return [x for x in counterpart(case, *full) if dtypes.is_inexact(x.dtype)]

    def both(xs: Any, ts: Any, cts: Any) -> Any:
        return jax.jvp(function, xs, ts)[1], jax.vjp(function, *xs)[1](cts)

    if not results:
        return [], [np.zeros(operands[n].shape, operands[n].dtype) for n in where]
    chosen, directions = [operands[n] for n in where], [tangents[n] for n in where]
    forward, backward = jax.jit(both)(chosen, directions, cotangents_of(results))
    return forward, list(backward)


def unlike_jax(case: Case) -> bool:
    if case.op.name in NO_DERIVATIVE:
        return True
    return case.op.name in COMPLEX_DERIVATIVE and case.dtype == dtypes.COMPLEX128


DIFFERENTIABLE = cases(SMOOTH, first=(dtypes.BFLOAT16,), differentiable=True)


@walk(DIFFERENTIABLE)
def test_the_jvp_is_that_of_jax(case: Case) -> None:
    operands = case.operands()
    tangents = tangents_of(case, operands)
    if isinstance(case.op.jvp, No):
        with pytest.raises(DifferentiationError) as error:
            jvp(case, operands, tangents)
        assert error.value.why == case.op.jvp.reason
        return
    outs, out_tangents = jvp(case, operands, tangents)
    for out, value in zip(outs, call(case.op, operands, case.sample.params), strict=True):
        assert_close(out, value, ulps=case.ulps, context="the value beside the derivative")
    alone = np.zeros(len(outs), object)
    for n, t in enumerate(tangents):
        if t is not None:
            only = [t if m == n else None for m in range(len(tangents))]
            alone = alone + np.array([*[wide(x) for x in jvp(case, operands, only)[1]], None], object)[:-1]
    for out, total, t in zip(outs, alone, out_tangents, strict=True):
        if dtypes.is_inexact(out.dtype):
            assert_close(np.asarray(total).astype(t.dtype), t, ulps=4 * case.ulps, context="tangents one at a time")
    if case.op.name in WITHOUT_COUNTERPART or unlike_jax(case):
        return
    inexact = [t for t in out_tangents if dtypes.is_inexact(t.dtype)]
    for t, value in zip(inexact, jax_derivatives(case)[0], strict=True):
        assert_close(t, value, ulps=4 * case.ulps, context="tangent")


@walk([c for c in DIFFERENTIABLE if c.dtype in (dtypes.FLOAT64, dtypes.COMPLEX128)])
def test_the_jvp_is_the_slope(case: Case) -> None:
    if isinstance(case.op.jvp, No) or case.op.name in NOT_THE_SLOPE:
        return
    operands = case.operands()
    step = 1e-6
    for direction in (1.0, 1j) if case.dtype == dtypes.COMPLEX128 else (1.0,):
        tangents = [
            None if t is None else t * direction if t.dtype.kind == "c" else t for t in tangents_of(case, operands)
        ]
        outs, out_tangents = jvp(case, operands, tangents)
        ahead, behind = (
            call(
                case.op,
                [x if t is None else np.asarray(x + sign * step * t, x.dtype) for x, t in zip(operands, tangents)],
                case.sample.params,
            )
            for sign in (1, -1)
        )
        for out, t, up, down in zip(outs, out_tangents, ahead, behind, strict=True):
            if out.dtype in (dtypes.FLOAT64, dtypes.COMPLEX128):
                np.testing.assert_allclose(t, (up - down) / (2 * step), rtol=2e-6, atol=2e-8)


def assert_adjoint(ahead: Sequence[tuple[Any, Any]], back: Sequence[tuple[Any, Any]]) -> None:
    """<ct, J t> = <J^T ct, t>, where <a, b> is the real part of the sum of products, up to the coarsest dtype's eps."""
    products = [np.ravel(wide(a) * wide(b)) for pairs in (ahead, back) for a, b in pairs]
    coarsest = max(float(ml_dtypes.finfo(dtypes.real_part(x.dtype)).eps) for pairs in (ahead, back) for x, _ in pairs)
    bound = 16 * coarsest * sum(float(np.abs(p).sum()) for p in products) + 1e-30
    left, right = (
        sum(float(np.sum(p).real) for p in group) for group in (products[: len(ahead)], products[len(ahead) :])
    )
    assert abs(left - right) <= bound, f"<ct, J t> = {left}, <J^T ct, t> = {right}"


def cotangents_of(values: Sequence[Any]) -> list[Any]:
    return [draw_like(x, "cotangent", n) for n, x in enumerate(values)]


@walk(DIFFERENTIABLE)
def test_the_vjp_is_that_of_jax(case: Case) -> None:
    operands = case.operands()
    primals = [to_array(x) for x in operands]
    program = traced(case)
    if isinstance(case.op.linearize, No):
        with pytest.raises(DifferentiationError) as error:
            linearize_program(program, primals, active(case))
        assert error.value.why == case.op.linearize.reason
        return
    outs, linear = linearize_program(program, primals, active(case))
    check(linear.program)
    assert parse_program(str(linear.program)) == linear.program
    tangents = tangents_of(case, operands)
    given = [to_array(t) for t in tangents if t is not None]
    pushed = [x.data for x in run(linear.program, [*linear.residuals, *given])]
    expected = [t for t, kept in zip(jvp(case, operands, tangents)[1], linear.nonzero, strict=True) if kept]
    for actual, value in zip(pushed, expected, strict=True):
        assert_close(actual, value, ulps=4 * case.ulps, context="linearize against jvp")
    inexact = [n for n, x in enumerate(outs) if dtypes.is_inexact(x.dtype)]
    all_cts = dict(zip(inexact, cotangents_of([outs[n].data for n in inexact]), strict=True))
    cts = [ct for n, ct in all_cts.items() if linear.nonzero[n]]
    flags = [False] * len(linear.residuals) + [True] * len(given)
    pulled = transpose_program(
        linear.program, flags, [*linear.residuals, *[None] * len(given)], [to_array(ct) for ct in cts]
    )[len(linear.residuals) :]
    for t, ct in zip(given, pulled, strict=True):
        assert ct is None or (ct.dtype, ct.shape) == (t.dtype, t.shape), f"cotangent {ct.type} for {t.type}"
    arrays = [np.zeros(t.shape, t.dtype) if ct is None else ct.data for t, ct in zip(given, pulled, strict=True)]
    if case.op.name not in NOT_THE_SLOPE:
        assert_adjoint(list(zip(cts, pushed, strict=True)), [(ct, t.data) for ct, t in zip(arrays, given, strict=True)])
    if case.op.name in WITHOUT_COUNTERPART or unlike_jax(case):
        return
    for ct, value in zip(arrays, jax_derivatives(case)[1], strict=True):
        assert_close(ct, value, ulps=4 * case.ulps, context="cotangent")


@walk([c for c in DIFFERENTIABLE if c.op.linear is not Linearity.NONE])
def test_a_linear_op_and_its_transpose_are_adjoint(case: Case) -> None:
    operands = case.operands()
    program = traced(case)
    inexact = [n for n, a in enumerate(active(case)) if a]
    linear = case.op.linear
    if isinstance(linear, Linearity):
        groups = linear.groups(len(operands))
    else:
        groups = linear(types_of(operands), program.out_types, case.sample.params)
    for chosen in filter(None, ([n for n in group.operands if n in inexact] for group in groups)):
        flags = [n in chosen for n in range(len(operands))]
        ts = [draw_like(x, "linear", n) if f else x for n, (x, f) in enumerate(zip(operands, flags))]
        outs = call(case.op, ts, case.sample.params)
        if not all(dtypes.is_inexact(x.dtype) for x in outs):
            continue
        cts = cotangents_of(outs)
        args = [None if f else to_array(x) for x, f in zip(operands, flags, strict=True)]
        pulled = transpose_program(program, flags, args, [to_array(ct) for ct in cts])
        assert_adjoint(
            list(zip(cts, outs, strict=True)), [(pulled[n].data, ts[n]) for n in chosen if pulled[n] is not None]
        )
        for n in chosen:
            ct = pulled[n]
            assert ct is None or (ct.dtype, ct.shape) == (ts[n].dtype, ts[n].shape), f"operand {n}: {ct.type}"


# Batching


BATCH = 3


@walk([c for c in cases(ONE[:1]) if c.sample.operands and not isinstance(c.op.batch, No)])
def test_batching_is_a_loop(case: Case) -> None:
    program = traced(case)
    every = (True,) * len(case.sample.operands)
    ways = [(BATCH, flags) for flags in product([True, False], repeat=len(every)) if any(flags)]
    for size, flags in [*ways, (1, every)]:
        examples = [case.operands("example", n) for n in range(size)]
        rows = [[x if f else examples[0][i] for i, (x, f) in enumerate(zip(row, flags))] for row in examples]
        args = [stack([row[i] for row in rows]) if f else rows[0][i] for i, f in enumerate(flags)]
        outs, out_flags = batch_program(program, size, [to_array(x) for x in args], flags)
        looped = [call(case.op, row, case.sample.params) for row in rows]
        for index, (out, f) in enumerate(zip(outs, out_flags, strict=True)):
            expected = stack([row[index] for row in looped])
            actual = out.data if f else stack([out.data] * size)
            assert out.data.dtype == out.type.dtype
            assert_close(actual, expected, ulps=case.ulps, context=f"{size} batched {flags}, result {index}")


# Text


@walk(cases(MAIN))
def test_its_programs_survive_text_and_check(case: Case) -> None:
    program = traced(case)
    programs = [program]
    types = types_of(case.operands())
    if any(active(case)) and not isinstance(case.op.linearize, No):

        def both(*xs: Any) -> list[Any]:
            outs, linear = linearize_program(program, xs, active(case))
            programs.append(linear.program)
            return [*outs, *linear.residuals]

        programs.append(trace(both, types)[0])
    if types and not isinstance(case.op.batch, No):
        batched = [t.with_(shape=(BATCH, *t.shape)) for t in types]
        flags = [True] * len(types)
        programs.append(trace(lambda *xs: batch_program(program, BATCH, xs, flags)[0], batched)[0])
    for p in programs:
        check(p)
        assert parse_program(str(p)) == p
        assert str(parse_program(str(p))) == str(p)


# Factors


RULED = [case for case in cases(ONE[:1]) if not isinstance(case.op.factors, No)]


@dataclass(frozen=True)
class Whole:
    """A call done in one piece, to compare parts with."""

    case: Case
    operands: list[Any]
    results: list[Any]
    rule: Factors

    @staticmethod
    def of(case: Case) -> Whole:
        operands = case.operands()
        results = call(case.op, operands, case.sample.params)
        rule = case.op.factors(types_of(operands), types_of(results), case.sample.params)  # type: ignore[operator]
        return Whole(case, operands, results, rule)

    def assert_equals_its_parts(self, rule: Factors, split: Split) -> None:
        parts = run_in_parts(self.case.op, self.operands, types_of(self.results), self.case.sample.params, rule, split)
        for index, (actual, expected) in enumerate(zip(parts, self.results, strict=True)):
            context = f"{rule} split {split.parts}, result {index}"
            assert_close(actual, expected, ulps=self.case.ulps, context=context)


@walk(RULED)
def test_its_factor_rule_fits_its_shapes(case: Case) -> None:
    whole = Whole.of(case)
    rule = whole.rule
    tensors = [*zip(whole.operands, rule.operands, strict=True), *zip(whole.results, rule.results, strict=True)]
    for x, dims in tensors:
        names = [name for dim in dims for name in dim]
        assert len(dims) == x.ndim, f"{rule}: {len(dims)} dims for shape {x.shape}"
        assert all(dims), f"{rule}: a dim without factors"
        assert len(set(names)) == len(names), f"{rule}: a factor stands twice in one tensor"
        for n, dim in zip(x.shape, dims, strict=True):
            if set(dim) <= rule.separable:
                assert math.prod(rule.sizes[name] for name in dim) == n, f"{rule}: factors {dim} of a dim of size {n}"
    assert {name for _, dims in tensors for dim in dims for name in dim} == set(rule.sizes), f"{rule}: unused factors"
    assert not rule.replicated & rule.permuted, f"{rule}: a factor of two kinds"


@walk(RULED)
def test_parts_along_its_factors_make_up_the_whole(case: Case) -> None:
    whole = Whole.of(case)
    for name in sorted(whole.rule.separable):
        split = split_of(whole.rule, name)
        if split is not None:
            whole.assert_equals_its_parts(whole.rule, split)


@pytest.mark.parametrize("op", list(dict.fromkeys(case.op for case in RULED)), ids=lambda op: f":{op.name}:")
def test_some_sample_has_a_factor_to_split(op: Op) -> None:
    rules = [Whole.of(case).rule for case in RULED if case.op is op]
    splits = [split_of(rule, name) for rule in rules for name in rule.separable]
    assert any(splits) or op.name in NEVER_SPLIT, f"no factor of {[str(rule) for rule in rules]} can be split"


@walk([case for case in RULED if case.op.name in NEVER_TOO_STRICT])
def test_no_factor_that_could_be_split_is_held_whole(case: Case) -> None:
    whole = Whole.of(case)
    rule = whole.rule
    returned = {name for dims in rule.results for dim in dims for name in dim}
    for name in rule.replicated | rule.permuted | rule.blocked | rule.guarded:
        freed = rule._replace(
            replicated=rule.replicated - {name},
            permuted=rule.permuted - {name},
            guarded=rule.guarded - {name},
            reduced=rule.reduced | ({name} - returned),
        )
        split = split_of(freed, name)
        if split is None:
            continue
        for combine in COMBINE:
            try:
                whole.assert_equals_its_parts(freed._replace(combine=combine), split)
            except (AssertionError, MeshwrightError):
                continue
            raise AssertionError(f"{rule}: {name} can be split: {freed}")


# Cost


@walk(cases(ONE[:1]))
def test_its_cost_is_a_finite_amount_of_work(case: Case) -> None:
    operands = case.operands()
    results = call(case.op, operands, case.sample.params)
    cost = case.op.cost(types_of(operands), types_of(results), case.sample.params)
    assert math.isfinite(cost.flops) and cost.flops >= 0
    assert math.isfinite(cost.nbytes) and (cost.nbytes > 0 or case.op.name in FREE)
