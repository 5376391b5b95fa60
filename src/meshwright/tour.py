"""The tour: the main job in a few steps, each a title, what it says, and numbers for ``--json``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import meshwright as mw
import meshwright.numpy as mnp


@dataclass(frozen=True)
class TourStop:
    """One stop of the tour."""

    title: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def loss(params: Any, x: Any, y: Any) -> Any:
    """Mean squared error of a two-layer network."""
    hidden = mnp.tanh(x @ params["w1"] + params["b1"])
    return mnp.mean((hidden @ params["w2"] - y) ** 2)


def steps() -> Iterator[TourStop]:
    """Trace, print, differentiate, batch, run, lay out on a mesh, explain."""
    k1, k2, k3, k4 = mw.random.split(mw.random.key(0), 4)
    params = {
        "w1": mw.random.normal(k1, (4, 8)) * 0.5,
        "b1": mnp.zeros(8),
        "w2": mw.random.normal(k2, (8, 1)) * 0.5,
    }
    x, y = mw.random.normal(k3, (16, 4)), mw.random.normal(k4, (16, 1))

    yield TourStop("You write an array program", inspect.getsource(loss).rstrip())

    program = mw.make_program(loss)(params, x, y)
    text = str(program)
    same = mw.parse_program(text) == program
    yield TourStop(
        "Meshwright traces it into a typed program",
        f"{text}\n\nEach line has a type and names the line of yours it came from. Read back from text: same = {same}.",
        {"equations": len(program.eqns), "round_trip": same},
    )

    gradient = mw.make_program(mw.grad(loss))(params, x, y)
    yield TourStop(
        "differentiates it",
        f"{gradient.to_text(sources=False)}",
        {"equations": len(gradient.eqns)},
    )

    each = mw.vmap(lambda a, b: loss(params, a, b))(x, y)
    yield TourStop(
        "batches it",
        f"mw.vmap(loss) over {x.shape[0]} examples gives {each.type}; their mean is {float(each.mean()):.6f}, "
        f"the loss of the batch {float(loss(params, x, y)):.6f}.",
        {"mean": float(each.mean())},
    )

    @mw.jit
    def train_step(params: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(params, x, y)
        return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    losses = []
    for _ in range(30):
        value, params = train_step(params)
        losses.append(float(value))
    shown = "\n".join(
        f"  step {n:2d}  {losses[n]:.4f}  {'█' * round(40 * losses[n] / losses[0])}" for n in range(0, 30, 5)
    )
    yield TourStop("and runs it", f"{shown}", {"losses": losses})
    yield from _on_a_mesh(params, x, y)

    try:
        mw.make_program(loss)(params, x[:, :3], y)
    except mw.MeshwrightError as error:
        yield TourStop("When something cannot be right, it says what, where, why, and what to write", str(error))


def _on_a_mesh(params: Any, x: Any, y: Any) -> Iterator[TourStop]:
    """The stops at which arrays are put on a mesh."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    specs = {"w1": mw.P(None, "model"), "b1": mw.P("model"), "w2": mw.P("model")}
    placed = {name: mw.device_put(w, mw.NamedSharding(mesh, specs[name])) for name, w in params.items()}
    batch = [mw.device_put(a, mw.NamedSharding(mesh, mw.P("data"))) for a in (x, y)]
    compiled = mw.jit(loss).lower(placed, *batch).compile()
    there, here = float(compiled(placed, *batch)), float(loss(params, x, y))
    yield TourStop(
        "Say where the arrays are on a mesh, and it becomes the program of one device",
        f"{compiled.program.to_text(sources=False)}\n\non 8 devices {there:.6f}, on one {here:.6f}",
        {"equations": len(compiled.program.eqns), "losses": [there, here]},
    )
    seconds = sum(c.seconds("tpu v5e") for c in compiled.collectives)
    yield TourStop(
        "in which every collective has a reason and a price",
        f"{compiled.explain()}\n\n{seconds * 1e6:.1f} µs of communication on a TPU v5e",
        {"collectives": [c.kind for c in compiled.collectives], "seconds": seconds},
    )
