"""What `explain` says of the shardings that the planner chose itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp

MESH = mw.make_mesh((8,), ("d",))


def placed(shape: tuple[int, ...], *spec: str | None) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(MESH, mw.P(*spec)))


def explained(batch: int) -> list[str]:
    params = {"v": placed((256, 1024), "d"), "w": placed((1024, 256), "d")}

    def loss(params: Any, x: Any) -> Any:
        return (mw.nn.relu(x @ params["v"]) @ params["w"]).sum()

    step = mw.jit(mw.grad(loss), out_shardings={name: p.sharding for name, p in params.items()})
    text = step.lower(params, placed((batch, 256), "d")).compile().explain()
    return [line for line in text.splitlines() if line.startswith("instead")]


def test_what_was_left_of_propagation_and_what_that_saves() -> None:
    """Parameters and batch both want the axis: of a large batch, the parameters are gathered."""
    first = "instead of what propagation found, values inside get their shardings from"
    assert explained(4096) == [f"{first} x alone, which saves 918 kB per device"]


def test_nothing_is_said_where_propagation_decides() -> None:
    x, w = placed((64, 256), "d"), placed((256, 256))
    compiled = mw.jit(lambda x, w: (x @ w).sum()).lower(x, w).compile()
    assert "instead" not in compiled.explain()


KEYS = (
    "kind", "axes", "bytes", "seconds", "share", "times", "line", "stack", "scopes", "direction", "value", "why",
    "alternative", "fix",
)  # fmt: skip


def test_records_of_collectives_for_programs() -> None:
    """Two weights are gathered for two matmuls each; another layout of one saves its gather, and its fix does so."""
    mesh = mw.make_mesh((2, 4), ("x", "y"))

    def f(x: Any, w: Any) -> Any:
        return mw.lax.with_sharding_constraint(x @ w, mw.NamedSharding(mesh, mw.P("x")))

    x = mw.device_put(mnp.ones((256, 64)), mw.NamedSharding(mesh, mw.P("x")))
    w = mw.device_put(mnp.ones((64, 64)), mw.NamedSharding(mesh, mw.P(None, "x")))
    compiled = mw.jit(f).lower(x, w).compile()
    (found,) = compiled.explain(json=True)
    assert tuple(found) == KEYS
    assert json.loads(json.dumps(found)) == found
    (one,) = compiled.collectives
    assert (found["kind"], found["axes"], found["bytes"]) == ("all_gather", ["x"], one.bytes_received_per_device)
    assert (found["seconds"], found["share"], found["times"]) == (one.seconds("tpu v5e"), 1.0, 1)
    assert (found["line"], found["why"], found["scopes"]) == (str(one.source), one.why, [])
    assert found["alternative"] == "lay out w as P(None, None): −8.19 kB per device"
    assert found["fix"] == "mw.device_put(w, mw.NamedSharding(mesh, mw.P(None, None)))"
    placed = eval(found["fix"], {"mw": mw, "w": w, "mesh": mesh})
    assert mw.jit(f).lower(x, placed).compile().explain(json=True) == []


def test_records_say_which_loops_and_branches_a_collective_is_in_and_what_it_takes_on_the_machine() -> None:
    def f(x: Any, n: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            return mw.lax.cond(x.sum() > 0, lambda x: x - x.mean(0), lambda x: x, x)

        return mw.lax.fori_loop(0, n, step, x)

    x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(MESH, mw.P("d")))
    compiled = mw.jit(f, hardware="h100").lower(x, 3).compile()
    found = compiled.explain(json=True)
    assert len(found) == len(compiled.collectives) > 1
    for record, one in zip(found, compiled.collectives, strict=True):
        assert record["seconds"] == one.seconds("h100")
        assert record["scopes"] == [str(inside) for inside in one.within]
    assert any("branch" in scope for record in found for scope in record["scopes"])
    assert sum(record["share"] for record in found if record["share"] is not None) == pytest.approx(1)


def test_records_of_a_program_on_one_device() -> None:
    assert mw.jit(lambda x: x + 1).lower(mnp.ones(3)).compile().explain(json=True) == []
