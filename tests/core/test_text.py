"""Programs as text and back: ``parse_program(str(p)) == p``, and a wrong text is refused at the character."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.op import Op
from meshwright.core.program import Eqn, Literal, Missing, Program, Var
from meshwright.core.source import Source
from meshwright.core.text.parse import parse_program
from meshwright.core.text.types import parse_type
from meshwright.core.trace import Array, close, trace
from meshwright.core.types import TensorType, tensor
from meshwright.errors import TextError
from meshwright.ops.basic import add, mul, neg
from meshwright.transform.regions.scan import scan


def one_equation(op: Op, inputs: list[Any], result: TensorType, params: dict[str, Any] | None = None) -> Program:
    variables = tuple(a for a in inputs if isinstance(a, Var))
    out = Var(result)
    return Program(variables, (Eqn(op, tuple(inputs), params or {}, (out,)),), (out,))


def with_constant(data: Any, full_type: TensorType | None = None) -> Program:
    data = np.asarray(data)
    var = Var(full_type or TensorType(data.shape, data.dtype))
    out = Var(var.type)
    return Program((), (Eqn(neg, (var,), {}, (out,)),), (out,), ((var, data),))


def survives(program: Program) -> Program:
    """The program read back from its text, which must be equal to it and print the same."""
    back = parse_program(str(program))
    assert back == program
    assert str(back) == str(program)
    assert hash(back) == hash(program)
    return back


# What is printed


def test_a_program_reads_as_written() -> None:
    text = """\
program(a: f32[8,4], b: f32[4]) {
  const c: f32[2] = [1.0, 2.5]
  d: f32[8,4] = broadcast_in_dim b dims=(1,) shape=(8, 4)  # mlp.py:12
  e: f32[8,4] = add a d  # mlp.py:12
  f: f32[8,4] = mul e 2.0
  return f, 1, True, c
}"""
    program = check(parse_program(text))
    assert str(program) == text
    assert program.to_text(sources=False) == text.replace("  # mlp.py:12", "")


def test_a_program_may_stand_on_one_line_with_other_names() -> None:
    one_line = parse_program("program(x: f32[3]) { y: f32[3] = neg x  z: f32[3] = add y x  return z }")
    assert (
        str(one_line)
        == """\
program(a: f32[3]) {
  b: f32[3] = neg a
  c: f32[3] = add b a
  return c
}"""
    )


def test_a_program_without_inputs_equations_or_outputs_survives() -> None:
    assert str(survives(Program((), (), ()))) == "program() {\n  return\n}"


def test_a_traced_program_survives_with_the_lines_it_was_written_on() -> None:
    def function(x: Any, y: Any) -> list[Any]:
        return [mul(add(x, y), 0.1)]

    program, _ = trace(function, [tensor((2,), "float32")] * 2)
    line = function.__code__.co_firstlineno + 1
    assert (
        str(program)
        == f"""\
program(a: f32[2], b: f32[2]) {{
  c: f32[2] = add a b  # test_text.py:{line}
  d: f32[2] = mul c 0.1  # test_text.py:{line}
  return d
}}"""
    )
    assert [eqn.source for eqn in survives(program).eqns] == [Source("test_text.py", line)] * 2


def test_comments_that_are_not_lines_of_code_are_skipped() -> None:
    program = parse_program("""
        # what follows doubles
        program(a: f32[3]) {  # one input
          b: f32[3] = add a a  # twice: a
          return b  # done
        }""")
    assert [eqn.source for eqn in program.eqns] == [None]


def test_thousands_of_names_survive() -> None:
    var = first = Var(tensor((), "float32"))
    eqns = []
    for _ in range(20_000):
        out = Var(var.type)
        eqns.append(Eqn(neg, (var,), {}, (out,)))
        var = out
    survives(Program((first,), tuple(eqns), (var,)))


def test_names_are_never_words_of_the_language() -> None:
    var = Var(tensor((), "float32"))
    text = str(Program(tuple(Var(var.type) for _ in range(200_000)), (), ()))
    names = {part.split(":")[0].strip() for part in text.split("(", 1)[1].split(")")[0].split(",")}
    assert len(names) == 200_000
    assert not names & {"inf", "nan", "infj", "nanj", "const", "return", "program"}


# Literals


@pytest.mark.parametrize(
    ("value", "type", "text"),
    [
        (2.0, tensor((), "float32", weak=True), "2.0"),
        (-0.0, tensor((), "float32", weak=True), "-0.0"),
        (float("inf"), tensor((), "float32", weak=True), "inf"),
        (float("-inf"), tensor((), "float32", weak=True), "-inf"),
        (float("nan"), tensor((), "float32", weak=True), "nan"),
        (float(np.float32(0.1)), tensor((), "float32", weak=True), "0.1"),
        (float(np.float32(1e-7)), tensor((), "float32", weak=True), "1e-07"),
        (float(np.float32(3e38)), tensor((), "float32", weak=True), "3e+38"),
        (2.0, tensor((), "float32"), "2.0:f32"),
        (0.1, tensor((), "float64", weak=True), "0.1:~f64"),
        (1e300, tensor((), "float64"), "1e+300:f64"),
        (0.10009765625, tensor((), ml_dtypes.bfloat16), "0.10009765625:bf16"),
        (float(np.float16(0.1)), tensor((), "float16"), "0.1:f16"),
        (448.0, tensor((), ml_dtypes.float8_e4m3fn), "448.0:f8e4m3fn"),
        (float("-inf"), tensor((), ml_dtypes.bfloat16), "-inf:bf16"),
        (float("nan"), tensor((), "float64"), "nan:f64"),
        (3, tensor((), "int32", weak=True), "3"),
        (-3, tensor((), "int8"), "-3:i8"),
        (2**64 - 1, tensor((), "uint64"), "18446744073709551615:u64"),
        (-(2**63), tensor((), "int64"), "-9223372036854775808:i64"),
        (True, tensor((), "bool"), "True"),
        (False, tensor((), "bool"), "False"),
        (1 + 2j, tensor((), "complex64"), "(1+2j):c64"),
        (1.5 - 2.5j, tensor((), "complex128", weak=True), "(1.5-2.5j):~c128"),
        (complex(0.0, -1.0), tensor((), "complex64"), "-1j:c64"),
        (complex(-0.0, 1.0), tensor((), "complex64"), "(-0+1j):c64"),
        (complex(0.0, float("inf")), tensor((), "complex64"), "infj:c64"),
        (complex(0.0, float("-inf")), tensor((), "complex64"), "-infj:c64"),
        (complex(0.0, float("nan")), tensor((), "complex64"), "nanj:c64"),
        (complex(float("nan"), float("-inf")), tensor((), "complex64"), "(nan-infj):c64"),
        (complex(1e-7, 1e20), tensor((), "complex128"), "(1e-07+1e+20j):c128"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_literal_survives(value: Any, type: TensorType, text: str) -> None:
    program = one_equation(neg, [Literal(value, type)], type)
    assert f" = neg {text}\n" in str(program)
    literal = survives(program).eqns[0].inputs[0]
    assert isinstance(literal, Literal)
    assert (repr(literal.value), literal.type) == (repr(value), type)
    assert str(survives(Program((), (), (Literal(value, type),)))) == f"program() {{\n  return {text}\n}}"


def test_a_number_is_read_at_the_width_of_its_type() -> None:
    program = parse_program("program() { return 0.1, 0.1:bf16, 2:f32, 1:c64 }")
    values = [a.value for a in program.outputs if isinstance(a, Literal)]
    assert [repr(v) for v in values] == [repr(float(np.float32(0.1))), "0.10009765625", "2.0", "(1+0j)"]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 65504.0, 2.0**-24])
@pytest.mark.parametrize("dtype", [d for d in dtypes.FLOATS if d.itemsize > 1], ids=lambda d: d.name)
def test_numbers_written_in_short_are_the_same_bits(value: float, dtype: dtypes.DType) -> None:
    with np.errstate(over="ignore", under="ignore"):
        data = np.asarray([value, -value], dtype)
    ((_, back),) = survives(with_constant(data)).constants
    assert back.tobytes() == data.tobytes()


# Constants


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 4)], ids=str)
def test_a_small_constant_of_any_dtype_survives_in_full(dtype: dtypes.DType, shape: tuple[int, ...]) -> None:
    data = (np.arange(np.prod(shape)).reshape(shape) * (0.25 - 0.5j if dtype.kind == "c" else 1)).astype(dtype)
    ((_, back),) = survives(with_constant(data)).constants
    assert (back.dtype, back.shape, back.tobytes()) == (data.dtype, data.shape, data.tobytes())


@pytest.mark.parametrize("dtype", dtypes.INEXACT, ids=lambda d: d.name)
def test_a_constant_with_infinities_and_nans_of_either_sign_survives(dtype: dtypes.DType) -> None:
    values = [np.inf, -np.inf, np.nan, -np.nan, -0.0]
    survives(with_constant(np.asarray(values).astype(dtype)))
    survives(with_constant(np.asarray(values * 5).astype(dtype)))


def test_complex_constants_keep_each_part() -> None:
    data = np.asarray(
        [complex(0, np.nan), complex(np.nan, 0), complex(-0.0, np.inf), complex(0, -np.inf)], np.complex64
    )
    assert "[nanj, (nan+0j), (-0+infj), -infj]" in str(with_constant(data))
    survives(with_constant(data))
    assert with_constant(data[:1]) != with_constant(data[1:2])


def test_a_large_constant_is_kept_by_its_digest() -> None:
    program = with_constant(np.arange(17, dtype=np.float32))
    assert (
        str(program)
        == """\
program() {
  const a: f32[17] = @DIGEST
  b: f32[17] = neg a
  return b
}""".replace("DIGEST", digest_in(program))
    )
    ((_, back),) = survives(program).constants
    assert back == Missing(digest_in(program))
    assert with_constant(np.arange(1, 18, dtype=np.float32)) != program


def digest_in(program: Program) -> str:
    return str(program).split("@")[1].split()[0]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_, np.complex128])
def test_a_large_constant_written_in_full_comes_back(dtype: Any) -> None:
    data = np.arange(60).reshape(3, 20).astype(dtype)
    program = with_constant(data)
    back = parse_program(program.to_text(constants=True))
    assert back == program
    np.testing.assert_array_equal(back.constants[0][1], data)


def test_captured_arrays_become_constants() -> None:
    bias = Array(np.array([1.0, 2.0], np.float32), tensor((2,), "float32"))
    program = close(*trace(lambda x: [add(x, bias)], [tensor((2,), "float32")]))
    assert (
        program.to_text(sources=False)
        == """\
program(a: f32[2]) {
  const b: f32[2] = [1.0, 2.0]
  c: f32[2] = add a b
  return c
}"""
    )
    survives(check(program))


# Params


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (-3, "-3"),
        (True, "True"),
        (None, "None"),
        (0.5, "0.5"),
        (-0.0, "-0.0"),
        (1e-7, "1e-07"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (1 + 2j, "(1+2j)"),
        (-1j, "(-0-1j)"),
        (complex(0, float("nan")), "nanj"),
        ("clip", "'clip'"),
        ("", "''"),
        ("it's", '"it\'s"'),
        ("a \"b\" 'c'", "'a \"b\" \\'c\\''"),
        ("two\nlines\tand \\ \r\x00 … # no comment", "'two\\nlines\\tand \\\\ \\r\\x00 … # no comment'"),
        (dtypes.BFLOAT16, "bf16"),
        (dtypes.BOOL, "bool"),
        (tensor((2, 3), "float32"), "f32[2,3]"),
        (tensor((), "int32", weak=True), "~i32[]"),
        (TensorType((4,), dtypes.FLOAT32, varying=("i", "j"), unreduced=("k",)), "f32[4]{i,j,U:k}"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, 2), "(1, 2)"),
        (((0, 1), ()), "((0, 1), ())"),
        ((1j,), "(1j,)"),
        ((1 + 2j,), "((1+2j),)"),
        ((1 + 2j, 3.0), "((1+2j), 3.0)"),
        ((True, None, "x", dtypes.INT8, tensor((1,), "uint8"), (2.5,)), "(True, None, 'x', i8, u8[1], (2.5,))"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_param_survives(value: Any, text: str) -> None:
    a = Var(tensor((3,), "float32"))
    program = one_equation(neg, [a], a.type, {"value": value, "before": 1, "zlast": "z"})
    assert f" = neg a before=1 value={text} zlast='z'\n" in str(program)
    back = survives(program).eqns[0].params
    assert repr(back["value"]) == repr(value)
    assert list(back) == ["before", "value", "zlast"]


def test_params_that_differ_only_in_kind_make_different_programs() -> None:
    a = Var(tensor((3,), "float32"))
    values = [1, 1.0, True, 1 + 0j, "1", (1,), (1.0,), (True,)]
    assert len({one_equation(neg, [a], a.type, {"value": v}) for v in values}) == len(values)


def test_a_param_that_has_no_text_is_refused() -> None:
    a = Var(tensor((3,), "float32"))
    with pytest.raises(TypeError) as error:
        str(one_equation(neg, [a], a.type, {"value": [1, 2]}))
    assert str(error.value) == "param list [1, 2] cannot be written as text"


# Regions


def region() -> Program:
    x = Var(tensor((), "float32"))
    y = Var(x.type)
    return Program((x,), (Eqn(mul, (x, Literal(2.0, tensor((), "float32", weak=True))), {}, (y,)),), (y,))


def test_regions_survive_alone_in_tuples_and_in_each_other() -> None:
    a = Var(tensor((), "float32"))
    inner = one_equation(neg, [a], a.type, {"body": region()})
    program = one_equation(neg, [Var(a.type)], a.type, {"branches": (region(), inner), "call": region(), "then": 1})
    assert (
        str(program)
        == """\
program(a: f32[]) {
  b: f32[] = neg a branches=(program(c: f32[]) {
    d: f32[] = mul c 2.0
    return d
  }, program(e: f32[]) {
    f: f32[] = neg e body=program(g: f32[]) {
      h: f32[] = mul g 2.0
      return h
    }
    return f
  }) call=program(i: f32[]) {
    j: f32[] = mul i 2.0
    return j
  } then=1
  return b
}"""
    )
    survives(program)


def test_a_region_with_constants_and_sources_survives() -> None:
    inside = with_constant(np.float32([1, 2]))
    eqn = inside.eqns[0]
    inside = Program((), (Eqn(eqn.op, eqn.inputs, {}, eqn.outputs, Source("in.py", 3)),), eqn.outputs, inside.constants)
    a, b = Var(tensor((2,), "float32")), Var(tensor((2,), "float32"))
    program = Program((a,), (Eqn(neg, (a,), {"body": inside}, (b,), Source("out.py", 7)),), (b,))
    back = survives(program)
    assert back.eqns[0].source == Source("out.py", 7)
    assert back.eqns[0].params["body"].eqns[0].source == Source("in.py", 3)


def test_a_scan_survives() -> None:
    def body(carry: Any, x: Any) -> list[Any]:
        total = add(carry, x)
        return [total, neg(total)]

    scalar = tensor((), "float32")
    inner, _ = trace(body, [scalar, scalar])

    params = {"body": inner, "consts": 0, "carry": 1, "length": 5, "reverse": False}
    program, _ = trace(lambda start, xs: list(scan(start, xs, **params)), [scalar, tensor((5,), "float32")])
    assert (
        program.to_text(sources=False)
        == """\
program(a: f32[], b: f32[5]) {
  c: f32[], d: f32[5] = scan a b body=program(e: f32[], f: f32[]) {
    g: f32[] = add e f
    h: f32[] = neg g
    return g, h
  } carry=1 consts=0 length=5 reverse=False
  return c, d
}"""
    )
    survives(check(program))


# Equations


def test_an_equation_with_several_results_or_none_survives() -> None:
    a, b, c, d = (Var(tensor((3,), "float32")) for _ in range(4))
    several = Eqn(neg, (a,), {"k": 1}, (b, c))
    none = Eqn(neg, (b, a), {}, ())
    program = Program((a,), (several, none, none, Eqn(neg, (c,), {}, (d,))), (d,))
    assert (
        str(program)
        == """\
program(a: f32[3]) {
  b: f32[3], c: f32[3] = neg a k=1
  = neg b a
  = neg b a
  d: f32[3] = neg c
  return d
}"""
    )
    survives(program)


def test_programs_are_equal_up_to_names_and_lines_and_no_further() -> None:
    text = "program(a: f32[3], b: f32[3]) { c: f32[3] = add a b  return c }"
    assert parse_program(text) == parse_program(text.replace("c", "result").replace("a:", "x:").replace(" a ", " x "))
    assert parse_program(text) == parse_program(text.replace("add a b", "add a b # f.py:1\n"))
    assert parse_program(text) != parse_program(text.replace("add a b", "add b a"))
    assert parse_program(text) != parse_program(text.replace("add", "mul"))
    assert parse_program(text) != parse_program(text.replace("return c", "return a"))


# Types


@pytest.mark.parametrize(
    "text", ["f32[8,4]", "bf16[]", "~f32[]", "i8[0]", "f32[8]{x}", "f32[8]{x,U:y}", "c64[1,2,3]{U:z}"]
)
def test_a_type_survives(text: str) -> None:
    assert parse_type(text).short() == text


# Errors

FIX = "  fix:  write equations as `c: f32[8,4] = add a b`, inside `program(a: f32[8,4], …) { … return c }`"


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("", 1, 1, "expected 'program', found the end of the text"),
        ("progam(a: f32[3]) { return a }", 1, 1, "expected 'program', found 'progam'"),
        ("program a", 1, 9, "expected '(', found 'a'"),
        ("program(a f32[3]) { return a }", 1, 11, "expected ':', found 'f32'"),
        ("program(a: f32[3] b: f32[3]) { return a }", 1, 19, "expected ',', found 'b'"),
        ("program(a: f32[3], a: f32[3]) { return a }", 1, 20, "'a' is given twice"),
        ("program(a: f32[3, 1.5]) { return a }", 1, 19, "expected a size, found '1.5'"),
        ("program(a: f32[-3]) { return a }", 1, 16, "expected a size, found '-3'"),
        ("program(a: f32[3) { return a }", 1, 17, "expected ',', found ')'"),
        ("program(a: f32) { return a }", 1, 15, "expected '[', found ')'"),
        (
            "program(a: f33[3]) { return a }",
            1,
            12,
            "expected a dtype (bool, i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3fn, f8e5m2, f16, bf16, f32, f64, c64, "
            "c128, i2, u2, i4, u4, f8e3m4, f8e4m3, f8e4m3b11fnuz, f8e4m3fnuz, f8e5m2fnuz, f8e8m0fnu, key), found 'f33'",
        ),
        ("program(a: f32[3]) { return a", 1, 30, "expected '}', found the end of the text"),
        ("program(a: f32[3]) { return a } extra", 1, 33, "expected the end of the text, found 'extra'"),
        ("program(a: f32[3]) { return b }", 1, 29, "'b' is not defined before this line"),
        ("program(a: f32[3]) {\n  b: f32[3] = nega a\n  return b\n}", 2, 15, "there is no op 'nega'"),
        ("program(a: f32[3]) {\n  b: f32[3] = neg c\n  return b\n}", 2, 19, "'c' is not defined before this line"),
        ("program(a: f32[3]) {\n  b: f32[3] = neg b\n  return b\n}", 2, 19, "'b' is not defined before this line"),
        ("program(a: f32[3]) {\n  a: f32[3] = neg a\n  return a\n}", 2, 3, "'a' is given twice"),
        ("program(a: f32[3]) {\n  b: f32[3] neg a\n  return b\n}", 2, 13, "expected ',', found 'neg'"),
        ("program(a: f32[3]) {\n  b: f32[3] = 3 a\n  return b\n}", 2, 15, "expected an op, found '3'"),
        (
            "program(a: f32[3]) {\n  b: f32[3] = neg a\n",
            3,
            1,
            "expected the name of a result, or `return`, found the end of the text",
        ),
        ("program(a: f32[3]) {\n  }", 2, 3, "expected the name of a result, or `return`, found '}'"),
        ("program(a: f32[3]) { b: f32[3] = neg a shape=(1 2) return b }", 1, 49, "expected ',', found '2'"),
        ("program(a: f32[3]) { b: f32[3] = neg a shape=(1, return b }", 1, 50, "expected a value, found 'return'"),
        ("program(a: f32[3]) { b: f32[3] = neg a k='x return b }", 1, 42, 'the character "\'" means nothing here'),
        ("program(a: f32[3]) { b: f32[3] = neg a k='\\x' return b }", 1, 42, "'\\x' is not a string"),
        ("program(a: f32[3]) { b: f32[3] = neg a; return b }", 1, 39, "the character ';' means nothing here"),
        ("program(a: f32[3]) { b: f32[3] = neg 1j return b }", 1, 38, "a complex literal names its type: (1+2j):c64"),
        (
            "program(a: f32[3]) { b: f32[3] = neg (1) return b }",
            1,
            38,
            "a complex literal names its type: (1+2j):c64",
        ),
        ("program(a: f32[3]) { b: f32[3] = neg (1+x) return b }", 1, 38, "(1+x) is not a complex number"),
        ("program(a: f32[3]) { b: f32[3] = neg 1.5:i32 return b }", 1, 38, "1.5 is not a value of i32"),
        ("program(a: f32[3]) { b: f32[3] = neg 128:i8 return b }", 1, 38, "128 is not a value of i8"),
        ("program(a: f32[3]) { b: f32[3] = neg -1:u8 return b }", 1, 38, "-1 is not a value of u8"),
        ("program(a: f32[3]) { b: f32[3] = neg 1:bool return b }", 1, 38, "1 is not a value of bool"),
        ("program(a: f32[3]) { b: f32[3] = neg True:f32 return b }", 1, 38, "True is not a value of f32"),
        ("program(a: f32[3]) { b: f32[3] = neg 1j:f32 return b }", 1, 38, "1j is not a value of f32"),
        ("program() {\n  const a: f32[2] = [1.0]\n  return a\n}", 2, 21, "1 elements given for the type f32[2]"),
        ("program() {\n  const a: i32[1] = [1.5]\n  return a\n}", 2, 22, "1.5 is not a value of i32"),
        ("program() {\n  const a: f32[1] = 1.5\n  return a\n}", 2, 21, "expected '[', found '1.5'"),
        (
            "program() {\n  const a: f32[1] = @00 'AA=='\n  return a\n}",
            2,
            21,
            "the data has 1 bytes, the type f32[1] 4",
        ),
        ("program() {\n  const a: f32[1] = @00 'A'\n  return a\n}", 2, 21, "the data is not base64"),
    ],
)
def test_a_malformed_program_is_refused_at_the_character(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(TextError) as error:
        parse_program(text)
    shown = text.split("\n")[line - 1]
    expected = [f"This is not a program: line {line}, column {column}."]
    expected += [f"  at:   {shown}", f"        {' ' * (column - 1)}^", f"  why:  {why}", FIX]
    assert str(error.value) == "\n".join(expected)


def test_a_malformed_type_is_refused_at_the_character() -> None:
    with pytest.raises(TextError) as error:
        parse_type("f32[3] x")
    assert str(error.value).splitlines()[1:4] == [
        "  at:   f32[3] x",
        "               ^",
        "  why:  expected the end of the text, found 'x'",
    ]


def test_importing_the_package_fills_the_registry() -> None:
    """Ops are known to the reader of programs before the module that users call them from is loaded."""
    import subprocess
    import sys

    code = (
        "import meshwright, pkgutil, importlib, meshwright.ops, meshwright.transform\n"
        "from meshwright.core.op import REGISTRY\n"
        "before = {*REGISTRY, *REGISTRY.LATE}\n"
        "for package in (meshwright.ops, meshwright.transform):\n"
        "    for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(m.name)\n"
        "assert before == set(REGISTRY), set(REGISTRY) ^ before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name", ["x", "U", "a b", "x-y", "é", "1x", "a:b", "it's", 'q"', "\\", "", "a,b", "None", "x\n"]
)
def test_any_name_of_an_axis_is_read_back(name: str) -> None:
    for axis in [name, f"{name}:(1)2"] if name else [name]:
        for given in (
            TensorType((4,), dtypes.FLOAT32, varying=(axis,)),
            TensorType((4,), dtypes.FLOAT32, unreduced=(axis,)),
        ):
            assert parse_type(given.short()) is given
    mesh = mw.make_mesh((4,), (name,), axis_types=(mw.AxisType.Explicit,))
    with mw.set_mesh(mesh):
        array = mw.device_put(np.ones(8, np.float32), mw.NamedSharding(mesh, mw.P(name)))
        program = mw.make_program(lambda x: x + x)(array)
    assert program.inputs[0].type.sharding is not None
    assert parse_program(str(program)) == program
