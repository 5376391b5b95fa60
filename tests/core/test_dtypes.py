"""Element types: names, widths, and promotion by JAX's lattice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.dtypes import lattice_result_type
from jax._src.lax.lax import _convert_element_type

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core import dtypes
from meshwright.core.dtypes import DType, promote

Kind = tuple[DType, bool]
WIDTHS = pytest.mark.parametrize("width", ["x64", "x32"])


@pytest.fixture(autouse=True)
def _width(request: pytest.FixtureRequest) -> None:
    """Each test runs at the width it asks for, 32 bits unless it says otherwise."""
    width = request.node.callspec.params.get("width", "x32") if hasattr(request.node, "callspec") else "x32"
    request.getfixturevalue(width)


def strong() -> list[Kind]:
    return [(d, False) for d in (*dtypes.ALL, *dtypes.PACKED) if dtypes.canonical(d) == d]


def python_numbers() -> list[Kind]:
    return [dtypes.of_python_scalar(x) for x in (1, 1.0, 1j)]


def weak_arrays() -> list[Kind]:
    return [(d, True) for d, _ in strong() if d != dtypes.BOOL]


def jax_value(kind: Kind) -> Any:
    dtype, weak = kind
    return _convert_element_type(np.ones((), dtype), dtype, weak_type=weak)


def in_jax(kinds: Sequence[Kind]) -> Any:
    """What JAX's arithmetic promotes to; None where it refuses."""
    try:
        dtype, weak = lattice_result_type(*map(jax_value, kinds))
    except jax.dtypes.TypePromotionError:
        return None
    return np.dtype(dtype), weak


def in_meshwright(kinds: Sequence[Kind]) -> Any:
    try:
        return promote(*kinds)
    except TypeError:
        return None


def differences(groups: Any) -> list[str]:
    return [
        f"{group}: {in_meshwright(group)}, not {in_jax(group)}"
        for group in groups
        if in_meshwright(group) != in_jax(group)
    ]


@WIDTHS
def test_pairs_promote_as_in_jax_whether_weak_or_strong(width: str) -> None:
    assert differences(product(strong() + weak_arrays(), repeat=2)) == []


@WIDTHS
def test_dtypes_and_python_numbers_promote_as_jax_says_in_public(width: str) -> None:
    for (a, _), (b, _) in product(strong(), repeat=2):
        found = in_meshwright([(a, False), (b, False)])
        if found is not None:
            assert found[0] == jnp.promote_types(a, b)
    for (a, _), number in product(strong(), (True, 1, 1.0, 1j)):
        found = in_meshwright([(a, False), dtypes.of_python_scalar(number)])
        if found is not None:
            assert found[0] == jnp.result_type(a, number)


@WIDTHS
def test_triples_promote_as_in_jax_with_python_numbers_among_them(width: str) -> None:
    assert differences(combinations_with_replacement(strong() + python_numbers(), 3)) == []


@WIDTHS
def test_the_order_of_operands_does_not_matter(width: str) -> None:
    kinds = strong() + python_numbers()
    assert all(in_meshwright((a, b, c)) == in_meshwright((c, a, b)) for a, b, c in product(kinds, repeat=3))


@WIDTHS
def test_one_operand_promotes_to_itself(width: str) -> None:
    assert all(promote(kind) == kind for kind in strong() + python_numbers())


@WIDTHS
def test_names_and_python_types_mean_what_they_mean_in_jax(width: str) -> None:
    for spec in (
        float,
        int,
        complex,
        bool,
        "float32",
        "float64",
        "int64",
        "bfloat16",
        np.float16,
        np.int64,
        jnp.bfloat16,
    ):
        assert dtypes.as_dtype(spec) == jax.dtypes.canonicalize_dtype(jnp.dtype(spec)), spec


@pytest.mark.parametrize(
    ("width", "value", "kind"),
    [
        ("x32", 1, (dtypes.INT32, True)),
        ("x32", 1.0, (dtypes.FLOAT32, True)),
        ("x32", 1j, (dtypes.COMPLEX64, True)),
        ("x32", True, (dtypes.BOOL, False)),
        ("x64", 1, (dtypes.INT64, True)),
        ("x64", 1.0, (dtypes.FLOAT64, True)),
        ("x64", 1j, (dtypes.COMPLEX128, True)),
    ],
)
def test_a_python_number_has_the_default_width_and_is_weak(width: str, value: Any, kind: Kind) -> None:
    assert dtypes.of_python_scalar(value) == kind


def test_wide_dtypes_narrow_unless_64_bits_are_on() -> None:
    wide = (dtypes.INT64, dtypes.UINT64, dtypes.FLOAT64, dtypes.COMPLEX128)
    assert [dtypes.canonical(d).name for d in wide] == ["int32", "uint32", "float32", "complex64"]
    dtypes.config.update("jax_enable_x64", True)
    assert [dtypes.canonical(d) for d in wide] == list(wide)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    for name in ("enable_x65", "jax_enable_x64", "_enabled"):
        with pytest.raises(AttributeError) as error:
            setattr(dtypes.config, name, True)
        assert str(error.value) == f"no setting {name!r}; there are: enable_x64, default_device"
    with pytest.raises(AttributeError) as error:
        dtypes.config.update("enable_x65", True)
    assert str(error.value) == "no setting 'enable_x65'; there are: enable_x64, default_device"


@pytest.mark.parametrize("value", ["yes", 1, 0.0, None])
def test_a_width_is_a_bool(value: Any) -> None:
    with pytest.raises(TypeError) as error:
        dtypes.config.enable_x64 = value
    assert str(error.value) == f"enable_x64 is True or False, not {value!r}"
    with pytest.raises(TypeError):
        dtypes.config.update("enable_x64", value)
    assert dtypes.config.enable_x64 is False


def test_every_dtype_has_a_short_name_that_reads_back() -> None:
    assert [dtypes.SHORT_NAMES[dtypes.short_name(d)] for d in dtypes.ALL] == list(dtypes.ALL)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            [(dtypes.FLOAT8_E5M2, False), (dtypes.FLOAT32, False)],
            "float8_e5m2 and float32 have no implicit promotion; convert one of them: x.astype('float32')",
        ),
        (
            [(dtypes.FLOAT8_E4M3FN, False), (dtypes.COMPLEX64, True)],
            "float8_e4m3fn and a Python complex have no implicit promotion; convert one of them: x.astype('complex64')",
        ),
    ],
)
def test_dtypes_without_a_common_one_say_which_to_convert(kinds: list[Kind], message: str) -> None:
    with pytest.raises(TypeError) as error:
        promote(*kinds)
    assert str(error.value) == message


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError) as error:
        dtypes.as_dtype("datetime64[s]")
    assert str(error.value) == (
        "dtype datetime64[s] is not one of bool, i8, i16, i32, i64, u8, u16, u32, u64, "
        "f8e4m3fn, f8e5m2, f16, bf16, f32, f64, c64, c128, i2, u2, i4, u4, "
        "f8e3m4, f8e4m3, f8e4m3b11fnuz, f8e4m3fnuz, f8e5m2fnuz, f8e8m0fnu, key"
    )


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError) as error:
        dtypes.config.update("enable_x63", True)
    assert str(error.value) == "no setting 'enable_x63'; there are: enable_x64, default_device"


def test_integers_of_a_few_bits_are_converted_as_in_jax() -> None:
    wide = np.arange(-128, 128, dtype=np.int8)
    for first in (*dtypes.PACKED, dtypes.INT8, dtypes.FLOAT32):
        for second in dtypes.PACKED:

            def through(x: Any, first: DType = first, second: DType = second) -> Any:
                return x.astype(first).astype(second).astype("int32")

            expected = np.asarray(through(jnp.asarray(wide)))
            np.testing.assert_array_equal(through(mnp.asarray(wide)), expected, err_msg=f"{first} to {second}")
            np.testing.assert_array_equal(mw.jit(through)(wide), expected, err_msg=f"{first} to {second}")


def test_integers_of_a_few_bits_share_bytes() -> None:
    assert [dtypes.array_bytes(dtypes.INT2, n) for n in (1, 4, 5)] == [1, 1, 2]
    assert [dtypes.array_bytes(dtypes.UINT4, n) for n in (1, 2, 3)] == [1, 1, 2]
