"""Keys that are elements of a dtype of their own: moved, split, mapped and looped over as JAX does, and on meshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as mjax


def one_step(p: Any, state: Any) -> Any:
    key, total = state
    key, now = p.random.split(key)
    return key, total + p.random.normal(now)


# Each is a function of the package, a key and six keys: numbers, or keys that are compared by their words.
CALLS = {
    "a key": lambda p, k, ks: k,
    "keys": lambda p, k, ks: ks,
    "reshape and transpose": lambda p, k, ks: ks.reshape(2, 3).T,
    "an index": lambda p, k, ks: ks[2],
    "a slice": lambda p, k, ks: ks[1:4],
    "an array of indices": lambda p, k, ks: ks[np.array([3, 1])],
    "concatenate": lambda p, k, ks: p.numpy.concatenate([ks, ks[:2]]),
    "stack": lambda p, k, ks: p.numpy.stack([ks[0], k]),
    "broadcast_to": lambda p, k, ks: p.numpy.broadcast_to(k, (2, 2)),
    "where": lambda p, k, ks: p.numpy.where(p.numpy.arange(6) > 2, ks, k),
    "expand_dims": lambda p, k, ks: p.numpy.expand_dims(ks, 0),
    "an update": lambda p, k, ks: ks.at[1].set(k),
    "dynamic_slice": lambda p, k, ks: p.lax.dynamic_slice(ks, (2,), (2,)),
    "split into a shape": lambda p, k, ks: p.random.split(k, (2, 3)),
    "fold_in": lambda p, k, ks: p.random.fold_in(k, 3),
    "fold_in mapped": lambda p, k, ks: p.vmap(lambda n: p.random.fold_in(k, n))(np.arange(3)),
    "clone": lambda p, k, ks: p.random.clone(k),
    "wrap_key_data": lambda p, k, ks: p.random.wrap_key_data(np.array([[1, 2], [3, 4]], "uint32")),
    "vmap": lambda p, k, ks: p.vmap(lambda k: p.random.normal(k, (2,)))(ks),
    "scan": lambda p, k, ks: p.lax.scan(lambda c, k: (c + p.random.uniform(k), k), 0.0, ks)[0],
    "keys out of a scan": lambda p, k, ks: p.lax.scan(lambda c, k: (c, p.random.split(k)), 0.0, ks)[1],
    "fori_loop": lambda p, k, ks: p.lax.fori_loop(0, 4, lambda n, s: one_step(p, s), (k, 0.0))[1],
    "cond": lambda p, k, ks: p.lax.cond(True, lambda k: p.random.uniform(k), lambda k: 0.0, k),
    "jit": lambda p, k, ks: p.jit(lambda k: p.random.split(k, 3))(k),
    "gamma": lambda p, k, ks: p.random.gamma(k, 2.0, (3,)),
    "permutation": lambda p, k, ks: p.random.permutation(k, 5),
    "grad": lambda p, k, ks: p.grad(lambda x: x * p.random.normal(k))(2.0),
    "checkpoint": lambda p, k, ks: p.grad(p.checkpoint(lambda x: p.numpy.sin(x * p.random.normal(k))))(2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_keys_do_as_those_of_jax(name: str) -> None:
    found = []
    for p in (jax, mjax):
        key = p.random.key(3)
        x = CALLS[name](p, key, p.random.split(key, 6))
        is_key = p.numpy.issubdtype(x.dtype, p.dtypes.prng_key)
        found.append((x.shape, is_key, np.asarray(p.random.key_data(x) if is_key else x)))
    (their_shape, theirs_are_keys, theirs), (our_shape, ours_are_keys, ours) = found
    assert (our_shape, ours_are_keys) == (their_shape, theirs_are_keys)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_keys_on_a_mesh_draw_what_they_draw_alone() -> None:
    keys = mjax.random.split(mjax.random.key(0), 8)
    draw = mjax.vmap(lambda key: mjax.random.normal(key, (3,)))
    alone = np.asarray(draw(keys))
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    placed = mw.device_put(keys, mw.NamedSharding(mesh, mw.P("x")))
    assert placed.addressable_shards[0].data.shape == (4,)
    np.testing.assert_array_equal(mjax.jit(draw)(placed), alone)
    mapped = mjax.shard_map(draw, mesh=mesh, in_specs=mw.P(("x", "y")), out_specs=mw.P(("x", "y")))
    np.testing.assert_array_equal(mapped(keys), alone)


def test_a_key_of_words_is_no_key_dtype() -> None:
    assert not mjax.numpy.issubdtype(mjax.random.PRNGKey(0).dtype, mjax.dtypes.prng_key)
    assert mjax.random.key_impl(mjax.random.key(0)) == jax.random.key_impl(jax.random.key(0))
    assert mjax.random.key_dtype() == mjax.random.key(0).dtype


def test_a_program_of_keys_is_read_from_its_text() -> None:
    program = mw.make_program(lambda key: mjax.random.split(key, 3))(mjax.random.key(0))
    assert "key[3]" in str(program)
    assert str(mw.parse_program(str(program))) == str(program)


def test_keys_are_not_computed_with() -> None:
    keys = mjax.random.split(mjax.random.key(0), 2)
    for call, what, fix in (
        (lambda: keys + 1, "There is no dtype for", "random.key_data(keys), their words"),
        (lambda: keys.astype("float32"), "convert cannot take key[2].", "random.key_data(keys), their words"),
        (lambda: mjax.numpy.sort(keys), "sort cannot take key[2].", "sort by random.bits(key), which has"),
        (
            lambda: mjax.random.normal(keys),
            "normal takes one key, and this is an array of keys key[2].",
            "mw.vmap(lambda key: mw.random.normal(key, …))(keys)",
        ),
    ):
        with pytest.raises(mw.MeshwrightError) as error:
            call()
        assert error.value.what.startswith(what) and error.value.fix == fix


@pytest.mark.parametrize("engine", ["xla", "xla-stacked"])
def test_keys_go_into_programs_on_xla_and_come_out(engine: str) -> None:
    mesh = mw.make_mesh((4,), ("data",))
    rows = mw.NamedSharding(mesh, mw.P("data"))

    def step(state: dict[str, Any]) -> dict[str, Any]:
        key, own = mjax.random.split(state["key"])
        return {"key": key, "w": state["w"] + mjax.random.normal(own, (4,))}

    jitted, found = mw.jit(step, engine=engine, donate_argnums=0), {"key": mjax.random.key(1), "w": mw.numpy.zeros(4)}
    expected = {"key": mjax.random.key(1), "w": mw.numpy.zeros(4)}
    for _ in range(3):
        found, expected = jitted(found), step(expected)
    same_words(found["key"], expected["key"])
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-6)
    for count in (8, 7):  # in equal parts, and in others
        keys = mw.device_put(mjax.random.split(mjax.random.key(0), count), rows)
        drawn, turned = mw.jit(lambda keys: (mw.vmap(mjax.random.normal)(keys), keys[::-1]), engine=engine)(keys)
        np.testing.assert_allclose(drawn, mw.vmap(mjax.random.normal)(keys), rtol=1e-6)
        same_words(turned, keys[::-1])


def test_the_type_of_a_key_is_said_as_jax_says_it() -> None:
    keys = mjax.random.split(mjax.random.key(0), 3)
    assert str(mw.typeof(keys)) == str(jax.typeof(jax.random.split(jax.random.key(0), 3))) == "key<fry>[3]"


def test_keys_are_saved(tmp_path: Path) -> None:
    mesh = mw.make_mesh((4,), ("data",))
    rows = mw.NamedSharding(mesh, mw.P("data"))
    keys = mjax.random.split(mjax.random.key(0), 6)
    for engine in ("numpy", "xla"):
        try:
            mw.set_engine(engine)
            saved = {"one": keys[0], "all": mw.device_put(keys, rows)}
            mw.save(tmp_path / engine, saved)
            found = mw.load(tmp_path / engine, like=saved)
            assert found["all"].sharding == rows
        finally:
            mw.set_engine("numpy")
        same_words(found["one"], keys[0])
        same_words(found["all"], keys)
    with pytest.raises(mw.MeshwrightError, match=r"'all'.*key\[6\].*key\[5\]|key\[5\].*key\[6\]"):
        mw.load(tmp_path / "numpy", like={"one": keys[0], "all": keys[:5]})


def same_words(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(mjax.random.key_data(found), mjax.random.key_data(expected))


def test_keys_are_not_given_to_functions_of_jax() -> None:
    compiled = mw.jit(lambda key: mjax.random.normal(key)).lower(mjax.random.key(0)).compile()
    with pytest.raises(mw.MeshwrightError) as error:
        mw.interop.jax.to_jax(compiled)
    assert str(error.value).splitlines()[0] == (
        "to_jax is given a program that takes or returns random keys of their own dtype."
    )
    assert error.value.fix == "random.key_data(keys) outside, and random.wrap_key_data(words) inside"
    inside = mw.jit(lambda words: mjax.random.normal(mjax.random.wrap_key_data(words)))
    taken = mw.interop.jax.to_jax(inside.lower(mjax.random.PRNGKey(0)).compile())
    np.testing.assert_allclose(taken(np.zeros(2, np.uint32)), mjax.random.normal(mjax.random.key(0)), rtol=1e-6)
