"""Policies of checkpoint: gradients are those without one; what is kept and how often matmuls run is as in JAX."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.ad_checkpoint
import jax.extend
import numpy as np
import pytest
from hypothesis import given
from jax._src.ad_checkpoint import saved_residuals as jax_residuals
from tests.transform.random_programs import EVERYTHING, WHILE, Drawn, programs
from tests.transform.test_random_programs import close, of_floats, sampled, weighted

import meshwright as mw
from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Program
from meshwright.core.trace import run
from meshwright.transform.stack import stack

D, FF, HEADS, LENGTH, BATCH, LAYERS = 8, 12, 2, 5, 3, 4


def by_lot(seed: int) -> Callable[..., bool]:
    """A policy that keeps about half of all values, always the same ones."""

    def policy(op: Any, *types: Any, **params: Any) -> bool:
        return zlib.crc32(f"{seed} {op} {types}".encode()) % 2 == 0

    return policy


def no_matmul(op: Any, *types: Any, **params: Any) -> bool:
    return "dot_general" not in str(op)


def policies(p: Any) -> dict[str, Any]:
    known = p.checkpoint_policies
    return {
        "none": None,
        "everything": known.everything_saveable,
        "nothing": known.nothing_saveable,
        "dots": known.dots_saveable,
        "dots without batch": known.dots_with_no_batch_dims_saveable,
        "names": known.save_only_these_names("q", "hidden"),
        "other names": known.save_any_names_but_these("q", "scores"),
        "dots and names": known.save_from_both_policies(
            known.dots_with_no_batch_dims_saveable, known.save_only_these_names("scores")
        ),
        "offloaded dots": known.offload_dot_with_no_batch_dims("device", "pinned_host"),
        "offloaded names": known.save_and_offload_only_these_names(
            names_which_can_be_saved=["q"],
            names_which_can_be_offloaded=["hidden", "scores"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }


OURS = {
    **policies(mw),
    "anything but": mw.checkpoint_policies.save_anything_except_these_names("q", "hidden"),
    "half": by_lot(1),
    "all offloaded": lambda op, *types, **params: mw.checkpoint_policies.Offloadable("device", "pinned_host"),
    "the other half": by_lot(2),
    "no matmul": no_matmul,
}

# Gradients, on random programs


@pytest.mark.parametrize("policy", [name for name in OURS if name not in ("none", "nothing")])
@sampled(12)
@given(drawn=programs(EVERYTHING - {WHILE}))
def test_a_policy_leaves_the_gradient_as_it_is(policy: str, drawn: Drawn) -> None:
    if not drawn.floats:
        return
    arrays = drawn.arrays()
    floats = [arrays[n] for n in drawn.floats]
    numbers = tuple(range(len(floats)))
    plain = of_floats(drawn, mw, arrays)
    kept = mw.checkpoint(plain, policy=OURS[policy])
    expected = mw.grad(weighted(plain, mw), argnums=numbers)(*floats)
    tolerance = 0.1 if drawn.rounded else 1e-4
    close(mw.grad(weighted(kept, mw), argnums=numbers)(*floats), expected, tolerance)
    close(mw.jit(mw.grad(weighted(kept, mw), argnums=numbers))(*floats), expected, tolerance)


# A layer on either library


def attention(p: Any, x: Any, w: dict[str, Any]) -> Any:
    np_, name = p.numpy, p.ad_checkpoint.checkpoint_name
    q = name((x @ w["q"]).reshape(*x.shape[:-1], HEADS, -1), "q")
    k, v = ((x @ w[n]).reshape(*x.shape[:-1], HEADS, -1) for n in "kv")
    scores = name(np_.einsum("...shd,...thd->...hst", q, k), "scores")
    out = np_.einsum("...hst,...thd->...shd", p.nn.softmax(scores, axis=-1), v)
    return out.reshape(x.shape) @ w["o"]


def mlp(p: Any, x: Any, w: dict[str, Any]) -> Any:
    hidden = p.ad_checkpoint.checkpoint_name(p.numpy.tanh(x @ w["up"]), "hidden")
    return p.numpy.tanh(hidden @ w["down"])


def layer(p: Any, x: Any, w: dict[str, Any]) -> Any:
    x = x + attention(p, x, w)
    return x + mlp(p, x, w)


def weights(*stacked: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D), "up": (D, FF), "down": (FF, D)}
    return {n: random.normal(0, 0.3, (*stacked, *shape)).astype(np.float32) for n, shape in shapes.items()}


X = np.random.default_rng(1).normal(size=(BATCH, LENGTH, D)).astype(np.float32)


def model(p: Any, how: str, policy: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A model of one or more layers, where each or all of them is a checkpoint."""
    remat = lambda f: p.checkpoint(f, policy=policy)
    one = lambda x, w: layer(p, x, w)
    scanned = lambda f: lambda x, w: p.lax.scan(lambda c, wi: (f(c, wi), None), x, w)[0]
    each = lambda f: lambda x, w: [x := f(x, {n: v[i] for n, v in w.items()}) for i in range(LAYERS)][-1]
    chosen = lambda x, w: p.lax.cond(x.sum() > 0, one, lambda x, w: mlp(p, x, w), x, w)
    return {
        "an MLP": (remat(lambda x, w: mlp(p, x, w)), weights()),
        "a layer": (remat(one), weights()),
        "a batch of layers": (p.vmap(remat(one), in_axes=(0, None)), weights()),
        "layers": (each(remat(one)), weights(LAYERS)),
        "a scan of layers": (scanned(remat(one)), weights(LAYERS)),
        "around a scan": (remat(scanned(one)), weights(LAYERS)),
        "around a cond": (remat(chosen), weights()),
        "one in another": (remat(lambda x, w: one(remat(one)(x, w), w)), weights()),
    }[how]


MODELS = ["an MLP", "a layer", "a batch of layers", "layers", "a scan of layers", "around a scan", "around a cond",
          "one in another"]  # fmt: skip


def matmuls(program: Program, times: int = 1) -> int:
    found = 0
    for eqn in program.eqns:
        found += times * (fusion_of(eqn) is Fusion.CONTRACTION)
        inner = [matmuls(region, times * (eqn.op.runs(eqn, name).times or 1)) for name, region in eqn.regions()]
        found += max(inner, default=0) if eqn.op.name == "cond" else sum(inner)
    return found


def jax_matmuls(jaxpr: Any, times: int = 1) -> int:
    found = 0
    for eqn in jaxpr.eqns:
        found += times * (eqn.primitive.name == "dot_general")
        inner = [
            jax_matmuls(j, times * eqn.params.get("length", 1)) for j in jax.extend.core.jaxprs_in_params(eqn.params)
        ]
        found += max(inner, default=0) if eqn.primitive.name == "cond" else sum(inner)
    return found


PAIRS = [(how, policy) for how in MODELS for policy in policies(mw)]


@pytest.mark.parametrize(
    ("how", "policy"), [*PAIRS[::2], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS[1::2])]
)
def test_gradients_and_matmuls_are_those_of_jax(how: str, policy: str) -> None:
    f, w = model(mw, how, policies(mw)[policy])
    theirs, _ = model(jax, how, policies(jax)[policy])
    # With the value, nothing of the forward run is left out.
    mine = mw.value_and_grad(lambda x, w: f(x, w).sum(), argnums=(0, 1))
    other = jax.value_and_grad(lambda x, w: theirs(x, w).sum(), argnums=(0, 1))
    close(mine(X, w), jax.jit(other)(X, w), 1e-5)
    expected = jax_matmuls(jax.make_jaxpr(other)(X, w).jaxpr)
    assert matmuls(mw.make_program(mine)(X, w)) == expected
    assert matmuls(mw.jit(mine).lower(X, w).compile().program) == expected


@pytest.mark.parametrize("policy", [name for name in policies(mw) if name != "everything"])
@pytest.mark.parametrize("how", MODELS)
def test_what_is_kept_is_what_jax_keeps(how: str, policy: str) -> None:
    f, w = model(mw, how, policies(mw)[policy])
    theirs, _ = model(jax, how, policies(jax)[policy])
    # An einsum may have its dims in another order.
    mine = Counter(tuple(sorted(t.shape)) for t, _ in mw.ad_checkpoint.saved_residuals(f, X, w))
    assert mine == Counter(tuple(sorted(t.shape)) for t, _ in jax_residuals(theirs, X, w))


@pytest.mark.parametrize("function", [mlp, layer])
def test_where_everything_may_be_kept_nothing_is_computed_again(function: Any) -> None:
    plain = lambda x, w: function(mw, x, w)
    whole = mw.checkpoint(plain, policy=mw.checkpoint_policies.everything_saveable)
    found, expected = (Counter(t.short() for t, _ in mw.ad_checkpoint.saved_residuals(f, X, weights()))
                       for f in (whole, plain))  # fmt: skip
    assert found <= expected
    steps = [mw.make_program(mw.grad(lambda x, f=f: f(x, weights()).sum()))(X) for f in (whole, plain)]
    mine, theirs = (Counter(str(eqn.op) for eqn in stack(program).eqns) for program in steps)
    assert mine <= theirs


def test_a_value_is_named_at_its_own_line() -> None:
    policy = mw.checkpoint_policies.save_only_these_names("hidden")
    found = mw.ad_checkpoint.saved_residuals(mw.checkpoint(lambda x, w: mlp(mw, x, w), policy=policy), X, weights())
    assert [what.split(",")[0] for t, what in found] == ["argument 0", "argument 1", "argument 5", "named 'hidden'"]


def test_values_of_a_name_are_computed_again_whatever_they_are_made_by() -> None:
    names = mw.checkpoint_policies.save_anything_except_these_names

    def f(x: Any) -> Any:
        return mw.numpy.sin(mw.checkpoint_name(mw.checkpoint_name(mw.numpy.exp(x), "a"), "b"))

    def kept(*left_out: str) -> list[str]:
        found = mw.ad_checkpoint.saved_residuals(mw.checkpoint(f, policy=names(*left_out)), X)
        return [what.split(",")[0] for _, what in found]

    assert kept() == ["of exp", "of cos"]
    assert kept("a") == kept("b") == ["argument 0", "of cos"]


@pytest.mark.parametrize(
    "policy",
    [
        mw.checkpoint_policies.save_from_both_policies(
            mw.checkpoint_policies.dots_saveable, mw.checkpoint_policies.save_only_these_names("hidden", "q'")
        ),
        mw.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
        mw.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=(),
            names_which_can_be_offloaded=["hidden"],
            offload_src="device",
            offload_dst="unpinned_host",
        ),
    ],
    ids=lambda policy: policy.text.split("(")[0],
)
def test_a_gradient_with_a_policy_survives_its_text(policy: Any) -> None:
    program = mw.make_program(lambda x, w: mw.checkpoint(lambda x, w: mlp(mw, x, w), policy=policy)(x, w))(X, weights())
    again = mw.parse_program(str(program))
    assert again == program
    flat = [X, *jax.tree.leaves(weights())]
    own, other = (
        mw.make_program(mw.grad(lambda *xs, p=p: sum(out.sum() for out in run(p, xs)), argnums=0))(*flat)
        for p in (program, again)
    )
    assert own == other and matmuls(own) == 4 + 2 * ("names" in policy.text and "both" not in policy.text)


def test_a_policy_that_text_does_not_keep() -> None:
    program = mw.make_program(mw.checkpoint(mw.numpy.sin, policy=no_matmul))(X)
    again = mw.parse_program(str(program))
    with pytest.raises(mw.MeshwrightError) as error:
        mw.grad(lambda x: run(again, [x])[0].sum())(X)
    assert str(error.value) == (
        "The policy 'no_matmul' is not part of this program.\n"
        "  why:  the program was read from text, which keeps the name of a user's policy and not its Python code\n"
        "  fix:  trace the function again with mw.make_program(f)(…)"
    )


def test_second_derivatives_by_every_policy() -> None:
    x = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)
    f = lambda x: mw.numpy.sin(mw.numpy.tanh(x @ x.T) @ x).sum()
    expected = mw.hessian(f)(x)
    for policy in OURS.values():
        close(mw.hessian(mw.checkpoint(f, policy=policy))(x), expected, 1e-5)


def test_offloaded_values_go_and_come_once() -> None:
    policy = mw.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["q"],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    f = mw.checkpoint(lambda x, w: layer(mw, x, w), policy=policy)
    found = [what for _, what in mw.ad_checkpoint.saved_residuals(f, X, weights())]
    assert [what.split(", test")[0] for what in found[-2:]] == ["named 'q'", "offloaded, named 'hidden'"]
    program = stack(mw.make_program(mw.grad(lambda w: f(X, w).sum()))(weights()))
    assert [eqn.op.name for eqn in program.eqns if "load" in eqn.op.name] == ["offload", "reload"]
    either = mw.checkpoint_policies.save_from_both_policies(policy, mw.checkpoint_policies.dots_saveable)
    kept = mw.ad_checkpoint.saved_residuals(mw.checkpoint(lambda x, w: layer(mw, x, w), policy=either), X, weights())
    assert sum("offloaded" in what for _, what in kept) == 1 and sum("dot_general" in what for _, what in kept) == 7


# On devices


@pytest.mark.parametrize("policy", [name for name in OURS if name != "none"])
def test_gradients_in_a_shard_map_and_of_sharded_arrays(policy: str) -> None:
    mesh = mw.make_mesh((2, 2), ("i", "j"))
    w = weights()

    def local(x: Any, up: Any, down: Any) -> Any:
        scale = mw.numpy.exp(mw.numpy.max(up))
        return mw.lax.psum(mw.numpy.tanh(x @ up / scale) @ down, "j")

    specs = (mw.P("i"), mw.P(None, "j"), mw.P("j", None))
    mapped = mw.shard_map(local, mesh=mesh, in_specs=specs, out_specs=mw.P("i"))
    inside = mw.shard_map(mw.checkpoint(local, policy=OURS[policy]), mesh=mesh, in_specs=specs, out_specs=mw.P("i"))
    around = mw.checkpoint(mapped, policy=OURS[policy])
    x = np.random.default_rng(3).normal(size=(4, D)).astype(np.float32)
    args = (x, w["up"], w["down"])

    def step(f: Any) -> Any:
        return mw.grad(lambda *a: (mw.numpy.sin(f(*a)) ** 2).sum(), argnums=(0, 1, 2))

    expected = step(mapped)(*args)
    for f in (inside, around):
        close(step(f)(*args), expected, 1e-5)
        close(mw.jit(step(f))(*args), expected, 1e-5)
    plain = lambda x, up, down: mw.numpy.tanh(x @ up) @ down
    shardings = tuple(mw.NamedSharding(mesh, spec) for spec in specs)
    split = mw.jit(step(mw.checkpoint(plain, policy=OURS[policy])), in_shardings=shardings)
    close(split(*args), step(plain)(*args), 1e-5)
