"""Where arrays are and when functions are traced: ``meshwright.jax`` and JAX do the same, each with the same text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import numpy as np
import pytest

import meshwright.jax as ours

X = np.arange(64, dtype=np.float32).reshape(8, 8)


def mesh_of(j: Any, kind: str) -> Any:
    axis = getattr(j.sharding.AxisType, kind)
    return j.make_mesh((2, 4), ("x", "y"), axis_types=(axis, axis))


def place(x: Any) -> Any:
    """Where an array is: the spec without what says nothing, or the device; and whether somebody put it there."""
    spec = getattr(x.sharding, "spec", None)
    if spec is None:
        return [device.id for device in x.devices()], x.committed
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries), dict(x.sharding.mesh.shape), x.committed


def outcome(f: Callable[[], Any]) -> Any:
    """Where the result of a call is, or that it is refused."""
    try:
        return place(f())
    except Exception:
        return "refused"


EAGER: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda j, x: x + 1,
    "twice": lambda j, x: x * x,
    "sin": lambda j, x: j.numpy.sin(x),
    "sum of rows": lambda j, x: x.sum(0),
    "sum": lambda j, x: x.sum(),
    "matmul": lambda j, x: x @ x,
    "transposed": lambda j, x: x.T,
    "reshaped": lambda j, x: x.reshape(64),
    "a row": lambda j, x: x[0],
    "with numpy": lambda j, x: x + np.ones((8, 8), np.float32),
    "with another": lambda j, x: x + j.numpy.ones((8, 8)),
    "joined": lambda j, x: j.numpy.concatenate([x, x]),
    "cumsum": lambda j, x: j.numpy.cumsum(x, 0),
    "compared": lambda j, x: x > 1,
    "where": lambda j, x: j.numpy.where(x > 1, x, 0),
    "set": lambda j, x: x.at[0].set(0),
    "einsum": lambda j, x: j.numpy.einsum("ij,jk->ik", x, x),
    "gradient": lambda j, x: j.grad(lambda x: (x * x).sum())(x),
    "vmap": lambda j, x: j.vmap(j.numpy.sin)(x),
    "converted": lambda j, x: x.astype("bfloat16"),
    "zeros like it": lambda j, x: j.numpy.zeros_like(x),
    "broadcast": lambda j, x: j.numpy.broadcast_to(x[None], (2, 8, 8)),
    "a row by iteration": lambda j, x: next(iter(x)),
}


@pytest.mark.parametrize("name", EAGER)
def test_results_of_eager_ops_stay_on_their_mesh(name: str):
    def of(j: Any) -> Any:
        return place(EAGER[name](j, j.device_put(X, j.NamedSharding(mesh_of(j, "Auto"), j.P("x", "y")))))

    assert of(ours) == of(jax)


def test_arrays_on_one_device_and_programs_of_them():
    def of(j: Any) -> Any:
        first, second = (j.device_put(np.ones(4, np.float32), j.devices()[n]) for n in (1, 2))
        x = j.device_put(X, j.NamedSharding(mesh_of(j, "Auto"), j.P("x")))
        split = j.NamedSharding(mesh_of(j, "Auto"), j.P(("x", "y")))
        calls = [
            lambda: first + 1,
            lambda: j.jit(lambda x: x * 2)(first),
            lambda: first + j.numpy.ones(4),
            lambda: j.numpy.ones(3),
            lambda: first + second,
            lambda: j.jit(lambda a, b: a + b)(first, second),
            lambda: x.sum() + first,
            lambda: j.jit(lambda a, b: a.sum() + b)(x, first),
            lambda: j.jit(lambda x: x, in_shardings=split)(first),
            lambda: j.jit(lambda x: x, in_shardings=split)(x),
            lambda: j.jit(lambda x: x, in_shardings=x.sharding)(x),
            lambda: j.jit(lambda x: x, in_shardings=split)(X),
        ]
        return [outcome(call) for call in calls]

    ours.config.update("jax_num_cpu_devices", 8)
    assert of(ours) == of(jax)


def test_an_argument_that_is_elsewhere_is_named_with_its_place():
    mesh = mesh_of(ours, "Auto")
    x = ours.device_put(X, ours.NamedSharding(mesh, ours.P("x")))
    f = ours.jit(lambda x: x, in_shardings=ours.NamedSharding(mesh, ours.P(None, "y")))
    with pytest.raises(ValueError) as error:
        f(x)
    assert "\n".join(line for line in str(error.value).splitlines() if "at:" not in line) == (
        "jit's in_shardings say mw.P(None, 'y') of an argument that is placed as mw.P('x',).\n"
        "  why:  an argument that was put somewhere stays there, and a call does not move it\n"
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, mw.P(None, 'y'))) before the call, or in_shardings of "
        "mw.NamedSharding(mesh, mw.P('x',))"
    )
    first, _, second = str(error.value).partition("fix:  ")[2].partition(" before the call, or in_shardings of ")
    names = {"mw": ours, "mesh": mesh, "x": x}
    assert place(f(eval(first, names)))[0] == (None, "y")
    assert place(ours.jit(lambda x: x, in_shardings=eval(second, names))(x))[0] == ("x",)


def test_new_arrays_under_an_explicit_mesh_are_on_it():
    def of(j: Any) -> Any:
        with j.set_mesh(mesh_of(j, "Explicit")):
            n = j.numpy
            made = [
                n.ones((8, 8)), n.arange(8), n.array([1.0, 2.0]), n.asarray(np.ones(3)), n.eye(3), n.add(1, 2),
                n.linspace(0, 1, 5), j.random.normal(j.random.PRNGKey(0), (8,)), j.jit(lambda: n.ones(3))(),
            ]  # fmt: skip
            return [place(x) for x in made]

    assert of(ours) == of(jax)


def test_vmap_of_shard_map_keeps_the_sharding_of_the_batch():
    def of(j: Any) -> Any:
        with j.set_mesh(mesh_of(j, "Explicit")):
            b = j.device_put(X.reshape(2, 4, 8), j.P("x", "y"))
            c = j.device_put(X[:4], j.P("y"))
            one = j.shard_map(lambda a: a * 2, in_specs=j.P("y"), out_specs=j.P("y"), axis_names={"y"})
            both = j.shard_map(lambda a: a * 2, in_specs=j.P("y"), out_specs=j.P("y"))
            summed = j.shard_map(
                lambda a, c: j.lax.psum((a * c).sum(0), "y"), in_specs=(j.P("y"), j.P("y")), out_specs=j.P()
            )
            batched = j.vmap(summed, in_axes=(0, None))
            found = [j.vmap(one)(b), j.jit(j.vmap(both))(b), j.jit(j.vmap(both, spmd_axis_name="x"))(b), batched(b, c)]
            found += j.jit(j.grad(lambda b, c: batched(b, c).sum(), argnums=(0, 1)))(b, c)
            return [place(x) for x in found], [np.asarray(x).tolist() for x in found]

    assert of(ours) == of(jax)


INDEXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a place along a split dim": lambda j, a, b: b[0],
    "a place beside": lambda j, a, b: a[0],
    "places along a split dim": lambda j, a, b: b[np.array([0, 1])],
    "places beside": lambda j, a, b: a[np.array([0, 1])],
    "both": lambda j, a, b: a[np.array([0, 1]), np.array([0, 1])],
    "a traced place": lambda j, a, b: j.jit(lambda b, i: b[i])(b, 0),
    "as asked": lambda j, a, b: b.at[np.array([0, 1])].get(out_sharding=j.P()),
    "set": lambda j, a, b: b.at[np.array([0, 1])].set(0.0),
    "set beside": lambda j, a, b: a.at[np.array([0, 1])].set(0.0),
    "set as asked": lambda j, a, b: b.at[np.array([0, 1])].set(0.0, out_sharding=j.P("x")),
    "added at a traced place": lambda j, a, b: j.jit(lambda b, i: b.at[i].add(1.0))(b, 0),
    "take": lambda j, a, b: j.numpy.take(b, np.array([0, 1]), axis=0),
    "take beside": lambda j, a, b: j.numpy.take(a, np.array([0, 1]), axis=0),
    "take_along_axis": lambda j, a, b: j.numpy.take_along_axis(a, np.zeros((8, 1), int), axis=1),
    "gradient of what is asked": lambda j, a, b: j.grad(lambda b: b.at[np.array([0, 1])].get(out_sharding=j.P()).sum())(
        b
    ),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indexing_along_a_split_dim_asks_how_the_result_is_laid_out(name: str):
    def of(j: Any) -> Any:
        with j.set_mesh(mesh_of(j, "Explicit")):
            a, b = j.device_put(X, j.P(None, "y")), j.device_put(X, j.P("x", None))
            return outcome(lambda: INDEXED[name](j, a, b))

    assert of(ours) == of(jax)


@pytest.mark.parametrize("image", [(), ("x",), (None, "x"), ("x", "y"), (None, None, "x")])
@pytest.mark.parametrize("kernel", [(), ("y",), (None, "y")])
def test_a_convolution_along_a_split_dim_asks_how_the_result_is_laid_out(image: Any, kernel: Any):
    def of(j: Any) -> Any:
        with j.set_mesh(mesh_of(j, "Explicit")):
            x = j.device_put(np.ones((8, 4, 8, 8), np.float32), j.P(*image))
            w = j.device_put(np.ones((8, 4, 4, 4), np.float32), j.P(*kernel))
            conv = lambda x, w, **asked: j.lax.conv_general_dilated(x, w, (1, 1), "SAME", **asked)
            return outcome(lambda: conv(x, w)), outcome(
                lambda: conv(x, w, out_sharding=j.P(image[0] if image else None))
            )

    assert of(ours) == of(jax)


def test_the_error_of_an_index_says_what_to_write():
    with ours.set_mesh(mesh_of(ours, "Explicit")):
        x = ours.device_put(X, ours.P("x"))
        with pytest.raises(ValueError) as error:
            x[0]
    assert "\n".join(line for line in str(error.value).splitlines() if "at:" not in line) == (
        "The layout of x[…] of f32[8@x,8] is ambiguous.\n"
        "  why:  dim 0, along which it is indexed, is split over x\n"
        "  fix:  x.at[…].get(…, out_sharding=mw.P(…))"
    )


def kinds_of(values: Any) -> list[str]:
    return [type(x).__mro__[-2].__name__ if isinstance(x, int | float) else "array" for x in values]


def test_numbers_of_python_stay_numbers_in_residuals():
    def of(j: Any) -> Any:
        seen: list[Any] = []

        @j.custom_vjp
        def f(x: Any, n: Any) -> Any:
            return x * n

        def forward(x: Any, n: Any) -> Any:
            return x * n, (n, x.shape[0], x, 2.5)

        def backward(kept: Any, ct: Any) -> Any:
            seen.append(kinds_of(kept))
            return ct * kept[0] + j.numpy.zeros(kept[1]), None

        f.defvjp(forward, backward)
        x = j.numpy.ones(3)
        g = j.grad(lambda x: f(x, 4).sum())
        out = [g(x), j.jit(g)(x), j.vmap(g)(j.numpy.ones((2, 3))), j.vjp(lambda x: f(x, 4), x)[1](x)[0]]
        out += [j.grad(j.checkpoint(lambda x: f(x, 4).sum()))(x)]
        out += [j.grad(lambda x: j.lax.scan(lambda c, _: (f(c, 4), None), x, None, length=2)[0].sum())(x)]
        return [np.asarray(x).tolist() for x in out], {str(one) for one in seen}

    assert of(ours) == of(jax)


def test_checkpoint_traces_a_function_once():
    def of(j: Any) -> Any:
        count = 0

        def f(x: Any) -> Any:
            nonlocal count
            count += 1
            return j.numpy.sin(x).sum()

        kept, found = j.checkpoint(f), []
        uses: list[Callable[[Any], Any]] = [
            kept, kept, j.grad(kept), j.grad(kept), j.grad(j.checkpoint(f)), j.jit(lambda x: kept(x) + kept(x)),
        ]  # fmt: skip
        for use in uses:
            use(j.numpy.ones(3))
            found.append(count)
        kept(j.numpy.ones(4))
        return [*found, count]

    assert of(ours) == of(jax)


def test_checkpoint_traces_again_what_closes_over_traced_values_or_has_other_static_arguments():
    @ours.jit
    def f(x: Any, y: Any) -> Any:
        inner = ours.checkpoint(lambda x: x * y)
        return inner(x) + ours.checkpoint(lambda x, n: x**n, static_argnums=1)(x, 2)

    assert [float(f(2.0, y)) for y in (3.0, 5.0)] == [10.0, 14.0]
    power = ours.checkpoint(lambda x, n: x**n, static_argnums=1)
    assert [float(power(3.0, n)) for n in (1, 2, 3)] == [3.0, 9.0, 27.0]


def test_rows_of_a_long_array_are_its_elements():
    rows = list(ours.numpy.arange(20_000))
    assert len(rows) == 20_000 and [int(x) for x in rows[::5000]] == [0, 5000, 10_000, 15_000]
