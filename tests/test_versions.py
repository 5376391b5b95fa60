"""Each change between versions of JAX and Shardy, by an example: ours agrees with what is installed where it should."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.engine import random_special_f64
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests import versions
from tests.oracle import each_pass
from tests.oracle.partitioner_modules import MOVING, PADDED
from tests.oracle.shardy import apply, refuses
from tests.sharding.random_shardings import Case
from tests.sharding.shardy import sharding_verdict
from tests.versions import CHANGES, INSTALLED, Change

T = "tensor<8x8xf32>"
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=3]>\n'
EXAMPLES: dict[Change, Callable[[], bool]] = {}


def by_shardy(text: str, name: str) -> bool:
    """Whether a pass makes of a module what Shardy's makes of it."""
    return str(apply_passes(parse_module(text), [f"sdy-{name}"]).module) == apply(text, name)


def rule(arguments: str, op: str) -> Callable[[], bool]:
    text = f"func.func @main({arguments}) {{\n%r = {op}\nreturn\n}}"
    return lambda: by_shardy(text, "populate-op-sharding-rules")


EXAMPLES[versions.RESHAPE] = rule("%a: tensor<8x3xf32>", "stablehlo.reshape %a : (tensor<8x3xf32>) -> tensor<3x8xf32>")
EXAMPLES[versions.CONVOLUTION] = rule(
    "%a: tensor<2x4x8xf32>, %b: tensor<4x4x3xf32>",
    "stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} "
    "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
    "(tensor<2x4x8xf32>, tensor<4x4x3xf32>) -> tensor<2x4x8xf32>",
)
EXAMPLES[versions.PAD] = rule(
    "%a: tensor<8xf32>, %b: tensor<f32>",
    "stablehlo.pad %a, %b, low = [1], high = [-1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>",
)
EXAMPLES[versions.UPDATE_SLICE] = rule(
    "%a: tensor<8xf32>, %b: tensor<6xf32>, %i: tensor<i32>",
    "stablehlo.dynamic_update_slice %a, %b, %i : (tensor<8xf32>, tensor<6xf32>, tensor<i32>) -> tensor<8xf32>",
)
EXAMPLES[versions.CONSTRAINTS] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{?}}]>}}) {{
      %0 = sdy.sharding_constraint %a <@mesh, [{{}}, {{"x"}}]> : {T}
      return
    }}""",
    "apply-sharding-constraints",
)
EXAMPLES[versions.FUNCTION_RESULTS] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> {T} {{
      return %a : {T}
    }}""",
    "propagate-to-func-results",
)
EXAMPLES[versions.CALLS] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T}, %b: tensor<f32>) -> tensor<f32> {{
      %0 = func.call @f(%a, %b) : ({T}, tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }}
    func.func private @f(
      %a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", ?}}, {{?}}]>}}, %b: tensor<f32>
    ) -> tensor<f32> {{
      %0 = stablehlo.cosine %b : tensor<f32>
      %1 = sdy.sharding_constraint %b <@mesh, []> : tensor<f32>
      return %0 : tensor<f32>
    }}""",
    "propagation-pipeline",
)
EXAMPLES[versions.UNEVEN] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> {T} {{
      %0 = sdy.reshard %a <@mesh, [{{"y"}}, {{}}]> : {T}
      return %0 : {T}
    }}""",
    "reshard-to-collectives",
)
EXAMPLES[versions.CALL_SUMS] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T}) -> {T} {{
      %0 = call @f(%a) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"y"}}, {{}}]>]>}} : ({T}) -> {T}
      return %0 : {T}
    }}
    func.func private @f(%a: {T}) -> ({T} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}], unreduced={{"x"}}>}}) {{
      return %a : {T}
    }}""",
    "insert-func-call-reshards",
)
EXAMPLES[versions.EXPORT] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> {T} {{
      return %a : {T}
    }}""",
    "export-pipeline",
)
EXAMPLES[versions.PADDING] = lambda: (
    each_pass.by_shardy(PADDED["a constant"], "sdy-pad-for-divisibility")
    == each_pass.by_us(PADDED["a constant"], "sdy-pad-for-divisibility")
)
EXAMPLES[versions.RESOLVING] = lambda: (
    each_pass.by_shardy(MOVING["an update of a part"], each_pass.RESOLVE)
    == each_pass.by_us(MOVING["an update of a part"], each_pass.RESOLVE)
)
EXAMPLES[versions.LOCAL] = lambda: by_shardy(
    f"""{MESH}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) -> {T} {{
      %0 = sdy.all_slice [{{"x"}}, {{}}] %a out_sharding=<@mesh, [{{"x"}}, {{}}]> : {T}
      %1 = sdy.all_gather [{{"x"}}, {{}}] %0 out_sharding=<@mesh, [{{}}, {{}}]> : {T}
      return %1 : {T}
    }}""",
    "convert-global-to-local",
)


def loses_a_sum() -> bool:
    unreduced = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}'
    text = f"""{MESH}func.func @main(%a: {T} {unreduced}) {{
      %0 = stablehlo.negate %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}} : {T}
      return
    }}"""
    with pytest.raises(MeshwrightError):
        apply_passes(parse_module(text), ["sdy-verify-unreduced-axes"])
    return refuses(text, "verify-unreduced-axes")


EXAMPLES[versions.VERIFICATION] = loses_a_sum


def without_a_sign() -> bool:
    case = Case('<["x"=2]>', '#sdy.sharding<@mesh, [{}], unreduced{"x"}>', 1)
    ours = TensorSharding.parse(case.sharding, Mesh.parse(f"sdy.mesh @mesh = {case.mesh}"), (8,))
    return sharding_verdict(*case).printed == str(ours)


EXAMPLES[versions.UNREDUCED_TEXT] = without_a_sign


def two_components() -> bool:
    with pytest.raises(MeshwrightError):
        mnp.cross(mnp.ones(2), mnp.ones(2))
    try:
        jnp.cross(jnp.ones(2), jnp.ones(2))
    except ValueError:
        return True
    return False


EXAMPLES[versions.CROSS] = two_components
EXAMPLES[versions.SINC] = lambda: float(mnp.sinc(3.0)) == float(jnp.sinc(3.0))
EXAMPLES[versions.HYPOT] = lambda: (
    mnp.hypot(mnp.ones(2, bool), 1.5).weak_type == (jnp.hypot(jnp.ones(2, bool), 1.5).weak_type)
)
EXAMPLES[versions.SIGN] = lambda: turns(mw) == turns(jax)
EXAMPLES[versions.NEXTAFTER] = lambda: slope_of_next(mw) == slope_of_next(jax)
EXAMPLES[versions.LOG2] = lambda: mnp.log2(3.0).weak_type == jnp.log2(3.0).weak_type


def turns(package: Any) -> bool:
    """Whether the sign of a complex number turns with it."""
    _, t = package.jvp(package.lax.sign, (package.numpy.array(1 + 0j),), (package.numpy.array(1j),))
    return bool(t != 0)


def slope_of_next(package: Any) -> float | None:
    try:
        return float(package.grad(lambda x: package.lax.nextafter(x, 2.0))(1.0))
    except NotImplementedError:
        return None


def width_of_tri() -> bool:
    before, mw.config.enable_x64 = mw.config.enable_x64, True
    try:
        with jax.enable_x64(True):
            return bool(mnp.tri(2).dtype == jnp.tri(2).dtype)
    finally:
        mw.config.enable_x64 = before


EXAMPLES[versions.TRI] = width_of_tri
EXAMPLES[versions.DIGAMMA] = lambda: float(mw.lax.digamma(0.0)) == float(jax.lax.digamma(0.0))


def log1p_in_the_middle() -> bool:
    x = np.linspace(-0.41, -0.3, 1000)
    with jax.enable_x64(True):
        theirs = np.asarray(jax.jit(jax.lax.log1p)(x))
    ours = random_special_f64.log1p(x)
    return bool(np.max(np.abs(theirs - ours) / np.spacing(np.abs(theirs))) <= 4)


EXAMPLES[versions.LOG1P] = log1p_in_the_middle


def many_gumbel_numbers() -> bool:
    ours = mw.random.gumbel(mw.random.key(0), (4096,), "bfloat16", "high")
    theirs = jax.random.gumbel(jax.random.key(0), (4096,), "bfloat16", "high")
    return np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


EXAMPLES[versions.GUMBEL] = many_gumbel_numbers


def many_gumbel_numbers_of_half_precision() -> bool:
    ours = mw.random.gumbel(mw.random.key(0), (4096,), "float16")
    theirs = jax.random.gumbel(jax.random.key(0), (4096,), "float16")
    return np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


EXAMPLES[versions.GUMBEL_HALF] = many_gumbel_numbers_of_half_precision


def largest_of_complex_numbers() -> bool:
    x, t = np.complex64(1 + 2j), np.complex64(1)
    ours = mw.jvp(lambda x: mw.lax.max(x, np.complex64(0)), (x,), (t,))[1]
    try:
        theirs = jax.jvp(lambda x: jax.lax.max(x, np.complex64(0)), (x,), (t,))[1]
    except TypeError:
        return False
    return bool(np.asarray(ours) == np.asarray(theirs))


EXAMPLES[versions.COMPLEX_MAXIMUM] = largest_of_complex_numbers
EXAMPLES[versions.ABSTRACT_MESH] = lambda: (
    repr(mw.AbstractMesh((2,), ("x",))) == repr(jax.sharding.AbstractMesh((2,), ("x",)))
)
EXAMPLES[versions.UNREDUCED_KIND] = lambda: repr(mw.P(unreduced={"x"})) == repr(jax.P(unreduced={"x"}))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_ours_agrees_with_what_is_installed_where_the_table_says_so(change: Change) -> None:
    assert EXAMPLES[change]() == ((change.since <= INSTALLED) == change.followed)


def test_users_are_told_of_every_change() -> None:
    text = (Path(__file__).parents[1] / "docs" / "versions.md").read_text()
    told = re.findall(r"^\| `(.*?)` \| ([\d.]+) \|", text, re.MULTILINE)
    assert sorted(told) == sorted((change.name, ".".join(map(str, change.since))) for change in CHANGES)
