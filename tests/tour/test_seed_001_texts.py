"""Seed 001, "Sharding": the texts that its snippets print. StableHLO is the same, character for character; HLO has the
structure of what it shows, without what a TPU adds (tiled layouts, copies, fusions, backend_config)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from tests.interop import hlo_by_xla


@pytest.fixture
def seed() -> Iterator[SimpleNamespace]:
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.sharding.AxisType.Explicit,) * 2, kind="tpu")
    with mw.set_mesh(mesh):
        A = mnp.zeros((2048, 8192), dtype=mnp.bfloat16, device=mw.NamedSharding(mesh, mw.P("x", "y")))
        B = mw.reshard(A, mw.P("x"))
        C = mw.reshard(B, mw.P(None, "x"))
        F = mnp.zeros((8192, 4096), dtype=mnp.bfloat16, out_sharding=mw.NamedSharding(mesh, mw.P("y")))
        yield SimpleNamespace(mesh=mesh, A=A, B=B, C=C, F=F)


def stablehlo(name: str, arguments: str, result: str, body: str) -> str:
    """The module of a function of the seed."""
    return (
        f"module @jit_{name} attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{\n"
        '  sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
        f"  func.func public @main({arguments}) -> ({result}) {{\n{body}  }}\n}}"
    )


def placed(shape: str, dims: str, note: str = "") -> str:
    return f"tensor<{shape}xbf16> {{{note}sdy.sharding = #sdy.sharding<@mesh, {dims}>}}"


INFO = 'jax.result_info = "result", '


def hlo(lowered: Any) -> str:
    """The text of the compiled program, which XLA reads, without what belongs to this file alone."""
    text = lowered.compile().as_text()
    hlo_by_xla.parsed(text)
    assert f'source_file="{__file__}" source_line=' in text
    return re.sub(r' source_file="[^"]*" source_line=\d+', "", text)


def test_all_gather(seed: SimpleNamespace) -> None:
    @mw.jit
    def all_gather(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(seed.mesh, mw.P("x")))

    lowered = all_gather.lower(seed.A)
    assert lowered.as_text() == stablehlo(
        "all_gather",
        "%arg0: " + placed("2048x8192", '[{"x"}, {"y"}]'),
        placed("2048x8192", '[{"x"}, {}]', INFO),
        '    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<2048x8192xbf16>\n'
        "    return %0 : tensor<2048x8192xbf16>\n",
    )
    assert (
        hlo(lowered)
        == """\
HloModule jit_all_gather, entry_computation_layout={(bf16[1024,4096]{1,0})->bf16[1024,8192]{1,0}}, num_partitions=4

ENTRY %main (param: bf16[1024,4096]) -> bf16[1024,8192] {
  %param = bf16[1024,4096]{1,0} parameter(0), sharding={devices=[2,2]<=[4]}, metadata={op_name="x"}
  ROOT %all-gather = bf16[1024,8192]{1,0} all-gather(%param), channel_id=1, replica_groups=[2,2]<=[4], \
dimensions={1}, use_global_device_ids=true, metadata={op_name="jit(all_gather)/reshard"}
}"""
    )


def test_all_to_all(seed: SimpleNamespace) -> None:
    @mw.jit
    def all_to_all(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(seed.mesh, mw.P(None, "x")))

    lowered = all_to_all.lower(seed.B)
    assert lowered.as_text() == stablehlo(
        "all_to_all",
        "%arg0: " + placed("2048x8192", '[{"x"}, {}]'),
        placed("2048x8192", '[{}, {"x"}]', INFO),
        '    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<2048x8192xbf16>\n'
        "    return %0 : tensor<2048x8192xbf16>\n",
    )
    assert (
        hlo(lowered)
        == """\
HloModule jit_all_to_all, entry_computation_layout={(bf16[1024,8192]{1,0})->bf16[2048,4096]{1,0}}, num_partitions=4

ENTRY %main (param: bf16[1024,8192]) -> bf16[2048,4096] {
  %param = bf16[1024,8192]{1,0} parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}, \
metadata={op_name="x"}
  %reshape = bf16[1024,2,4096]{2,1,0} reshape(%param), metadata={op_name="jit(all_to_all)/reshard"}
  %all-to-all = bf16[1024,2,4096]{2,1,0} all-to-all(%reshape), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), \
dimensions={1}, metadata={op_name="jit(all_to_all)/reshard"}
  %transpose = bf16[2,1024,4096]{2,1,0} transpose(%all-to-all), dimensions={1,0,2}, \
metadata={op_name="jit(all_to_all)/reshard"}
  ROOT %reshape.1 = bf16[2048,4096]{1,0} reshape(%transpose), metadata={op_name="jit(all_to_all)/reshard"}
}"""
    )


def test_all_to_all_back(seed: SimpleNamespace) -> None:
    @mw.jit
    def all_to_all(x: Any) -> Any:
        return mw.sharding.reshard(x, mw.NamedSharding(seed.mesh, mw.P("x")))

    lowered = all_to_all.lower(seed.C)
    assert lowered.as_text() == stablehlo(
        "all_to_all",
        "%arg0: " + placed("2048x8192", '[{}, {"x"}]'),
        placed("2048x8192", '[{"x"}, {}]', INFO),
        '    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<2048x8192xbf16>\n'
        "    return %0 : tensor<2048x8192xbf16>\n",
    )
    assert (
        hlo(lowered)
        == """\
HloModule jit_all_to_all, entry_computation_layout={(bf16[2048,4096]{1,0})->bf16[1024,8192]{1,0}}, num_partitions=4

ENTRY %main (param: bf16[2048,4096]) -> bf16[1024,8192] {
  %param = bf16[2048,4096]{1,0} parameter(0), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}, \
metadata={op_name="x"}
  %reshape = bf16[2,1024,4096]{2,1,0} reshape(%param), metadata={op_name="jit(all_to_all)/reshard"}
  %all-to-all = bf16[2,1024,4096]{2,1,0} all-to-all(%reshape), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), \
dimensions={0}, metadata={op_name="jit(all_to_all)/reshard"}
  %transpose = bf16[1024,2,4096]{2,1,0} transpose(%all-to-all), dimensions={1,0,2}, \
metadata={op_name="jit(all_to_all)/reshard"}
  ROOT %reshape.1 = bf16[1024,8192]{1,0} reshape(%transpose), metadata={op_name="jit(all_to_all)/reshard"}
}"""
    )


def test_gram(seed: SimpleNamespace) -> None:
    @mw.jit
    def gram(x: Any) -> Any:
        return mnp.dot(x, x.mT, out_sharding=mw.NamedSharding(seed.mesh, mw.P()))

    lowered = gram.lower(seed.C)
    assert lowered.as_text() == stablehlo(
        "gram",
        "%arg0: " + placed("2048x8192", '[{}, {"x"}]'),
        placed("2048x2048", "[{}, {}]", INFO),
        "    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2048x8192xbf16>) -> tensor<8192x2048xbf16>\n"
        '    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8192x2048xbf16>\n'
        "    %2 = stablehlo.dot_general %arg0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : "
        "(tensor<2048x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<2048x2048xbf16>\n"
        "    %3 = sdy.sharding_constraint %2 <@mesh, [{}, {}]> : tensor<2048x2048xbf16>\n"
        "    return %3 : tensor<2048x2048xbf16>\n",
    )
    assert (
        hlo(lowered)
        == """\
HloModule jit_gram, entry_computation_layout={(bf16[2048,4096]{1,0})->bf16[2048,2048]{1,0}}, num_partitions=4

%add_bf16 (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %add = bf16[] add(%x, %y)
}

ENTRY %main (param: bf16[2048,4096]) -> bf16[2048,2048] {
  %param = bf16[2048,4096]{1,0} parameter(0), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}, \
metadata={op_name="x"}
  %transpose = bf16[4096,2048]{1,0} transpose(%param), dimensions={1,0}, metadata={op_name="jit(gram)/transpose"}
  %dot = bf16[2048,2048]{1,0} dot(%param, %transpose), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(gram)/dot_general"}
  ROOT %all-reduce = bf16[2048,2048]{1,0} all-reduce(%dot), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), \
use_global_device_ids=true, to_apply=%add_bf16, metadata={op_name="jit(gram)/dot_general"}
}"""
    )


def test_dot_custom_is_a_real_reduce_scatter(seed: SimpleNamespace) -> None:
    @mw.jit
    def dot_custom(x: Any, y: Any) -> Any:
        return mnp.dot(x, y, out_sharding=mw.NamedSharding(seed.mesh, mw.P("x", "y")))

    lowered = dot_custom.lower(seed.A, seed.F)
    assert lowered.as_text() == stablehlo(
        "dot_custom",
        "%arg0: " + placed("2048x8192", '[{"x"}, {"y"}]') + ", %arg1: " + placed("8192x4096", '[{"y"}, {}]'),
        placed("2048x4096", '[{"x"}, {"y"}]', INFO),
        "    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : "
        "(tensor<2048x8192xbf16>, tensor<8192x4096xbf16>) -> tensor<2048x4096xbf16>\n"
        '    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {"y"}]> : tensor<2048x4096xbf16>\n'
        "    return %1 : tensor<2048x4096xbf16>\n",
    )
    assert (
        hlo(lowered)
        == """\
HloModule jit_dot_custom, entry_computation_layout={(bf16[1024,4096]{1,0}, bf16[4096,4096]{1,0})->\
bf16[1024,2048]{1,0}}, num_partitions=4

%add_bf16 (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %add = bf16[] add(%x, %y)
}

ENTRY %main (param: bf16[1024,4096], param.1: bf16[4096,4096]) -> bf16[1024,2048] {
  %param = bf16[1024,4096]{1,0} parameter(0), sharding={devices=[2,2]<=[4]}, metadata={op_name="x"}
  %param.1 = bf16[4096,4096]{1,0} parameter(1), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}, \
metadata={op_name="y"}
  %dot = bf16[1024,4096]{1,0} dot(%param, %param.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(dot_custom)/dot_general"}
  ROOT %reduce-scatter = bf16[1024,2048]{1,0} reduce-scatter(%dot), channel_id=1, replica_groups=[2,2]<=[4], \
use_global_device_ids=true, dimensions={1}, to_apply=%add_bf16, metadata={op_name="jit(dot_custom)/dot_general"}
}"""
    )
