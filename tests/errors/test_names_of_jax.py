"""Names that JAX has and we do not: the error says what to write, and that is there."""

from __future__ import annotations

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P

MESH = mw.make_mesh((2,), ("x",))
LOWERED = mw.jit(lambda x: x.sum(0)).lower(mw.device_put(mnp.ones((4, 4)), mw.NamedSharding(MESH, P("x"))))
OWNERS = {"module 'meshwright'": mw, "'Compiled' object": LOWERED.compile(), "'Lowered' object": LOWERED}
INSTEAD = [
    ("module 'meshwright'", "device_count", "len(mw.devices())"),
    ("module 'meshwright'", "local_devices", "mw.devices()"),
    ("module 'meshwright'", "make_jaxpr", "mw.make_program(f)(*args)"),
    ("module 'meshwright'", "make_array_from_callback", "mw.device_put(x, sharding)"),
    ("module 'meshwright'", "tree_map", "mw.tree.map"),
    ("module 'meshwright'", "tree_util", "mw.tree"),
    ("'Lowered' object", "compiler_ir", "lowered.as_text()"),
    ("'Lowered' object", "explain", "lowered.compile().explain"),
    ("'Lowered' object", "simulate", "lowered.compile().simulate"),
]


@pytest.mark.parametrize(("owner", "name", "instead"), INSTEAD, ids=[f"{one[0]} {one[1]}" for one in INSTEAD])
def test_the_error_says_what_to_write(owner: str, name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(OWNERS[owner], name)
    assert str(caught.value) == f"{owner} has no attribute {name!r}; it is {instead}"
    known = {"mw": mw, "compiled": LOWERED.compile(), "lowered": LOWERED, "f": mnp.tanh, "args": (1.0,)}
    if "as_text" in instead:
        pytest.importorskip("jaxlib", reason="StableHLO is printed by it")
    assert eval(instead, {**known, "x": mnp.ones(2), "sharding": mw.NamedSharding(MESH, P("x"))}) is not None


@pytest.mark.parametrize("owner", OWNERS)
def test_other_names_are_plain_errors(owner: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(OWNERS[owner], "nothing")  # noqa: B009
    assert str(caught.value) == f"{owner} has no attribute 'nothing'"


def test_a_property_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise AttributeError("inside of it")

    compiled = OWNERS["'Compiled' object"]
    monkeypatch.setattr(type(compiled), "stages", property(fails))
    with pytest.raises(AttributeError, match=r"^inside of it$"):
        compiled.stages  # noqa: B018
