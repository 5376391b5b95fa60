"""What users do with transformed functions: static arguments, methods, arrays that must not change."""

from functools import partial

import jax
import numpy as np

import meshwright as mw
import meshwright.numpy as mnp


def test_static_arguments_of_different_types_are_different():
    scale = mw.jit(lambda x, n: x * n, static_argnums=1)
    assert scale(mnp.arange(3), 2).dtype == np.int32
    assert scale(mnp.arange(3), 2.0).dtype == np.float32
    flag = mw.jit(lambda x, on: x + 1 if on is True else x - 1, static_argnums=1)
    assert [float(flag(1.0, on)) for on in (1, True)] == [0.0, 2.0]


class Model:
    scale = 3.0

    @partial(mw.jit, static_argnums=0)
    def jitted(self, x):
        return self.scale * x

    @partial(mw.custom_vjp, nondiff_argnums=0)
    def ruled(self, x):
        return self.scale * x

    ruled.defvjp(lambda self, x: (self.scale * x, None), lambda self, _, ct: (10 * ct,))


def test_transformed_functions_are_methods():
    model = Model()
    assert model.jitted(mnp.ones(2)).tolist() == [3.0, 3.0]
    assert float(mw.grad(model.ruled)(2.0)) == 10.0


def test_arrays_do_not_change_with_the_numpy_array_they_came_from():
    buffer, kept = np.zeros(3, np.float32), []
    captured = mw.jit(lambda x: x + buffer)
    captured(mnp.zeros(3))
    for value in range(1, 4):
        buffer[:] = value
        kept += [mnp.asarray(buffer), mw.jit(lambda x: x)(buffer), mnp.asarray(buffer).T, mnp.reshape(buffer, (3, 1))]
    assert [float(x.ravel()[0]) for x in kept] == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert captured(mnp.zeros(3)).tolist() == [0.0] * 3
    assert not np.asarray(kept[0]).flags.writeable


def test_a_real_function_of_complex_numbers_has_a_gradient():
    z = np.complex64(1 + 2j)
    for f in ("abs", "real", "imag"):
        ours, theirs = mw.grad(getattr(mnp, f))(z), jax.grad(getattr(jax.numpy, f))(z)
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6)


def test_a_numpy_array_used_twice_in_a_trace_is_one_constant():
    table = np.arange(100.0, dtype=np.float32)
    program = mw.make_program(lambda x: (x + table) * table)(mnp.zeros(100))
    assert len(program.constants) == 1


def test_dlpack_gives_no_way_to_write_to_an_array():
    x = mnp.ones(3)
    seen = np.from_dlpack(x)
    assert not seen.flags.writeable or not np.shares_memory(seen, np.asarray(x))
    mine = np.ones(3, np.float32)
    taken = mnp.from_dlpack(mine)
    mine[:] = 7
    assert taken.tolist() == [1.0] * 3
