"""Who loses partial results: ours refuses what the newest Shardy refuses, with an error that says what to write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from meshwright.errors import ShardingError
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.shardy import refuses
from tests.versions import CALLS, UNREDUCED_TEXT, older_than

T = "tensor<8x8xf32>"
MESH = 'sdy.mesh @m = <["x"=2, "y"=4, "z"=2]>\n'
SHARDINGS = {
    "nothing": "",
    "replicated": "[{}, {}]",
    "x": '[{}, {}], unreduced={"x"}',
    "x y": '[{}, {}], unreduced={"x", "y"}',
    "part": '[{}, {}], unreduced={"y":(1)2}',
    "y": '[{}, {}], unreduced={"y"}',
    "max": '[{}, {}], unreduced=max{"x"}',
    "split": '[{"x"}, {}]',
}


def on(name: str) -> str:
    """A sharding on an argument or a result of a function."""
    return f" {{sdy.sharding = #sdy.sharding<@m, {SHARDINGS[name]}>}}" if SHARDINGS[name] else ""


def made(*names: str) -> str:
    """Shardings of the results of an op."""
    if not any(SHARDINGS[name] for name in names):
        return ""
    listed = ", ".join(f"<@m, {SHARDINGS[name] or '[{?}, {?}]'}>" for name in names)
    return f"{{sdy.sharding = #sdy.sharding_per_value<[{listed}]>}}"


def one_op(text: str, given: str, returned: str) -> str:
    """A function that applies one op to an argument: ``RESULT`` is the place of its shardings."""
    return f"{MESH}func.func @main(%a: {T}{on(given)}) {{\n{text.replace('RESULT', made(returned))}\nreturn\n}}"


def collective(name: str, combine: str, more: str = "") -> str:
    body = f"%e = stablehlo.{combine} %q, %w : tensor<f32>" if combine else ""
    return (
        f'%0 = "stablehlo.{name}"(%a) <{{{more}replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{\n'
        f"^bb0(%q: tensor<f32>, %w: tensor<f32>):\n{body}\n"
        f"stablehlo.return %{'e' if combine else 'q'} : tensor<f32>\n}}) RESULT : ({T}) -> {T}"
    )


OPS = {
    "negate": f"%0 = stablehlo.negate %a RESULT : {T}",
    "custom_call": f"%0 = stablehlo.custom_call @k(%a) RESULT : ({T}) -> {T}",
    "reshard": f"%0 = sdy.reshard %a <@m, [{{}}, {{}}]> : {T}",
    "barrier": f"%0 = sdy.propagation_barrier %a allowed_direction=NONE RESULT : {T}",
    "nothing returned": f"stablehlo.custom_call @k(%a) {{has_side_effect = true}} : ({T}) -> ()",
    "all_gather": f'%0 = "stablehlo.all_gather"(%a) <{{all_gather_dim = 0 : i64, '
    f"replica_groups = dense<[[0]]> : tensor<1x1xi64>}}> RESULT : ({T}) -> {T}",
    **{f"all_reduce {name}": collective("all_reduce", name) for name in ("add", "maximum", "multiply", "")},
    "while": f'%0 = "stablehlo.while"(%a) ({{\n^bb0(%q: {T}):\n%c = stablehlo.constant dense<true> : tensor<i1>\n'
    f"stablehlo.return %c : tensor<i1>\n}}, {{\n^bb0(%q: {T}):\nstablehlo.return %q : {T}\n}}) RESULT : ({T}) -> {T}",
    "branches": f"%i = stablehlo.constant dense<0> : tensor<i32>\n"
    f'%0 = "stablehlo.case"(%i) ({{\n%1 = stablehlo.negate %a RESULT : {T}\nstablehlo.return %1 : {T}\n}}) : '
    f"(tensor<i32>) -> {T}",
}


def modules() -> Iterator[tuple[str, str]]:
    """Every op, return, call and computation with every pair of shardings."""
    for given, returned in product(SHARDINGS, SHARDINGS):
        label = f"{given} -> {returned}"
        for name, text in OPS.items():
            yield f"{name} {label}", one_op(text, given, returned)
        yield (
            f"return {label}",
            f"{MESH}func.func @main(%a: {T}{on(given)}) -> ({T}{on(returned)}) {{ return %a : {T} }}",
        )
        yield f"argument {label}", call(given, returned, "nothing", "nothing")
        yield f"result {label}", call("nothing", "nothing", given, returned)
        if "split" not in (given, returned) and SHARDINGS[returned]:
            for axis in ("x", "z"):
                yield f"manual over {axis} {label}", manual(given, returned, axis)
        yield f"named {label}", named(given, returned)


def returning(given: str, said: str) -> str:
    return f"{MESH}func.func @main(%a: {T}{on(given)}) -> ({T}{on(said)}) {{ return %a : {T} }}"


def call(operand: str, argument: str, result: str, returned: str) -> str:
    return f"""{MESH}func.func @main(%a: {T}{on(operand)}) {{
      %0 = func.call @f(%a) {made(result)} : ({T}) -> {T}
      return
    }}
    func.func private @f(%a: {T}{on(argument)}) -> ({T}{on(returned)}) {{
      %0 = stablehlo.constant {made(returned)} dense<0.0> : {T}
      return %0 : {T}
    }}"""


def manual(given: str, said: str, axis: str) -> str:
    inside, outside = SHARDINGS["replicated"], SHARDINGS[said]
    bound = axis == "x" and '"x"' in SHARDINGS[given]
    return f"""{MESH}func.func @main(%a: {T}{on(given)}) {{
      %0 = sdy.manual_computation(%a) in_shardings=[<@m, {inside}>] out_shardings=[<@m, {outside}>]
        manual_axes={{"{axis}"}} (%q: {T}) {{
        %1 = stablehlo.constant {"" if bound else made(given)} dense<0.0> : {T}
        sdy.return %1 : {T}
      }} : ({T}) -> {T}
      return
    }}"""


def named(given: str, said: str) -> str:
    sides = f"in_shardings=[<@m, {SHARDINGS[given]}>] out_shardings=[<@m, {SHARDINGS[said]}>]"
    return f"""{MESH}func.func @main(%a: {T}{on(given)}) {{
      %0 = sdy.named_computation<"n">(%a) {sides if SHARDINGS[given] and SHARDINGS[said] else ""} (%q: {T}) {{
        sdy.return %q : {T}
      }} : ({T}) -> {T}
      return
    }}"""


def verified(text: str) -> None:
    apply_passes(parse_module(text), ["sdy-verify-unreduced-axes"])


def is_refused(text: str) -> bool:
    try:
        verified(text)
    except ShardingError:
        return True
    return False


@pytest.mark.skipif(older_than(CALLS), reason="there is no such pass, or another one")
def test_ours_refuses_what_shardy_refuses() -> None:
    found = dict(modules())
    wrong = [name for name, text in found.items() if is_refused(text) != refuses(text, "verify-unreduced-axes")]
    assert (wrong, len(found) > 800) == ([], True)


KINDS = pytest.mark.skipif(older_than(UNREDUCED_TEXT), reason="it cannot read unreduced=max{…}")


def message(text: str) -> str:
    with pytest.raises(ShardingError) as raised:
        verified(text)
    return str(raised.value)


def test_an_op_that_loses_a_sum() -> None:
    assert message(one_op(OPS["negate"], "x y", "x")) == (
        'stablehlo.negate loses the partial results over "y".\n'
        "  at:   line 3:6\n"
        '  why:  an operand of it is unreduced over "y", and no result is\n'
        '  fix:  sdy.reshard to the sharding without unreduced={"y"} first'
    )


@KINDS
def test_a_collective_that_combines_otherwise() -> None:
    assert message(one_op(OPS["all_reduce add"], "max", "replicated")) == (
        'stablehlo.all_reduce loses the partial results over "x".\n'
        "  at:   line 3:6\n"
        "  why:  it combines values by sum, and its operand is to be combined by max\n"
        '  fix:  sdy.reshard to the sharding without unreduced={"x"} first'
    )


def test_a_collective_that_leaves_sums_of_its_own() -> None:
    assert message(one_op(OPS["all_reduce add"], "replicated", "x")) == (
        'stablehlo.all_reduce cannot leave its result unreduced over "x".\n'
        "  at:   line 3:6\n"
        "  why:  it combines the values of devices, and its operand is not unreduced over that axis\n"
        '  fix:  a sharding without unreduced={"x"}'
    )


@KINDS
def test_sums_that_become_maxima() -> None:
    assert message(one_op(OPS["negate"], "x", "max")) == (
        'stablehlo.negate cannot make partial results of another kind of those over "x".\n'
        "  at:   line 3:6\n"
        "  why:  its operand is to be combined by sum, its result by max\n"
        '  fix:  sdy.reshard to the sharding without unreduced={"x"} first'
    )


def test_a_function_that_returns_something_else_than_it_says() -> None:
    assert message(returning("x", "y")) == (
        'The function \'main\' returns as result 0 a value that is unreduced over "x", where "y" is said.\n'
        "  at:   line 2:185\n"
        "  why:  partial results are combined by a reshard or a collective, and lost by anything else\n"
        "  fix:  sdy.reshard between the two"
    )


def test_a_call_with_something_else_than_the_function_says() -> None:
    assert message(call("x", "nothing", "nothing", "nothing")) == (
        "The call of 'f' has as operand 0 a value that is unreduced over \"x\", where nothing is said.\n"
        "  at:   line 3:12\n"
        "  why:  partial results are combined by a reshard or a collective, and lost by anything else\n"
        "  fix:  sdy.reshard between the two"
    )
