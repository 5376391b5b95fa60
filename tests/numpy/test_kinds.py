"""The dtype, weakness and shape of functions of one and of two operands, for all their dtypes, are those of JAX."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from tests.numpy.chains import CHANGED
from tests.numpy.closeness import leaves, on_meshwright
from tests.numpy.test_chains import width
from tests.versions import older_than

NARROW = ("bool", "int8", "uint8", "int16", "uint32", "int32", "float16", "bfloat16", "float32", "complex64")
WIDE = (*NARROW, "int64", "uint64", "float64", "complex128")
# Their results are weak or not by how they are put together inside.
BY_ACCIDENT = {"argpartition", "ediff1d", "pad"}
# Of truth values beside another operand, JAX has two promotions one after the other.
ODD_TRUTHS = {"squareplus"}
PREFIXES = {"numpy": "np_.", "nn": "nn.", "lax": "lax."}


def functions() -> list[tuple[str, str]]:
    """The module and name of all that can be called with one or two arrays, or not."""
    found = []
    for module, prefix in PREFIXES.items():
        for name in getattr(mw, module).__all__:
            function = getattr(getattr(mw, module), name)
            changed = CHANGED.get(prefix + name)
            if callable(function) and not isinstance(function, type) and (changed is None or not older_than(changed)):
                found.append((module, name))
    return [pair for pair in found if hasattr(getattr(jax, pair[0]), pair[1])]


def operands(wide: bool) -> Iterator[Any]:
    """Scalars and vectors of every dtype, also weak ones of those that Python's numbers have."""
    numbers = ("int64", "float64", "complex128") if wide else ("int32", "float32", "complex64")
    for dtype in WIDE if wide else NARROW:
        for shape in ((), (3,)):
            x = jnp.ones(shape, dtype)
            yield x
            if dtype in numbers:
                yield jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def kinds(x: Any) -> list[str]:
    return [
        f"{a.dtype}{list(a.shape)}{' weak' * bool(a.weak_type and a.dtype != bool)}"
        for a in leaves(x)
        if hasattr(a, "weak_type")
    ]


def check(module: str, name: str, *operands: Any) -> None:
    if name in ODD_TRUTHS and len(operands) == 2 and operands[0].dtype == bool:
        return
    function = getattr(getattr(jax, module), name)
    try:
        # What JAX takes to be lists of numbers or truth values are no arrays here, and are not compared.
        theirs = kinds(jax.eval_shape(lambda *xs: function(*xs), *operands))
    except Exception:
        return
    try:
        ours = kinds(getattr(getattr(mw, module), name)(*map(on_meshwright, operands)))
    except mw.MeshwrightError:
        return  # JAX may refuse later, when it runs
    if len(operands) == 2 and name in BY_ACCIDENT:
        ours, theirs = ([kind.removesuffix(" weak") for kind in found] for found in (ours, theirs))
    given = ", ".join(kind for x in operands for kind in kinds(x))
    assert not ours or ours == theirs, f"{module}.{name}({given}): {ours}, JAX has {theirs}"


def test_some_functions_have_the_kinds_that_jax_gives_them() -> None:
    random = np.random.default_rng(0)
    for wide in (False, True):
        with width(wide):
            given, names = list(operands(wide)), functions()
            for _ in range(250):
                pair = [given[random.integers(len(given))] for _ in range(2)]
                check(*names[random.integers(len(names))], pair[0])
                check(*names[random.integers(len(names))], *pair)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_all_functions_of_one_operand_have_the_kind_that_jax_gives_them(wide: bool) -> None:
    with width(wide):
        given = list(operands(wide))
        for module, name in functions():
            for x in given:
                check(module, name, x)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("part", range(16))
def test_all_functions_of_two_operands_have_the_kind_that_jax_gives_them(wide: bool, part: int) -> None:
    with width(wide):
        given = list(operands(wide))
        for module, name in functions()[part::16]:
            for x, y in product(given, given):
                check(module, name, x, y)
