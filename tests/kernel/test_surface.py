"""What kernels for TPUs are written with, each in a kernel that JAX's interpreter runs, too, with the same numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, debugs, out

X = np.random.default_rng(0).normal(size=(16, 128)).astype(np.float32)
N = np.random.default_rng(1).integers(-100, 100, size=(16, 128)).astype(np.int32)
JAX = SimpleNamespace(
    np=jnp, pl=jax_pl, pltpu=jax_pltpu, lax=jax.lax, struct=jax.ShapeDtypeStruct,
    options={"interpret": jax_pltpu.InterpretParams()},
)  # fmt: skip
OURS = SimpleNamespace(
    np=mnp, pl=pl, pltpu=pltpu, lax=lax, struct=mw.ShapeDtypeStruct, options={"debug": pl.Debug(schedules=3)}
)


def of_values(function: Any) -> Any:
    """A kernel that stores a function of what it loads."""

    def build(k: Any) -> Any:
        def call(*args: Any) -> Any:
            shape = jax.eval_shape(lambda *xs: function(JAX, *xs), *args)

            def kernel(*refs: Any) -> None:
                refs[-1][...] = function(k, *(ref[...] for ref in refs[:-1]))

            return k.pl.pallas_call(kernel, k.struct(shape.shape, shape.dtype), **k.options)(*args)

        return call

    return build


VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "roll": (lambda k, x: k.pltpu.roll(x, 3, 1), (X,)),
    "roll of rows": (lambda k, x: k.pltpu.roll(x, 5, 0), (X,)),
    "roll with a stride": (lambda k, x: k.pltpu.roll(x, 3, 1, stride=2, stride_axis=0), (X,)),
    "bitcast to wider": (lambda k, x: k.pltpu.bitcast(x.astype(k.np.bfloat16), k.np.uint32), (X,)),
    "bitcast to narrower": (lambda k, x: k.pltpu.bitcast(x, k.np.int16), (X,)),
    "bitcast to the same width": (lambda k, x: k.pltpu.bitcast(x, k.np.int32), (X,)),
    "reciprocal": (lambda k, x: k.pl.reciprocal(x + 8.0), (X,)),
    "einshape": (lambda k, x: k.pltpu.einshape("(ab)c->b(ac)", x, a=2), (X,)),
    "int4": (lambda k, n: (n % 8).astype(k.np.int4).astype(k.np.int32) * 2, (N,)),
    "int2": (lambda k, n: n.astype(k.np.int2).astype(k.np.int32) * 2, (N,)),
    "uint2": (lambda k, n: n.astype(k.np.uint2).astype(k.np.int32) * 2, (N,)),
    "float8": (lambda k, x: x.astype(k.np.float8_e4m3fn).astype(k.np.float32), (X,)),
}


@pytest.mark.parametrize("name", VALUES)
def test_functions_of_values(name):
    function, args = VALUES[name]
    build = of_values(function)
    found, expected = build(OURS)(*args), build(JAX)(*args)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


BYTES = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)


@pytest.mark.parametrize("widths", [(2,), (4,), (2, 4), (2, 2, 2), (4, 4), (4, 2, 2), (2, 2, 4), (2, 4, 2)])
def test_parts_of_bytes(widths):
    found = of_values_of(lambda x: [part.astype("int32") for part in pltpu.split_bits(x, widths)], len(widths))(BYTES)
    bits = BYTES.view(np.uint8).astype(int)
    for n, (width, part) in enumerate(zip(widths, found, strict=True)):
        low = bits >> sum(widths[:n]) & (1 << width) - 1
        np.testing.assert_array_equal(part, low - ((low >> width - 1) << width))


def of_values_of(function: Any, results: int) -> Any:
    """A kernel of a block of bytes that stores several blocks of int32."""

    def kernel(x_ref: Any, *out_refs: Any) -> None:
        for ref, value in zip(out_refs, function(x_ref[...]), strict=True):
            ref[...] = value

    return pl.pallas_call(kernel, [out(*BYTES.shape, dtype=mnp.int32)] * results, debug=pl.Debug())


@pytest.mark.skipif(not hasattr(jax_pltpu, "split_bits"), reason="newer than this jax")
def test_parts_of_bytes_are_those_of_jax_where_its_interpreter_has_them():
    def low_and_middle(k, x):
        two, four = k.pltpu.split_bits(x, (2, 4))
        return two.astype(k.np.int32) * 100 + four.astype(k.np.int32)

    def joined(k, x):
        two = k.pltpu.join_bits(two_bits=k.pltpu.split_bits(x, (2,))[0])
        return two + 8 * k.pltpu.join_bits(four_bits=k.pltpu.split_bits(x, (4,))[0].astype(k.np.uint4))

    for function in (low_and_middle, joined):
        build = of_values(function)
        np.testing.assert_array_equal(build(OURS)(BYTES), build(JAX)(BYTES))


def test_floats_of_six_bits_are_packed_and_unpacked():
    def parts(x):
        two, four = pltpu.pack_fp6(x)
        assert (two.dtype, four.dtype) == (mnp.int2, mnp.int4)
        again = pltpu.unpack_fp6(two, four), pltpu.unpack_fp6(two.astype("uint2"), four.astype("uint4"))
        return [part.astype("int32") for part in (two, four, *again)]

    two, four, *again = of_values_of(parts, 4)(BYTES)
    bits = BYTES.view(np.uint8).astype(int)
    np.testing.assert_array_equal(np.asarray(two) & 3, bits >> 4 & 3)
    np.testing.assert_array_equal(np.asarray(four) & 15, bits & 15)
    for one in again:
        np.testing.assert_array_equal(one, bits & 63)


def narrow_blocks(k):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...].astype(k.np.float32) * y_ref[...].astype(k.np.float32)

    def call(x, n):
        spec = k.pl.BlockSpec((8, 128), lambda i: (i, 0))
        narrow = k.np.asarray(n % 8).astype(k.np.int4), k.np.asarray(x).astype(k.np.float8_e4m3fn)
        return k.pl.pallas_call(
            kernel, k.struct((16, 128), k.np.float32), grid=(2,), in_specs=[spec] * 2, out_specs=spec, **k.options
        )(*narrow)

    return call, (X, N)


def masked(k):
    def kernel(x_ref, out_ref):
        mask = k.lax.broadcasted_iota(k.np.int32, (16, 128), 1) < 50
        out_ref[...] = k.np.zeros_like(out_ref)
        k.pltpu.store(out_ref, x_ref[...] * 2, mask=mask)

    return k.pl.pallas_call(kernel, k.struct((16, 128), k.np.float32), **k.options), (X,)


def trees_of_prefetched_scalars(k):
    def kernel(scalars, x_ref, out_ref):
        out_ref[...] = x_ref[...] + scalars["add"][0]

    spec = k.pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[k.pl.BlockSpec((8, 128), lambda i, scalars: (scalars["rows"][i], 0))],
        out_specs=k.pl.BlockSpec((8, 128), lambda i, scalars: (i, 0)),
    )
    call = k.pl.pallas_call(kernel, k.struct((16, 128), k.np.float32), grid_spec=spec, **k.options)
    return call, ({"rows": np.array([1, 0], np.int32), "add": np.array([3.0], np.float32)}, X)


def sizes_of_the_grid_in_index_maps(k):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    back = k.pl.BlockSpec((8, 128), lambda i: (k.pl.num_programs(0) - 1 - i, 0))
    there = k.pl.BlockSpec((8, 128), lambda i: (i, 0))
    return k.pl.pallas_call(
        kernel, k.struct((16, 128), k.np.float32), grid=(2,), in_specs=[back], out_specs=there, **k.options
    ), (X,)


def two_results_of_a_scope(k):
    def kernel(x_ref, out_ref):
        @k.pl.with_scoped(k.pltpu.VMEM((16, 128), k.np.float32))
        def twice(factor, scratch):
            scratch[...] = x_ref[...] * factor
            out_ref[...] = scratch[...]

        twice(3.0)

    return k.pl.pallas_call(kernel, k.struct((16, 128), k.np.float32), **k.options), (X,)


KERNELS = [
    narrow_blocks,
    masked,
    trees_of_prefetched_scalars,
    sizes_of_the_grid_in_index_maps,
    two_results_of_a_scope,
]


@pytest.mark.parametrize("build", KERNELS)
def test_kernels(build):
    (ours, args), (theirs, _) = build(OURS), build(JAX)
    np.testing.assert_array_equal(np.asarray(ours(*args)), np.asarray(theirs(*args)))


def by_kernel(function: Any, *args: Any) -> np.ndarray:
    """What a kernel of ours stores of a function of what it loads."""
    like = function(*map(mnp.asarray, args))

    def kernel(*refs: Any) -> None:
        refs[-1][...] = function(*(ref[...] for ref in refs[:-1]))

    return np.asarray(pl.pallas_call(kernel, out(*like.shape, dtype=like.dtype), debug=pl.Debug())(*args))


def test_packed_numbers_lie_in_a_word_from_its_low_bits_on():
    narrow = X.astype(ml_dtypes.bfloat16)
    words = by_kernel(lambda x: pltpu.pack_elementwise([x, -x], packed_dtype=mnp.bfloat16), X)
    np.testing.assert_array_equal(words & 0xFFFF, narrow.view(np.uint16))
    np.testing.assert_array_equal(words >> 16, (-narrow).view(np.uint16))
    for n, expected in enumerate((narrow, -narrow)):
        found = by_kernel(
            lambda w, n=n: pltpu.unpack_elementwise(w, index=n, packed_dtype=mnp.bfloat16, unpacked_dtype=mnp.float32),
            words,
        )
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    bytes_ = N.astype(np.int8)
    words = by_kernel(lambda n: pltpu.pack_elementwise([n, n, -n, n], packed_dtype=mnp.int8), N)
    np.testing.assert_array_equal(words.view(np.int8).reshape(16, 128, 4)[..., 2], -bytes_)
    found = by_kernel(
        lambda w: pltpu.unpack_elementwise(w, index=2, packed_dtype=mnp.int8, unpacked_dtype=mnp.int32), words
    )
    np.testing.assert_array_equal(found, -bytes_.astype(np.int32))


def test_numbers_are_rounded_up_as_often_as_they_are_near():
    x = np.full((64, 128), 1 + 2**-9, np.float32)  # a quarter of the way from 1 to the next bfloat16
    bits = np.random.default_rng(3).integers(0, 1 << 32, x.shape, np.uint32)
    found = by_kernel(lambda x, b: pltpu.stochastic_round(x, b, target_dtype=mnp.bfloat16), x, bits).astype(np.float32)
    assert set(found.ravel()) == {1.0, 1 + 2**-7}
    assert abs((found > 1).mean() - 0.25) < 0.02


@debugs
def test_rows_of_wide_numbers_are_two_of_narrow_ones(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref.bitcast(mnp.uint16)[...]

    found = np.asarray(pl.pallas_call(kernel, out(32, 128, dtype=mnp.uint16), debug=debug)(X))
    np.testing.assert_array_equal(found[0::2], X.view(np.uint32) & 0xFFFF)
    np.testing.assert_array_equal(found[1::2], X.view(np.uint32) >> 16)


@debugs
def test_rows_of_packed_numbers_are_stored_and_the_others_stay(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]
        out_ref.bitcast(mnp.uint16)[1] = mnp.zeros(128, mnp.uint16)

    found = np.asarray(pl.pallas_call(kernel, out(16, 128, dtype=mnp.uint32), debug=debug)(X.view(np.uint32)))
    expected = X.view(np.uint32).copy()
    expected[0] &= 0xFFFF
    np.testing.assert_array_equal(found, expected)


@debugs
def test_the_axes_of_a_grid_may_have_names(debug):
    def kernel(out_ref):
        assert pl.program_id(1) == lax.axis_index("columns")
        out_ref[0, 0] = lax.axis_index(("rows", "columns")) + 10 * lax.axis_size("rows")

    spec = pl.BlockSpec((1, 1), lambda i, j: (i, j))
    shape = out(2, 3, dtype=mnp.int32)
    grid = (("rows", 2), ("columns", 3))
    found = pl.pallas_call(kernel, shape, grid=grid, out_specs=spec, debug=debug)()
    np.testing.assert_array_equal(found, 20 + np.arange(6).reshape(2, 3))


@debugs
def test_a_grid_may_come_back_to_a_block_of_an_output_that_is_fetched_again(debug):
    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            out_ref[...] = mnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    call = pl.pallas_call(
        kernel,
        out(16, 128),
        grid=(3, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda k, i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda k, i: (i, 0), pl.Buffered(2, revisit=pl.RevisitMode.ANY)),
        debug=debug,
    )
    np.testing.assert_allclose(call(X), 3 * X, rtol=1e-6)


def double(refs: Any) -> None:
    x_ref, y_ref = refs["x"], refs["y"]

    @pl.core_map(pltpu.TensorCoreMesh("core", num_cores=2), scratch_shapes=[pltpu.VMEM((8, 128), F32)])
    def _(block):
        mine = pl.ds(lax.axis_index("core") * 8, 8)
        pltpu.sync_copy(x_ref.at[mine], block)
        block[...] *= 2
        pltpu.sync_copy(block, y_ref.at[mine])

    y_ref[0] = y_ref[0] + 1.0


@pytest.mark.parametrize("jit", [False, True])
def test_refs_outside_of_kernels_are_changed_by_them(jit):
    run = pl.run_state(double)
    found = (mw.jit(run) if jit else run)({"x": mnp.asarray(X), "y": mnp.zeros((16, 128))})
    expected = 2 * X
    expected[0] += 1
    np.testing.assert_array_equal(found["y"], expected)
    np.testing.assert_array_equal(found["x"], X)


def test_a_kernel_changes_the_refs_it_is_given():
    @pl.kernel(
        out_type=out(8, 128),
        mesh=pltpu.TensorCoreMesh(axis_name="core"),
        scratch_types={"block": pltpu.VMEM((8, 128), F32)},
    )
    def step(x_ref, state_ref, out_ref, block):
        pltpu.sync_copy(state_ref, block)
        pltpu.sync_copy(block, out_ref)
        pltpu.sync_copy(x_ref.at[pl.ds(0, 8)], state_ref)

    state = pl.new_ref(mnp.ones((8, 128)))
    np.testing.assert_array_equal(step(X, state), np.ones((8, 128)))
    np.testing.assert_array_equal(pl.freeze(state), X[:8])


def test_a_ref_of_another_trace_is_not_changed_in_a_jitted_function():
    state = pl.new_ref(mnp.zeros(2))

    def store(x):
        state[...] = x

    with pytest.raises(
        pltpu.KernelError, match="A ref is used in a function that is traced, and was made outside of it"
    ):
        mw.jit(store)(mnp.ones(2))


def test_interpret_params_are_settings_of_debug():
    def kernel(x_ref, out_ref, scratch):
        out_ref[...] = x_ref[...] + scratch[...]

    def call(**options: Any) -> Any:
        return pl.pallas_call(kernel, out(16, 128), scratch_shapes=[pltpu.VMEM((16, 128), F32)], **options)(X)

    assert np.isnan(call(interpret=pltpu.InterpretParams())).all()
    assert np.isnan(call(interpret=True)).all()
    with pytest.raises(pltpu.UninitializedError):
        call(interpret=pltpu.InterpretParams(detect_races=True))
    with (
        pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True)),
        pytest.raises(pltpu.UninitializedError),
    ):
        call()
    with pytest.raises(pltpu.KernelError, match="uninitialized_memory='zero'"):
        pltpu.InterpretParams(uninitialized_memory="zero")


@debugs
def test_matrix_units_step_by_step(debug):
    def kernel(x_ref, y_ref, out_ref):
        pltpu.matmul_push_rhs(y_ref[...], 0, 0)
        pltpu.matmul_acc_lhs(0, x_ref[...], 0, load_staged_rhs=0)
        pltpu.matmul_push_rhs(y_ref[...], 1, 0, transpose=True)
        pltpu.matmul_acc_lhs(0, x_ref[...], 0, load_staged_rhs=1)
        out_ref[...] = pltpu.matmul_pop(0, (16, 128), mnp.float32, 0)

    y = np.random.default_rng(2).integers(-4, 4, (128, 128)).astype(np.float32)
    x = np.round(X)
    np.testing.assert_array_equal(pl.pallas_call(kernel, out(16, 128), debug=debug)(x, y), x @ y + x @ y.T)


def test_a_matrix_unit_is_left_empty():
    def kernel(x_ref, out_ref):
        pltpu.matmul_push_rhs(x_ref[...], 0, 0)
        out_ref[...] = x_ref[...]

    with pytest.raises(pltpu.KernelError, match="Matrix unit 0 is left with staged right sides when the kernel ends"):
        pl.pallas_call(kernel, out(16, 128))(X)


def test_two_cores_meet():
    def kernel(out_ref, block, sem):
        pltpu.core_barrier(sem, core_axis_name="core")

        @pltpu.run_on_first_core("core")
        def _():
            block[...] = mnp.ones_like(block)
            pltpu.sync_copy(block, out_ref)

    call = pl.kernel(
        kernel,
        out(8, 128),
        mesh=pltpu.TensorCoreMesh("core", num_cores=2),
        scratch_types=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.REGULAR],
        debug=pl.Debug(schedules=8),
    )
    assert (call() == 1).all()


def test_random_numbers_depend_on_the_seed_alone():
    def kernel(seed_ref, out_ref):
        pltpu.prng_seed(seed_ref[0], pl.program_id(0))
        out_ref[...] = pltpu.stateful_normal((8, 128))

    specs = {"in_specs": [pl.BlockSpec(memory_space=pltpu.SMEM)], "out_specs": pl.BlockSpec((8, 128), lambda i: (i, 0))}
    call = pl.pallas_call(kernel, out(1024, 128), grid=(128,), **specs)
    a, b = (np.asarray(call(mnp.array([seed], mnp.int32))) for seed in (0, 1))
    np.testing.assert_array_equal(a, call(mnp.array([0], mnp.int32)))
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01
    assert abs(a.mean()) < 0.02
    assert abs(a.std() - 1) < 0.02


def test_costs_are_jaxs():
    x = np.ones((64, 32), np.float32)

    def f(np, x):
        return np.exp(x @ x.T) + 1.0

    ours = pl.estimate_cost(lambda x: f(mnp, x), x)
    theirs = jax_pl.estimate_cost(lambda x: f(jnp, x), x)
    assert (ours.flops, ours.transcendentals, ours.bytes_accessed) == (
        theirs.flops, theirs.transcendentals, theirs.bytes_accessed
    )  # fmt: skip


@pytest.mark.parametrize("version", ["TPU_V4", "TPU_V5E", "TPU_V5P", "TPU_V6E"])
def test_what_a_tpu_has_is_as_jax_says(version):
    ours = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion[version], 1)
    theirs = jax_pltpu.get_tpu_info_for_chip(jax_pltpu.ChipVersion[version], 1)
    for name in ("generation", "num_lanes", "num_sublanes", "mxu_column_size", "vmem_capacity_bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert abs(ours.bf16_ops_per_second / theirs.bf16_ops_per_second - 1) < 0.01
    assert abs(ours.mem_bw_bytes_per_second / theirs.mem_bw_bytes_per_second - 1) < 0.15  # sources differ


def test_a_device_says_which_it_is():
    assert mw.make_mesh((1,), ("x",)).devices.flat[0].device_kind == "cpu"
    assert mw.make_mesh((1,), ("x",), kind="tpu v5e").devices.flat[0].device_kind == "TPU v5e"


@debugs
def test_slices_of_a_bounded_size_come_through_a_pipeline(debug):
    starts, sizes = mnp.array([0, 2, 3, 5], mnp.int32), mnp.array([2, 1, 2, 3], mnp.int32)

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def kernel(starts_ref, sizes_ref, x_ref, out_ref):
        spec = pl.BlockSpec((pl.BoundedSlice(4), 128), lambda i: (pl.ds(starts_ref[i], sizes_ref[i]), 0))
        pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(kernel, out(8, 128), in_specs=[smem, smem, ANY], out_specs=ANY, debug=debug)
    np.testing.assert_array_equal(call(starts, sizes, X[:8]), X[:8])


@debugs
def test_blocks_in_main_memory_are_views_of_it_in_a_pipeline(debug):
    def body(x_ref, out_ref):
        assert x_ref.memory_space is pltpu.HBM or x_ref.memory_space is pl.ANY
        pltpu.sync_copy(x_ref, out_ref)

    def kernel(x_ref, out_ref):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        hbm = pl.BlockSpec((8, 128), lambda i: (1 - i, 0), memory_space=pltpu.HBM)
        pltpu.emit_pipeline(body, grid=(2,), in_specs=[hbm], out_specs=spec)(x_ref, out_ref)

    call = pl.pallas_call(kernel, out(16, 128), in_specs=[ANY], out_specs=ANY, debug=debug)
    np.testing.assert_array_equal(call(X), np.concatenate([X[8:], X[:8]]))
    np.testing.assert_array_equal(mw.vmap(call)(np.stack([X, -X]))[1], -np.concatenate([X[8:], X[:8]]))
