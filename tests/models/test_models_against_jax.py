"""The example models: the same text, with only the imports replaced, runs under JAX; the numbers are equal."""

import pathlib
import sys
from functools import partial

import jax
import numpy as np
import pytest

import meshwright as mw

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

from twins import load

MODELS = ("mlp", "transformer", "convnet", "moe", pytest.param("gpt", marks=pytest.mark.slow))
VARIANTS = [(scan, checkpoint) for scan in (False, True) for checkpoint in (False, True)]


@pytest.mark.parametrize("scan, checkpoint", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_all_gradients_equal_jax(name, scan, checkpoint):
    ours, theirs = load(name, "meshwright"), load(name, "jax")
    config = ours.Config(scan=scan, checkpoint=checkpoint)
    their_config = theirs.Config(scan=scan, checkpoint=checkpoint)
    params = theirs.init(jax.random.key(0), their_config)
    batch = theirs.make_batch(jax.random.key(1), their_config)
    expected, expected_grads = jax.jit(jax.value_and_grad(partial(theirs.loss, config=their_config)))(params, batch)
    mine = mw.tree.map(np.asarray, params)
    my_batch = mw.tree.map(np.asarray, batch)
    for transform in (lambda f: f, mw.jit):
        value, grads = transform(mw.value_and_grad(partial(ours.loss, config=config)))(mine, my_batch)
        np.testing.assert_allclose(float(value), float(expected), rtol=1e-5)
        for path, (a, b) in enumerate(zip(mw.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True)):
            scale = np.abs(np.asarray(b)).max()
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5 * scale, err_msg=str(path))


@pytest.mark.parametrize("scan, checkpoint", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_after_ten_steps_equals_jax(name, scan, checkpoint):
    ours, theirs = load(name, "meshwright"), load(name, "jax")
    losses = []
    for module, package in ((ours, mw), (theirs, jax)):
        config = module.Config(scan=scan, checkpoint=checkpoint)
        params = module.init(package.random.key(0), config)
        batch = module.make_batch(package.random.key(1), config)
        step = package.jit(module.train_step, static_argnames="config")
        for _ in range(10):
            value, params = step(params, batch, config=config)
        losses.append(float(value))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_an_example_runs_and_its_loss_falls(name, capsys):
    load(name, "meshwright").main()
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 10 and losses[-1] < losses[0]
