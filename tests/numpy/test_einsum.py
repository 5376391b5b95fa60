"""``mnp.einsum`` and ``matmul`` against NumPy and JAX, their programs, and their errors."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright.core.types import tensor
from meshwright.errors import ShapeError
from tests.numpy.against_jax import compare, draw, program_text, run_traced

pytestmark = pytest.mark.usefixtures("x32")

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("ji,jk->ki", (2, 3), (2, 4)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("bij,bjk->ikb", (5, 2, 3), (5, 3, 4)),
    ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 6, 3, 4)),
    ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 4)),
    ("btd,dhk->bthk", (2, 5, 4), (4, 3, 6)),
    ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 4)),
    ("...ij,jk->...ik", (5, 6, 2, 3), (3, 4)),
    ("i...,i...->...", (3, 2), (3, 2)),
    ("...,...", (3, 2), (2,)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->i", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij->ij", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("i,j->ij", (2,), (3,)),
    ("i,j->ji", (2,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,i->", (3,), (3,)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ji->ij", (2, 3), (3, 2)),
    ("ij,i->ij", (2, 3), (2,)),
    ("ij,k->ij", (2, 3), (4,)),
    ("ij,k->", (2, 3), (4,)),
    (",i->i", (), (3,)),
    (",->", (), ()),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("ij,jk,ik->", (2, 3), (3, 4), (2, 4)),
    ("i,i,i->i", (3,), (3,), (3,)),
    ("ab,bc,b->ac", (2, 3), (3, 4), (3,)),
    ("ij,ij->", (1, 3), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)),
    ("ij,kjj->ik", (2, 3), (4, 3, 3)),
    ("abc,cd,de,ef->abf", (2, 3, 4), (4, 5), (5, 2), (2, 3)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("Ij,jK->IK", (2, 3), (3, 4)),
    ("...i->...", (2, 3, 4)),
    ("...ii->...i", (2, 3, 3)),
    ("i...j->j...i", (2, 3, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("ij,jk->ik", (2, 0), (0, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {c[1:]}")
def test_einsum(case):
    text, *shapes = case
    arrays = [draw(shape, seed=n) for n, shape in enumerate(shapes)]
    expected = np.einsum(text, *arrays)
    for found in (
        mnp.einsum(text, *arrays),
        run_traced(lambda *xs: mnp.einsum(text, *xs), *(mnp.asarray(x) for x in arrays)),
    ):
        assert found.shape == expected.shape
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtypes", (("int32", "int32"), ("bfloat16", "float32"), ("int32", "float16"), ("bool", "bool"))
)
def test_einsum_promotes(dtypes):
    x, y = draw((2, 3), dtypes[0]), draw((3, 4), dtypes[1])
    compare(lambda m, x, y: m.np.einsum("ij,jk->ik", x, y), x, y)


def test_einsum_accumulates_in_the_preferred_dtype():
    x = draw((4, 64), "bfloat16")
    compare(lambda m, x: m.np.einsum("ij,kj->ik", x, x, preferred_element_type="float32"), x)
    compare(lambda m, x: m.np.einsum("ij,ij->ij", x, x, preferred_element_type="float32"), x)


def test_einsum_by_lists_of_numbers():
    x, y = draw((2, 3)), draw((3, 4))
    found = mnp.einsum(x, [0, 1], y, [1, 2], [0, 2])
    np.testing.assert_allclose(np.asarray(found), x @ y, rtol=1e-5)
    batched = mnp.einsum(draw((5, 2, 3)), [..., 0, 1], y, [1, 2])
    assert batched.shape == np.einsum(draw((5, 2, 3)), [..., 0, 1], y, [1, 2]).shape


def test_attention_is_one_contraction_each():
    q, k = tensor((2, 5, 3, 4), "float32"), tensor((2, 6, 3, 4), "float32")
    text = program_text(lambda q, k: mnp.einsum("bqhd,bkhd->bhqk", q, k), q, k)
    assert text.count("=") and text.count("dot_general") == 1 and "transpose" not in text
    swapped = program_text(
        lambda x, w: mnp.einsum("dh,bd->bh", w, x), tensor((2, 4), "float32"), tensor((4, 3), "float32")
    )
    assert swapped.count("dot_general") == 1 and "transpose" not in swapped


def test_a_chain_is_contracted_by_size():
    types = [tensor(s, "float32") for s in ((100, 2), (2, 100), (100, 1))]
    text = program_text(lambda a, b, c: mnp.einsum("ij,jk,kl->il", a, b, c), *types)
    assert "f32[100,100]" not in text


SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 5, 2, 3), (6, 1, 3, 4)),
    ((1, 5, 2, 3), (6, 1, 3, 4)),
    ((3,), (6, 5, 3, 4)),
    ((6, 5, 2, 3), (3,)),
    ((1, 1, 3), (1, 3, 1)),
    ((0, 2, 3), (3, 4)),
    ((5, 7, 2, 3), (7, 3, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes):
    x, y = draw(shapes[0]), draw(shapes[1], seed=1)
    expected = x @ y
    for found in (
        mnp.asarray(x) @ y,
        run_traced(lambda x, y: x @ y, mnp.asarray(x), mnp.asarray(y)),
        x @ mnp.asarray(y),
    ):
        assert found.shape == expected.shape
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_is_one_equation():
    text = program_text(lambda x, w: x @ w, tensor((8, 16, 4), "float32"), tensor((4, 5), "float32"))
    assert text.count(" = ") == 1 and "dot_general" in text


ERRORS = {
    "sizes": (lambda: mnp.einsum("ij,jk->ik", mnp.ones((2, 3)), mnp.ones((4, 5))), "label 'j' has sizes 3 and 4"),
    "ranks": (lambda: mnp.einsum("ij->i", mnp.ones(3)), "2 labels for an operand of rank 1"),
    "operands": (lambda: mnp.einsum("ij,jk->ik", mnp.ones((2, 3))), "2 terms for 1 operands"),
    "unknown": (lambda: mnp.einsum("ij->ik", mnp.ones((2, 3))), "the result has 'k'"),
    "twice": (lambda: mnp.einsum("ij->ii", mnp.ones((2, 3))), "twice"),
    "characters": (lambda: mnp.einsum("i1->i", mnp.ones((2, 3))), "not letters"),
    "dots": (lambda: mnp.einsum("...i->i", mnp.ones((2, 3))), "leaves out"),
    "ellipsis twice": (lambda: mnp.einsum("......->", mnp.ones((2, 3))), "at most one"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    function, words = ERRORS[name]
    with pytest.raises(ShapeError) as caught:
        function()
    assert words in caught.value.why and caught.value.fix and "test_einsum.py" in caught.value.where


def test_jax_agrees_on_implicit_output():
    x, y = draw((2, 3)), draw((3, 4))
    assert jnp.einsum("ba,ac", x, y).shape == mnp.einsum("ba,ac", x, y).shape
