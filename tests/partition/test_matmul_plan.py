"""Plans of split products: the seed's cases, steps that do what their layouts say, and who wins where."""

import re
from itertools import product
from math import prod

import numpy as np
import pytest

import meshwright as mw
from meshwright import hardware as hw
from meshwright.hardware.layouts import Layout
from meshwright.partition.matmul.problem import UNLIKE
from meshwright.partition.matmul.steps import HELD, conversions

MESH = {"x": 2, "y": 4}
SIZES = {"I": 4096, "J": 8192, "K": 4096}


@pytest.mark.parametrize(
    ("text", "case", "collectives"),
    [
        ("A[I_x,J] @ B[J,K] -> C[I_x,K]", 1, ()),
        ("A[I_x,J] @ B[J,K_y] -> C[I_x,K_y]", 1, ()),
        ("A[I_x,J] @ B[J,K_y] -> C[I,K]", 1, ("AllGather_xy(C)",)),
        ("A[I,J_x] @ B[J,K] -> C[I,K]", 2, ("AllGather_x(A)",)),
        ("A[I,J_x] @ B[J,K] -> C[I,K]", 2, ("AllReduce_x(C)",)),
        ("A[I,J_xy] @ B[J,K] -> C[I,K]", 2, ("AllGather_xy(A)",)),
        ("A[I,J_x] @ B[J_x,K] -> C[I,K]", 3, ("AllReduce_x(C)",)),
        ("A[I,J_x] @ B[J_x,K] -> C[I,K_x]", 3, ("ReduceScatter_x(C)",)),
        ("A[I,J_x] @ B[J_x,K] -> C[I,K]{U_x}", 3, ()),
        ("A[I_x,J] @ B[J,K_x] -> C[I,K_x]", 4, ("AllGather_x(A)",)),
        ("A[I_x,J] @ B[J,K_x] -> C[I_x,K]", 4, ("AllGather_x(B)",)),
        ("A[I_x,J_y] @ B[J_y,K] -> C[I_x,K]", 3, ("AllReduce_y(C)",)),
        ("A[I,J]{U_x} @ B[J,K] -> C[I,K]", 1, ("AllReduce_x(C)",)),
        ("A[I,J]{U_x} @ B[J,K] -> C[I_x,K]", 1, ("ReduceScatter_x(C)",)),
        ("A[I,J]{U_x} @ B[J,K]{U_x} -> C[I,K]{U_x}", 1, ("AllReduce_x(B)",)),
    ],
)
def test_the_cases_of_the_seed(text, case, collectives):
    plan = mw.plan_matmul(text, MESH, SIZES)
    assert plan.case == case
    assert plan.find(*collectives).steps is not None


@pytest.mark.parametrize(
    ("split", "whole"),
    [
        ("A[I_x,J] @ B[J,K_y] -> C[I,K]", "A[I,J] @ B[J,K_y] -> C[I,K]"),
        ("A[I,J_x] @ B[J_x,K] -> C[I,K]", "A[I,J] @ B[J,K] -> C[I,K]"),
        ("A[I,J_xy] @ B[J_xy,K] -> C[I,K]{U_xy}", "A[I,J_y] @ B[J_y,K] -> C[I,K]{U_y}"),
        ("A[I,J]{U_x} @ B[J_y,K] -> C[I_x,K_y]", "A[I,J] @ B[J_y,K] -> C[I,K_y]"),
    ],
)
@pytest.mark.parametrize("chip", ["tpu v5e", "h100"])
def test_an_axis_of_one_device_splits_and_sums_nothing(split, whole, chip):
    plans = [mw.plan_matmul(text, {"x": 1, "y": 4}, SIZES, topology=chip) for text in (split, whole)]
    ways = [[(one.name, one.seconds, one.flops) for one in plan.alternatives] for plan in plans]
    assert ways[0] == ways[1] != []


@pytest.mark.parametrize(
    "text",
    [
        "A[I_d,J_zx] @ B[J_dbx,K_ac]{U_z} -> C[I_bz,K]{U_yc}",
        "A[I,J]{U_bfa} @ B[J,K_xybc] -> C[I_z,K_dx]{U_bf}",
        "A[I_ea,J_x] @ B[J_bcxa,K_zy] -> C[I_de,K_cx]{U_zya}",
    ],
)
def test_sums_left_open_over_many_axes_are_found_though_not_every_way_is_tried(text):
    plan = mw.plan_matmul(text, dict.fromkeys("xyzabcdef", 2), SIZES)
    result = plan.problem.result
    assert plan.greedy
    assert plan.every
    for one in plan.every:
        reached = one.after[-1].after if one.after else result
        assert (reached.axes, sorted(reached.unreduced)) == (result.axes, sorted(result.unreduced))


def layouts(indices, mesh, unreduced=False):
    """Every layout of an array over a mesh, axes in every order."""
    places = [*indices, None, *(["U"] if unreduced else [])]
    for chosen in product(places, repeat=len(mesh)):
        given = dict(zip(mesh, chosen))
        for order in (list(mesh), list(mesh)[::-1]):
            axes = tuple(tuple(axis for axis in order if given[axis] == index) for index in indices)
            yield Layout("A", tuple(indices), axes, tuple(axis for axis in mesh if given[axis] == "U"))


def held(layout, sizes, mesh):
    """For each device, the elements it holds, as a mask."""
    out = {}
    for place in product(*map(range, mesh.values())):
        at = dict(zip(mesh, place))
        masks = []
        for index, axes in zip(layout.indices, layout.axes):
            block, parts = 0, 1
            for axis in axes:
                block, parts = block * mesh[axis] + at[axis], parts * mesh[axis]
            length = sizes[index] // parts
            mask = np.zeros(sizes[index], bool)
            mask[block * length : (block + 1) * length] = True
            masks.append(mask)
        out[place] = np.multiply.outer(*masks) if len(masks) == 2 else masks[0]
    return out


@pytest.mark.parametrize("mesh", [{"x": 2, "y": 2}, {"x": 2, "y": 3}])
def test_every_step_moves_what_its_collective_can(mesh):
    """From every layout to every other one: each device gets its next part from the devices of its group, and no
    others.
    """
    sizes, checked = {"I": 12, "J": 12}, 0
    for source, target in product(layouts("IJ", mesh, True), layouts("IJ", mesh)):
        for number, (steps, _) in enumerate(conversions(source, target, mesh)):
            now = source
            for step in steps:
                assert step.before == now
                now = step.after
                in_blocks = step.rounds == 1 and not any(HELD in one.used for one in (step.before, step.after))
                if in_blocks and step.blocks[0] == prod(mesh[axis] for axis in step.before.used):
                    check_step(step, sizes, mesh)
                    checked += 1
            assert now == target
            if not source.unreduced and number == 0:
                received = sum(step.rounds * step.received(sizes) for step in steps)
                specs = [[list(axes) for axes in one.axes] for one in (source, target)]
                assert received >= hw.missing_bytes((12, 12), *specs, mesh, "int8") - 1e-9
    assert checked > 1000


def check_step(step, sizes, mesh):
    before, after = held(step.before, sizes, mesh), held(step.after, sizes, mesh)
    for place in before:
        group = [
            other for other in before if all(a == b or axis in step.axes for axis, a, b in zip(mesh, place, other))
        ]
        union = np.logical_or.reduce([before[other] for other in group])
        assert not (after[place] & ~union).any(), f"{step} needs more than its group holds"
        if step.kind == "slice":
            assert not (after[place] & ~before[place]).any()
        if step.kind == "all_gather":
            assert (after[place] == union).all(), f"{step} gathers blocks that are not the minor ones"
        if step.kind == "permute":
            assert sum((before[other] == after[place]).all() for other in group) >= 1
        if step.kind in ("all_reduce", "reduce_scatter"):
            assert set(step.before.unreduced) - set(step.after.unreduced) == set(step.axes)
        if step.kind in ("all_to_all", "permute"):
            assert before[place].sum() == after[place].sum()


@pytest.mark.parametrize(
    ("text", "case", "words"),
    [
        ("A[I,J_x] @ B[J,K] -> C[I,K]", 2, "one operand alone is split along the contracted index"),
        ("A[I,J_x] @ B[J_x,K] -> C[I,K]", 3, "both operands are split alike along the contracted index"),
        ("A[I,J_x] @ B[J_y,K] -> C[I,K]", 3, UNLIKE),
        ("A[I,J_xy] @ B[J_yx,K] -> C[I,K]", 3, UNLIKE),
        ("A[I,J_xy] @ B[J_x,K] -> C[I,K]", 3, UNLIKE),
    ],
)
def test_both_operands_split_along_the_contracted_index_are_case_3_alike_or_not(text, case, words):
    plan = mw.plan_matmul(text, {"x": 2, "y": 2}, {"I": 64, "J": 64, "K": 64})
    assert (plan.case, plan.case_text) == (case, words) and f"case {case}: {words}\n" in str(plan)


@pytest.mark.parametrize("result", ["C[I,K]", "C[I_x,K]", "C[I,K_y]", "C[I_y,K]"])
def test_a_plan_receives_no_more_than_the_program_that_jit_makes(result):
    """Operands split differently along the contracted index: jit permutes blocks and sums in parts."""
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    specs = {"C[I,K]": mw.P(), "C[I_x,K]": mw.P("x"), "C[I,K_y]": mw.P(None, "y"), "C[I_y,K]": mw.P("y")}
    given = (mw.NamedSharding(mesh, mw.P(None, "x")), mw.NamedSharding(mesh, mw.P("y")))
    f = mw.jit(lambda a, b: a @ b, in_shardings=given, out_shardings=mw.NamedSharding(mesh, specs[result]))
    shape = mw.ShapeDtypeStruct((1024, 1024), "float32")
    compiled = f.lower(shape, shape).compile()
    received = sum(one.bytes_received_per_device for one in compiled.collectives)
    plan = mw.plan_matmul(f"A[I,J_x] @ B[J_y,K] -> {result}", mesh, dict.fromkeys("IJK", 1024), "f32")
    assert min(one.bytes_received_per_device for one in plan.every) <= received


def test_a_plan_permutes_blocks_and_sums_in_parts():
    plan = mw.plan_matmul("A[I,J_x] @ B[J_y,K] -> C[I,K]", {"x": 2, "y": 2}, dict.fromkeys("IJK", 65536))
    found = plan.find("Permute_xy(A)", "ReduceScatter_y(C)", "AllGather_xy(C)")
    assert [str(step) for step in found.steps] == [
        "Slice_y(A[I,J_x]) -> A[I_y,J_x]",
        "Permute_xy(A[I_y,J_x]) -> A[I_x,J_y]",
        "ReduceScatter_y(C[I_x,K]{U_y}) -> C[I_xy,K]",
        "AllGather_xy(C[I_xy,K]) -> C[I,K]",
    ]


def test_a_sum_cannot_be_taken_apart():
    whole, parts = Layout("A", ("I",), ((),)), Layout("A", ("I",), ((),), ("x",))
    assert conversions(whole, parts, MESH) == ()
    with pytest.raises(mw.MeshwrightError, match="No alternative has"):
        mw.plan_matmul("A[I,J_x] @ B[J_x,K] -> C[I,K]{U_x}", MESH, SIZES).find("AllReduce_x(C)")


@pytest.mark.parametrize(
    "text", ["A[I_x,J] @ B[J,K_y] -> C[I,K]", "A[I,J_x] @ B[J,K] -> C[I,K]", "A[I_x,J] @ B[J,K_x] -> C[I,K_x]"]
)
@pytest.mark.parametrize("chip", ["tpu v5e", "h100"])
def test_alternatives_are_ordered_and_none_is_beaten_in_everything(text, chip):
    plan = mw.plan_matmul(text, MESH, SIZES, topology=chip)
    times = [one.seconds for one in plan.every]
    assert times == sorted(times) and plan.best in plan.alternatives
    for one, other in product(plan.alternatives, repeat=2):
        better = (
            other.flops < one.flops,
            other.bandwidth_seconds < one.bandwidth_seconds,
            other.latency_seconds < one.latency_seconds,
        )
        assert not all(better)


def test_work_is_shared_or_repeated():
    sizes = {"B": 1024, "D": 4096, "F": 16384}
    plan = mw.plan_matmul(
        "A[B_X,D] @ W[D,F_Y] -> C[B_X,F_Y]", {"X": 4, "Y": 8, "Z": 4}, sizes, topology=hw.Topology("tpu v5p", (4, 8, 4))
    )
    once = 2 * 1024 * 4096 * 16384
    assert plan.find().total_flops == 4 * once
    assert min(one.total_flops for one in plan.every) == once


def test_who_wins_where():
    """A[B,D] W[D_x,F]: gathering weights for large batches, reducing outputs for small ones; they meet at B = D/2."""
    plan = mw.plan_matmul(
        "A[B,D] @ W[D_x,F] -> C[B,F]",
        {"x": 4},
        {"B": 64, "D": 8192, "F": 8192},
        topology=hw.Topology("tpu v5p", 4, wrap=True),
        mode="asymptotic",
    )
    reduce, gather = plan.find("AllReduce_x(C)"), plan.find("AllGather_x(W)")
    assert reduce.bandwidth_seconds < gather.bandwidth_seconds
    assert plan.crossover("B", reduce, gather, "bandwidth_seconds") == pytest.approx(4096)
    assert reduce.at(B=8192).bandwidth_seconds > gather.at(B=8192).bandwidth_seconds
    assert plan.crossover("F", reduce, gather, "bandwidth_seconds") is None
    regimes = plan.regimes
    assert [regime.low for regime in regimes] == sorted(regime.low for regime in regimes)
    for regime in regimes:
        scaled = {index: size * regime.low for index, size in plan.problem.sizes.items()}
        fastest = min(one.at(**scaled).seconds for one in plan.every)
        assert regime.alternative.at(**scaled).seconds == pytest.approx(fastest, rel=1e-12)


def test_batched_products_and_long_axis_names():
    mesh = {"data": 2, "model": 4}
    plan = mw.plan_matmul(
        "Q[B_data,T,H_model] · W[H_model,D] → O[B_data,T,D]", mesh, {"B": 8, "T": 128, "H": 512, "D": 512}
    )
    assert (plan.case, plan.cases) == (3, {"data": 1, "model": 3})
    assert plan.find("AllReduce_model(O)").total_flops == 2 * 8 * 128 * 512 * 512
    split = mw.plan_matmul(
        "Q[B_{data,model},I,J] @ K[B_{data,model},J,L] -> S[B_{data,model},I,L]", mesh, {"B": 8, "I": 4, "J": 4, "L": 4}
    )
    assert split.case == 1 and split.best.collectives == ()
    assert str(split.problem.left) == "Q[B_{data,model},I,J]"


def test_without_a_result_the_natural_one_is_meant():
    plan = mw.plan_matmul("A[I_x,J_y] @ B[J_y,K]", MESH, SIZES)
    assert str(plan.problem.result) == "C[I_x,K]{U_y}"
    assert plan.best.communication_seconds == 0


def test_a_mesh_object_and_a_dtype_object():
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    plan = mw.plan_matmul("A[I_x,J] @ B[J,K_y] -> C[I,K]", mesh, SIZES, np.dtype("float32"))
    assert plan.problem.dtype == "f32"
    assert plan.best.bytes_received_per_device == pytest.approx(7 / 8 * 4096 * 4096 * 4)


def test_a_matrix_times_its_own_transpose():
    plan = mw.plan_matmul("A[I,J_x] @ A[J_x,K] -> C[I,K]", MESH, {"I": 2048, "J": 8192, "K": 2048}, "bf16")
    assert plan.case == 3
    for one in plan.every:
        assert one.scaled_seconds(4.0) == pytest.approx(one.at(I=8192, J=32768, K=8192).seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("index", "measure", "message"),
    [
        ("Q", "seconds", "The product has no index 'Q'.\n  why:  there are I, J, K\n  fix:  'I'"),
        (3, "seconds", "The product has no index 3.\n  why:  there are I, J, K\n  fix:  'I'"),
        (
            "K",
            "foo",
            "There is no 'foo'.\n  why:  there are seconds, communication_seconds, bandwidth_seconds, latency_seconds, "
            "flops, total_flops, bytes_received_per_device\n  fix:  'seconds'",
        ),
    ],
)
def test_what_alternatives_cannot_be_compared_by(index, measure, message):
    plan = mw.plan_matmul("A[I,J_x] @ B[J,K] -> C[I,K]", MESH, SIZES)
    with pytest.raises(mw.MeshwrightError) as caught:
        plan.crossover(index, plan.best, plan.every[1], measure)
    assert re.sub(r"  at:.*\n", "", str(caught.value)) == message
