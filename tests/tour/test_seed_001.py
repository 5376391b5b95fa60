"""Seed 001, "Sharding": its snippets in their order, with the types it prints and the collectives it shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ShardingError

Printed = pytest.CaptureFixture[str]

INFERRED_AND_MANUAL = """\
Inferred sharding:
┌───────┬───────┐
│TPU 0,2│TPU 1,3│
└───────┴───────┘
Manual sharding (replicated):
┌───────────┐
│TPU 0,1,2,3│
└───────────┘
"""


def test_the_output_sharding_is_inferred_or_given(capsys: Printed) -> None:
    mesh = mw.make_mesh((2, 2), ("x", "y"), kind="tpu")
    sharding = mw.NamedSharding(mesh, mw.P("x", "y"))
    key = mw.random.key(42)
    B = mw.random.normal(key, (1024, 1024))
    B_sharded = mw.device_put(B, sharding)

    @mw.jit
    def f_contract(x: Any) -> Any:
        return x.sum(axis=0)

    @partial(mw.jit, out_shardings=mw.NamedSharding(mesh, mw.P(None)))
    def f_contract_replicated(x: Any) -> Any:
        return x.sum(axis=0)

    result = f_contract(B_sharded)
    result_replicated = f_contract_replicated(B_sharded)
    print("Inferred sharding:")
    mw.debug.visualize_array_sharding(result)
    print("Manual sharding (replicated):")
    mw.debug.visualize_array_sharding(result_replicated)
    assert capsys.readouterr().out == INFERRED_AND_MANUAL
    np.testing.assert_allclose(np.asarray(result), np.asarray(B).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(result_replicated))


@pytest.fixture
def explicit() -> Iterator[SimpleNamespace]:
    """The arrays of the second half: each is made by the snippets before it."""
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.sharding.AxisType.Explicit,) * 2, kind="tpu")
    with mw.set_mesh(mesh):
        A = mnp.zeros((2048, 8192), dtype=mnp.bfloat16, device=mw.NamedSharding(mesh, mw.P("x", "y")))
        B = mw.reshard(A, mw.P("x"))
        C = mw.reshard(B, mw.P(None, "x"))
        yield SimpleNamespace(mesh=mesh, A=A, B=B, C=C)


def collectives(compiled: Any) -> list[tuple[str, tuple[str, ...], int]]:
    return [(c.kind, c.axes, c.bytes_received_per_device) for c in compiled.collectives]


def test_the_sharding_is_part_of_the_type(explicit: SimpleNamespace) -> None:
    assert str(mw.typeof(explicit.A)) == "bfloat16[2048@x,8192@y]"


def test_all_gather(explicit: SimpleNamespace) -> None:
    mesh, A = explicit.mesh, explicit.A

    @mw.jit
    def all_gather(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(mesh, mw.P("x")))

    lowered = all_gather.lower(A)
    compiled = lowered.compile()
    B = compiled(A)
    assert str(mw.typeof(B)) == "bfloat16[2048@x,8192]"
    assert str(lowered.program.in_types[0]) == "bfloat16[2048@x,8192@y]"
    assert str(lowered.program.out_types[0]) == "bfloat16[2048@x,8192]"
    assert collectives(compiled) == [("all_gather", ("y",), 1024 * 4096 * 2)]
    assert [t.shape for t in compiled.program.in_types] == [(1024, 4096)]
    assert [t.shape for t in compiled.program.out_types] == [(1024, 8192)]


def test_all_to_all(explicit: SimpleNamespace) -> None:
    mesh, B = explicit.mesh, explicit.B

    @mw.jit
    def all_to_all(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(mesh, mw.P(None, "x")))

    lowered = all_to_all.lower(B)
    compiled = lowered.compile()
    C = compiled(B)
    assert str(mw.typeof(C)) == "bfloat16[2048,8192@x]"
    assert collectives(compiled) == [("all_to_all", ("x",), 1024 * 4096 * 2)]
    assert [t.shape for t in compiled.program.in_types] == [(1024, 8192)]
    assert [t.shape for t in compiled.program.out_types] == [(2048, 4096)]


def test_all_to_all_back(explicit: SimpleNamespace) -> None:
    mesh, C = explicit.mesh, explicit.C

    @mw.jit
    def all_to_all(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(mesh, mw.P("x")))

    lowered = all_to_all.lower(C)
    compiled = lowered.compile()
    D = compiled(C)
    assert str(mw.typeof(D)) == "bfloat16[2048@x,8192]"
    assert collectives(compiled) == [("all_to_all", ("x",), 1024 * 4096 * 2)]
    assert [t.shape for t in compiled.program.in_types] == [(2048, 4096)]
    assert [t.shape for t in compiled.program.out_types] == [(1024, 8192)]


def test_gram_is_an_all_reduce(explicit: SimpleNamespace) -> None:
    mesh, C = explicit.mesh, explicit.C

    @mw.jit
    def gram(x: Any) -> Any:
        return mnp.dot(x, x.mT, out_sharding=mw.NamedSharding(mesh, mw.P()))

    lowered = gram.lower(C)
    compiled = lowered.compile()
    E = compiled(C)
    assert str(mw.typeof(E)) == "bfloat16[2048,2048]"
    assert collectives(compiled) == [("all_reduce", ("x",), 2048 * 2048 * 2)]
    assert [t.shape for t in compiled.program.in_types] == [(2048, 4096)]


def test_gram_without_out_sharding_is_ambiguous(explicit: SimpleNamespace) -> None:
    gram = mw.jit(lambda x: mnp.dot(x, x.mT))
    with pytest.raises(ShardingError) as error:
        gram.lower(explicit.C)
    assert error.value.what == "The layout of dot_general of bf16[2048,8192@x], bf16[8192@x,2048] is ambiguous."
    assert error.value.fix == (
        "out_sharding=mw.P(None, None) for all of it, out_sharding=mw.P('x', None) for a part on each device"
    )


def test_dot_custom_is_a_reduce_scatter(explicit: SimpleNamespace) -> None:
    mesh, A = explicit.mesh, explicit.A

    @mw.jit
    def dot_custom(x: Any, y: Any) -> Any:
        return mnp.dot(x, y, out_sharding=mw.NamedSharding(mesh, mw.P("x", "y")))

    F = mnp.zeros((8192, 4096), dtype=mnp.bfloat16, out_sharding=mw.NamedSharding(mesh, mw.P("y")))
    assert str(mw.typeof(F)) == "bfloat16[8192@y,4096]"
    lowered = dot_custom.lower(A, F)
    compiled = lowered.compile()
    G = compiled(A, F)
    assert str(mw.typeof(G)) == "bfloat16[2048@x,4096@y]"
    assert collectives(compiled) == [("reduce_scatter", ("y",), 1024 * 2048 * 2)]
    assert [t.shape for t in compiled.program.in_types] == [(1024, 4096), (4096, 4096)]
    assert [t.shape for t in compiled.program.out_types] == [(1024, 2048)]


def test_the_values_are_right(explicit: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    x, y = (mnp.array(rng.normal(size=shape).astype(np.float32)) for shape in ((8, 16), (16, 12)))
    a, f = mw.device_put(x, mw.P("x", "y")), mw.device_put(y, mw.P("y"))
    want = np.asarray(x) @ np.asarray(y)
    for spec in (mw.P("x", "y"), mw.P("x"), mw.P(None, "y"), mw.P(), mw.P("y", "x"), mw.P(("x", "y"))):
        dot_custom = mw.jit(lambda x, y, spec=spec: mnp.dot(x, y, out_sharding=spec))
        got = dot_custom(a, f)
        assert got.sharding.is_equivalent_to(mw.NamedSharding(explicit.mesh, spec), 2)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)
