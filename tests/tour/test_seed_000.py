"""Seed 000, "Efficient transposition of replication-inducing collectives": its examples, in its order and its words.

``t(f)`` is the document's function transpose. A program is compared with one that the document prints by ``==``, which
is equality up to names of variables. Slips of the document are noted where they are met:

- the loss has one closing bracket too many, and so has the second transpose of the cursed identity;
- ``t(t(f1_better))`` has a positional argument after a keyword one;
- the decorator of ``f1_transpose`` has the specs of ``f1``;
- "all_reduce_invariant" in the text is ``all_gather_invariant``;
- ``mul x:f32[s1]{r1} y:f32[s2][r2]`` has brackets where braces are meant;
- the row of ``all_to_all`` in the table lacks a bar;
- ``pscatter`` is said to lower to ``x[axis_index('i'), None]``, one row, where its example keeps a block of two.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, ShapeDtypeStruct, lax, make_program, shmap
from meshwright.core.program import Program
from meshwright.lax import all_gather, all_gather_invariant, pbroadcast, pscatter, psum, psum_scatter

SILENT = {"pbroadcast", "pscatter", "axis_index"}
COLLECTIVES = SILENT | {"psum", "all_gather", "all_gather_invariant", "psum_scatter", "all_to_all", "ppermute"}


@pytest.fixture(autouse=True)
def eight_devices():
    with mw.set_mesh(mw.make_mesh((8,), ("i",))):
        yield


def f32(*shape):
    return ShapeDtypeStruct(shape, "float32")


def t(f, *primals, argnum=None):
    """The transpose of ``f``; with ``argnum``, of a function linear in that argument, and then the others come first,
    as in ``t(f2, 0)(y, zbar)``."""
    if argnum is None:
        return lambda ct: mw.linear_transpose(f, *primals)(ct)[0]

    def transposed(*args):
        *others, ct = args
        one = mw.linear_transpose(lambda x: f(*others[:argnum], x, *others[argnum:]), primals[argnum])
        return one(ct)[0]

    return transposed


def collectives(program: Program) -> Counter:
    """How often each collective occurs in a program and its regions."""
    found = Counter(eqn.op.name for eqn in program.eqns if eqn.op.name in COLLECTIVES)
    for eqn in program.eqns:
        for _, region in eqn.regions():
            found += collectives(region)
    return found


def communication(program: Program) -> dict[str, int]:
    """The collectives that send something."""
    return {name: count for name, count in collectives(program).items() if name not in SILENT}


def body_text(program: Program) -> str:
    """What the document writes: the body of the only shmap, with its types."""
    (eqn,) = program.eqns
    return eqn.params["body"].to_text(sources=False)


def g(x):
    """The document's g: f32[3,4] -> f32[], linear."""
    return mnp.sum(x * 3)


WEIGHTS = np.full((3, 4), 3, np.float32)  # g(x) = sum(x * WEIGHTS)
X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=8).astype(np.float32)
Z = np.random.default_rng(2).normal(size=64).astype(np.float32)


# Problem: a replicated-parameter batch data parallel loss function


def predict(params, inputs):
    for w in params:
        inputs = mnp.tanh(inputs @ w)
    return inputs


def make_loss():
    devices = mw.make_mesh((8,), ("batch",)).devices  # 8 devices

    @partial(
        shmap,
        mesh=mw.Mesh(devices, ("batch",)),
        in_specs=(P(None, None), P("batch", None)),
        out_specs=P(),
    )
    def loss(params, batch):
        inputs, targets = batch
        predictions = predict(params, inputs)
        local_loss = mnp.mean(mnp.sum(predictions - targets, -1))
        global_loss = lax.pmean(local_loss, "batch")
        return global_loss

    return loss


def plain_loss(params, batch):
    inputs, targets = batch
    return mnp.mean(mnp.sum(predict(params, inputs) - targets, -1))


def loss_arguments():
    rng = np.random.default_rng(3)
    params = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 5), (5, 6), (6, 3))]
    batch = rng.normal(size=(16, 4)).astype(np.float32), rng.normal(size=(16, 3)).astype(np.float32)
    return params, batch


def test_the_batch_loss_is_the_loss_of_the_whole_batch():
    args = loss_arguments()
    np.testing.assert_allclose(make_loss()(*args), plain_loss(*args), rtol=1e-5)


def test_the_loss_needs_one_psum():
    assert communication(make_program(make_loss())(*loss_arguments())) == {"psum": 1}


def test_its_gradient_has_one_psum_per_parameter_and_none_for_the_loss():
    args = loss_arguments()
    program = make_program(mw.grad(make_loss()))(*args)
    assert communication(program) == {"psum": 3}
    forward, backward = program.eqns
    assert communication(forward.params["body"]) == {}
    sums = [eqn for eqn in backward.params["body"].eqns if eqn.op.name == "psum"]
    assert sorted(eqn.outputs[0].type.short() for eqn in sums) == ["f32[4,5]", "f32[5,6]", "f32[6,3]"]


def test_with_the_value_there_is_one_psum_more():
    assert communication(make_program(mw.value_and_grad(make_loss()))(*loss_arguments())) == {"psum": 4}


def test_its_gradient_is_that_of_the_whole_batch():
    args = loss_arguments()
    for found, expected in zip(mw.grad(make_loss())(*args), mw.grad(plain_loss)(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# Example 1: shmap involving psum and unmapped output


def example_1():
    return shmap(lambda x: psum(g(x), "i"), in_specs=P("i"), out_specs=P())


def test_example_1_with_intermediate_device_variance_types_annotated():
    types = {}

    @partial(shmap, in_specs=P("i"), out_specs=P())
    def f1(x):
        types["x"] = mw.typeof(x)
        w = g(x)
        types["w"] = mw.typeof(w)
        y = psum(w, "i")
        types["y"] = mw.typeof(y)
        return y

    np.testing.assert_allclose(f1(X), np.sum(X.reshape(8, 3, 4) * WEIGHTS), rtol=1e-5)
    assert {name: found.short() for name, found in types.items()} == {"x": "f32[3,4]{i}", "w": "f32[]{i}", "y": "f32[]"}


def test_example_1_transposes_as_printed():
    t_f1 = make_program(t(example_1(), f32(24, 4)))(f32())
    printed = shmap(lambda ybar: t(g, f32(3, 4))(pbroadcast(ybar, "i")), in_specs=P(), out_specs=P("i"))
    assert t_f1 == make_program(printed)(f32())
    assert communication(t_f1) == {} and collectives(t_f1) == {"pbroadcast": 1}
    assert body_text(t_f1) == (
        "program(a: f32[]) {\n"
        "  b: f32[]{i} = pbroadcast a axes=('i',)\n"
        "  c: f32[3,4]{i} = broadcast_in_dim b dims=() shape=(3, 4)\n"
        "  d: f32[3,4]{i} = mul c 3.0\n"
        "  return d\n"
        "}"
    )


def test_example_1_transpose_with_intermediate_device_variance_types_annotated():
    """The decorator of ``f1_transpose`` in the document has in_specs and out_specs in each other's place."""
    types = {}

    @partial(shmap, in_specs=P(), out_specs=P("i"))
    def f1_transpose(ybar):
        types["ybar"] = mw.typeof(ybar)
        wbar = pbroadcast(ybar, "i")
        types["wbar"] = mw.typeof(wbar)
        xbar = t(g, f32(3, 4))(wbar)
        types["xbar"] = mw.typeof(xbar)
        return xbar

    assert make_program(f1_transpose)(f32()) == make_program(t(example_1(), f32(24, 4)))(f32())
    assert {name: found.short() for name, found in types.items()} == {
        "ybar": "f32[]",
        "wbar": "f32[]{i}",
        "xbar": "f32[3,4]{i}",
    }


def test_if_we_keep_transposing_example_1_the_body_does_not_grow():
    f1 = example_1()
    t_f1 = t(f1, f32(24, 4))
    tt_f1 = t(t_f1, f32())
    ttt_f1 = t(tt_f1, f32(24, 4))
    assert make_program(tt_f1)(f32(24, 4)) == make_program(f1)(f32(24, 4))
    assert make_program(ttt_f1)(f32()) == make_program(t_f1)(f32())
    assert communication(make_program(tt_f1)(f32(24, 4))) == {"psum": 1}


def test_example_1_transpose_has_the_right_numbers():
    np.testing.assert_allclose(t(example_1(), f32(24, 4))(np.float32(3)), np.tile(3 * WEIGHTS, (8, 1)), rtol=1e-6)


def test_the_transpose_that_was_current_for_example_1_is_right_here_too_and_costs_nothing():
    """``psum(ybar / 8)`` of a value known to be the same on all devices is a product with 8."""
    old = shmap(lambda ybar: t(g, f32(3, 4))(psum(ybar / 8, "i")), in_specs=P(), out_specs=P("i"))
    assert communication(make_program(old)(f32())) == {}
    np.testing.assert_allclose(old(np.float32(3)), t(example_1(), f32(24, 4))(np.float32(3)), rtol=1e-6)


def test_the_efficient_transpose_can_be_transposed_again():
    """The document warns "don't transpose this again!"; with types, the pbroadcast that was left out is there."""
    f1_transpose = shmap(t(g, f32(3, 4)), in_specs=P(), out_specs=P("i"))
    assert communication(make_program(f1_transpose)(f32())) == {}
    again = t(f1_transpose, f32())
    assert communication(make_program(again)(f32(24, 4))) == {"psum": 1}
    np.testing.assert_allclose(again(X), example_1()(X), rtol=1e-5)


# Example 2: shmap involving psum and *mapped* output


def example_2():
    return shmap(lambda x, y: psum(g(x), "i") * y, in_specs=(P("i"), P("i")), out_specs=P("i"))


def test_example_2_is_rewritten_with_explicit_pbroadcast():
    explicit = shmap(lambda x, y: pbroadcast(psum(g(x), "i"), "i") * y, in_specs=(P("i"), P("i")), out_specs=P("i"))
    assert make_program(example_2())(f32(24, 4), f32(8)) == make_program(explicit)(f32(24, 4), f32(8))


def test_example_2_transposes_as_printed():
    """A block of y has one element, and g gives a scalar: the product broadcasts, and its transpose sums."""
    t_f2 = make_program(t(example_2(), f32(24, 4), f32(8), argnum=0))(f32(8), f32(8))
    printed = shmap(
        lambda y, zbar: t(g, f32(3, 4))(pbroadcast(psum(mnp.sum(zbar * y), "i"), "i")),
        in_specs=(P("i"), P("i")),
        out_specs=P("i"),
    )
    assert t_f2 == make_program(printed)(f32(8), f32(8))
    assert communication(t_f2) == {"psum": 1}


def test_the_transpose_that_was_current_for_example_2_is_this_one():
    """Where the psum is necessary, what was current meant the same; the pbroadcast is put in where types ask for it."""
    current = shmap(
        lambda y, zbar: t(g, f32(3, 4))(psum(mnp.sum(zbar * y), "i")), in_specs=(P("i"), P("i")), out_specs=P("i")
    )
    found = make_program(current)(f32(8), f32(8))
    assert communication(found) == {"psum": 1}
    np.testing.assert_allclose(current(Y, Y[::-1]), t(example_2(), X, Y, argnum=0)(Y, Y[::-1]), rtol=1e-5)


def test_transposed_twice_example_2_is_itself():
    """With what it is not linear in before what it is linear in, as ``t(f2, 0)`` has them."""
    f2 = example_2()

    def twice(y, x):
        return t(lambda zbar: t(f2, f32(24, 4), y, argnum=0)(y, zbar), f32(8))(x)

    def again(y, x):
        return pbroadcast(psum(g(x), "i"), "i") * y

    again = shmap(again, in_specs=(P("i"), P("i")), out_specs=P("i"))
    assert make_program(twice)(f32(8), f32(24, 4)) == make_program(again)(f32(8), f32(24, 4))
    np.testing.assert_allclose(twice(Y, X), f2(X, Y), rtol=1e-5)


def test_example_2_has_the_right_numbers():
    f2 = example_2()
    total = np.sum(X.reshape(8, 3, 4) * WEIGHTS)
    np.testing.assert_allclose(f2(X, Y), total * Y, rtol=1e-5)
    xbar = t(f2, X, Y, argnum=0)(Y, Z[:8])
    np.testing.assert_allclose(xbar, np.tile(WEIGHTS, (8, 1)) * np.dot(Z[:8], Y), rtol=1e-5)


# Example 3: cursed identity


def cursed_identity():
    return shmap(lambda x: x, P(), P())


def test_the_body_of_the_cursed_identity_has_no_device_varying_type():
    assert body_text(make_program(cursed_identity())(f32(5))) == "program(a: f32[5]) {\n  return a\n}"


def test_the_cursed_identity_transposes_to_itself_at_any_depth():
    f = cursed_identity()
    program = make_program(f)(f32(5))
    for _ in range(6):
        f = t(f, f32(5))
        assert make_program(f)(f32(5)) == program
    assert collectives(program) == {}
    np.testing.assert_array_equal(f(Y[:5]), Y[:5])


def test_the_transpose_that_was_current_for_example_3_never_grows_either():
    f = shmap(lambda x: psum(x / 8, "i"), P(), P())
    sizes = []
    for _ in range(4):
        program = make_program(f)(f32(5))
        sizes.append(len(program.eqns[0].params["body"].eqns))
        assert communication(program) == {}
        f = t(f, f32(5))
    assert sizes == [2, 2, 2, 2]
    np.testing.assert_allclose(f(Y[:5]), Y[:5], rtol=1e-6)


# Example 4: all_gather to an unmapped output


def example_4():
    return shmap(lambda x: all_gather_invariant(x, "i"), P("i"), P())


def test_example_4_as_first_written_is_refused_with_the_gather_to_write():
    """``all_gather`` gives a device-varying result, which an unmapped output does not take."""
    f4 = shmap(lambda x: all_gather(x, "i"), P("i"), P())
    with pytest.raises(mw.MeshwrightError, match=r"Result of the function is float32\[8\]\{i\}") as caught:
        f4(Y)
    assert "lax.all_gather_invariant(x, 'i')" in caught.value.fix
    np.testing.assert_array_equal(example_4()(Y), Y)


def test_example_4_with_intermediate_device_variance_types_annotated():
    types = []

    @partial(shmap, P("i"), P())
    def f4(x):
        y = all_gather_invariant(x, "i")
        types.extend([mw.typeof(x).short(), mw.typeof(y).short()])
        return y

    np.testing.assert_array_equal(f4(Y), Y)
    assert types == ["f32[1]{i}", "f32[8]"]


def test_example_4_transposes_as_printed():
    types = []

    @partial(shmap, in_specs=P(), out_specs=P("i"))
    def f4_transpose(ybar):
        xbar = pscatter(ybar, "i")
        types.extend([mw.typeof(ybar).short(), mw.typeof(xbar).short()])
        return xbar

    found = make_program(t(example_4(), f32(8)))(f32(8))
    assert found == make_program(f4_transpose)(f32(8))
    assert types == ["f32[8]", "f32[1]{i}"]
    assert collectives(found) == {"pscatter": 1} and communication(found) == {}
    np.testing.assert_array_equal(t(example_4(), f32(8))(Y), Y)


def test_transposed_twice_example_4_is_itself():
    twice = make_program(t(t(example_4(), f32(8)), f32(8)))(f32(8))
    assert twice == make_program(example_4())(f32(8))
    assert communication(twice) == {"all_gather_invariant": 1}


def test_the_transpose_that_was_current_for_example_4_costs_nothing_here():
    """``psum_scatter(ybar / 8)`` of a value that all devices hold: each keeps its block, times 8."""
    old = shmap(lambda ybar: psum_scatter(ybar / 8, "i"), P(), P("i"))
    assert communication(make_program(old)(f32(8))) == {}
    np.testing.assert_allclose(old(Y), Y, rtol=1e-6)


def test_why_did_we_not_just_write_it_like_this():
    f4_better = shmap(lambda x: x, P("i"), P("i"))
    program = make_program(f4_better)(f32(8))
    assert collectives(program) == {}
    assert make_program(t(f4_better, f32(8)))(f32(8)) == program
    np.testing.assert_array_equal(f4_better(Y), Y)


# Example 5: all_gather to a mapped output


def example_5():
    return shmap(lambda x, y: all_gather(x, "i") * y, in_specs=(P("i"), P("i")), out_specs=P("i"))


def test_example_5_with_intermediate_device_variance_types_annotated():
    types = []

    @partial(shmap, in_specs=(P("i"), P("i")), out_specs=P("i"))
    def f5(x, y):
        z = all_gather(x, "i")
        w = z * y
        types.extend(mw.typeof(value).short() for value in (x, y, z, w))
        return w

    np.testing.assert_allclose(f5(Y, Z), np.tile(Y, 8) * Z, rtol=1e-6)
    assert types == ["f32[1]{i}", "f32[8]{i}", "f32[8]{i}", "f32[8]{i}"]


def test_example_5_transposes_with_respect_to_its_first_argument_as_printed():
    types = []

    @partial(shmap, in_specs=(P("i"), P("i")), out_specs=P("i"))
    def f5_transpose(y, wbar):
        zbar = wbar * y
        xbar = psum_scatter(zbar, "i")
        types.extend(mw.typeof(value).short() for value in (y, wbar, zbar, xbar))
        return xbar

    found = make_program(t(example_5(), f32(8), f32(64), argnum=0))(f32(64), f32(64))
    assert found == make_program(f5_transpose)(f32(64), f32(64))
    assert types == ["f32[8]{i}", "f32[8]{i}", "f32[8]{i}", "f32[1]{i}"]
    assert communication(found) == {"psum_scatter": 1}


def test_transposed_twice_example_5_is_itself():
    f5 = example_5()

    def twice(y, x):
        return t(lambda zbar: t(f5, f32(8), y, argnum=0)(y, zbar), f32(64))(x)

    again = shmap(lambda y, x: all_gather(x, "i") * y, in_specs=(P("i"), P("i")), out_specs=P("i"))
    assert make_program(twice)(f32(64), f32(8)) == make_program(again)(f32(64), f32(8))


def test_example_5_transpose_has_the_right_numbers():
    found = t(example_5(), Y, Z, argnum=0)(Z, Z[::-1])
    np.testing.assert_allclose(found, np.sum((Z * Z[::-1]).reshape(8, 8), 0), rtol=1e-5)


# Partial solution "P-sum"


def test_what_if_we_could_write_an_output_sum_like_this():
    f1_better = shmap(g, in_specs=P("i"), out_specs=P(sum="i"))
    total = f1_better(X)
    assert mw.typeof(total).short() == "f32[]{U:i}"  # a partial sum: a type of its own outside, too
    np.testing.assert_allclose(total, example_1()(X), rtol=1e-5)
    assert collectives(make_program(f1_better)(f32(24, 4))) == {}


def test_then_it_could_transpose_like_this():
    """The document's ``in_specs=P()`` is ``P(replicated={'i'})`` here: the cotangent is the same on all devices, and
    enters typed as varying, which is what t(g) takes; so nothing is lifted, and transposing again finds the sum."""
    f1_better = shmap(g, in_specs=P("i"), out_specs=P(sum="i"))
    t_better = t(f1_better, f32(24, 4))
    printed = shmap(t(g, f32(3, 4)), in_specs=P(replicated={"i"}), out_specs=P("i"))
    assert make_program(t_better)(f32()) == make_program(printed)(f32())
    tt_better = t(t_better, f32())
    printed = shmap(t(t(g, f32(3, 4)), f32()), in_specs=P("i"), out_specs=P(sum="i"))
    assert make_program(tt_better)(f32(24, 4)) == make_program(printed)(f32(24, 4))
    assert make_program(tt_better)(f32(24, 4)) == make_program(f1_better)(f32(24, 4))
    for function, argument in ((f1_better, f32(24, 4)), (t_better, f32()), (tt_better, f32(24, 4))):
        assert collectives(make_program(function)(argument)) == {}
    np.testing.assert_allclose(t_better(np.float32(3)), np.tile(3 * WEIGHTS, (8, 1)), rtol=1e-6)


def test_the_cursed_identity_with_the_partial_solution_only():
    """What P-sum alone would make of Example 3 has the right numbers, owes a sum, and does not grow."""
    t_cursed = shmap(lambda x: x / 8, P(), P(sum="i"))
    assert mw.typeof(t_cursed(Y)).short() == "f32[8]{U:i}"
    np.testing.assert_allclose(t_cursed(Y), Y, rtol=1e-6)
    program = make_program(t_cursed)(f32(8))
    back = t(t_cursed, f32(8))
    assert make_program(t(back, f32(8)))(f32(8)) == program
    np.testing.assert_allclose(back(Y), Y, rtol=1e-6)


# Full solution: the table of collectives


def of_types(function, *types, mesh=(8, 2), axes=("i", "j")):
    """The types of what ``function`` returns inside a shmap, for operands written as ``"f32[3]{i,j}"``."""
    found = []

    def body(*args):
        found.append(mw.typeof(function(*args)).short())
        return ()

    specs = []
    shapes = []
    for text in types:
        shape, _, varying = text.removeprefix("f32[").partition("]")
        shapes.append(tuple(map(int, shape.split(","))))
        names = varying.strip("{}").split(",") if varying else []
        specs.append(P(replicated=set(names)) if names else P())
    shmap(body, tuple(specs), (), mesh=mw.make_mesh(mesh, axes))(*(np.zeros(shape, np.float32) for shape in shapes))
    return found[0]


TABLE = [
    # operand, result, the collective, and its transpose
    ("f32[3]{i,j}", "f32[3]{j}", lambda x: psum(x, axis_name="i"), lambda y: pbroadcast(y, "i")),
    ("f32[3]", "f32[3]{i}", lambda x: pbroadcast(x, "i"), lambda y: psum(y, "i")),
    ("f32[16]{i}", "f32[16]{i}", lambda x: lax.all_to_all(x, "i", 0, 0), lambda y: lax.all_to_all(y, "i", 0, 0)),
    ("f32[16]{i}", "f32[2]{i}", lambda x: psum_scatter(x, "i"), lambda y: all_gather(y, "i")),
    ("f32[2]{i}", "f32[16]{i}", lambda x: all_gather(x, "i"), lambda y: psum_scatter(y, "i")),
    ("f32[16]", "f32[2]{i}", lambda x: pscatter(x, "i"), lambda y: all_gather_invariant(y, "i")),
    ("f32[2]{i}", "f32[16]", lambda x: all_gather_invariant(x, "i"), lambda y: pscatter(y, "i")),
]
NAMES = [
    "psum", "pbroadcast", "all_to_all", "psum_scatter", "all_gather", "pscatter", "all_gather_invariant"
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_the_table_of_types(row):
    operand, result, collective, dual = row
    assert of_types(collective, operand) == result
    assert of_types(dual, result) == operand


def whole_spec(text):
    """A spec by which a value of this type enters and leaves: blocks along the axes it varies over."""
    varying = text.partition("]")[2].strip("{}")
    return P(tuple(varying.split(","))) if varying else P()


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_the_table_of_transposes(row):
    operand, result, collective, dual = row
    mesh = mw.make_mesh((8, 2), ("i", "j"))
    f = shmap(collective, whole_spec(operand), whole_spec(result), mesh=mesh)
    t_printed = shmap(dual, whole_spec(result), whole_spec(operand), mesh=mesh)
    sizes = {"": 1, "{i}": 8, "{j}": 2, "{i,j}": 16}

    def shape(text):
        n, _, varying = text.removeprefix("f32[").partition("]")
        return f32(int(n) * sizes[varying])

    x, y = shape(operand), shape(result)
    assert make_program(t(f, x))(y) == make_program(t_printed)(y)
    assert make_program(t(t(f, x), y))(x) == make_program(f)(x)


def test_the_table_of_lowerings():
    """Communication, or none: what each collective is when the devices are the rows of an array."""
    rows = np.arange(128, dtype=np.float32).reshape(8, 16)  # one row per device
    mesh = mw.make_mesh((8,), ("i",))

    def run(function, out_specs, x=rows, in_specs=None):
        in_specs = P("i") if in_specs is None else in_specs
        return np.asarray(shmap(lambda x: function(x[0])[None], in_specs, out_specs, mesh=mesh)(x))

    np.testing.assert_array_equal(run(lambda x: psum(x, "i"), P()), rows.sum(0)[None])
    np.testing.assert_array_equal(run(lambda x: pbroadcast(x, "i"), P("i"), rows[:1], P()), np.tile(rows[:1], (8, 1)))
    swapped = rows.reshape(8, 8, 2).swapaxes(0, 1).reshape(8, 16)
    np.testing.assert_array_equal(run(lambda x: lax.all_to_all(x, "i", 0, 0), P("i")), swapped)
    np.testing.assert_array_equal(run(lambda x: psum_scatter(x, "i"), P("i")), rows.sum(0).reshape(8, 2))
    gathered = rows[:, :2].reshape(1, 16)
    np.testing.assert_array_equal(run(lambda x: all_gather(x[:2], "i"), P("i")), np.tile(gathered, (8, 1)))
    np.testing.assert_array_equal(run(lambda x: pscatter(x, "i"), P("i"), rows[:1], P()), rows[0].reshape(8, 2))
    np.testing.assert_array_equal(run(lambda x: all_gather_invariant(x[:2], "i"), P()), gathered)


def test_pscatter_is_a_slice_at_axis_index():
    mesh = mw.make_mesh((8,), ("i",))
    by_hand = shmap(lambda x: lax.dynamic_slice(x, (2 * lax.axis_index("i"),), (2,)), P(), P("i"), mesh=mesh)
    np.testing.assert_array_equal(by_hand(Z[:16]), shmap(lambda x: pscatter(x, "i"), P(), P("i"), mesh=mesh)(Z[:16]))


def test_axis_index_varies():
    assert of_types(lambda: lax.axis_index("i")) == "i32[]{i}"


# Typing rules


def test_operand_device_variance_types_must_be_equal():
    """``mul x:f32[s1]{r1} y:f32[s2]{r2}`` requires r1 == r2."""
    with pytest.raises(mw.MeshwrightError, match=r"mul cannot take f32\[1\]\{i\}, f32\[1\]\."):
        shmap(lambda x, y: x * y, (P("i"), P()), P("i"), auto_pbroadcast=False)(Y, Y[:1])
    shmap(lambda x, y: x * pbroadcast(y, "i"), (P("i"), P()), P("i"), auto_pbroadcast=False)(Y, Y[:1])


def test_the_output_device_variance_type_is_that_of_the_operands():
    assert of_types(lambda x, y: x * y, "f32[3]{i}", "f32[3]{i}") == "f32[3]{i}"
    assert of_types(mnp.exp, "f32[3]{j}") == "f32[3]{j}"
    assert of_types(mnp.exp, "f32[3]") == "f32[3]"


def test_for_branches_of_a_cond_we_take_the_union():
    def f(x, y):
        return lax.cond(True, lambda: x, lambda: y)

    assert of_types(f, "f32[3]{i}", "f32[3]{j}") == "f32[3]{i,j}"
    assert of_types(f, "f32[3]{i}", "f32[3]") == "f32[3]{i}"
    assert of_types(f, "f32[3]", "f32[3]") == "f32[3]"


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: psum(x, "i"),
        lambda x: all_gather(x, "i"),
        lambda x: all_gather_invariant(x, "i"),
        lambda x: psum_scatter(x, "i"),
        lambda x: lax.all_to_all(x, "i", 0, 0),
    ],
    ids=["psum", "all_gather", "all_gather_invariant", "psum_scatter", "all_to_all"],
)
def test_it_is_an_error_to_pass_a_device_invariant_operand_to_a_collective_that_accepts_varying_ones(collective):
    """For whoever asked for explicitness. Everybody else gets the right value without communication."""
    with pytest.raises(mw.MeshwrightError, match=r"cannot take f32\[8\]\."):
        shmap(lambda x: (collective(x), ())[1], P(), (), auto_pbroadcast=False)(Y)
    assert communication(make_program(shmap(lambda x: pbroadcast(collective(x), "i"), P(), P("i")))(f32(8))) == {}


@pytest.mark.parametrize("collective", [pbroadcast, pscatter], ids=["pbroadcast", "pscatter"])
def test_and_vice_versa(collective):
    with pytest.raises(mw.MeshwrightError, match=r"cannot take f32\[8\]\{i\}\."):
        shmap(lambda x: collective(x, "i"), P("i"), P("i"), auto_pbroadcast=False)(Z)


# How to make the API convenient for users


def test_take_the_union_and_insert_pbroadcasts_to_lift_each_operand():
    found = []

    def body(x, y):
        z = x + y
        found.append(mw.typeof(z).short())
        return z

    mesh = mw.make_mesh((2, 4), ("i", "j"))
    f = shmap(body, (P("i"), P("j")), P(("i", "j")), mesh=mesh)
    program = make_program(f)(f32(6), f32(12))
    assert found == ["f32[3]{i,j}"]
    assert collectives(program) == {"pbroadcast": 2}


def test_one_operand_is_lifted_once_and_the_transpose_is_a_psum_of_a_sum():
    """The document would leave a sum of psums to the compiler; lifting is memoized here."""

    def body(w, x):
        return w * x + mnp.sin(x) * w + w

    f = shmap(body, (P(), P("i")), P("i"))
    assert collectives(make_program(f)(f32(1), f32(8))) == {"pbroadcast": 1}
    back = make_program(t(lambda w: f(w, Y), f32(1)))(f32(8))
    assert communication(back) == {"psum": 1}


def test_all_gather_means_the_varying_one_so_no_pbroadcast_must_be_inserted():
    assert collectives(make_program(example_5())(f32(8), f32(64))) == {"all_gather": 1}


def test_an_option_on_shmap_disables_the_automatic_insertion():
    f = shmap(lambda x, y: psum(g(x), "i") * y, (P("i"), P("i")), P("i"), auto_pbroadcast=False)
    with pytest.raises(mw.MeshwrightError) as caught:
        f(X, Y)
    assert caught.value.fix == "lift operand 0, f32[]: lax.pbroadcast(x, 'i')"


# Appendix: unmapped inputs and outputs


def test_each_function_instance_gets_the_same_value_of_an_unmapped_input():
    f = shmap(lambda x, n: (x * (n + 1))[None], (P(), P("i")), P("i"))
    np.testing.assert_array_equal(
        f(Y, np.arange(8, dtype=np.float32)).reshape(8, 8), Y * np.arange(1, 9, dtype=np.float32)[:, None]
    )


def test_only_one_copy_of_an_unmapped_output_is_used():
    f = shmap(lambda x: psum(x, "i"), P("i"), P())
    assert f(Z).shape == (8,)
    np.testing.assert_allclose(f(Z), Z.reshape(8, 8).sum(0), rtol=1e-5)


def test_closed_over_inputs_correspond_to_unmapped_inputs():
    w = mnp.asarray(Y)
    closed = make_program(lambda w, x: shmap(lambda x: x * w, P("i"), P("i"))(x))(f32(8), f32(64))
    passed = make_program(lambda w, x: shmap(lambda w, x: x * w, (P(), P("i")), P("i"))(w, x))(f32(8), f32(64))
    assert closed == passed
    np.testing.assert_allclose(shmap(lambda x: x * w, P("i"), P("i"))(Z), Z * np.tile(Y, 8), rtol=1e-6)


def test_unmapped_inputs_transpose_to_unmapped_outputs():
    f = shmap(lambda w, x: w * x, (P(), P("i")), P("i"))
    program = make_program(t(lambda w: f(w, Z), f32(8)))(f32(64))
    (eqn,) = program.eqns
    assert eqn.params["out_specs"] == (P(),)
    np.testing.assert_allclose(t(lambda w: f(w, Z), f32(8))(Z), (Z * Z).reshape(8, 8).sum(0), rtol=1e-5)


# P-sum: one meaning, wherever it runs


def squares():
    """A sum that is left open, and a function that looks at what each device holds of it."""
    F = shmap(lambda x: x * 2, P("i"), P(sum="i"))
    G = shmap(lambda x: psum(x**2, "i"), P(sum="i"), P())
    return F, G


def test_an_input_by_p_sum_is_the_summands_at_once_and_under_jit():
    F, G = squares()
    z = np.arange(8, dtype=np.float32)
    placed = mw.device_put(z, mw.NamedSharding(mw.get_mesh(), P("i")))
    right = [np.sum((2 * z) ** 2)]
    assert right == [560.0]
    for argument in (z, placed):
        for found in (G(F(argument)), mw.jit(lambda z: G(F(z)))(argument), mw.jit(G)(mw.jit(F)(argument))):
            np.testing.assert_array_equal(found, right)
        tripled = (G(3 * F(argument)), mw.jit(lambda z: G(3 * F(z)))(argument), G(mw.jit(lambda z: 3 * F(z))(argument)))
        for found in tripled:
            np.testing.assert_array_equal(found, [9 * 560.0])


def test_a_p_sum_that_jit_returns_is_not_summed_yet():
    F, _ = squares()
    compiled = mw.jit(F).lower(f32(64)).compile()
    assert not compiled.collectives
    total = compiled(Z)
    assert mw.typeof(total).short() == "f32[8]{U:i}" and total.sharding.spec.unreduced == {"i"}
    np.testing.assert_allclose(total, 2 * Z.reshape(8, 8).sum(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "kind", "op"), [(P(), "all_reduce", "all-reduce"), (P("i"), "reduce_scatter", "reduce-scatter")]
)
@pytest.mark.parametrize("how", ["reshard", "out_shardings"])
def test_the_sum_is_made_where_it_is_asked_for(how, spec, kind, op):
    F, _ = squares()
    there = mw.NamedSharding(mw.get_mesh(), spec)
    f = mw.jit(lambda x: mw.reshard(F(x), there)) if how == "reshard" else mw.jit(F, out_shardings=there)
    with mw.no_implicit_comms():
        compiled = f.lower(f32(64)).compile()
    assert [one.kind for one in compiled.collectives] == [kind]
    np.testing.assert_allclose(compiled(Z), 2 * Z.reshape(8, 8).sum(0), rtol=1e-5)
    assert mw.typeof(compiled(Z)).unreduced == ()
    assert f" {op}(" in compiled.as_text()
    pytest.importorskip("jaxlib")
    assert "stablehlo.reduce" in f.lower(f32(64)).as_text()


# The motivating example: what a gradient sends


def test_the_gradient_of_a_bias_sums_the_bias_and_not_the_activations():
    """``pbroadcast`` goes before what spreads a value, so its transpose comes after the sum over the batch."""

    def loss(b, g, x):
        return psum(mnp.sum(mnp.tanh(x * g + b)), "i")

    f = shmap(loss, (P(), P(), P("i")), P())
    program = make_program(mw.grad(f, argnums=(0, 1)))(f32(16), f32(16), f32(1024, 16))
    (_, backward) = program.eqns
    sums = [eqn.outputs[0].type.short() for eqn in backward.params["body"].eqns if eqn.op.name == "psum"]
    assert sums == ["f32[16]", "f32[16]"]


# The mesh of a shmap is the mesh of the program


def test_a_jitted_shmap_runs_on_its_mesh_wherever_its_arguments_are():
    def body(x):
        return psum(x, "i")

    f1 = mw.jit(shmap(body, P("i"), P()))
    compiled = f1.lower(Z).compile()
    (sent,) = compiled.collectives
    assert sent.kind == "all_reduce" and sent.source.line == body.__code__.co_firstlineno + 1
    assert " all-reduce(" in compiled.as_text() and "all_reduce  i" in compiled.explain()
    assert compiled.in_shardings[0][0].spec == P("i") and compiled(Z).sharding.mesh == mw.get_mesh()
    np.testing.assert_allclose(f1(Z), Z.reshape(8, 8).sum(0), rtol=1e-5)


def test_two_shmaps_over_two_meshes_are_one_program_on_neither():
    other = mw.make_mesh((4,), ("j",))
    f = mw.jit(
        lambda x: (
            shmap(lambda x: psum(x, "i"), P("i"), P())(x)
            + shmap(lambda x: psum(x, "j"), P("j"), P(), mesh=other)(x[:32])
        )
    )
    np.testing.assert_allclose(f(Z), Z.reshape(8, 8).sum(0) + Z[:32].reshape(4, 8).sum(0), rtol=1e-5)


# Typing rules: values that devices choose


def test_a_branch_that_devices_decide_may_return_numbers():
    f = shmap(lambda x: lax.cond(x[0] > 3, lambda: 1.0, lambda: 2.0)[None], P("i"), P("i"))
    np.testing.assert_array_equal(f(np.arange(8, dtype=np.float32)), [2, 2, 2, 2, 1, 1, 1, 1])
    f = shmap(lambda x: lax.switch(x[0].astype(int) % 3, [lambda: 1.0, lambda: 2.0, lambda: 3.0])[None], P("i"), P("i"))
    np.testing.assert_array_equal(f(np.arange(8, dtype=np.float32)), [1, 2, 3, 1, 2, 3, 1, 2])
    f = shmap(lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, c: 1.0, 0.0)[None], P("i"), P("i"))
    np.testing.assert_array_equal(f(np.arange(8, dtype=np.float32)), [0, 1, 1, 1, 1, 1, 1, 1])


def test_without_automatic_insertion_library_functions_still_work_and_users_values_are_theirs():
    def body(x):
        return mnp.sort(x)[mnp.argsort(x)] % 3

    np.testing.assert_array_equal(shmap(body, P("i"), P("i"), auto_pbroadcast=False)(Z), shmap(body, P("i"), P("i"))(Z))

    def carried(w, x):
        return lax.scan(lambda c, row: (row, None), w, x)[0][None]

    with pytest.raises(mw.MeshwrightError) as caught:
        shmap(carried, (P(), P("i")), P("i"), auto_pbroadcast=False)(np.float32(1), Z)
    assert caught.value.fix == "lax.pbroadcast(x, 'i'), and the loop or the branch on that"


# "indeed t(t(f1)) == f1"


def test_transposed_twice_what_is_linear_is_itself():
    """More than the document's examples: tests/transform/test_transposed_twice.py has every linear op."""
    w = np.full((4, 5), 2, np.float32)
    for body, shape in (
        (lambda x: psum(2 * mnp.sum(x), "i"), (24, 4)),
        (lambda x: psum(x[:1, 1:3], "i"), (24, 4)),
        (lambda x: psum(lax.cond(True, lambda x: 3 * x, lambda x: x, x), "i"), (24, 4)),
        (lambda x: psum(x + 2 * x, "i"), (24, 4)),
        (lambda x: psum(lax.scan(lambda c, row: (c + row, None), mnp.zeros(4), x)[0], "i"), (24, 4)),
    ):
        f = shmap(body, P("i"), P())
        (out,) = make_program(f)(f32(*shape)).out_types
        twice = t(t(f, f32(*shape)), f32(*out.shape))
        assert make_program(twice)(f32(*shape)) == make_program(f)(f32(*shape))
    product = shmap(lambda x: x @ w, P("i"), P("i"))
    once = make_program(t(product, f32(24, 4)))(f32(24, 5))
    thrice = make_program(t(t(t(product, f32(24, 4)), f32(24, 5)), f32(24, 4)))(f32(24, 5))
    assert thrice == once


# Its words


def test_every_name_of_a_collective_is_here_or_has_its_name_here_in_the_error():
    """``all_reduce_invariant`` stands where the listing below it has ``all_gather_invariant``."""
    here = "psum pbroadcast all_to_all axis_index psum_scatter all_gather pscatter all_gather_invariant pmean"
    for name in here.split():
        assert callable(getattr(lax, name))
    renamed = {
        "psum2": "psum",
        "all_reduce_invariant": "all_gather_invariant",
        "all_gather_p": "all_gather",
        "all_gather_invariant_p": "all_gather_invariant",
        "psum_idrev": "psum",
        "id_psumrev": "pbroadcast",
    }
    for name, known in renamed.items():
        with pytest.raises(AttributeError) as caught:
            getattr(lax, name)
        assert str(caught.value) == f"module 'meshwright.lax' has no attribute {name!r}; it is lax.{known}"
        assert callable(getattr(lax, known))
    with pytest.raises(AttributeError, match=r"^module 'meshwright\.lax' has no attribute 'psm'$"):
        getattr(lax, "psm")  # noqa: B009


def test_psum_takes_its_axis_as_the_table_writes_it():
    found = shmap(lambda x: psum(x, axis="i"), P("i"), P())
    assert make_program(found)(f32(64)) == make_program(shmap(lambda x: psum(x, "i"), P("i"), P()))(f32(64))
    with pytest.raises(mw.MeshwrightError, match=r"psum is given axis_name= and axis=\."):
        shmap(lambda x: psum(x, "i", axis="i"), P("i"), P())(Z)


def test_the_psum_idrev_and_id_psumrev_that_users_introduced_are_psum_and_pbroadcast():
    """As written for pmap, id_psumrev sums what types say is summed already: it is refused, never 8 times too large."""

    @mw.custom_vjp
    def id_psumrev(x):
        return x

    id_psumrev.defvjp(lambda x: (x, None), lambda _, ct: (psum(ct, "i"),))

    @mw.custom_vjp
    def psum_idrev(x):
        return psum(x, "i")

    psum_idrev.defvjp(lambda x: (psum(x, "i"), None), lambda _, ct: (ct,))

    def loss(lift, total):
        return shmap(lambda w, x: total(mnp.sum(lift(w) * x)), (P(), P("i")), P())

    right = mw.grad(loss(lambda w: pbroadcast(w, "i"), lambda x: psum(x, "i")))(np.float32(2), Y)
    np.testing.assert_allclose(right, Y.sum(), rtol=1e-5)
    np.testing.assert_allclose(mw.grad(loss(lambda w: w, psum_idrev))(np.float32(2), Y), right, rtol=1e-6)
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.grad(loss(id_psumrev, psum_idrev))(np.float32(2), Y)
    assert caught.value.what == (
        "psum in a bwd rule is given a cotangent f32[] that is the same on all devices along i."
    )
    assert caught.value.why == (
        "what the function returned is the same on all of them, so its cotangent is summed over them already, and "
        "another psum would count it 8 times"
    )
    assert caught.value.fix == ("leave the psum out; the identity whose transpose is a psum is lax.pbroadcast(x, 'i')")


def placed(x, spec):
    return mw.device_put(x, mw.NamedSharding(mw.get_mesh(), spec))


GRADIENTS = {
    "at once": lambda loss: mw.grad(loss)(np.float32(2), Y),
    "jit of grad": lambda loss: mw.jit(mw.grad(loss))(np.float32(2), Y),
    "grad of jit": lambda loss: mw.grad(mw.jit(loss))(np.float32(2), Y),
    "placed": lambda loss: mw.jit(mw.grad(loss))(placed(np.float32(2), P()), placed(Y, P("i"))),
    "compiled": lambda loss: mw.jit(mw.grad(loss)).lower(np.float32(2), Y).compile()(np.float32(2), Y),
}
SUMMED_AGAIN = {
    "psum": lambda ct: psum(ct, "i"),
    "psum of a multiple": lambda ct: psum(3 * ct, "i") / 3,
    "psum_scatter": lambda ct: all_gather(lax.psum_scatter(mnp.broadcast_to(ct, (8,)), "i"), "i")[0],
    "psum in jit": lambda ct: mw.jit(lambda c: psum(c, "i"))(ct),
    "psum in a branch": lambda ct: lax.cond(True, lambda c: psum(c, "i"), lambda c: c * 8, ct),
    "psum in a loop": lambda ct: lax.fori_loop(0, 1, lambda _, c: psum(c, "i"), ct),
    "psum in a function closed over": lambda ct: lax.cond(True, lambda: psum(ct, "i"), lambda: ct),
}


@pytest.mark.parametrize("how", GRADIENTS)
@pytest.mark.parametrize("rule", SUMMED_AGAIN)
def test_a_rule_that_sums_a_cotangent_again_is_refused_however_it_is_run(how, rule):
    @mw.custom_vjp
    def id_psumrev(x):
        return x

    id_psumrev.defvjp(lambda x: (x, None), lambda _, ct: (SUMMED_AGAIN[rule](ct),))
    loss = shmap(lambda w, x: psum(mnp.sum(id_psumrev(w) * x), "i"), (P(), P("i")), P())
    with pytest.raises(mw.MeshwrightError, match="in a bwd rule is given a cotangent"):
        GRADIENTS[how](loss)


@pytest.mark.parametrize("how", GRADIENTS)
def test_rules_that_sum_what_differs_between_devices_are_right(how):
    """The argument of the rule varies, or what the rule returns does."""

    @mw.custom_vjp
    def id_psumrev(x):
        return x

    @mw.custom_vjp
    def times(w, x):
        return w * x

    id_psumrev.defvjp(lambda x: (x, None), lambda _, ct: (pbroadcast(psum(ct, "i"), "i"),))
    times.defvjp(lambda w, x: (w * x, (w, x)), lambda kept, ct: (psum(mnp.sum(kept[1] * ct), "i"), kept[0] * ct))
    varying = shmap(lambda w, x: psum(mnp.sum(id_psumrev(pbroadcast(w, "i")) * x) / 8, "i"), (P(), P("i")), P())
    multiplied = shmap(lambda w, x: psum(mnp.sum(times(w, x)), "i"), (P(), P("i")), P())
    for loss in (varying, multiplied):
        np.testing.assert_allclose(GRADIENTS[how](loss), Y.sum(), rtol=1e-6)
