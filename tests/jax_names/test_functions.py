"""Functions of ``meshwright.jax`` give what JAX's give: each is called in both, with the same text."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.api_util
import jax.experimental
import jax.extend.linear_util
import jax.interpreters.partial_eval
import jax.monitoring
import jax.scipy.stats
import numpy as np
import pytest

import meshwright.jax as ours

X = np.arange(24.0, dtype=np.float32).reshape(8, 3) / 5
W = np.arange(6.0, dtype=np.float32).reshape(3, 2) / 7


def mesh(j: Any, explicit: bool = False) -> Any:
    kind = j.sharding.AxisType.Explicit if explicit else j.sharding.AxisType.Auto
    return j.make_mesh((4, 2), ("i", "j"), axis_types=(kind, kind))


def mean_of_gradients(j: Any) -> Any:
    """A step written as for pmap: the mean is taken of the loss and of the gradient, in a shard_map without checks."""

    def step(w: Any, x: Any) -> Any:
        loss, g = j.value_and_grad(lambda w: j.lax.pmean(j.numpy.sum(j.numpy.sin(x @ w)), "i"))(w)
        return loss, j.lax.pmean(g, "i"), j.lax.psum(x.sum(), ("i", "j"))

    specs = (j.P(), j.P("i"))
    return j.jit(j.shard_map(step, mesh=mesh(j), in_specs=specs, out_specs=j.P(), check_vma=False))(W, X)


def through_unchecked(j: Any) -> Any:
    f = j.shard_map(
        lambda w, x: j.lax.all_gather(j.numpy.sin(x @ w), "i", tiled=True), mesh=mesh(j),
        in_specs=(j.P(), j.P("i")), out_specs=j.P(), check_vma=False,
    )  # fmt: skip
    return j.jit(j.grad(lambda w, x: (f(w, x) ** 2).sum(), argnums=(0, 1)))(W, X)


def unchecked_gradients(j: Any) -> Any:
    """Gradients through shard_maps without checks, whose results are said to be the same on all devices."""
    lax, m, x = j.lax, mesh(j), X[:, :2]
    cases = [
        (lambda x, w: lax.psum((x @ w).sum(), ("i", "j")), (j.P(("i", "j")), j.P()), j.P()),
        (lambda x, w: j.numpy.sin(w).sum(), (j.P("i"), j.P()), j.P()),
        (lambda x, w: j.numpy.sin(w) * lax.psum(x.sum(), "i"), (j.P("i"), j.P()), j.P()),
        (lambda x, w: lax.pmean(j.numpy.tanh(x @ w).sum(0), ("i", "j")), (j.P("i", "j"), j.P("j")), j.P()),
        (lambda x, w: (lax.psum(x @ w, "j"), lax.psum((x**2).sum(), ("i", "j"))), (j.P("i", "j"), j.P("j")),
         (j.P("i"), j.P())),
        (lambda x, w: lax.psum_scatter(x @ w, "j", scatter_dimension=0, tiled=True), (j.P("i", "j"), j.P("j")),
         j.P(("i", "j"))),
    ]  # fmt: skip
    found = []
    for f, in_specs, out_specs in cases:
        g = j.shard_map(f, mesh=m, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        loss = lambda x, w, g=g: sum(j.numpy.cos(out / 9).sum() for out in j.tree.leaves(g(x, w)))
        found.append(j.jit(j.value_and_grad(loss, argnums=(0, 1)))(x, W[:2]))
    return found


def pmapped(j: Any) -> Any:
    def step(w: Any, x: Any, *, scale: Any) -> Any:
        g = j.grad(lambda w: j.numpy.sum(j.numpy.sin(x @ w)))(w)
        return j.lax.pmean(g, "d") * scale, x - j.lax.psum(x, "d")

    f = j.pmap(step, axis_name="d", in_axes=(None, 0), out_axes=(None, 1))
    return f(W, X.reshape(4, 2, 3), scale=np.ones(4, np.float32))


def smapped(j: Any) -> Any:
    with j.set_mesh(mesh(j, explicit=True)):
        x = j.device_put(X, j.P("i"))
        f = j.smap(lambda x: x - j.lax.pmean(x.mean(), "i"), in_axes=0, out_axes=0, axis_name="i")
        return f(x)


def inferred(j: Any) -> Any:
    with j.set_mesh(mesh(j, explicit=True)):
        x = j.device_put(X, j.P("i"))
        return j.jit(j.shard_map(lambda x: j.lax.psum(x.sum(0), "i"), out_specs=j.P()))(x)


def automatic(j: Any) -> Any:
    with j.set_mesh(mesh(j, explicit=True)):
        x = j.device_put(X, j.P("i"))
        f = j.sharding.auto_axes(lambda x: x[np.array([5, 1, 1, 0])], out_sharding=j.P("i"))
        return f(x), j.jit(f)(x)


def typed(j: Any) -> Any:
    found = []
    with j.set_mesh(mesh(j, explicit=True)):
        x = j.device_put(X, j.P("i"))

        @j.jit
        def f(x: Any) -> Any:
            t = j.typeof(x.sum(1))
            found.append((tuple(t.sharding.spec), t.shape, str(t.dtype)))
            found.append((dict(t.sharding.mesh.shape), isinstance(x, j.Array), isinstance(x, j.core.Tracer)))
            return x

        f(x)
        t = j.typeof(x)
        found.append((tuple(t.sharding.spec), dict(t.sharding.mesh.shape)))
    t = j.typeof(j.numpy.ones((2, 3)))
    return [*found, (tuple(t.sharding.spec), t.ndim, t.weak_type)]


def printed(j: Any) -> Any:
    seen: list[float] = []

    @j.jit
    def f(x: Any) -> Any:
        j.debug.callback(lambda x: seen.append(float(np.sum(x))), x)
        return j.pure_callback(lambda x: np.sort(np.asarray(x)), j.ShapeDtypeStruct((3,), np.float32), x) * 2

    out = [f(X[1]), j.vmap(f)(X[:2]) if j is ours else np.stack([np.asarray(f(x)) for x in X[:2]])]
    j.effects_barrier()
    return out, seen


def made(j: Any) -> Any:
    place = j.NamedSharding(mesh(j), j.P("i", None))
    x = j.make_array_from_callback((8, 3), place, lambda index: X[index])
    parts = [shard.data for shard in x.addressable_shards]
    y = j.make_array_from_single_device_arrays((8, 3), place, parts)
    return x, y, j.make_array_from_process_local_data(place, X), x.sharding.spec == y.sharding.spec


def derivatives(j: Any) -> Any:
    f = lambda x, n: ((x * n).sum(), x)
    g, aux = j.grad(f, argnums=(0, 1), has_aux=True, allow_int=True)(X, np.arange(3))
    jac, more = j.jacrev(lambda x: (x**2, x + 1), has_aux=True)(X[0])
    forward, again = j.jacfwd(lambda x: (x**2, x + 1), has_aux=True)(X[0])
    out, push, third = j.linearize(lambda x: (x**2, 2 * x), X[0], has_aux=True)
    back = j.vjp(lambda x, n: x * n, X[0], np.arange(3))[1](X[1])
    dtypes = [str(g[1].dtype), str(back[1].dtype), g[1].shape, back[1].shape]
    return g[0], aux, jac, more, forward, again, out, push(X[1]), third, back[0], dtypes


def renamed(j: Any) -> Any:
    @j.named_call
    def inner(x: Any) -> Any:
        with j.named_scope("scope"):
            return x * 2

    doubled = j.custom_gradient(lambda x: (x * x, lambda ct: (10.0 * x * ct,)))
    kept = j.checkpoint(lambda x, n: x**n, static_argnums=1, policy=j.checkpoint_policies.dots_saveable)
    with j.disable_jit():
        seen = j.jit(lambda x: float(x.sum()) + x)(X[0])
    traced = j.jit(lambda x: {"a": x @ x.T}).trace(X)
    return [
        inner(X), j.grad(doubled)(3.0), j.grad(lambda x: kept(x, 3).sum())(X), seen,
        traced.out_info["a"].shape, j.eval_shape(lambda x: x.sum(0), j.ShapeDtypeStruct((4, 2), np.float32)).shape,
    ]  # fmt: skip


def trees(j: Any) -> Any:
    tree = {"b": [1, (2, None)], "a": {"c": 3}}
    u = j.tree_util
    return [
        [(u.keystr(path), leaf) for path, leaf in j.tree.leaves_with_path(tree)],
        u.tree_map_with_path(lambda path, x: u.keystr(path, simple=True, separator="/") + str(x), tree),
        u.tree_reduce(lambda a, b: a + b, tree, 10), u.tree_all([True, [False]]), u.all_leaves([1, 2]),
        j.tree.leaves([None, 1], is_leaf=lambda x: x is None), u.tree_structure(tree).num_leaves,
        u.treedef_is_leaf(u.tree_structure(1)), len(u.treedef_children(u.tree_structure(tree))),
        j.tree.transpose(j.tree.structure([0, 0]), j.tree.structure({"a": 0}), [{"a": 1}, {"a": 2}]),
        u.tree_broadcast([1, 2], [0, (0, 0)]), u.Partial(max, 3)(5),
        j.flatten_util.ravel_pytree({"a": X, "b": np.float32(2)})[0],
    ]  # fmt: skip


def small_names(j: Any) -> Any:
    u = j.tree_util
    tree = {"b": [1, 2], "a": (3, None)}
    ref = j.new_ref(X[0])
    ref[1] = 7.0
    struct = j.ShapeDtypeStruct((2, 3), np.float32)
    like = j.ShapeDtypeStruct.like(j.numpy.ones((4, 2), np.int32))
    heard: list[Any] = []
    j.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: heard.append((event, seconds)))
    j.monitoring.record_event_duration_secs("/meshwright/test", 1.5)
    return [
        u.flatten_one_level(tree), u.flatten_one_level([5, 6])[0],
        [(str(key), child) for key, child in u.flatten_one_level_with_keys(tree)[0]],
        [u.is_tree_node(kind) for kind in (dict, list, tuple, int, type(None))], u.default_registry.is_node(set),
        u.tree_reduce(lambda a, b: a + b, tree, initializer=10), j.tree.static(default=3).metadata["static"],
        j.freeze(ref), (struct.update(shape=(4,)).shape, struct.weak_type, like.shape, str(like.dtype)),
        ("/meshwright/test", 1.5) in heard,
    ]  # fmt: skip


def partly_known(j: Any) -> Any:
    """A function run on what is known, as flax does to make parameters that scans share."""
    pe, lu = j.interpreters.partial_eval, j.extend.linear_util
    args = [pe.PartialVal.known(np.float32(2)), pe.PartialVal.unknown(j.core.ShapedArray((3,), np.float32))]
    info = j.api_util.debug_info("test", len, (), {})
    flat, out_tree = j.api_util.flatten_fun_nokwargs(
        lu.wrap_init(lambda x, y: {"a": x * 3, "b": (y * x, y.sum())}, debug_info=info), j.tree.structure((0, 0))
    )
    _, outs, _ = pe.trace_to_jaxpr_nounits(flat, args)
    known = [one.is_known() for one in outs]
    return known, float(outs[0].get_known()), outs[1][0].shape, outs[2][0].shape, out_tree().num_leaves


def normal_distribution(j: Any) -> Any:
    n, q = j.scipy.stats.norm, np.array([0.1, 0.5, 0.9], np.float32)
    x = X - 2
    shares = [f(x, 0.5, 2.0) for f in (n.logpdf, n.pdf, n.cdf, n.sf)]
    return [*shares, n.ppf(q, 0.5, 2.0), n.isf(q), n.cdf(1.0), j.grad(lambda x: n.cdf(x).sum())(x)]


def newest(j: Any) -> Any:
    """What JAX has since 0.12."""
    jnp, lax, erfcinv = j.numpy, j.lax, j.scipy.special.erfcinv
    x = np.array([3.0, 1.0, 1.0, -np.inf, 3.0, np.nan], np.float32)
    rows = np.array([[3, 1, 2], [0, 5, 4]])
    y = np.array([1e-30, 0.1, 0.49, 0.5, 0.7, 1, 1.4, 1.9], np.float32)
    ends = np.array([0, 2, 3, np.nan], np.float32)
    powers = lambda x: lax.polynomial(x, [1.0, x, 3.0])
    bounded = jnp.minmax(rows, 1, keepdims=True, where=rows > 1, initial=(7, 2))
    return [
        jnp.top_k(x, 4), jnp.top_k(x, 4, mode="smallest"), jnp.top_k(rows, 1, axis=0, mode="smallest"),
        j.grad(lambda x: jnp.top_k(x, 2, mode="smallest")[0].sum())(x[:3]), lax.top_k(rows, 2, is_stable=False),
        jnp.minmax(rows), bounded, jnp.lexsort(tuple(rows), batch_size=2), jnp.histogram(rows, out_sharding=None),
        powers(X), j.grad(powers)(2.0), lax.polynomial(X, [W.sum(1)[None], 2.0, X[:, :1]]), lax.polynomial(2.0, [1.0]),
        lax.log2(X + 1), j.grad(lax.log2)(3.0), lax.erfc(X, accuracy=lax.AccuracyMode.DEFAULT),
        lax.one_minus_square(X), j.grad(lax.one_minus_square)(1e-30) * 1e30, lax.reduce_max(X, (0,), out_sharding=None),
        jnp.log(erfcinv(y) + 2), j.vmap(j.grad(erfcinv))(y[1:]), jnp.log(-j.vmap(j.grad(erfcinv))(y)), erfcinv(ends),
        j.random.Key(j.random.PRNGKey(1)), j.nn.one_hot(rows, 6, out_sharding=None),
    ]  # fmt: skip


CALLS: dict[str, Callable[[Any], Any]] = {
    one.__name__: one
    for one in (
        mean_of_gradients, through_unchecked, unchecked_gradients, pmapped, smapped, inferred, automatic, typed,
        printed, made, derivatives, renamed, trees, small_names, partly_known, normal_distribution,
        *((newest,) if jax.__version_info__[:2] >= (0, 12) else ()),
    )
}  # fmt: skip


def same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list | tuple | dict):
        assert len(actual) == len(expected)
        for key in sorted(expected) if isinstance(expected, dict) else range(len(expected)):
            same(actual[key], expected[key])
    elif isinstance(expected, np.ndarray | jax.Array | float) and not isinstance(expected, bool):
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5)
    else:
        assert actual == expected


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_that_of_jax_gives(name: str):
    import jax.flatten_util

    same(CALLS[name](ours), CALLS[name](jax))


def test_what_nothing_stands_in_for_is_refused_by_name():
    with pytest.raises(
        AttributeError, match=r"^jax\.extend\.core\.Primitive is not part of meshwright\.jax, which stands"
    ):
        ours.extend.core.Primitive  # noqa: B018
    with pytest.raises(ours.errors.JaxRuntimeError) as error:
        from meshwright.jax.experimental.hijax import HiPrimitive

        HiPrimitive("new_variable").bind(1.0)
    assert "\n".join(line for line in str(error.value).splitlines() if "at:" not in line) == (
        "The op new_variable of jax.experimental.hijax has nothing that stands in for it here.\n"
        "  why:  the types and ops of programs are Meshwright's own, and values are arrays\n"
        "  fix:  variables without hijax=True, which are containers of arrays"
    )


def test_collectives_have_the_defaults_of_jax():
    def each(j: Any) -> Any:
        def f(x: Any) -> Any:
            whole = j.lax.all_gather(x, "i")
            part = j.lax.psum_scatter(whole, "i")
            return whole.reshape(-1), part, j.lax.all_to_all(whole, "i", 0, 1)

        names = SimpleNamespace(x=j.P("i"))
        m = j.make_mesh((4,), ("i",), axis_types=(j.sharding.AxisType.Auto,))
        return j.jit(j.shard_map(f, mesh=m, in_specs=names.x, out_specs=(j.P("i"), j.P("i"), j.P("i"))))(X)

    same(each(ours), each(jax))
    assert ours.make_mesh((2,), ("x",)).axis_types == (ours.sharding.AxisType.Explicit,)
