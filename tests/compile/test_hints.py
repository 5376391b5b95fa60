"""Every hint is applied: the program then receives, takes and holds exactly as much less as was said."""

from __future__ import annotations

import pathlib
import random
import re
import sys
import types
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core import tree
from meshwright.partition.combine import received
from meshwright.sharding.spec import PartitionSpec

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import FOLDER as EXAMPLES
from twins import load

MESH = mw.make_mesh((2, 4), ("data", "model"))


def with_line(path: pathlib.Path, hint: Any) -> types.ModuleType:
    """A file of a user's with the code of a hint pasted below the line that it names."""
    code, _, place = hint.fix.partition("  # below ")
    file, _, number = place.rpartition(":")
    assert file == path.name
    lines = path.read_text().splitlines()
    above = lines[int(number) - 1]
    lines.insert(int(number), above[: len(above) - len(above.lstrip())] + code)
    module = types.ModuleType(f"{path.stem}_with_a_line")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    module.__dict__.update(mw=mw, mesh=MESH)
    exec(compile("\n".join(lines), f"{module.__name__}.py", "exec"), module.__dict__)
    return module


def compiled(name: str, specs: Any, machine: str, returned: Any = None, example: Any = None) -> Any:
    """The train step of an example, its parameters laid out by ``specs(path, shape)``, its results by ``returned``."""
    example = example or load(name)
    config = example.Config()
    params = mw.eval_shape(lambda: example.init(mw.random.key(0), config))
    batch = mw.eval_shape(lambda: example.make_batch(mw.random.key(1), config))

    def on(leaf: Any, spec: PartitionSpec) -> Any:
        return mw.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=mw.NamedSharding(MESH, spec))

    leaves, whole = tree.flatten((params, batch))
    names = [name + path for name, one in (("params", params), ("batch", batch)) for path in tree.path_names(one)]
    args = tree.unflatten(whole, [on(leaf, specs(name, leaf.shape)) for name, leaf in zip(names, leaves, strict=True)])
    step = mw.jit(
        lambda params, batch: example.train_step(params, batch, config), hardware=machine, out_shardings=returned
    )
    return step.lower(*args).compile()


def _changed(specs: Any, applied: dict[str, PartitionSpec], path: str, shape: tuple[int, ...]) -> PartitionSpec:
    return applied[path] if path in applied else specs(path, shape)


def _returned(before: Any, applied: dict[str, PartitionSpec]) -> Any:
    """The ``out_shardings`` that say something of some results, and nothing of the others."""
    leaves, whole = tree.flatten(before.out_shardings)
    names = ["result" + path for path in tree.path_names(before.out_shardings)]
    places = [mw.NamedSharding(MESH, applied[name]) if name in applied else None for name in names]
    assert set(applied) <= set(names) and len(leaves) == len(places)
    return tree.unflatten(whole, places)


def assert_hints_hold(name: str, specs: Any, machine: str) -> int:
    """Apply every hint for a layout; how many there were."""
    before = compiled(name, specs, machine)
    hints = before.explanation().cheaper()
    run = before.simulate(machine)
    for hint in hints:
        applied = dict.fromkeys(hint.arguments, hint.spec)
        if hint.kind == "argument":
            after = compiled(name, partial(_changed, specs, applied), machine)
        elif hint.kind == "value":
            after = compiled(name, specs, machine, example=with_line(EXAMPLES / f"{name}.py", hint))
        else:
            assert hint.kind == "result"  # no example has a constraint
            after = compiled(name, specs, machine, _returned(before, applied))
        now = after.simulate(machine)
        assert received(before.collectives) - received(after.collectives) == hint.saved_bytes, str(hint)
        assert run.seconds - now.seconds == pytest.approx(hint.saved_seconds, rel=1e-9, abs=1e-15), str(hint)
        assert run.peak_bytes_per_device - now.peak_bytes_per_device == hint.saved_memory, str(hint)
        assert str(hint) in before.explain()
    return len(hints)


def last_dim(path: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Everything that can be is split along its last dim."""
    fits = shape and shape[-1] % 4 == 0
    if path.startswith("batch"):
        return mw.P("data")
    return mw.P(*[None] * (len(shape) - 1), "model") if fits else mw.P()


def drawn(seed: int) -> Any:
    """Parameters laid out at random: those of one name but for numbers alike."""

    def specs(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if path.startswith("batch"):
            return mw.P("data")
        numbers = random.Random(f"{seed} {''.join(c for c in path if not c.isdigit())} {shape}")
        dims: list[Any] = [None] * len(shape)
        for axis, size in numbers.sample([("data", 2), ("model", 4)], numbers.choice([0, 1, 1, 2])):
            fits = [n for n, d in enumerate(shape) if d % size == 0 and dims[n] is None]
            if fits:
                dims[numbers.choice(fits)] = axis
        return mw.P(*dims)

    return specs


@pytest.mark.parametrize("machine", ["h100"])
def test_hints_for_an_example_hold(machine: str) -> None:
    assert assert_hints_hold("mlp", last_dim, machine) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "transformer", "gpt", "convnet", "moe"])
def test_hints_for_every_example_hold(name: str) -> None:
    assert_hints_hold(name, last_dim, "tpu v5e")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_hints_for_random_layouts_hold(seed: int) -> None:
    assert_hints_hold(("mlp", "transformer")[seed % 2], drawn(seed), ("tpu v5e", "h100")[seed // 5])


def on(shape: tuple[int, ...], *spec: Any) -> Any:
    return mw.ShapeDtypeStruct(shape, "bfloat16", sharding=mw.NamedSharding(MESH, mw.P(*spec)))


def project(x: Any, up: Any, down: Any) -> Any:
    return {"out": mw.nn.gelu(x @ up) @ down, "norm": (x * x).sum()}


def project_with(out: Any) -> Any:
    f = mw.jit(project, out_shardings=out)
    return f.lower(on((4096, 1024), "data"), on((1024, 4096), None, "model"), on((4096, 1024), "model")).compile()


def assert_promised(before: Any, after: Any, hint: Any) -> None:
    assert hint.saved_bytes > 0
    assert_saved(before, after, hint)


def assert_saved(before: Any, after: Any, hint: Any, machine: str = "tpu v5e") -> None:
    was, now = before.simulate(machine), after.simulate(machine)
    assert received(before.collectives) - received(after.collectives) == hint.saved_bytes
    assert was.seconds - now.seconds == pytest.approx(hint.saved_seconds, rel=1e-9, abs=1e-15)
    assert was.peak_bytes_per_device - now.peak_bytes_per_device == hint.saved_memory


def test_a_hint_on_a_result_holds() -> None:
    before = project_with(None)
    hint = next(one for one in before.explanation("tpu v5e").cheaper() if one.kind == "result")
    assert hint.arguments == ("result['out']",)
    assert "return result['out'] as P('data', 'model'): −" in before.explain("tpu v5e")
    assert hint.fix == "mw.jit(f, out_shardings={'norm': None, 'out': mw.NamedSharding(mesh, mw.P('data', 'model'))})"
    pasted = eval(hint.fix, {"mw": mw, "mesh": MESH, "f": project})
    shapes = (on((4096, 1024), "data"), on((1024, 4096), None, "model"), on((4096, 1024), "model"))
    assert_promised(before, pasted.lower(*shapes).compile(), hint)


def test_a_result_that_is_the_next_value_of_an_argument_stays_as_it_is() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * mw.grad(lambda w: ((x @ w) ** 2).sum().astype("float32"))(w)

    found = mw.jit(step, donate_argnums=0).lower(on((1024, 1024)), on((4096, 1024), "data")).compile()
    assert [one.kind for one in found.collectives] == ["all_reduce"]
    assert not [one for one in found.explanation("tpu v5e").cheaper() if one.kind == "result"]


def constrained(spec: Any, derivative: bool) -> Any:
    def loss(w: Any, x: Any) -> Any:
        hidden = mw.lax.with_sharding_constraint(x @ w["up"], mw.NamedSharding(MESH, spec))
        return (mw.nn.gelu(hidden) @ w["down"]).sum().astype("float32")

    w = {"up": on((1024, 4096), None, "model"), "down": on((4096, 1024), "model")}
    return mw.jit(mw.grad(loss) if derivative else loss).lower(w, on((256, 1024), "data")).compile()


@pytest.mark.parametrize("derivative", [False, True])
def test_a_hint_on_a_constraint_holds(derivative: bool) -> None:
    before = constrained(mw.P("data"), derivative)
    hint = next(one for one in before.explanation("tpu v5e").cheaper() if one.kind == "constraint")
    assert hint.spec == mw.P("data", "model") and hint.arguments[0].startswith("test_hints.py:")
    code = "mw.lax.with_sharding_constraint(x, mw.NamedSharding(mesh, mw.P('data', 'model')))"
    assert hint.fix == f"{code}  # at {hint.arguments[0]}"
    assert_promised(before, constrained(hint.spec, derivative), hint)


BLOCKS = """
import meshwright as mw
import meshwright.numpy as mnp

def product(x, w):
    y = x @ w
    return y

class Block:
    def __init__(self, up, down):
        self.up, self.down = up, down

    def __call__(self, x):
        hidden = mw.nn.gelu(
            product(x, self.up)
        )  # two lines more
        out: mw.Array = product(hidden, self.down)
        return out

@mw.jit
def both(params, x):
    for up, down in params:
        print("a block")
        x = x + Block(up, down)(x)
    return x

def loss(params, x):
    return both(params, x).sum().astype("float32")
"""


def blocks(module: Any) -> Any:
    pair = on((1024, 4096), None, "model"), on((4096, 1024), "model")
    return mw.jit(mw.grad(module.loss)).lower([pair, pair], on((16, 2048, 1024), "data")).compile()


def test_a_constraint_is_suggested_where_there_is_none(tmp_path: pathlib.Path, capsys: Any) -> None:
    path = tmp_path / "blocks.py"
    path.write_text(BLOCKS)
    module = types.ModuleType("blocks")
    exec(compile(BLOCKS, str(path), "exec"), module.__dict__)
    before = blocks(module)
    capsys.readouterr()
    tried = {one.suggestion for one in before.explanation("tpu v5e").findings}
    hints = [one for one in tried if one is not None and one.kind == "value"]
    assert capsys.readouterr().out == ""  # though the function was traced again
    assert any(one.saves for one in hints)
    for hint in hints:
        assert hint.fix.startswith(f"{hint.arguments[0].split()[0]} = mw.lax.with_sharding_constraint(")
        assert_saved(before, blocks(with_line(path, hint)), hint)


def test_no_constraint_is_suggested_of_a_function_that_is_another_now() -> None:
    turns: list[int] = []

    def f(w: Any, x: Any) -> Any:
        turns.append(0)
        y = x @ w
        for _ in turns[1:]:
            y = mw.numpy.tanh(y)
        return y * y

    found = mw.jit(f).lower(on((4096, 1024), "model"), on((1024, 4096), "data", "model")).compile()
    assert found.collectives
    assert not [
        one for one in found.explanation("tpu v5e").findings if one.suggestion and one.suggestion.kind == "value"
    ]


def test_an_argument_that_is_split_along_another_dim_than_it_is_used_with_is_tried_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heads are split, but for `v`, whose columns are: its all-to-alls are small beside the sums over `model`."""
    monkeypatch.setattr("meshwright.compile.suggestions.MOST_TRIED", 1)
    monkeypatch.setattr("meshwright.compile.suggestions.MOST_VALUES", 0)

    def loss(w: Any, x: Any) -> Any:
        q, k, v = (mnp.einsum("bsd,dhk->bshk", x, w[name]) for name in ("q", "k", "v"))
        weights = mw.nn.softmax(mnp.einsum("bshk,bthk->bhst", q, k).astype("float32")).astype("bfloat16")
        mixed = mnp.einsum("bshk,hkd->bsd", mnp.einsum("bhst,bthk->bshk", weights, v), w["out"])
        return (x + mnp.tanh((x + mixed) @ w["up"]) @ w["down"]).sum().astype("float32")

    def compiled(*v: Any) -> Any:
        w = {name: on((1024, 16, 64), None, "model") for name in ("q", "k")}
        w |= {"v": on((1024, 16, 64), *v), "out": on((16, 64, 1024), "model")}
        w |= {"up": on((1024, 4096), None, "model"), "down": on((4096, 1024), "model")}
        return mw.jit(mw.grad(loss, argnums=(0, 1))).lower(w, on((8, 512, 1024), "data")).compile()

    before = compiled(None, None, "model")
    longest = before.explanation("tpu v5e", tries=False).rows()[0]
    assert longest.first.collective.kind == "all_reduce"
    (hint,) = [one for one in before.explanation("tpu v5e").cheaper() if one.kind == "argument"]
    assert (hint.argument, hint.spec) == ("w['v']", mw.P(None, "model", None))
    assert_saved(before, compiled(None, "model"), hint)


def _at(name: str, root: str, whole: Any) -> set[int]:
    """The numbers of the leaves that a name stands for, ``params[*]['w']`` for those of all layers."""
    paths = [root + path for path in tree.path_names(whole)]
    found = {n for n, path in enumerate(paths) if re.fullmatch(re.escape(name).replace(r"\*", r"\d+"), path)}
    assert found, (name, paths)
    return found


def with_shardings(fix: str, ins: tuple[Any, ...], outs: Any, parameters: Sequence[str], mesh: Any = MESH) -> Any:
    """``in_shardings`` and ``out_shardings`` with the one that a fix names in the places that it names."""
    code, comment, where = fix.partition("  # ")
    assert comment
    place = eval(code, {"mw": mw, "mesh": mesh})
    names: dict[str, list[str]] = {"in_shardings": [], "out_shardings": []}
    for part in where.split(" and "):
        listed, of = re.fullmatch(r"of (.*) in (in_shardings|out_shardings)", part).groups()  # type: ignore[union-attr]
        names[of] += listed.split(", ")
    chosen = []
    roots: list[tuple[str, Any, str]] = [(name, one, "in_shardings") for name, one in zip(parameters, ins, strict=True)]
    for root, whole, of in [*roots, ("result", outs, "out_shardings")]:
        mine = [name for name in names[of] if name == root or name.startswith(f"{root}[")]
        numbers = {n for name in mine for n in _at(name, root, whole)}
        leaves, treedef = tree.flatten(whole)
        chosen.append(tree.unflatten(treedef, [place if n in numbers else leaf for n, leaf in enumerate(leaves)]))
    return tuple(chosen[:-1]), chosen[-1]


def step_with_state(state: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for w in params:
            y = mw.nn.gelu(y @ w["up"]) @ w["down"]
        return mnp.mean(y.astype("float32") ** 2)

    value, grads = mw.value_and_grad(loss)(state["params"])
    momentum = mw.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    return value, {"params": mw.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum), "momentum": momentum}


PLACES = {  # of parameters, and of the batch how many rows; whether another place of a parameter saves time
    "columns": ((None, "model"), (None, "model"), 512, True),
    "both": (("data", "model"), ("model", "data"), 512, True),
    "fsdp": (("data",), ("data",), 8192, False),
}


def state_step(up: Any, down: Any, rows: int) -> tuple[Any, Any, Any]:
    """The shapes of the arguments of a step, and where they and its results are to be."""
    layer = {"up": mw.NamedSharding(MESH, mw.P(*up)), "down": mw.NamedSharding(MESH, mw.P(*down))}
    ins = ({"params": [layer] * 2, "momentum": [layer] * 2}, mw.NamedSharding(MESH, mw.P("data")))
    leaf = {name: mw.ShapeDtypeStruct(s, "bfloat16") for name, s in (("up", (1024, 4096)), ("down", (4096, 1024)))}
    args = {"params": [leaf] * 2, "momentum": [leaf] * 2}, mw.ShapeDtypeStruct((rows, 1024), "bfloat16")
    return args, ins, (mw.NamedSharding(MESH, mw.P()), ins[0])


def on_arguments(compiled: Any) -> list[Any]:
    found = {one.suggestion for one in compiled.explanation("tpu v5e").findings if one.suggestion is not None}
    return [one for one in found if one.kind == "argument"]


@pytest.mark.parametrize("places", PLACES)
def test_state_that_jit_is_told_to_return_as_it_comes_is_tried_in_and_out(places: str) -> None:
    *where, saving = PLACES[places]
    args, ins, outs = state_step(*where)

    def compiled(ins: Any, outs: Any) -> Any:
        f = mw.jit(step_with_state, in_shardings=ins, out_shardings=outs, donate_argnums=0)
        return f.lower(*args).compile()

    before = compiled(ins, outs)
    hints = [one for one in on_arguments(before) if one.argument.startswith("state")]
    assert hints
    assert any(one.saves for one in hints) == saving
    for hint in hints:
        assert hint.results == tuple(name.replace("state", "result[1]") for name in hint.arguments)
        assert f"lay out {hint.argument} and {hint.argument.replace('state', 'result[1]')} as {hint.spec}: " in str(
            hint
        )
        changed_ins, changed_outs = with_shardings(hint.fix, ins, outs, ("state", "x"))
        assert tree.leaves(changed_ins[0]) == tree.leaves(changed_outs[1]) != tree.leaves(ins[0])
        assert_saved(before, compiled(changed_ins, changed_outs), hint)


def test_state_that_is_put_somewhere_and_returned_as_it_comes_is_tried_in_and_out() -> None:
    args, ins, outs = state_step(*PLACES["columns"][:3])

    def compiled(ins: Any, outs: Any) -> Any:
        placed = [
            mw.ShapeDtypeStruct(one.shape, one.dtype, sharding=place)
            for one, place in zip(tree.leaves(args), tree.leaves(ins), strict=True)
        ]
        f = mw.jit(step_with_state, out_shardings=outs, donate_argnums=0)
        return f.lower(*tree.unflatten(tree.flatten(args)[1], placed)).compile()

    before = compiled(ins, outs)
    (hint,) = [one for one in on_arguments(before) if one.argument == "state['params'][*]['down']" and one.saves]
    one, rest = "state['params'][n]['down']", "and the same sharding of result[1]['params'][*]['down'] in out_shardings"
    place = "mw.NamedSharding(mesh, mw.P('model', None))"
    assert hint.fix == f"for n in range(2): {one} = mw.device_put({one}, {place})  # {rest}"
    same = f"{place}  # of {hint.argument} in in_shardings and of result[1]['params'][*]['down'] in out_shardings"
    assert_saved(before, compiled(*with_shardings(same, ins, outs, ("state", "x"))), hint)


def test_of_state_whose_results_go_where_they_are_made_the_argument_alone_is_tried() -> None:
    args, ins, outs = state_step(*PLACES["columns"][:3])

    def compiled(ins: Any) -> Any:
        return mw.jit(step_with_state, in_shardings=ins, donate_argnums=0).lower(*args).compile()

    before = compiled(ins)
    hints = [one for one in on_arguments(before) if one.argument.startswith("state")]
    assert hints
    for hint in hints:
        assert hint.results == ()
        assert hint.fix.endswith(f"  # of {hint.argument} in in_shardings")
        assert_saved(before, compiled(with_shardings(hint.fix, ins, outs, ("state", "x"))[0]), hint)


def test_a_hint_on_one_of_several_results_that_are_asked_for_says_only_what_that_one_is_to_be() -> None:
    asked = {"out": mw.NamedSharding(MESH, mw.P("data")), "norm": mw.NamedSharding(MESH, mw.P())}
    before = project_with(asked)
    hint = next(one for one in before.explanation("tpu v5e").cheaper() if one.kind == "result")
    _, changed = with_shardings(hint.fix, (), asked, ())
    assert changed["norm"] == asked["norm"]
    assert changed["out"] != asked["out"]
    assert_promised(before, project_with(changed), hint)


def test_hints_on_the_code_that_find_layout_prints_hold() -> None:
    leaf = {"up": mw.ShapeDtypeStruct((1024, 4096), "bfloat16"), "down": mw.ShapeDtypeStruct((4096, 1024), "bfloat16")}
    args = {"params": [leaf] * 2, "momentum": [leaf] * 2}, mw.ShapeDtypeStruct((8192, 1024), "bfloat16")
    found = mw.find_layout(step_with_state, *args, topology="h100 8")
    names: dict[str, Any] = {"step_with_state": step_with_state}
    exec(found.best.code(), names)
    mesh, ins = names["mesh"], names["in_shardings"]
    before = names["step_with_state"].lower(*args).compile()
    outs = tree.unflatten(before.out_tree, tree.leaves(before.out_shardings))
    hints = [one.suggestion for one in before.explanation("h100").findings if one.suggestion is not None]
    hints = [one for one in dict.fromkeys(hints) if one.kind == "argument" and one.argument.startswith("state")]
    assert hints
    for hint in hints:
        changed_ins, changed_outs = with_shardings(hint.fix, ins, outs, ("state", "x"), mesh)
        assert tree.leaves(changed_ins[0]) == tree.leaves(changed_outs[1])
        f = mw.jit(step_with_state, in_shardings=changed_ins, out_shardings=(None, changed_outs[1]), donate_argnums=0)
        assert_saved(before, f.lower(*args).compile(), hint, "h100")
