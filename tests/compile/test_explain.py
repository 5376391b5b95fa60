"""What `explain` says of the shardings that the planner chose itself."""

from __future__ import annotations

from typing import Any

import meshwright as mw

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
    first = "instead of what propagation found, values inside are sharded as follows from"
    assert explained(4096) == [f"{first} x alone, which saves 918 kB per device"]


def test_nothing_is_said_where_propagation_decides() -> None:
    x, w = placed((64, 256), "d"), placed((256, 256))
    compiled = mw.jit(lambda x, w: (x @ w).sum()).lower(x, w).compile()
    assert "instead" not in compiled.explain()
