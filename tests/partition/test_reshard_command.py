"""``meshwright reshard``: the plan as text and as JSON, and what it says when it cannot."""

from __future__ import annotations

import json

import pytest

from meshwright.cli import main

Printed = pytest.CaptureFixture[str]
ON = ("reshard", "--mesh", "x=2,y=4", "--shape")


def test_it_prints_the_plan(capsys: Printed) -> None:
    assert main([*ON, "64x64", "x,None", "None,y"]) == 0
    assert capsys.readouterr().out == (
        "f32[64@x,64] → f32[64,64@y]\n"
        "  slice dim 1 over y       local\n"
        "  all_gather dim 0 over x  2.05 kB per device\n"
        "received  2.05 kB per device (at least 2.05 kB), 16.4 kB in all (at least 16.4 kB)\n"
        "memory    8.19 kB at most\n"
    )


def test_it_plans_for_a_chip_and_to_another_mesh(capsys: Printed) -> None:
    assert main([*ON, "64x64", "x", "a", "--target-mesh", "a=4,b=2", "--hardware", "tpu v5e", "--dtype", "bf16"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("bf16[64@x,64] → bf16[64@a,64]\n  slice dim 0 over y:(1)2")
    assert printed.splitlines()[-1].startswith("time      ")


def test_json(capsys: Printed) -> None:
    assert main([*ON, "64x64", "x", "None,x", "--json", "--hardware", "tpu v5e"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == [
        {
            "kind": "all_to_all",
            "text": "all_to_all dim 0 to dim 1 over x",
            "axes": ["x"],
            "collectives": 1,
            "bytes_received_per_device": 4096,
        }
    ]
    assert found["total_bytes"] == found["total_lower_bound_bytes"] == 8 * 4096
    assert found["peak_bytes"] == 8192 and found["seconds"] > 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("64x64", "x,y,None", "x"), "The sharding has 3 dims and the tensor 2."),
        (("64x64", "q", "x"), 'The mesh has no axis "q".'),
        (
            ("64x64", "x", "x", "--target-mesh", "x=2"),
            "An array cannot be resharded from one set of devices",
        ),
        (("64x64", "x", "x", "--dtype", "foo"), "plan_reshard cannot take the dtype 'foo'."),
        (("64x64", "x", "x", "--hardware", "foo"), "No chip is called 'foo'."),
    ],
)
def test_bad_input_is_one_message(args: tuple[str, ...], says: str, capsys: Printed) -> None:
    assert main([*ON, *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(says) and "Traceback" not in printed.err
