"""Bad input: one error each, whole."""

import linecache

import pytest

import meshwright as mw
from meshwright import hardware as hw
from meshwright.hardware import Topology

SIZES = {"I": 64, "J": 64, "K": 64}


def expect(function, what, why, fix):
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    line = function.__code__.co_firstlineno
    place = f"test_bad_input.py:{line}   {linecache.getline(__file__, line).strip()}"
    assert str(caught.value) == f"{what}\n  at:   {place}\n  why:  {why}\n  fix:  {fix}"


CHIPS = "there are tpu v2, tpu v3, tpu v4, tpu v5e, tpu v5p, tpu v6e, tpu 7x, a100, h100, h200, b200, gb200"


def test_an_unknown_chip_suggests_the_nearest():
    expect(lambda: hw.get("tpu v5f"), "No chip is called 'tpu v5f'.", CHIPS, "hardware.get('tpu v5p')")
    expect(lambda: hw.get("h1000"), "No chip is called 'h1000'.", CHIPS, "hardware.get('h100')")
    expect(lambda: Topology("trilium", 8), "No chip is called 'trilium'.", CHIPS, "hardware.get('tpu v6e')")


def test_an_unknown_number():
    expect(
        lambda: hw.get("h100", hbm_bytes_per_second=1),
        "A chip has no number 'hbm_bytes_per_second'.",
        "numbers are named with their unit, e.g. hbm_bytes_per_s",
        "hbm_bytes_per_s",
    )
    expect(
        lambda: hw.memory_seconds(1, "tpu v2"),
        "The data of tpu v2 has no hbm_bytes_per_s.",
        "none of the sources at hand gives it",
        "hardware.get('tpu v2', hbm_bytes_per_s=…)",
    )
    with pytest.raises(AttributeError, match="a chip has no number 'hbm'"):
        _ = hw.get("h100").hbm


def test_an_unknown_source():
    expect(
        lambda: hw.get("h100", prefer="book"),
        "No source is called 'book'.",
        "there are assumed, calculon, cloud docs, derived, fitted, jax, klockwood, measured, mlcommons, nccl, notes, "
        "nvidia, pytorch, scaling book, seed 001",
        "prefer='scaling book'",
    )


def test_a_rate_that_a_chip_does_not_have():
    expect(
        lambda: hw.matmul(8, 8, 8, "tpu 7x", "int8"),
        "tpu 7x has no rate for int8.",
        "the sources give bf16, fp8",
        "hardware.get('tpu 7x', int8_flops_per_s=…)",
    )
    expect(
        lambda: hw.get("tpu 7x").int8_flops_per_s,
        "The data of tpu 7x has no int8_flops_per_s.",
        "its source says so",
        "hardware.get('tpu 7x', int8_flops_per_s=…)",
    )
    expect(
        lambda: hw.matmul(8, 8, 8, "h100", mode="fast"),
        "There is no mode 'fast'.",
        "there are exact, asymptotic, calibrated",
        "'exact'",
    )
    expect(
        lambda: hw.item_bytes("bf15"),
        "No element type is called 'bf15'.",
        "there are bf16, f16, f32, tf32, f64, fp8, fp4, int4, int8, int16, int32, int64, bool",
        "dtype='bf16'",
    )


def test_impossible_topologies():
    expect(
        lambda: Topology("tpu v5e", (4, 4, 4)),
        "tpu v5e 4x4x4 has 3 axes.",
        "tpu v5e chips are joined in 2 dimensions (4 links each)",
        "Topology('tpu v5e', (16, 4))",
    )
    expect(
        lambda: Topology("tpu v5e", (32, 8)),
        "There is no tpu v5e 32x8.",
        "a pod of tpu v5e has 16x16 = 256 chips",
        "Topology('tpu v5e', (16, 16), slices=…) joins pods by the data-center network",
    )
    expect(
        lambda: Topology("tpu 7x", (64, 64, 64)),
        "There is no tpu 7x 64x64x64.",
        "a pod of tpu 7x has 9216 chips",
        "Topology('tpu 7x', 9216, slices=…) joins pods by the data-center network",
    )
    expect(
        lambda: Topology("h100", 12),
        "12 h100 do not fill their nodes.",
        "a node has 8 GPUs, and 12 is more than one node but no multiple of 8",
        "Topology('h100', 8)",
    )
    expect(
        lambda: Topology("tpu v5e", (4, 0)),
        "(4, 0) is not the shape of a machine.",
        "a shape is the number of chips along each axis, all positive",
        "Topology('tpu v5e', (4, 4))",
    )
    expect(
        lambda: Topology("h100", "eight"),
        "'eight' is not the shape of a machine.",
        "a shape is the number of chips along each axis, all positive",
        "Topology('h100', 8)",
    )
    expect(lambda: Topology("h100", 8, slices=0), "slices is 0.", "it must be a positive integer", "1")
    for size in (0, -2, 1.5, None, "4"):
        expect(
            lambda size=size: Topology("h100", 8, mesh={"x": size, "y": 4}),
            f"mesh axis 'x' is {size!r}.",
            "it must be a positive integer",
            "mesh={'x': 1, 'y': 4}",
        )


def test_a_chip_that_is_none_is_another_one_to_give():
    expect(lambda: mw.jit(abs, hardware="tpu v9"), "No chip is called 'tpu v9'.", CHIPS, "hardware='tpu v5p'")
    expect(lambda: mw.jit(abs, hardware="tpu v9 4x4"), "No chip is called 'tpu v9'.", CHIPS, "hardware='tpu v5p'")
    expect(
        lambda: Topology("tpu v5e", (4, 4), wrap=(True,)),
        "wrap has 1 entries for the 2 axes of tpu v5e 4x4.",
        "each axis is a ring or a line",
        "wrap=(True, True)",
    )


def test_meshes_that_do_not_fit():
    expect(
        lambda: Topology("tpu v5e", (4, 4), mesh={"x": 8, "y": 4}),
        "A mesh of x=8, y=4 does not fit on tpu v5e 4x4.",
        "the mesh has 32 devices, the machine 16 chips",
        "Topology('tpu v5e', (8, 4), mesh=…)",
    )
    expect(
        lambda: Topology("h100", 8, mesh={"x": 20}),
        "A mesh of x=20 does not fit on h100 8.",
        "the mesh has 20 devices, the machine 8 chips",
        "Topology('h100', 24, mesh=…)",
    )
    expect(
        lambda: Topology("tpu v5e", (4, 4), mesh={"x": 512}),
        "A mesh of x=512 does not fit on tpu v5e 4x4.",
        "the mesh has 512 devices, the machine 16 chips",
        "slices=32, or a larger shape",
    )
    expect(
        lambda: Topology("tpu v5e", (4, 4), mesh={"x": 3, "y": 4}),
        "A mesh of x=3, y=4 cannot be laid on tpu v5e 4x4.",
        "its sizes do not divide the lengths of the machine's axes",
        "mesh sizes whose products are lengths, e.g. mesh={'x': 4, 'y': 4}",
    )
    expect(
        lambda: Topology("tpu v5e", (4, 4), mesh={"x": 8}, mapping={"x": 0}),
        "Mesh axis 'x' of size 8 cannot lie on physical axes 0 of tpu v5e 4x4.",
        "these hold 4 chips, each used once",
        "leave mapping out, or name axes whose lengths multiply to the size",
    )
    expect(
        lambda: hw.for_mesh("h100", (2, 4)),
        "(2, 4) is not a mesh.",
        "a mesh names its axes and their sizes",
        '{"x": 2, "y": 4}',
    )


POD = Topology("tpu v5e", (4, 4), mesh={"x": 4, "y": 4})


def test_axes_that_are_not_there():
    expect(lambda: POD.spans("z"), "tpu v5e 4x4 has no axis 'z'.", "it has 'x', 'y', 0, 1", "axes='x'")
    expect(
        lambda: POD.spans(["x", 0]),
        "Axis 0 is named twice on tpu v5e 4x4.",
        "'x', 0 share links",
        "name each axis once",
    )
    expect(
        lambda: POD.hops((0, 0), (0, 4)),
        "tpu v5e 4x4 has no chip at (0, 4).",
        "coordinates go from (0, 0) to (3, 3)",
        "(0, 0)",
    )


def test_collectives_that_are_not_there():
    expect(
        lambda: hw.collective_seconds("all_scatter", 1, POD),
        "There is no collective 'all_scatter'.",
        "there are all_gather, reduce_scatter, all_reduce, all_to_all, permute, broadcast, reduce",
        "'all_gather'",
    )
    expect(
        lambda: hw.collective_seconds("all_gather", 1, POD, mode="fast"),
        "There is no mode 'fast'.",
        "there are exact, asymptotic, calibrated",
        "'exact'",
    )
    expect(
        lambda: hw.collective_seconds("all_gather", 1, POD, model="ring"),
        "There is no model 'ring'.",
        "there are links, seed 001, one-way ring, chain, idle axes, sharp, nccl",
        "'links'",
    )
    expect(
        lambda: hw.collective_seconds("all_gather", 1, POD, "x", idle="y"),
        "The model 'links' has no option 'idle' for all_gather.",
        "it has none",
        "model='idle axes'",
    )
    expect(
        lambda: hw.collective_seconds("all_gather", -1, POD),
        "A collective cannot move -1 bytes.",
        "sizes are positive",
        "0",
    )
    expect(
        lambda: hw.collective_seconds("permute", 1, POD, model="chain"),
        "The model 'chain' says nothing about permute.",
        "it is about all_reduce",
        "model='links'",
    )
    expect(
        lambda: hw.collective_seconds("all_reduce", 1, POD, model="nccl"),
        "The model 'nccl' says nothing about all_reduce on tpu v5e 4x4.",
        "it is about all_gather, reduce_scatter, all_reduce, broadcast and reduce on GPUs",
        "model='links'",
    )
    expect(
        lambda: hw.collective_seconds("all_reduce", 1, POD, model="sharp"),
        "Only switches can add on the way.",
        "tpu v5e 4x4 has no switches",
        "model='links'",
    )
    expect(
        lambda: hw.collective_seconds("all_reduce", 1, Topology("h100", 8), model="nccl", protocol="LL64"),
        "NCCL has no protocol 'LL64' here.",
        "there are LL, LL128, Simple",
        "protocol='LL'",
    )


def test_layouts_that_cannot_be():
    expect(
        lambda: hw.shard_bytes((8, 8), ["x", "x"], {"x": 2}),
        "['x', 'x'] does not split an array of rank 2 over a mesh of x.",
        "there is one entry per dim, and each axis of the mesh is used once at most",
        "['x', None]",
    )


def test_products_that_cannot_be_read():
    expect(
        lambda: mw.plan_matmul("A[I_x,J] @ B[J,K_z] -> C[I,K]", {"x": 2, "y": 2}, SIZES),
        "The mesh has no axis 'z'.\n    A[I_x,J] @ B[J,K_z] -> C[I,K]\n                     ^",
        "its axes are x, y",
        "_x",
    )
    expect(
        lambda: mw.plan_matmul("A[I_x,J_x] @ B[J,K] -> C[I,K]", {"x": 2, "y": 2}, SIZES),
        "A[I_x,J_x] uses mesh axis 'x' twice.\n    A[I_x,J_x] @ B[J,K] -> C[I,K]\n    ^",
        "an axis splits one index, or carries summands, but not both",
        "leave 'x' out of all but one",
    )
    expect(
        lambda: mw.plan_matmul("A[I_x,J] + B[J,K] -> C[I,K]", {"x": 2}, SIZES),
        "A product was expected.\n    A[I_x,J] + B[J,K] -> C[I,K]\n             ^",
        "operands are joined by @",
        '"A[I_x,J] @ B[J,K_y] -> C[I,K]"',
    )
    expect(
        lambda: mw.plan_matmul("A[I,J] @ B[J,K] -> C[I,L]", {"x": 2}, SIZES),
        "Index 'K' has nowhere to go.\n    A[I,J] @ B[J,K] -> C[I,L]\n                 ^",
        "one operand has it, and neither the other nor the result",
        '"A[I_x,J] @ B[J,K_y] -> C[I,K]"',
    )
    expect(
        lambda: mw.plan_matmul("A[I_x,J] @ B[J,K_x]", {"x": 2}, SIZES),
        "The result must be written out.\n    A[I_x,J] @ B[J,K_x]\n                       ^",
        "the natural one, C[I_x,K_x], is invalid",
        '"A[I_x,J] @ B[J,K_y] -> C[I,K]"',
    )
    expect(
        lambda: mw.plan_matmul("A[I]{U_y} @ B[K] -> C[I,K]{U_xy}", {"x": 2, "y": 2}, SIZES),
        "A[I]{U_y} @ B[K] cannot give C[I,K]{U_xy}.",
        "no index is summed over, and no operand is unreduced over x",
        '"A[I]{U_y} @ B[K] -> C[I,K]{U_y}"',
    )
    expect(
        lambda: mw.plan_matmul("A[I,J] @ B[J,K] -> C[I,K]", {"x": 2}, {"I": 8, "K": 8}),
        "No size for J.",
        "the indices are I, J, K",
        "sizes={'I': 8, 'J': 1024, 'K': 8}",
    )
    expect(
        lambda: mw.plan_matmul("A[I,J] @ B[J,K] -> C[I,K]", {"x": 64}, SIZES, topology=POD),
        "A mesh of x=64 does not fit on tpu v5e 4x4.",
        "the mesh has 64 devices, the machine 16 chips",
        "slices=4, or a larger shape",
    )


def test_a_train_step_that_does_not_fit():
    shape = hw.TransformerShape(layers=2, width=64, hidden=256, heads=4, head_dim=16, vocab=128)
    expect(
        lambda: hw.train_step(shape, Topology("a100", 8), batch=4, sequence=64, tensor=4),
        "A step on 4 chips is not one on a100 8.",
        "data·tensor·pipeline·context·expert is the number of chips",
        "data=2",
    )


V5E = Topology("tpu v5e", (4, 4))


def test_arguments_of_the_wrong_type():
    expect(lambda: hw.get(None), "No chip is called None.", CHIPS, "hardware.get('tpu 7x')")
    expect(
        lambda: Topology("tpu v5e", None),
        "None is not the shape of a machine.",
        "a shape is the number of chips along each axis, all positive",
        "Topology('tpu v5e', (4, 4))",
    )
    for bytes in ("a", float("nan"), float("inf"), None):
        expect(
            lambda: hw.collective_seconds("all_gather", bytes, V5E),  # noqa: B023
            f"A collective cannot move {bytes!r} bytes.",
            "sizes are positive",
            "0",
        )
    expect(
        lambda: hw.collective_seconds("all_gather", 1, "tpu v5e"),
        "'tpu v5e' is not a topology.",
        "what a collective costs depends on how the chips are joined",
        'hardware.Topology("tpu v5e", (4, 4))',
    )
    for kind in (None, ["all_gather"]):
        with pytest.raises(hw.HardwareError, match="There is no collective"):
            hw.collective_seconds(kind, 1, V5E)


def test_the_sizes_of_a_product_are_numbers():
    for size in ("a", -3, 0, float("nan"), None):
        expect(
            lambda: mw.plan_matmul("A[I,J] @ B[J,K]", {"x": 4}, {**SIZES, "J": size}),  # noqa: B023
            f"The size of J is {size!r}.",
            "it is a number of elements, at least 1",
            "sizes={'J': 1024, …}",
        )
    expect(
        lambda: mw.plan_matmul("A[I,J] @ B[J,K]", {"x": 4}, None),
        "None are not the sizes of a product.",
        "they are a dict with the size of each index",
        "sizes={'I': 1024, 'J': 1024, 'K': 1024}",
    )
    expect(
        lambda: mw.plan_matmul(None, {"x": 4}, SIZES),
        "None is not the text of an array.",
        "text is a str",
        '"A[I_x,J]"',
    )


def test_the_line_shown_is_the_users_not_the_standard_librarys():
    expect(
        lambda: mw.plan_matmul("A[I,J_x] @ B[J_x,K]", {"x": 4}, SIZES, "int8", "tpu 7x"),
        "tpu 7x has no rate for int8.",
        "the sources give bf16, fp8",
        "hardware.get('tpu 7x', int8_flops_per_s=…)",
    )
