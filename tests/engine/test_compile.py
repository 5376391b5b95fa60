"""The NumPy engine: compiled programs compute what their equations say, and write only where nobody will look again."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.ops
from meshwright.core import dtypes
from meshwright.core.dtypes import DType, short_name
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.program import Eqn, Literal, Missing, Program, Var
from meshwright.core.text.parse import parse_program
from meshwright.core.trace import Array, apply, close, run, to_array, trace
from meshwright.core.types import TensorType, tensor
from meshwright.engine.compile import compile_program, region_functions
from meshwright.engine.memory import ResultMemory, result_of
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError
from meshwright.ops.basic import add, broadcast_in_dim, convert, mul, neg, reduce_sum, reshape, transpose
from meshwright.transform.stack import inline_calls
from tests.ops.comparing import assert_close
from tests.ops.drawing import draw

for _module in pkgutil.iter_modules(meshwright.ops.__path__):
    with suppress(Exception):  # tests/ops says what is wrong with it
        importlib.import_module(f"meshwright.ops.{_module.name}")

F32 = dtypes.FLOAT32
MAIN = (F32, dtypes.BFLOAT16, dtypes.INT32, dtypes.BOOL, dtypes.COMPLEX64)


def program_of(function: Callable[..., Sequence[Any]], *types: TensorType) -> Program:
    """The program of a function, with what it captures as constants."""
    return close(*trace(function, types))


def eagerly(program: Program, arrays: Sequence[Any]) -> list[Any]:
    return [x.data for x in run(program, [Array(a, v.type) for v, a in zip(program.inputs, arrays, strict=True)])]


def assert_same(actual: Sequence[Any], expected: Sequence[Any], ulps: float = 8.0) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert isinstance(a, np.ndarray), type(a)
        assert_close(a, e, ulps=ulps)


def check_against_eager(program: Program, arrays: Sequence[Any]) -> None:
    """Equal to one op at a time, twice, without touching an input; and equal where every input is donated."""
    before = [a.copy() for a in arrays]
    expected = eagerly(program, arrays)
    function = compile_program(program)
    for _ in range(2):
        assert_same(run_quietly(function, arrays), expected)
    for a, b in zip(arrays, before, strict=True):
        assert a.tobytes() == b.tobytes()
    for flags in ([True] * len(arrays), *([n == m for n in range(len(arrays))] for m in range(len(arrays)))):
        given_away = [a.copy() for a in arrays]
        assert_same(run_quietly(compile_program(program, donated=flags), given_away), expected)
        for a, b, donated in zip(given_away, before, flags, strict=True):
            assert donated or a.tobytes() == b.tobytes()


def run_quietly(function: Callable[..., tuple[Any, ...]], arrays: Sequence[Any]) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*arrays)


# Every op


def op_cases() -> Iterator[Any]:
    for name, op in sorted(REGISTRY.items()):
        for index, sample in enumerate(op.samples()):
            fixed = all(o.dtype is not None for o in sample.operands)
            chosen = [None] if fixed else [d for d in MAIN if d in op.dtypes] or [op.dtypes[0]]
            for dtype in chosen:
                yield pytest.param(op, sample, dtype, id=f"-{name}-{index}-{short_name(dtype) if dtype else ''}")


@pytest.mark.parametrize(("op", "sample", "dtype"), list(op_cases()))
def test_an_op_compiled_is_the_op_evaluated(x64: None, op: Op, sample: Sample, dtype: DType | None) -> None:
    arrays = draw(sample, dtype, op.name)

    def function(*xs: Any) -> list[Any]:
        outs = apply(op, xs, sample.params)
        return list(outs) if isinstance(outs, tuple) else [outs]

    program = program_of(function, *(tensor(a.shape, a.dtype) for a in arrays))
    check_against_eager(program, arrays)
    if result_of(program.eqns[0]) is ResultMemory.FRESH:
        assert_fresh(op, sample, arrays)


def assert_fresh(op: Op, sample: Sample, arrays: Sequence[Any]) -> None:
    """Each result of each call has memory of its own that can be written to."""
    seen = list(arrays)
    for _ in range(2):
        outs = op.evaluate(NUMPY, *arrays, **sample.params)
        for out in outs if isinstance(outs, tuple | list) else [outs]:
            assert isinstance(out, np.ndarray) and out.flags.writeable
            assert not any(np.may_share_memory(out, other) for other in seen)
            assert out.size == 0 or all(stride or n < 2 for n, stride in zip(out.shape, out.strides, strict=True))
            seen.append(out)


# Random programs


@st.composite
def programs(draw_: Any) -> tuple[Program, list[Any]]:
    """A program of views, copies and elementwise ops over few shapes, so that memory is often shared and reused."""
    dtype = draw_(st.sampled_from([dtypes.INT32, dtypes.FLOAT32]))
    shapes = draw_(st.lists(st.sampled_from([(2, 3), (3, 2), (6,), ()]), min_size=1, max_size=3))
    size = draw_(st.integers(1, 25))
    moves = [draw_(st.tuples(st.integers(0, 13), st.integers(0, 99), st.integers(0, 99))) for _ in range(size)]
    kept = draw_(st.lists(st.integers(0, 99), min_size=1, max_size=4))
    constant = np.arange(6, dtype=dtype).reshape(2, 3)

    def function(*xs: Any) -> list[Any]:
        values = [*xs, to_array(constant)]
        for move, i, j in moves:
            values.append(step(move, values[-1 - i % min(len(values), 4)], values[j % len(values)]))
        return [values[-1], *(values[k % len(values)] for k in kept)]

    types = [tensor(shape, dtype) for shape in shapes]
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.integers(-3, 4, shape)).astype(dtype) for shape in shapes]
    return program_of(function, *types), arrays


def step(move: int, x: Any, y: Any) -> Any:
    fits = x.shape == y.shape or not x.ndim or not y.ndim
    if move < 2:
        return add(x, y if fits else x)
    if move == 2:
        return mul(x, 2)
    if move == 3:
        return neg(x)
    if move == 4:
        return mul(y if fits else x, x)
    if move == 5:
        return reshape(x, shape={(2, 3): (6,), (6,): (3, 2), (3, 2): (2, 3)}.get(x.shape, x.shape))
    if move == 6:
        return transpose(x, permutation=tuple(reversed(range(x.ndim))))
    if move == 7:
        return reduce_sum(x, axes=tuple(range(x.ndim)))
    if move == 8:
        return broadcast_in_dim(reduce_sum(x, axes=(0,)), shape=x.shape, dims=tuple(range(1, x.ndim))) if x.ndim else x
    if move == 9:
        return broadcast_in_dim(y if not y.ndim else reduce_sum(y, axes=tuple(range(y.ndim))), shape=(2, 3), dims=())
    if move == 10:
        return convert(x, dtype=x.dtype, weak=False)
    if move == 11:
        return REGISTRY["stop_gradient"](x)
    if move == 12:
        return REGISTRY["reverse"](x, dims=tuple(range(x.ndim)))
    return REGISTRY["maximum"](x, y) if fits else REGISTRY["select"](REGISTRY["lt"](x, 1), x, 0)


@settings(max_examples=400, deadline=None)
@given(programs())
def test_a_random_program_compiled_is_its_equations_one_at_a_time(drawn: tuple[Program, list[Any]]) -> None:
    check_against_eager(*drawn)


# Memory is written to only where nobody will look again

A = np.arange(6, dtype=np.float32).reshape(2, 3)
TORTURES: dict[str, str] = {
    "an operand read again": """
        c: f32[2,3] = mul a b
        d: f32[2,3] = neg c
        e: f32[2,3] = add d c
        return e, d""",
    "a view that outlives its buffer": """
        c: f32[2,3] = mul a b
        d: f32[3,2] = transpose c permutation=(1, 0)
        e: f32[2,3] = neg c
        f: f32[3,2] = neg d
        return e, f""",
    "a view of a view": """
        c: f32[2,3] = mul a b
        d: f32[6] = reshape c shape=(6,)
        e: f32[3,2] = reshape d shape=(3, 2)
        f: f32[2,3] = transpose e permutation=(1, 0)
        g: f32[6] = neg d
        h: f32[2,3] = neg c
        return f, g, h""",
    "both sides of one buffer": """
        c: f32[6] = reshape a shape=(6,)
        d: f32[6] = neg c
        e: f32[6] = reverse d dims=(0,)
        f: f32[6] = add d e
        g: f32[6] = add f e
        return g""",
    "a square of itself": """
        c: f32[2,3] = neg a
        d: f32[2,3] = mul c c
        e: f32[2,3] = add d d
        return e""",
    "an output that is also an operand": """
        c: f32[2,3] = neg a
        d: f32[2,3] = mul c 2.0
        return c, d, c, a""",
    "repeated elements": """
        c: f32[3] = reduce_sum a axes=(0,)
        d: f32[2,3] = broadcast_in_dim c shape=(2, 3) dims=(1,)
        e: f32[2,3] = neg d
        f: f32[2,3] = add d 1.0
        return e, f, d""",
    "many repeated elements": """
        c: f32[3] = reduce_sum a axes=(0,)
        d: f32[1000,3] = broadcast_in_dim c shape=(1000, 3) dims=(1,)
        e: f32[1000,3] = neg d
        f: f32[1000,3] = add d e
        return e, f, d""",
    "many repeated elements, read for the last time": """
        c: f32[3] = reduce_sum a axes=(0,)
        d: f32[1000,3] = broadcast_in_dim c shape=(1000, 3) dims=(1,)
        e: f32[1000,3] = neg d
        return e""",
    "a broadcast of what is then overwritten": """
        c: f32[2,3] = mul a b
        d: f32[4,2,3] = broadcast_in_dim c shape=(4, 2, 3) dims=(1, 2)
        e: f32[2,3] = neg c
        f: f32[4,2,3] = mul d d
        g: f32[4,2,3] = add f d
        return e, g""",
    "scalars": """
        c: f32[] = reduce_sum a axes=(0, 1)
        d: f32[] = mul c 2.0
        e: f32[] = add d d
        f: f32[2,3] = mul a e
        g: f32[] = neg e
        h: f32[2,3] = broadcast_in_dim g shape=(2, 3) dims=()
        return c, d, e, f, g, h, 1.5""",
    "idle buffers of several types": """
        c: f32[2,3] = neg a
        d: f32[2,3] = neg b
        e: bool[2,3] = lt c d
        f: f32[2,3] = mul a 3.0
        g: f32[2,3] = add f b
        h: f32[2,3] = select e g f
        return h, g""",
    "one buffer that dies under two names": """
        c: f32[2,3] = neg a
        d: f32[2,3] = stop_gradient c
        e: bool[2,3] = le c d
        f: f32[2,3] = mul a 2.0
        g: f32[2,3] = mul b 3.0
        h: f32[2,3] = select e f g
        return f, g, h""",
    "views of several operands": """
        c: f32[2,3] = neg a
        d: f32[2,3] = neg b
        e: f32[2,3], f: f32[2,3] = optimization_barrier c d
        g: f32[2,3] = mul c 2.0
        h: f32[2,3] = mul d 2.0
        return e, f, g, h""",
    "nothing to compute": "return b, a, 2.0, b",
}


@pytest.mark.parametrize("body", TORTURES.values(), ids=TORTURES.keys())
def test_a_value_still_needed_is_never_overwritten(body: str) -> None:
    check_against_eager(parse_program(f"program(a: f32[2,3], b: f32[2,3]) {{ {body} }}"), [A, A + 1])


def test_constants_are_never_copied_nor_written_to() -> None:
    constant = to_array(np.ones(1000, np.float32))
    large = constant.data
    program = program_of(lambda x: [add(x, constant), constant, neg(constant)], tensor((1000,), F32))
    function = compile_program(program)
    for _ in range(2):
        _, kept, _ = function(large)
        assert kept is large
        np.testing.assert_array_equal(large, 1)


def test_a_donated_input_is_written_to_only_if_its_memory_is_its_own() -> None:
    program = parse_program("program(a: f32[2,3]) { b: f32[2,3] = neg a  return b }")
    function = compile_program(program, donated=(True,))
    own = A.copy()
    assert function(own)[0] is own
    frozen = A.copy()
    frozen.flags.writeable = False
    repeated = np.broadcast_to(A[0], (2, 3))
    for kept in (frozen, repeated, A.reshape(6).reshape(2, 3)):
        before = kept.copy()
        np.testing.assert_array_equal(function(kept)[0], -before)
        np.testing.assert_array_equal(kept, before)


def test_jit_overwrites_a_donated_argument_that_nobody_else_can_see() -> None:
    update = mw.jit(lambda p, g: p - 0.5 * g, donate_argnums=0)
    p, g = mnp.ones(1000), mnp.ones(1000)
    p = p + 0
    for n in range(3):
        place, before = p.data.ctypes.data, p
        p = update(p, g)
        assert p.data.ctypes.data == place
        np.testing.assert_array_equal(p, 1 - 0.5 * (n + 1))
        with pytest.raises(MeshwrightError, match="donated"):
            _ = before.data


def test_jit_leaves_alone_what_others_see_of_a_donated_argument() -> None:
    scale = mw.jit(lambda x: x * 5, donate_argnums=0)
    x = mnp.ones(4) + 1
    scale(mw.jit(lambda x: x)(x))  # the same contents in another array
    np.testing.assert_array_equal(x, 2)
    view = x.reshape(2, 2)
    scale(x)
    np.testing.assert_array_equal(view, 2)
    constant = mnp.ones(4) + 2
    get = mw.jit(lambda: constant)
    scale(get())
    np.testing.assert_array_equal(get(), 3)
    theirs = np.ones(4, np.float32)
    scale(mnp.asarray(theirs))
    scale(theirs)
    np.testing.assert_array_equal(theirs, 1)
    x = mnp.ones(4) + 1
    _, same = mw.jit(lambda x, y: (x * 5, y), donate_argnums=0)(x, x)
    np.testing.assert_array_equal(same, 2)


def test_a_literal_has_exactly_its_dtype() -> None:
    for dtype in (dtypes.BFLOAT16, dtypes.UINT8, dtypes.INT8, dtypes.FLOAT16, dtypes.COMPLEX64):
        program = program_of(lambda x: [mul(x, 3), x], tensor((2,), dtype))
        scalars = program_of(lambda x: [mul(x, 3), add(mul(x, 2), x)], tensor((), dtype))
        check_against_eager(program, [np.ones(2, dtype)])
        check_against_eager(scalars, [np.ones((), dtype)])


# How much memory


def peak_bytes(function: Callable[..., Any], *args: Any) -> int:
    """The most memory in use at once during a call, results included."""
    function(*args)
    gc.collect()
    tracemalloc.start()
    try:
        out = function(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del out


SIZE = 100_000
ONE = 4 * SIZE


def compiled(text: str, donated: Sequence[bool] = ()) -> Callable[..., tuple[Any, ...]]:
    return compile_program(parse_program(text.replace("N", str(SIZE))), donated=donated)


def buffers(function: Callable[..., Any], inputs: int) -> float:
    return peak_bytes(function, *(np.ones(SIZE, np.float32) for _ in range(inputs))) / ONE


def test_an_elementwise_chain_takes_one_buffer() -> None:
    chain = "b: f32[N] = mul a 2.0  c: f32[N] = add b 1.0  d: f32[N] = tanh c  return d"
    assert buffers(compiled(f"program(a: f32[N]) {{ {chain} }}"), 1) < 1.1


def test_a_chain_on_a_donated_input_takes_none() -> None:
    chain = "b: f32[N] = mul a 2.0  c: f32[N] = add b 1.0  d: f32[N] = tanh c  return d"
    function = compiled(f"program(a: f32[N]) {{ {chain} }}", donated=(True,))
    assert buffers(function, 1) < 0.1


def test_a_reshape_does_not_end_a_chain() -> None:
    chain = "b: f32[N] = mul a 2.0  c: f32[1,N] = reshape b shape=(1, N)  d: f32[1,N] = tanh c  return d"
    assert buffers(compiled(f"program(a: f32[N]) {{ {chain} }}"), 1) < 1.1


def test_values_are_dropped_where_they_are_last_read() -> None:
    lines = ["b0: f32[N] = neg a"]
    for n in range(20):
        lines.append(f"c{n}: f16[N] = convert b{n} dtype=f16 weak=False")
        lines.append(f"b{n + 1}: f32[N] = convert c{n} dtype=f32 weak=False")
    function = compiled(f"program(a: f32[N]) {{ {' '.join(lines)} return b20 }}")
    assert buffers(function, 1) < 1.6


def test_a_buffer_nobody_reads_is_used_again() -> None:
    # Each of c, e and g reads inputs that must stay, so it cannot be written in place of an operand.
    body = """
        c: f32[N] = mul a b
        d: f32[] = reduce_sum c axes=(0,)
        e: f32[N] = add a b
        f: f32[] = reduce_sum e axes=(0,)
        g: f32[N] = sub a b
        h: f32[N] = mul g f
        i: f32[N] = mul h d
        return i"""
    assert buffers(compiled(f"program(a: f32[N], b: f32[N]) {{ {body} }}"), 2) < 1.1


def test_a_broadcast_beside_a_whole_operand_takes_no_memory() -> None:
    text = f"""program(a: f32[{SIZE},4], b: f32[4]) {{
        c: f32[{SIZE},4] = broadcast_in_dim b shape=({SIZE}, 4) dims=(1,)
        d: f32[{SIZE},4] = add a c
        return d
    }}"""
    function = compile_program(parse_program(text))
    assert peak_bytes(function, np.ones((SIZE, 4), np.float32), np.ones(4, np.float32)) < 4.1 * ONE


def test_dead_equations_are_not_computed() -> None:
    text = "program(a: f32[N]) { b: f32[N] = neg a  c: f32[N] = mul b b  return a }"
    assert buffers(compiled(text), 1) < 0.1


# NumPy's error state


def test_nothing_warns_and_the_error_state_is_as_before() -> None:
    program = parse_program("program(a: f32[2]) { b: f32[2] = div 1.0 a  c: f32[2] = mul b 0.0  return c }")
    function = compile_program(program)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        before = np.geterr()
        np.testing.assert_array_equal(function(np.zeros(2, np.float32))[0], [np.nan, np.nan])
        assert np.geterr() == before
        with pytest.raises(TypeError):
            function("no array")
        assert np.geterr() == before


def test_threads_do_not_disturb_one_another() -> None:
    program = parse_program(
        "program(a: f32[1000]) { b: f32[1000] = exp a  c: f32[1000] = mul b 2.0  d: f32[1000] = add c a  return d }"
    )
    function = compile_program(program)
    wrong: list[int] = []

    def work(n: int) -> None:
        x = np.full(1000, n, np.float32)
        expected = np.exp(x) * np.float32(2) + x
        for _ in range(200):
            if not np.array_equal(function(x)[0], expected):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Regions


def test_a_region_is_compiled_once_and_forgotten_with_its_program() -> None:
    functions = region_functions(NUMPY)
    program = parse_program("program(a: f32[2]) { b: f32[2] = neg a  return b }")
    other = parse_program("program(a: f32[2]) { b: f32[2] = neg a  return b }")
    function = functions(program)
    assert functions(program) is function
    assert functions(other) is not function
    np.testing.assert_array_equal(function(np.ones(2, np.float32))[0], [-1, -1])
    cell = functions.__closure__
    assert cell is not None
    (cache,) = [c.cell_contents for c in cell if isinstance(c.cell_contents, dict)]
    assert len(cache) == 2
    del program, other
    gc.collect()
    assert not cache


def test_a_call_runs_in_place_of_itself() -> None:
    inner = program_of(lambda x, y: [y, mul(x, y)], tensor((2, 3), F32), tensor((2, 3), F32))
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)

    def middle(x: Any) -> list[Any]:
        first, second = REGISTRY["checkpoint"](x, to_array(weights), program=inner)
        return [add(first, second)]

    region = program_of(middle, tensor((2, 3), F32))

    def outer(x: Any) -> list[Any]:
        y = neg(x)
        (z,) = REGISTRY["checkpoint"](y, program=region)
        (w,) = REGISTRY["checkpoint"](z, program=region)
        return [z, y, w]

    program = program_of(outer, tensor((2, 3), F32))
    flat = inline_calls(program)
    assert {eqn.op.name for eqn in flat.eqns} == {"neg", "mul", "add"}
    assert len({v for eqn in flat.eqns for v in eqn.outputs}) == len(flat.eqns) == 5
    check_against_eager(program, [A])


def test_control_flow_runs_compiled_regions() -> None:
    body = program_of(lambda c, x: [add(mul(c, x), 1), neg(c)], tensor((3,), F32), tensor((3,), F32))
    less = program_of(lambda c: [REGISTRY["lt"](reduce_sum(c, axes=(0,)), 50.0)], tensor((3,), F32))
    twice = program_of(lambda c: [mul(c, 2)], tensor((3,), F32))
    same = program_of(lambda c: [c], tensor((3,), F32))

    def function(i: Any, c: Any, xs: Any) -> list[Any]:
        last, negated = REGISTRY["scan"](c, xs, body=body, consts=0, carry=1, length=4, reverse=False)
        (grown,) = REGISTRY["while"](last, cond=less, body=twice, cond_consts=0, body_consts=0)
        (chosen,) = REGISTRY["cond"](i, grown, branches=(twice, same))
        return [add(last, chosen), negated, grown, mul(chosen, 2), chosen]

    program = program_of(function, tensor((), np.int32), tensor((3,), F32), tensor((4, 3), F32))
    xs = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    for i in (0, 1):
        check_against_eager(program, [np.asarray(i, np.int32), np.ones(3, np.float32), xs])


# Any namespace


class JaxNamespace(SimpleNamespace):
    """jax.numpy with the few names it lacks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


JAX = JaxNamespace(astype=lambda x, dtype: jnp.asarray(x).astype(dtype), permute_dims=jnp.transpose)
JAX.function = region_functions(JAX)


@settings(max_examples=25, deadline=None)
@given(programs())
def test_the_same_program_runs_on_jax_numpy(drawn: tuple[Program, list[Any]]) -> None:
    program, arrays = drawn
    expected = eagerly(program, arrays)
    function = compile_program(program, JAX)
    for outs in (function(*map(jnp.asarray, arrays)), jax.jit(function)(*arrays)):
        assert_same([np.asarray(x) for x in outs], expected, ulps=64)


# Text, sizes and mistakes


def test_a_param_name_is_never_run() -> None:
    shout: list[Any] = []
    base = REGISTRY["neg"]

    odd_names = TypedDict("odd_names", {"class": int, "a=1)\nraise SystemExit\n#": int, "plain": int}, total=False)

    def same_type(x: TensorType, **params: Unpack[odd_names]) -> TensorType:
        return x

    same_type.__annotations__["params"] = Unpack[odd_names]

    odd = replace(
        base,
        name="odd",
        type=same_type,
        evaluate=lambda xp, x, **params: shout.append(params) or xp.negative(x),
    )
    x, y = Var(tensor((2,), F32)), Var(tensor((2,), F32))
    for params in ({"class": 1}, {"a=1)\nraise SystemExit\n#": 2}, {"plain": 3}):
        program = Program((x,), (Eqn(odd, (x,), params, (y,)),), (y,))
        np.testing.assert_array_equal(compile_program(program)(np.ones(2, np.float32))[0], [-1, -1])
        assert shout.pop() == params


def test_a_missing_constant_is_named() -> None:
    c, y = Var(tensor((2,), F32)), Var(tensor((2,), F32))
    program = Program((), (Eqn(neg, (c,), {}, (y,)),), (y,), ((c, Missing("0123456789abcdef")),))
    with pytest.raises(MeshwrightError, match="0123456789abcdef"):
        compile_program(program)


def test_a_literal_may_be_an_output() -> None:
    program = Program((), (), (Literal(2, tensor((), dtypes.BFLOAT16)),))
    (out,) = compile_program(program)()
    assert out.dtype == dtypes.BFLOAT16 and out.shape == () and not out.flags.writeable


def test_a_long_program_compiles_in_linear_time() -> None:
    def function(x: Any, y: Any) -> list[Any]:
        recent = [x, y]
        for n in range(20_000):
            a, b = recent[-1], recent[n % len(recent)]
            recent.append((add(a, b), mul(a, 1.0 + n), reshape(neg(a), shape=(8,)))[n % 3])
            if len(recent) > 400:
                recent.pop(0)
        return recent

    program = program_of(function, tensor((8,), F32), tensor((8,), F32))
    start = time.perf_counter()
    compiled_function = compile_program(program)
    seconds = time.perf_counter() - start
    assert compiled_function.__code__.co_nlocals < 500  # type: ignore[attr-defined]
    x = np.ones(8, np.float32)
    assert len(compiled_function(x, x)) == len(program.outputs)
    assert seconds / len(program.eqns) < 150e-6  # about 25 on an idle machine
