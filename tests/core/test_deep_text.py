"""Text that is nested or long beyond all use is refused by an error that names the limit, in every notation we read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
from meshwright import dist
from meshwright.core.text.types import parse_type
from meshwright.errors import TextError
from meshwright.hardware.layouts import parse_layout
from meshwright.partition.matmul.problem import parse_matmul
from meshwright.sharding import Mesh, TensorSharding
from meshwright.sharding.text_command import read_spec

MESH = Mesh.parse('<["x"=2, "y"=4]>')
DEEP = 100_000


def with_param(value: str) -> str:
    return f"program(a: f32[3]) {{ b: f32[3] = neg a k={value} return b }}"


def with_attribute(value: str) -> str:
    return f"def f(x: Tensor[(B,), 0]): y = add(x, k={value}) return y"


def sharding(text: str) -> Any:
    return TensorSharding.parse(text, MESH)


def hlo(text: str) -> Any:
    return TensorSharding.from_hlo(text, MESH, 2)


def spec(text: str) -> Any:
    return read_spec(text, MESH, (8, 8))


def layout(text: str) -> Any:
    return parse_layout(text, {"x": 2, "xx": 2, "y": 4})


def product(text: str) -> Any:
    return parse_matmul(text, {"x": 2, "y": 4})


def refused(parse: Callable[[str], Any], text: str) -> str:
    """The error of a text, which comes soon and is not long."""
    start = time.process_time()
    with pytest.raises(TextError) as error:
        parse(text)
    assert time.process_time() - start < 10
    assert len(str(error.value)) < 2000
    return str(error.value)


NESTED = "  why:  regions and tuples nest more than 100 deep\n"


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("begin", "end"), [("(", ",)"), ("P(", ")"), ("program() { = neg k=", " return }")])
def test_programs_nest_to_a_limit(begin: str, end: str, closed: bool) -> None:
    depth = DEEP // 10 if closed else DEEP
    text = begin * depth + "program() { return }" + end * depth * closed
    assert NESTED in refused(mw.parse_program, with_param(text))


def test_regions_inside_of_tuples_and_specs_count_together() -> None:
    for parts in (("(", "program() { = neg k="), ("P(", "("), ("(", "P(")):
        assert NESTED in refused(mw.parse_program, with_param("".join(parts) * (DEEP // 10)))


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        (with_attribute("{}"), "(", ")"),
        (with_attribute("{}"), "[", "]"),
        (with_attribute("{}"), "array(", ")"),
        ("def f(x: {}): return x", "Tuple[", "]"),
        ("def f(x: Tensor[(B,), 0]): device_map = {} return x", "{1: ", "}"),
        (
            "def f(x: Tensor[(B,), 0]): y = {} return y",
            "pmap(lambda d: lambda (x: Tensor[(B,), d]): { y = ",
            " return y }, (x))",
        ),
    ],
    ids=["tuples", "lists", "arrays", "types", "device maps", "pmaps"],
)
def test_device_programs_nest_to_a_limit(text: str, begin: str, end: str, closed: bool) -> None:
    before, after = text.split("{}")
    said = refused(dist.parse, before + begin * (DEEP // 10) + end * (DEEP // 10) * closed + after)
    assert said.startswith("Brackets are nested too deep.\n")
    assert "  why:  they may stand 100 deep\n" in said


def test_names_in_device_programs_are_as_long_as_numbers_at_most() -> None:
    said = refused(dist.parse, f"def f({'x' * DEEP}: Tensor[(B,), 0]): return y")
    assert said.startswith("A name has at most 400 characters.\n")
    assert "  why:  this has 100000\n" in said


# Notations without brackets in brackets: one more bracket is one too many.


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (Mesh.parse, "<" * DEEP, "expected `[`, found `<`"),
        (Mesh.parse, "{" * DEEP, "expected `<`, found `{`"),
        (sharding, "sharding<@mesh, [" + "{" * DEEP, 'expected an axis name in quotes, such as "x", found `{`'),
        (sharding, "sharding<mesh<" * DEEP, "expected `[`, found `sharding`"),
        (hlo, "{" * DEEP, "expected `devices=`, `replicated`, `manual`, `unreduced` or `maximal device=`, found `{`"),
        (spec, "(" * DEEP, "expected an axis such as x, or None, found `(`"),
        (parse_type, "~" * DEEP, None),
        (parse_type, "f32[" * DEEP, "expected a size, found 'f32'"),
    ],
    ids=["mesh", "mesh in braces", "sharding", "sharding of a mesh", "HLO", "spec", "weak type", "type"],
)
def test_a_bracket_too_many_is_refused_at_once(parse: Callable[[str], Any], text: str, why: str | None) -> None:
    said = refused(parse, text)
    if why is not None:
        assert f"  why:  {why}" in said


@pytest.mark.parametrize("text", [f"A[I_{'x' * DEEP}]", f"A[{'I,' * DEEP}J]", "A[" * DEEP, f"A[I]{{U_{'x' * DEEP}}}"])
def test_arrays_and_products_have_a_length(text: str) -> None:
    for parse, whole in ((layout, text), (product, f"{text} @ B[J,K]"), (product, f"B[J,K] @ {text}")):
        said = refused(parse, whole)
        assert said.startswith("The text of an array is too long.\n")
        assert f"  why:  it has {len(whole)} characters, and at most 2000 are read\n" in said


def split(written: str, names: list[str]) -> list[str] | None:
    """The axes that a word is made of: the first way there is, in the order of the mesh."""
    if not written:
        return []
    for name in names:
        if written.startswith(name):
            rest = split(written[len(name) :], names)
            if rest is not None:
                return [name, *rest]
    return None


def test_the_axes_of_an_index_are_the_first_that_make_it_up() -> None:
    draw = random.Random(0)
    for _ in range(500):
        names = list({"".join(draw.choices("xyz", k=draw.randint(1, 3))) for _ in range(draw.randint(1, 4))})
        word = "".join(draw.choice([*names, draw.choice("xyz")]) for _ in range(draw.randint(1, 3)))
        expected = [word] if word in names else split(word, names)
        if expected is not None and len(set(expected)) == len(expected):
            assert parse_layout(f"A[I_{word}]", dict.fromkeys(names, 2))[0].axes == (tuple(expected),)
        else:
            refused(lambda text, names=names: parse_layout(text, dict.fromkeys(names, 2)), f"A[I_{word}]")


def test_a_long_word_that_divides_in_many_ways_is_read_soon() -> None:
    assert "'x' twice" in refused(layout, f"A[I_{'x' * 900}]")
    assert "The mesh has no axis 'xxxx" in refused(layout, f"A[I_{'x' * 900}q]")
