"""The collectives of usual layouts: how many, of which kind, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P
from meshwright.core.text.parse import parse_program
from meshwright.partition.combine import CollectiveReason, combine
from meshwright.testing import assert_comms

MESH = mw.make_mesh((2, 4), ("data", "model"))


def struct(shape: tuple[int, ...], *spec: Any) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(MESH, P(*spec)))


def loss(params: list[dict[str, Any]], x: Any, y: Any) -> Any:
    for layer in params:
        x = x + mnp.tanh(x @ layer["up"]) @ layer["down"]
    return mnp.mean((x - y) ** 2)


def step(params: Any, x: Any, y: Any) -> Any:
    value, slopes = mw.value_and_grad(loss)(params, x, y)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, slopes)


def compiled(up: tuple[Any, ...], down: tuple[Any, ...], layers: int = 3, batch: int = 4096, dim: int = 64) -> Any:
    params = [{"up": struct((dim, 4 * dim), *up), "down": struct((4 * dim, dim), *down)} for _ in range(layers)]
    x = struct((batch, dim), "data")
    results = mw.tree.map(lambda s: s.sharding, params)
    return mw.jit(step, out_shardings=(None, results)).lower(params, x, x).compile()


def test_data_parallel_takes_all_gradients_in_one_sum() -> None:
    found = compiled((), ())
    assert_comms(found, exact=True, all_reduce=1)
    assert len(found.collectives[0].values) == 7  # six gradients and the loss


def test_tensor_parallel_has_two_sums_per_layer_and_one_for_the_gradients() -> None:
    found = compiled((None, "model"), ("model",), dim=512, batch=16384)
    assert_comms(found, exact=True, all_reduce=2 * 3)  # the first layer's input needs no gradient: one sum less


@pytest.mark.parametrize("data", [2, 128, 4096])
def test_more_devices_are_no_more_work(data: int) -> None:
    """Sizes that the axes do not divide are no reason to list the devices."""
    mesh = mw.make_mesh((data, 4), ("data", "model"))
    on = lambda shape, *spec: mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, P(*spec)))
    params = [{"up": on((512, 2048), None, "model"), "down": on((2048, 512), "model")}] * 2
    x = on((512 * data, 512), "data")
    results = mw.tree.map(lambda s: s.sharding, params)
    found = mw.jit(step, out_shardings=(None, results)).lower(params, x, x).compile()
    assert_comms(found, exact=True, all_reduce=4)


def test_few_collectives_instead_of_many_rounds() -> None:
    mesh = mw.make_mesh((32, 32), ("x", "y"))
    on = lambda *spec: mw.NamedSharding(mesh, P(*spec))
    given, wanted = on(None, "x", "y"), on("x", "y", None)
    assert mw.plan_reshard((64, 64, 64), "f32", given, wanted).num_collectives == 32
    x = mw.ShapeDtypeStruct((64, 64, 64), "float32", sharding=given)
    assert_comms(mw.jit(mnp.sin, out_shardings=wanted).lower(x).compile(), exact=True, permute=1, all_to_all=1)


def test_fully_sharded_gathers_parameters_and_scatters_gradients() -> None:
    found = compiled(("data",), ("data",))
    kinds = [one.kind for one in found.collectives]
    assert kinds.count("all_gather") == 6
    assert kinds.count("reduce_scatter") == 6


def embedded(params: Any, tokens: Any) -> Any:
    x = params["table"][tokens]
    for w in params["layers"]:
        x = x + mnp.tanh(x @ w)
    return mnp.mean(x**2)


def embedded_step(params: Any, tokens: Any) -> Any:
    return mw.tree.map(lambda p, g: p - 0.1 * g, params, mw.grad(embedded)(params, tokens))


# Half of all parameters and half of their gradients; half of the rows, thrice forward and thrice backward, and tokens.
@pytest.mark.parametrize(
    ("batch", "expected"), [(4096, (64 + 3 * 256) * 256 * 4), (8, 6 * 8 * 256 * 4 // 2 + 8 * 4 // 2)]
)
def test_of_parameters_and_a_batch_the_smaller_one_moves(batch: int, expected: int) -> None:
    """Both are split over one axis, and a row of the table is read along both: propagation follows the table."""
    params = {"table": struct((64, 256), None, "data"), "layers": [struct((256, 256), "data")] * 3}
    tokens = mw.ShapeDtypeStruct((batch,), "int32", sharding=mw.NamedSharding(MESH, P("data")))
    found = mw.jit(embedded_step, out_shardings=mw.tree.map(lambda s: s.sharding, params)).lower(params, tokens)
    compiled = found.compile()
    assert sum(one.bytes_received_per_device for one in compiled.collectives) == expected


def test_what_the_user_constrains_stays_whatever_it_costs() -> None:
    columns = mw.NamedSharding(MESH, P(None, "data"))

    def held(params: Any, tokens: Any) -> Any:
        x = mw.lax.with_sharding_constraint(params["table"][tokens], columns)
        for w in params["layers"]:
            x = mw.lax.with_sharding_constraint(x + mnp.tanh(x @ w), columns)
        return x

    params = {"table": struct((64, 256), None, "data"), "layers": [struct((256, 256), "data")] * 3}
    tokens = mw.ShapeDtypeStruct((4096,), "int32", sharding=mw.NamedSharding(MESH, P("data")))
    compiled = mw.jit(held).lower(params, tokens).compile()
    assert compiled.out_shardings == columns
    received = sum(one.bytes_received_per_device for one in compiled.collectives)
    assert received >= 3 * 4096 * 256 * 4 // 2  # parameters alone are less


CASES = {
    "A[I_x,J] B[J,K] -> C[I_x,K]": (("x", None), (None, None), ("x", None), []),
    "A[I,J_x] B[J_x,K] -> C[I,K]": ((None, "x"), ("x", None), (None, None), ["all_reduce"]),
    "A[I,J_x] B[J_x,K] -> C[I_x,K]": ((None, "x"), ("x", None), ("x", None), ["reduce_scatter"]),
    "A[I_x,J] B[J,K_x] -> C[I,K_x]": (("x", None), (None, "x"), (None, "x"), ["all_gather"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_four_cases_of_a_product(case: str) -> None:
    a, b, c, kinds = CASES[case]
    mesh = mw.make_mesh((2,), ("x",))
    rng = np.random.default_rng(0)
    place = lambda x, spec: mw.device_put(x.astype(np.float32), mw.NamedSharding(mesh, P(*spec)))
    x, y = place(rng.normal(size=(64, 64)), a), place(rng.normal(size=(64, 64)), b)
    found = mw.jit(mnp.matmul, out_shardings=mw.NamedSharding(mesh, P(*c))).lower(x, y).compile()
    assert [one.kind for one in found.collectives] == kinds
    np.testing.assert_allclose(np.asarray(found(x, y)), np.asarray(x) @ np.asarray(y), rtol=1e-4, atol=1e-4)


def test_every_collective_names_the_line_and_the_reason() -> None:
    found = compiled((None, "model"), ("model",), dim=512, batch=16384)
    for one in found.collectives:
        assert one.why
        assert one.source is not None
        assert one.source.file.endswith("test_collectives.py")


def test_reasons_say_how_a_value_is_needed() -> None:
    x, w = struct((8, 16), "data", "model"), struct((16, 4), "model")

    def whys(function: Any) -> list[str]:
        return [one.why for one in mw.jit(function).lower(x, w).compile().collectives]

    assert whys(lambda x, w: x @ w) == [
        "the matmul leaves partial sums over model; the program returns it sharded as [8@data, 4]"
    ]
    assert whys(lambda x, w: mnp.sum(x)) == [
        "the reduce_sum leaves partial sums over data, model; the program returns it replicated"
    ]
    assert whys(lambda x, w: (lambda y: (mnp.tanh(y), mnp.exp(y)))(x @ w)) == [
        "the matmul leaves partial sums over model; 2 equations read it sharded as [8@data, 4]"
    ]

    def layers(w: Any, x: Any) -> Any:
        return mnp.mean(mw.nn.gelu(mw.nn.gelu(x @ w[0]) @ w[1]) ** 2)

    found = mw.jit(mw.grad(layers)).lower(struct((2, 16, 16), None, None, "model"), struct((8, 16), "data")).compile()
    scattered = [one for one in found.collectives if one.kind == "reduce_scatter"]
    assert all(f"@{axis}" in one.why for one in scattered for axis in one.axes)


def test_what_would_be_cheaper_names_arguments_as_the_function_does() -> None:
    def shifted(params: Any, x: Any) -> Any:
        return x + params["b"]

    args = {"b": struct((64, 64), None, "data")}, struct((64, 64), "data")
    out = mw.NamedSharding(MESH, P("data"))
    for function, name in ((shifted, "params['b']"), (lambda *args: shifted(*args), "args[0]['b']")):
        lines = mw.jit(function, out_shardings=out).lower(*args).compile().explain().splitlines()
        assert lines[-2] == "cheaper:"
        assert lines[-1].startswith(f"    lay out {name} as P('data', None): −4.1 kB per device, −")


def test_values_that_could_be_split_further_are_named_once() -> None:
    def chain(x: Any) -> Any:
        for _ in range(3):
            x = mnp.tanh(x)
        return x

    lines = mw.jit(chain).lower(struct((2048, 2048), "data")).compile().explain().splitlines()
    assert lines[:3] == [
        "no collectives: no device needs what another has",
        "whole along a free axis:",
        "    x f32[2048,2048], 16.8 MB: free model",
    ]
    (rest,) = lines[3:]
    assert rest.startswith("    a value of line ")
    assert rest.endswith(" f32[2048,2048], 16.8 MB: free model (3 of these)")


def test_sums_wait_for_each_other() -> None:
    program = parse_program("""
        program(a: f32[4]{i}, b: f32[8]{i}) {
          c: f32[4] = psum a axes=('i',)
          d: f32[4] = neg c
          e: f32[8] = psum b axes=('i',)
          f: f32[8] = neg e
          return d, f
        }""")
    expected = parse_program("""
        program(a: f32[4]{i}, b: f32[8]{i}) {
          c: f32[4], e: f32[8] = psum a b axes=('i',)
          d: f32[4] = neg c
          f: f32[8] = neg e
          return d, f
        }""")
    assert combine(program) == expected


def test_small_gathers_of_results_are_one_collective() -> None:
    program = parse_program("""
        program(a: f32[4]{i}, b: f32[3,2]{i}, c: f32[20000]{i}) {
          d: f32[8] = all_gather_invariant a axes=('i',) sizes=(2,) dim=0
          e: f32[3,4] = all_gather_invariant b axes=('i',) sizes=(2,) dim=1
          f: f32[40000] = all_gather_invariant c axes=('i',) sizes=(2,) dim=0
          g: f32[8] = neg d
          return g, e, f
        }""")
    expected = parse_program("""
        program(a: f32[4]{i}, b: f32[3,2]{i}, c: f32[20000]{i}) {
          f: f32[40000] = all_gather_invariant c axes=('i',) sizes=(2,) dim=0
          r: f32[1,4]{i} = reshape a shape=(1, 4)
          s: f32[1,6]{i} = reshape b shape=(1, 6)
          t: f32[1,10]{i} = concatenate r s dim=1
          u: f32[2,10] = all_gather_invariant t axes=('i',) sizes=(2,) dim=0
          v: f32[2,4] = slice u starts=(0, 0) limits=(2, 4) strides=(1, 1)
          d: f32[8] = reshape v shape=(8,)
          w: f32[2,6] = slice u starts=(0, 4) limits=(2, 10) strides=(1, 1)
          x: f32[2,3,2] = reshape w shape=(2, 3, 2)
          y: f32[3,2,2] = transpose x permutation=(1, 0, 2)
          e: f32[3,4] = reshape y shape=(3, 4)
          g: f32[8] = neg d
          return g, e, f
        }""")
    whys = {eqn.outputs[0]: CollectiveReason("it is returned", eqn.outputs[0].type) for eqn in program.eqns[:3]}
    assert combine(program, whys) == expected
    (reason,) = [why for var, why in whys.items() if var.type.shape == (2, 10)]
    assert reason.text == "it is returned (and 1 more gather taken with it)"
    assert [t.shape for t in reason.together] == [(8,), (3, 4)]
    assert combine(program).eqns == program.eqns  # the user wrote them


def test_sums_of_which_one_is_needed_before_the_other_is_made_are_taken_together() -> None:
    """Mean and mean square of a row, as normalizations have them."""
    program = parse_program("""
        program(a: f32[4]{i}, b: f32[4]{i}) {
          c: f32[4] = psum a axes=('i',)
          d: f32[4] = mul c 0.25
          e: f32[4]{i} = mul b b
          f: f32[4] = psum e axes=('i',)
          g: f32[4] = mul d d
          h: f32[4] = sub f g
          k: f32[] = dot_general h d contract=((0,), (0,)) batch=((), ()) dtype=None
          return k
        }""")
    expected = parse_program("""
        program(a: f32[4]{i}, b: f32[4]{i}) {
          e: f32[4]{i} = mul b b
          c: f32[4], f: f32[4] = psum a e axes=('i',)
          d: f32[4] = mul c 0.25
          g: f32[4] = mul d d
          h: f32[4] = sub f g
          k: f32[] = dot_general h d contract=((0,), (0,)) batch=((), ()) dtype=None
          return k
        }""")
    assert combine(program) == expected


def test_layer_norms_and_what_an_optimizer_returns_take_one_collective_each() -> None:
    def norm(p: dict[str, Any], x: Any) -> Any:
        mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
        return (x - mean) / mnp.sqrt(square - mean * mean + 1e-5) * p["scale"] + p["bias"]

    def train(params: list[dict[str, Any]], momenta: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            y = x
            for p in params:
                y = y + norm(p, y)
            return (y * y).sum() / 64

        slopes = mw.grad(loss)(params)
        momenta = mw.tree.map(lambda m, g: 0.9 * m + g, momenta, slopes)
        return mw.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta

    rng = np.random.default_rng(0)
    draw = lambda *shape: np.asarray(rng.normal(size=shape), np.float32)
    params = [{"scale": draw(16), "bias": draw(16)} for _ in range(2)]
    momenta, x = mw.tree.map(np.ones_like, params), draw(8, 16)
    whole, split = mw.NamedSharding(MESH, P()), mw.NamedSharding(MESH, P(None, "model"))
    step = mw.jit(train, in_shardings=(whole, whole, split), out_shardings=whole)
    found = step.lower(params, momenta, x).compile()
    gathers = [one for one in found.collectives if one.kind == "all_gather"]
    assert [len(one.values) for one in gathers] == [8]  # two of each of four vectors
    assert "and 7 more gathers taken with it" in gathers[0].why
    sums = [one for one in found.collectives if one.kind == "all_reduce"]
    assert [len(one.values) for one in sums] == [2, 2, 2]  # of each norm forward; backward of the second one alone
    expected = mw.jit(train)(params, momenta, x)
    for one, other in zip(mw.tree.leaves(step(params, momenta, x)), mw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)
