"""Any text is a program or one clear error: listings with tokens dropped, swapped, inserted."""

import random
import re
import warnings

import numpy as np
import pytest

import meshwright as mw
from meshwright import dist
from tests.tour import listings_003 as listings

TEXTS = [
    *(getattr(listings, name) for name in dir(listings) if name.isupper()),
    "def f(x: Tensor[i32, (8,), 0]): y = reduce_sum(x, axes=(0,)) z = convert(y, dtype=f32, weak=False)"
    " w = mul(z, 2.0) c = constant(value=array([1.0, 2.0], f32), device=0) return w, z, c",
]
TOKENS = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "?",
    "0",
    "1",
    "2",
    "d",
    "dd",
    "x",
    "wA",
    "pmap",
    "scatter",
    "lambda",
    "return",
    "Tensor",
    "Tuple",
    "...",
    "B/0",
    "-1",
    '"a"',
    "'",
    "@",
    "devices",
    "device_keys",
    "dim",
    "MatMul",
    "neg",
    "add",
    "1.5",
    "None",
    "program",
    "array",
    "#",
    "inf",
    "split",
    "item",
    "index",
    "parts",
    "call",
    "send",
    "to_device",
    "allreduce",
    "0*B",
]


def spoiled(text: str, rng: random.Random) -> str:
    parts = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(parts)), rng.random()
        if kind < 0.3:
            del parts[at]
        elif kind < 0.8:
            parts.insert(at, rng.choice(TOKENS))
        else:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
    return "".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_any_text_is_a_program_or_one_clear_error(seed):
    rng = random.Random(seed)
    for _ in range(60):
        text = spoiled(rng.choice(TEXTS), rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dist.SlipWarning)
            try:
                fn = dist.parse(text)
            except mw.MeshwrightError as error:
                assert error.fix
                continue
        assert dist.parse(str(fn)) == fn
        for act in (
            lambda fn=fn: dist.resolve(fn, {1: [1, 3], 2: [2, 4]}),
            lambda fn=fn: dist.data_parallel(fn, {"x": 0}),
            lambda fn=fn: dist.pipeline_parallel(fn, 2, 2),
        ):
            try:
                act()
            except mw.MeshwrightError as error:
                assert error.why
                assert error.fix


BODY = "program('program(a: f32[]) {{ b: f32[] = {} return b }}')"
SCAN = f"scan(x, body={BODY}, consts=0, carry=0, length=4, reverse=False)"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("neg(x, y)", "neg takes 1 operand, not 2"),
        ("sub(x)", "sub takes 2 operands, not 1"),
        ("neg(x, out=1)", "neg got an unexpected keyword argument 'out'"),
        ("reshape(x, shape=(2.0, 2))", "shape is a tuple of ints, not (2.0, 2)"),
        (SCAN.format("neg a a"), "neg takes 1 operand, not 2"),
        (SCAN.format("neg a out=1"), "neg got an unexpected keyword argument 'out'"),
    ],
)
def test_operands_and_params_of_ops_are_those_they_take_and_no_input_is_written_to(expression, why):
    x, y = np.ones(4, np.float32), np.full(4, 7, np.float32)
    with pytest.raises(mw.MeshwrightError) as error:
        dist.execute(
            dist.parse(f"def f(x: Tensor[(4,), 0], y: Tensor[(4,), 0]): z = {expression} return z"), {"x": x, "y": y}
        )
    assert error.value.why == why
    assert (x == 1).all() and (y == 7).all()


def test_a_device_program_takes_no_more_memory_than_there_is():
    fn = dist.parse("def f(x: Tensor[(4,), 0]): z = iota(dtype=f32, shape=(1000000000000,), dim=0) return z")
    with pytest.raises(mw.MeshwrightError) as error:
        dist.execute(fn, [np.ones(4, np.float32)])
    assert str(error.value).startswith("This takes more memory than there is.\n")


def test_a_device_program_makes_no_array_that_cannot_be():
    fn = dist.parse(f"def f(x: Tensor[(4,), 0]): z = reshape(x, shape=(4{', 1' * 64})) return z")
    with pytest.raises(mw.MeshwrightError) as error:
        dist.execute(fn, [np.ones(4, np.float32)])
    assert error.value.why == f"f32[4{',1' * 64}] is more than an array can be: 64 dims and 2**63 - 1 bytes"
