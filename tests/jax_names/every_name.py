"""Uses, one by one, the names that JAX code is written with, and prints what each gives as a line of JSON.

It is run by JAX and by ``meshwright run-jax``, and knows neither: ``python every_name.py [NAME …]``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import operator
import sys
import warnings

import jax
import jax.experimental
import jax.flatten_util
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import Array, checkpoint_policies, lax, random
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

warnings.filterwarnings("ignore")
CHECKS = {}
X = np.arange(64, dtype=np.float32).reshape(8, 8) / 32
V = np.linspace(-1, 1, 8).astype(np.float32)


def check(f):
    CHECKS[f.__name__] = f
    return f


def checks(**calls):
    for name, call in calls.items():
        CHECKS[name] = call


def auto(shape=(2, 4), names=("x", "y")):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def explicit(shape=(2, 4), names=("x", "y")):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Explicit,) * len(names))


def spec_of(sharding):
    if not hasattr(sharding, "spec"):
        return None
    entries = list(sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return [list(e) if isinstance(e, tuple) else e for e in entries]


def varying(x):
    """The axes that a value varies over, which jax 0.10 and the newest call differently."""
    t = jax.typeof(x)
    return sorted(t.manual_axis_type.varying if hasattr(t, "manual_axis_type") else t.vma)


def show(x):
    """What is compared of a result, as JSON has it."""
    if isinstance(x, dict):
        return {str(k): show(v) for k, v in x.items()}
    if isinstance(x, P):
        return ["P", *[list(e) if isinstance(e, tuple) else e for e in getattr(x, "partitions", x)]]
    if isinstance(x, NamedSharding):
        return {"spec": spec_of(x), "mesh": list(x.mesh.shape.items())}
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
        return [show(v) for v in x]
    if isinstance(x, tuple):
        return {"fields": list(x._fields), "values": [show(v) for v in x]}
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return {"key": show(random.key_data(x)), "shape": list(x.shape)}
        found = {"dtype": str(x.dtype), "shape": list(x.shape), "weak": bool(x.weak_type), "spec": spec_of(x.sharding)}
        return found | {"value": numbers(np.asarray(x))}
    if isinstance(x, (np.ndarray, np.generic)):  # some functions of JAX give back what they were given
        return {
            "dtype": str(x.dtype),
            "shape": list(np.shape(x)),
            "weak": False,
            "spec": None,
            "value": numbers(np.asarray(x)),
        }
    if isinstance(x, jax.ShapeDtypeStruct):
        return {
            "struct": str(x.dtype),
            "shape": list(x.shape),
            "spec": spec_of(x.sharding) if x.sharding is not None else None,
        }
    if isinstance(x, complex):
        return [x.real, x.imag]
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    return type(x).__name__


def numbers(x):
    if x.dtype == jax.dtypes.float0 or (x.dtype.kind == "V" and x.dtype.itemsize == 0):
        return "nothing"
    if x.dtype.kind == "c":
        return [[float(v.real), float(v.imag)] for v in x.reshape(-1)]
    if x.dtype.kind in "biu":
        return [int(v) for v in x.reshape(-1)]
    if x.dtype.kind in "OSU":
        return [str(v) for v in x.reshape(-1)]
    return [float(v) for v in x.astype(np.float64).reshape(-1)]


def refused(call):
    """The kind of Python's errors that a call ends in, or what it gives."""
    try:
        found = call()
    except Exception as error:
        kinds = [
            k.__name__
            for k in (
                ValueError,
                TypeError,
                IndexError,
                RuntimeError,
                NotImplementedError,
                AttributeError,
                KeyError,
                NameError,
            )
            if isinstance(error, k)
        ]
        return {"refused": kinds or [type(error).__name__]}
    return show(found)


# --- types of values -------------------------------------------------------------------------------------------------
@check
def typeof_under_explicit():
    with jax.set_mesh(explicit()):
        x = jax.device_put(X, P("x", "y"))
        seen = []

        @jax.jit
        def f(x):
            t = jax.typeof(x @ jnp.ones((8, 8)))
            seen.append(
                (
                    t.sharding.spec,
                    list(t.sharding.mesh.shape.items()),
                    varying(x),
                    isinstance(t.sharding, NamedSharding),
                )
            )
            seen.append((str(jax.typeof(x)), str(x.aval), x.aval.shape, str(x.aval.dtype), x.aval.weak_type))
            return x

        f(x)
        t = jax.typeof(x)
        return seen, t.sharding, str(t), x.aval.shape, str(x.aval)


@check
def types_in_shard_map():
    seen = []

    @jax.jit
    @functools.partial(jax.shard_map, mesh=auto(), in_specs=(P("x"), P()), out_specs=P("x"))
    def f(x, y):
        seen.append([varying(v) for v in (x, y, x + y, lax.psum(x, "x"), jax.lax.pcast(y, "y", to="varying"))])
        return x + y

    return f(X, V), seen


# --- checkpoint ------------------------------------------------------------------------------------------------------
POLICIES = {
    "everything": checkpoint_policies.everything_saveable,
    "nothing": checkpoint_policies.nothing_saveable,
    "dots": checkpoint_policies.dots_saveable,
    "checkpoint_dots": checkpoint_policies.checkpoint_dots,
    "dots_no_batch": checkpoint_policies.dots_with_no_batch_dims_saveable,
    "checkpoint_dots_no_batch": checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "any_names": checkpoint_policies.save_any_names_but_these("a"),
    "anything_except": checkpoint_policies.save_anything_except_these_names("a"),
    "only_names": checkpoint_policies.save_only_these_names("a", "b"),
    "from_both": checkpoint_policies.save_from_both_policies(
        checkpoint_policies.dots_saveable, checkpoint_policies.save_only_these_names("a")
    ),
    "offload_names": checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"],
        names_which_can_be_offloaded=["b"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "offload_dots": checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


def _policy(policy):
    def f(w, x):
        h = checkpoint_name(jnp.sin(x @ w), "a")
        h = checkpoint_name(jnp.cos(h @ w), "b")
        return jnp.sum(h**2)

    return lambda: jax.jit(jax.grad(jax.checkpoint(f, policy=policy)))(X / 4, X)


checks(**{f"policy_{name}": _policy(policy) for name, policy in POLICIES.items()})
checks(
    checkpoint_of_a_method=lambda: jax.grad(jax.remat(lambda x, n: (x**n).sum(), static_argnums=(1,)))(X, 3),
    checkpoint_without_cse=lambda: jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum(), prevent_cse=False))(X),
)


# --- shard_map and meshes --------------------------------------------------------------------------------------------
@check
def shard_map_without_checks():
    f = jax.shard_map(
        lambda x: lax.all_gather(x, "x", tiled=True), mesh=auto(), in_specs=P("x"), out_specs=P(), check_vma=False
    )
    return f(X), jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(X)


@check
def shard_map_without_in_specs():
    with jax.set_mesh(explicit()):
        return jax.jit(jax.shard_map(lambda x: x * lax.axis_index("x"), out_specs=P("x", "y")))(
            jax.device_put(X, P("x", "y"))
        )


@check
def shard_map_as_decorator():
    @functools.partial(jax.shard_map, mesh=auto(), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    def f(x):
        return x - lax.pmean(x, "x")

    @jax.shard_map(mesh=auto(), in_specs=P("x"), out_specs=P("x"))
    def g(x):
        return x * 2

    return jax.jit(f)(X), g(X)


@check
def smap():
    with jax.set_mesh(explicit()):
        return jax.smap(lambda x: x * 2 + lax.axis_index("x"), in_axes=0, out_axes=0, axis_name="x")(
            jax.device_put(X, P("x"))
        )


@check
def auto_axes():
    with jax.set_mesh(explicit()):
        x = jax.device_put(X, P("x", "y"))

        @functools.partial(jax.sharding.auto_axes, out_sharding=P("x"))
        def f(x):
            return jnp.sort(x, axis=1)[:, ::2]

        @functools.partial(jax.sharding.auto_axes, axes="y", out_sharding=P("x", "y"))
        def g(x):
            return x * 2

        return f(x), jax.jit(f)(x), g(x)


@check
def explicit_axes():
    with jax.set_mesh(auto()):
        seen = []

        @functools.partial(jax.sharding.explicit_axes, in_sharding=P("x"))
        def f(x):
            seen.append(show(jax.typeof(x).sharding.spec))
            return x * 2

        return jax.jit(f)(X), seen


@check
def abstract_meshes():
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    changed = mesh.update_axis_types({"y": AxisType.Explicit})
    found = [
        mesh.axis_names,
        list(mesh.shape.items()),
        mesh.size,
        mesh.empty,
        [t.name for t in mesh.axis_types],
        [t.name for t in changed.axis_types],
    ]
    found += [
        mesh.explicit_axes,
        mesh.auto_axes,
        mesh.manual_axes,
        mesh.are_all_axes_explicit,
        mesh.axis_sizes,
        mesh.shape_tuple,
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        found += [list(jax.sharding.get_abstract_mesh().shape.items())]
    found += [jax.sharding.get_abstract_mesh().empty]
    with jax.set_mesh(explicit()):
        found += [list(jax.sharding.get_abstract_mesh().shape.items()), list(jax.sharding.get_mesh().shape.items())]
    return found


@check
def concrete_meshes():
    mesh = auto()
    own = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    with mesh:
        inside = jax.jit(lambda x: lax.with_sharding_constraint(x * 2, P("x")))(X)
    return (
        inside,
        own.devices.shape,
        own.size,
        own.axis_names,
        list(own.shape.items()),
        [d.id for d in own.devices.flat],
        own.abstract_mesh.axis_names,
        own.is_multi_process,
        [t.name for t in own.axis_types],
        mesh.local_mesh.axis_names,
    )


@check
def specs():
    p = P("x", None, ("y", "z"), unreduced={"u"}, reduced={"r"})
    return [
        p,
        sorted(p.unreduced),
        sorted(p.reduced),
        len(p),
        p.partitions[2],
        p == P("x", None, ("y", "z")),
        P("x") + P("y"),
        p.update(unreduced=set()),
        str(P("x", None)),
        repr(P(("x", "y"))),
        P(P.UNCONSTRAINED)[0] is P.UNCONSTRAINED,
        hash(P("x")) == hash(P("x")),
    ]


@check
def reduced_and_unreduced():
    with jax.set_mesh(explicit()):
        a, b = jax.device_put(X, P(None, "x")), jax.device_put(X, P("x"))

        @jax.jit
        def f(a, b):
            y = jnp.dot(a, b, out_sharding=P(unreduced={"x"}))
            return jax.sharding.reshard(y, P())

        def g(a, b):
            return f(a, b).sum()

        w = jax.device_put(X, P(reduced={"x"}))
        return f(a, b), jax.grad(g, argnums=(0, 1))(a, b), sorted(w.sharding.spec.reduced)


@check
def named_shardings():
    s = NamedSharding(auto(), P("x", "y"))
    index = s.devices_indices_map((8, 8))
    found = [
        s.shard_shape((8, 8)),
        s.is_fully_replicated,
        s.is_fully_addressable,
        s.num_devices,
        sorted(d.id for d in s.device_set),
        s.memory_kind is None or True,
    ]
    found += [
        [[str(i.start), str(i.stop)] for i in index[jax.devices()[3]]],
        s.is_equivalent_to(NamedSharding(auto(), P("x", "y", None)), 3),
        len(s.addressable_devices),
    ]
    return [*found, s == NamedSharding(auto(), P("x", "y")), s.spec, s.update(spec=P("y")).spec]


@check
def arrays_on_meshes():
    x = jax.device_put(X, NamedSharding(auto(), P("x", "y")))
    shard = x.addressable_shards[3]
    return [
        shard.data,
        shard.device.id,
        shard.replica_id,
        [str(i) for i in shard.index],
        x.is_fully_replicated,
        x.is_fully_addressable,
        x.committed,
        len(x.global_shards),
        len(x.devices()),
        x.nbytes,
        x.itemsize,
        x.size,
        x.ndim,
        x.addressable_data(1),
        x.on_device_size_in_bytes() > 0,
        x.is_deleted(),
    ]


@check
def make_arrays():
    place = NamedSharding(auto(), P("x", "y"))
    x = jax.make_array_from_callback((8, 8), place, lambda index: X[index])
    y = jax.make_array_from_single_device_arrays((8, 8), place, [s.data for s in x.addressable_shards])
    return (
        x,
        y,
        jax.make_array_from_process_local_data(place, X),
        jax.make_array_from_process_local_data(place, X, (8, 8)),
    )


@check
def counts():
    d = jax.devices()[1]
    return [
        jax.device_count(),
        jax.local_device_count(),
        len(jax.local_devices()),
        len(jax.devices("cpu")),
        jax.process_index(),
        jax.process_count(),
        jax.default_backend(),
        d.id,
        d.platform,
        d.process_index,
        repr(d),
        d.local_hardware_id is None or True,
        jax.process_indices(),
    ]


@check
def single_devices():
    x = jax.device_put(X, jax.devices()[3])
    with jax.default_device(jax.devices()[2]):
        y = jnp.ones(3)
    return [
        x,
        x.sharding == SingleDeviceSharding(jax.devices()[3]),
        x.device.id,
        [d.id for d in y.devices()],
        jax.device_put((X, V), jax.devices()[1]),
        jax.device_put(X, x.sharding).committed,
        jax.device_put(X, SingleDeviceSharding(jax.devices()[1])).device.id,
    ]


# --- out_sharding ----------------------------------------------------------------------------------------------------
SPLIT = P("x")


def over_explicit(call, spec=SPLIT, value=X):
    def run():
        with jax.set_mesh(explicit()):
            x = jax.device_put(value, spec)
            return call(x), jax.jit(call)(x)

    return run


N = lambda *e: NamedSharding(explicit(), P(*e))
checks(
    out_at_get=over_explicit(lambda x: x.at[np.array([0, 1])].get(out_sharding=P("x"))),
    out_at_get_slice=over_explicit(lambda x: x.at[0:4].get(out_sharding=P("x"))),
    out_at_get_fill=over_explicit(lambda x: x.at[np.array([0, 19])].get(mode="fill", fill_value=7, out_sharding=P())),
    out_at_set=over_explicit(lambda x: x.at[np.array([0, 1])].set(0.0, out_sharding=P("x"))),
    out_at_add=over_explicit(lambda x: x.at[np.array([0, 0])].add(1.0, out_sharding=P("x"))),
    out_at_mul=over_explicit(lambda x: x.at[np.array([0, 1])].multiply(2.0, out_sharding=P("x"))),
    out_at_max=over_explicit(lambda x: x.at[np.array([0, 1])].max(1.0, out_sharding=P("x"))),
    out_reduce_sum=over_explicit(lambda x: lax.reduce_sum(x, (0,), out_sharding=P("y"))),
    out_repeat=over_explicit(lambda x: jnp.repeat(x, 2, axis=0, out_sharding=P("x"))),
    out_repeat_method=over_explicit(lambda x: x.repeat(2, axis=0, out_sharding=P("x"))),
    out_ravel=over_explicit(lambda x: jnp.ravel(x, out_sharding=P("x")), P("x", "y")),
    out_ravel_method=over_explicit(lambda x: x.ravel(out_sharding=P("x"))),
    out_flatten=over_explicit(lambda x: x.flatten(out_sharding=P("x"))),
    out_reshape=over_explicit(lambda x: x.reshape(4, 16, out_sharding=P("x"))),
    out_lax_reshape_both=over_explicit(lambda x: lax.reshape(x, (64,), out_sharding=P("x"))),
    out_lax_reshape=over_explicit(lambda x: lax.reshape(x, (4, 16), out_sharding=P("x"))),
    out_one_hot=over_explicit(lambda x: jax.nn.one_hot(jnp.arange(8), 8)),
    out_matmul=over_explicit(lambda x: jnp.matmul(x.T, x, out_sharding=P("x"))),
    out_dot=over_explicit(lambda x: jnp.dot(x.T, x, out_sharding=P(None, "x"))),
    out_einsum=over_explicit(lambda x: jnp.einsum("ij,ik->jk", x, x, out_sharding=P("x"))),
    out_tensordot=over_explicit(lambda x: jnp.tensordot(x, x, axes=((0,), (0,)), out_sharding=P("y"))),
    out_lax_dot=over_explicit(lambda x: lax.dot(x.T, x, out_sharding=P("x"))),
    out_dot_general=over_explicit(lambda x: lax.dot_general(x, x, (((0,), (0,)), ((), ())), out_sharding=P("x"))),
    out_broadcast=over_explicit(lambda x: jnp.broadcast_to(x, (2, 8, 8), out_sharding=P(None, "x", "y"))),
    out_lax_broadcast=over_explicit(lambda x: lax.broadcast(x, (2,), out_sharding=P(None, "x"))),
    out_broadcast_in_dim=over_explicit(lambda x: lax.broadcast_in_dim(x, (8, 8, 2), (0, 1), out_sharding=P("x"))),
    out_iota=over_explicit(lambda x: lax.broadcasted_iota(np.float32, (8, 8), 0, out_sharding=P("x", "y"))),
    out_conv=over_explicit(
        lambda x: lax.conv_general_dilated(
            x.reshape(1, 1, 8, 8), jnp.ones((1, 1, 3, 3)), (1, 1), "SAME", out_sharding=P(None, None, None, None)
        ),
        P(),
    ),
    out_zeros=over_explicit(
        lambda x: [
            jnp.zeros((8, 8), out_sharding=P("x")),
            jnp.ones(8, out_sharding=P("y")),
            jnp.full((8,), 2.0, out_sharding=P("x")),
            jnp.zeros_like(x, out_sharding=P("y")),
            jnp.ones_like(x),
            jnp.empty((8, 8), out_sharding=P("x")).shape,
            jnp.full_like(x, 3, out_sharding=P("y")),
        ]
    ),
    out_arange=over_explicit(lambda x: jnp.arange(8, out_sharding=P("x"))),
    out_asarray=over_explicit(lambda x: [jnp.asarray(X, out_sharding=P("x")), jnp.array(X, out_sharding=P("y"))]),
    out_bincount=over_explicit(lambda x: jnp.bincount(jnp.array([0, 1, 1, 3]), length=8, out_sharding=P())),
    out_ragged=over_explicit(
        lambda x: lax.ragged_dot(x, jnp.ones((2, 8, 4)), jnp.array([3, 5]), out_sharding=P()), P()
    ),
    out_random=over_explicit(
        lambda x: [
            random.normal(random.key(0), (8, 8), out_sharding=P("x", "y")),
            random.bits(random.key(0), (8,), out_sharding=P("x")),
            random.permutation(random.key(0), 8, out_sharding=P("x")),
            random.randint(random.key(1), (8,), 0, 10, out_sharding=P("y")),
            random.categorical(random.key(1), jnp.zeros((4,)), shape=(8,), out_sharding=P("x")),
        ]
    ),
    out_lax_reduce=over_explicit(lambda x: lax.reduce(x, np.float32(0), operator.add, (0,), out_sharding=P("y")), P()),
    out_reshard=over_explicit(lambda x: jax.sharding.reshard(x, P(None, ("x", "y")))),
    out_segment=over_explicit(
        lambda x: jax.ops.segment_sum(jnp.ones((8, 8)), jnp.array([0, 1, 1, 0, 2, 2, 2, 3]), 8, out_sharding=P())
    ),
)

# --- what Explicit axes refuse ---------------------------------------------------------------------------------------
Y = X.T.copy()


def _ask(call, *specs):
    def run():
        with jax.set_mesh(explicit()):
            xs = [jax.device_put(v, s) for v, s in zip((X, Y), specs)]
            return [refused(lambda: call(*xs)), refused(lambda: jax.jit(call)(*xs))]

    return run


ASKED = {
    "add_rows_split_otherwise": (lambda a, b: a + b, P("x"), P("y")),
    "add_split_otherwise": (lambda a, b: a + b, P("x"), P(None, "x")),
    "add_whole": (lambda a, b: a + b, P("x"), P()),
    "add_both": (lambda a, b: a + b, P("x"), P(None, "y")),
    "add_broadcast": (lambda a, b: a + b[0:1], P("x"), P(None, "y")),
    "where_otherwise": (lambda a, b: jnp.where(a > 1, a, b), P("x"), P("y")),
    "where_whole": (lambda a, b: jnp.where(a > 1, a, b), P("x"), P()),
    "select_whole": (lambda a, b: lax.select(a > 1, a, b), P("x"), P()),
    "clip": (lambda a, b: lax.clamp(np.float32(0), a, np.float32(1)), P("x"), P()),
    "slice_split": (lambda a, b: a[0:4], P("x"), P()),
    "slice_whole": (lambda a, b: a[:, 0:4], P("x"), P()),
    "slice_all": (lambda a, b: a[0:8], P("x"), P()),
    "slice_odd": (lambda a, b: a[0:3], P("x"), P()),
    "slice_step": (lambda a, b: a[::2], P("x"), P()),
    "slice_reverse": (lambda a, b: a[::-1], P("x"), P()),
    "index_split": (lambda a, b: a[0], P("x"), P()),
    "index_last": (lambda a, b: a[:, -1], P(None, "x"), P()),
    "index_beside": (lambda a, b: a[:, 0], P("x"), P()),
    "lax_slice": (lambda a, b: lax.slice(a, (0, 0), (4, 8)), P("x"), P()),
    "lax_slice_odd": (lambda a, b: lax.slice(a, (0, 0), (3, 8)), P("x"), P()),
    "slice_in_dim": (lambda a, b: lax.slice_in_dim(a, 0, 4), P("x"), P()),
    "dynamic_slice": (lambda a, b: lax.dynamic_slice(a, (0, 0), (4, 8)), P("x"), P()),
    "dynamic_slice_beside": (lambda a, b: lax.dynamic_slice(a, (0, 0), (8, 4)), P("x"), P()),
    "dynamic_index": (lambda a, b: lax.dynamic_index_in_dim(a, 1), P("x"), P()),
    "dynamic_update": (lambda a, b: lax.dynamic_update_slice(a, b[0:2], (0, 0)), P("x"), P()),
    "dynamic_update_same": (lambda a, b: lax.dynamic_update_slice(a, b[0:2], (0, 0)), P(), P()),
    "repeat_split": (lambda a, b: jnp.repeat(a, 2, axis=0), P("x"), P()),
    "repeat_beside": (lambda a, b: jnp.repeat(a, 2, axis=1), P("x"), P()),
    "tile_split": (lambda a, b: jnp.tile(a, (2, 1)), P("x"), P()),
    "concatenate_split": (lambda a, b: jnp.concatenate([a, b]), P("x"), P("x")),
    "concatenate_other": (lambda a, b: jnp.concatenate([a, b]), P("x"), P()),
    "concatenate_beside": (lambda a, b: jnp.concatenate([a, b], 1), P("x"), P("x")),
    "stack": (lambda a, b: jnp.stack([a, b]), P("x"), P("x")),
    "stack_other": (lambda a, b: jnp.stack([a, b]), P("x"), P("y")),
    "matmul_ambiguous": (lambda a, b: a @ b, P(None, "x"), P("x")),
    "matmul_rows": (lambda a, b: a @ b, P("x"), P(None, "y")),
    "matmul_same_axis": (lambda a, b: a @ b, P("x"), P(None, "x")),
    "matmul_one": (lambda a, b: a @ b, P(None, "x"), P()),
    "matmul_one_kept": (lambda a, b: a @ b, P("x", "y"), P()),
    "einsum_batch": (lambda a, b: jnp.einsum("ij,ij->i", a, b), P("x"), P("x")),
    "einsum_batch_otherwise": (lambda a, b: jnp.einsum("ij,ij->i", a, b), P("x"), P("y")),
    "sum_split": (lambda a, b: a.sum(0), P("x"), P()),
    "sum_beside": (lambda a, b: a.sum(1), P("x"), P()),
    "mean": (lambda a, b: a.mean(), P("x", "y"), P()),
    "max": (lambda a, b: a.max(0), P("x", "y"), P()),
    "argmax": (lambda a, b: a.argmax(0), P("x", "y"), P()),
    "cumsum_split": (lambda a, b: jnp.cumsum(a, 0), P("x"), P()),
    "cumsum_beside": (lambda a, b: jnp.cumsum(a, 1), P("x"), P()),
    "sort_split": (lambda a, b: jnp.sort(a, 0), P("x"), P()),
    "sort_beside": (lambda a, b: jnp.sort(a, 1), P("x"), P()),
    "top_k": (lambda a, b: lax.top_k(a, 2)[0], P("x"), P()),
    "top_k_split": (lambda a, b: lax.top_k(a, 2)[0], P(None, "x"), P()),
    "reverse_split": (lambda a, b: lax.rev(a, (0,)), P("x"), P()),
    "flip_beside": (lambda a, b: jnp.flip(a, 1), P("x"), P()),
    "roll_split": (lambda a, b: jnp.roll(a, 1, 0), P("x"), P()),
    "roll_beside": (lambda a, b: jnp.roll(a, 1, 1), P("x"), P()),
    "pad_split": (lambda a, b: jnp.pad(a, ((1, 1), (0, 0))), P("x"), P()),
    "pad_split_odd": (lambda a, b: jnp.pad(a, ((0, 1), (0, 0))), P("x"), P()),
    "pad_beside": (lambda a, b: jnp.pad(a, ((0, 0), (1, 1))), P("x"), P()),
    "reshape_split": (lambda a, b: a.reshape(4, 2, 8), P("x"), P()),
    "reshape_merge": (lambda a, b: a.reshape(64), P("x"), P()),
    "reshape_merge_second": (lambda a, b: a.reshape(64), P(None, "x"), P()),
    "reshape_merge_both": (lambda a, b: a.reshape(64), P("x", "y"), P()),
    "reshape_new": (lambda a, b: a.reshape(1, 8, 8), P("x"), P()),
    "reshape_split_second": (lambda a, b: a.reshape(8, 2, 4), P(None, "x"), P()),
    "expand_dims": (lambda a, b: a[:, None], P("x"), P()),
    "squeeze": (lambda a, b: a[:, None].squeeze(1), P("x"), P()),
    "transpose": (lambda a, b: a.T, P("x", "y"), P()),
    "swapaxes": (lambda a, b: a.swapaxes(0, 1), P("x", "y"), P()),
    "broadcast_to": (lambda a, b: jnp.broadcast_to(a, (2, 8, 8)), P("x"), P()),
    "take_split": (lambda a, b: jnp.take(a, np.array([1, 0]), 0), P("x"), P()),
    "take_beside": (lambda a, b: jnp.take(a, np.array([1, 0]), 1), P("x"), P()),
    "take_along": (lambda a, b: jnp.take_along_axis(a, np.zeros((8, 1), int), 1), P("x"), P()),
    "at_set_split": (lambda a, b: a.at[0].set(0), P("x"), P()),
    "at_set_beside": (lambda a, b: a.at[:, 0].set(0), P("x"), P()),
    "at_set_slice": (lambda a, b: a.at[0:4].set(0), P("x"), P()),
    "split_split": (lambda a, b: jnp.split(a, 2)[0], P("x"), P()),
    "split_beside": (lambda a, b: jnp.split(a, 2, 1)[0], P("x"), P()),
    "softmax": (lambda a, b: jax.nn.softmax(a, axis=-1), P("x"), P()),
    "softmax_split": (lambda a, b: jax.nn.softmax(a, axis=0), P("x"), P()),
    "logsumexp": (lambda a, b: jax.nn.logsumexp(a, axis=0), P("x", "y"), P()),
    "one_hot": (lambda a, b: jax.nn.one_hot(a[:, 0].astype(int), 4), P("x"), P()),
    "outer": (lambda a, b: jnp.outer(a[:, 0], b[0]), P("x"), P(None, "y")),
    "outer_same": (lambda a, b: jnp.outer(a[:, 0], b[:, 0]), P("x"), P("x")),
    "triu": (lambda a, b: jnp.triu(a), P("x"), P()),
    "diagonal": (lambda a, b: jnp.diagonal(a), P("x"), P()),
    "eye": (lambda a, b: a + jnp.eye(8), P("x"), P()),
    "cast": (lambda a, b: a.astype("bfloat16"), P("x"), P()),
    "vmap": (lambda a, b: jax.vmap(jnp.dot)(a, b), P("x"), P("x")),
    "vmap_otherwise": (lambda a, b: jax.vmap(jnp.dot)(a, b), P("x"), P("y")),
    "vmap_whole": (lambda a, b: jax.vmap(jnp.dot)(a, b), P("x"), P()),
    "vmap_beside": (lambda a, b: jax.vmap(lambda r: r * b)(a), P("x"), P()),
    "vmap_in_one": (lambda a, b: jax.vmap(lambda c: c * 2, in_axes=1, out_axes=1)(a), P("x", "y"), P()),
    "scan_rows": (lambda a, b: lax.scan(lambda c, r: (c + r, r), jnp.zeros(8), a)[1], P(None, "x"), P()),
    "scan_split": (lambda a, b: lax.scan(lambda c, r: (c + r, r), jnp.zeros(8), a)[1], P("x"), P()),
    "scan_carry": (lambda a, b: lax.scan(lambda c, r: (c * 2, None), a, None, length=2)[0], P("x"), P()),
    "scan_carry_changes": (lambda a, b: lax.scan(lambda c, r: (c + a, None), b, None, length=2)[0], P("x"), P()),
    "while_carry": (lambda a, b: lax.fori_loop(0, 2, lambda i, c: c * 2, a), P("x", "y"), P()),
    "cond": (lambda a, b: lax.cond(True, lambda: a, lambda: a * 2), P("x", "y"), P()),
    "cond_otherwise": (lambda a, b: lax.cond(True, lambda: a, lambda: b), P("x"), P("y")),
    "grad": (lambda a, b: jax.grad(lambda a: (a @ b).sum())(a), P("x"), P(None, "y")),
    "grad_of_one": (lambda a, b: jax.grad(lambda b: (a @ b).sum())(b), P("x"), P(None, "y")),
    "constraint": (lambda a, b: lax.with_sharding_constraint(a, P("x")), P("x"), P()),
    "constraint_other": (lambda a, b: lax.with_sharding_constraint(a, P("y")), P("x"), P()),
    "reshard": (lambda a, b: jax.sharding.reshard(a, P("y")), P("x"), P()),
    "allclose": (lambda a, b: jnp.allclose(a, b), P("x"), P()),
    "norm": (lambda a, b: jnp.linalg.norm(a), P("x"), P()),
    "inverse": (lambda a, b: jnp.linalg.inv(a + 9 * jnp.eye(8)), P("x"), P()),
    "cholesky": (lambda a, b: jnp.linalg.cholesky(b + 99 * jnp.eye(8)), P(), P()),
    "fft": (lambda a, b: jnp.abs(jnp.fft.fft(a, axis=1)), P("x"), P()),
    "fft_split": (lambda a, b: jnp.abs(jnp.fft.fft(a, axis=0)), P("x"), P()),
    "var": (lambda a, b: a.var(0), P("x"), P()),
    "std": (lambda a, b: a.std(1), P("x"), P()),
    "all": (lambda a, b: (a > 0).all(0), P("x"), P()),
    "prod": (lambda a, b: a.prod(0), P("x", "y"), P()),
    "median": (lambda a, b: jnp.median(a, 1), P("x"), P()),
    "nonzero": (lambda a, b: jnp.nonzero(a, size=4)[0], P("x"), P()),
    "meshgrid": (lambda a, b: jnp.meshgrid(a[:, 0], b[0])[0], P("x"), P(None, "y")),
    "dropout": (lambda a, b: a * random.bernoulli(random.key(0), 0.5, a.shape), P("x"), P()),
    "gelu": (lambda a, b: jax.nn.gelu(a), P("x", "y"), P()),
    "attention": (
        lambda a, b: jax.nn.dot_product_attention(a.reshape(8, 1, 2, 4), b.reshape(8, 1, 2, 4), b.reshape(8, 1, 2, 4)),
        P("x"),
        P("x"),
    ),
    "shard_map": (lambda a, b: jax.shard_map(lambda a: a * 2, in_specs=P("x"), out_specs=P("x"))(a), P("x"), P()),
    "shard_map_other": (lambda a, b: jax.shard_map(lambda a: a * 2, in_specs=P("y"), out_specs=P("y"))(a), P("x"), P()),
}
checks(**{f"asked_{name}": _ask(call, *specs) for name, (call, *specs) in ASKED.items()})

# --- collectives -----------------------------------------------------------------------------------------------------
GROUPS = [[0, 1], [2, 3]]


def inside(call, out=SPLIT, value=X, **more):
    def run():
        mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
        return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=out, **more))(value)

    return run


checks(
    groups_psum=inside(lambda x: lax.psum(x, "x", axis_index_groups=GROUPS), check_vma=False),
    groups_pmax=inside(lambda x: lax.pmax(x, "x", axis_index_groups=GROUPS), check_vma=False),
    groups_gather=inside(lambda x: lax.all_gather(x, "x", axis_index_groups=GROUPS, tiled=True), check_vma=False),
    groups_to_all=inside(lambda x: lax.all_to_all(x, "x", 1, 0, axis_index_groups=GROUPS, tiled=True), check_vma=False),
    groups_scatter=inside(
        lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, axis_index_groups=GROUPS, tiled=True), check_vma=False
    ),
    untiled_gather=inside(lambda x: lax.all_gather(x, "x").sum(0)),
    untiled_scatter=inside(lambda x: lax.psum_scatter(jnp.broadcast_to(x[None], (4, 2, 8)), "x")),
    untiled_to_all=inside(lambda x: lax.all_to_all(x.reshape(2, 4, 2), "x", 1, 0).reshape(-1, 4)),
    permute=inside(lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])),
    pshuffle=inside(lambda x: lax.pshuffle(x, "x", [2, 0, 3, 1])),
    pswapaxes=inside(lambda x: lax.pswapaxes(x.reshape(4, 4), "x", 0)),
    axis=inside(lambda x: x * lax.axis_index("x") + lax.axis_size("x")),
    pmean_pmin=inside(lambda x: lax.pmean(x, "x") + lax.pmin(x, "x"), P()),
    cast=inside(lambda x: lax.pcast(jnp.ones(2), "x", to="varying") + x[0, :2]),
    psum_of_a_number=inside(lambda x: x * lax.psum(1, "x")),
    missing_psum=lambda: refused(inside(lambda x: x.sum(0), P())),
    unbound=lambda: refused(lambda: lax.psum(jnp.ones(2), "nowhere")),
)


# --- jit and stages --------------------------------------------------------------------------------------------------
@check
def stages():
    f = jax.jit(lambda x, n: {"a": x @ x.T, "b": n + 1}, inline=True, keep_unused=True, compiler_options={})
    place = NamedSharding(auto(), P("x"))
    traced = f.trace(jax.device_put(X, place), 2)
    lowered = traced.lower()
    compiled = lowered.compile()
    out = compiled(jax.device_put(X, place), 2)
    return [
        traced.out_info,
        lowered.out_info,
        lowered.args_info[0][0].shape,
        compiled.in_tree.num_leaves,
        compiled.out_tree.num_leaves,
        show(jax.tree.leaves(compiled.input_shardings)[0]),
        type(compiled.cost_analysis()).__name__,
        hasattr(compiled.memory_analysis(), "temp_size_in_bytes"),
        "dot" in compiled.as_text(),
        out["b"],
        isinstance(jax.tree.leaves(compiled.output_shardings)[0], jax.sharding.Sharding),
        f.eval_shape(X, 2),
        lowered.as_text()[:6],
    ]


@check
def disable_jit():
    with jax.disable_jit():
        return jax.jit(lambda x: x if float(x.sum()) > 0 else -x)(X), lax.scan(
            lambda c, x: (c + float(x.sum()), x), 0.0, X
        )[0]


@check
def static_and_donated():
    f = jax.jit(lambda x, n, *, m: x * n + m, static_argnums=1, static_argnames="m", donate_argnums=0)
    x = jnp.ones(3)
    y = f(x, 2, m=3)
    return y, x.is_deleted(), refused(lambda: x + 1), refused(lambda: f(jnp.ones(3), [2], m=3))


@check
def deleted():
    x = jnp.ones(3)
    x.delete()
    return x.is_deleted(), refused(lambda: x + 1), x.shape


@check
def shardings_of_jit():
    mesh = auto()
    s, t = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "y"))
    f = jax.jit(lambda x: x * 2, in_shardings=s, out_shardings=t)
    g = jax.jit(lambda x, y: (x, y), in_shardings=(s, None), out_shardings=(None, t))
    with jax.set_mesh(mesh):
        h = jax.jit(lambda x: x, in_shardings=P("x"), out_shardings=P("y"))(X)
    return (
        f(X),
        g(X, X)[1],
        h,
        refused(lambda: f(jax.device_put(X, t))),
        refused(lambda: jax.jit(lambda x: x, in_shardings=NamedSharding(mesh, P("x", "y", "x")))(X)),
        refused(lambda: jax.jit(lambda x: x, in_shardings=NamedSharding(mesh, P(None, None, "x")))(X)),
        refused(lambda: jax.jit(lambda x: x, in_shardings=s)(np.ones(3))),
    )


# --- debugging -------------------------------------------------------------------------------------------------------
@check
def printing():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):

        @jax.jit
        def f(x):
            jax.debug.print("x = {x} and {}", x.sum(), x=x[0])
            jax.debug.print("ordered {y}", y=x[1], ordered=True)
            return x

        f(np.arange(3.0, dtype=np.float32))
        jax.effects_barrier()
        jax.debug.inspect_array_sharding(
            jax.device_put(X, NamedSharding(auto(), P("x"))),
            callback=lambda s: print(isinstance(s, jax.sharding.Sharding)),
        )
    return sorted(out.getvalue().splitlines())


@check
def calling_back():
    seen = []

    @jax.jit
    def f(x):
        jax.debug.callback(lambda v, k: seen.append((float(v), k)), x.sum(), k=3)
        y = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((3,), np.float32), x)
        z = jax.experimental.io_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct((3,), np.float32), x)
        return y + z

    out = f(np.arange(3.0, dtype=np.float32))
    g = jax.vmap(
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="expand_dims")
    )(V)
    jax.effects_barrier()
    return out, seen, g


@check
def visualized():
    out = io.StringIO()
    x = jax.device_put(X, NamedSharding(auto(), P("x", "y")))
    with contextlib.redirect_stdout(out):
        jax.debug.visualize_array_sharding(x)
    return "CPU" in out.getvalue()


@check
def names_and_scopes():
    @jax.named_call
    def f(x):
        with jax.named_scope("a"):
            return x + 1

    return f(X), jax.named_scope("g")(lambda x: x * 2)(V)


# --- trees, types ----------------------------------------------------------------------------------------------------
@check
def trees():
    t = {"a": [1, 2.0, None], "b": (3, {"c": X})}
    tu = jax.tree_util

    @tu.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a,), self.b

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(children[0], aux)

    import dataclasses

    @functools.partial(tu.register_dataclass, data_fields=["a"], meta_fields=["b"])
    @dataclasses.dataclass
    class Data:
        a: object
        b: int

    leaves, d = tu.tree_flatten(t)
    p = jax.jit(lambda p: Pair(p.a * 2, p.b))(Pair(X, "k"))
    q = jax.grad(lambda d: (d.a**d.b).sum())(Data(V, 2))
    return [
        len(leaves),
        tu.tree_unflatten(d, leaves)["a"][1],
        jax.tree.map(lambda x: x, t)["b"][0],
        [tu.keystr(k) for k, _ in tu.tree_flatten_with_path(t)[0]],
        p.a,
        p.b,
        q.a,
        tu.tree_leaves(None),
        d.num_leaves,
        d.num_nodes,
        jax.tree.reduce(operator.add, [1, 2, 3]),
        jax.tree.all([True, []]),
        tu.DictKey("a") == tu.DictKey("a"),
        str(tu.SequenceKey(1)),
        str(tu.GetAttrKey("q")),
        jax.tree.map_with_path(lambda k, x: len(k), {"a": [1]}),
        tu.tree_transpose(tu.tree_structure([0, 0]), tu.tree_structure((0, 0, 0)), [(1, 2, 3), (4, 5, 6)]),
        refused(lambda: jax.tree.map(operator.add, [1], [1, 2])),
    ]


@check
def array_types():
    seen = []

    def f(x):
        seen.append(
            (
                isinstance(x, Array),
                isinstance(x, jax.core.Tracer),
                isinstance(x, np.ndarray),
                x.shape,
                str(x.dtype),
                x.weak_type,
            )
        )
        return x

    jax.jit(f)(X), jax.vmap(f)(X), jax.grad(lambda x: f(x).sum())(X)
    return (
        seen,
        isinstance(jnp.ones(2), Array),
        isinstance(X, Array),
        issubclass(type(jnp.ones(2)), Array),
        hasattr(jax.typing, "ArrayLike"),
        hasattr(jax.typing, "DTypeLike"),
    )


class Wrapped:
    def __init__(self, x):
        self.x = x

    def __jax_array__(self):
        return self.x


@check
def dunder_array():
    w = Wrapped(jnp.arange(3.0))
    return (
        jnp.ones(3) * w,
        w.x + w,
        jnp.asarray(w),
        jnp.stack([w, w]),
        w.x == w,
        jnp.ones(3) @ w,
        jnp.broadcast_to(w, (2, 3)),
    )


@check
def host_views():
    x = jnp.arange(4, dtype=jnp.int32)
    return [
        np.asarray(x),
        x.__array__(),
        float(x[1]),
        int(x[2]),
        bool(x[1]),
        x.tolist(),
        x.item(1),
        len(x),
        [int(v) for v in x],
        range(9)[x[2]],
        f"{x[1]}",
        repr(x),
        str(x),
        repr(jnp.ones(2)),
        repr(jnp.float32(1)),
        x.to_device(jax.devices()[1]).device.id,
        hash(x[0].item()),
        refused(lambda: hash(x)),
        refused(lambda: bool(x)),
        refused(lambda: len(x[0])),
        refused(lambda: float(x)),
        refused(lambda: operator.setitem(x, 0, 1)),
        copy_of(x),
    ]


def copy_of(x):
    import copy
    import pickle

    return copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.copy(), jnp.array(x, copy=True)


checks(
    dlpack=lambda: [
        jnp.from_dlpack(np.arange(3.0, dtype=np.float32)),
        np.from_dlpack(jnp.arange(3)),
        jax.dlpack.from_dlpack(jnp.ones(2)) if hasattr(jax, "dlpack") else jnp.ones(2),
    ],
    pmap_plain=lambda: np.asarray(jax.pmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(X)),
    pmap_nested=lambda: np.asarray(jax.pmap(lambda x, y: x + y, in_axes=(0, None))(X[:4], V)),
    pmap_static=lambda: np.asarray(jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)(X, 3)),
    pmap_grad=lambda: np.asarray(jax.pmap(jax.grad(lambda x: (x**2).sum()))(X)),
    shard_alike=lambda: list(_shard_alike()(jnp.ones(8), jnp.zeros(8))),
    ragged=lambda: [
        lax.ragged_dot(X, np.ones((3, 8, 4), np.float32), np.array([2, 3, 3])),
        jax.grad(lambda a, b: (lax.ragged_dot(a, b, np.array([2, 3, 3])) ** 2).sum(), argnums=(0, 1))(
            X, np.ones((3, 8, 4), np.float32)
        ),
    ],
    ragged_less=lambda: lax.ragged_dot(X, np.ones((3, 8, 4), np.float32), np.array([2, 0, 3])),
    ragged_typed=lambda: lax.ragged_dot(
        X.astype("bfloat16"), jnp.ones((3, 8, 4), "bfloat16"), np.array([2, 3, 3]), preferred_element_type=np.float32
    ),
    reduce=lambda: [
        lax.reduce(X, np.float32(1), lambda a, b: a + b + a * b, (1,)),
        lax.reduce((X, X), (np.float32(0), np.float32(-1)), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (0,)),
        lax.reduce(X, np.float32(-np.inf), lax.max, (0, 1)),
    ],
    reduce_window=lambda: [
        lax.reduce_window(X, np.float32(0), lax.add, (2, 2), (2, 2), "VALID"),
        lax.reduce_window(X, -np.inf, lax.max, (3, 3), (1, 1), "SAME"),
        lax.reduce_window(X, np.float32(1), lambda a, b: a * b, (2, 1), (1, 1), "VALID"),
    ],
    reduce_precision=lambda: lax.reduce_precision(X, 5, 3),
    vmap_size=lambda: [
        jax.vmap(lambda: jnp.ones(2), axis_size=3)(),
        jax.vmap(lambda x: x, in_axes=None, axis_size=4)(V),
        jax.vmap(lambda x: lax.psum(x, "b"), axis_name="b")(X),
        jax.vmap(lambda d: d["a"] * d["b"], in_axes=({"a": 0, "b": None},))({"a": X, "b": V}),
        jax.vmap(lambda x: (x, x.sum()), out_axes=(1, 0))(X),
    ],
    vmap_spmd=lambda: jax.jit(
        jax.vmap(
            jax.shard_map(lambda x: x * lax.axis_size("y"), mesh=auto(), in_specs=P("y"), out_specs=P("y")),
            spmd_axis_name="x",
        )
    )(X),
    vmap_refused=lambda: [
        refused(lambda: jax.vmap(lambda x, y: x)(X, V[:3])),
        refused(lambda: jax.vmap(lambda x: x, in_axes=2)(X)),
        refused(lambda: jax.vmap(lambda x: x, in_axes=None)(X)),
    ],
    grad_int=lambda: [
        jax.grad(lambda x, n: (x * n).sum(), argnums=(0, 1), allow_int=True)(V, np.arange(8)),
        refused(lambda: jax.grad(lambda n: n * 1.0)(3)),
        str(jax.dtypes.float0),
        jax.vjp(lambda n, x: n * x, np.arange(8), V)[1](V),
    ],
    grad_refused=lambda: [
        refused(lambda: jax.grad(lambda x: x)(V)),
        refused(lambda: jax.grad(lambda x: x.astype(int))(1.0)),
        refused(lambda: jax.grad(lambda x: x * 1j)(1.0)),
        refused(lambda: jax.grad(lambda x: x, argnums=2)(1.0)),
    ],
    jacobians=lambda: [
        jax.jacfwd(lambda x: (x**2, x), has_aux=True)(V[:3]),
        jax.jacrev(lambda x: (x**2, x), has_aux=True)(V[:3]),
        jax.jacfwd(lambda z: z**2, holomorphic=True)(V[:3] + 1j),
        jax.jacrev(lambda z: z**2, holomorphic=True)(V[:3] + 1j),
        jax.hessian(lambda x: (x**3).sum())(V[:3]),
        jax.jacrev(lambda x, y: x * y, argnums=(0, 1))(V[:2], V[2:4]),
        jax.jacobian(lambda x: x**2)(V[:2]),
    ],
    linearized=lambda: [
        jax.linearize(jnp.sin, V)[1](V),
        jax.linearize(lambda x: (jnp.sin(x), x), V, has_aux=True)[2],
        jax.linear_transpose(lambda x: 2 * x, V)(V),
        jax.jvp(jnp.sin, (V,), (V,)),
        jax.jvp(lambda x: (x**2, 3 * x), (V,), (V,), has_aux=True),
        jax.vjp(lambda x: (x**2, 3 * x), V, has_aux=True)[2],
    ],
    holomorphic=lambda: [
        jax.grad(lambda z: z**2, holomorphic=True)(1.0 + 2j),
        jax.value_and_grad(lambda z: jnp.sin(z), holomorphic=True)(1.0 + 2j),
        jax.grad(lambda z: jnp.abs(z) ** 2)(1.0 + 2j),
    ],
)


@check
def custom_rules():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(n, x):
        return x**n

    f.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (ct * n * 10,))

    @functools.partial(jax.custom_vjp, nondiff_argnames=("n",))
    def g(x, n):
        return x * n

    g.defvjp(lambda x, n: (x * n, x), lambda n, x, ct: (ct * n * 100,))

    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def h(x, k):
        return x * k

    @h.defjvp
    def _(k, primals, tangents):
        return h(primals[0], k), tangents[0] * 7 * k

    @functools.partial(jax.custom_jvp, nondiff_argnames=("k",))
    def i(x, k):
        return x * k

    @i.defjvp
    def _(k, primals, tangents):
        return i(primals[0], k), tangents[0] * 5 * k

    @jax.custom_jvp
    def j(x, y):
        return x * y

    j.defjvps(lambda t, out, x, y: t * y, None)

    return (
        jax.grad(lambda x: f(3, x).sum())(V),
        jax.grad(lambda x: g(x, 3).sum())(V),
        jax.grad(lambda x: h(x, 2.0).sum())(V),
        jax.jvp(lambda x: i(x, 2.0), (1.0,), (1.0,)),
        jax.grad(j, (0, 1))(2.0, 3.0),
    )


# --- keys ------------------------------------------------------------------------------------------------------------
@check
def typed_keys():
    k = random.key(0)
    ks = random.split(k, 6)
    grid = ks.reshape(2, 3)
    return [
        k,
        ks,
        grid,
        grid[1],
        grid.T,
        grid[:, 0],
        ks == ks[0],
        ks != ks,
        jnp.broadcast_to(k, (2,)),
        jnp.stack([k, k]),
        jnp.concatenate([ks, ks]),
        jnp.where(True, ks, ks),
        ks.at[0].set(k),
        jnp.issubdtype(k.dtype, jax.dtypes.prng_key),
        k.ndim,
        k.size,
        grid.flatten(),
        str(random.key_impl(k)),
        random.wrap_key_data(random.key_data(k)),
        random.clone(k),
        random.fold_in(k, 3),
        ks[np.array([0, 2])],
        jnp.take(ks, np.array([1]), axis=0),
        jnp.expand_dims(k, 0),
        grid.ravel(),
        jnp.squeeze(k[None]),
        refused(lambda: k + 1),
        repr(k),
    ]


@check
def keys_in_transformations():
    ks = random.split(random.key(1), 4)
    f = jax.jit(lambda k: (random.normal(k, (2,)), random.split(k)))
    scanned = lax.scan(lambda k, _: (random.split(k)[0], random.uniform(k)), random.key(2), None, length=3)
    branch = lax.cond(True, lambda k: random.fold_in(k, 1), lambda k: k, random.key(3))
    loop = lax.fori_loop(0, 3, lambda i, k: random.fold_in(k, i), random.key(4))
    return (
        f(random.key(0)),
        jax.vmap(lambda k: random.normal(k))(ks),
        scanned,
        branch,
        loop,
        jax.vmap(lambda k, x: x * random.uniform(k))(ks, V[:4]),
        jax.eval_shape(random.key, 0).shape,
        jax.grad(lambda x, k: (x * random.normal(k, x.shape)).sum())(V, random.key(0)),
        jax.tree.map(lambda x: x, {"k": ks}),
        jax.device_put(ks, NamedSharding(auto(), P("y"))),
        jax.shard_map(lambda k: jax.vmap(random.uniform)(k), mesh=auto(), in_specs=P("y"), out_specs=P("y"))(ks),
    )


RANDOM = {
    "ball": lambda k: random.ball(k, 3, shape=(4,)),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (9,)),
    "beta": lambda k: random.beta(k, 2.0, 3.0, (4,)),
    "binomial": lambda k: random.binomial(k, 10, 0.4, (5,)),
    "bits": lambda k: [random.bits(k, (3,), d) for d in ("uint8", "uint16", "uint32")],
    "categorical": lambda k: random.categorical(k, jnp.arange(4.0), shape=(6,)),
    "cauchy": lambda k: random.cauchy(k, (4,)),
    "chisquare": lambda k: random.chisquare(k, 3.0, (4,)),
    "choice": lambda k: [
        random.choice(k, 9, (4,)),
        random.choice(k, jnp.arange(5), (3,), replace=False),
        random.choice(k, 5, (4,), p=jnp.arange(5) / 10.0),
        random.choice(k, X, (2,), axis=1),
    ],
    "dirichlet": lambda k: random.dirichlet(k, jnp.ones(3), (2,)),
    "double_sided_maxwell": lambda k: random.double_sided_maxwell(k, 0.0, 1.0, (4,)),
    "exponential": lambda k: random.exponential(k, (4,)),
    "f": lambda k: random.f(k, 3.0, 4.0, (4,)),
    "gamma": lambda k: random.gamma(k, 2.5, (4,)),
    "generalized_normal": lambda k: random.generalized_normal(k, 1.5, (4,)),
    "geometric": lambda k: random.geometric(k, 0.3, (4,)),
    "gumbel": lambda k: [random.gumbel(k, (4,)), random.gumbel(k, (4,), mode="high")],
    "laplace": lambda k: random.laplace(k, (4,)),
    "loggamma": lambda k: random.loggamma(k, 2.0, (4,)),
    "logistic": lambda k: random.logistic(k, (4,)),
    "lognormal": lambda k: random.lognormal(k, 0.5, (4,)),
    "maxwell": lambda k: random.maxwell(k, (4,)),
    "multinomial": lambda k: random.multinomial(k, 9, jnp.array([0.2, 0.3, 0.5])),
    "multivariate_normal": lambda k: [
        random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2) * 2, (3,)),
        random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2), method="svd").shape,
    ],
    "normal": lambda k: [
        random.normal(k, (4,)),
        random.normal(k, (3,), "bfloat16"),
        random.normal(k, (2,), "complex64"),
        random.normal(k, (3,), "float16"),
    ],
    "orthogonal": lambda k: random.orthogonal(k, 3),
    "pareto": lambda k: random.pareto(k, 2.0, (4,)),
    "permutation": lambda k: [
        random.permutation(k, 7),
        random.permutation(k, X, axis=1, independent=True)[:2],
        random.permutation(k, X[0]),
    ],
    "poisson": lambda k: random.poisson(k, 3.0, (6,)),
    "rademacher": lambda k: random.rademacher(k, (6,)),
    "randint": lambda k: [random.randint(k, (6,), 0, 100), random.randint(k, (6,), -5, 5, "int8")],
    "rayleigh": lambda k: random.rayleigh(k, 2.0, (4,)),
    "t": lambda k: random.t(k, 4.0, (4,)),
    "triangular": lambda k: random.triangular(k, 0.0, 0.5, 1.0, (4,)),
    "truncated_normal": lambda k: random.truncated_normal(k, -1.0, 2.0, (4,)),
    "uniform": lambda k: [random.uniform(k, (4,)), random.uniform(k, (3,), minval=-2, maxval=V[:3])],
    "wald": lambda k: random.wald(k, 2.0, (4,)),
    "weibull_min": lambda k: random.weibull_min(k, 2.0, 1.5, (4,)),
    "prng": lambda k: [
        random.PRNGKey(3),
        random.key(3),
        random.PRNGKey(2**31),
        random.split(random.PRNGKey(0), (2, 2)),
    ],
}
checks(**{f"random_{name}": functools.partial(lambda f: f(random.key(7)), f) for name, f in RANDOM.items()})

# --- lax and numpy ---------------------------------------------------------------------------------------------------
A = np.array([[4.0, 1, 0.5], [1, 3, 0.2], [0.5, 0.2, 2]], np.float32)
B = np.stack([A, A + np.eye(3, dtype=np.float32)])
C = np.array([[1.0, 2], [3, 4], [5, 7]], np.float32)
checks(
    lax_broadcasts=lambda: [
        lax.add(X, np.ones((1, 8), np.float32)),
        lax.mul(np.ones((8, 1), np.float32), X),
        lax.lt(X, np.ones((1, 1), np.float32)),
        lax.add(X, 1.0),
        lax.max(2.0, X),
    ],
    lax_refused=lambda: [
        refused(lambda: lax.add(X, V)),
        refused(lambda: lax.add(X, np.ones((8, 8), np.int32))),
        refused(lambda: lax.add(X, np.ones((2, 8), np.float32))),
    ],
    traced_k=lambda: [
        jax.jit(lambda k: jnp.eye(4, k=k))(1),
        jax.jit(lambda k: jnp.tril(X, k))(2),
        jax.jit(lambda k: jnp.roll(X, k, 0))(2),
    ],
    linalg_plain=lambda: [
        jnp.linalg.inv(B),
        jnp.linalg.det(B),
        list(jnp.linalg.slogdet(B)),
        jnp.linalg.solve(B, B),
        jnp.linalg.cholesky(B),
        jnp.linalg.norm(A),
        jnp.linalg.norm(A, 2),
        jnp.linalg.norm(B, axis=(1, 2)),
        jnp.linalg.norm(A, "nuc"),
        jnp.linalg.matrix_rank(B),
        jnp.linalg.pinv(C),
        jnp.linalg.matrix_power(A, 3),
        jnp.linalg.cond(A),
        jnp.linalg.svd(B, compute_uv=False),
        jnp.linalg.eigvalsh(B),
        jnp.linalg.lstsq(C, V[:3])[0],
        jnp.linalg.multi_dot([A, A, A]),
        jnp.linalg.tensorsolve(np.eye(4, dtype=np.float32).reshape(2, 2, 2, 2), np.ones((2, 2), np.float32)),
        jnp.linalg.outer(V[:2], V[:2]),
        jnp.linalg.cross(A, A[::-1]),
        jnp.linalg.vecdot(A, A),
        jnp.linalg.trace(A),
        jnp.linalg.diagonal(A),
        jnp.linalg.vector_norm(A),
        jnp.linalg.matrix_norm(A),
        jnp.linalg.matrix_transpose(B),
        jnp.linalg.svdvals(A),
    ],
    linalg_parts=lambda: [
        jnp.abs(jnp.linalg.qr(B)[1]),
        jnp.abs(jnp.linalg.eigh(B)[1]),
        jnp.linalg.eigh(B)[0],
        jnp.sort(jnp.linalg.eigvals(A).real),
        (lambda q, r: q @ r)(*jnp.linalg.qr(C)),
        (lambda u, s, v: (u * s) @ v)(*jnp.linalg.svd(C, full_matrices=False)),
        jsp.linalg.lu(A),
        jsp.linalg.lu_solve(jsp.linalg.lu_factor(A), V[:3]),
        jsp.linalg.cho_solve(jsp.linalg.cho_factor(A), V[:3]),
        jsp.linalg.solve_triangular(np.tril(A), V[:3], lower=True),
        jsp.linalg.expm(A / 4),
        jsp.linalg.block_diag(A, C),
        lax.linalg.triangular_solve(np.tril(A), A, left_side=True, lower=True),
        lax.linalg.lu(A)[0],
        jsp.linalg.toeplitz(V[:3]),
    ],
    linalg_derivatives=lambda: [
        jax.grad(lambda a, f=f: f(a).sum())(B)
        for f in (
            jnp.linalg.inv,
            jnp.linalg.det,
            lambda a: jnp.linalg.slogdet(a)[1],
            lambda a: jnp.linalg.solve(a, jnp.ones((2, 3, 1))),
            jnp.linalg.cholesky,
            lambda a: jnp.linalg.svd(a, compute_uv=False),
            lambda a: jnp.linalg.eigvalsh(a),
            lambda a: jnp.linalg.qr(a)[1] ** 2,
            jnp.linalg.pinv,
            lambda a: jnp.linalg.norm(a, axis=(1, 2)),
            lambda a: jax.vmap(lambda a: jnp.abs(jnp.linalg.lstsq(a, jnp.ones(3))[0]))(a),
            lambda a: jax.vmap(lambda a: jsp.linalg.lu(a)[2])(a),
            lambda a: jnp.abs(jnp.linalg.eigh(a)[1]),
        )
    ],
    linalg_eig=lambda: [
        jnp.sort_complex(jnp.linalg.eig(A + np.array([[0, 2, 0], [-2, 0, 0], [0, 0, 0]], np.float32))[0]),
        jax.grad(lambda a: jnp.abs(jnp.linalg.eigvals(a)).sum())(A + np.diag([0.1, 0.5, 2]).astype(np.float32)),
    ],
    scipy_special=lambda: (
        [
            getattr(jsp.special, n)(np.array([0.3, 0.8, 2.5], np.float32))
            for n in (
                "gammaln",
                "digamma",
                "erf",
                "erfc",
                "expit",
                "log_ndtr",
                "ndtr",
                "ndtri",
                "i0",
                "i0e",
                "i1",
                "i1e",
                "entr",
                "exp1",
                "expi",
                "factorial",
                "gamma",
                "gammasgn",
                "loggamma" if hasattr(jsp.special, "loggamma") else "gamma",
                "spence",
                "log_softmax",
                "softmax",
                "erfcx" if hasattr(jsp.special, "erfcx") else "erfc",
            )
        ]
        + [
            jsp.special.betaln(1.5, V + 2),
            jsp.special.beta(2.0, 3.0),
            jsp.special.betainc(2.0, 3.0, 0.4),
            jsp.special.gammainc(2.0, V + 2),
            jsp.special.gammaincc(2.0, V + 2),
            jsp.special.logit(0.3),
            jsp.special.logsumexp(X, 1),
            jsp.special.xlogy(2.0, 3.0),
            jsp.special.xlog1py(2.0, 3.0),
            jsp.special.zeta(2.0, 1.5),
            jsp.special.polygamma(1, 2.0),
            jsp.special.multigammaln(4.0, 2),
            jsp.special.kl_div(0.3, 0.4),
            jsp.special.rel_entr(0.3, 0.4),
            jsp.special.hyp1f1(1.0, 2.0, 0.5),
            jsp.special.poch(2.0, 3.0),
            jsp.special.bernoulli(4),
            jsp.special.sici(V + 2) if hasattr(jsp.special, "sici") else 0,
            jsp.special.fresnel(V) if hasattr(jsp.special, "fresnel") else 0,
        ]
    ),
    images=lambda: (
        [jax.image.resize(X, (4, 12), m) for m in ("nearest", "linear", "cubic", "lanczos3", "lanczos5")]
        + [
            jax.image.resize(X, (16, 16), "bilinear", antialias=False),
            jax.image.scale_and_translate(X, (8, 8), (0, 1), jnp.array([1.5, 1.0]), jnp.array([0.5, 0.0]), "linear"),
            jax.grad(lambda x: (jax.image.resize(x, (3, 5), "cubic") ** 2).sum())(X),
        ]
    ),
    segments=lambda: (
        [
            f(V, np.array([0, 1, 1, 0, 2, 2, 4, 3]), 5)
            for f in (jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_min, jax.ops.segment_prod)
        ]
        + [
            jax.ops.segment_sum(X, np.array([0, 1, 1, 0, 2, 2, 4, 3]), num_segments=5, indices_are_sorted=False),
            jax.grad(lambda x: (jax.ops.segment_sum(x, np.arange(8) // 2) ** 2).sum())(V),
        ]
    ),
    jnp_more=lambda: [
        jnp.frexp(V + 3),
        jnp.ldexp(V, 2),
        jnp.piecewise(V, [V < 0, V >= 0], [-1, 1]),
        jnp.piecewise(V, [V < 0], [lambda x: -x, lambda x: x * 2]),
        jnp.polyfit(np.arange(5.0), np.arange(5.0) ** 2, 2),
        jnp.packbits(np.array([1, 0, 1, 1], np.uint8)),
        jnp.unpackbits(np.array([5], np.uint8)),
        jnp.unwrap(np.array([0.0, 3, 6.5, 9.9])),
        jnp.r_[1:4, 0, 4],
        jnp.c_[V[:2], V[2:4]],
        jnp.mgrid[0:2, 0:3],
        jnp.ogrid[0:2, 0:3],
        jnp.index_exp[1:2][0] == slice(1, 2),
        jnp.s_[::2] == slice(None, None, 2),
        jnp.ix_(np.arange(2), np.arange(3)),
    ],
    jnp_histograms=lambda: [
        jnp.histogram(V, 4),
        jnp.histogramdd(X[:, :2], 3)[0],
        jnp.histogram2d(V, V, 3)[0],
        jnp.histogram_bin_edges(V, 4),
        jnp.digitize(V, np.array([-0.5, 0.5])),
        jnp.bincount(np.array([0, 1, 1, 5])),
        jnp.searchsorted(V, np.array([0.1, -0.3])),
        jnp.histogram(V, 4, density=True, weights=V + 2),
    ],
    jnp_pads=lambda: (
        [
            *[
                jnp.pad(V[:4], 2, mode=m)
                for m in (
                    "constant",
                    "edge",
                    "reflect",
                    "symmetric",
                    "wrap",
                    "maximum",
                    "minimum",
                    "mean",
                    "median",
                    "linear_ramp",
                    "empty",
                )
            ][:-1],
            jnp.pad(V[:4], (1, 2), constant_values=(7, 8)),
            jnp.pad(X[:2, :2], ((1, 0), (0, 1)), mode="linear_ramp", end_values=3),
            jnp.pad(V[:3], 2, mode=lambda row, pad, axis, kw: row.at[: pad[0]].set(9.0)),
            jnp.pad(V[:4], 5, mode="reflect", reflect_type="odd"),
            jnp.pad(V[:4], 2, mode="mean", stat_length=2),
        ]
    ),
    jnp_inserts=lambda: [
        jnp.insert(V, 2, 9),
        jnp.insert(X[:2, :3], 1, 5, axis=1),
        jnp.insert(V, np.array([1, 3]), np.array([5, 6])),
        jnp.delete(V, 2),
        jnp.delete(X, np.array([0, 2]), axis=0, assume_unique_indices=True),
        jnp.append(V, V[:2]),
        jnp.gradient(V),
        jnp.gradient(X, 2.0),
        jnp.gradient(V, np.arange(8.0) ** 1.5),
        jnp.interp(0.3, V, V**2),
        jnp.interp(np.array([5.0, -3]), V + 1, V, period=2.0),
        jnp.interp(3.0, V, V, left=-9, right="extrapolate"),
        jnp.trapezoid(V, dx=0.5),
        jnp.ediff1d(V, to_end=np.float32(3)),
        jnp.diff(V, n=2, prepend=0.0),
    ],
    jnp_sets=lambda: [
        jnp.unique(np.array([3, 1, 1, 2]), return_index=True, return_inverse=True, return_counts=True),
        jnp.unique(np.array([3, 1, 1, 2]), size=5, fill_value=-1),
        jnp.union1d(np.array([1, 2]), np.array([2, 5])),
        jnp.intersect1d(np.array([1, 2]), np.array([2, 5])),
        jnp.setdiff1d(np.array([1, 2]), np.array([2, 5])),
        jnp.setxor1d(np.array([1, 2]), np.array([2, 5])),
        jnp.isin(np.array([1, 2]), np.array([2, 5])),
        jnp.unique_all(np.array([3, 1, 1])),
        jnp.unique_counts(np.array([3, 1, 1])),
        jnp.unique(X[:2] * 0, axis=0),
    ],
    jnp_where=lambda: [
        jnp.where(V > 0),
        jnp.nonzero(V > 0, size=3, fill_value=-1),
        jnp.argwhere(V > 0, size=2),
        jnp.flatnonzero(V > 0),
        jnp.select([V > 0.5, V > 0], [V, V * 2], 9),
        jnp.choose(np.array([0, 1]), [V[:2], V[2:4]]),
        jnp.compress(np.array([1, 0, 1], bool), V[:3]),
        jnp.extract(V > 0, V),
        jnp.place(V, V > 0, np.float32(3), inplace=False),
        jnp.put(V, np.array([1]), np.float32(9), inplace=False),
        jnp.put_along_axis(V, np.array([1]), np.float32(9), 0, inplace=False),
        jnp.fill_diagonal(A, 0, inplace=False),
        jnp.count_nonzero(V > 0),
        jnp.trim_zeros(np.array([0, 1, 0.0])),
    ],
    jnp_stats=lambda: [
        jnp.percentile(X, 30, axis=1),
        jnp.quantile(V, np.array([0.2, 0.9]), method="nearest"),
        jnp.median(V),
        jnp.nanmean(np.array([1, np.nan, 3])),
        jnp.nanquantile(np.array([1, np.nan, 3]), 0.5),
        jnp.cov(X[:2]),
        jnp.corrcoef(X[:2] ** 2),
        jnp.average(V, weights=V + 2, returned=True),
        jnp.std(V, ddof=1),
        jnp.var(X, where=X > 1),
        jnp.ptp(V),
        jnp.nanargmax(np.array([1, np.nan, 3])),
        jnp.correlate(V, V[:3], "same"),
        jnp.convolve(V, V[:3]),
        jnp.cumulative_sum(V, include_initial=True),
        jnp.cumulative_prod(V),
        jnp.nancumsum(np.array([1, np.nan, 3])),
        jnp.argpartition(V, 3)[:3].shape,
        jnp.partition(V, 3)[3],
        jnp.max(X, where=X < 1, initial=-5.0),
        jnp.lexsort((np.array([1, 0, 1]), np.array([2, 2, 1]))),
    ],
    jnp_polynomials=lambda: [
        jnp.poly(V[:3]),
        jnp.polyval(V[:3], 2.0),
        jnp.polyadd(V[:3], V[:2]),
        jnp.polysub(V[:3], V[:2]),
        jnp.polymul(V[:3], V[:2]),
        jnp.polydiv(V[:4] + 2, V[:2] + 2),
        jnp.polyder(V[:4]),
        jnp.polyint(V[:3]),
        jnp.roots(np.array([1.0, -3, 2])),
        jnp.vander(V[:3], 4),
        jnp.fromfunction(lambda i, j: i + j, (2, 3)),
        jnp.vectorize(lambda a, b: jnp.dot(a, b), signature="(n),(n)->()")(X, V),
        jnp.apply_along_axis(jnp.sum, 0, X),
        jnp.apply_over_axes(jnp.sum, X, (0, 1)),
        jnp.einsum_path("ij,jk->ik", X, X)[0],
        jnp.kron(V[:2], V[:3]),
        jnp.cross(A[0], A[1]),
        jnp.block([[A, A], [A, A]]),
        jnp.divmod(V, 0.3),
        jnp.modf(V * 3),
        jnp.nextafter(V, np.float32(2)),
        jnp.spacing(V),
        jnp.gcd(12, 18),
        jnp.lcm(4, 6),
        jnp.sinc(V),
        jnp.heaviside(V, 0.5),
        jnp.i0(V),
        jnp.float_power(V + 2, 2),
        jnp.bitwise_count(np.array([7, 8], np.uint8)),
        jnp.blackman(5),
        jnp.kaiser(5, 3.0),
        jnp.tril_indices(3),
        jnp.mask_indices(3, jnp.triu),
        jnp.unravel_index(5, (2, 3)),
        jnp.ravel_multi_index((1, 2), (2, 3)),
        jnp.array_split(V, 3),
        jnp.hsplit(X, 2),
        jnp.geomspace(1, 8, 4),
        jnp.logspace(0, 2, 3),
        jnp.linspace(0, 1, 5, retstep=True),
        jnp.rot90(A),
        jnp.angle(1 + 1j),
        jnp.resize(V, (3, 4)),
        jnp.moveaxis(B, 0, 2),
        jnp.astype(V, int),
        jnp.iscomplexobj(V),
        jnp.isdtype(V.dtype, "real floating"),
        jnp.result_type(V, 1),
        jnp.promote_types("int8", "uint8"),
        jnp.can_cast("int8", "int16"),
        jnp.finfo("bfloat16").eps,
        jnp.iinfo("int8").max,
        jnp.array_equal(V, V),
        jnp.array_equiv(X, X[0]),
        jnp.isclose(V, V + 1e-9),
        jnp.matvec(A, V[:3]),
        jnp.vecmat(V[:3], A),
        jnp.permute_dims(B, (2, 0, 1)),
        jnp.concat([V, V]),
        jnp.unstack(A),
        jnp.clip(V, min=0),
        jnp.round(V, 1),
        jnp.ufunc is not None,
    ],
    ufuncs=lambda: [
        jnp.add.reduce(X, axis=0),
        jnp.add.accumulate(V),
        jnp.multiply.outer(V[:2], V[:3]),
        jnp.add.at(V, np.array([0]), np.float32(1), inplace=False),
        jnp.frompyfunc(lambda a, b: a + b + a * b, 2, 1, identity=0).reduce(V[:4]),
        jnp.add.reduceat(V, np.array([0, 3])),
        jnp.logical_and.reduce(V > -2),
    ],
    structs=lambda: [
        jax.ShapeDtypeStruct.like(X)
        if hasattr(jax.ShapeDtypeStruct, "like")
        else jax.ShapeDtypeStruct((8, 8), np.float32),
        jax.ShapeDtypeStruct((2, 3), jnp.bfloat16),
        jax.ShapeDtypeStruct((4,), np.float32).update(shape=(5,)),
        jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(auto(), P("x"))),
        jax.ShapeDtypeStruct((2,), np.int32).size,
        jax.ShapeDtypeStruct((2,), np.int32) == jax.ShapeDtypeStruct((2,), np.int32),
        jax.eval_shape(lambda x: x @ x, X),
        repr(jax.ShapeDtypeStruct((2,), np.int32)),
    ],
    small_types=lambda: (
        [jnp.asarray([1, -2, 7], t).astype(np.float32) for t in ("int4", "int8", "int2") if hasattr(jnp, t)]
        + [
            jnp.asarray([1.1, -2.6, 0.3], getattr(jnp, t)).astype(np.float32)
            for t in (
                "float8_e4m3fn",
                "float8_e5m2",
                "float8_e4m3b11fnuz",
                "float8_e4m3fnuz",
                "float8_e5m2fnuz",
                "float8_e3m4",
                "float8_e4m3",
                "float8_e8m0fnu",
                "float4_e2m1fn",
            )
            if hasattr(jnp, t)
        ]
        + [
            jnp.asarray([3, -3], jnp.int4).astype(int) * 2,
            lax.bitcast_convert_type(np.float32(1), np.int32),
            jnp.arange(3, dtype=jnp.int4).dtype.name,
            jnp.float32(3) + jnp.bfloat16(2),
            lax.dot_general(
                jnp.ones((2, 2), "int8"),
                jnp.ones((2, 2), "int8"),
                (((1,), (0,)), ((), ())),
                preferred_element_type=np.int32,
            ),
        ]
    ),
    nn_names=lambda: (
        [
            getattr(jax.nn, n)(V)
            for n in (
                "relu",
                "relu6",
                "sigmoid",
                "softplus",
                "sparse_plus",
                "sparse_sigmoid",
                "soft_sign",
                "silu",
                "swish",
                "log_sigmoid",
                "leaky_relu",
                "hard_sigmoid",
                "hard_silu",
                "hard_tanh",
                "elu",
                "celu",
                "selu",
                "gelu",
                "glu",
                "squareplus",
                "mish",
                "identity",
                "softmax",
                "log_softmax",
                "logsumexp",
                "standardize",
                "tanh",
                "relu_sq" if hasattr(jax.nn, "relu_sq") else "relu",
                "hard_swish",
                "logmeanexp" if hasattr(jax.nn, "logmeanexp") else "relu",
            )
        ]
        + [
            jax.nn.gelu(V, approximate=False),
            jax.nn.one_hot(np.array([0, 3]), 4, dtype=int, axis=0),
            jax.nn.softmax(X, axis=0, where=X > 1),
            jax.nn.dot_product_attention(*(X.reshape(2, 4, 2, 4),) * 3, is_causal=True),
            jax.nn.dot_product_attention(
                X.reshape(2, 4, 2, 4),
                X.reshape(2, 4, 2, 4)[:, :, :1],
                X.reshape(2, 4, 2, 4)[:, :, :1],
                scale=0.3,
                local_window_size=1,
            ),
            jax.nn.scaled_matmul is not None,
        ]
    ),
    initializers=lambda: (
        [
            getattr(jax.nn.initializers, n)()(random.key(0), (4, 6))
            for n in (
                "normal",
                "uniform",
                "glorot_normal",
                "glorot_uniform",
                "he_normal",
                "he_uniform",
                "lecun_normal",
                "lecun_uniform",
                "xavier_normal",
                "xavier_uniform",
                "kaiming_normal",
                "kaiming_uniform",
                "orthogonal",
                "truncated_normal",
            )
        ]
        + [
            jax.nn.initializers.zeros(None, (2,)),
            jax.nn.initializers.ones(None, (2,)),
            jax.nn.initializers.constant(3)(None, (2,)),
            jax.nn.initializers.variance_scaling(2.0, "fan_avg", "uniform")(random.key(0), (3, 4)),
            jax.nn.initializers.delta_orthogonal()(random.key(0), (3, 3, 4)),
        ]
    ),
    loops=lambda: [
        lax.scan(lambda c, x: (c + x, c * x), 0.0, V),
        lax.scan(lambda c, x: (c + x, c), V, X, reverse=True, unroll=2)[1],
        lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 2), (0, 1.0)),
        lax.fori_loop(0, 4, lambda i, c: c + i, 0),
        jax.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0.0))(4),
        lax.map(lambda x: x**2, V, batch_size=3),
        lax.associative_scan(jnp.add, V),
        lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] + b[1]), (V, V), reverse=True),
        lax.switch(1, [jnp.sin, jnp.cos], V),
        lax.cond(V[0] > 0, lambda x: x, lambda x: -x, V),
        lax.cumlogsumexp(V),
        lax.cummax(V),
        lax.platform_dependent(V, cpu=jnp.sin, default=jnp.cos),
        jax.grad(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=5)[0])(0.3),
        lax.custom_root(
            lambda x: x**2 - 2.0,
            1.0,
            lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x),
            lambda g, y: y / g(1.0),
        ),
        lax.custom_linear_solve(lambda x: 2 * x, V, lambda mv, b: b / 2, symmetric=True),
    ],
    loops_refused=lambda: [
        refused(lambda: lax.scan(lambda c, x: (c.astype(int), x), 0.0, V)),
        refused(lambda: lax.cond(True, lambda: 1, lambda: 1.0 * V)),
        refused(lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0)),
        refused(lambda: lax.scan(lambda c, x: (c, x), 0.0, (V, V[:3]))),
        refused(lambda: jax.jit(lambda x: 1 if x > 0 else 2)(1.0)),
        refused(lambda: jax.jit(lambda x: np.asarray(x))(1.0)),
        refused(lambda: jax.jit(lambda n: jnp.zeros(n))(3)),
        refused(lambda: jnp.ones((2, 3)) @ jnp.ones((2, 3))),
        refused(lambda: jnp.reshape(V, (3, 3))),
        refused(lambda: jnp.concatenate([X, V])),
        refused(lambda: X @ jnp.ones(3)),
        refused(lambda: jnp.ones(3)[3, 4]),
        refused(lambda: jax.jit(lambda x: x[x > 0])(jnp.ones(3))),
        refused(lambda: jnp.zeros((-1,))),
        refused(lambda: jnp.array(["a"])),
        refused(lambda: jnp.sum("a")),
        refused(lambda: jnp.expand_dims(V, 5)),
        refused(lambda: jnp.einsum("ij,jk", X)),
        refused(lambda: jnp.sum(X, axis=5)),
        refused(lambda: X + jnp.ones((3,))),
        refused(lambda: NamedSharding(auto(), P("nowhere"))),
        refused(lambda: jax.device_put(X, NamedSharding(auto(), P("x", "x")))),
        refused(lambda: jax.make_mesh((3, 4), ("x", "y"))),
        refused(lambda: jax.device_put(V[:3], NamedSharding(auto(), P("x")))),
        refused(lambda: lax.with_sharding_constraint(X, P("x"))),
        refused(lambda: jax.shard_map(lambda x: x, mesh=auto(), in_specs=P("x", "y"), out_specs=P())(V)),
        refused(lambda: jax.shard_map(lambda x: x, mesh=auto(), in_specs=P("x"), out_specs=P("x"))(np.ones(3))),
    ],
    lax_names=lambda: [
        lax.rsqrt(X + 1),
        lax.integer_pow(X, 3),
        lax.cbrt(X),
        lax.erf_inv(V * 0.9),
        lax.expm1(V),
        lax.log1p(V + 2),
        lax.population_count(np.array([7], np.int32)),
        lax.clz(np.array([7], np.int32)),
        lax.shift_left(np.int32(1), np.int32(3)),
        lax.sort((V[::-1], np.arange(8)), num_keys=1),
        lax.sort((np.array([1, 0, 1]), np.array([3, 2, 1])), num_keys=2),
        lax.argmax(X, 1, np.int32),
        lax.conv(X.reshape(1, 1, 8, 8), np.ones((1, 1, 3, 3), np.float32), (1, 1), "SAME"),
        lax.conv_transpose(X.reshape(1, 8, 8, 1), np.ones((3, 3, 1, 2), np.float32), (2, 2), "SAME"),
        lax.batch_matmul(B, B),
        lax.gather(X, np.array([[0], [2]]), lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 8)),
        lax.scatter_add(X, np.array([[0]]), np.ones((1, 8), np.float32), lax.ScatterDimensionNumbers((1,), (0,), (0,))),
        lax.dynamic_update_index_in_dim(X, V, 2, 0),
        lax.pad(V, np.float32(0), [(1, 2, 1)]),
        lax.collapse(B, 0, 2),
        lax.expand_dims(V, (0, 2)),
        lax.full_like(V, 3),
        lax.top_k(V, 3),
        lax.approx_max_k(V, 3),
        lax.approx_min_k(V, 3),
        lax.stop_gradient(V),
        lax.zeros_like_array(V) if hasattr(lax, "zeros_like_array") else V,
        lax.complex(V, V),
        lax.conj(V + 1j * V),
        lax.nextafter(V, V + 1),
        lax.betainc(*(np.float32(n) for n in (2, 3, 0.4))),
        lax.igamma(np.float32(2), np.float32(0.5)),
        lax.random_gamma_grad(np.float32(2), np.float32(0.5)),
        lax.bessel_i0e(V),
        lax.dot(X, X, precision=lax.Precision.HIGHEST),
        lax.optimization_barrier(V),
        lax.split(V, (3, 5)),
        lax.tile(V, (2,)) if hasattr(lax, "tile") else V,
        lax.square(V),
        lax.round(V * 3, lax.RoundingMethod.TO_NEAREST_EVEN),
        lax.is_finite(V),
        lax.conv_general_dilated_patches(X.reshape(1, 1, 8, 8), (2, 2), (2, 2), "VALID"),
        lax.fft(V + 0j, "FFT", (8,)),
        lax.ragged_all_to_all is not None,
        lax.exp2(V),
        lax.logistic(V),
        lax.linalg.cholesky(A),
        lax.linalg.qr(A)[0].shape,
        lax.linalg.svd(A)[1],
        lax.linalg.eigh(A)[1],
        lax.linalg.tridiagonal_solve(
            np.array([0, 1.0, 1]), np.array([4.0, 4, 4]), np.array([1.0, 1, 0]), np.ones((3, 1))
        ),
    ],
    fft_names=lambda: [
        jnp.fft.fft(V),
        jnp.fft.ifft(V + 1j),
        jnp.fft.rfft(V),
        jnp.fft.irfft(V[:5] + 0j),
        jnp.fft.fft2(X),
        jnp.fft.fftn(X),
        jnp.fft.fftshift(V),
        jnp.fft.fftfreq(5),
        jnp.fft.rfft2(X),
        jnp.fft.hfft(V[:4] + 0j),
    ],
    scipy_more=lambda: [jsp.stats.norm.logpdf(V)],
    weak_types=lambda: [
        jnp.ones(2) + 1,
        jnp.ones(2, int) * 2.0,
        jnp.asarray(1) + 1.5,
        jnp.array(2.0) * jnp.int8(3),
        jnp.where(True, 1, 2.0),
        jnp.full(2, 3),
        jnp.sum(jnp.asarray(1.0)),
        jnp.arange(3) / 2,
        jnp.float16(1) * 2.5,
        jnp.int8(100) + 100,
        lax.scan(lambda c, x: (c * 2, x), 1, None, length=3)[0],
        jnp.maximum(1, 2.5),
        jnp.exp(1),
        jax.jit(lambda x: x)(3),
        jax.grad(lambda x: x**2)(3.0),
        jnp.add(1, 2),
        jnp.stack([1, 2.0]),
        True + jnp.ones(2),
        jnp.power(2, jnp.arange(3)),
        2 ** jnp.arange(3.0),
        jnp.int32(3) // 2,
        jnp.int32(3) / 2,
        jnp.uint8(3) - 5,
        jnp.clip(jnp.arange(3), 0.5, 2),
        jnp.mean(jnp.arange(3)),
        jnp.sign(-2),
        abs(jnp.asarray(-1)),
        jnp.bool_(True) + 1,
        jnp.asarray(3, "int8") << 2,
    ],
)
checks(
    x64=lambda: _wide(),
    donated_twice=lambda: _donated_twice(),
    with_aux_tree=lambda: jax.value_and_grad(lambda p: (p["a"] @ p["b"], {"n": p["a"].sum()}), has_aux=True)(
        {"a": V, "b": V}
    ),
)


def _wide():
    with jax.enable_x64(True):
        return (
            jnp.arange(3.0),
            jnp.asarray(1),
            random.normal(random.key(0), (3,)),
            jnp.float32(1) + 1.0,
            jnp.sum(np.ones(3)),
            jnp.arange(3) * 1.5,
        )


def _donated_twice():
    f = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x = jnp.asarray(X)  # jax 0.10 crashes where the array is on several devices
    f(x, X)
    return refused(lambda: f(x, X)), x.is_deleted()


@check
def fori_loops():
    """The number of the step is as weak as one of Python's."""

    def body(i, c):
        return c + i

    arrays = [jnp.int8(0), jnp.float16(0), jnp.int32(1), 0, 0.5]
    return [
        [lax.fori_loop(0, 4, body, x) for x in arrays],
        [lax.fori_loop(jnp.int32(0), jnp.int32(4), body, x) for x in arrays],
        [jax.jit(lambda n, x: lax.fori_loop(0, n, body, x))(4, x) for x in arrays],
        jax.jit(lambda n: lax.fori_loop(n, 5, body, 0))(jnp.int8(2)),
        lax.fori_loop(0, 3, lambda i, c: c + jnp.arange(5)[i] + i, 0),
    ]


# --- where things are ------------------------------------------------------------------------------------------------
def _committed():
    one, two = (jax.device_put(X, jax.devices()[n]) for n in (1, 2))
    placed = jax.device_put(X, NamedSharding(auto(), P("x")))
    other = jax.device_put(X, NamedSharding(auto((4, 2)), P("x")))
    moved = [
        one + 1,
        one @ one,
        jax.jit(lambda x: x * 2)(one),
        jnp.sum(one),
        jax.grad(lambda x: x.sum())(one),
        one[0],
        jnp.ones_like(one),
        one.astype(int),
    ]
    return [
        [[d.id for d in m.devices()] for m in moved],
        refused(lambda: one + two),
        refused(lambda: jax.jit(lambda a, b: a + b)(one, placed)),
        refused(lambda: jax.jit(lambda a: a, in_shardings=NamedSharding(auto(), P("x")))(one)),
        refused(lambda: placed + other),
        refused(lambda: one + placed),
        one + X,
        placed + X,
        placed + jnp.ones(8),
    ]


def _new_on_mesh():
    with jax.set_mesh(explicit()):
        made = [
            jnp.ones((4, 4)),
            jnp.zeros(3),
            jnp.arange(4),
            jnp.asarray(X),
            jnp.eye(2),
            random.key(0),
            jnp.array(1.0),
            jax.device_put(X, P("x")),
            jnp.full((2,), 1),
            jnp.linspace(0, 1, 3),
        ]
        return [show(x.sharding) for x in made]


checks(committed=_committed, new_on_mesh=_new_on_mesh)


@check
def retraced():
    n = []

    def f(x):
        n.append(1)
        return jnp.sin(x)

    g, h = jax.checkpoint(f), jax.jit(f)
    for _ in range(3):
        g(V), jax.grad(lambda x: g(x).sum())(V)
    first = len(n)
    for x in (V, V, X, V.astype("float16"), X):
        h(x)
    return first, len(n)


@check
def newer_names():
    return [
        hasattr(jax, n)
        for n in (
            "reshard",
            "shard_map",
            "P",
            "NamedSharding",
            "set_mesh",
            "smap",
            "make_mesh",
            "typeof",
            "ref",
            "new_ref",
            "freeze",
        )
    ]


@check
def references():
    r = jax.new_ref(jnp.zeros(3))

    def f(r, x):
        r[...] += x
        r[0] = 9.0
        return r[1]

    y = f(r, jnp.ones(3))
    return y, r[...], jax.freeze(r)


@check
def flattened():
    flat, back = jax.flatten_util.ravel_pytree({"a": X, "b": (V, 1.0)})
    return flat, back(flat * 2)


@check
def multihost():
    from jax.experimental import mesh_utils, multihost_utils

    return (
        mesh_utils.create_device_mesh((2, 4)).shape,
        multihost_utils.process_allgather(jnp.ones(2)),
        multihost_utils.broadcast_one_to_all(X),
    )


@check
def iterated():
    return (
        [int(x) for x in jnp.arange(5)],
        [x.shape for x in jnp.ones((3, 2))],
        next(iter(jnp.arange(3))),
        len(list(jnp.arange(2000))),
        [show(r) for r in jax.device_put(X, NamedSharding(auto(), P("x")))][:1],
        next(reversed(jnp.arange(3))),
        2 in jnp.arange(3),
    )


def _shard_alike():
    from jax.experimental.shard_alike import shard_alike

    return shard_alike


def main():
    wanted = sys.argv[1:]
    for name, call in CHECKS.items():
        if wanted and name not in wanted:
            continue
        try:
            found = show(call())
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:700]}
        print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main()
