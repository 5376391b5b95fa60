"""``meshwright matmul``: what it reads, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.commands.machines import read_machine, read_sizes

Printed = pytest.CaptureFixture[str]
PRODUCT = "A[I_x,J] @ B[J,K_y] -> C[I,K]"
ON = ("matmul", PRODUCT, "--mesh", "x=2,y=2", "--size")
SIZES = {"I": 1024, "J": 4096, "K": 1024}


def test_it_prints_the_plan(capsys: Printed) -> None:
    assert main([*ON, "I=1024,J=4096,K=1024"]) == 0
    assert capsys.readouterr().out == f"{mw.plan_matmul(PRODUCT, {'x': 2, 'y': 2}, SIZES)}\n"


def test_json_has_every_alternative_and_regime(capsys: Printed) -> None:
    options = ["--json", "--hardware", "h100", "--dtype", "f32", "--overlap", "--mode", "calibrated"]
    text = "A[I,J_x] @ B[J,K] -> C[I,K]"
    assert main(["matmul", text, "--mesh", "x=4", "--size", "I=512,J=8192,K=8192", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    sizes = {"I": 512, "J": 8192, "K": 8192}
    plan = mw.plan_matmul(text, {"x": 4}, sizes, "f32", "h100", mode="calibrated", overlap=True)
    assert found["product"] == text
    assert (found["mesh"], found["sizes"], found["hardware"]) == ({"x": 4}, sizes, "h100 4")
    assert (found["case"], found["natural"]) == (2, plan.natural)
    assert [one["seconds"] for one in found["alternatives"]] == [one.seconds for one in plan.alternatives]
    assert [one["name"] for one in found["alternatives"]] == [one.name for one in plan.alternatives]
    assert [step["kind"] for step in found["alternatives"][0]["collectives"]] == [
        step.kind for step in plan.best.collectives
    ]
    assert [one["name"] for one in found["regimes"]] == [regime.alternative.name for regime in plan.regimes]


def test_machines_and_sizes() -> None:
    assert repr(read_machine("tpu v5p 4x4x4")) == "Topology('tpu v5p', 4x4x4, wrap=0,1,2)"
    assert repr(read_machine("h100 64")) == "Topology('h100', 64)"
    assert repr(read_machine("gb200 nvl72")) == "Chip('gb200')"
    assert repr(read_machine("tpu 7x")) == "Chip('tpu 7x')"
    assert read_sizes(" I = 8 ,K=2") == {"I": 8, "K": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["I=1024,J=40a"],
            "'J=40a' is not the size of an index.\n"
            "  at:   I=1024,J=40a\n"
            "               ^\n"
            "  why:  an index has a name and a size\n"
            "  fix:  I=1024,J=4096\n",
        ),
        (
            ["I=1,I=2"],
            "'I=2' is not the size of an index.\n"
            "  at:   I=1,I=2\n"
            "            ^\n"
            "  why:  I has a size already\n"
            "  fix:  I=1024,J=4096\n",
        ),
        (
            ["I=99999999999999999999"],
            "'I=99999999999999999999' is not the size of an index.\n"
            "  at:   I=99999999999999999999\n"
            "        ^\n"
            "  why:  the integer does not fit into 64 bits\n"
            "  fix:  I=1024,J=4096\n",
        ),
        (
            ["I=4,J=4,K=4", "--hardware", "tpu v5p 1x2x1"],
            "A mesh of x=2, y=2 does not fit on tpu v5p 1x2x1.\n"
            "  why:  the mesh has 4 devices, the machine 2 chips\n"
            "  fix:  --hardware 'tpu v5p 2x2'\n",
        ),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: Printed) -> None:
    assert main([*ON, *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", message)
