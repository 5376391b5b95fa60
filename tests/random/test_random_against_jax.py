"""``meshwright.random`` against ``jax.random``: the same key gives the same numbers, bit for bit."""

import linecache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.versions import GUMBEL, GUMBEL_HALF, LOG1P, older_than

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import random
from meshwright.core.op import REGISTRY
from meshwright.engine import chunks, random_special
from meshwright.engine.threefry import threefry2x32
from meshwright.random import keys as random_keys

pytestmark = pytest.mark.usefixtures("x32")

SEED = 7
SHAPE = (40, 130)
BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
FLOATS = ["float16", BF16, "float32"]
REAL_SAMPLERS = ["uniform", "normal", "exponential", "laplace", "logistic", "gumbel"]


def ours(name, *args, **kwargs):
    return np.asarray(getattr(random, name)(random.key(SEED), *args, **kwargs))


def theirs(name, *args, **kwargs):
    out = getattr(jax.random, name)(jax.random.key(SEED), *args, **kwargs)
    return np.asarray(jax.random.key_data(out) if jnp.issubdtype(out.dtype, jax.dtypes.prng_key) else out)


def equal(name, *args, **kwargs):
    """The sampler gives JAX's numbers when computed at once and when traced into a program."""
    expected = theirs(name, *args, **kwargs)
    same(ours(name, *args, **kwargs), expected)
    traced = mw.jit(lambda key: getattr(random, name)(key, *args, **kwargs))
    same(np.asarray(traced(random.key(SEED))), expected)


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes(), f"{np.mean(actual != expected):.3%} differ"


# Keys


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**32 + 5, -1, -(2**63), np.int8(-3), np.uint32(7)])
def test_the_key_of_a_seed(seed):
    same(np.asarray(random.key(seed)), np.asarray(jax.random.key_data(jax.random.key(seed))))
    same(np.asarray(random.PRNGKey(seed)), np.asarray(jax.random.PRNGKey(seed)))


@pytest.mark.parametrize("seed", [5, 2**40 + 3, -2, np.uint64(2**63 + 1)])
def test_the_key_of_a_wide_seed(x64, seed):
    same(np.asarray(random.key(seed)), np.asarray(jax.random.key_data(jax.random.key(seed))))
    traced = mw.jit(random.key)(np.asarray(seed))
    same(np.asarray(traced), np.asarray(jax.random.key_data(jax.random.key(seed))))


@pytest.mark.parametrize("num", [2, 1, 5, (3, 4), ()])
def test_split(num):
    equal("split", num)


@pytest.mark.parametrize("data", [0, 1, 12345, 2**32 - 1, np.int32(-5)])
def test_fold_in(data):
    equal("fold_in", data)


def test_a_key_is_its_two_words():
    key = random.key(3)
    assert key.shape == (2,)
    assert key.dtype == np.uint32
    for function in (random.key_data, random.wrap_key_data, random.clone):
        assert np.array_equal(function(key), key)
        assert function(random.split(key, (4, 3))).shape == (4, 3, 2)


# Bits and uniform numbers


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", None])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1, 7), (0, 3), (1000,)])
def test_bits(shape, dtype):
    equal("bits", shape, dtype)


@pytest.mark.parametrize("dtype", ["uint32", "uint64", None])
def test_wide_bits(x64, dtype):
    equal("bits", SHAPE, dtype)


def test_many_bits_are_hashed_by_several_threads(monkeypatch):
    monkeypatch.setattr(chunks, "cpus", lambda: 3)
    equal("bits", (3, 200_001))
    equal("normal", (400_003,))


@pytest.mark.parametrize("dtype", [*FLOATS, F8])
def test_uniform(dtype):
    equal("uniform", SHAPE, dtype)
    equal("uniform", SHAPE, dtype, -3.0, 5.0)
    equal("uniform", SHAPE, dtype, 0.1, 0.7)
    low = np.linspace(-2, 1, 130, dtype=np.float32)
    equal("uniform", SHAPE, dtype, low, low[:1] + 3)


def test_wide_uniform(x64):
    equal("uniform", SHAPE)
    equal("uniform", SHAPE, "float64", -0.3, 0.9)
    equal("uniform", SHAPE, "float32", -0.3, 0.9)


# Distributions


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REAL_SAMPLERS)
def test_samples_of_real_numbers(name, dtype):
    if name in ("gumbel", "logistic") and dtype == "float16" and older_than(GUMBEL_HALF):
        pytest.skip(GUMBEL_HALF.what)
    equal(name, SHAPE, dtype)
    equal(name)


def test_complex_normal_numbers():
    equal("normal", SHAPE, "complex64")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["low", "high", "highest"])
def test_gumbel_modes(mode, dtype):
    if mode != "low" and dtype == BF16 and older_than(GUMBEL):
        pytest.skip(GUMBEL.what)
    if mode == "low" and dtype == "float16" and older_than(GUMBEL_HALF):
        pytest.skip(GUMBEL_HALF.what)
    equal("gumbel", SHAPE, dtype, mode)


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncated_normal(dtype):
    equal("truncated_normal", -1.0, 2.0, SHAPE, dtype)
    equal("truncated_normal", -2.0, 2.0, None, dtype)
    equal("truncated_normal", np.linspace(-2, 1, 130, dtype=np.float32) + 0.01, 2.0, SHAPE, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_cauchy_to_the_last_bit(dtype):
    a, e = ours("cauchy", SHAPE, dtype), theirs("cauchy", SHAPE, dtype)
    assert a.dtype == e.dtype
    assert ulps(a, e) <= 1


def ulps(actual, expected):
    """The largest distance, counted in representable numbers."""
    kind = {2: np.int16, 4: np.int32, 8: np.int64}[actual.dtype.itemsize]
    a, e = (np.where(b < 0, np.iinfo(kind).min - b, b) for b in (actual.view(kind), expected.view(kind)))
    return int(np.max(np.abs(a.astype(np.int64) - e.astype(np.int64))))


@pytest.mark.parametrize("name", ["normal", "exponential", "laplace"])
def test_wide_samples_differ_in_the_last_bits_of_few(x64, name):
    a, e = ours(name, (20_000,), "float64"), theirs(name, (20_000,), "float64")
    rough = older_than(LOG1P)
    assert ulps(a, e) <= (128 if rough else 4)
    assert np.mean(a == e) > (0.8 if rough else 0.999)


@pytest.mark.slow
def test_every_number_a_uniform_sample_can_be():
    """All 2**23 of them, through the functions that make samples of them."""
    u = (np.arange(2**23, dtype=np.uint32) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)
    low = np.nextafter(np.float32(-1), np.float32(0))
    signed, positive = np.maximum(u * 2 + low, low), np.maximum(u, np.finfo(np.float32).tiny)
    log, log1p = random_special.log, random_special.log1p
    for actual, expected, x in (
        (random_special.erf_inv, jax.lax.erf_inv, signed),
        (lambda u: -log1p(-u), lambda u: -jax.lax.log1p(-u), u),
        (lambda u: -log(-log(u)), lambda u: -jax.lax.log(-jax.lax.log(u)), positive),
    ):
        same(actual(x), np.asarray(jax.jit(expected)(x)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["low", "high"])
def test_bernoulli(mode, dtype):
    equal("bernoulli", np.asarray(0.3, dtype), SHAPE, mode)
    equal("bernoulli", np.linspace(0, 1, 130).astype(dtype), SHAPE, mode)
    equal("bernoulli", np.linspace(0, 1, 130).astype(dtype))
    equal("bernoulli")


@pytest.mark.parametrize("dtype", ["int32", "int8", "float32", BF16, "uint8", "complex64"])
def test_rademacher(dtype):
    equal("rademacher", SHAPE, dtype)


# Integers and choices


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_randint(dtype):
    info = np.iinfo(dtype)
    equal("randint", SHAPE, 0, 100, dtype)
    equal("randint", SHAPE, 3, 1, dtype)
    equal("randint", SHAPE, np.arange(130) % 50, 100, dtype)
    if dtype != "uint32":
        equal("randint", SHAPE, int(info.min), int(info.max) + (info.bits < 32), dtype)
    if dtype == "uint32":
        equal("randint", SHAPE, np.uint32(0), np.uint32(2**32 - 1), dtype)


def test_wide_randint(x64):
    equal("randint", SHAPE, -(2**62), 2**62)
    equal("randint", SHAPE, 0, 2**32, "uint32")
    equal("randint", SHAPE, np.uint64(0), np.uint64(2**64 - 1), "uint64")


@pytest.mark.parametrize("n", [0, 1, 2, 5, 3000])
def test_permutation_of_a_range(n):
    equal("permutation", n)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_permutation_of_an_array(axis, independent):
    equal("permutation", np.arange(60.0, dtype=np.float32).reshape(3, 4, 5), axis, independent)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (0,)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("population", [50, np.arange(50) * 2])
def test_choice(population, replace, weighted, shape):
    p = np.linspace(1, 9, 50, dtype=np.float32)
    equal("choice", population, shape, replace, p / p.sum() if weighted else None)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_choice_along_an_axis(axis):
    x = np.arange(210).reshape(5, 6, 7)
    equal("choice", x, (2, 2), True, None, axis)
    equal("choice", x, (2, 2), False, None, axis)
    equal("choice", x, (2, 2), False, np.full(x.shape[axis], 0.1, np.float32), axis)


LOGITS = np.random.default_rng(1).standard_normal((6, 5, 7)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_categorical(axis):
    batch = tuple(np.delete(LOGITS.shape, axis))
    equal("categorical", LOGITS, axis)
    equal("categorical", LOGITS, axis, (100, *batch))
    equal("categorical", LOGITS[:1], axis, (2, *np.delete((6, 5, 7), axis)) if axis else None)
    equal("categorical", LOGITS, axis, (3, *batch), False)
    equal("categorical", LOGITS, axis, mode="high")


@pytest.mark.parametrize("dtype", FLOATS)
def test_categorical_of_other_dtypes(dtype):
    if dtype == "float16" and older_than(GUMBEL_HALF):
        pytest.skip(GUMBEL_HALF.what)
    equal("categorical", LOGITS.astype(dtype), shape=(200, 6, 5))


# Numbers belong to keys and places, not to how they are computed


def test_an_element_depends_on_its_place_alone():
    flat = ours("normal", (24,))
    for shape in ((6, 4), (2, 3, 4), (24, 1)):
        assert np.array_equal(ours("normal", shape).ravel(), flat)
    assert np.array_equal(ours("normal", (100,))[:24], flat)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: random.normal(key, (3, 2)),
        lambda key: random.randint(key, (5,), 0, 10),
        lambda key: random.permutation(key, 6),
        lambda key: random.permutation(key, mnp.arange(12.0).reshape(4, 3)),
        lambda key: random.categorical(key, mnp.zeros((2, 4))),
        lambda key: random.choice(key, 9, (2,), p=mnp.full(9, 1 / 9)),
        lambda key: random.split(key, 3),
        lambda key: random.fold_in(key, 3),
        lambda key: random.truncated_normal(key, -1.0, 1.0, (4,)),
    ],
)
def test_a_batch_of_keys_is_a_loop_over_keys(draw):
    keys = random.split(random.key(1), 4)
    batched = np.asarray(mw.vmap(draw)(keys))
    assert np.array_equal(batched, np.stack([np.asarray(draw(key)) for key in keys]))
    assert np.array_equal(batched, np.asarray(mw.jit(mw.vmap(draw))(keys)))


def test_keys_of_a_batch_of_seeds_and_steps():
    seeds = np.arange(5)
    assert np.array_equal(mw.vmap(random.key)(seeds), np.stack([np.asarray(random.key(int(n))) for n in seeds]))
    steps = mw.vmap(lambda n: random.fold_in(random.key(0), n))(seeds)
    assert np.array_equal(steps, np.stack([np.asarray(random.fold_in(random.key(0), int(n))) for n in seeds]))


def test_the_hash_does_not_depend_on_how_it_is_batched():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 6, 7), dtype=np.uint32)
    whole = threefry2x32(*words)
    assert all(y.shape == (6, 7) for y in whole)
    for place in np.ndindex(6, 7):
        one = threefry2x32(*(w[place] for w in words))
        assert [int(y) for y in one] == [int(y[place]) for y in whole]
    strided = threefry2x32(*(w.T for w in words))
    assert all(np.array_equal(s.T, y) for s, y in zip(strided, whole, strict=True))


def test_the_hash_on_another_array_library():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 5), dtype=np.uint32)
    for found, expected in zip(REGISTRY["threefry2x32"].evaluate(jnp, *words), threefry2x32(*words), strict=True):
        same(np.asarray(found), expected)


def test_places_beyond_one_word_are_counted_in_two(monkeypatch):
    expected = ours("bits", (5, 7))
    monkeypatch.setattr(random_keys, "PLACES_IN_A_WORD", 0)
    same(np.asarray(mw.jit(lambda key: random.bits(key, (5, 7)))(random.key(SEED))), expected)
    monkeypatch.undo()
    assert mw.eval_shape(lambda key: random.bits(key, (2**20, 2**20)), random.key(0)).shape == (2**20, 2**20)


def test_a_sample_is_a_program_that_can_be_printed():
    program = mw.make_program(lambda key: random.normal(key, (4, 3)))(random.key(0))
    assert mw.parse_program(str(program)) == program
    assert str(program).count("threefry2x32") == 1


# Derivatives go through parameters


def derivatives_match(our_function, their_function, *args):
    every = tuple(range(len(args)))
    mine = mw.grad(lambda *xs: mnp.sum(our_function(random.key(SEED), *xs) ** 2), argnums=every)(*args)
    yours = jax.grad(lambda *xs: jnp.sum(their_function(jax.random.key(SEED), *xs) ** 2), argnums=every)(*args)
    for a, e in zip(mine, yours, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=2e-5, atol=1e-5)


def test_derivatives_by_scale_and_bounds():
    row = np.linspace(0.5, 1.5, 5, dtype=np.float32)
    derivatives_match(
        lambda key, scale: random.normal(key, (3, 5)) * scale, lambda key, s: jax.random.normal(key, (3, 5)) * s, row
    )
    derivatives_match(
        lambda key, low, high: random.uniform(key, (3, 5), minval=low, maxval=high),
        lambda key, low, high: jax.random.uniform(key, (3, 5), minval=low, maxval=high),
        row,
        np.float32(3.0),
    )
    derivatives_match(
        lambda key, low, high: random.truncated_normal(key, low, high, (3, 5)),
        lambda key, low, high: jax.random.truncated_normal(key, low, high, (3, 5)),
        -row,
        row,
    )


# Errors

KEY = random.key(0)


def expect(function, what, why, fix):
    """The error of calling ``function``, which is one lambda on one line; that line must be named."""
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    line = function.__code__.co_firstlineno
    where = f"test_random_against_jax.py:{line}   {linecache.getline(__file__, line).strip()}"
    assert str(caught.value) == f"{what}\n  at:   {where}\n  why:  {why}\n  fix:  {fix}"


def test_what_is_not_a_key():
    why = "a key is an array of two uint32 words, u32[2]"
    expect(lambda: random.normal(0, (2,)), "normal cannot use 0 as a key.", why, "mw.random.key(0)")
    expect(lambda: random.split(mnp.zeros(2)), "split cannot use f32[2] as a key.", why, "key = mw.random.key(0)")
    expect(
        lambda: random.bits(mnp.zeros(3, "uint32")), "bits cannot use u32[3] as a key.", why, "key = mw.random.key(0)"
    )
    expect(
        lambda: random.normal(random.split(KEY, 3), (2,)),
        "normal takes one key, and this is an array of keys u32[3,2].",
        "one call of normal draws from one key",
        "mw.vmap(lambda key: mw.random.normal(key, …))(keys)",
    )


def test_bad_seeds():
    expect(
        lambda: random.key(1.5),
        "key cannot take a seed of type ~f32[].",
        "a seed is one integer",
        "one key: mw.random.key(0); one for each of several seeds: mw.vmap(mw.random.key)(seeds)",
    )
    expect(
        lambda: random.key(2**64 + 1),
        "key cannot take the seed 18446744073709551617.",
        "a seed has 64 bits",
        "mw.random.key(1)",
    )
    expect(
        lambda: random.key(0, impl="rbg"),
        "There is no random number generator 'rbg'.",
        "keys belong to threefry2x32, whose numbers do not depend on the layout of an array",
        "mw.random.key(seed)",
    )
    expect(
        lambda: random.fold_in(KEY, -1),
        "fold_in cannot take data=-1.",
        "data is a 32-bit unsigned integer",
        "mw.random.fold_in(key, 4294967295)",
    )


def test_bad_shapes():
    expect(
        lambda: random.normal(KEY, (3, -1)),
        "normal cannot take shape=(3, -1).",
        "a size cannot be negative",
        "shape=(3, 1)",
    )
    expect(
        lambda: random.uniform(KEY, (2,), minval=mnp.zeros((3, 1))),
        "uniform cannot spread minval f32[3,1] over shape (2,).",
        "the shape of the samples is one that every parameter broadcasts to",
        "shape=(3, 2)",
    )
    expect(
        lambda: random.truncated_normal(KEY, mnp.zeros(3), mnp.ones(4)),
        "truncated_normal cannot spread lower f32[3] and upper f32[4] over one shape.",
        "the shape of the samples is one that every parameter broadcasts to",
        "give the parameters one shape, or sizes of 1",
    )
    expect(
        lambda: random.categorical(KEY, mnp.zeros((3, 4)), shape=(5,)),
        "categorical cannot draw shape (5,) from logits f32[3,4] along axis 1.",
        "the shape ends in that of the logits without the axis, (3,)",
        "shape=(5, 3)",
    )


def test_bad_dtypes():
    expect(
        lambda: random.normal(KEY, (2,), "int32"),
        "normal cannot make numbers of dtype int32.",
        "normal makes f16, bf16, f32, f64, c64, c128",
        "dtype='float32'",
    )
    expect(
        lambda: random.bits(KEY, (2,), "int32"),
        "bits cannot make numbers of dtype int32.",
        "bits makes u8, u16, u32, u64",
        "dtype='uint32'",
    )
    expect(
        lambda: random.uniform(KEY, (2,), minval=1j),
        "uniform cannot take minval of type ~c64[].",
        "minval is compared with samples of dtype f32, which are real",
        "minval=minval.real",
    )
    expect(lambda: random.bernoulli(KEY, 1), "bernoulli cannot take p of type ~i32[].", "p is a probability", "p=1.0")
    expect(
        lambda: random.randint(KEY, (2,), 0, 2**32 - 1, "uint32"),
        "randint cannot take maxval=4294967295.",
        "it does not fit into int32",
        "maxval=np.uint32(4294967295)",
    )
    expect(
        lambda: random.categorical(KEY, mnp.arange(3)),
        "categorical cannot take logits of type i32[3].",
        "logits are logarithms of probabilities, one for each category along the axis",
        "logits=mnp.log(probabilities)",
    )


def test_bad_choices():
    expect(
        lambda: random.choice(KEY, 3, (5,), replace=False),
        "choice cannot draw 5 of 3 elements without replacement.",
        "without replacement each is drawn at most once",
        "replace=True, or a smaller shape",
    )
    expect(
        lambda: random.choice(KEY, 3, p=mnp.ones(4)),
        "choice cannot take p of type f32[4] for 3 elements.",
        "p has one probability for each element along the axis",
        "p=mnp.full(3, 0.333)",
    )
    expect(
        lambda: random.permutation(KEY, 1.5),
        "permutation cannot take x=1.5.",
        "x is an array with at least one dim, or an integer that stands for the numbers below it",
        "x=mnp.arange(8)",
    )
    expect(
        lambda: random.gumbel(KEY, mode="best"),
        "gumbel has no mode 'best'.",
        "the modes are 'low', 'high' and 'highest'",
        "mode='high'",
    )
