"""``lowered.as_text()``: StableHLO with sdy that jaxlib has read and verified, beside what XLA makes of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import MeshwrightError
from meshwright.interop import mlir
from tests.interop import hlo_by_xla
from tests.interop.test_hlo_models import blocks, train_step
from tests.partition.models import MESH as MODELS_MESH

MESH = mw.make_mesh((2, 2), ("x", "y"))
DEVICES = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("x", "y"))


def placed(x: Any, *entries: Any) -> mw.Array:
    return mw.device_put(x, mw.NamedSharding(MESH, P(*entries)))  # type: ignore[no-any-return]


def run(lowered: Any, *args: mw.Array) -> list[Any]:
    """The parts of each result on each device, by XLA and Shardy."""
    devices = [jax.sharding.Mesh(DEVICES.devices, x.sharding.mesh.axis_names) for x in args]
    shardings = [jax.sharding.NamedSharding(d, jax.P(*x.sharding.spec)) for d, x in zip(devices, args, strict=True)]
    return hlo_by_xla.run_partitioned(lowered.as_text(), DEVICES, shardings, [np.asarray(x) for x in args])


def layer(params: Any, x: Any) -> Any:
    h = lax.with_sharding_constraint(mnp.tanh(x @ params["w"]), mw.NamedSharding(MESH, P("x", "y")))
    return {"loss": (h**2).sum(), "h": h}


LAYER = """\
module @jit_layer attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, \
%arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> \
(tensor<4x4xf32> {jax.result_info = "result['h']", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, \
tensor<f32> {jax.result_info = "result['loss']"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : \
(tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.tanh %0 : tensor<4x4xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}, {"y"}]> : tensor<4x4xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<4x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0, 1] : \
(tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2, %4 : tensor<4x4xf32>, tensor<f32>
  }
}"""


def test_a_function_on_a_mesh() -> None:
    params = {"w": placed(mnp.ones((8, 4)) * 0.1, None, "y")}
    x = placed(mnp.arange(32.0).reshape(4, 8) / 32, "x")
    outs = {"loss": None, "h": mw.NamedSharding(MESH, P(None, "x"))}
    lowered = mw.jit(layer, out_shardings=outs).lower(params, x)
    assert lowered.as_text() == LAYER
    expected = lowered.compile()(params, x)
    found = run(lowered, params["w"], x)
    np.testing.assert_allclose(found[1][0], np.asarray(expected["loss"]), rtol=1e-5)
    for part, other in zip(found[0], blocks(expected["h"]), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-5)


def test_a_train_step() -> None:
    lowered, params, batch = train_step("mlp", "fully sharded and tensor parallel")
    leaves = mw.tree.leaves((params, batch))
    expected = mw.tree.leaves(lowered.compile()(params, batch))
    for parts, x in zip(run(lowered, *leaves)[1:], expected[1:], strict=True):
        for part, other in zip(parts, blocks(x), strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-5)
    assert f"sdy.mesh @mesh = {MODELS_MESH}" in lowered.as_text()


def test_a_shard_map_over_some_axes_leaves_the_others_open() -> None:
    def inner(a: Any) -> Any:
        return lax.psum(a, "x") * 2

    a = placed(mnp.arange(16.0).reshape(4, 4), "x", "y")
    function = mw.jit(mw.shard_map(inner, mesh=MESH, in_specs=P("x"), out_specs=P(), axis_names={"x"}))
    lowered = function.lower(a)
    assert (
        'sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", ?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>] '
        'manual_axes={"x"} (%arg1: tensor<2x4xf32>)'
    ) in lowered.as_text()
    (found,) = run(lowered, a)
    expected = np.asarray(lowered.compile()(a))
    assert all(np.isin(part, expected).all() for part in found)


def test_a_sum_that_is_owed_inside_is_taken_in_the_result() -> None:
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.sharding.AxisType.Explicit,) * 2)
    with mw.set_mesh(mesh):
        a = mw.device_put(mnp.arange(32.0).reshape(4, 8), mw.NamedSharding(mesh, P(None, "x")))
        b = mw.device_put(mnp.ones((8, 4)), mw.NamedSharding(mesh, P("x", None)))
        partial_sum = P(unreduced={"x"})
        lowered = mw.jit(lambda a, b: mw.reshard(mnp.dot(a, b, out_sharding=partial_sum) * 2, P())).lower(a, b)
        text = lowered.as_text()
        assert '<@mesh, [{}, {}], unreduced={"x"}> : tensor<4x4xf32>' in text
        assert (
            '-> (tensor<4x4xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})' in text
        )


def test_collectives_need_a_mesh() -> None:
    compiled = mw.jit(lambda a: a.sum(0)).lower(placed(mnp.ones((4, 4)), "x")).compile()
    with pytest.raises(MeshwrightError) as error:
        mlir.dump(compiled.program)
    what, where, why, fix = str(error.value).splitlines()
    assert what == "psum cannot be written as StableHLO outside of a shard_map."
    assert where.startswith("  at:   test_lowered_text.py:")
    assert why == "  why:  it is over axes of a mesh, and the program does not say which mesh"
    assert fix == "  fix:  mlir.dump(…) of a program that has the shard_map"


def test_two_meshes_of_one_name() -> None:
    other = mw.make_mesh((4,), ("i",))
    program = mw.make_program(mw.shard_map(lambda a: a, mesh=other, in_specs=P("i"), out_specs=P("i")))(mnp.ones(4))
    text = mlir.dump(program, mesh=MESH, in_shardings=[mw.NamedSharding(MESH, P("x"))])
    assert 'sdy.mesh @mesh = <["x"=2, "y"=2]>' in text and 'sdy.mesh @mesh_0 = <["i"=4]>' in text
    both = mw.make_program(lambda a, b: a + b)(mnp.ones(4), mnp.ones(4))
    named = [mw.NamedSharding(mesh.with_(name="mesh"), P(mesh.axis_names[0])) for mesh in (other, MESH)]
    with pytest.raises(MeshwrightError) as error:
        mlir.dump(both, mesh=MESH, in_shardings=named)
    assert str(error.value) == (
        "A module cannot have two meshes called mesh.\n"
        '  why:  one is <["i"=4]>, the other <["x"=2, "y"=2]>\n'
        "  fix:  shardings and shard_maps of one mesh, or meshes with different names"
    )
