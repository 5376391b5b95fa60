"""The models written for JAX, read by from_jax: JAX's numbers, laid out as its arrays are, explained by the lines of
the user's file, simulated."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.test_jax_scripts import load

import meshwright as mw
from meshwright.compile.compiled import Compiled
from meshwright.interop.jax import from_jax, register_containers

SPEC: Any = jax.sharding.PartitionSpec
MESHES = [((2, 4), False), ((2, 4), True), ((2, 2, 2), False), ((2, 2, 2), True)]
QUICK = {("llama", (2, 4), False), ("mixture", (2, 4), True)}


def cases(*names: str) -> list[Any]:
    return [
        pytest.param(name, *mesh, marks=() if (name, *mesh) in QUICK else pytest.mark.slow)
        for name in names
        for mesh in MESHES
    ]


def mesh_of(shape: tuple[int, ...], explicit: bool, last: str) -> tuple[Any, Any]:
    """A mesh of JAX, and the axes of the batch."""
    names = ("data", last) if len(shape) == 2 else ("pod", "data", last)
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape)), names[:-1]


def placed(mesh: Any, x: Any, spec: Any) -> Any:
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))


def differences(actual: Any, expected: Any) -> dict[str, float]:
    """How far leaves are apart, by their names: a share of the largest number, where that is beyond 1."""
    found, wanted = jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    pairs = [
        (path, np.asarray(a, np.float64), np.asarray(e, np.float64)) for (path, a), e in zip(found, wanted, strict=True)
    ]
    return {jax.tree_util.keystr(p): float(np.abs(a - e).max() / max(1.0, np.abs(e).max())) for p, a, e in pairs}


def check(step: Any, args: tuple[Any, ...], script: str, lines: set[str]) -> Compiled:
    """A step of JAX here: its numbers, arguments where JAX has them, collectives at ``lines`` of the script, its
    seconds and bytes."""
    expected = jax.jit(step)(*args)
    compiled = mw.jit(from_jax(step)).lower(*args).compile()
    far = {name: error for name, error in differences(compiled(*args), expected).items() if error > 1e-5}
    assert not far
    for ours, theirs in zip(jax.tree.leaves(compiled.input_shardings), jax.tree.leaves(args), strict=True):
        if isinstance(theirs, jax.Array) and isinstance(theirs.sharding, jax.sharding.NamedSharding):
            assert ours.is_equivalent_to(mw.NamedSharding(ours.mesh, mw.P(*theirs.sharding.spec)), theirs.ndim)
    assert {Path(one.source.file).name for one in compiled.collectives} == {script}
    explained = compiled.explain("h100", top=99)
    assert all(line in explained for line in lines), explained
    assert all(f" {script}:" in row for row in explained.splitlines()[3:] if row[0].isdigit())
    simulated = compiled.simulate("h100")
    assert simulated.seconds > 0 and simulated.peak_bytes_per_device > 0
    return compiled


@pytest.mark.parametrize(("name", "shape", "explicit"), cases("llama"))
def test_llama(name: str, shape: tuple[int, ...], explicit: bool):
    llama = load(name, ours=False)
    params = llama["init"](jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (8, 17), 0, llama["VOCAB"])
    mesh, batch = mesh_of(shape, explicit, "model")
    put = functools.partial(placed, mesh)
    on_mesh = jax.tree.map(put, params, llama["specs"]("data", "model"))
    shard = jax.sharding.NamedSharding(mesh, SPEC(batch, None, None)) if explicit else None
    step = jax.value_and_grad(functools.partial(llama["loss"], shard=shard))
    sums = {'x = x + product(attention(q, k, v, mask), layer["wo"], shard)'}
    check(step, (on_mesh, put(tokens, SPEC(batch))), "llama.py", sums)


@pytest.mark.parametrize(("name", "shape", "explicit"), cases("mixture"))
def test_mixture(name: str, shape: tuple[int, ...], explicit: bool):
    mixture = load(name, ours=False)
    params = mixture["init"](jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (mixture["TOKENS"], mixture["WIDTH"]))
    target = jax.random.normal(jax.random.key(2), (mixture["TOKENS"],))
    mesh, batch = mesh_of(shape, explicit, "expert")
    specs = {name: SPEC("expert") if name in ("w1", "w2") else SPEC() for name in params}
    params = {name: placed(mesh, w, specs[name]) for name, w in params.items()}
    layer = mixture["expert_parallel"](mesh, batch, "expert")
    step = jax.value_and_grad(functools.partial(mixture["loss"], layer=layer))
    args = (params, placed(mesh, x, SPEC(batch)), placed(mesh, target, SPEC(batch)))
    check(step, args, "mixture.py", {"return lax.psum(experts_of(x, w1, w2, experts, first, count), axis)"})


@pytest.mark.slow
def test_prefill_and_decoding_from_int8_weights():
    llama = load("llama", ours=False)
    mesh, batch = mesh_of((2, 4), False, "model")
    specs = llama["specs"]("data", "model")
    weights = llama["quantize"](llama["init"](jax.random.key(0)))

    def place(w: Any, spec: Any) -> Any:
        """An int8 matrix and its scales, one for each column; or a vector."""
        if not isinstance(w, tuple):
            return placed(mesh, w, spec)
        return placed(mesh, w[0], spec), placed(mesh, w[1], SPEC(None, None, *spec[2:]))

    weights = jax.tree.map(place, weights, specs, is_leaf=lambda x: isinstance(x, tuple))
    prompt = placed(mesh, jax.random.randint(jax.random.key(1), (8, 8), 0, llama["VOCAB"]), SPEC(batch))
    shape = (llama["LAYERS"], 8, llama["LENGTH"], llama["KV_HEADS"], llama["HEAD"])
    caches = (placed(mesh, jnp.zeros(shape), SPEC(None, batch, None, "model")),) * 2
    prefill = lambda weights, prompt, caches: llama["forward"](weights, prompt, None, caches, 0)
    line = 'x = x + product(attention(q, k, v, mask), layer["wo"], shard)'
    check(prefill, (weights, prompt, caches), "llama.py", {line})
    logits, caches = jax.jit(prefill)(weights, prompt, caches)
    decode = lambda weights, token, caches, n: llama["forward"](weights, token, None, caches, n)
    check(decode, (weights, jnp.argmax(logits[:, -1:], -1), caches, 8), "llama.py", {line})
    generated = check(
        lambda weights, prompt: llama["generate"](weights, prompt, 4), (weights, prompt), "llama.py", {line}
    )
    assert {one.times for one in generated.collectives} == {2, 8}  # layers, and layers of 4 steps


@pytest.mark.skipif(not (find_spec("flax") and find_spec("optax")), reason="not installed: make flax")
@pytest.mark.parametrize(("shape", "explicit"), [((), False), *MESHES])
def test_a_vision_transformer_of_flax_and_optax(shape: tuple[int, ...], explicit: bool):
    from flax import nnx

    vit = load("vit", ours=False)
    mesh, batch = mesh_of(shape, explicit, "model") if shape else (None, ())
    layouts = vit["Layouts"](batch, "model") if explicit else vit["Layouts"]()
    model = vit["ViT"](layouts, nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (vit["BATCH"], vit["IMAGE"], vit["IMAGE"], 3))
    labels = jax.random.randint(jax.random.key(2), (vit["BATCH"],), 0, vit["CLASSES"])
    if mesh is not None:
        state = nnx.state(model)
        places = jax.tree_util.tree_map_with_path(lambda path, x: placed(mesh, x, vit["spec_of"](path, "model")), state)
        nnx.update(model, places)
        images, labels = placed(mesh, images, SPEC(batch)), placed(mesh, labels, SPEC(batch))
    optimizer = nnx.Optimizer(model, vit["optax"].adamw(1e-3, weight_decay=1e-2), wrt=nnx.Param)
    definition, state = nnx.split((model, optimizer))

    def step(state: Any, images: Any, labels: Any) -> Any:
        model, optimizer = nnx.merge(definition, state)
        value, grads = vit["train_step"](model, optimizer, images, labels)
        return value, grads, nnx.state((model, optimizer))

    args = (state, images, labels)
    with nullcontext() if mesh is None else jax.set_mesh(mesh):
        register_containers(args, jax.eval_shape(step, *args))
        if mesh is None:
            assert max(differences(mw.jit(from_jax(step))(*args), jax.jit(step)(*args)).values()) <= 1e-5
        else:
            check(step, args, "vit.py", {"return self.out(mixed.reshape(x.shape), out_sharding=self.layouts.out())"})
