"""Modules for the passes that prepare a module for a partitioner, one for each thing that such a pass does."""

from __future__ import annotations

MESH = """sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @single = <[], device_ids=[3]>
"""
X, X1, WHOLE = '[{"x"}, {}]', '[{"x"}]', "[{}, {}]"
MERGED, Y_X = '[{"x", "y"}]', '[{"y", "x":(1)2}, {}]'
TURNED, WHOLE_3 = '[{"y", "x"}]', "[{}, {}, {}]"
XY_FIRST = '[{"x", "y"}, {}]'
X_OF_3, SECOND, XY = '[{"x"}, {}, {}]', '[{}, {"x"}]', '[{"x"}, {"y"}]'
M, N = "tensor<10x6xf32>", "tensor<8x8xf32>"


def laid(*shardings: str) -> str:
    """The attribute that says how results are laid out."""
    return "sdy.sharding = #sdy.sharding_per_value<[" + ", ".join(f"<@mesh, {one}>" for one in shardings) + "]>"


def single(count: int = 1) -> str:
    return "{sdy.sharding = #sdy.sharding_per_value<[" + ", ".join(["<@single, []>"] * count) + "]>}"


def function(arguments: str, body: str, made: str) -> str:
    """A function that returns %r."""
    return f"{MESH}func.func @main({arguments}) -> {made} {{\n{body}\n  return %r : {made}\n}}"


def _padded(body: str, made: str = M, gathered: str = X) -> str:
    """Something made of %s, the argument split unevenly."""
    rank = made.count("x")
    whole = "[" + ", ".join(["{}"] * rank) + "]"
    lists = gathered
    return function(
        f"%a: {M}",
        f'  %s = sdy.all_slice [{{"x"}}, {{}}] %a out_sharding=<@mesh, {X}> : {M}\n{body}\n'
        f"  %r = sdy.all_gather {lists} %v out_sharding=<@mesh, {whole}> : {made}",
        made,
    )


def _reduced(kind: str, start: str, made_by: str = "negate") -> str:
    return function(
        f"%a: {M}",
        f'  %s = sdy.all_slice [{{"x"}}, {{}}] %a out_sharding=<@mesh, {X}> : {M}\n'
        f"  %v = stablehlo.{made_by} %s {{{laid(X)}}} : {M}\n"
        f"  %c = stablehlo.constant dense<{start}> : tensor<f32>\n"
        f"  %r = stablehlo.reduce(%v init: %c) applies stablehlo.{kind} across dimensions = [0] {{{laid('[{}]')}}} : "
        f"({M}, tensor<f32>) -> tensor<6xf32>",
        "tensor<6xf32>",
    )


def _summed_behind(kind: str, source: str, dims: str, axes: str, target: str) -> str:
    """A matmul that sums along a dim that is padded, of one operand behind a collective."""
    whole = "[{}, {}]"
    return function(
        f"%a: {M}, %b: {M}",
        f"  %s = sdy.all_slice {source} %a out_sharding=<@mesh, {source}> : {M}\n"
        f"  %t = sdy.{kind} {dims} %s out_sharding=<@mesh, {target}> : {M}\n"
        f"  %u = sdy.all_slice {target} %b out_sharding=<@mesh, {target}> : {M}\n"
        f"  %v = stablehlo.dot_general %t, %u, contracting_dims = [0] x [0] {{{laid(whole)}}} : "
        f"({M}, {M}) -> tensor<6x6xf32>\n"
        f"  %r = sdy.all_reduce {axes} %v out_sharding=<@mesh, {whole}> : tensor<6x6xf32>",
        "tensor<6x6xf32>",
    )


PADDED = {
    "a value": _padded(f"  %v = stablehlo.negate %s {{{laid(X)}}} : {M}"),
    "a constant": _padded(
        f"  %c = stablehlo.constant {{{laid(X)}}} dense<2.0> : {M}\n  %v = stablehlo.add %s, %c {{{laid(X)}}} : {M}"
    ),
    "a constant of one complex number": function(
        "",
        f"  %c = stablehlo.constant {{{laid(X1)}}} dense<(1.0, 2.0)> : tensor<3xcomplex<f32>>\n"
        '  %r = sdy.all_gather [{"x"}] %c out_sharding=<@mesh, [{}]> : tensor<3xcomplex<f32>>',
        "tensor<3xcomplex<f32>>",
    ),
    "a constant of complex numbers": function(
        "",
        f"  %c = stablehlo.constant {{{laid(X)}}} dense<[[(1.0, 2.0)], [(3.0, 0.0)]]> : tensor<2x1xcomplex<f32>>\n"
        '  %r = sdy.all_gather [{"x"}, {}] %c out_sharding=<@mesh, [{}, {}]> : tensor<2x1xcomplex<f32>>',
        "tensor<2x1xcomplex<f32>>",
    ),
    "a constant of several numbers": function(
        "",
        f"  %c = stablehlo.constant {{{laid(X1)}}} dense<[1, 2, 3]> : tensor<3xi32>\n"
        '  %r = sdy.all_gather [{"x"}] %c out_sharding=<@mesh, [{}]> : tensor<3xi32>',
        "tensor<3xi32>",
    ),
    "a part of another dim": _padded(
        f"  %v = stablehlo.slice %s [0:10, 1:4] {{{laid(X)}}} : ({M}) -> tensor<10x3xf32>", "tensor<10x3xf32>"
    ),
    "a merged dim": _padded(
        f"  %v = stablehlo.reshape %s {{{laid(X_OF_3)}}} : ({M}) -> tensor<10x2x3xf32>",
        "tensor<10x2x3xf32>", '[{"x"}, {}, {}]',
    ),
    "a dim that is padded anyway": _padded(
        f"  %c = stablehlo.constant dense<1.0> : tensor<f32>\n"
        f"  %v = stablehlo.pad %s, %c, low = [0, 1], high = [1, 1], interior = [0, 0] {{{laid(X)}}} : "
        f"({M}, tensor<f32>) -> tensor<11x8xf32>", "tensor<11x8xf32>",
    ),
    "a dim that changes places": _padded(
        f'  %v = sdy.all_to_all [{{"x"}}: 0->1] %s out_sharding=<@mesh, [{{}}, {{"x"}}]> : {M}',
        M, '[{}, {"x"}]',
    ),
    "a loop": _padded(
        "  %t = stablehlo.constant dense<true> : tensor<i1>\n"
        f"  %v = stablehlo.while(%i = %s) : {M} attributes {{{laid(X)}}} cond {{ stablehlo.return %t : tensor<i1> }} "
        f"do {{ %n = stablehlo.negate %i {{{laid(X)}}} : {M}\n stablehlo.return %n : {M} }}"
    ),
    "a matmul": function(
        f"%a: {M}, %b: tensor<6x8xf32>",
        f'  %s = sdy.all_slice [{{}}, {{"x"}}] %a out_sharding=<@mesh, [{{}}, {{"x"}}]> : {M}\n'
        f"  %e = stablehlo.exponential %s {{{laid(SECOND)}}} : {M}\n"
        f'  %t = sdy.all_slice [{{"x"}}, {{}}] %b out_sharding=<@mesh, {X}> : tensor<6x8xf32>\n'
        f"  %v = stablehlo.dot_general %e, %t, contracting_dims = [1] x [0] {{{laid(WHOLE)}}} : "
        f"({M}, tensor<6x8xf32>) -> tensor<10x8xf32>\n"
        f'  %r = sdy.all_reduce {{"x"}} %v out_sharding=<@mesh, {WHOLE}> : tensor<10x8xf32>', "tensor<10x8xf32>",
    ),
    "a matmul of what was gathered along another dim": _summed_behind(
        "all_gather", XY, '[{}, {"y"}]', '{"x"}', X
    ),
    "a matmul of what was scattered": _summed_behind(
        "reduce_scatter", X, '[{"y"}, {}]', '{"x", "y"}', XY_FIRST
    ),
    "a matmul of what was permuted": _summed_behind("collective_permute", X, "", '{"x"}', X),
    "a sum": _reduced("add", "0.0"),
    "a product": _reduced("multiply", "1.0"),
    "a maximum": _reduced("maximum", "0xFF800000"),
    "a maximum from a number": _reduced("maximum", "-5.0", "exponential"),
    "a matmul of what was moved, along a dim that is not split": function(
        f"%a: {M}, %b: tensor<6x2xf32>",
        f'  %s = sdy.all_slice [{{"x"}}, {{}}] %a out_sharding=<@mesh, {X}> : {M}\n'
        f'  %t = sdy.collective_permute %s out_sharding=<@mesh, [{{"y", "x":(1)2}}, {{}}]> : {M}\n'
        f"  %u = stablehlo.dot_general %t, %b, contracting_dims = [1] x [0] {{{laid(Y_X)}}} : "
        f"({M}, tensor<6x2xf32>) -> tensor<10x2xf32>\n"
        f'  %r = sdy.all_gather [{{"y", "x":(1)2}}, {{}}] %u out_sharding=<@mesh, {WHOLE}> : tensor<10x2xf32>',
        "tensor<10x2xf32>",
    ),
    "rows by their numbers": function(
        f"%a: {M}, %i: tensor<3x2xi32>",
        f'  %s = sdy.all_slice [{{"x"}}, {{}}] %a out_sharding=<@mesh, {X}> : {M}\n'
        '  %u = "stablehlo.gather"(%s, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], '
        "start_index_map = [1, 0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : "
        f"({M}, tensor<3x2xi32>) -> tensor<3xf32>\n"
        '  %r = sdy.all_reduce {"x"} %u out_sharding=<@mesh, [{}]> : tensor<3xf32>',
        "tensor<3xf32>",
    ),
    "a slice that ends within the last part": _padded(
        f"  %v = stablehlo.slice %s [0:9, 0:6] {{{laid(X)}}} : ({M}) -> tensor<9x6xf32>", "tensor<9x6xf32>"
    ),
}  # fmt: skip
# Where Shardy pads something wrong, or ends in an invalid module.
PADDED_RIGHT = {
    "a sum that begins with a number": _reduced("add", "1.0"),
    "a product that begins with a number": _reduced("multiply", "3.0"),
    "a dynamic slice": _padded(
        "  %c = stablehlo.constant dense<0> : tensor<i32>\n"
        f"  %v = stablehlo.dynamic_slice %s, %c, %c, sizes = [10, 2] {{{laid(X)}}} : ({M}, tensor<i32>, tensor<i32>) "
        "-> tensor<10x2xf32>", "tensor<10x2xf32>",
    ),
    "a reshard": function(
        f"%a: {M}", f"  %s = sdy.reshard %a <@mesh, {X}> : {M}\n  %r = sdy.reshard %s <@mesh, {WHOLE}> : {M}", M
    ),
}  # fmt: skip
NOT_PADDED = {
    "a reversal": _padded(f"  %v = stablehlo.reverse %s, dims = [0] {{{laid(X)}}} : {M}"),
    "a call that nothing is known of": _padded(f"  %v = stablehlo.custom_call @foo(%s) {{{laid(X)}}} : ({M}) -> {M}"),
    "a dim that is merged": _padded(
        f"  %v = stablehlo.reshape %s {{{laid(X1)}}} : ({M}) -> tensor<60xf32>", "tensor<60xf32>", X1
    ),
    "random bits": function(
        "",
        "  %c = stablehlo.constant dense<1> : tensor<2xui64>\n"
        f"  %k, %v = stablehlo.rng_bit_generator %c, algorithm = THREE_FRY {{{laid('[{}]', X)}}} : (tensor<2xui64>) -> "
        "(tensor<2xui64>, tensor<10x6xui32>)\n"
        f'  %r = sdy.all_gather [{{"x"}}, {{}}] %v out_sharding=<@mesh, {WHOLE}> : tensor<10x6xui32>',
        "tensor<10x6xui32>",
    ),
}


def _gathered(first: str, columns: str = "%k, %n", column: int = 0) -> str:
    """Row by row, one column of each: ``first`` makes %k."""
    return function(
        f"{'%a: ' + N}, %n: tensor<8x8x1xi32>",
        f"{first}\n  %i = stablehlo.concatenate {columns}, dim = 2 : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> "
        "tensor<8x8x2xi32>\n"
        '  %r = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<'
        f"offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [{column}, {1 - column}], "
        "index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>, indices_are_sorted = false}> : "
        f"({N}, tensor<8x8x2xi32>) -> {N}",
        N,
    )


_IOTA = "  %k = stablehlo.iota dim = 0 : tensor<8x8x1xi32>"
BATCHED = {
    "rows counted": _gathered(_IOTA),
    "rows counted last": _gathered(_IOTA, "%n, %k", 1),
    "columns counted": _gathered(_IOTA.replace("= 0", "= 1")),
    "rows spread": _gathered(
        "  %o = stablehlo.iota dim = 0 : tensor<8xi32>\n"
        "  %k = stablehlo.broadcast_in_dim %o, dims = [0] : (tensor<8xi32>) -> tensor<8x8x1xi32>"
    ),
    "negative rows from the end": _gathered(
        "  %o = stablehlo.iota dim = 0 : tensor<8x8x1xi32>\n  %z = stablehlo.constant dense<0> : tensor<8x8x1xi32>\n"
        "  %e = stablehlo.constant dense<8> : tensor<8x8x1xi32>\n"
        "  %l = stablehlo.compare LT, %o, %z : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>\n"
        "  %p = stablehlo.add %o, %e : tensor<8x8x1xi32>\n"
        "  %k = stablehlo.select %l, %p, %o : tensor<8x8x1xi1>, tensor<8x8x1xi32>"
    ),
    "several columns": function(
        f"%a: tensor<8x8x8xf32>, %n: tensor<8x8x2xi32>, %u: {N}",
        f"{_IOTA}\n  %i = stablehlo.concatenate %k, %n, dim = 2 : (tensor<8x8x1xi32>, tensor<8x8x2xi32>) -> "
        'tensor<8x8x3xi32>\n  %r = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<'
        "inserted_window_dims = [0, 1, 2], scatter_dims_to_operand_dims = [0, 1, 2], index_vector_dim = 2>}> ({\n"
        "  ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n  stablehlo.return %q : tensor<f32> }) : "
        f"(tensor<8x8x8xf32>, tensor<8x8x3xi32>, {N}) -> tensor<8x8x8xf32>",
        "tensor<8x8x8xf32>",
    ),
}
# Columns that Shardy takes for numbers of rows, and are not: what it makes computes something else.
NOT_ROWS = {
    "columns spread": _gathered(
        "  %o = stablehlo.iota dim = 0 : tensor<8xi32>\n"
        "  %k = stablehlo.broadcast_in_dim %o, dims = [1] : (tensor<8xi32>) -> tensor<8x8x1xi32>"
    ),
    "all counted": _gathered(
        "  %o = stablehlo.iota dim = 0 : tensor<64xi32>\n"
        "  %k = stablehlo.reshape %o : (tensor<64xi32>) -> tensor<8x8x1xi32>"
    ),
    "one of two": _gathered(
        "  %o = stablehlo.iota dim = 0 : tensor<8x8x1xi32>\n  %z = stablehlo.constant dense<3> : tensor<8x8x1xi32>\n"
        "  %l = stablehlo.compare LT, %o, %z : (tensor<8x8x1xi32>, tensor<8x8x1xi32>) -> tensor<8x8x1xi1>\n"
        "  %k = stablehlo.select %l, %n, %o : tensor<8x8x1xi1>, tensor<8x8x1xi32>"
    ),
}


def _matmul(operand: str, sharding: str, before: str = "", after: str = "  %r = stablehlo.negate %d : " + N) -> str:
    return function(
        f"%a: {N} {{sdy.sharding = #sdy.sharding<@mesh, {X}>}}, %b: {N}",
        f"{before}\n  %d = stablehlo.dot_general {operand}, %b, contracting_dims = [1] x [0] {{{laid(sharding)}}} : "
        f"({N}, {N}) -> {N}\n{after}",
        N,
    )


_GATHER = f'  %g = sdy.all_gather [{{"x"}}, {{}}] %a out_sharding=<@mesh, {WHOLE}> : {N}'
_SCATTER = f'  %r = sdy.reduce_scatter [{{"x"}}, {{}}] %d out_sharding=<@mesh, {X}> : {N}'
MATMULS = {
    "gathered": _matmul("%g", WHOLE, _GATHER),
    "gathered for others, too": _matmul("%g", WHOLE, _GATHER, f"  %r = stablehlo.add %d, %g : {N}"),
    "scattered": _matmul("%a", WHOLE, after=_SCATTER),
    "scattered partial sums": _matmul("%a", '[{}, {}], unreduced={"x"}', after=_SCATTER),
    "scattered, and used": _matmul(
        "%a", WHOLE, after=_SCATTER.replace("%r", "%t") + f"\n  %r = stablehlo.add %d, %t : {N}"
    ),
    "gathered and scattered": _matmul("%g", WHOLE, _GATHER, _SCATTER),
}

SINGLE = {
    "one result": function(f"%a: {N}", f"  %r = stablehlo.negate %a {single()} : {N}", N),
    "two results": function(
        f"%a: {N}", f"  %r, %s = stablehlo.custom_call @f(%a) {single(2)} : ({N}) -> ({N}, tensor<i1>)", N
    ),
    "complex numbers": function(
        f"%a: {N}", f"  %r = stablehlo.complex %a, %a {single()} : tensor<8x8xcomplex<f32>>", "tensor<8x8xcomplex<f32>>"
    ),
    "nothing on it": function(f"%a: {N}", f"  %r = stablehlo.negate %a : {N}", N),
}


def _split(body: str, made: str = N, given: str = X) -> str:
    return function(f"%a: {N} {{sdy.sharding = #sdy.sharding<@mesh, {given}>}}", body, made)


MOVING = {
    "a slice": _split(
        f"  %r = stablehlo.slice %a [1:7, 0:8] {{{laid(X)}}} : ({N}) -> tensor<6x8xf32>", "tensor<6x8xf32>"
    ),
    "a slice along two dims": _split(
        f"  %r = stablehlo.slice %a [1:7, 1:5] {{{laid(XY)}}} : ({N}) -> tensor<6x4xf32>",
        "tensor<6x4xf32>", '[{"x"}, {"y"}]',
    ),
    "a slice of another dim": _split(
        f"  %r = stablehlo.slice %a [0:8, 1:5] {{{laid(X)}}} : ({N}) -> tensor<8x4xf32>", "tensor<8x4xf32>"
    ),
    "a reversal": _split(f"  %r = stablehlo.reverse %a, dims = [0] {{{laid(X)}}} : {N}"),
    "a pad": _split(
        "  %c = stablehlo.constant dense<1.0> : tensor<f32>\n"
        f"  %r = stablehlo.pad %a, %c, low = [1, 0], high = [3, 0], interior = [0, 0] {{{laid(X)}}} : "
        f"({N}, tensor<f32>) -> tensor<12x8xf32>", "tensor<12x8xf32>",
    ),
    "a window": _split(
        "  %c = stablehlo.constant dense<0.0> : tensor<f32>\n"
        '  %r = "stablehlo.reduce_window"(%a, %c) <{window_dimensions = array<i64: 3, 1>, padding = '
        "dense<[[1, 1], [0, 0]]> : tensor<2x2xi64>}> ({\n  ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n"
        "  %s = stablehlo.add %p, %q : tensor<f32>\n  stablehlo.return %s : tensor<f32> }) "
        f"{{{laid(X)}}} : ({N}, tensor<f32>) -> {N}"
    ),
    "an update of a part": function(
        f'%a: {N} {{sdy.sharding = #sdy.sharding<@mesh, {X}>}}, '
        f'%u: tensor<2x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {WHOLE}>}}, %i: tensor<i32>',
        f"  %r = stablehlo.dynamic_update_slice %a, %u, %i, %i {{{laid(X)}}} : "
        f"({N}, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> {N}", N,
    ),
    "an update of which nothing is said": _split(
        f"  %c = stablehlo.constant dense<1> : tensor<i32>\n  %u = stablehlo.constant dense<1.0> : tensor<2x8xf32>\n"
        f"  %r = stablehlo.dynamic_update_slice %a, %u, %c, %c {{{laid(X)}}} : "
        f"({N}, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> {N}"
    ),
    "an update within a part": _split(
        f"  %c = stablehlo.constant dense<2> : tensor<i32>\n  %u = stablehlo.constant dense<1.0> : tensor<2x8xf32>\n"
        f"  %r = stablehlo.dynamic_update_slice %a, %u, %c, %c {{{laid(X)}}} : "
        f"({N}, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> {N}"
    ),
    "an update of one element": _split(
        f"  %c = stablehlo.constant dense<1> : tensor<i32>\n  %u = stablehlo.constant dense<1.0> : tensor<1x8xf32>\n"
        f"  %r = stablehlo.dynamic_update_slice %a, %u, %c, %c {{{laid(X)}}} : "
        f"({N}, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> {N}"
    ),
    "a slice that ends within the last part": _split(
        f"  %r = stablehlo.slice %a [0:7, 0:8] {{{laid(X)}}} : ({N}) -> tensor<7x8xf32>", "tensor<7x8xf32>"
    ),
    "a reshape of dims that would not be padded alike": function(
        f'%a: tensor<3x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, {XY}>}}',
        f'  %r = stablehlo.reshape %a {{{laid(MERGED)}}} : (tensor<3x6xf32>) -> tensor<18xf32>',
        "tensor<18xf32>",
    ),
    "a reshape of dims of which those that move are whole": function(
        '%a: tensor<4x2x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}, {}]>}',
        f"  %r = stablehlo.reshape %a {{{laid(XY_FIRST)}}} : (tensor<4x2x8x6xf32>) -> tensor<96x4xf32>",
        "tensor<96x4xf32>",
    ),
    **{f"a convolution of {what}": function(
        f"%a: tensor<4x6x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, {given}>}}, %b: tensor<{kernel}xf32>",
        f"  %r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{stride = [1]}} "
        f"{{batch_group_count = {batches} : i64, feature_group_count = {features} : i64, {laid(made)}}} : "
        f"(tensor<4x6x4xf32>, tensor<{kernel}xf32>) -> tensor<{4 // batches}x4x4xf32>",
        f"tensor<{4 // batches}x4x4xf32>",
    ) for what, given, made, batches, features, kernel in (
        ("groups of features that are split", '[{}, {}, {"y"}]', '[{}, {}, {"y"}]', 1, 2, "3x2x4"),
        ("groups of features in split batches", '[{"y"}, {}, {}]', '[{"y"}, {}, {}]', 1, 2, "3x2x4"),
        ("groups of batches that are split", '[{"y"}, {}, {}]', '[{}, {}, {"y"}]', 2, 1, "3x4x4"),
    )},
    "nothing": _split(f"  %r = stablehlo.negate %a {{{laid(X)}}} : {N}"),
}  # fmt: skip
# Where Shardy makes a dim whole that need not be, and sums it as if it were not; or reshards to what there is.
STAYS = {
    "a convolution with one window takes no step; Shardy makes its dims whole, and sums them as split":
    function(
        '%a: tensor<2x2x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}, '
        '%b: tensor<2x12x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}',
        "  %v = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0]x[i, 0, o]->[b, f, 0], window = {stride = [2]} "
        f"{{batch_group_count = 1 : i64, feature_group_count = 1 : i64, {laid(WHOLE_3)}}} : "
        "(tensor<2x2x12xf32>, tensor<2x12x2xf32>) -> tensor<2x2x1xf32>\n"
        '  %r = sdy.all_reduce {"x"} %v out_sharding=<@mesh, [{}, {}, {}]> : tensor<2x2x1xf32>',
        "tensor<2x2x1xf32>",
    ),
    "where parts of an axis in two dims are one in another, Shardy reshards values to what they are": function(
        '%a: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x":(1)2}, {"x":(2)2}]>}',
        f'  %r = stablehlo.reshape %a {{{laid(TURNED)}}} : (tensor<4x8xf32>) -> tensor<32xf32>',
        "tensor<32xf32>",
    ),
}  # fmt: skip


def _permuted(given: str, between: str, params: str, made: str, kind: str = "tensor<8x16xf32>", more: str = "") -> str:
    """An argument whose axes are permuted before some of them go into another dim."""
    return function(
        f"%a: {kind} {{sdy.sharding = #sdy.sharding<@mesh, {given}>}}",
        f"  %p = sdy.collective_permute %a out_sharding=<@mesh, {between}> : {kind}\n"
        f"  %r = sdy.all_to_all [{params}] %p out_sharding=<@mesh, {made}> : {kind}{more}",
        kind,
    )


YX_BEHIND = '[{}, {"y", "x"}]'
OPTIMIZED = {
    "two axes": _permuted(YX_BEHIND, '[{}, {"x", "y"}]', '{"y"}: 1->0', '[{"y"}, {"x"}]'),
    "the larger one": _permuted('[{}, {"x", "y"}]', YX_BEHIND, '{"x"}: 1->0', '[{"x"}, {"y"}]'),
    "parts of an axis": _permuted(
        '[{}, {"x"}]', '[{}, {"x":(2)2, "x":(1)2}]', '{"x":(1)2}: 1->0', '[{"x":(1)2}, {"x":(2)2}]'
    ),
    "three parts": _permuted(
        '[{}, {"x", "y"}]', '[{}, {"y", "x":(2)2, "x":(1)2}]', '{"x":(1)2}: 1->0', '[{"x":(1)2}, {"y", "x":(2)2}]'
    ),
    "no place for it": _permuted('[{}, {"x", "y"}]', YX_BEHIND, '{"x":(2)2}: 1->0', '[{"x":(2)2}, {"y", "x":(1)2}]'),
    "the first dim": _permuted('[{"x", "y"}, {}]', '[{"y", "x"}, {}]', '{"x"}: 0->1', '[{"y"}, {"x"}]'),
    "a size that is not divided": _permuted(
        '[{}, {"x", "y"}]', YX_BEHIND, '{"x"}: 1->0', '[{"x"}, {"y"}]', "tensor<8x12xf32>"
    ),
    "used elsewhere, too": _permuted(
        '[{}, {"x", "y"}]', YX_BEHIND, '{"x"}: 1->0', '[{"x"}, {"y"}]',
        more='\n  %u = stablehlo.custom_call @keep(%p) {has_side_effect = true} : (tensor<8x16xf32>) -> tensor<ui8>',
    ),
    "what nobody uses": function(
        f"%a: {N}",
        f"  %u = stablehlo.negate %a : {N}\n  %c = stablehlo.constant dense<2.0> : {N}\n"
        f"  %r = stablehlo.add %a, %c : {N}", N,
    ),
}  # fmt: skip
