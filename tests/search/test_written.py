"""Constraints around expressions of the user's functions: what is pasted is what was simulated, here and in JAX."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding, P, hardware
from meshwright.search.layout.found import FoundLayout, FoundLayouts
from meshwright.search.layout.step import Step
from meshwright.search.layout.written import to_paste, written

OURS = "import meshwright as mw\nimport meshwright.numpy as mnp\nfrom meshwright import lax, nn\n"
JAX = "import jax as mw\nimport jax.numpy as mnp\nfrom jax import lax, nn\n"
MODEL = """
def norm(x):
    return x * lax.rsqrt(mnp.mean(x * x, -1, keepdims=True) + 1e-6)


def loss(params, x):
    "Größe: a line with signs of more than a byte, " "and one expression on several lines."
    for w in params["layers"]:
        été = nn.relu(norm(x) @ w["up"]) @ w["down"]; x = x + été
    return mnp.mean(mnp.tanh(norm(
        x
    ) @ params["head"]) ** 2)


def step(params, x, rate=0.1):
    value, gradient = mw.value_and_grad(loss)(params, x)
    return value, mw.tree.map(lambda p, g: p - rate * g, params, gradient)


def forward(params, x):
    def layer(x, w):
        return x + nn.relu(x @ w) @ w.T, None

    return lax.scan(layer, x, params)[0]
"""


def module(folder: Path, head: str) -> Any:
    path = folder / ("model_in_jax.py" if head is JAX else "model.py")
    path.write_text(head + MODEL)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def shape(*dims: int) -> Any:
    return mw.ShapeDtypeStruct(dims, "float32")


PARAMS = {"layers": [{"up": shape(64, 256), "down": shape(256, 64)}] * 2, "head": shape(64, 512)}
ARGS = (PARAMS, shape(32, 64))
MACHINE = hardware.Topology("h100", 4, mesh={"a": 2, "b": 2})


def constrained(step: Any, args: Any, op: str = "dot_general", spec: P = P("a", "b")) -> FoundLayout:  # noqa: B008
    """A layout whose matmuls of two dims have a spec, in regions, too."""
    traced = Step(step, args, None)

    def matmuls(program: Any) -> Any:
        for eqn in program.eqns:
            for _, region in eqn.regions():
                yield from matmuls(region)
            if eqn.op.name == op and eqn.outputs[0].type.ndim == 2:
                yield eqn.outputs[0]

    mesh = mw.make_mesh((2, 2), ("a", "b"))
    given = [NamedSharding(mesh, P()).to_tensor_sharding(t.ndim) for t in traced.types]
    specs = dict.fromkeys(matmuls(traced.program), spec)
    return traced.laid_out(given, MACHINE, "by hand", specs, 80e9, "exact")


def pasted(code: str, names: dict[str, Any], step: str = "step") -> Any:
    exec(code, names)
    return names[step]


def test_what_is_pasted_is_what_was_simulated_and_computes_the_step(tmp_path: Path) -> None:
    model = module(tmp_path, OURS)
    layout = constrained(model.step, ARGS)
    found = written(layout, 1.0)
    assert found is not None
    assert 0 < len(found.written) <= 3  # those that save nothing are left out
    code = found.code()
    assert "constrained(" in code
    laid = pasted(code, vars(module(tmp_path, OURS)))
    compiled = laid.lower(*ARGS).compile()
    assert mw.simulate(compiled, MACHINE).seconds == found.seconds == mw.simulate(found.compile(), MACHINE).seconds
    rng = np.random.default_rng(0)
    values = mw.tree.map(lambda s: mw.numpy.asarray(rng.normal(size=s.shape).astype("float32")), ARGS)
    wanted = mw.tree.leaves(model.step(*values))
    for one, other in zip(mw.tree.leaves(laid(*values)), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=1e-5)


@pytest.mark.slow
def test_it_runs_in_jax(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    if len(jax.devices()) < 4:
        pytest.skip("four devices are asked for")
    found = written(constrained(module(tmp_path, OURS).step, ARGS), 1.0)
    assert found is not None
    model = module(tmp_path, JAX)
    rng = np.random.default_rng(0)
    values = jax.tree.map(lambda s: rng.normal(size=s.shape).astype("float32"), ARGS)
    wanted = jax.tree.leaves(model.step(*values))
    laid = pasted(found.code("jax"), vars(model))
    assert "sharding_constraint" in str(jax.make_jaxpr(laid)(*values))
    for one, other in zip(jax.tree.leaves(laid(*values)), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_regions_and_arguments_given_beforehand(tmp_path: Path) -> None:
    model = module(tmp_path, OURS)
    found = written(constrained(model.forward, (shape(3, 64, 64), shape(32, 64))), 1.0)
    assert found is not None
    laid = pasted(found.code(), vars(module(tmp_path, OURS)), "forward")
    assert mw.simulate(laid.lower(shape(3, 64, 64), shape(32, 64)).compile(), MACHINE).seconds == found.seconds
    beforehand = written(constrained(partial(model.step, rate=0.5), ARGS), 1.0)
    assert beforehand is not None
    assert mw.simulate(beforehand.compile(), MACHINE).seconds == beforehand.seconds


def test_what_cannot_be_written_stays_a_list_of_lines() -> None:
    def inner(w: Any, x: Any) -> Any:
        return x @ w

    layout = constrained(inner, (shape(64, 64), shape(32, 64)))
    assert written(layout, 1.0) is None
    assert "# In the step, values to be laid out so:\n#   test_written.py:" in layout.code()
    assert written(constrained(lambda w, x: x @ w, (shape(64, 64), shape(32, 64))), 1.0) is None


def test_a_layout_without_constraints_is_first_where_it_is_hardly_slower(tmp_path: Path) -> None:
    layout = constrained(module(tmp_path, OURS).step, ARGS)
    assert layout.step is not None
    given = [s.to_tensor_sharding(t.ndim) for s, t in zip(mw.tree.leaves(layout.in_shardings), layout.step.types)]
    plain = layout.step.laid_out(given, MACHINE, "plain", {}, 80e9, "exact")
    order = FoundLayouts(tuple(to_paste([layout, plain])), 0.0)
    faster = layout.seconds < 0.99 * plain.seconds
    assert bool(order.best.constraints) == (faster and order.best.written != ())
    assert order.best.seconds <= plain.seconds
