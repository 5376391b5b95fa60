"""What a compilation says of its stages: programs that pass the checker, mean the same and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.cli import main
from meshwright.core.check import check
from meshwright.engine.compile import compile_program

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
    stages = compiled.stages
    assert [stage.name for stage in stages] == names
    expected = np.asarray(f(*[mnp.asarray(np.asarray(x)) for x in args]))
    for stage in stages:
        assert stage.seconds > 0
        assert check(stage.program, stage.name) is stage.program
        if stage.name == "emit":
            compile(str(stage), "<stage>", "exec")
            continue
        assert mw.parse_program(stage.program.to_text(constants=True)) == stage.program
        if stage.name not in ("partition", "combine"):  # which are programs of one device
            (found,) = compile_program(stage.program)(*(np.asarray(x) for x in args))
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    local = next((stage for stage in stages if stage.name == "combine"), stages[0])
    assert local.program == compiled.program


def test_propagation_is_printed_beside_values() -> None:
    stages = mw.jit(lambda x: mnp.tanh(x)).lower(on((8, 16), "x")).compile().stages
    assert str(stages[2]) == ('program(a: f32[8,16]) {\n  b: f32[8,16] = tanh a  # [{"x", ?}, {?}]\n  return b\n}')


def test_overlap_is_a_stage_where_it_is_asked_for() -> None:
    x, w = on((8, 16), "x", "y"), on((16, 8), "y")
    f = mw.jit(lambda x, w: x @ w, overlap=True, out_shardings=mw.NamedSharding(MESH, mw.P("x", "y")))
    stages = {stage.name: stage for stage in f.lower(x, w).compile().stages}
    assert list(stages)[3:6] == ["partition", "combine", "overlap"]
    assert "ppermute" in str(stages["overlap"])
    assert "ppermute" not in str(stages["combine"])


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
