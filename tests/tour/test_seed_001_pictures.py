"""Seed 001, "Sharding": every picture it prints, character for character."""

from __future__ import annotations

import pytest

import meshwright as mw
import meshwright.numpy as mnp

QUARTERS = """\
┌──────────┬──────────┐
│          │          │
│  TPU 0   │  TPU 1   │
│          │          │
│          │          │
├──────────┼──────────┤
│          │          │
│  TPU 2   │  TPU 3   │
│          │          │
│          │          │
└──────────┴──────────┘
"""
WHOLE = """\
┌───────────────────────┐
│                       │
│                       │
│                       │
│                       │
│         TPU 0         │
│                       │
│                       │
│                       │
│                       │
└───────────────────────┘
"""
ROWS = """\
┌───────────────────────┐
│         TPU 0         │
├───────────────────────┤
│         TPU 2         │
├───────────────────────┤
│         TPU 1         │
├───────────────────────┤
│         TPU 3         │
└───────────────────────┘
"""
INFERRED = """\
┌───────┬───────┐
│TPU 0,2│TPU 1,3│
└───────┴───────┘
"""
REPLICATED = """\
┌───────────┐
│TPU 0,1,2,3│
└───────────┘
"""

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def mesh() -> mw.Mesh:
    return mw.make_mesh((2, 2), ("x", "y"), kind="tpu")


def test_a_matrix_over_both_axes(mesh: mw.Mesh, capsys: Printed) -> None:
    sharding = mw.NamedSharding(mesh, mw.P("x", "y"))
    A = mnp.zeros((1024, 1024), device=sharding)
    mw.debug.visualize_array_sharding(A)
    assert capsys.readouterr().out == QUARTERS
    mw.debug.visualize_sharding((1024, 1024), sharding)
    assert capsys.readouterr().out == QUARTERS


def test_a_matrix_on_one_device_and_moved_to_all(mesh: mw.Mesh, capsys: Printed) -> None:
    B = mw.device_put(mw.random.normal(mw.random.key(42), (1024, 1024)), mesh.devices[0, 0])
    B_sharded = mw.device_put(B, mw.NamedSharding(mesh, mw.P("x", "y")))
    mw.debug.visualize_array_sharding(B)
    mw.debug.visualize_array_sharding(B_sharded)
    assert capsys.readouterr().out == WHOLE + QUARTERS


def test_a_matrix_over_the_flat_mesh(capsys: Printed) -> None:
    mesh_flat = mw.make_mesh((4,), ("xy",), kind="tpu")
    sharding_flat = mw.NamedSharding(mesh_flat, mw.P("xy", None))
    C = mnp.zeros((1024, 1024), device=sharding_flat)
    mw.debug.visualize_array_sharding(C)
    assert capsys.readouterr().out == ROWS


def test_the_sharding_inferred_for_a_sum_over_rows(mesh: mw.Mesh, capsys: Printed) -> None:
    mw.debug.visualize_sharding((1024,), mw.NamedSharding(mesh, mw.P("y")))
    assert capsys.readouterr().out == INFERRED


def test_the_replicated_sharding_asked_for(mesh: mw.Mesh, capsys: Printed) -> None:
    mw.debug.visualize_sharding((1024,), mw.NamedSharding(mesh, mw.P(None)))
    assert capsys.readouterr().out == REPLICATED


def test_the_pictures_are_those_of_the_document(mesh: mw.Mesh) -> None:
    flat = mw.make_mesh((4,), ("xy",), kind="tpu")
    one = mw.make_mesh((1,), ("x",), kind="tpu")
    drawn = {
        QUARTERS: mw.debug.as_text((1024, 1024), mw.NamedSharding(mesh, mw.P("x", "y"))),
        WHOLE: mw.debug.as_text((1024, 1024), mw.NamedSharding(one, mw.P())),
        ROWS: mw.debug.as_text((1024, 1024), mw.NamedSharding(flat, mw.P("xy"))),
        INFERRED: mw.debug.as_text((1024,), mw.NamedSharding(mesh, mw.P("y"))),
        REPLICATED: mw.debug.as_text((1024,), mw.NamedSharding(mesh, mw.P())),
    }
    assert {text + "\n" for text in drawn.values()} == drawn.keys()
