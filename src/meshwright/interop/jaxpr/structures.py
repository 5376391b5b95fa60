"""What has a program inside, in JAX and here: calls, loops, branches, checkpoints, derivative rules, ``shard_map``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright import lax
from meshwright.api.custom import checkpoint, checkpoint_name, custom_jvp, custom_vjp
from meshwright.api.reshard import with_sharding_constraint
from meshwright.api.shard_map import shard_map
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import MeshwrightError
from meshwright.interop.jaxpr.equations import alone
from meshwright.interop.jaxpr.shardings import is_said, mesh_of, named, spec_of
from meshwright.sharding.spec import P, entry_axes
from meshwright.transform import policies

if TYPE_CHECKING:
    from meshwright.interop.jaxpr.reader import Reader

Structure = Callable[["Reader", Any, list[Value]], Sequence[Any]]


def _call(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """A jitted function is written out where it stands, with what it says of its shardings."""
    params = eqn.params
    jaxpr = params.get("jaxpr", params.get("call_jaxpr"))
    arguments, outcomes = (params.get(name, ()) for name in ("in_shardings", "out_shardings"))
    xs = [constrained(x, s) for x, s in zip(xs, arguments or (None,) * len(xs), strict=True)]
    outs = reader.function(jaxpr)(*xs)
    return [constrained(x, s) for x, s in zip(outs, outcomes or (None,) * len(outs), strict=True)]


def constrained(x: Value, sharding: Any) -> Any:
    """A value with what JAX says of its sharding, if it says anything."""
    return with_sharding_constraint(x, named(sharding)) if is_said(sharding) else x


def _constraint(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    return [constrained(xs[0], eqn.params.get("sharding", eqn.params.get("dst_sharding")))]


def _scan(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    p = eqn.params
    # From jax 0.12 on, arguments are counted by their trees: what the body closes over, what it carries, rows.
    consts, carry = map(len, p["ft_in"].unpack()[:2]) if "ft_in" in p else (p["num_consts"], p["num_carry"])
    body = reader.function(p["jaxpr"])

    def step(held: Sequence[Any], row: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        outs = body(*xs[:consts], *held, *row)
        return outs[:carry], outs[carry:]

    rows = tuple(xs[consts + carry :])
    held, stacked = lax.scan(
        step, tuple(xs[consts : consts + carry]), rows, length=p["length"], reverse=p["reverse"], unroll=p["unroll"]
    )
    return [*held, *stacked]


def _high(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """An op that JAX itself writes by others, from jax 0.12 on: as these."""
    import jax

    high = eqn.params["_prim"]

    def written_out(*leaves: Any) -> Any:
        return jax.tree.leaves(high.expand(*jax.tree.unflatten(high.in_tree, leaves)))

    return list(reader.function(jax.make_jaxpr(written_out)(*[_struct(x.aval) for x in eqn.invars]))(*xs))


def _while(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    p = eqn.params
    first, second = p["cond_nconsts"], p["body_nconsts"]
    test, body = reader.function(p["cond_jaxpr"]), reader.function(p["body_jaxpr"])
    tested, kept, start = xs[:first], xs[first : first + second], tuple(xs[first + second :])
    if not p["cond_jaxpr"].out_avals[0].shape:
        return list(lax.while_loop(lambda c: test(*tested, *c)[0], lambda c: body(*kept, *c), start))

    def still(carry: tuple[Any, ...]) -> Any:
        """Whether any of the loops that ``jax.vmap`` made one of goes on."""
        going = test(*tested, *carry)[0]
        return lax.reduce_or(going, tuple(range(going.ndim)))

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next values of the loops that go on; the others keep theirs."""
        going = test(*tested, *carry)[0]
        dims = tuple(range(going.ndim))
        pairs = zip(carry, body(*kept, *carry), strict=True)
        return tuple(lax.select(lax.broadcast_in_dim(going, x.shape, dims), new, x) for x, new in pairs)

    return list(lax.while_loop(still, step, start))


def _cond(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    index, *operands = xs
    if index.dtype == np.bool_:
        index = lax.convert_element_type(index, np.int32)
    branches = [reader.function(branch) for branch in eqn.params["branches"]]
    return list(lax.switch(index, branches, *operands))


def _struct(aval: Any) -> Any:
    """What stands for an argument while JAX traces."""
    import jax

    make: Any = jax.ShapeDtypeStruct
    return make(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _floating(aval: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact))


def _custom_jvp(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """A function with a rule for its tangents; the rule is asked of JAX when somebody differentiates it here."""
    import jax

    p = eqn.params
    function = custom_jvp(reader.function(p.get("call_jaxpr", p.get("jaxpr"))))
    structs = [_struct(x.aval) for x in eqn.invars]

    @lru_cache(1)
    def rule() -> Any:
        one = alone(eqn)

        def pushed(primals: Any, tangents: Any) -> Any:
            given = [
                t if _floating(x) else np.zeros(x.shape, jax.dtypes.float0)
                for t, x in zip(tangents, primals, strict=True)
            ]
            outs, pushed = jax.jvp(one, primals, given)
            return outs, [t for t, x in zip(pushed, outs, strict=True) if _floating(x)]

        return jax.make_jaxpr(pushed)(structs, structs)

    @function.defjvp
    def push(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        outs = reader.function(rule())(*primals, *tangents)
        values = tuple(outs[: len(eqn.outvars)])
        found = iter(outs[len(eqn.outvars) :])
        return values, tuple(
            next(found) if _floating(v.aval) else _none(x) for v, x in zip(eqn.outvars, values, strict=True)
        )

    return list(function(*xs))


def _none(x: Value) -> Any:
    """The tangent of an integer."""
    return lax.full_like(x, 0)


def _custom_vjp(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    params = eqn.params
    return _with_pullback(reader, eqn, reader.function(params.get("call_jaxpr", params.get("fun_jaxpr"))), xs)


def _with_pullback(reader: Reader, eqn: Any, call: Callable[..., Any], xs: list[Value]) -> Sequence[Any]:
    """A function with a rule for its cotangents; the rule is asked of JAX when somebody differentiates it here."""
    import jax

    function = custom_vjp(call)
    structs = [_struct(x.aval) for x in eqn.invars]
    floating = [_floating(x.aval) for x in eqn.invars]

    @lru_cache(1)
    def rules() -> tuple[Any, Any, int]:
        one = alone(eqn)
        shape: list[Any] = []

        def forward(*primals: Any) -> Any:
            def of_floats(*floats: Any) -> Any:
                given = iter(floats)
                return one(*(next(given) if is_float else x for x, is_float in zip(primals, floating, strict=True)))

            outs, pull = jax.vjp(of_floats, *(x for x, is_float in zip(primals, floating, strict=True) if is_float))
            leaves, container = jax.tree.flatten(pull)
            shape[:] = [container]
            return outs, leaves

        ahead, (_, leaves) = jax.make_jaxpr(forward, return_shape=True)(*structs)

        def backward(residuals: Any, cotangents: Any) -> Any:
            return jax.tree.unflatten(shape[0], residuals)(cotangents)

        back = jax.make_jaxpr(backward)([_struct(x) for x in leaves], [_struct(x.aval) for x in eqn.outvars])
        return ahead, back, len(eqn.outvars)

    def forward(*primals: Any) -> Any:
        ahead, _, count = rules()
        outs = reader.function(ahead)(*primals)
        return tuple(outs[:count]), tuple(outs[count:])

    def backward(residuals: Any, cotangents: Any) -> Any:
        found = iter(reader.function(rules()[1])(*residuals, *cotangents))
        return tuple(next(found) if is_float else None for is_float in floating)

    function.defvjp(forward, backward)
    return list(function(*xs))


# What the values are called that a policy of JAX keeps
KEPT, OFFLOADED = "kept by the policy", "offloaded by the policy"


def _remat(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """A checkpoint. What its policy says of JAX's equations is said of the values that they become."""
    policy, jaxpr = eqn.params["policy"], eqn.params["jaxpr"]
    kept = None if policy is None else policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[KEPT], names_which_can_be_offloaded=[OFFLOADED],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip
    return list(checkpoint(type(reader)(policy, reader.outside).function(jaxpr), policy=kept)(*xs))


def _shard_map(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    p = eqn.params
    mesh = mesh_of(p["mesh"])
    manual = p.get("newly_manual_axes", p.get("manual_axes")) or frozenset(mesh.axis_names)
    body = reader.function(p["jaxpr"])
    out_specs = tuple(spec_of(spec) for spec in p["out_specs"])
    if not p.get("check_vma", p.get("check_rep", True)):
        out_specs = tuple(_said_equal(spec, manual) for spec in out_specs)
    return list(
        shard_map(
            body,
            mesh=mesh,
            in_specs=tuple(spec_of(spec) for spec in p["in_specs"]),
            out_specs=out_specs,
            axis_names=tuple(name for name in mesh.axis_names if name in manual),
        )(*xs)
    )


def _said_equal(spec: Any, manual: frozenset[str]) -> Any:
    """A spec of a result whose type does not say that devices along the other axes have the same."""
    used = {axis for entry in spec.partitions for axis in entry_axes(entry)}
    rest = {axis for axis in manual if axis not in used}
    return P(*spec.partitions, replicated=rest) if rest else spec


def _axes(params: dict[str, Any]) -> tuple[str, ...]:
    """The mesh axes of a collective."""
    found = params.get("axes", params.get("axis_name"))
    axes = found if isinstance(found, tuple) else (found,)
    if any(isinstance(axis, int) for axis in axes):
        raise MeshwrightError(
            "A collective along a batched dim cannot become part of a program.",
            where=here(),
            why="it stands in a jax.vmap with axis_name, and moves elements from one example to others",
            fix="jax.shard_map over a mesh axis of this name",
        )
    if params.get("axis_index_groups") is not None:
        raise MeshwrightError(
            "A collective with axis_index_groups cannot become part of a program.",
            where=here(),
            why="groups of devices are parts of a mesh axis here",
            fix="a mesh with an axis for the groups: jax.make_mesh((2, 4), ('group', 'member'))",
        )
    return axes


def _collective(function: Callable[..., Any], **named: str) -> Structure:
    """A collective: ``named`` says which of JAX's params is which argument of ours."""

    def rule(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
        given = {ours: eqn.params[theirs] for ours, theirs in named.items()}
        return [function(x, _axes(eqn.params), **given) for x in xs]

    return rule


def _total(function: Callable[..., Any], reduction: Callable[..., Any]) -> Structure:
    """A sum or extreme over devices, and over dims that ``jax.vmap`` made of an axis's name."""

    def rule(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
        axes = eqn.params["axes"]
        dims = tuple(axis for axis in axes if isinstance(axis, int))
        names = _axes({**eqn.params, "axes": tuple(axis for axis in axes if not isinstance(axis, int))})
        xs = [reduction(x, dims) for x in xs] if dims else xs
        return [function(x, names) for x in xs] if names else xs

    return rule


def _axis_index(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    return [lax.axis_index(_axes(eqn.params))]


def _named(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    return [checkpoint_name(xs[0], eqn.params["name"])]


def _linear_solve(reader: Reader, eqn: Any, xs: list[Value]) -> Sequence[Any]:
    """``custom_linear_solve``: what solves it; its derivative solves the transposed system, as JAX says."""
    lengths, solve = eqn.params["const_lengths"], reader.function(eqn.params["jaxprs"].solve)
    before = lengths.matvec + lengths.vecmat

    def solved(*values: Any) -> tuple[Any, ...]:
        return solve(*values[before : before + lengths.solve], *values[sum(lengths) :])

    return _with_pullback(reader, eqn, solved, xs)


STRUCTURES: dict[str, Structure] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "core_call": _call,
    "custom_lin": _call,
    "remat2": _remat,
    "checkpoint": _remat,
    "name": _named,
    "call_hi_primitive": _high,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "custom_vjp_call_jaxpr": _custom_vjp,
    "custom_linear_solve": _linear_solve,
    "sharding_constraint": _constraint,
    "reshard": _constraint,
    "shard_map": _shard_map,
    "psum": _total(lax.psum, lax.reduce_sum),
    "psum_invariant": _total(lax.psum, lax.reduce_sum),
    "pmax": _total(lax.pmax, lax.reduce_max),
    "pmin": _total(lax.pmin, lax.reduce_min),
    "pvary": _collective(lax.pbroadcast),
    "all_gather": _collective(lax.all_gather, axis="all_gather_dimension", tiled="tiled"),
    "all_gather_invariant": _collective(lax.all_gather_invariant, axis="all_gather_dimension", tiled="tiled"),
    "reduce_scatter": _collective(lax.psum_scatter, scatter_dimension="scatter_dimension", tiled="tiled"),
    "all_to_all": _collective(lax.all_to_all, split_axis="split_axis", concat_axis="concat_axis", tiled="tiled"),
    "ppermute": _collective(lax.ppermute, perm="perm"),
    "axis_index": _axis_index,
}
