"""What holds of every explanation, of programs, meshes and shardings drawn at random."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.chart.page import page
from meshwright.commands.schema import schema_of
from meshwright.compile.explain import MOST_ROWS, Filter
from meshwright.compile.report import report_data

MESHES = [((4,), ("x",)), ((2, 2), ("x", "y")), ((2, 4), ("x", "y")), ((2, 2, 2), ("x", "y", "z"))]
MACHINES = ["tpu v5e", "h100"]


def product(x: Any, w: Any) -> Any:
    return mnp.einsum("...d,df->...f", x, w)


def feed(x: Any, layer: Any) -> Any:
    return product(mw.nn.gelu(product(x, layer["up"])), layer["down"])


def attend(x: Any, layer: Any) -> Any:
    q, k = product(x, layer["up"]), product(x, layer["up"])
    return product(mw.nn.softmax(mnp.einsum("bqf,bkf->bqk", q, k)) @ q, layer["down"])


def normed(x: Any, layer: Any) -> Any:
    return x / (1 + (x**2).sum(-1, keepdims=True)) + layer["down"].sum(0)


def turned(x: Any, layer: Any) -> Any:
    return mnp.swapaxes(mnp.tanh(mnp.swapaxes(x, 0, 1)), 0, 1) * layer["up"].mean()


def joined(x: Any, layer: Any) -> Any:
    return mnp.concatenate([x[:, 4:], x[:, :4]], axis=1) + product(x, layer["up"])[..., :16]


BLOCKS = [feed, attend, normed, turned, joined]
AROUND = ["plain", "scope", "scan", "checkpoint", "cond", "while"]


def inside(how: str, n: int, block: Any, x: Any, layer: Any) -> Any:
    """A block, in one of the ways in which a program has it."""
    if how == "scan":
        return mw.lax.scan(lambda x, _: (x + block(x, layer), None), x, None, length=3)[0]
    if how == "cond":
        return mw.lax.cond(x.sum() > 0, lambda x: x + block(x, layer), lambda x: x * 2, x)
    if how == "while":
        return mw.lax.fori_loop(0, mnp.asarray(x.sum() > 0, int), lambda _, x: x + block(x, layer), x)
    if how == "checkpoint":
        return x + mw.checkpoint(block)(x, layer)
    if how == "scope":
        with mw.named_scope(f"layer{n}"):
            return x + block(x, layer)
    return x + block(x, layer)


@st.composite
def spec(draw: Any, shape: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> Any:
    dims: list[Any] = [None] * len(shape)
    for name, _ in axes:
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim >= 0:
            dims[dim] = (*(dims[dim] or ()), name)
    return mw.P(*dims)


@st.composite
def programs(draw: Any) -> Any:
    """A function, and arguments on a mesh: twice, laid out in other ways."""
    shape, names = draw(st.sampled_from(MESHES))
    mesh = mw.make_mesh(shape, names)
    axes = tuple(zip(names, shape, strict=True))
    drawn = draw(st.lists(st.tuples(st.sampled_from(BLOCKS), st.sampled_from(AROUND)), min_size=1, max_size=3))
    repeated = draw(st.integers(1, 3))
    derivative = draw(st.booleans()) and all(how != "while" for _, how in drawn)

    def model(params: Any, x: Any) -> Any:
        for n in range(repeated):
            for (block, how), layer in zip(drawn, params[n], strict=True):
                x = inside(how, n, block, x, layer)
        return (x**2).mean()

    def step(params: Any, x: Any) -> Any:
        gradient = mw.grad(model)(params, x)
        return mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    def arguments() -> Any:
        def on(shape: tuple[int, ...], where: Any) -> Any:
            return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, where))

        kinds = [{"up": draw(spec((16, 32), axes)), "down": draw(spec((32, 16), axes))} for _ in drawn]
        shapes = {"up": (16, 32), "down": (32, 16)}
        layers = [[{k: on(shapes[k], one[k]) for k in one} for one in kinds] for _ in range(repeated)]
        return layers, on((8, 8, 16), draw(spec((8, 8, 16), axes)))

    return mw.jit(step if derivative else model), arguments(), arguments(), draw(st.sampled_from(MACHINES))


def assert_explained(compiled: Any, machine: str) -> None:
    explanation = compiled.explanation(machine, tries=False)
    found, collectives = explanation.findings, compiled.collectives
    # Each collective is in one row, and rows have all bytes.
    rows = explanation.rows()
    members = [id(one) for row in rows for one in row.members]
    assert sorted(members) == sorted(map(id, found)) and len(found) == len(collectives)
    received = Counter[str]()
    for c in collectives:
        received[c.kind] += c.bytes_received_per_device * c.times
    in_rows = Counter[str]()
    for row in rows:
        assert len({one.collective.kind for one in row.members}) == 1
        assert len({one.collective.axes for one in row.members}) == 1
        for one in row.members:
            in_rows[one.collective.kind] += one.collective.bytes_received_per_device * one.collective.times
    assert received == in_rows
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    # What runs on one network takes no more than the step; what is exposed is no longer than what there is.
    run = explanation.measured.simulation
    share = Counter[tuple[str, ...]]()
    for one in found:
        if one.share is not None:
            assert one.share >= 0 and one.exposed_seconds is not None
            assert one.exposed_seconds <= one.seconds * (1 + 1e-9)
            share[tuple(sorted({axis.split(":")[0] for axis in one.collective.axes}))] += one.share
    assert all(whole <= 1 + 1e-9 for whole in share.values())
    assert run.exposed_seconds <= run.seconds
    # A sum is there for parts that add up, however it is taken.
    sums = [one for one in found if one.collective.kind in ("all_reduce", "reduce_scatter") and one.collective.implicit]
    assert all(" leaves p" in one.why or " as a partial sum " in one.why for one in sums), [one.why for one in sums]
    # Filters part the collectives.
    every = explanation.records()
    for kind in {one["kind"] for one in every}:
        assert explanation.records(Filter(kind=kind)) == [one for one in every if one["kind"] == kind]
    for axis in compiled.mesh.shape:
        wanted = [one for one in every if axis in {name.split(":")[0] for name in one["axes"]}]
        assert explanation.records(Filter(axis=axis)) == wanted
    for line in {one["line"] for one in every if one["line"]}:
        assert all(one in explanation.records(Filter(line=line)) for one in every if one["line"] == line)
    # The text, the JSON and the page say the same.
    text = explanation.text()
    shown = sum(line.startswith(f"{row.first.why[:20]}") for row in rows for line in map(str.strip, text.splitlines()))
    assert not rows or shown >= min(len(rows), MOST_ROWS)
    saved = json.loads(json.dumps(explanation.to_json()))
    schema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make test adds it")
    schema.validate(saved, schema_of("explain"))
    assert [one["bytes"] for one in saved["collectives"]] == [c.bytes_received_per_device for c in collectives]
    assert (
        sum(one["bytes"] * one["times"] for one in saved["collectives"] if one["counted"])
        == (saved["bytes_received_per_device"])
    )
    report = json.loads(json.dumps(report_data(explanation, "drawn")))
    assert sorted(n for row in report["rows"] for n in row["members"]) == list(range(len(collectives)))
    assert all(0 <= bar[3] < len(report["lines"]) or bar[3] == -1 for lane in report["lanes"] for bar in lane["bars"])
    assert "drawn" in page([report])


def assert_opposite(one: Any, other: Any, machine: str) -> None:
    """Of a program and itself nothing differs; of two, what differs is the same from both sides."""
    assert not one.diff(one, machine) and str(one.diff(one, machine)).endswith("the same collectives")
    there, back = one.diff(other, machine), other.diff(one, machine)
    assert [len(there.appeared), len(there.went)] == [len(back.went), len(back.appeared)]
    amounts = sorted((row.before, row.after) for row in there.rows)
    assert amounts == sorted((row.after, row.before) for row in back.rows)
    assert sum(row.saved_seconds for row in there.rows) == pytest.approx(
        -sum(row.saved_seconds for row in back.rows), abs=1e-15
    )
    times = [sum(c.times for c in side.collectives) for side in (one, other)]
    assert sum(row.after.times - row.before.times for row in there.rows) == times[1] - times[0]
    schema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make test adds it")
    schema.validate(json.loads(json.dumps(there.to_json())), schema_of("diff"))


def assert_holds(drawn: Any) -> None:
    f, arguments, others, machine = drawn
    one, other = f.lower(*arguments).compile(), f.lower(*others).compile()
    assert_explained(one, machine)
    assert_explained(other, machine)
    assert_opposite(one, other, machine)


@given(programs())
@settings(max_examples=8, deadline=None)
def test_what_is_explained_is_what_is_sent(drawn: Any) -> None:
    assert_holds(drawn)


@pytest.mark.slow
@given(programs())
@settings(max_examples=150, deadline=None)
def test_what_is_explained_is_what_is_sent_for_many(drawn: Any) -> None:
    assert_holds(drawn)
