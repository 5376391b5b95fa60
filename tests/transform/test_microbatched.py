"""`mw.microbatched`: what a step gives, from its batch in parts; and steps that do not come apart."""

from __future__ import annotations

import pathlib
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

from twins import load

rng = np.random.default_rng(0)


def values(*dims: int) -> Any:
    return mnp.asarray(rng.normal(size=dims).astype("float32"))


def update(loss: Any, w: Any) -> Any:
    value, gradient = mw.value_and_grad(loss)(w)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, w, gradient)


def mlp(w: Any, batch: Any) -> Any:
    x, y = batch
    return update(lambda w: mnp.mean((mw.nn.relu(x @ w["up"]) @ w["down"] - y) ** 2), w)


def recurrent(w: Any, x: Any) -> Any:
    """A loop whose steps share their weights."""

    def loss(w: Any) -> Any:
        start = mnp.zeros((x.shape[0], 8))
        h, _ = mw.lax.scan(lambda h, row: (mnp.tanh(h @ w["h"] + row @ w["x"]), None), start, mnp.swapaxes(x, 0, 1))
        return mnp.mean(h**2)

    return update(loss, w)


def layers(w: Any, x: Any) -> Any:
    """A loop over layers, which each have their weights."""
    return update(lambda w: mnp.sum(mw.lax.scan(lambda h, v: (mnp.tanh(h @ v), None), x, w)[0] ** 2), w)


def clipped(w: Any, x: Any) -> Any:
    value, gradient = mw.value_and_grad(lambda w: mnp.mean((x @ w) ** 2))(w)
    norm = mnp.sqrt(mnp.sum(gradient**2))
    return {"loss": value, "norm": norm, "w": w - gradient / mnp.maximum(norm, 1.0)}


def dropped(w: Any, x: Any) -> Any:
    keep = mw.random.bernoulli(mw.random.key(3), 0.5, x.shape)
    return update(lambda w: mnp.mean(((x * keep) @ w) ** 2), w)


def rows(w: Any, x: Any) -> Any:
    y = x @ w
    return y, mnp.swapaxes(y, 0, 1), mnp.max(y), mnp.min(y, 0), mnp.sum(y[:, 0] * mnp.arange(len(x))), w * 2, 3.0


def masked(w: Any, batch: Any) -> Any:
    """A loss divided by how many of a mask are set."""
    x, y, mask = batch

    def loss(w: Any) -> Any:
        errors = mnp.sum((mnp.tanh(x @ w["up"]) @ w["down"] - y) ** 2, -1)
        return mnp.sum(errors * mask) / mnp.maximum(mnp.sum(mask), 1.0)

    return update(loss, w)


def masked_rows(w: Any, batch: Any) -> Any:
    """The same, divided row by row, with the mask of the rows for which something is known."""
    x, y = batch
    return update(lambda w: mnp.mean(mnp.sum((x @ w["up"] @ w["down"] - y) ** 2, -1), where=y[:, 0] > 0), w)


def standardized(w: Any, x: Any) -> Any:
    """Inputs from which what they are on average is taken, by their deviations: two passes over the batch before."""
    mean = mnp.mean(x, 0)
    scaled = (x - mean) / mnp.sqrt(mnp.mean((x - mean) ** 2, 0) + 1e-5)
    return scaled / mnp.max(x), update(lambda w: mnp.mean((scaled @ w) ** 2), w)


STEPS: dict[str, tuple[Any, Any]] = {
    "a network": (mlp, ({"up": values(8, 32), "down": values(32, 8)}, (values(16, 8), values(16, 8)))),
    "a loop that shares weights": (recurrent, ({"h": values(8, 8), "x": values(4, 8)}, values(16, 5, 4))),
    "a loop over layers": (layers, (values(3, 4, 4), values(8, 4))),
    "a norm of all gradients": (clipped, (values(4, 4), values(8, 4))),
    "numbers by their places": (dropped, (values(4, 4), values(16, 4))),
    "a mask": (
        masked,
        (
            {"up": values(8, 32), "down": values(32, 8)},
            (values(16, 8), values(16, 8), mnp.asarray(np.arange(16) % 3 > 0, "float32")),
        ),
    ),
    "a mask of what is known": (masked_rows, ({"up": values(8, 32), "down": values(32, 8)}, (values(16, 8),) * 2)),
    "inputs by their mean": (standardized, (values(4, 4), values(16, 4))),
    "rows, extremes, places": (rows, (values(4, 4), values(16, 4))),
}


def compare(step: Any, args: Any, count: int) -> None:
    expected = [mnp.asarray(x) for x in mw.tree.leaves(step(*args))]
    found = [mnp.asarray(x) for x in mw.tree.leaves(mw.microbatched(step, count, batch_args=1)(*args))]
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_parts_of_a_batch_give_what_the_whole_does(name: str) -> None:
    step, args = STEPS[name]
    for count in (1, 2, 4):
        compare(step, args, count)


@pytest.mark.parametrize("name", ["gpt", "mlp", "transformer", "convnet"])
def test_examples_come_apart(name: str) -> None:
    module = load(name)
    config = module.Config()
    state, batch = module.init(mw.random.key(0), config), module.make_batch(mw.random.key(1), config, batch=8)
    compare(partial(module.train_step, config=config), (state, batch), 4)


def test_gradients_are_summed_in_a_loop_and_updates_made_once() -> None:
    step, args = STEPS["a network"]
    program = mw.make_program(mw.microbatched(step, 4, batch_args=1))(*args)
    (loop,) = [eqn for eqn in program.eqns if eqn.op.name == "scan"]
    inside = [eqn.op.name for eqn in loop.params["body"].eqns]
    assert loop.params["length"] == 4 and inside.count("dot_general") == 5
    assert "dot_general" not in [eqn.op.name for eqn in program.eqns]
    assert {v.type.shape[0] for eqn in loop.params["body"].eqns for v in eqn.outputs if v.type.ndim} == {4, 8, 32}


def test_what_rows_need_of_the_whole_batch_is_summed_before() -> None:
    step, args = STEPS["a mask"]
    program = mw.make_program(mw.microbatched(step, 4, batch_args=1))(*args)
    first, second = ([e.op.name for e in eqn.params["body"].eqns] for eqn in program.eqns if eqn.op.name == "scan")
    assert "dot_general" not in first and second.count("dot_general") == 5  # products are computed once


def test_memory_holds_one_part_at_a_time() -> None:
    args = ({"up": mw.ShapeDtypeStruct((64, 256), "float32"), "down": mw.ShapeDtypeStruct((256, 64), "float32")},
            (mw.ShapeDtypeStruct((1 << 16, 64), "float32"),) * 2)  # fmt: skip
    whole, parts = (
        mw.simulate(mw.jit(step).lower(*args).compile(), "h100 1").peak_bytes_per_device
        for step in (mlp, mw.microbatched(mlp, 16, batch_args=1))
    )
    held = 2 * (1 << 16) * 64 * 4
    assert parts - 2 * held < (whole - held) / 3  # with its rows in another order


def normalized(w: Any, x: Any) -> Any:
    h = x @ w
    return mnp.mean(((h - h.mean(0)) / mnp.sqrt(h.var(0) + 1e-5)) ** 3)


WHOLE = {
    "mean": (normalized, "return mnp.mean(((h - h.mean(0)) / mnp.sqrt(h.var(0) + 1e-5)) ** 3)"),
    "order": (lambda w, x: mnp.sort(x @ w, 0), "mnp.sort(x @ w, 0)"),
    "running sums": (lambda w, x: mnp.cumsum(x @ w, 0), "mnp.cumsum(x @ w, 0)"),
    "rows side by side": (lambda w, x: mnp.concatenate([x, x @ w], 0), "mnp.concatenate([x, x @ w], 0)"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_step_that_needs_the_whole_batch_is_refused(name: str) -> None:
    step, line = WHOLE[name]
    with pytest.raises(mw.MeshwrightError) as error:
        mw.microbatched(step, 4, batch_args=1)(values(4, 4), values(16, 4))
    first, where, *rest = str(error.value).splitlines()
    assert first == "The step does not come apart into microbatches."
    assert line in where
    assert "\n".join(rest) == (
        "  why:  this takes the whole batch at once, and what is done with its rows depends on it\n"
        "  fix:  microbatches=1, or a step whose results are sums or means over its batch, "
        "or have a row for each of its rows"
    )


ERRORS = {
    "count": (lambda: mw.microbatched(mlp, 0, batch_args=1), """The number of microbatches is 0.
  why:  it is a number from 1 on
  fix:  microbatches=4"""),
    "parts": (lambda: mw.microbatched(rows, 3, batch_args=1)(values(4, 4), values(8, 4)), """\
A batch of 8 does not come in 3 microbatches.
  why:  3 equal parts of its rows are needed
  fix:  microbatches=2"""),
    "argument": (lambda: mw.microbatched(rows, 2, batch_args=2)(values(4, 4), values(8, 4)), """\
There is no argument 2.
  why:  batch_args are positions of the 2 arguments of rows
  fix:  batch_args=1"""),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, text = ERRORS[name]
    with pytest.raises(mw.MeshwrightError) as error:
        call()
    assert "\n".join(line for line in str(error.value).splitlines() if not line.startswith("  at:")) == text


TOGETHER = {
    "rows and columns are one dim": lambda x: (x * mnp.ones((1, 2))).reshape(-1),
    "rows in pairs": lambda x: x.reshape(4, 2).prod(1).sum(),
    "sums of pairs": lambda x: (x.reshape(4, 2).sum(1) ** 2).sum(),
    "the largest of pairs": lambda x: x.reshape(4, 2).max(1).sum(),
    "a result for each pair": lambda x: x.reshape(4, 2).sum(1),
    "every other row": lambda x: x[::2, 0],
    "preferences": lambda x: mw.nn.log_sigmoid((x[::2] - x[1::2]) ** 2).mean(),
    "rows repeated": lambda x: mnp.repeat(x, 2, 0)[:, 0],
    "rows of products in pairs": mw.grad(lambda x: (x @ mnp.arange(6.0)[None]).reshape(4, 2, 6).prod(1).sum() * 1e-3),
    "rows beside numbers": lambda x: ((x @ mnp.ones((1, 6))).reshape(-1, 3) * mnp.arange(48.0).reshape(16, 3)).sum(),
    "rows beside a constant": lambda x: x * mnp.arange(8.0)[:, None],
    "rows in a loop": lambda x: mw.lax.scan(lambda c, _: (mnp.tanh(c * 0.5), c.sum()), x, None, length=3),
    "rows in turned order": lambda x: x[::-1] * x,
}
REFUSED = {("rows in turned order", 2), ("rows in turned order", 4)}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", TOGETHER)
def test_rows_that_are_used_together_are_so_in_a_part_or_it_is_refused(name: str, count: int) -> None:
    x, constant = mnp.arange(8.0).reshape(8, 1), mnp.arange(8.0)[:, None]
    function = TOGETHER[name] if name != "rows beside a constant" else lambda x: x * constant
    try:
        found = mw.microbatched(function, count, batch_args=0)(x)
    except mw.MeshwrightError as error:
        assert (name, count) in REFUSED and error.what == "The step does not come apart into microbatches."
        return
    for one, other in zip(mw.tree.leaves(found), mw.tree.leaves(function(x)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5)
