"""Single calls, written once and run on both libraries: values, dtypes and weak types, or that both refuse them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from tests.numpy.against_jax import same
from tests.numpy.chains import namespace

pytestmark = pytest.mark.usefixtures("x32")

EQUAL = """
lax.gather(np_.arange(6.0).reshape(3, 2), np_.array([[4], [-1]]), lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 2))
np_.ix_(np_.array([0, 1], 'int8'), np_.array([], 'int8'))
np_.angle(np_.array([3], 'uint8'))
np_.angle(3)
np_.modf(3)
np_.diagflat(lax.full((2,), 3))
lax.full((3,), 3.0).at[0].set(np_.array(1.0))
lax.full((3,), 3.0).at[np_.array([0])].add(np_.array(1.0))
lax.full((3,), 3.0).at[0:3].set(np_.ones(3))
lax.full((3,), 3.0).at[np_.array([True, False, True])].set(np_.array(1.0))
lax.full((3,), 3.0).at[np_.array([0])].divide(np_.array(1.0))
np_.fill_diagonal(lax.full((2, 2), 3.0), np_.array(1.0), inplace=False)
np_.deg2rad(lax.full((4,), 3))
np_.deg2rad(3)
np_.square(np_.array([True]))
np_.logaddexp2(np_.ones(1, 'bfloat16'), np_.ones(1, 'int16'))
np_.heaviside(np_.array([True]), -2.5)
np_.heaviside(2.61, np_.array([True]))
np_.heaviside(3, 3)
np_.divide(1.5 - 2j, np_.array([0.0, -0.0, 2.0]))
np_.log10(np_.array([0j, 2j, complex('inf')]))
np_.linalg.multi_dot([np_.array([[1.03, 2.0]], 'bfloat16'), np_.array([[1.07], [3.0]], 'bfloat16'), np_.array([1.3])])
np_.linalg.multi_dot([np_.arange(3), np_.arange(6).reshape(3, 2), np_.arange(2)])
np_.choose(np_.array([0, 1]), [np_.array([1.5, 2.5]), lax.full((2,), 1)])
np_.array([1.0, 2.0]) < (1 + 1j)
(1.5 - 2j) >= np_.array([1, 2], 'int8')
np_.array([[True, False]]).view('int16')
np_.array([[1, 0]], 'int16').view(bool)
np_.array([[1j, 2]]).view('float32')
np_.arange(4.0).view('complex64')
p.grad(lambda x: (x.view('float32') * 3).sum())(np_.array([1.5, 2.0]))
np_.arange(3).at[...].get(mode='wrap')
np_.zeros((2, 0)).at[1, 1:].get(mode='wrap')
p.grad(lambda x: np_.array([-2.0, 3.0]).at[2:1].power(x).sum())(1.5)
np_.take_along_axis(np_.zeros((2, 0), 'int16'), np_.zeros((2, 3), 'uint8'), axis=-1)
np_.pad(np_.zeros((2, 0)), 1, mode='mean')
np_.linalg.norm(np_.zeros((2, 0)), ord=1)
np_.linalg.norm(np_.zeros(0), ord=np_.inf)
np_.linalg.vector_norm(np_.zeros((2, 0)), ord=np_.inf)
lax.polygamma(np_.full((1,), 3, 'bfloat16'), np_.array([1.7], 'bfloat16'))
nn.standardize(np_.array([[0.15, 0.2]]), mean=0.5)
nn.relu(np_.array([True, False]))
nn.relu6(np_.array([7], 'int8'))
nn.elu(np_.array([-2, 2]))
nn.selu(np_.array([2], 'uint8'))
nn.celu(np_.array([True]))
nn.leaky_relu(np_.array([-2], 'int16'))
nn.hard_swish(np_.array([2], 'uint32'))
nn.softplus(np_.array([True]))
nn.soft_sign(np_.array([True]))
p.grad(lambda x: np_.sort(x, 0).sum())(np_.zeros((2, 0)))
p.grad(lambda x: np_.median(x, axis=()).sum())(np_.zeros(0))
p.grad(lambda x: np_.fill_diagonal(np_.zeros((2, 0)), x, inplace=False).sum())(1.0)
p.grad(lambda x: np_.zeros((2, 0)).at[np_.array([1, 1])].apply(lambda y: y * x).sum())(1.0)
p.grad(p.grad(lambda y: np_.remainder(4.0, y) * y))(2.3)
p.vmap(lambda n: lax.dynamic_slice(np_.ones((1, 3)), (0, n), (1, 0)))(np_.arange(2))
np_.unravel_index(np_.array([5, 3], 'uint8'), (2, 3))
np_.unravel_index(np_.array([5, 300, 0], 'uint32'), (2, 3))
np_.unravel_index(np_.array([-7, -1, 6], 'int8'), (2, 3))
np_.ravel_multi_index((np_.array([0, 1]), np_.array([1, 2])), (2, 3))
np_.trapezoid(np_.arange(6.0).reshape(2, 3), dx=np_.array([1.0, 2.0, 3.0]), axis=0)
np_.trapezoid(np_.arange(6.0).reshape(2, 3), dx=np_.array([1.0, 2.0]))
np_.trapezoid(np_.arange(4), np_.array([0.0, 1.0, 3.0, 4.0], 'bfloat16'))
np_.pad(np_.arange(4.0), 2, mode='reflect', reflect_type='odd')
np_.pad(np_.arange(4.0) ** 2, (5, 6), mode='symmetric', reflect_type='odd')
np_.pad(np_.arange(4) ** 2, (5, 6), mode='linear_ramp', end_values=2.5)
np_.pad(np_.arange(4) ** 2, (1, 2), mode='mean', stat_length=3)
np_.pad(np_.arange(6.0).reshape(2, 3), (1, 2), mode='median')
np_.pad(np_.arange(6.0).reshape(2, 3), (1, 2), mode='maximum', stat_length=2)
np_.correlate(np_.array([1 + 2j, 3j]), np_.array([1j, 2.0, 3 + 1j]), mode='full')
np_.correlate(np_.array([1 + 2j, 3j]), np_.array([1j, 2.0, 3 + 1j]), mode='same')
np_.geomspace(-1.0, -1000.0, 4)
np_.geomspace(-1.0, 1000.0, 4)
np_.round(np_.array([1.5, 0.0, -2.25]), 39)
np_.round(np_.array([1.5, np_.inf, np_.nan]), 400)
np_.ldexp(np_.array([0.0, 1.0, 1e-30]), np_.array([300, 300, 100]))
np_.arange(4.0, dtype='float32').view('uint8')
np_.arange(8, dtype='uint8').reshape(2, 4).view('uint32')
np_.logaddexp(np_.array([3.0 + 3j]), np_.array([3.0 + 3.1j]))
np_.logaddexp2(np_.array([1, 2]), 2.5)
np_.power(np_.array([-np_.inf, -np_.inf, np_.inf]), np_.array([0.5, -0.5, 0.5]))
np_.array([-np_.inf]) ** 0.5
lax.pow(np_.array([-np_.inf, -0.0]), 0.5)
lax.reduce_window(np_.arange(6.0), 0.0, lax.add, (2,), (3,), 'SAME', base_dilation=(3,))
lax.reduce_window(np_.arange(5.0), 0.0, lax.add, (3,), (2,), 'SAME', base_dilation=(2,))
np_.quantile(np_.array(3.0), 0.5, keepdims=True)
np_.median(np_.array(3.0), keepdims=True)
np_.quantile(np_.array(3.0), np_.array([0.1, 0.5]), keepdims=True)
np_.sum(np_.full((2,), 3.5))
np_.max(3)
np_.mean(np_.full((2,), 3.5), axis=0)
np_.cumsum(np_.full((2,), 3.5))
np_.absolute(1 + 2j)
np_.imag(2.5)
np_.copysign(4, np_.array([1, 2], 'uint8'))
np_.reciprocal(False)
np_.angle(np_.array(1.0, 'float16'))
np_.arange(-3, 1, 0.5, dtype='int8')
np_.vander(np_.array([1, 2, 3], 'uint8'))
np_.histogram(np_.array([1.0, 2.0], 'float16'), 3, weights=np_.array([1, 2]))
np_.histogram(np_.array([1, 2]), np_.array([-2, 0, 3]))
np_.cumulative_sum(np_.array([1, 2], 'int16'), include_initial=True)
np_.choose(np_.array([[0, 1], [1, 0]]), [np_.array([1.0, 2.0]), 7], mode='clip')
np_.var(np_.array([1.0, 2.0]), where=np_.array([True, False]), ddof=1)
np_.bitwise_count(np_.array([True, False]))
np_.einsum('ij->j', np_.array([[True, False], [True, False]]))
np_.linalg.diagonal(np_.arange(12).reshape(2, 3, 2))
np_.linalg.trace(np_.arange(12).reshape(2, 3, 2), offset=1)
np_.linalg.matrix_power(np_.ones((2, 2)), 0)
np_.roll(np_.arange(4), np_.array([1, 2]), axis=0)
np_.take(np_.array([5, 6, 7]), np_.array([True, False]))
np_.take_along_axis(np_.zeros((2, 0)), np_.zeros((2, 0), 'int32'), 1)
np_.zeros((0, 2))[np_.array([], 'int32')]
np_.full((2,), -2.5, 'uint16')
np_.size(np_.ones((2, 3)), (0, 1))
np_.linspace(np_.ones(3), 2, 0, retstep=True)
np_.array([1j, 1.0]) >= True
np_.floor_divide(np_.array([7, -7]), True)
np_.array([0.5, 2.0]).at[np_.array([1, 1, 0])].apply(np_.square)
lax.conj(np_.array([1.0, 2.0]))
nn.relu(np_.array([1 - 1j, -1 + 1j]))
nn.softplus(np_.array([2, 3]))
p.hessian(lambda v: v[0] ** v[1])(np_.array([4.0, 0.0]))
p.grad(p.grad(p.grad(p.grad(np_.sinc))))(0.0)
p.grad(p.grad(np_.sinc))(0.0)
p.linear_transpose(lambda x: 2 * x, np_.arange(3))(np_.arange(3))
p.linear_transpose(lambda x: (x, 3 * np_.cumsum(x)), np_.arange(3))((np_.arange(3), np_.arange(3)))
p.linear_transpose(lambda x: x[::-1][np_.array([0, 0])], np_.arange(3))(np_.arange(2))
""".strip().splitlines()


def run(text: str, package: Any) -> Any:
    return eval(text, namespace(package) | {"p": package})


@pytest.mark.parametrize("text", EQUAL)
def test_a_call_is_what_jax_makes_of_it(text: str) -> None:
    same(run(text, mw), run(text, jax))


REFUSED = """
np_.ravel_multi_index((np_.array([5]), np_.array([1])), (2, 3))
np_.choose(np_.array([0, 5]), [np_.ones(2), np_.zeros(2)])
np_.fabs(1 + 2j)
np_.isposinf(np_.array([1j]))
np_.ldexp(np_.array([1.0]), np_.array([1.5]))
np_.round(np_.array([1.5]), 1.5)
np_.sum(np_.ones(3), where=np_.array([1, 0, 1]))
np_.sum(np_.ones(3), out=np_.ones(()))
np_.median(np_.ones(3), overwrite_input=True)
np_.zeros(3, dtype=np_.ones(2))
np_.array([1j], 'float32')
np_.full((2,), 1j, 'float32')
np_.array(np_.nan, 'int32')
np_.put_along_axis(np_.ones((2, 3)), np_.zeros((2, 1), 'int32'), 3.0, 1, inplace=True)
np_.tensordot(np_.ones((2, 3)), np_.ones((3, 2)), axes=('bad', 'axes'))
np_.ones(3).at[0].get(mode='wrap')
np_.arange(1j, 3j)
np_.take(np_.zeros(0), np_.array([5]))
np_.gcd(np_.array([1.5]), np_.array([2]))
np_.interp(1.0, np_.ones(3), np_.ones(2))
np_.bincount(np_.array([1.5]))
np_.where(True, 1, 2, size=3)
lax.add(np_.array([1, 2]), 0.5)
lax.clamp(0.5, np_.array([1, 2]), 3)
lax.reciprocal(np_.array([1, 2]))
lax.pad(np_.ones((2, 3)), 0.0, [(1, 1, 0)])
lax.pad(np_.ones((2, 3)), 0.0, [(1, 1), (1, 1)])
lax.gather(np_.ones(3), np_.zeros((3, 1), 'int32'), None, (1,))
lax.scan(3, 1.0, np_.ones(3))
lax.scan(lambda c, x: (c, c), 1.0, None, length=-1)
lax.fori_loop(0.5, 3, lambda i, c: c + 1, 1.0)
lax.dynamic_slice(np_.arange(4.0), (np_.array(1.5),), (2,))
lax.dynamic_update_slice(np_.arange(4.0), np_.ones(2), (1.5,))
lax.select_n(np_.array([1, 0]))
lax.dynamic_slice(np_.arange(5), (-2,), (2,), allow_negative_indices=False)
lax.sort(())
lax.concatenate([], 0)
np_.cumulative_sum(np_.zeros((0, 3)))
np_.cumulative_prod(np_.array(3))
np_.sum(np_.arange(3), initial=np_.ones(2))
np_.max(np_.arange(3), initial=np_.ones(2))
np_.hypot(np_.array(1j), 2.0)
np_.full_like(np_.zeros(2), 1.5, shape=-7)
np_.broadcast_to(np_.zeros(()), -7)
lax.broadcast(np_.zeros(2), (-1,))
lax.scan(lambda c, x: (c + x, c), 0, np_.arange(3), reverse=np_.array([1.5, 2.5]))
np_.median(np_.zeros((2, 0)))
np_.quantile(np_.zeros(0), 0.5)
np_.quantile(np_.arange(3.0), np_.zeros((0, 3)))
np_.arange(3).at[np_.array([5])].get(mode='wrap')
np_.arange(3).at[np_.array([True, False, True])].set(7, mode='wrap')
np_.zeros(0)[np_.array(-3)]
np_.zeros(0).at[np_.array(-3)].set(1.0)
lax.full((2,), np_.ones(2))
p.eval_shape(3)
p.jacfwd(3)
p.linear_transpose(lambda x: x * x, np_.ones(3))(np_.ones(3))
p.linear_transpose(lambda x: x.astype(int), np_.ones(3))(np_.arange(3))
p.linear_transpose(lambda x: 2 * x, np_.arange(3))(np_.ones(3))
p.jit(lambda x: x, static_argnums=0, donate_argnums=0)
p.jvp(lambda x: x, (np_.ones(2),), (1j,))
""".strip().splitlines()


@pytest.mark.parametrize("text", REFUSED)
def test_a_call_that_jax_refuses_is_an_error_of_ours(text: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        run(text, mw)
    assert caught.value.why and caught.value.fix
    refused = False
    try:
        run(text, jax)
    except Exception:
        refused = True
    assert refused


@pytest.mark.parametrize(
    "text",
    [
        "p.jit(lambda *x: x[0], static_argnums=(0, -999))(3)",
        "p.ShapeDtypeStruct((2,), 'float32', weak_type=np_.array([1.5, 2.5]))",
    ],
)
def test_a_call_that_jax_takes_in_some_version_is_an_error_of_ours(text: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        run(text, mw)
    assert caught.value.why and caught.value.fix


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)])
def test_a_traced_truth_value_is_a_mask_of_the_whole_array(mask: bool, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    given = mw.numpy.asarray(x)
    for ours, theirs in (
        (lambda m: given.at[m].set(7), jax.numpy.asarray(x).at[mask].set(7)),
        (lambda m: given.at[m].add(7), jax.numpy.asarray(x).at[mask].add(7)),
        (lambda m: given.at[(m,)].max(1), jax.numpy.asarray(x).at[(mask,)].max(1)),
    ):
        assert np.array_equal(np.asarray(mw.jit(ours)(mask)), np.asarray(theirs))


def test_what_is_partitioned_has_its_place() -> None:
    """Any order within the parts is right, so the results are compared with what they promise."""
    x = np.random.default_rng(0).integers(0, 9, (3, 7)).astype(np.float32)
    for k in (-7, 0, 3, 6):
        found = np.asarray(mw.numpy.partition(mw.numpy.asarray(x), k))
        places = np.asarray(mw.numpy.argpartition(mw.numpy.asarray(x), k))
        for row, part, order in zip(x, found, places, strict=True):
            assert sorted(row) == sorted(part) and part[k] == np.sort(row)[k]
            assert max(part[: k % 7], default=-1) <= part[k] <= min(part[k % 7 :])
            assert np.array_equal(row[order], part)
