"""What varies over which mesh axis, and where values are lifted: the type of everything inside of a shard_map."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, ShapeDtypeStruct, lax, make_program, nn
from meshwright.core import dtypes
from meshwright.core.op import REGISTRY
from meshwright.core.types import Variance
from tests.ops.drawing import draw

MESH = mw.make_mesh((4, 2), ("i", "j"))
ONE = (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32, dtypes.BOOL, dtypes.COMPLEX64)


def operand(text):
    """A block and its spec from a type as programs print it: ``"f32[3]{i}"``."""
    dtype, _, rest = text.partition("[")
    shape, _, varying = rest.partition("]")
    block = tuple(int(n) for n in shape.split(",") if n)
    names = set(varying.strip("{}").split(",")) if varying else set()
    dtype = {"f32": "float32", "i32": "int32", "bool": "bool", "c64": "complex64"}[dtype]
    return np.ones(block, dtype), P(replicated=names)


def typed(function, *operands, **options):
    """The types of what a function returns inside of a shard_map over i and j, for operands of these types."""
    found = []

    def body(*args):
        found[:] = [mw.typeof(x).short() for x in mw.tree.leaves(function(*args))]
        return ()

    values, specs = zip(*map(operand, operands), strict=True) if operands else ((), ())
    mw.shard_map(body, mesh=MESH, in_specs=specs, out_specs=(), **options)(*values)
    return found[0] if len(found) == 1 else found


def program(function, in_specs, out_specs, *shapes, mesh=MESH, **options):
    """The program of a shard_map on arguments of these shapes."""
    mapped = mw.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    return make_program(mapped)(*(ShapeDtypeStruct(shape, "float32") for shape in shapes))


def ops(found, path=()):
    """Every op of a program with the ops whose regions it is in."""
    for eqn in found.eqns:
        yield path, eqn.op.name
        for _, region in eqn.regions():
            yield from ops(region, (*path, eqn.op.name))


def count(found, name):
    return sum(op == name for _, op in ops(found))


# First-order ops


def walked():
    for name, op in sorted(REGISTRY.items()):
        if op.variance is Variance.EQUAL:
            for index, sample in enumerate(op.samples()):
                if sample.operands:
                    yield pytest.param(op, index, sample, id=f"{name}-{index}")


def stacked(op, index, sample, which):
    """An op on two devices, with the operands ``which`` different on each: its types, and its values per device."""
    dtype = next((d for d in ONE if d in op.dtypes), op.dtypes[0])
    draws = [draw(sample, dtype, op.name, index, device) for device in range(2)]
    rows = [np.stack([np.asarray(d[n]) for d in draws]) if n in which else draws[0][n] for n in range(len(draws[0]))]
    types = []

    def body(*args):
        outs = op(*(x[0] if n in which else x for n, x in enumerate(args)), **sample.params)
        outs = outs if isinstance(outs, tuple) else (outs,)
        types[:] = [mw.typeof(x) for x in outs]
        return [x[None] for x in outs]

    specs = tuple(P("i") if n in which else P() for n in range(len(rows)))
    mapped = mw.shard_map(body, mesh=mw.make_mesh((2,), ("i",)), in_specs=specs, out_specs=P("i"))
    found = mapped(*rows)
    expected = []
    for device in range(2):
        outs = op(*(mnp.asarray(draws[device if n in which else 0][n]) for n in range(len(rows))), **sample.params)
        expected.append(outs if isinstance(outs, tuple) else (outs,))
    return types, found, [np.stack([np.asarray(x) for x in outs]) for outs in zip(*expected, strict=True)]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # bits read as floats
@pytest.mark.parametrize("op, index, sample", list(walked()))
def test_results_vary_as_the_operands_do(op, index, sample):
    for which in ({0}, set(range(len(sample.operands)))):
        types, found, expected = stacked(op, index, sample, which)
        assert [t.varying for t in types] == [("i",)] * len(types)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-4, atol=1e-5)
    types, _, _ = stacked(op, index, sample, set())
    assert [t.varying for t in types] == [()] * len(types)


FUNCTIONS = [
    ("sum", lambda x: mnp.sum(x), "f32[]"),
    ("matmul", lambda x: x @ x.T, "f32[3,3]"),
    ("softmax", lambda x: nn.softmax(x, -1), "f32[3,4]"),
    ("normalize", lambda x: (x - mnp.mean(x, -1, keepdims=True)) / mnp.std(x, -1, keepdims=True), "f32[3,4]"),
    ("where", lambda x: mnp.where(x > 0, x, 0), "f32[3,4]"),
    ("index", lambda x: x[1, ::2], "f32[2]"),
    ("index by array", lambda x: x[mnp.array([0, 2])], "f32[2,4]"),
    ("update", lambda x: x.at[0].add(1.0), "f32[3,4]"),
    ("stack", lambda x: mnp.stack([x, x]), "f32[2,3,4]"),
    ("sort", lambda x: mnp.sort(x, 0), "f32[3,4]"),
    ("argmax", lambda x: mnp.argmax(x, 0), "i32[4]"),
    ("cast", lambda x: x.astype("bool"), "bool[3,4]"),
    ("einsum", lambda x: mnp.einsum("ab,cb->ac", x, x), "f32[3,3]"),
    ("zeros_like", lambda x: mnp.zeros_like(x) + x, "f32[3,4]"),
    ("grad", lambda x: mw.grad(lambda x: mnp.sum(mnp.tanh(x) ** 2))(x), "f32[3,4]"),
    ("vmap", lambda x: mw.vmap(lambda row: row / mnp.sum(row))(x), "f32[3,4]"),
    ("jit", lambda x: mw.jit(lambda x: 2 * x)(x), "f32[3,4]"),
]


@pytest.mark.parametrize("name, function, result", FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_functions_of_one_value_vary_as_it_does(name, function, result):
    assert typed(function, "f32[3,4]") == result
    assert typed(function, "f32[3,4]{i}") == result + "{i}"
    assert typed(function, "f32[3,4]{i,j}") == result + "{i,j}"


def test_what_comes_from_nowhere_is_the_same_on_all_devices():
    assert typed(lambda: mnp.arange(3.0)) == "f32[3]"
    assert typed(lambda: mw.random.normal(mw.random.key(0), (3,))) == "f32[3]"


def test_random_numbers_vary_as_their_key_does():
    def draw(x):
        return mw.random.normal(mw.random.fold_in(mw.random.key(0), lax.axis_index("i")), (3,))

    assert typed(draw, "f32[]") == "f32[3]{i}"


def test_axes_are_united():
    assert typed(lambda x, y: x + y, "f32[3]{i}", "f32[3]{j}") == "f32[3]{i,j}"
    assert typed(lambda x, y: x + y, "f32[3]{i}", "f32[3]") == "f32[3]{i}"
    assert typed(lambda x, y: mnp.where(x > 0, x, y), "f32[3]", "f32[3]{j}") == "f32[3]{j}"
    assert typed(lambda x, i: x[i], "f32[3]", "i32[]{i}") == "f32[]{i}"
    assert typed(lambda x, y: mnp.concatenate([x, y]), "f32[3]{j}", "f32[2]{i}") == "f32[5]{i,j}"
    assert typed(lambda x, y, z: mnp.clip(x, y, z), "f32[3]", "f32[]{i}", "f32[]{j}") == "f32[3]{i,j}"


def test_numbers_take_the_variance_of_what_they_meet():
    assert typed(lambda x: 2 * x + 1, "f32[3]{i}") == "f32[3]{i}"
    assert count(program(lambda x: 2 * x + 1, P("i"), P("i"), (4,)), "pbroadcast") == 0


# Collectives


COLLECTIVES = [
    ("psum", lambda x: lax.psum(x, "i"), "f32[8]{i,j}", "f32[8]{j}"),
    ("psum of two axes", lambda x: lax.psum(x, ("i", "j")), "f32[8]{i,j}", "f32[8]"),
    ("pmean", lambda x: lax.pmean(x, "j"), "f32[8]{i,j}", "f32[8]{i}"),
    ("pmax", lambda x: lax.pmax(x, "i"), "f32[8]{i}", "f32[8]"),
    ("pmin", lambda x: lax.pmin(x, ("j", "i")), "f32[8]{i,j}", "f32[8]"),
    ("pbroadcast", lambda x: lax.pbroadcast(x, "i"), "f32[8]{j}", "f32[8]{i,j}"),
    ("all_gather", lambda x: lax.all_gather(x, "i"), "f32[8]{i}", "f32[32]{i}"),
    ("all_gather untiled", lambda x: lax.all_gather(x, "i", tiled=False), "f32[8]{i}", "f32[4,8]{i}"),
    ("all_gather axis", lambda x: lax.all_gather(x, "j", axis=1, tiled=False), "f32[8]{j}", "f32[8,2]{j}"),
    ("all_gather_invariant", lambda x: lax.all_gather_invariant(x, ("i", "j")), "f32[8]{i,j}", "f32[64]"),
    ("psum_scatter", lambda x: lax.psum_scatter(x, "i"), "f32[8]{i}", "f32[2]{i}"),
    ("psum_scatter untiled", lambda x: lax.psum_scatter(x, "i", tiled=False), "f32[4,3]{i}", "f32[3]{i}"),
    ("pscatter", lambda x: lax.pscatter(x, "i"), "f32[8]{j}", "f32[2]{i,j}"),
    ("pscatter of two axes", lambda x: lax.pscatter(x, ("i", "j")), "f32[8]", "f32[1]{i,j}"),
    ("all_to_all", lambda x: lax.all_to_all(x, "i", 0, 1), "f32[8,3]{i}", "f32[2,12]{i}"),
    ("all_to_all untiled", lambda x: lax.all_to_all(x, "i", 0, 1, tiled=False), "f32[4,3]{i}", "f32[3,4]{i}"),
    ("ppermute", lambda x: lax.ppermute(x, "i", [(0, 1)]), "f32[8]{i}", "f32[8]{i}"),
]


@pytest.mark.parametrize("name, function, given, result", COLLECTIVES, ids=[row[0] for row in COLLECTIVES])
def test_types_of_collectives(name, function, given, result):
    assert typed(function, given) == result
    assert typed(function, given, auto_pbroadcast=False) == result


def test_types_of_axis_index_and_size():
    assert typed(lambda: lax.axis_index("i")) == "i32[]{i}"
    assert typed(lambda: lax.axis_index(("i", "j"))) == "i32[]{i,j}"
    sizes = []
    typed(lambda x: (sizes.extend([lax.axis_size("i"), lax.axis_size(("i", "j"))]), x)[1], "f32[]")
    assert sizes == [4, 8]


def test_collectives_take_trees():
    assert typed(lambda x, y: lax.psum({"a": x, "b": [y]}, "i"), "f32[3]{i}", "f32[2]{i,j}") == ["f32[3]", "f32[2]{j}"]


# Of a value that is the same on all devices, nothing is sent

SENDS = {"psum", "pmax", "pmin", "all_gather", "all_gather_invariant", "psum_scatter", "all_to_all", "ppermute"}
RING = [(n, (n + 1) % 4) for n in range(4)]
KNOWN = [
    ("psum", lambda x: lax.psum(x, "i"), "f32[8]", lambda x: 4 * x),
    ("pmean", lambda x: lax.pmean(x, "i"), "f32[8]", lambda x: x),
    ("pmax", lambda x: lax.pmax(x, "i"), "f32[8]", lambda x: x),
    ("pmin", lambda x: lax.pmin(x, "i"), "f32[8]", lambda x: x),
    ("all_gather", lambda x: lax.all_gather(x, "i"), "f32[32]", lambda x: np.tile(x, 4)),
    ("all_gather_invariant", lambda x: lax.all_gather_invariant(x, "i"), "f32[32]", lambda x: np.tile(x, 4)),
    ("psum_scatter", lambda x: lax.psum_scatter(x, "i"), "f32[2]{i}", lambda x: 4 * x),
    ("all_to_all", lambda x: lax.all_to_all(x, "i", 0, 0), "f32[8]{i}",
     lambda x: np.concatenate([np.tile(part, 4) for part in np.split(x, 4)])),
    ("ppermute", lambda x: lax.ppermute(x, "i", RING), "f32[8]", lambda x: x),
]  # fmt: skip


@pytest.mark.parametrize("name, function, result, expected", KNOWN, ids=[row[0] for row in KNOWN])
def test_a_collective_of_an_invariant_value_sends_nothing(name, function, result, expected):
    assert typed(function, "f32[8]") == result
    out = P("i") if "{i}" in result else P()
    assert not {op for _, op in ops(program(function, P(), out, (8,)))} & SENDS
    x = np.random.default_rng(0).normal(size=8).astype(np.float32)
    found = mw.shard_map(function, mesh=MESH, in_specs=P(), out_specs=out)(x)
    np.testing.assert_allclose(found, expected(x), rtol=1e-6)


def test_only_the_axes_that_a_value_varies_over_are_summed():
    found = program(lambda x: lax.psum(x, ("i", "j")), P("i"), P(), (8,))
    assert "psum b axes=('i',)" in found.to_text(sources=False).replace("psum c", "psum b")
    x = np.arange(8, dtype=np.float32)
    both = mw.shard_map(lambda x: lax.psum(x, ("i", "j")), mesh=MESH, in_specs=P("i"), out_specs=P())
    np.testing.assert_array_equal(both(x), 2 * x.reshape(4, 2).sum(0))


def test_a_permutation_with_gaps_of_an_invariant_value_varies():
    assert typed(lambda x: lax.ppermute(x, "i", [(0, 1)]), "f32[8]") == "f32[8]{i}"


def test_the_sum_of_a_number_is_a_number():
    found = []
    typed(lambda x: (found.append(lax.psum(1, ("i", "j"))), x)[1], "f32[]")
    assert found == [8]


# Ops with regions


def test_branches_of_a_cond_are_united():
    def pick(p, x, y):
        return lax.cond(p, lambda: x, lambda: y)

    assert typed(pick, "bool[]", "f32[3]", "f32[3]") == "f32[3]"
    assert typed(pick, "bool[]", "f32[3]{i}", "f32[3]") == "f32[3]{i}"
    assert typed(pick, "bool[]", "f32[3]", "f32[3]{i}") == "f32[3]{i}"
    assert typed(pick, "bool[]", "f32[3]{i}", "f32[3]{j}") == "f32[3]{i,j}"


def test_what_a_varying_predicate_decides_varies():
    def pick(p, x, y):
        return lax.cond(p, lambda: x, lambda: y)

    assert typed(pick, "bool[]{i}", "f32[3]", "f32[3]") == "f32[3]{i}"
    assert typed(pick, "bool[]{i}", "f32[3]{j}", "f32[3]") == "f32[3]{i,j}"


def test_branches_of_a_switch_are_united():
    def pick(n, x, y):
        return lax.switch(n, [lambda: x, lambda: y, lambda: x + y, lambda: mnp.zeros(3)])

    assert typed(pick, "i32[]", "f32[3]{i}", "f32[3]{j}") == "f32[3]{i,j}"
    assert typed(pick, "i32[]{i}", "f32[3]", "f32[3]") == "f32[3]{i}"


def test_each_result_of_a_cond_has_a_variance_of_its_own():
    def pick(p, x, y):
        return lax.cond(p, lambda: (x, y, y), lambda: (x, x, y))

    assert typed(pick, "bool[]", "f32[3]{i}", "f32[3]") == ["f32[3]{i}", "f32[3]{i}", "f32[3]"]


def test_the_carry_of_a_scan_reaches_a_fixpoint():
    def total(x):
        return lax.scan(lambda c, row: (c + row, c), mnp.zeros(()), x)

    assert typed(total, "f32[5]") == ["f32[]", "f32[5]"]
    assert typed(total, "f32[5]{i}") == ["f32[]{i}", "f32[5]{i}"]


def test_a_fixpoint_may_take_several_rounds():
    """Variance moves one place per round: from the input to c, from c to b, from b to a."""

    def rotate(x):
        def step(carry, row):
            a, b, c = carry
            return (a + b, b + c, c + row), None

        return lax.scan(step, (mnp.zeros(()),) * 3, x)[0]

    assert typed(rotate, "f32[5]") == ["f32[]"] * 3
    assert typed(rotate, "f32[5]{j}") == ["f32[]{j}"] * 3


def test_parts_of_a_carry_that_nothing_varying_reaches_stay_invariant():
    def step(carry, row):
        steps, total = carry
        return (steps + 1, total + row), steps

    assert typed(lambda x: lax.scan(step, (mnp.zeros(()), mnp.zeros(())), x), "f32[5]{i}") == [
        "f32[]", "f32[]{i}", "f32[5]"
    ]  # fmt: skip


def test_two_axes_meet_in_a_carry():
    def swap(x, y):
        return lax.fori_loop(0, 3, lambda n, c: (c[1], c[0]), (x, y))

    assert typed(swap, "f32[3]{i}", "f32[3]{j}") == ["f32[3]{i,j}"] * 2


def test_a_collective_in_a_loop_keeps_the_carry_invariant():
    def step(c, row):
        return c + lax.psum(row, "i"), None

    assert typed(lambda x: lax.scan(step, mnp.zeros(()), x)[0], "f32[5]{i}") == "f32[]"


def test_the_carry_of_a_while_loop_varies_as_its_body_and_its_condition_do():
    def double(x, limit):
        return lax.while_loop(lambda c: c < limit, lambda c: 2 * c, x)

    assert typed(double, "f32[]", "f32[]") == "f32[]"
    assert typed(double, "f32[]{i}", "f32[]") == "f32[]{i}"
    assert typed(double, "f32[]", "f32[]{i}") == "f32[]{i}"
    assert typed(double, "f32[]{j}", "f32[]{i}") == "f32[]{i,j}"


def test_loops_that_devices_leave_at_different_times():
    def count_up(x):
        return lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, c[1] * 2), (0.0, 1.0))[1][None]

    x = np.array([0, 3, 1, 2], np.float32)
    found = mw.shard_map(count_up, mesh=MESH, in_specs=P("i"), out_specs=P("i"))(x)
    np.testing.assert_array_equal(found, 2.0**x)


def test_map_and_nested_loops():
    def nested(w, x):
        return lax.map(lambda row: lax.fori_loop(0, 2, lambda n, c: c * w + row, mnp.zeros(())), x)

    assert typed(nested, "f32[]", "f32[5]{i}") == "f32[5]{i}"
    assert typed(nested, "f32[]{j}", "f32[5]{i}") == "f32[5]{i,j}"


@mw.custom_jvp
def with_jvp(x, y):
    return x * y


@with_jvp.defjvp
def _(primals, tangents):
    x, y = primals
    return x * y, tangents[0] * y + x * tangents[1]


@mw.custom_vjp
def with_vjp(x, y):
    return x * y


with_vjp.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, ct: (ct * kept[1], ct * kept[0]))


@pytest.mark.parametrize(
    "function", [with_jvp, with_vjp, mw.checkpoint(lambda x, y: x * y), mw.jit(lambda x, y: x * y)]
)
def test_calls_take_unions(function):
    assert typed(function, "f32[3]", "f32[3]") == "f32[3]"
    assert typed(function, "f32[3]", "f32[3]{i}") == "f32[3]{i}"
    assert typed(function, "f32[3]{j}", "f32[3]{i}") == "f32[3]{i,j}"


@pytest.mark.parametrize(
    "function", [with_jvp, with_vjp, mw.checkpoint(lambda x, y: x * y), mw.jit(lambda x, y: x * y)]
)
def test_gradients_of_calls_have_the_types_of_the_arguments(function):
    def gradients(x, y):
        return mw.grad(lambda x, y: mnp.sum(lax.psum(function(x, y), "i")), (0, 1))(x, y)

    assert typed(gradients, "f32[3]", "f32[3]{i}") == ["f32[3]", "f32[3]{i}"]
    x, y = np.arange(3, dtype=np.float32), np.arange(12, dtype=np.float32)
    found = mw.shard_map(gradients, mesh=MESH, in_specs=(P(), P("i")), out_specs=(P(), P("i")))(x, y)
    np.testing.assert_allclose(found[0], y.reshape(4, 3).sum(0))
    np.testing.assert_allclose(found[1], np.tile(x, 4))


# Lifting: once per value, and outside of loops


def lifted_in(found):
    """How many pbroadcasts there are inside of which ops."""
    return Counter("/".join(path) for path, op in ops(found) if op == "pbroadcast")


def test_a_value_used_often_is_lifted_once():
    def body(w, x):
        return w * x + mnp.sin(w) * x + w

    assert lifted_in(program(body, (P(), P("i")), P("i"), (2,), (8,))) == {"shard_map": 2}  # w, and sin(w)


def test_a_value_is_lifted_once_per_set_of_axes():
    def body(w, x, y):
        return w * x + y * w + w * (x * y)

    found = program(body, (P(), P("i"), P("j")), P(("i", "j")), (2,), (8,), (4,))
    # w over i, over j, and over both; x over j and y over i to meet; their products over what is missing
    assert lifted_in(found)["shard_map"] <= 7
    texts = [line.split("=", 1)[1].split("#")[0].strip() for line in str(found).splitlines() if "pbroadcast" in line]
    assert len(texts) == len(set(texts))


def test_what_a_loop_closes_over_is_lifted_before_it():
    def body(w, x):
        return lax.scan(lambda c, row: (c * w + row, None), mnp.zeros(()), x)[0][None]

    found = program(body, (P(), P("i")), P("i"), (), (8,))
    assert set(lifted_in(found)) == {"shard_map"}
    assert lifted_in(found)["shard_map"] == 2  # w, and the zero that the carry starts with


def test_what_nested_loops_close_over_is_lifted_before_the_outermost():
    def body(w, x):
        def outer(c, row):
            return lax.fori_loop(0, 3, lambda n, c: c * w + row, c), None

        return lax.scan(outer, mnp.zeros(()), x)[0][None]

    assert set(lifted_in(program(body, (P(), P("i")), P("i"), (), (8,)))) == {"shard_map"}


def test_what_branches_close_over_is_lifted_before_the_cond():
    def body(w, x):
        return lax.cond(x[0] > 0, lambda: x * w, lambda: mnp.sin(w) * x)

    assert set(lifted_in(program(body, (P(), P("i")), P("i"), (2,), (8,)))) == {"shard_map"}


def test_the_gradient_of_a_loop_has_one_sum_after_it():
    def body(w, x):
        return lax.psum(lax.scan(lambda c, row: (c * w + row, None), mnp.zeros(()), x)[0], "i")

    mapped = mw.shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    shapes = (ShapeDtypeStruct((), "float32"), ShapeDtypeStruct((8,), "float32"))
    found = make_program(mw.grad(mapped))(*shapes)
    assert Counter(path for path, op in ops(found) if op == "psum") == {("shard_map",): 1}


def test_the_gradient_of_a_varying_cond_has_one_sum_after_it():
    def body(w, x):
        return lax.psum(mnp.sum(lax.cond(x[0] > 0, lambda: x * w, lambda: mnp.sin(w) * x)), "i")

    mapped = mw.shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    w, x = np.array([0.5, -1], np.float32), np.random.default_rng(0).normal(size=8).astype(np.float32)
    found = make_program(mw.grad(mapped))(w, x)
    assert {path for path, op in ops(found) if op == "psum"} == {("shard_map",)}

    def plain(w, x):
        rows = x.reshape(4, 2)
        return mnp.sum(mnp.where(rows[:, :1] > 0, rows * w, mnp.sin(w) * rows))

    np.testing.assert_allclose(mw.grad(mapped)(w, x), mw.grad(plain)(w, x), rtol=1e-5)


def test_a_constant_is_lifted_outside_of_a_loop_and_once():
    table = np.arange(3, dtype=np.float32)

    def body(x):
        return lax.scan(lambda c, row: (c + table * row, None), mnp.zeros(3), x)[0]

    found = program(body, P("i"), P("i"), (8,))
    assert set(lifted_in(found)) == {"shard_map"}


# auto_pbroadcast=False


def test_explicit_programs_are_the_ones_that_lifting_would_make():
    def plain(w, x):
        return mnp.tanh(x * w)

    def explicit(w, x):
        return mnp.tanh(x * lax.pbroadcast(w, "i"))

    specs = ((P(), P("i")), P("i"), (2,), (8,))
    assert program(plain, *specs) == program(explicit, *specs, auto_pbroadcast=False) == program(explicit, *specs)


def test_explicit_loops_and_branches():
    def body(x):
        start = lax.pbroadcast(mnp.zeros(()), "i")
        total = lax.scan(lambda c, row: (c + row, None), start, x)[0]
        return lax.cond(mnp.array(True), lambda: total, lambda: lax.pbroadcast(mnp.ones(()), "i"))[None]

    mapped = mw.shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), auto_pbroadcast=False)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(mapped(x), x.reshape(4, 2).sum(1))


def test_numbers_need_no_pbroadcast():
    assert typed(lambda x: 2 * x + 1, "f32[3]{i}", auto_pbroadcast=False) == "f32[3]{i}"
    for update in ("set", "add", "multiply", "max", "divide"):
        for key in (0, -1, slice(1, 3), slice(None, None, 2)):
            changed = partial(lambda x, update, key: getattr(x.at[key], update)(2.0), update=update, key=key)
            assert typed(changed, "f32[3]{i}", auto_pbroadcast=False) == "f32[3]{i}"


def test_derivatives_of_explicit_programs_are_lifted_where_they_must_be():
    def body(w, x):
        return lax.psum(mnp.sum(mnp.tanh(x * lax.pbroadcast(w, "i")) ** 2), "i")

    w, x = np.array([0.5, -1], np.float32), np.random.default_rng(0).normal(size=8).astype(np.float32)
    mapped = mw.shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), auto_pbroadcast=False)

    def plain(w, x):
        return mnp.sum(mnp.tanh(x.reshape(4, 2) * w) ** 2)

    for argnum in (0, 1):
        np.testing.assert_allclose(mw.grad(mapped, argnum)(w, x), mw.grad(plain, argnum)(w, x), rtol=1e-4)


def test_an_inner_shard_map_has_an_option_of_its_own():
    def outer(w, x):
        inner = mw.shard_map(
            lambda x: x * lax.pbroadcast(mnp.ones(()), ("i", "j")),
            in_specs=P("j"), out_specs=P("j"), axis_names={"j"}, auto_pbroadcast=False,
        )  # fmt: skip
        return inner(x) * w

    mapped = mw.shard_map(outer, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"), axis_names={"i"})
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(mapped(np.float32(2), x), 2 * x)


# Parts of an axis: "x:(1)2" is the major half of an axis x of size 4, "x:(2)2" the minor one

FOUR = mw.make_mesh((4,), ("x",))
EIGHT = mw.make_mesh((8,), ("x",))


def part_types(function, in_spec, x, mesh):
    found = []

    def body(x):
        y = function(x)
        found.extend([mw.typeof(x).short(), mw.typeof(y).short()])
        return ()

    mw.shard_map(body, mesh=mesh, in_specs=in_spec, out_specs=())(x)
    return found


def test_a_spec_may_name_a_part_of_an_axis():
    x = np.arange(4, dtype=np.float32)
    assert part_types(lambda x: x, P("x:(1)2"), x, FOUR) == ["f32[2]{x:(1)2}"] * 2
    assert part_types(lambda x: x, P("x:(2)2"), x, FOUR) == ["f32[2]{x:(2)2}"] * 2
    assert part_types(lambda x: x, P("x:(2)2", None), x[:, None], EIGHT) == ["f32[2,1]{x:(2)2}"] * 2


def test_a_collective_may_name_a_part_of_an_axis():
    x = np.arange(8, dtype=np.float32)
    minor = ["f32[2]{x:(1)2,x:(2)2}", "f32[2]{x:(1)2}"]
    assert part_types(lambda x: lax.psum(x, "x:(2)2"), P("x"), x, FOUR) == minor
    major = ["f32[2]{x:(1)2,x:(2)2}", "f32[2]{x:(2)2}"]
    assert part_types(lambda x: lax.psum(x, "x:(1)2"), P("x"), x, FOUR) == major


def test_sums_over_parts():
    x = np.arange(8, dtype=np.float32)
    grid = x.reshape(2, 2, 2)  # major, minor, block
    sums = mw.shard_map(lambda x: lax.psum(x, "x:(1)2"), mesh=FOUR, in_specs=P("x"), out_specs=P("x:(2)2"))
    np.testing.assert_array_equal(sums(x), grid.sum(0).reshape(-1))
    sums = mw.shard_map(lambda x: lax.psum(x, "x:(2)2"), mesh=FOUR, in_specs=P("x"), out_specs=P("x:(1)2"))
    np.testing.assert_array_equal(sums(x), grid.sum(1).reshape(-1))
    both = mw.shard_map(lambda x: lax.psum(lax.psum(x, "x:(2)2"), "x:(1)2"), mesh=FOUR, in_specs=P("x"), out_specs=P())
    np.testing.assert_array_equal(both(x), grid.sum((0, 1)))
    whole = mw.shard_map(lambda x: lax.psum(x, "x"), mesh=FOUR, in_specs=P("x"), out_specs=P())
    np.testing.assert_array_equal(whole(x), grid.sum((0, 1)))


def test_all_parts_of_an_axis_of_eight():
    x = np.arange(8, dtype=np.float32)
    grid = x.reshape(2, 2, 2)
    parts = {"x:(1)2": 0, "x:(2)2": 1, "x:(4)2": 2, "x:(1)4": (0, 1), "x:(2)4": (1, 2)}
    for name, dims in parts.items():
        sums = mw.shard_map(
            lambda x, name=name: lax.pbroadcast(lax.psum(x, name), name), mesh=EIGHT, in_specs=P("x"), out_specs=P("x")
        )
        expected = np.broadcast_to(grid.sum(dims, keepdims=True), grid.shape).reshape(-1)
        np.testing.assert_array_equal(sums(x), expected, err_msg=name)


def test_the_transpose_of_a_sum_over_a_part_is_a_pbroadcast_over_it():
    f = mw.shard_map(lambda x: lax.psum(x, "x:(1)2"), mesh=FOUR, in_specs=P("x"), out_specs=P("x:(2)2"))
    back = lambda y: mw.linear_transpose(f, ShapeDtypeStruct((8,), "float32"))(y)[0]
    found = make_program(back)(ShapeDtypeStruct((4,), "float32"))
    assert "pbroadcast" in str(found) and not {op for _, op in ops(found)} & SENDS
    y = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(back(y), np.tile(y, 2))


def test_gathers_scatters_and_positions_along_parts():
    x = np.arange(8, dtype=np.float32)
    gather = mw.shard_map(
        lambda x: lax.all_gather_invariant(x, "x:(2)4"), mesh=EIGHT, in_specs=P("x"), out_specs=P("x:(1)2")
    )
    np.testing.assert_array_equal(gather(x), x)
    scatter = mw.shard_map(lambda x: lax.psum_scatter(x, "x:(2)4"), mesh=EIGHT, in_specs=P("x:(1)2"), out_specs=P("x"))
    np.testing.assert_array_equal(scatter(x), 4 * x)
    place = mw.shard_map(
        lambda: (lax.axis_index("x:(1)2") * 10 + lax.axis_index("x:(2)4"))[None],
        mesh=EIGHT,
        in_specs=(),
        out_specs=P("x"),
    )
    np.testing.assert_array_equal(place(), [0, 1, 2, 3, 10, 11, 12, 13])
    ring = [(n, (n + 1) % 4) for n in range(4)]
    rotate = mw.shard_map(lambda x: lax.ppermute(x, "x:(2)4", ring), mesh=EIGHT, in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_array_equal(rotate(x), [3, 0, 1, 2, 7, 4, 5, 6])


def test_sizes_of_parts():
    sizes = []
    body = lambda x: (sizes.extend([lax.axis_size("x:(2)4"), lax.axis_size("x")]), x)[1]
    mw.shard_map(body, mesh=EIGHT, in_specs=P("x"), out_specs=P("x"))(np.zeros(8, np.float32))
    assert sizes[-2:] == [4, 8]


def test_dims_may_be_cut_along_different_parts():
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    f = mw.shard_map(
        lambda x: x * (1 + lax.axis_index("x")),
        mesh=FOUR,
        in_specs=P("x:(1)2", "x:(2)2"),
        out_specs=P("x:(1)2", "x:(2)2"),
    )
    expected = x.reshape(2, 2, 2, 2) * np.array([[1, 2], [3, 4]])[:, None, :, None]
    np.testing.assert_array_equal(f(x), expected.reshape(4, 4))


# Values that are typed as varying and are the same all the same have no rows of their own, in loops and branches too


@pytest.mark.parametrize(
    "function",
    [
        lambda w: lax.scan(lambda c, _: (c * w, c), mnp.ones(2), None, length=3)[0],
        lambda w: lax.fori_loop(0, 3, lambda n, c: c * w, mnp.ones(2)),
        lambda w: lax.while_loop(lambda c: mnp.sum(c) < 10, lambda c: c + w * w, mnp.ones(2)),
        lambda w: lax.cond(mnp.sum(w) > 0, lambda: w, lambda: -w),
        lambda w: lax.map(lambda x: x * w[0], w),
        lambda w: with_jvp(w, w),
        lambda w: mw.checkpoint(mnp.sin)(w),
    ],
)
def test_regions_on_lifted_values_alone(function):
    w, t = np.array([0.5, 2.0], np.float32), np.array([1.0, -3.0], np.float32)
    for axes in ("i", ("j", "i")):
        mapped = mw.shard_map(
            lambda w, axes=axes: lax.pmean(function(lax.pbroadcast(w, axes)), ("i", "j")),
            mesh=MESH, in_specs=P(), out_specs=P(),
        )  # fmt: skip
        for found, expected in zip(mw.jvp(mapped, (w,), (t,)), mw.jvp(function, (w,), (t,)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


# Where names come from


def test_a_shard_map_inside_of_a_named_vmap_takes_the_current_mesh():
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    with mw.set_mesh(MESH):
        total = mw.shard_map(lambda x: lax.psum(lax.psum(x, "i"), "b"), in_specs=P("i"), out_specs=P())
        found = mw.vmap(total, axis_name="b")(x)
    np.testing.assert_array_equal(found, np.tile(x.reshape(12, 2).sum(0), (3, 1)))


def test_an_inner_shard_map_may_name_a_part_of_an_axis_of_the_outer_one():
    def inner(x):
        return lax.psum(x, "i:(1)2") * (1 + lax.axis_index("j"))

    def outer(x):
        return mw.shard_map(inner, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})(x)

    x = np.arange(8, dtype=np.float32)
    mapped = mw.shard_map(outer, mesh=MESH, in_specs=P("i"), out_specs=P("i:(2)2"), axis_names={"i"})
    np.testing.assert_array_equal(mapped(x), (x[:4] + x[4:]) * [1, 2, 1, 2])


def test_a_jitted_function_is_traced_for_each_mesh_it_is_used_on():
    total = mw.jit(lambda x: lax.psum(x, "i") * lax.axis_size("i"))
    x = np.arange(8, dtype=np.float32)
    for size in (2, 8, 4, 2):
        mesh = mw.make_mesh((size,), ("i",))
        found = mw.shard_map(total, mesh=mesh, in_specs=P("i"), out_specs=P())(x)
        np.testing.assert_array_equal(found, size * x.reshape(size, -1).sum(0))


# Programs with these types are read back from their text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: mw.shard_map(lambda x: lax.psum(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P())(x),
        lambda x: 2 * mw.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P(sum="i"))(x),
        lambda x: mw.shard_map(lambda x: lax.psum(x, "i:(1)2"), mesh=MESH, in_specs=P("i"), out_specs=P("i:(2)2"))(x),
        lambda x: mw.shard_map(
            lambda x: lax.scan(lambda c, row: (c + row, c), mnp.zeros(()), x)[1],
            mesh=MESH, in_specs=P(("i", "j")), out_specs=P(("i", "j")),
        )(x),
        lambda x: mw.shard_map(lambda x: x, mesh=MESH, in_specs=P(replicated={"j"}), out_specs=P("j"))(x),
        mw.grad(lambda x: mw.shard_map(
            lambda x: lax.pmean(mnp.sum(lax.all_gather(x, "i") ** 2), "i"), mesh=MESH, in_specs=P("i"), out_specs=P()
        )(x)),
    ],
)  # fmt: skip
def test_texts_are_read_back(function):
    found = make_program(function)(ShapeDtypeStruct((8,), "float32"))
    assert mw.parse_program(str(found)) == found


# Partial sums, between shard_maps

A = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def partial_sum(w):
    return mw.shard_map(lambda a, w: a.T @ (a @ w), mesh=MESH, in_specs=(P("i"), P()), out_specs=P(sum="i"))(A, w)


def reduced(w):
    return mnp.sum(mnp.tanh(mw.reshard(partial_sum(w), mw.NamedSharding(MESH, P()))) ** 2)


def scattered(w):
    scatter = mw.shard_map(lambda h: lax.psum_scatter(h, "i"), mesh=MESH, in_specs=P(sum="i"), out_specs=P("i"))
    return mnp.sum(mnp.tanh(scatter(2 * partial_sum(w)) / 2) ** 2)


def without_devices(w):
    return mnp.sum(mnp.tanh(A.T @ (A @ w)) ** 2)


@pytest.mark.parametrize("function", [reduced, scattered])
def test_derivatives_through_a_sum_that_is_owed(function):
    transforms = [
        lambda f: f(W),
        lambda f: mw.grad(f)(W),
        lambda f: mw.jit(mw.grad(f))(W),
        lambda f: mw.grad(mw.checkpoint(f))(W),
        lambda f: mw.jvp(mw.grad(f), (W,), (W,))[1],
        lambda f: mw.vmap(f)(mnp.stack([W, W / 2])),
        lambda f: mw.vmap(mw.grad(f))(mnp.stack([W, W / 2])),
    ]
    for transform in transforms:
        np.testing.assert_allclose(transform(function), transform(without_devices), rtol=2e-3, atol=1e-4)


def test_a_scatter_of_summands_transposes_to_a_gather():
    found = make_program(mw.grad(scattered))(W)
    assert count(found, "psum_scatter") == 1 and count(found, "all_gather") == 1
    assert count(found, "psum") == 1  # of the gradient of w, which all devices share
