"""What `explain` says of the shardings that the planner chose itself."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.commands.schema import schema_of
from meshwright.compile.explain import Filter
from meshwright.tour import decoder

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
    """A weight is gathered for a matmul; another sharding of it saves the gather, and its fix does so."""
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
    assert (found["seconds"], found["times"]) == (one.seconds("tpu v5e"), 1)
    assert found["share"] == one.seconds("tpu v5e") / compiled.simulate("tpu v5e").seconds
    assert (found["line"], found["why"], found["scopes"]) == (str(one.source), one.why, [])
    assert (found["value"], found["direction"]) == ("w f32[64,64]", "forward")
    assert found["stack"] == [
        f'{one.source} in f   return mw.lax.with_sharding_constraint(x @ w, mw.NamedSharding(mesh, mw.P("x")))'
    ]
    assert found["alternative"].startswith("lay out w as P(None, None): −8.19 kB per device, −")
    assert found["fix"] == "mw.device_put(w, mw.NamedSharding(mesh, mw.P(None, None)))"
    placed = eval(found["fix"], {"mw": mw, "w": w, "mesh": mesh})
    better = mw.jit(f).lower(x, placed).compile()
    assert better.explain(json=True) == []
    (saved,) = compiled.explanation().cheaper()
    assert saved.saved_seconds == compiled.simulate("tpu v5e").seconds - better.simulate("tpu v5e").seconds
    before, after = (c.simulate("tpu v5e").peak_bytes_per_device for c in (compiled, better))
    assert saved.saved_memory == before - after


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
    assert 0 < sum(record["share"] for record in found if record["share"] is not None) <= 1


LAYERS = 32


def product(x: Any, w: Any) -> Any:
    """A wrapper, as models have them: its own line says nothing."""
    return mnp.einsum("...d,df->...f", x, w)


def attend(x: Any, layer: Any) -> Any:
    q, k, v = (product(x, layer[name]) for name in ("q", "k", "v"))
    return product(mw.nn.softmax(mnp.einsum("bqd,bkd->bqk", q, k)) @ v, layer["out"])


def feed(x: Any, layer: Any) -> Any:
    with mw.named_scope("feed"):
        hidden = mw.nn.gelu(product(x, layer["up"]))
        return product(hidden, layer["down"])


def model(params: Any, x: Any) -> Any:
    for n, layer in enumerate(params["layers"]):
        with mw.named_scope(f"layer{n}"):
            x = x + attend(x, layer)
            x = x + feed(x, layer)
    return (x**2).mean()


def step(params: Any, x: Any) -> Any:
    value, gradient = mw.value_and_grad(model)(params, x)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def layered(down: Any = ("model", None), layers: int = LAYERS) -> Any:
    mesh = mw.make_mesh((2, 4), ("data", "model"))

    def on(*spec: Any, shape: Any = (256, 256)) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    specs = {"q": (), "k": (), "v": (), "out": (), "up": (None, "model"), "down": down}
    params = {"layers": [{name: on(*spec) for name, spec in specs.items()} for _ in range(layers)]}
    return mw.jit(step).lower(params, on("data", shape=(8, 128, 256))).compile()


def test_equal_layers_are_one_row_that_names_the_line_outside_of_helpers() -> None:
    compiled = layered()
    found = compiled.explanation("tpu v5e")
    assert len(found.rows()) <= 15 < len(compiled.collectives)
    gradients = found.rows()[0].first
    assert gradients.name == "gradient of params['layers'][0]['down']" and gradients.direction == "backward"
    first = found.rows(Filter(axis="model"))[0]
    assert first.times == LAYERS and len(first.members) == LAYERS
    line = first.first.stack.line
    assert line is not None and line.text == 'return product(hidden, layer["down"])'
    assert [one.text for one in first.first.stack.helpers] == ['return mnp.einsum("...d,df->...f", x, w)']
    assert [one.call.function for one in first.first.stack.lines] == ["feed", "model", "step"]
    text = compiled.explain("tpu v5e")
    assert "layer0-31/feed" in text and "in product test_explain.py:" in text
    assert {one.direction for one in found.findings} == {"forward", "backward"}


def plain(equation: str, x: Any, w: Any) -> Any:
    return mnp.einsum(equation, x, w)


def dense(x: Any, w: Any) -> Any:
    return plain("...d,df->...f", x, w)


class Module:
    """A base class as libraries have it: its one line calls whatever stands in the classes below."""

    def __call__(self, *args: Any) -> Any:
        with mw.named_scope(type(self).__name__):
            return self.forward(*args)

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError


class Norm(Module):
    def forward(self, x: Any) -> Any:
        return x - x.mean(-1, keepdims=True)


class Feed(Module):
    def forward(self, x: Any, layer: Any) -> Any:
        hidden = mw.nn.gelu(dense(x, layer["up"]))
        return dense(hidden, layer["down"])


class Block(Module):
    def forward(self, x: Any, layer: Any) -> Any:
        return Norm()(x + Feed()(Norm()(x), layer))


def test_a_wrapper_in_a_wrapper_is_a_helper_and_what_a_call_method_leads_to_is_not() -> None:
    """`plain` is called from one line, that of `dense`; `forward` of each class from the one line of `__call__`."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))

    def on(*spec: Any, shape: Any = (256, 256)) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    def model(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = Block()(x, layer)
        return Norm()(x).sum()

    layers = [{"up": on(None, "model"), "down": on("model")} for _ in range(3)]
    compiled = mw.jit(mw.grad(model)).lower(layers, on("data", shape=(64, 256))).compile()
    found = compiled.explanation("tpu v5e", tries=False)
    first = next(one for one in found.findings if one.collective.kind == "all_reduce" and one.direction == "forward")
    assert first.stack.line is not None and first.stack.line.text == 'return dense(hidden, layer["down"])'
    assert [one.call.function for one in first.stack.helpers] == ["plain", "dense"]
    assert [one.call.function.rpartition("<locals>.")[2] for one in first.stack.lines] == [
        "Feed.forward", "Block.forward", "model",
    ]  # fmt: skip
    assert {one.stack.line.text for one in found.findings if one.stack.line is not None} <= {
        "hidden = mw.nn.gelu(dense(x, layer[\"up\"]))", 'return dense(hidden, layer["down"])',
        "return Norm()(x + Feed()(Norm()(x), layer))", "return Norm()(x).sum()",
    }  # fmt: skip


def test_reasons_name_the_lines_that_are_no_helpers_and_where_the_axes_of_a_mismatch_are_written() -> None:
    """`down` is split along its columns, `up` too: the rows of `down` meet what `up` left split."""
    compiled = layered((None, "model"), layers=2)
    found = compiled.explanation("tpu v5e", tries=False)
    helper = product.__code__.co_firstlineno + 2
    assert any(f"test_explain.py:{helper}" in one.why for one in compiled.collectives)
    assert not any(f"test_explain.py:{helper} " in one.why for one in found.findings)
    lines = [line.strip() for line in found.text().splitlines() if line.strip().startswith("model is written on ")]
    sides = {f"dim 1 of params['layers'][*]['{name}']" for name in ("up", "down")}
    assert any(sides <= set(line.removeprefix("model is written on ").split(", ")) for line in lines), lines


def test_values_that_were_combined_into_several_collectives_are_one_row() -> None:
    """Gradients of twelve weights, in collectives of about 50 MB each."""
    mesh = mw.make_mesh((4,), ("data",))
    weights = [mw.ShapeDtypeStruct((2048, 2048), "float32", sharding=mw.NamedSharding(mesh, mw.P()))] * 12
    x = mw.ShapeDtypeStruct((65536, 2048), "float32", sharding=mw.NamedSharding(mesh, mw.P("data")))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = mnp.tanh(x @ w)
        return (x**2).sum()

    def update(weights: Any, x: Any) -> Any:
        return mw.tree.map(lambda w, g: w - 0.1 * g, weights, mw.grad(loss)(weights, x))

    compiled = mw.jit(update).lower(weights, x).compile()
    assert len(compiled.collectives) > 1
    (row,) = compiled.explanation("tpu v5e", tries=False).rows(Filter(kind="all_reduce"))
    assert len(row.members) == row.times == len(compiled.collectives)
    assert row.value.startswith("12 gradients: weights[") and row.value.endswith(", …")
    assert row.why.endswith(f"(and 11 more sums, in {row.times} collectives)")


def test_what_is_wanted_is_chosen_by_axis_kind_line_scope_and_number() -> None:
    compiled = layered(layers=2)
    every = compiled.explain(json=True)
    by = {name: [one[name] for one in every] for name in ("axes", "kind", "line", "scopes")}
    assert compiled.explain(json=True, axis="data") == [one for one in every if "data" in one["axes"]] != every
    assert compiled.explain(json=True, kind="all-reduce") == [one for one in every if one["kind"] == "all_reduce"]
    assert compiled.explain(json=True, scope="feed") == [one for one in every if "feed" in one["scopes"]]
    assert compiled.explain(json=True, scope="layer1") != every
    line = by["line"][0]
    assert every[0] in compiled.explain(json=True, line=line)
    top = compiled.explain(json=True, top=1)
    assert 0 < len(top) < len(every)
    with pytest.raises(mw.MeshwrightError) as error:
        compiled.explain(axes="data")
    assert (error.value.what, error.value.why, error.value.fix) == (
        "explain knows nothing of axes.",
        "collectives are chosen by axis, kind, line, scope, top",
        'compiled.explain(axis="model", top=5)',
    )


def test_a_jitted_function_is_reached_from_every_line_that_calls_it() -> None:
    inner = mw.jit(lambda x: x.sum(0))

    def f(x: Any) -> Any:
        with mw.named_scope("first"):
            a = inner(x)
        return a, inner(x * 2)

    x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(MESH, mw.P("d")))
    program = mw.jit(f).lower(x).program
    sums = [eqn.source for eqn in program.eqns if eqn.op.name == "reduce_sum"]
    assert [[one.text for one in s.stack()][-1] for s in sums] == ["a = inner(x)", "return a, inner(x * 2)"]
    assert [s.call.scopes for s in sums] == [("first",), ()]


def test_what_is_recomputed_and_what_is_in_a_loop_is_said() -> None:
    mesh = mw.make_mesh((4,), ("model",))

    def on(*spec: Any, shape: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    @mw.checkpoint
    def body(x: Any, layer: Any) -> Any:
        return mnp.tanh(mnp.tanh(x @ layer["up"]) @ layer["down"]), None

    def loss(layers: Any, x: Any) -> Any:
        return mw.lax.scan(body, x, layers)[0].sum()

    layers = {"up": on(None, None, "model", shape=(6, 64, 64)), "down": on(None, "model", shape=(6, 64, 64))}
    compiled = mw.jit(mw.grad(loss)).lower(layers, on(shape=(16, 64))).compile()
    found = compiled.explain(json=True)
    assert {one["direction"] for one in found} == {"forward", "backward", "recomputed"}
    assert all(any(scope.startswith("scan of 6 steps at test_explain.py:") for scope in one["scopes"]) for one in found)
    assert all(one["times"] == 6 for one in found)


def test_exposed_seconds_are_those_in_which_nothing_is_computed() -> None:
    """A gather whose matmul waits for it is exposed; one beside a long matmul is hidden."""
    mesh = mw.make_mesh((4,), ("x",))

    def on(*spec: Any, shape: Any = (4096, 4096)) -> Any:
        return mw.ShapeDtypeStruct(shape, "bfloat16", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    def f(a: Any, b: Any, w: Any) -> Any:
        return mw.lax.psum(a, "x"), b @ w

    mapped = mw.shard_map(f, mesh=mesh, in_specs=(mw.P("x"), mw.P(), mw.P()), out_specs=(mw.P(), mw.P()))
    compiled = mw.jit(mapped).lower(on("x", shape=(4096, 1024)), on(), on()).compile()
    (beside,) = compiled.explanation("tpu v5e").findings
    assert beside.exposed_seconds == 0 and beside.seconds > 0
    alone = mw.jit(lambda x: x.sum(0)).lower(on("x")).compile().explanation("tpu v5e").findings[0]
    assert alone.exposed_seconds == pytest.approx(alone.seconds)


def test_the_json_of_explain_is_as_its_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make test adds it")
    found = json.loads(json.dumps(layered(layers=2).explanation().to_json()))
    jsonschema.validate(found, schema_of("explain"))
    assert len(found["collectives"]) > 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "seconds": "1"}, schema_of("explain"))


def test_records_of_a_program_on_one_device() -> None:
    assert mw.jit(lambda x: x + 1).lower(mnp.ones(3)).compile().explain(json=True) == []


def test_a_sum_that_only_parts_of_are_read_is_there_for_partial_sums() -> None:
    """Sums that are first taken whole, and of which each device then reads its part, become reduce-scatters."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))

    def on(shape: Any, sharding: Any) -> Any:
        return mw.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = decoder.placed(decoder.shapes(2048, 16384, 16, "bfloat16"), mesh, decoder.SPECS, on)
    tokens = mw.ShapeDtypeStruct((16, 513), "int32", sharding=mw.NamedSharding(mesh, mw.P("data")))
    found = mw.jit(decoder.step).lower(params, tokens).compile().explanation("tpu v5e", tries=False).findings
    sums = [one.why for one in found if one.collective.kind in ("all_reduce", "reduce_scatter")]
    assert all(" leaves partial " in why for why in sums), sums
    assert any(" leaves partial sums over model; the mul needs " in why for why in sums), sums


def test_a_sum_is_there_for_the_matmul_that_it_is_of_though_an_operand_was_summed_before() -> None:
    """The cotangent that the matmul of a gradient reads was summed over the other axis before."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))

    def on(shape: Any, *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, "bfloat16", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    def loss(p: Any, x: Any) -> Any:
        hidden = x @ p["down"]
        out = hidden @ p["head"]
        return mnp.mean(out**2)

    def step(p: Any, x: Any) -> Any:
        return mw.tree.map(lambda a, b: a - 0.1 * b, p, mw.grad(loss)(p, x))

    params = {"down": on((2816, 1024), None, "model"), "head": on((1024, 1600), "model")}
    compiled = mw.jit(step).lower(params, on((2048, 2816), "data", "model")).compile()
    lines, first = inspect.getsourcelines(loss)
    line = {name: first + next(n for n, text in enumerate(lines) if f'p["{name}"]' in text) for name in params}
    records = compiled.explanation("tpu v5e", tries=False).records()
    for name, number in line.items():
        mine = [one for one in records if one["value"].startswith(f"gradient of p['{name}'] ")]
        sums = {one["line"] for one in mine if one["kind"] == "reduce_scatter"}
        assert sums == {f"test_explain.py:{number}"}
        gathers = [one["why"] for one in mine if one["kind"] == "all_gather"]
        assert gathers
        assert all(f"the matmul at test_explain.py:{number} leaves partial sums over data; " in why for why in gathers)
