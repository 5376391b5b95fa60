"""What a compilation says of its stages: programs that pass the checker, mean the same and read back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.cli import main
from meshwright.compile import partitioning, stages
from meshwright.compile.suggestions import MOST_VALUES
from meshwright.core.check import check
from meshwright.engine import compile as engine
from meshwright.engine.compile import compile_program
from meshwright.partition import alternatives

MESH = mw.make_mesh((2, 4), ("x", "y"))


def on(shape: tuple[int, ...], *spec: Any) -> mw.Array:
    data = np.random.default_rng(len(spec)).standard_normal(shape).astype(np.float32)
    return mw.device_put(data, mw.NamedSharding(MESH, mw.P(*spec)))


def loss(w: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return mw.checkpoint(lambda x: mnp.tanh(x @ w) + x)(x), None

    return mw.lax.scan(layer, x, w)[0].sum()


CASES: dict[str, tuple[Any, tuple[mw.Array, ...], list[str]]] = {
    "on one device": (
        lambda x: mnp.sin(x) @ x.T,
        (mnp.ones((4, 6)),),
        ["simplify", "stack", "emit"],
    ),
    "on a mesh": (
        lambda x, w: (x @ w).sum(0),
        (on((8, 16), "x", "y"), on((16, 8), "y")),
        ["simplify", "inline", "propagate", "partition", "combine", "stack", "emit"],
    ),
    "gradient of a scan": (
        mw.grad(loss),
        (on((3, 8, 8), None, "x", "y"), on((16, 8), "x")),
        ["simplify", "inline", "propagate", "partition", "combine", "stack", "emit"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_stage_is_checked_reads_back_and_means_the_same(name: str) -> None:
    f, args, names = CASES[name]
    compiled = mw.jit(f).lower(*args).compile()
    made = compiled.stages
    assert [stage.name for stage in made] == names
    expected = np.asarray(f(*[mnp.asarray(np.asarray(x)) for x in args]))
    for stage in made:
        assert stage.seconds > 0
        assert check(stage.program, stage.name) is stage.program
        if stage.name == "emit":
            compile(str(stage), "<stage>", "exec")
            continue
        assert mw.parse_program(stage.program.to_text(constants=True)) == stage.program
        if stage.name not in ("partition", "combine"):  # which are programs of one device
            (found,) = compile_program(stage.program)(*(np.asarray(x) for x in args))
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    local = next((stage for stage in made if stage.name == "combine"), made[0])
    assert local.program == compiled.program


def test_the_stages_are_a_list_in_the_order_of_the_design() -> None:
    names = ["simplify", "inline", "propagate", "partition", "combine", "overlap", "stack", "emit"]
    assert [stage.name for stage in stages.STAGES] == names


# What does the work of each stage, and where it is called from.
WORK = {
    "simplify": (stages, "cse"),
    "inline": (partitioning, "inline_calls"),
    "propagate": (partitioning, "ProgramGraph"),
    "partition": (alternatives, "partition"),
    "overlap": (partitioning, "overlapped"),
    "stack": (stages, "stack"),
    "emit": (stages, "emit"),
}


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stage does its work from now on; sums are combined by `partition`, too, to compare layouts."""
    found: Counter[str] = Counter()

    def count(name: str, function: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        return counting

    for name, (module, attribute) in WORK.items():
        monkeypatch.setattr(module, attribute, count(name, getattr(module, attribute)))
    combining = count("combine", alternatives.combined)
    for module in (alternatives, partitioning):
        monkeypatch.setattr(module, "combined", combining)
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_stage_runs_once_but_for_layouts_that_are_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, args, names = CASES[name]
    runs = counted(monkeypatch)
    compiled = mw.jit(f).lower(*args).compile()
    compiled(*args)
    assert [stage.name for stage in compiled.stages] == names
    tried = next((stage.tried for stage in compiled.stages if stage.name == "partition"), 1)
    assert runs == dict.fromkeys(names, 1) | {name: tried for name in ("partition", "combine") if name in names}
    assert name == "gradient of a scan" or tried == 1


def fully_sharded(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """A gradient whose parameters and batch are both split over one axis, so that another layout is tried."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = mnp.tanh(x @ w)
        return (x * x).sum()

    return mw.grad(loss), ([on((64, 64), ("x", "y")) for _ in range(layers)], on((512, 64), ("x", "y")))


def test_a_layout_is_partitioned_once_and_the_record_says_how_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = fully_sharded(4)
    runs = counted(monkeypatch)
    compiled = mw.jit(f, overlap=True).lower(*args).compile()
    tried = next(stage for stage in compiled.stages if stage.name == "partition").tried
    assert tried > 1
    once = ["simplify", "inline", "propagate", "overlap", "stack", "emit"]
    assert runs == dict.fromkeys(once, 1) | {"partition": tried, "combine": tried}
    about = next(stage.about for stage in compiled.stages if stage.name == "partition")
    assert about == f"the program of one device, with collectives, the cheapest of {tried} layouts"


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_compiled_when_a_compiled_function_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, args, _ = CASES[name]
    compiled = mw.jit(f).lower(*args).compile()
    expected = np.asarray(mw.jit(f)(*args))

    def refuse(*_: Any) -> Any:
        raise AssertionError("code is generated by a call")

    monkeypatch.setattr(engine, "_build", refuse)
    np.testing.assert_array_equal(np.asarray(compiled(*args)), expected)


def test_a_program_that_is_too_large_to_run_here_is_compiled_and_refused_when_it_is_called() -> None:
    shape = mw.ShapeDtypeStruct((1 << 25, 1 << 25), np.float32, sharding=mw.NamedSharding(MESH, mw.P("x")))
    compiled = mw.jit(lambda x: mnp.tanh(x + 1).sum()).lower(shape).compile()
    assert compiled.stages[-1].name == "emit" and "tanh" in str(compiled.stages[-1])
    with pytest.raises(mw.errors.MeshwrightError, match=r"A result of \w+ does not fit into memory"):
        compiled._executable.call(np.ones(1, np.float32))


def test_propagation_is_printed_beside_values() -> None:
    made = mw.jit(lambda x: mnp.tanh(x)).lower(on((8, 16), "x")).compile().stages
    assert str(made[2]) == ('program(a: f32[8,16]) {\n  b: f32[8,16] = tanh a  # [{"x", ?}, {?}]\n  return b\n}')


def test_overlap_is_a_stage_where_it_is_asked_for() -> None:
    x, w = on((8, 16), "x", "y"), on((16, 8), "y")
    f = mw.jit(lambda x, w: x @ w, overlap=True, out_shardings=mw.NamedSharding(MESH, mw.P("x", "y")))
    made = {stage.name: stage for stage in f.lower(x, w).compile().stages}
    assert list(made)[3:6] == ["partition", "combine", "overlap"]
    assert "ppermute" in str(made["overlap"])
    assert "ppermute" not in str(made["combine"])


FILE = """
import meshwright as mw, meshwright.numpy as mnp
def example():
    x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
    return mw.jit(lambda x: x.sum(0)), (x,)
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(FILE)
    assert main(["stages", f"{file}:example"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == CASES["on a mesh"][2]
    assert main(["stages", f"{file}:example", "--stage", "combine"]) == 0
    assert "psum" in capsys.readouterr().out
    assert main(["stages", f"{file}:example", "--json", "--stage", "simplify"]) == 0
    assert '"stage": "simplify"' in capsys.readouterr().out
    assert main(["stages", f"{file}:example", "--stage", "partion"]) == 2
    assert capsys.readouterr().err == (
        "There is no stage 'partion'.\n"
        "  why:  the stages are simplify, inline, propagate, partition, combine, overlap, stack, emit\n"
        "  fix:  --stage partition\n"
    )
    assert main(["stages", f"{file}:example", "--stage", "overlap"]) == 2
    assert capsys.readouterr().err == (
        "This program has no stage 'overlap'.\n"
        "  why:  it goes through simplify, inline, propagate, partition, combine, stack, emit\n"
        "  fix:  --stage simplify\n"
    )


def test_a_program_is_read_into_a_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layouts are tried, and by explain for arguments in other shardings; with a constraint more it is
    another program."""
    f, args = fully_sharded(4)
    runs = counted(monkeypatch)
    compiled = mw.jit(f).lower(*args).compile()
    assert compiled.stages[3].tried > 1 and runs["propagate"] == 1
    assert "cheaper:" in compiled.explain()
    assert compiled.explain_sharding(0)
    assert runs["propagate"] <= 1 + MOST_VALUES
