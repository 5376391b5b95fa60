"""Modules that sdy's verifiers refuse, made by the hundred: each wrong sharding in each place, and each wrong op."""

from __future__ import annotations

from collections.abc import Iterator

MESHES = """\
sdy.mesh @m = <["x"=2, "y"=4, "z"=4]>
sdy.mesh @same = <["x"=2, "y"=4, "z"=4]>
sdy.mesh @turned = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>
sdy.mesh @straight = <["x"=2, "y"=2]>
sdy.mesh @n = <["a"=4]>
sdy.mesh @one = <[], device_ids=[0]>
sdy.mesh @empty = <[]>
"""
T = "tensor<8x8xf32>"
WRONG_SHARDINGS = {
    "a mesh that nobody declared": "<@nowhere, [{}, {}]>",
    "an axis that the mesh has not": '<@m, [{"q"}, {}]>',
    "a replicated axis that the mesh has not": '<@m, [{}, {}], replicated={"q"}>',
    "an unreduced axis that the mesh has not": '<@m, [{}, {}], unreduced={"q"}>',
    "an axis of a mesh without axes": '<@empty, [{"x"}, {}]>',
    "too few dims": '<@m, [{"x"}]>',
    "too many dims": '<@m, [{"x"}, {}, {}]>',
    "an axis twice in a dim": '<@m, [{"x", "x"}, {}]>',
    "an axis in two dims": '<@m, [{"x"}, {"x"}]>',
    "an axis split and replicated": '<@m, [{"x"}, {}], replicated={"x"}>',
    "an axis split and unreduced": '<@m, [{"x"}, {}], unreduced={"x"}>',
    "an axis replicated and unreduced": '<@m, [{}, {}], replicated={"x"}, unreduced={"x"}>',
    "an axis twice replicated": '<@m, [{}, {}], replicated={"x", "x"}>',
    "replicated axes out of order": '<@m, [{}, {}], replicated={"y", "x"}>',
    "unreduced axes out of order": '<@m, [{}, {}], unreduced={"y", "x"}>',
    "replicated parts out of order": '<@m, [{}, {}], replicated={"y":(2)2, "y":(1)2}>',
    "a part of size one": '<@m, [{"y":(1)1}, {}]>',
    "a part that begins at zero": '<@m, [{"y":(0)2}, {}]>',
    "a part that does not divide its axis": '<@m, [{"y":(1)3}, {}]>',
    "a part that is the whole axis": '<@m, [{"y":(1)4}, {}]>',
    "a part that goes beyond its axis": '<@m, [{"y":(2)4}, {}]>',
    "parts that follow one another": '<@m, [{"y":(1)2, "y":(2)2}, {}]>',
    "replicated parts that follow one another": '<@m, [{}, {}], replicated={"y":(1)2, "y":(2)2}>',
    "unreduced parts that follow one another": '<@m, [{}, {}], unreduced={"y":(1)2, "y":(2)2}>',
    "a part twice": '<@m, [{"y":(1)2}, {"y":(1)2}]>',
    "a part and its axis": '<@m, [{"y":(1)2}, {"y"}]>',
    "a part and its replicated axis": '<@m, [{"y":(1)2}, {}], replicated={"y"}>',
    "a part and its unreduced axis": '<@m, [{"y":(2)2}, {}], unreduced={"y"}>',
    "a priority of an empty dim": "<@m, [{}p1, {}]>",
    "a single device with dims": "<@one, [{}, {}]>",
    "a single device and a replicated axis": '<@one, [], replicated={"x"}>',
    "a single device and an unreduced axis": '<@one, [], unreduced={"x"}>',
}
PLACES = {
    "an argument": "func.func @f(%a: T {sdy.sharding = #sdy.shardingSHARDING}) -> T {\n  return %a : T\n}",
    "a result": "func.func @f(%a: T) -> (T {sdy.sharding = #sdy.shardingSHARDING}) {\n  return %a : T\n}",
    "the second argument": (
        "func.func @f(%a: T, %b: T {sdy.sharding = #sdy.shardingSHARDING}) -> T {\n  return %a : T\n}"
    ),
    "an op": """func.func @f(%a: T) -> T {
  %0 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[SHARDING]>} : T
  return %0 : T
}""",
    "one of two results": """func.func @f(%a: T) -> T {
  %0:2 = stablehlo.custom_call @k(%a)
      {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {}]>, SHARDING]>} : (T) -> (T, T)
  return %0#0 : T
}""",
    "a constraint": "func.func @f(%a: T) -> T {\n  %0 = sdy.sharding_constraint %a SHARDING : T\n  return %0 : T\n}",
    "a reshard": "func.func @f(%a: T) -> T {\n  %0 = sdy.reshard %a SHARDING : T\n  return %0 : T\n}",
    "an edge": """func.func @f(%a: T) -> T {
  %0 = stablehlo.optimization_barrier %a : T
  %1 = sdy.data_flow_edge %0 sharding=SHARDING : T
  return %1 : T
}""",
    "what goes into a computation": """func.func @f(%a: T) -> T {
  %0 = sdy.named_computation<"g">(%a) in_shardings=[SHARDING] (%b: T) {
    sdy.return %b : T
  } : (T) -> T
  return %0 : T
}""",
    "what comes out of a computation": """func.func @f(%a: T) -> T {
  %0 = sdy.named_computation<"g">(%a) out_shardings=[SHARDING] (%b: T) {
    sdy.return %b : T
  } : (T) -> T
  return %0 : T
}""",
    "what goes into a manual computation": """func.func @f(%a: T) -> T {
  %0 = sdy.manual_computation(%a) in_shardings=[SHARDING] out_shardings=[<@m, [{}, {}]>] manual_axes={} (%b: T) {
    sdy.return %b : T
  } : (T) -> T
  return %0 : T
}""",
    "what comes out of a manual computation": """func.func @f(%a: T) -> T {
  %0 = sdy.manual_computation(%a) in_shardings=[<@m, [{}, {}]>] out_shardings=[SHARDING] manual_axes={} (%b: T) {
    sdy.return %b : T
  } : (T) -> T
  return %0 : T
}""",
    **{
        f"what {word} makes": f"""func.func @f(%a: T {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}}) -> T {{
  %0 = sdy.{op} %a out_sharding=SHARDING : T
  return %0 : T
}}"""
        for word, op in {
            "a gather": 'all_gather [{"x"}, {}]',
            "a slice": 'all_slice [{}, {"y"}]',
            "an exchange": 'all_to_all [{"x"}: 0->1]',
            "a permute": "collective_permute",
            "a sum": 'all_reduce {"y"}',
            "a sum in parts": 'reduce_scatter [{}, {"y"}]',
        }.items()
    },
    "the second result": (
        "func.func @f(%a: T) -> (T, T {sdy.sharding = #sdy.shardingSHARDING}) {\n  return %a, %a : T, T\n}"
    ),
}
WRONG_MESHES = [
    '<["x"=0]>', '<["x"=-1]>', '<["x"=2, "x"=4]>', '<["x"=2], device_ids=[0]>', '<["x"=2], device_ids=[0, 0]>',
    '<["x"=2], device_ids=[0, 1]>', '<["x"=2], device_ids=[1, 2]>', "<[], device_ids=[0, 1]>", "<[], device_ids=[-1]>",
    '<["x"=2], device_ids=[-1, 0]>',
]  # fmt: skip
WRONG_RULES = [
    "([i])->([i, j]) {i=8, j=8}", "([i, j])->([i]) {i=8, j=8}", "([i, i])->([i, i]) {i=8}",
    "([i, j], [i, j])->([i, j]) {i=8, j=8}", "([i, j])->([i, j], [i, j]) {i=8, j=8}", "([i, j])->([i, j]) {i=8}",
    "([i, j])->([i, j]) {i=8, j=8, k=2}", "([i, j])->([i, j]) {i=8, j=8} reduction={k}",
    "([i, j])->([i, j]) {i=8, j=8} reduction={j}",
    "([i, j])->([i, k]) {i=8, j=8, k=8} reduction={j} need_replication={j}",
    "([i, j])->([i, j]) {i=8, j=8} need_replication={j, i}", "([i, j])->([i, j]) {i=8, j=8} need_replication={i, i}",
    "([i, j])->([i, j]) {i=8, j=8} permutation={j, i}",
    "([i, j])->([i, j]) {i=8, j=8} permutation={i} need_replication={i}",
    "([i, j])->([i, j]) {i=8, j=8} need_replication={i} permutation={i}",
    "([i, j])->([i, j]) {i=8, j=8} blocked_propagation={j, i}", "([ik, j])->([ik, j]) {i=8, j=8, k=1}",
    "([i, j])->([i, j]) {i=8, j=8} blocked_propagation={k}", "()->([i, j]) {i=8, j=8}", "([i, j])->() {i=8, j=8}",
    "([i, j])->([i, j]) {i=-1, j=8}", "([i, j])->([i, j]) {j=8, i=8}", "([i, ])->([i, j]) {i=8, j=8}",
]  # fmt: skip
X = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}'
XY = '{sdy.sharding = #sdy.sharding<@m, [{"x", "y"}, {}]>}'
U = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {}], unreduced={"y"}>}'
WRONG_OPS = [
    # the argument's attribute, the op on it
    (X, 'sdy.all_gather [{"y"}, {}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_gather [{"x"}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_gather [{"x"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_gather [{"x"}, {}] %a out_sharding=<@same, [{}, {}]>'),
    (X, 'sdy.all_gather [{"x"}, {}] %a out_sharding=<@n, [{}, {}]>'),
    (X, 'sdy.all_gather [{"x"}, {"x"}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_gather [{"x":(1)1}, {}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_gather [{"q"}, {}] %a out_sharding=<@m, [{}, {}]>'),
    (X, "sdy.all_gather [{}, {}] %a out_sharding=<@m, [{}, {}]>"),
    (XY, 'sdy.all_gather [{"x"}, {}] %a out_sharding=<@m, [{"y"}, {}]>'),
    (XY, 'sdy.all_gather [{"y":(1)2}, {}] %a out_sharding=<@m, [{"x", "y":(2)2}, {}]>'),
    ("", 'sdy.all_gather [{"x"}, {}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_slice [{"y"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_slice [{"y"}, {}] %a out_sharding=<@m, [{"y", "x"}, {}]>'),
    (X, 'sdy.all_slice [{"x"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_slice [{}, {"x"}] %a out_sharding=<@m, [{"x"}, {"x"}]>'),
    (X, 'sdy.all_slice [{"y"}] %a out_sharding=<@m, [{"x", "y"}, {}]>'),
    (X, 'sdy.all_slice [{"q"}, {}] %a out_sharding=<@m, [{"x", "y"}, {}]>'),
    (X, 'sdy.all_slice [{}, {"y"}] %a out_sharding=<@n, [{"a"}, {}]>'),
    (X, 'sdy.all_to_all [{"x"}: 0->1] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_to_all [{"y"}: 0->1] %a out_sharding=<@m, [{"x"}, {"y"}]>'),
    (X, 'sdy.all_to_all [{"x"}: 0->0] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_to_all [{"x"}: 0->2] %a out_sharding=<@m, [{}, {"x"}]>'),
    (X, 'sdy.all_to_all [{"x"}: 2->1] %a out_sharding=<@m, [{}, {"x"}]>'),
    (X, 'sdy.all_to_all [{"x"}: -1->1] %a out_sharding=<@m, [{}, {"x"}]>'),
    (X, "sdy.all_to_all [{}: 0->1] %a out_sharding=<@m, [{}, {}]>"),
    (XY, 'sdy.all_to_all [{"y"}: 0->1, {"x"}: 0->1] %a out_sharding=<@m, [{}, {"y", "x"}]>'),
    (XY, 'sdy.all_to_all [{"x"}: 1->0, {"y"}: 0->1] %a out_sharding=<@m, [{}, {"y", "x"}]>'),
    (X, 'sdy.all_to_all [{"q"}: 0->1] %a out_sharding=<@m, [{}, {"x"}]>'),
    ("", 'sdy.all_to_all [{"x"}: 0->1] %a out_sharding=<@m, [{}, {"x"}]>'),
    (X, 'sdy.collective_permute %a out_sharding=<@m, [{}, {"x"}]>'),
    (X, 'sdy.collective_permute %a out_sharding=<@m, [{"y"}, {}]>'),
    (X, 'sdy.collective_permute %a out_sharding=<@n, [{"a"}, {}]>'),
    ("", 'sdy.collective_permute %a out_sharding=<@m, [{"y"}, {}]>'),
    (X, 'sdy.all_reduce {"x"} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_reduce {"y"} %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.all_reduce {"y"} %a out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>'),
    (X, 'sdy.all_reduce {"z", "y"} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_reduce {"y", "y"} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_reduce {"q"} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.all_reduce {"y"} %a out_sharding=<@n, [{"a"}, {}]>'),
    (X, 'sdy.all_reduce {"y":(1)2, "y":(2)2} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.reduce_scatter [{"y"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.reduce_scatter [{"x"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.reduce_scatter [{"y"}] %a out_sharding=<@m, [{"x", "y"}, {}]>'),
    (X, 'sdy.reduce_scatter [{"q"}, {}] %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.sharded_to_unreduced [{"y"}, {}] %a out_sharding=<@m, [{}, {}], unreduced={"y"}>'),
    (X, 'sdy.sharded_to_unreduced [{"x"}, {}] %a out_sharding=<@m, [{}, {}]>'),
    (X, 'sdy.sharded_to_unreduced [{"x"}, {}] %a out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>'),
    (X, 'sdy.sharded_to_unreduced [{"x"}] %a out_sharding=<@m, [{}, {}], unreduced={"x"}>'),
    (X, 'sdy.replicated_to_unreduced {"y"} %a out_sharding=<@m, [{"x"}, {}]>'),
    (X, 'sdy.replicated_to_unreduced {"x"} %a out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>'),
    (X, 'sdy.replicated_to_unreduced {"q"} %a out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>'),
    (U, 'sdy.replicated_to_unreduced {"y"} %a out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>'),
    (U, 'sdy.sharding_constraint %a <@m, [{"y"}, {}]>'),
    ("", "sdy.data_flow_edge %missing"),
    ("", "sdy.propagation_barrier %a allowed_direction=BOTH"),
    ("", "sdy.propagation_barrier %a allowed_direction=SIDEWAYS"),
    ("", 'sdy.reshard %a <@m, [{"x", }, {}]>'),
    ("", 'sdy.reshard %a <@m, [{"x"?}, {}]>'),
    ("", 'sdy.reshard %a <@m, [{?, "x"}, {}]>'),
    ("", 'sdy.reshard %a <@m, [{"x"}p, {}]>'),
    ("", 'sdy.reshard %a <@m, {"x"}>'),
    ("", 'sdy.reshard %a <["x"=2], [{"x"}, {}]>'),
    ("", 'sdy.reshard %a <mesh<["x"=0]>, [{"x"}, {}]>'),
    ("", 'sdy.reshard %a <mesh<["x"=2, "x"=2]>, [{"x"}, {}]>'),
    ("", 'sdy.reshard %a <@m, [{"x"}, {}], replicated={"y":2}>'),
    ("", 'sdy.reshard %a <@m, [{"y":(1)}, {}]>'),
]
MANUAL = [
    # in, out, manual axes, the type inside
    ('<@m, [{"x"}, {}]>', '<@m, [{"x"}, {}]>', '"x"', "tensor<8x8xf32>"),
    ('<@m, [{"x"}, {}]>', "<@m, [{}, {}]>", '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"y", "x"}, {}]>', '<@m, [{"x"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>', '<@m, [{"y", "x"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>', '<@m, [{"x"}, {}]>', '"q"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>', '<@n, [{"a"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>', '<@same, [{"x"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"y":(1)2}, {}]>', '<@m, [{"y":(1)2}, {}]>', '"y"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>, <@m, [{"x"}, {}]>', '<@m, [{"x"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}]>', '<@m, [{"x"}, {}]>, <@m, [{"x"}, {}]>', '"x"', "tensor<4x8xf32>"),
    ('<@m, [{"x"}, {}], unreduced={"y"}>', '<@m, [{"x"}, {}]>', '"x", "y"', "tensor<4x8xf32>"),
]


def bad_modules() -> Iterator[tuple[str, str]]:
    """What is wrong, and a module in which it is."""
    for place, text in PLACES.items():
        for wrong, sharding in WRONG_SHARDINGS.items():
            yield f"{place}: {wrong}", MESHES + text.replace("SHARDING", sharding).replace("T", T)
    for mesh in WRONG_MESHES:
        yield f"the mesh {mesh}", f"sdy.mesh @m = {mesh}\n"
    for rule in WRONG_RULES:
        yield (
            f"the rule {rule}",
            MESHES
            + f"""func.func @f(%a: {T}) -> {T} {{
  %0 = stablehlo.custom_call @k(%a) {{sdy.sharding_rule = #sdy.op_sharding_rule<{rule}, custom>}} : ({T}) -> {T}
  return %0 : {T}
}}""",
        )
    for attribute, op in WRONG_OPS:
        yield (
            f"{op} of {attribute}",
            MESHES
            + f"""func.func @f(%a: {T} {attribute}) -> {T} {{
  %0 = {op} : {T}
  return %0 : {T}
}}""",
        )
    for given, made, axes, inside in MANUAL:
        yield (
            f"manual over {axes}: {given} to {made}",
            MESHES
            + f"""func.func @f(%a: {T}) -> {T} {{
  %0 = sdy.manual_computation(%a) in_shardings=[{given}] out_shardings=[{made}] manual_axes={{{axes}}} (%b: {inside}) {{
    sdy.return %b : {inside}
  }} : ({T}) -> {T}
  return %0 : {T}
}}""",
        )
