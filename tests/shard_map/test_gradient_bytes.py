"""What the gradient of a value that all devices hold sends: as much as the value itself, whatever it was spread to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax, nn
from meshwright.core.program import Eqn, Program

MESH = mw.make_mesh((4,), ("i",))
SILENT = {"pbroadcast", "pscatter", "pinvariant", "axis_index"}


def collectives(program: Program) -> Iterator[Eqn]:
    for eqn in program.eqns:
        if eqn.op.stack is not None and eqn.op.name not in SILENT:
            yield eqn
        for _, region in eqn.regions():
            yield from collectives(region)


# On a block x of shape (8, 6); with the shape of what all devices hold.
Case = tuple[Callable[[Any, Any], Any], tuple[int, ...]]
BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "arctan2", "hypot", "logaddexp",
    "logaddexp2", "fmod", "remainder", "heaviside", "power", "float_power",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(mnp, name) for name in BINARY}
CASES: dict[str, Case] = {
    **{f"{name}, rows": (lambda w, x, f=f: f(mnp.abs(x), w), (6,)) for name, f in FUNCTIONS.items()},
    **{f"{name}, columns": (lambda w, x, f=f: f(mnp.abs(x), w[:, None]), (8,)) for name, f in FUNCTIONS.items()},
    "number": (lambda w, x: x * w, ()),
    "where": (lambda w, x: mnp.where(x > 0, x, w), (6,)),
    "where, the other": (lambda w, x: mnp.where(x > 0, w, x), (6,)),
    "select": (lambda w, x: lax.select(x > 0, x, mnp.broadcast_to(w, x.shape)), (6,)),
    "clip": (lambda w, x: mnp.clip(x, None, w), (6,)),
    "tile": (lambda w, x: x + mnp.tile(w, (8, 1)), (6,)),
    "tile further": (lambda w, x: x + mnp.tile(w, 3), (2,)),
    "repeat": (lambda w, x: x + mnp.repeat(w, 3), (2,)),
    "broadcast_to": (lambda w, x: x + mnp.broadcast_to(w, x.shape), (6,)),
    "broadcast_arrays": (lambda w, x: mnp.broadcast_arrays(x, w)[1] * x, (6,)),
    "full": (lambda w, x: x + mnp.full(x.shape, w), ()),
    "stack": (lambda w, x: x + mnp.stack([w] * 8), (6,)),
    "concatenate": (lambda w, x: x + mnp.concatenate([w, w, w]), (2,)),
    "concatenate with x": (lambda w, x: mnp.concatenate([x, mnp.broadcast_to(w, (3, 6))]), (6,)),
    "pad": (lambda w, x: x + mnp.pad(w, (2, 2)), (2,)),
    "expand_dims": (lambda w, x: x + mnp.expand_dims(w, 0), (6,)),
    "meshgrid": (lambda w, x: x + mnp.meshgrid(w, x[:, 0])[0], (6,)),
    "take": (lambda w, x: x + w[np.zeros(6, int)], (2,)),
    "take rows": (lambda w, x: x + mnp.take(w, np.arange(8) % 2, axis=0), (2, 6)),
    "einsum": (lambda w, x: mnp.einsum("bi,i->b", x, w), (6,)),
    "einsum, outer": (lambda w, x: mnp.einsum("bi,j->bij", x, w), (5,)),
    "outer": (lambda w, x: mnp.outer(x[:, 0], w), (5,)),
    "kron": (lambda w, x: mnp.kron(x, w), (2,)),
    "matmul": (lambda w, x: x @ w, (6, 5)),
    "set": (lambda w, x: x.at[0].set(w), (6,)),
    "add to rows": (lambda w, x: x.at[:].add(w), (6,)),
    "all_gather": (lambda w, x: x + lax.all_gather(w, "i")[:6], (2,)),
    "bias of a convolution": (
        lambda w, x: lax.conv(x[None, None], mnp.ones((3, 1, 2, 2)), (1, 1), "SAME") + w[None, :, None, None],
        (3,),
    ),
    "scale of a norm": (lambda w, x: nn.standardize(x) * w, (6,)),
    "loop": (lambda w, x: lax.scan(lambda c, row: (c + row * w, None), x[0], x)[0], (6,)),
    "vmap": (lambda w, x: mw.vmap(lambda row: row + w)(x), (6,)),
    "branch": (lambda w, x: lax.cond(x[0, 0] > 0, lambda: x + w, lambda: x), (6,)),
    "jit": (lambda w, x: mw.jit(lambda w, x: x + w)(w, x), (6,)),
    "checkpoint": (lambda w, x: mw.checkpoint(lambda w, x: mnp.sin(x + w))(w, x), (6,)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_what_all_devices_hold_sends_as_much_as_it_is(name: str) -> None:
    function, shape = CASES[name]
    rng = np.random.default_rng(0)
    w = mnp.asarray(rng.uniform(0.5, 1.5, shape).astype(np.float32))
    x = mnp.asarray(rng.normal(size=(32, 6)).astype(np.float32))

    def loss(w: Any, x: Any) -> Any:
        return lax.psum(mnp.sum(mnp.sin(function(w, x))), "i")

    mapped = mw.shard_map(loss, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    program = mw.make_program(mw.grad(mapped))(w, x)
    sent = [v.type.size for eqn in collectives(program) for v in eqn.outputs]
    assert sum(sent) == w.size, program
    if name != "all_gather":  # which is of devices
        blocks = [x[8 * n : 8 * n + 8] for n in range(4)]
        right = mw.grad(lambda w: sum(mnp.sum(mnp.sin(function(w, block))) for block in blocks))(w)
        np.testing.assert_allclose(mw.grad(mapped)(w, x), right, rtol=2e-4, atol=2e-4)


def test_what_was_spread_outside_of_the_devices_comes_in_as_it_is() -> None:
    """It is an operand of its own: where it was made is no business of theirs."""

    def total(w: Any, x: Any) -> Any:
        wide = mnp.broadcast_to(w, (8, 6))
        return mw.shard_map(lambda x: lax.psum(mnp.sum(x * wide), "i"), mesh=MESH, in_specs=P("i"), out_specs=P())(x)

    w, x = mnp.arange(6.0), mnp.arange(192.0).reshape(32, 6)
    np.testing.assert_allclose(mw.grad(total)(w, x), np.asarray(x).sum(0), rtol=1e-6)
