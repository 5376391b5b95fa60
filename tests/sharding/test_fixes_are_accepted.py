"""The code that an error about a mesh, a spec or a sharding ends in is pasted back where the mistake was, and accepted.

Random specs with random mistakes are given to every place that takes a sharding. Of each error, what can be read as
code is run with no other names than those of an ordinary program; a spec among it is given to the same place again.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

MESHES = [
    mw.make_mesh((2, 4, 3), ("x", "y", "z")),
    mw.make_mesh((2, 4), ("x", "y"), axis_types=mw.AxisType.Explicit),
    mw.AbstractMesh((2, 4), ("x", "y")),
]
X = np.ones((8, 12), np.float32)
ENTRIES: list[Any] = [
    None, "x", "y", "z", ("x", "y"), ("y", "x"), "w", "y:(1)2", "y:(2)2", "y:(3)2", "y:(1)4", "x:(1)2", "y:(0)2",
    ("y:(1)2", "y:(2)2"), mw.P.UNCONSTRAINED, 3, 1.5, ("x", "x"), (), "", ["x"], mw.P.dim("z", open=True),
    mw.P.dim("x", priority=1), "x ", "y:(2)4", "z:(1)2", ("x", 3), b"x",
]  # fmt: skip
SETS: list[Any] = [{"x"}, {"y"}, {"z"}, {"w"}, {"x", "y"}, "x", ("x", "x"), {"y:(1)2"}, 3, {"z"}, {1}]


def put(mesh: Any) -> Any:
    return mw.device_put(X, mw.NamedSharding(mesh, mw.P()))


def named(mesh: Any, spec: Any) -> Any:
    return mw.NamedSharding(mesh, spec)


def in_context(mesh: Any, spec: Any) -> Any:
    with mw.set_mesh(mesh):
        return mw.device_put(X, spec)


PLACES: dict[str, Any] = {
    "NamedSharding": named,
    "device_put": lambda m, s: mw.device_put(X, named(m, s)),
    "a spec on the current mesh": in_context,
    "zeros": lambda m, s: mnp.zeros((8, 12), device=named(m, s)),
    "with_sharding_constraint": lambda m, s: mw.jit(lambda x: lax.with_sharding_constraint(x, named(m, s)))(X),
    "reshard": lambda m, s: mw.jit(lambda x: mw.reshard(x, named(m, s)))(put(m)),
    "in_shardings": lambda m, s: mw.jit(lambda x: x * 2, in_shardings=named(m, s))(X),
    "out_shardings": lambda m, s: mw.jit(lambda x: x * 2, out_shardings=named(m, s))(X),
    "out_sharding": lambda m, s: mw.jit(lambda x: mnp.dot(x, x.T, out_sharding=named(m, s)))(put(m)),
    "shard_map": lambda m, s: mw.shard_map(lambda x: x, mesh=m, in_specs=s, out_specs=s)(X),
    "plan_reshard from": lambda m, s: mw.plan_reshard((8, 12), "f32", named(m, s), named(m, mw.P())),
    "plan_reshard to": lambda m, s: mw.plan_reshard((8, 12), "f32", named(m, mw.P()), named(m, s)),
    "visualize_sharding": lambda m, s: mw.debug.visualize_sharding((8, 12), named(m, s)),
    "to_hlo": lambda m, s: named(m, s).to_hlo(),
    "shard_shape": lambda m, s: named(m, s).shard_shape((8, 12)),
}


AROUND = re.compile(r", or |; |, which |: (?=mw\.)| first$| for all of it, | for a part on each device|\w+=(?=mw\.)")


def expressions(fix: str) -> list[str]:
    """The parts of a fix that are code; prose around them is left out."""
    parts = AROUND.split(fix)
    found = []
    for part in (part.strip() for part in parts):
        try:
            compile(part, "fix", "eval")
        except SyntaxError:
            assert not part.startswith(("mw.", "P(")) or "…" in part or " with " in part, fix
            continue
        found.append(part)
    return found


def check(error: mw.MeshwrightError, mesh: Any, place: Any) -> bool:
    """Whether a spec was among the code of a fix, and accepted."""
    names = {"mw": mw, "mnp": mnp, "lax": lax, "np": np, "mesh": MESHES[0], "x": X, "y": put(MESHES[0]), "spec": mw.P()}
    accepted = False
    for code in expressions(error.fix):
        made = eval(code, dict(names))
        if isinstance(made, mw.PartitionSpec) and place is not None:
            try:
                place(mesh, made)
            except mw.MeshwrightError as again:  # about the value now, not about the spec
                assert again.what.startswith("shard_map cannot take argument"), f"{error}\n{again}"
            accepted = True
    return accepted


def sweep(seed: int, count: int) -> tuple[int, int]:
    """How many errors there were, and in how many of them a spec was pasted back."""
    random = Random(seed)
    errors = accepted = 0
    for _ in range(count):
        mesh, place = random.choice(MESHES), PLACES[random.choice(list(PLACES))]
        entries = [random.choice(ENTRIES) for _ in range(random.randint(0, 3))]
        sets = {key: random.choice(SETS) for key in ("unreduced", "replicated") if random.random() < 0.25}
        spec = None
        try:
            spec = mw.P(*entries, **sets)
            place(mesh, spec)
        except mw.MeshwrightError as error:
            errors += 1
            accepted += check(error, mesh, None if spec is None else place)
    return errors, accepted


def test_a_fix_that_is_pasted_back_is_accepted(capsys):
    errors, accepted = sweep(0, 700)
    assert errors > 300 and accepted > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_fix_that_is_pasted_back_is_accepted_again(seed, capsys):
    errors, accepted = sweep(seed, 4000)
    assert errors > 1500 and accepted > 50


MESH_MISTAKES: list[Any] = [
    lambda: mw.make_mesh((2, 3), ("x",)),
    lambda: mw.make_mesh((2, 0), ("x", "y")),
    lambda: mw.make_mesh((2, -1), ("x", "y")),
    lambda: mw.make_mesh((2, 2), ("x", "x")),
    lambda: mw.make_mesh((2,), ("x:(1)2",)),
    lambda: mw.make_mesh((2,), (1,)),
    lambda: mw.make_mesh((2,), ("x",), kind=""),
    lambda: mw.make_mesh((2,), ("x",), axis_types=3),
    lambda: mw.make_mesh((2,), ("x",), devices=mw.devices(count=3)),
    lambda: mw.Mesh(np.arange(4).reshape(2, 2), ("x",)),
    lambda: mw.Mesh([[0, 1], [0, 1]], ("x", "y")),
    lambda: mw.Mesh([[0, 1], [2]], ("x", "y")),
    lambda: mw.Mesh([0.5, 1.5], ("x",)),
    lambda: mw.Mesh([-1, 0], ("x",)),
    lambda: mw.AbstractMesh((2, 2), ("x",)),
    lambda: mw.sharding.Mesh.parse('<["x"=2, "x"=3]>'),
    lambda: mw.sharding.Mesh.parse('<["x"=2], device_ids=[0, 0]>'),
    lambda: mw.sharding.Mesh.parse("x=2"),
    lambda: mw.NamedSharding("mesh", mw.P()),
    lambda: mw.NamedSharding(MESHES[0], "x"),
    lambda: mw.sharding.SingleDeviceSharding(0),
    lambda: mw.sharding.Device(-1),
    lambda: mw.set_mesh("x").__enter__(),
    lambda: mw.device_put(X, MESHES[0]),
    lambda: mw.device_put(X, "x"),
    lambda: mw.device_put(X, mw.P("x")),
    lambda: mw.device_put({"a": X}, {"b": None}),
    lambda: mw.reshard(X, 3),
    lambda: mw.sharding.count_shardings(-1, 2),
    lambda: mw.devices(count=0),
    lambda: mw.P.dim("x", priority=-1),
    lambda: mw.P.dim(priority=2),
    lambda: mw.P.dim("x", open=3),
]


@pytest.mark.parametrize("mistake", MESH_MISTAKES, ids=range(len(MESH_MISTAKES)))
def test_the_fix_of_a_mistake_about_a_mesh_runs(mistake):
    with pytest.raises(mw.MeshwrightError) as caught:
        mistake()
    with mw.set_mesh(None):  # the fix may set one
        check(caught.value, MESHES[0], None)
