"""Bad input to mnp, lax, nn and tree: one error, whole, that names the user's line."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn

V, M = mnp.ones(3), mnp.ones((2, 3))
SIGNAL, KERNEL = mnp.ones((1, 1, 4)), mnp.ones((1, 1, 2))
NAMES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float8_e4m3fn, float8_e5m2, "
    "float16, bfloat16, float32, float64, complex64, complex128"
)
RAGGED = (
    "A list whose rows differ in length is not one array.",
    "all rows at one depth become one dim, so they have one length",
    "pad the rows to one length, or keep a list of arrays: [mnp.array(row) for row in rows]",
)
DTYPES = f"the dtypes are {NAMES}", "dtype='float32'"
BOUNDS = "bounds are integers or None", "int(…)"
COUNT = (
    "the number of steps is not finite",
    "finite bounds; mnp.linspace(start, stop, num) takes the number of elements",
)
NEGATIVE = "a size is 0 or more", "max(n, 0)"
RANKS = (
    "input and kernel have one rank: batch, features and the spatial dims",
    "x[None, None] adds batch and features; for vectors, mnp.convolve(x, w)",
)
STRUCTURES = "pass trees with the same containers and keys; mw.tree.structure(x) shows them"


@pytest.mark.parametrize(
    ("function", "what", "why", "fix"),
    [
        (lambda: mnp.array([[1], [2, 3]]), *RAGGED),
        (lambda: mnp.ones(3, "foo"), "'foo' is not a dtype.", *DTYPES),
        (lambda: lax.convert_element_type(V, "zz"), "'zz' is not a dtype.", *DTYPES),
        (lambda: V["a":], "A slice has the bound 'a'.", *BOUNDS),
        (lambda: V[1.5:], "A slice has the bound 1.5.", *BOUNDS),
        (lambda: V[::0], "A slice has step 0.", "it never gets anywhere", "x[::1], or x[::-1] to reverse"),
        (
            lambda: mnp.concatenate(3),
            "mnp.concatenate cannot take 3.",
            "it takes a sequence of arrays",
            "mnp.concatenate([x, y])",
        ),
        (
            lambda: mnp.einsum(3),
            "mnp.einsum cannot take 1 arguments without subscripts.",
            "its first argument is text, or each operand is followed by a list of labels",
            "mnp.einsum('ij,jk->ik', x, y)",
        ),
        (lambda: mnp.arange(math.inf), "mnp.arange cannot count from 0 to inf by 1.", *COUNT),
        (lambda: mnp.arange(math.nan), "mnp.arange cannot count from 0 to nan by 1.", *COUNT),
        (lambda: mnp.tile(V, -1), "A count of mnp.tile is -1.", *NEGATIVE),
        (lambda: mnp.repeat(V, -1), "A count of mnp.repeat is -1.", *NEGATIVE),
        (lambda: mnp.eye(-1), "N of mnp.eye is -1.", *NEGATIVE),
        (lambda: nn.one_hot(V, -1), "num_classes of one_hot is -1.", *NEGATIVE),
        (lambda: lax.iota("int32", -1), "size of lax.iota is -1.", *NEGATIVE),
        (lambda: mnp.linspace(0, 1, -1), "num of mnp.linspace is -1.", *NEGATIVE),
        (lambda: mnp.roll(V, 1.5), "The shift of mnp.roll is 1.5.", "it must be an integer", "int(…)"),
        (lambda: mnp.zeros(2.5), "A shape is 2.5.", "it must be an integer", "int(…)"),
        (lambda: lax.conv(V, V, (1,), "SAME"), "A convolution cannot take f32[3] and f32[3].", *RANKS),
        (
            lambda: lax.conv(SIGNAL, KERNEL, (0,), "SAME"),
            "A convolution cannot take window_strides=(0,).",
            "it is one number, 1 or more, for each of 1 dims",
            "window_strides=(1,)",
        ),
        (
            lambda: lax.reduce_window(M, 0.0, lax.add, (2, 2), (1,), "SAME"),
            "lax.reduce_window cannot take window_strides=(1,).",
            "it is one number, 1 or more, for each of 2 dims",
            "window_strides=(1, 1)",
        ),
        (
            lambda: lax.dot_general(V, V, 3),
            "lax.dot_general cannot take dimension_numbers=3.",
            "they are ((contracted of x, contracted of y), (batch of x, batch of y)), each a sequence of dims",
            "(((1,), (0,)), ((), ())) for a product of matrices",
        ),
        (
            lambda: nn.dot_product_attention(V, V, V),
            "nn.dot_product_attention cannot take f32[3], f32[3], f32[3].",
            "queries, keys and values have dims (…, length, heads, depth)",
            "x[:, None, :] adds a dim for one head",
        ),
        (
            lambda: mnp.linalg.cholesky(M),
            "mnp.linalg.cholesky cannot take f32[2,3].",
            "it takes a square matrix, or a stack of them",
            "x @ x.mT is one",
        ),
        (
            lambda: nn.log_softmax(V, axis=4),
            "nn.log_softmax cannot take axis=4 of an array of rank 1.",
            "its axes are -1 to 0",
            "axis=0",
        ),
        (
            lambda: mw.tree.map_with_path(lambda path, a, b: a, {"a": 1}, {"b": 1}),
            "tree.map_with_path is given trees of different structures.",
            "dictionary key mismatch; expected key(s): ['a'], got key(s): ['b'], "
            "missing key(s): ['a'], extra key(s): ['b']; dict: {'b': 1}.",
            STRUCTURES,
        ),
        (
            lambda: mw.tree.transpose(mw.tree.structure([1]), mw.tree.structure((1, 2)), {"a": 1}),
            "tree.transpose is given a tree that is not an outer tree of inner trees.",
            "Tree structure mismatch; expected: PyTreeSpec([(*, *)]), got: PyTreeSpec({'a': *}).",
            "mw.tree.structure(x) shows the structure of a tree",
        ),
        (
            lambda: mw.tree.unflatten(mw.tree.structure([1, 2]), [1]),
            "tree.unflatten is given 1 leaves for a structure of 2.",
            "the structure is PyTreeSpec([*, *])",
            "pass one value per leaf, in the order of mw.tree.leaves",
        ),
        (
            lambda: mw.tree.reduce(lambda a, b: a, []),
            "tree.reduce is given a tree without leaves.",
            "there is nothing to start from",
            "mw.tree.reduce(f, tree, 0) starts from 0",
        ),
        (
            lambda: mw.tree.register_dataclass(int),
            "tree.register_dataclass is given <class 'int'>.",
            "it is not a dataclass, and no fields are named",
            "put @dataclasses.dataclass under @mw.tree.register_dataclass, or name the fields: data_fields=[…]",
        ),
    ],
)
def test_one_error_says_all(function, what, why, fix):
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    assert caught.value.where.startswith("test_bad_input.py:")
    assert str(caught.value) == f"{what}\n  at:   {caught.value.where}\n  why:  {why}\n  fix:  {fix}"


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (lambda x: mnp.arange(x), "mnp.arange needs the contents"),
        (lambda x: float(x), "float() needs the contents"),
        (lambda x: mnp.zeros(x), "A shape needs the contents"),
    ],
)
def test_names_in_code_keep_their_case(function, start):
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(function)(3)
    assert str(caught.value).startswith(start)


def test_leaves_with_path():
    assert mw.tree.leaves_with_path({"a": [1, 2]}) == [(("a", 0), 1), (("a", 1), 2)]
    assert [leaf for _, leaf in jax.tree.leaves_with_path({"a": [1, 2]})] == [1, 2]
    assert mw.tree.leaves_with_path({"a": [1, 2]}, is_leaf=lambda x: isinstance(x, list)) == [(("a",), [1, 2])]


def test_a_registered_dataclass_still_maps():
    made = mw.tree.register_dataclass(dataclasses.make_dataclass("Made", ["w"]))
    assert mw.tree.map_with_path(lambda path, x, y: x + y, made(1), made(2)) == made(3)


def test_bytes_and_deletion():
    x = mnp.arange(3.0)
    assert x.tobytes() == np.arange(3, dtype=np.float32).tobytes()
    assert not x.is_deleted()
    mw.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
