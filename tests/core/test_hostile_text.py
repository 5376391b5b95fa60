"""Any text, and anything else, gives a program or a clear error: never another exception, never a long wait."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.check import check
from meshwright.core.program import Eqn, Program, Var, digest
from meshwright.core.source import Source
from meshwright.core.text.parse import parse_program
from meshwright.core.text.tokens import DEEPEST
from meshwright.core.text.types import parse_type
from meshwright.core.types import tensor
from meshwright.errors import CheckError, MeshwrightError, TextError
from meshwright.ops.basic import neg

FIX = "  fix:  write equations as `c: f32[8,4] = add a b`, inside `program(a: f32[8,4], …) { … return c }`"


def refused(text: Any) -> str:
    with pytest.raises(TextError) as error:
        parse_program(text)
    return str(error.value)


def with_param(value: str) -> str:
    return f"program(a: f32[3]) {{\nb: f32[3] = neg a k={value}\nreturn b\n}}"


def with_constant(type: str, value: str) -> str:
    return f"program() {{\nconst a: {type} = {value}\nreturn a\n}}"


# What is not text


@pytest.mark.parametrize(
    ("given", "name", "fix"),
    [
        (None, "a NoneType", "'program(a: f32[3]) { b: f32[3] = neg a  return b }'"),
        (3, "an int", "'program(a: f32[3]) { b: f32[3] = neg a  return b }'"),
        (["program"], "a list", "'program(a: f32[3]) { b: f32[3] = neg a  return b }'"),
        (b"program() { return }", "a bytes", "text.decode()"),
        (Program((), (), ()), "a Program", "str(program)"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_only_text_is_read(given: Any, name: str, fix: str) -> None:
    assert (
        refused(given)
        == f"""\
This is not a program.
  why:  it is read from a str, not from {name}
  fix:  {fix}"""
    )


def test_only_text_is_read_as_a_type() -> None:
    with pytest.raises(TextError) as error:
        parse_type(3)  # type: ignore[arg-type]
    assert (
        str(error.value)
        == """\
This is not a type.
  why:  it is read from a str, not from an int
  fix:  'f32[8,4]'"""
    )


# Numbers and depths beyond all use

DIGITS = "the integer has 5000 digits, and at most 100 are read"


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        (
            f"program(a: f32[{'9' * 5000}]) {{ return a }}",
            1,
            16,
            DIGITS,
        ),
        (with_param("9" * 5000), 2, 21, DIGITS),
        (with_param("-" + "9" * 5000), 2, 21, DIGITS),
        (
            with_constant("f32[1]", "[" + "9" * 5000 + "]"),
            2,
            20,
            DIGITS,
        ),
        (with_param("-" * 20000 + "1"), 2, 22, "expected a number, found '-'"),
        (with_param("(" * 20000), 2, 121, "regions and tuples nest more than 100 deep"),
    ],
    ids=["size", "param", "negative", "constant", "minus", "tuples"],
)
def test_a_long_line_is_shown_around_the_character(text: str, line: int, column: int, why: str) -> None:
    shown = text.split("\n")[line - 1]
    first = max(0, column - 1 - 80)
    start = "…" if first else ""
    assert refused(text) == "\n".join(
        [
            f"This is not a program: line {line}, column {column}.",
            f"  at:   {start}{shown[first : first + 160]}…",
            f"        {' ' * (column - 1 - first + len(start))}^",
            f"  why:  {why}",
            FIX,
        ]
    )


def test_a_size_fits_64_bits() -> None:
    assert parse_type(f"f32[{2**63 - 1}]").size == 2**63 - 1
    assert (
        refused(f"program(a: f32[{2**63}]) {{ return a }}")
        == f"""\
This is not a program: line 1, column 16.
  at:   program(a: f32[9223372036854775808]) {{ return a }}
                       ^
  why:  the size 9223372036854775808 is more than 9223372036854775807
{FIX}"""
    )


def test_a_long_name_is_shown_in_part() -> None:
    assert f"there is no op '{'x' * 40}…{'x' * 10}'\n" in refused(f"program() {{ = {'x' * 5000} return }}")


def nested(depth: int) -> str:
    text = "program() { return }"
    for _ in range(depth):
        text = f"program() {{ = neg k={text}\nreturn }}"
    return text


def test_regions_nest_to_a_fixed_depth() -> None:
    program = parse_program(nested(DEEPEST))
    assert parse_program(str(program)) == program
    with pytest.raises(CheckError):
        check(program)
    for depth in (DEEPEST + 1, 5000):
        assert "  why:  regions and tuples nest more than 100 deep\n" in refused(nested(depth))
    assert "  why:  regions and tuples nest more than 100 deep\n" in refused("program() { = neg k=" * 5000)


def test_a_comment_with_a_number_too_large_for_a_line_is_only_a_comment() -> None:
    program = parse_program(f"program(a: f32[3]) {{\nb: f32[3] = neg a  # x:{'9' * 5000}\nreturn b\n}}")
    assert program.eqns[0].source is None


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("number", ["9" * 100, "-" + "9" * 100, "1e999", "1e39", "nan", "9" * 5000 + ".0"])
def test_a_number_beyond_its_dtype_is_read_in_silence(dtype: str, number: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_program(with_constant(f"{dtype}[1]", f"[{number}]"))
        parse_program(f"program() {{ return {number}:{dtype} }}")


# Constants


DATA = np.arange(3, dtype=np.float32)
NAME = digest(DATA)
BASE64 = "AAAAAAAAgD8AAABA"


@pytest.mark.parametrize(
    ("type", "value", "why"),
    [
        ("f32[2]", "@abc 'é'", "the data is not base64"),
        ("f32[2]", "@abc '===='", "the data is not base64"),
        ("bool[2]", "@abc 'AgM='", "the data of a bool has bytes other than 0 and 1"),
        ("f32[3]", f"@abc '{BASE64}'", f"the digest is @abc, that of the data @{NAME}"),
        ("f32[3]", f"@{NAME}00 '{BASE64}'", f"the digest is @{NAME}00, that of the data @{NAME}"),
        ("f32[4]", f"@{NAME} '{BASE64}'", "the data has 12 bytes, the type f32[4] 16"),
        (
            "f32[1000000000,1000000000]",
            f"@{NAME} '{BASE64}'",
            "the data has 12 bytes, the type f32[1000000000,1000000000] 4000000000000000000",
        ),
        ("f32[1000000000000]", "[1.0]", "1 elements given for the type f32[1000000000000]"),
        (f"f32[0,{2**62},8]", "[]", "NumPy has no array of the type f32[0,4611686018427387904,8]"),
        (
            f"f32[{','.join('1' * 70)}]",
            "[1.0]",
            "NumPy has no array of the type f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,…1,1,1,1,1]",
        ),
    ],
)
def test_a_constant_must_be_its_data(type: str, value: str, why: str) -> None:
    line = f"const a: {type} = {value}"
    column = line.index(" = ") + 4
    shown = line if len(line) <= 160 else "…" + line[-160:]
    caret = column - 1 - max(0, len(line) - 160) + (len(line) > 160)
    assert refused(with_constant(type, value)) == "\n".join(
        [
            f"This is not a program: line 2, column {column}.",
            f"  at:   {shown}",
            f"        {' ' * caret}^",
            f"  why:  {why}",
            FIX,
        ]
    )


def test_data_with_its_digest_is_read() -> None:
    ((_, value),) = parse_program(with_constant("f32[3]", f"@{NAME} '{BASE64}'")).constants
    np.testing.assert_array_equal(value, DATA)


# Other ways to go wrong


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("program(a: f32[3]) { b: f32[3] = neg a k=1 k=2 return b }", 44, "the param 'k' is given twice"),
        ("program(a: f32[3]) { b: f32[3], b: f32[3] = neg a return b }", 33, "'b' is given twice"),
        ("program(a: f32[3]) { b: f32[3] = neg a k=rule(3) return b }", 47, "expected a string, found '3'"),
        ("program(a: f32[3]) { b: f32[3] = neg a k='\\d' return b }", 42, "'\\d' is not a string"),
        ("program(a: f32[3]) { b: f32[3] = neg a k='\\x00\0' return b }", 42, "'\\x00\0' is not a string"),
        ("program(a: f32[3]) { b: f32[3] = neg a k=-True return b }", 43, "expected a number, found 'True'"),
        ("program(a: f32[٣]) { return a }", 16, "the character '٣' means nothing here"),
    ],
)
def test_each_mistake_is_refused_at_the_character(text: str, column: int, why: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert refused(text) == "\n".join(
            [
                f"This is not a program: line 1, column {column}.",
                f"  at:   {text}",
                f"        {' ' * (column - 1)}^",
                f"  why:  {why}",
                FIX,
            ]
        )


# The checker


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("convert a dtype=4 weak=False", "dtype is a dtype, not 4"),
        ("convert a dtype=i32 weak=0", "weak is True or False, not 0"),
        ("convert a dtype='i32' weak=False", "dtype is a dtype, not 'i32'"),
        ("reshape a shape=(3.0,)", "shape is a tuple of ints, not (3.0,)"),
        ("reshape a shape=(True, 3)", "shape is a tuple of ints, not (True, 3)"),
        ("reshape a shape=f32", "shape is a tuple of ints, not f32"),
        ("reshape a shape=f32[3]", "shape is a tuple of ints, not f32[3]"),
        ("round a away=1", "away is True or False, not 1"),
        (
            "dot_general a a batch=((), ()) contract=((0,), 0) dtype=None",
            "contract is a tuple of tuples of ints, not ((0,), 0)",
        ),
        ("reduce_sum a axes=0", "axes is a tuple of ints, not 0"),
    ],
)
def test_a_param_must_be_of_its_kind(equation: str, why: str) -> None:
    with pytest.raises(CheckError) as error:
        check(parse_program(f"program(a: f32[3]) {{ b: i32[3] = {equation} return b }}"))
    assert (
        str(error.value)
        == f"""\
The program is not well formed.
  at:     program(a: f32[3]) {{
        >   b: i32[3] = {equation}
            return b
          }}
  why:  {why}
  fix:  correct the equation marked with >"""
    )


def test_a_program_that_has_no_text_still_gets_its_error() -> None:
    a, b = Var(tensor((3,), "float32")), Var(tensor((3,), "U3"))
    program = Program((a,), (Eqn(neg, (a,), {"k": [1, 2]}, (b,), Source("\0", 1)),), (b,))
    with pytest.raises(CheckError) as error:
        check(program)
    assert (
        str(error.value)
        == """\
The program is not well formed.
  at:     program(f32[3]) {
        >   <U3[3] = neg f32[3] k=[1, 2]
            return <U3[3]
          }
        written at \0:1
  why:  neg got an unexpected keyword argument 'k'
  fix:  correct the equation marked with >"""
    )


# Mutations of real programs


@cache
def texts() -> tuple[str, ...]:
    path = Path(__file__).parents[2] / "examples" / "mlp.py"
    spec = importlib.util.spec_from_file_location("mlp_to_mutate", path)
    assert spec is not None and spec.loader is not None
    mlp = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = mlp  # dataclasses look their module up
    try:
        spec.loader.exec_module(mlp)
    finally:
        del sys.modules[spec.name]
    programs = []
    for scan in (False, True):
        config = mlp.Config(inputs=2, dim=3, layers=2, outputs=2, scan=scan, checkpoint=scan)
        key = mw.random.key(0)
        step = mw.grad(lambda params, batch, config=config: mlp.loss(params, batch, config))
        programs.append(mw.make_program(step)(mlp.init(key, config), mlp.make_batch(key, config, 2)))

    def branches(x: Any, n: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            carry = lax.cond(n > 2, lambda c: mnp.sort(c + row), lambda c: c[::-1] * table[n], carry)
            return carry, mnp.argmax(carry)

        return lax.scan(body, mnp.ones(3), x)

    table = mnp.arange(20.0)
    programs.append(mw.make_program(branches)(mnp.ones((4, 3)), 1))
    programs.append(mw.make_program(mw.grad(lambda x: mnp.sum(branches(x, 1)[0])))(mnp.ones((4, 3))))
    for program in programs:
        check(parse_program(program.to_text(constants=True)))
    return tuple(program.to_text(constants=True) for program in programs)


_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|'[^'\n]*'|\S")
_NUMBERS = ("0", "-1", "1", "2.5", "7", "65", "4294967296", "1e400", "nan", "True", "None", "f32", "i8[2]", "()")
_NUMBERS += ("9" * 19, "9" * 90, "9" * 5000, "(1, 2)", "'x'", "(0.5,)", "rule('f')", "program() { return }", "(1+2j)")


def mutated(text: str, draw: random.Random) -> str:
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        kind = draw.randrange(6)
        if kind < 3:
            at, other = sorted(draw.randrange(len(text)) for _ in range(2))
            if kind == 0:
                text = text[:at] + text[at + draw.choice((1, 1, 5)) :]
            elif kind == 1:
                text = text[:at] + text[at : at + draw.choice((1, 1, 30))] + text[at:]
            else:
                text = text[:at] + text[other] + text[at + 1 : other] + text[at] + text[other + 1 :]
        else:
            tokens = [m.span() for m in _TOKEN.finditer(text)]
            first = draw.choice(tokens)
            if kind == 3:
                second = draw.choice(tokens)
                (a, b), (c, d) = sorted((first, second))
                if b <= c:
                    text = text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
            else:
                numbers = [span for span in tokens if text[span[0]].isdigit()] or tokens
                a, b = draw.choice(numbers)
                text = text[:a] + draw.choice(_NUMBERS) + text[b:]
    return text


def mutate(count: int, seed: int) -> tuple[int, float]:
    """How many mutated programs were right after all, and the CPU seconds of the slowest: the machine may be shared."""
    draw = random.Random(seed)
    right, slowest = 0, 0.0
    for number in range(count):
        text = mutated(draw.choice(texts()), draw)
        start = time.process_time()
        try:
            program = check(parse_program(text))
            assert parse_program(str(program)) == program, text
            right += 1
        except MeshwrightError as error:
            assert len(str(error)) < 20_000
        except Exception as error:
            raise AssertionError(f"mutation {number} gave {error!r}:\n{text}") from error
        took = time.process_time() - start
        slowest = max(slowest, took)
        assert took < 1, f"mutation {number} took {took:.1f} s:\n{text}"
    return right, slowest


def test_a_mutated_program_is_a_program_or_a_clear_error() -> None:
    mutate(300, seed=1)


@pytest.mark.slow
def test_many_mutated_programs_are_programs_or_clear_errors() -> None:
    right, slowest = mutate(20_000, seed=2)
    print(f"{right} of 20,000 mutated programs were right; the slowest took {slowest:.3f} s")
