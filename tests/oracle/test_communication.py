"""Reshards and collectives that are put into modules, beside Shardy's own passes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import product

import pytest

pytest.importorskip("jaxlib.mlir")
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import context, parse_module
from meshwright.sharding import enumerate_shardings
from meshwright.sharding.axes import AxisRef, can_coexist, merged
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.oracle.random_modules import random_module
from tests.oracle.shardy import apply, newest_rules, pipeline_without_reshards, survived
from tests.versions import UNEVEN, older_than

Pair = tuple[TensorSharding, TensorSharding]
INSERT, FULL = "insert-explicit-reshards", "insert-explicit-reshards{enable-full-version=true}"


def random_sharding(mesh: Mesh, rank: int, rng: random.Random) -> TensorSharding:
    """Axes, some of them cut in two, on dims or on none."""
    pieces: list[AxisRef] = []
    for axis in mesh.axes:
        parts = [n for n in range(2, axis.size) if axis.size % n == 0]
        if parts and rng.random() < 0.4:
            n = rng.choice(parts)
            pieces += axis.split(n, axis.size // n)
        else:
            pieces.append(axis)
    rng.shuffle(pieces)
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for piece in pieces:
        dim = rng.randrange(-1, rank)
        if dim >= 0:
            dims[dim].append(piece)
    return TensorSharding(mesh, [merged(dim) for dim in dims])


def module_of(pairs: list[Pair], shape: Sequence[int] = ()) -> str:
    """A function for each pair, which reshards its argument from one sharding to the other.

    Without a shape, every dim can be split evenly.
    """
    mesh = pairs[0][0].mesh
    lines = [f"sdy.mesh @mesh = {mesh}"]
    for number, (source, target) in enumerate(pairs):
        t = f"tensor<{'x'.join(map(str, shape or [64 * mesh.size] * source.rank))}xf32>"
        lines += [
            f"func.func @f{number}(%a: {t} {{sdy.sharding = {source}}}) -> {t} {{",
            f"%0 = sdy.reshard %a {str(target).removeprefix('#sdy.sharding')} : {t}",
            f"return %0 : {t}",
            "}",
        ]
    return "\n".join(lines)


def by_us(text: str, *passes: str) -> str:
    return str(apply_passes(parse_module(text), [f"sdy-{name}" for name in passes]).module)


def random_pairs(spec: str, rank: int, count: int, seed: int = 0) -> list[Pair]:
    mesh, rng = Mesh.parse(spec), random.Random(seed)
    found = [(random_sharding(mesh, rank, rng), random_sharding(mesh, rank, rng)) for _ in range(count)]
    return [pair for pair in found if can_coexist(*([a for dim in s.dims for a in dim.axes] for s in pair))]


@pytest.mark.parametrize("spec", ['<["x"=2, "y"=2]>', '<["x"=2, "y"=4]>', '<["x"=2, "y"=3]>'])
def test_all_pairs_of_layouts_on_two_axes(spec: str) -> None:
    mesh = Mesh.parse(spec)
    found = [s.to_tensor_sharding(2) for s in enumerate_shardings(mesh, 2, compound=True)]
    text = module_of(list(product(found, found)))
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")


SPECS = [
    '<["x"=4, "y"=8]>', '<["x"=2, "y"=4, "z"=8]>', '<["a"=2, "b"=2, "c"=2, "d"=2, "e"=2]>', '<["x"=16, "y"=4]>',
    '<["x"=4, "y"=8, "z"=2, "w"=4]>', '<["x"=2, "y"=3]>',
]  # fmt: skip


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("spec", SPECS)
def test_random_pairs_of_layouts_with_parts_of_axes(spec: str, rank: int, count: int) -> None:
    text = module_of(random_pairs(spec, rank, count))
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")


@pytest.mark.skipif(older_than(UNEVEN), reason=UNEVEN.what)
@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "shape", [(64,), (5,), (64, 64), (6, 64), (12, 8), (2, 3), (4, 6, 8), (5, 12, 64), (64, 64, 64)]
)
@pytest.mark.parametrize("spec", [*SPECS, '<["x"=2, "y"=3, "z"=2]>'])
def test_dims_that_are_split_unevenly(spec: str, shape: tuple[int, ...], count: int) -> None:
    text = module_of(random_pairs(spec, len(shape), count), shape)
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("spec", ['<["x"=6, "y"=4]>', '<["x"=2, "y"=3, "z"=6]>', '<["x"=12, "y"=10]>'])
def test_collectives_arrive_where_sizes_do_not_divide_one_another(spec: str, rank: int) -> None:
    """Shardy stops half way in some of these, and its own verifier refuses others."""
    mesh, rng = Mesh.parse(spec), random.Random(1)
    pairs = [(random_sharding(mesh, rank, rng), random_sharding(mesh, rank, rng)) for _ in range(300)]
    module = parse_module(by_us(module_of(pairs, (64,) * rank), "reshard-to-collectives"))
    with context():
        assert module.operation.verify()  # each collective leads from the layout before it to the one it says
    functions = str(module).split("func.func")[1:]
    for (source, target), function in zip(pairs, functions, strict=True):
        layouts = re.findall(r"out_sharding=<@mesh, (.*)> :", function)
        last = layouts[-1] if layouts else re.search(r"#sdy.sharding<@mesh, (.*)>\}\)", function)[1]  # type: ignore[index]
        assert last == re.search(r"<@mesh, (.*)>", str(target))[1], f"{source} {target}"  # type: ignore[index]


DEVICES = """\
sdy.mesh @m = <["x"=2, "y"=2]>
sdy.mesh @permuted = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>
sdy.mesh @other = <["a"=4]>
"""
ACROSS = [
    ('<@m, [{"x"}, {}]>', '<@permuted, [{"x"}, {}]>'),
    ('<@m, [{"x"}, {}]>', '<@permuted, [{"x", "y"}, {}]>'),
    ('<@m, [{"x"}, {"y"}]>', '<@permuted, [{"x"}, {}]>'),
    ("<@m, [{}, {}]>", '<@permuted, [{"x"}, {}]>'),
    ('<@m, [{"x"}, {}]>', "<@permuted, [{}, {}]>"),
    ("<@m, [{}, {}]>", "<@other, [{}, {}]>"),
    ('<@m, [{"x"}, {}]>', '<@other, [{"a"}, {}]>'),
    ('<@m, [{"x"}, {}], unreduced={"y"}>', '<@m, [{}, {"x"}], unreduced={"y"}>'),
    ('<@m, [{"x", ?}, {?}], replicated={"y"}>', '<@m, [{}, {"x"}]>'),
]


@pytest.mark.parametrize(("source", "target"), ACROSS)
def test_reshards_between_meshes(source: str, target: str) -> None:
    text = f"""{DEVICES}func.func @f(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding{source}}}) -> tensor<8x8xf32> {{
  %0 = sdy.reshard %a {target} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}}"""
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")


@pytest.mark.skipif(older_than(UNEVEN), reason=UNEVEN.what)
def test_random_pairs_between_orders_of_devices() -> None:
    rng, lines = random.Random(5), []
    for number in range(200):
        ids = rng.sample(range(8), 8)
        meshes = [Mesh.parse(f'sdy.mesh @m{number} = <["x"=2, "y"=4]>')]
        meshes.append(Mesh.parse(f'sdy.mesh @o{number} = <["x"=2, "y"=4], device_ids={ids}>'))
        shape = [rng.choice([2, 3, 4, 6, 8, 16]) for _ in range(rng.choice([1, 2, 3]))]
        source, target = (random_sharding(mesh, len(shape), rng) for mesh in rng.sample(meshes, 2))
        t = f"tensor<{'x'.join(map(str, shape))}xf32>"
        lines += [
            *(f"sdy.mesh @{mesh.name} = {mesh}" for mesh in meshes),
            f"func.func @f{number}(%a: {t} {{sdy.sharding = {source}}}) -> {t} {{",
            f"%0 = sdy.reshard %a {str(target).removeprefix('#sdy.sharding')} : {t}",
            f"return %0 : {t}",
            "}",
        ]
    text = "\n".join(lines)
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")


def test_a_sum_that_is_not_owed_any_more_is_taken() -> None:
    """Shardy forgets it, unless its pass for explicit reshards was run before."""
    text = f"""{DEVICES}
func.func @f(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@m, [{{}}], unreduced={{"y"}}>}}) -> tensor<8xf32> {{
  %0 = sdy.reshard %a <@m, [{{"x"}}]> : tensor<8xf32>
  return %0 : tensor<8xf32>
}}"""
    assert by_us(text, "reshard-to-collectives") == apply(text, INSERT, "reshard-to-collectives")


# Reshards


def inserted(seed: int, insert: str) -> tuple[str, str] | None:
    """A random module after propagation with reshards put in, by us and by Shardy; None where it does not survive."""
    found = survived(pipeline_without_reshards, random_module(seed))
    before = None if found is None else newest_rules(found)
    theirs = None if before is None else survived(apply, before, insert)
    if before is None or theirs is None:
        return None
    return by_us(before, insert.replace("{", "=").replace("}", "")), theirs


@pytest.mark.parametrize("seed", range(40))
def test_reshards_that_are_put_in(seed: int) -> None:
    found = inserted(seed, INSERT)
    assert found is None or found[0] == found[1]


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13])
def test_all_reshards(seed: int) -> None:
    found = inserted(seed, FULL)
    assert found is None or found[0] == found[1]


@pytest.mark.slow
def test_many_modules() -> None:
    """Reshapes of dims that the axes do not fit, and a few others, are split otherwise in the full version."""
    for insert, most in ((INSERT, 3), (FULL, 40)):
        found = [inserted(seed, insert) for seed in range(1000, 2000)]
        assert sum(pair is not None and pair[0] != pair[1] for pair in found) <= most


@pytest.mark.parametrize("spec", ['<["a"=2, "b"=2, "c"=2, "d"=2]>', '<["a"=2, "b"=4, "c"=2, "d"=8]>'])
def test_what_three_tensors_of_one_shape_agree_on(spec: str) -> None:
    mesh, rng = Mesh.parse(spec), random.Random(0)
    t, lines = "tensor<16x16x16xf32>", [f"sdy.mesh @mesh = {mesh}"]
    for number in range(300):
        a, b, c = (random_sharding(mesh, 3, rng) for _ in range(3))
        made = f"{{sdy.sharding = #sdy.sharding_per_value<[{str(c).removeprefix('#sdy.sharding')}]>}}"
        lines += [
            f"func.func @f{number}(%a: {t} {{sdy.sharding = {a}}}, %b: {t} {{sdy.sharding = {b}}}) {{",
            f"  %0 = stablehlo.add %a, %b {made} : {t}",
            "  return",
            "}",
        ]
    text = "\n".join(lines)
    assert by_us(text, FULL.replace("{", "=").replace("}", "")) == apply(text, FULL)


@pytest.mark.parametrize("insert", [INSERT, FULL])
def test_a_named_computation_that_says_nothing_of_shardings(insert: str) -> None:
    text = f"""{DEVICES}
func.func @f(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}], unreduced={{"y"}}>}}) -> tensor<8xf32> {{
  %0 = sdy.named_computation<"g">(%a) (%b: tensor<8xf32>) {{
    %1 = stablehlo.add %b, %b : tensor<8xf32>
    sdy.return %1 : tensor<8xf32>
  }} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}}"""
    assert by_us(text, insert.replace("{", "=").replace("}", "")) == apply(text, insert)


def test_what_shardy_does_not_survive() -> None:
    """Operands split differently along what a result that owes a sum sums over: Shardy ends the process."""
    text = f"""{DEVICES}
func.func @f(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@m, [{{}}, {{"x"}}]>}}, %b: tensor<8x8xf32>) {{
  %0 = stablehlo.dot %a, %b {{sdy.sharding = #sdy.sharding_per_value<[<@m, [{{}}, {{}}], unreduced={{"x"}}>]>}} :
    (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return
}}"""
    with pytest.raises(MeshwrightError, match="are split differently where it sums over them"):
        by_us(text, INSERT)


@pytest.mark.parametrize("shape", ["16x12x4x4", "12x16x4x4", "8x6x4x4"])
@pytest.mark.parametrize("dims", ['{"z", "x"}, {"w":(1)3}', '{"x", "w"}, {"z"}', '{"z"}, {"x", "w"}'])
def test_axes_of_dims_that_must_be_whole_fill_one_batch_dim_after_the_other(shape: str, dims: str) -> None:
    text = f"""sdy.mesh @m = <["x"=2, "z"=6, "w"=6]>
func.func @f(%a: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %0 = stablehlo.cholesky %a, lower = true
    {{sdy.sharding = #sdy.sharding_per_value<[<@m, [{{}}, {{}}, {dims}]>]>}} : tensor<{shape}xf32>
  return %0 : tensor<{shape}xf32>
}}"""
    assert by_us(text, FULL.replace("{", "=").replace("}", "")) == apply(text, FULL)


def test_a_matmul_of_operands_that_one_axis_splits_along_dims_of_the_result() -> None:
    text = """sdy.mesh @m = <["x"=2, "y"=2]>
func.func @f(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>},
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {"x"}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}, {"x"}]>]>}
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""
    assert by_us(text, INSERT) == apply(text, INSERT)


def test_of_results_on_several_meshes_only_those_change_that_must_be_whole() -> None:
    text = """sdy.mesh @m = <["x"=2]>
sdy.mesh @o = <["x"=2]>
func.func @f(%a: tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>) {
  %0, %1 = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY
    {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}]>, <@o, [{}]>]>}
    : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
  return %0, %1 : tensor<2xui64>, tensor<4xui32>
}"""
    assert by_us(text, FULL.replace("{", "=").replace("}", "")) == apply(text, FULL)


BETWEEN_NAMES = {
    "a result": """-> (V {sdy.sharding = #sdy.sharding<@o, TO>}) {
  return %a : V
}""",
    "a call": """-> V {
  %0 = call @g(%a) : (V) -> V
  return %0 : V
}
func.func private @g(%a: V {sdy.sharding = #sdy.sharding<@o, TO>}) -> V {
  return %a : V
}""",
    "a loop": """-> V {
  %0 = stablehlo.while(%i = %a) : V attributes {sdy.sharding = #sdy.sharding_per_value<[<@o, TO>]>} cond {
    %t = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %n = stablehlo.negate %i {sdy.sharding = #sdy.sharding_per_value<[<@m, FROM>]>} : V
    stablehlo.return %n : V
  }
  return %0 : V
}""",
    "a manual computation": """-> V {
  %0 = sdy.manual_computation(%a) in_shardings=[<@o, TO>] out_shardings=[<@o, TO>] manual_axes={} (%i: V) {
    sdy.return %i : V
  } : (V) -> V
  return %0 : V
}""",
    "a concatenation": """-> V {
  %0 = stablehlo.concatenate %a, dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@o, TO>]>} : (V) -> V
  return %0 : V
}""",
}


@pytest.mark.parametrize("insert", [INSERT, FULL])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('[{"x", ?}]', '[{"x"}]'),
        ("[{}]", '[{"x"}]'),
        ('[{"x":(1)2}]', '[{}], unreduced={"x"}'),
        ("[{?}]", "[{}]"),
    ],
)
@pytest.mark.parametrize("what", BETWEEN_NAMES)
def test_meshes_that_differ_in_their_names_only(what: str, source: str, target: str, insert: str) -> None:
    text = """sdy.mesh @m = <["x"=4]>
sdy.mesh @o = <["x"=4]>
func.func @main(%a: V {sdy.sharding = #sdy.sharding<@m, FROM>}) """
    text += BETWEEN_NAMES[what]
    text = text.replace("FROM", source).replace("TO", target).replace("V", "tensor<8xf32>")
    assert by_us(text, insert.replace("{", "=").replace("}", "")) == apply(text, insert)


def test_a_reshard_of_a_whole_value_to_another_mesh_moves_nothing_and_is_forgotten() -> None:
    text = f"""{DEVICES}func.func @f(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = sdy.reshard %a <@permuted, [{{}}, {{}}]> : tensor<8x8xf32>
  %1 = sdy.reshard %0 <@m, [{{}}, {{"x"}}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}}"""
    assert by_us(text, "reshard-to-collectives") == apply(text, "reshard-to-collectives")
