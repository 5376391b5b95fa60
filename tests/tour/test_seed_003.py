"""Nested pmap: every listing of the document is read as printed, printed back, resolved and run."""

import warnings

import numpy as np
import pytest

from meshwright import dist
from meshwright.errors import TextError
from tests.tour import listings_003 as listings

MAP = dist.DeviceMap({1: [1, 3], 2: [2, 4]})
SIZES = {"B": 8, "F": 4, "H": 6, "C": 2}

# The slips of each listing: what is printed cannot be meant, and one reading fits the annotations.
WRONG_WEIGHT = "broadcast(x) has not the annotated type; read as broadcast(wA)"
INNER = ["x is not defined here; read as broadcast(xi)", "wA is not defined here; read as scatter(wAi)"]
CASE = "the op Matmul is written MatMul; read as MatMul"
SLIPS = {
    "SEQUENTIAL": [WRONG_WEIGHT],
    "DATA_PARALLEL": [WRONG_WEIGHT],
    "SUB_DEVICES": [WRONG_WEIGHT, *INNER, CASE],
    "DEVICE_MAPS": [WRONG_WEIGHT, *INNER, CASE],
    "DEVICE_ARITHMETIC": [WRONG_WEIGHT, *INNER, CASE],
    "PROPOSAL_DATA_PARALLEL": [],
    "PROPOSAL_NESTED": [
        *INNER,
        "wB is not defined here; read as scatter(wBi)",
        "ai is not defined here; read as ai_hp",
        "a bracket of a type is not closed; read as Tuple[…]",
    ],
}
DEVICES = {
    "SEQUENTIAL": {0, 1, 2},
    "DATA_PARALLEL": {0, 1, 2},
    "PROPOSAL_DATA_PARALLEL": {0, 1, 2},
}


def read(name: str) -> dist.Function:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dist.SlipWarning)
        return dist.parse(getattr(listings, name))


def inputs_of(fn: dist.Function, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        v.name: rng.standard_normal([n if isinstance(n, int) else SIZES[str(n)] for n in v.type.shape]).astype("f4")
        for v in fn.inputs
    }


def expected(x: dict[str, np.ndarray]) -> np.ndarray:
    found = x["x"] @ x["wA"]
    return found @ x["wB"] if "wB" in x else found


def devices_of(fn: dist.Function) -> set[int]:
    return {v.type.device.base for eqn in fn.eqns for v in eqn.outputs}


listing = pytest.mark.parametrize("name", SLIPS)


@listing
def test_a_listing_is_read_with_exactly_the_noted_slips(name):
    assert [slip.split(": ", 1)[1] for slip in read(name).slips] == SLIPS[name]


@listing
def test_a_listing_prints_back_to_itself_without_slips(name):
    fn = read(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = dist.parse(str(fn), strict=True)
    assert again == fn
    assert str(again) == str(fn)


@listing
def test_a_listing_resolves_to_the_devices_the_document_says(name):
    fn = read(name)
    assert devices_of(dist.resolve(fn, None if fn.device_map else MAP)) == DEVICES.get(name, {0, 1, 2, 3, 4})


# Who spreads over whom, and who multiplies; arithmetic makes pairs of neighbours.
SPREADS = {
    "SUB_DEVICES": {0: [1, 2], 1: [1, 3], 2: [2, 4]},
    "DEVICE_MAPS": {0: [1, 2], 1: [1, 3], 2: [2, 4]},
    "DEVICE_ARITHMETIC": {0: [1, 3], 1: [1, 2], 3: [3, 4]},
    "PROPOSAL_NESTED": {0: [1, 2], 1: [1, 3], 2: [2, 4]},
}


@pytest.mark.parametrize("name", SPREADS)
def test_each_replica_spreads_over_the_devices_below_its_own(name):
    fn = read(name)
    flat = dist.resolve(fn, None if fn.device_map else MAP)
    moves = [eqn for eqn in flat.eqns if eqn.op in ("scatter", "broadcast")]
    found = [(eqn.inputs[0].type.device.base, [v.type.device.base for v in eqn.outputs]) for eqn in moves]
    assert [devices for _, devices in found] == [SPREADS[name][source] for source, _ in found]
    assert {source for source, _ in found} == set(SPREADS[name])
    products = [eqn for eqn in flat.eqns if eqn.op == "MatMul"]
    per_device = 2 if name == "PROPOSAL_NESTED" else 1
    assert sorted(eqn.outputs[0].type.device.base for eqn in products) == sorted([1, 2, 3, 4] * per_device)
    assert all(v.type.device == eqn.outputs[0].type.device for eqn in products for v in eqn.inputs)


@listing
def test_a_listing_computes_the_matrix_product(name):
    fn = read(name)
    x = inputs_of(fn)
    found = dist.execute(fn, x, None if fn.device_map else MAP)
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-6)


@listing
def test_a_resolved_listing_is_a_program_too_and_computes_the_same(name):
    fn = read(name)
    x = inputs_of(fn)
    flat = dist.resolve(fn, MAP)
    assert dist.parse(str(flat), strict=True) == flat
    again = dist.execute(flat, list(x.values()))
    np.testing.assert_array_equal(again, dist.execute(fn, x, MAP))


def test_strict_reading_refuses_a_slip_with_the_line():
    with pytest.raises(TextError) as error:
        dist.parse(listings.SEQUENTIAL, strict=True)
    assert str(error.value) == (
        "A slip: broadcast(x) has not the annotated type.\n"
        "  at:   line 4\n"
        "            wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(x, devices=[1, 2])\n"
        "                                                                         ^\n"
        "  why:  the text is read strictly\n"
        "  fix:  broadcast(wA)"
    )


SEQUENTIAL_CHAIN = dist.parse("""
def matmul(wA: Tensor[(F, H), 0], wB: Tensor[(H, C), 0], x: Tensor[(B, F), 0]):
    a: Tensor[(B, H), 0] = MatMul(x, wA)
    y: Tensor[(B, C), 0] = MatMul(a, wB)
    return y
""")


def without_types(fn: dist.Function) -> dist.Function:
    """The program alone: what its annotations leave open (`?`) or say in symbols is compared by resolving it."""
    env: dict[dist.Value, dist.Value] = {}

    def bare(v: dist.Value) -> dist.Value:
        return env.setdefault(v, dist.Value(v.name))

    eqns = [
        dist.Eqn(
            eqn.op,
            tuple(bare(x) if isinstance(x, dist.Value) else x for x in eqn.inputs),
            tuple(bare(v) for v in eqn.outputs),
            eqn.attributes,
            without_types(eqn.body) if eqn.body is not None else None,
        )
        for eqn in fn.eqns
    ]
    return fn.with_(inputs=tuple(map(bare, fn.inputs)), eqns=tuple(eqns), outputs=tuple(map(bare, fn.outputs)))


def test_data_parallelism_of_the_sequential_program_is_the_listed_program():
    fn = dist.data_parallel(SEQUENTIAL_CHAIN.with_(device_map=MAP), batch={"x": 0}, device_keys=[])
    assert fn == read("PROPOSAL_DATA_PARALLEL")


def test_horizontal_parallelism_inside_is_the_listed_program():
    fn = dist.data_parallel(SEQUENTIAL_CHAIN.with_(device_map=MAP), batch={"x": 0}, device_keys=[])
    fn = dist.horizontal_parallel(fn, device_keys=["d"])
    assert without_types(fn) == without_types(read("PROPOSAL_NESTED"))
    resolved, listed = dist.resolve(fn), dist.resolve(read("PROPOSAL_NESTED"))
    assert resolved == listed


def test_a_column_alone_is_split_and_gathered_as_listed():
    fn = dist.parse("def matmul(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]): a = MatMul(x, wA) return a")
    fn = dist.data_parallel(fn.with_(device_map=MAP), batch={"x": 0})
    fn = dist.horizontal_parallel(fn, device_keys=["d"])
    listed = read("DEVICE_MAPS")
    assert without_types(fn) == without_types(listed)


def test_the_map_may_come_at_resolution_and_be_irregular():
    fn = dist.horizontal_parallel(dist.data_parallel(SEQUENTIAL_CHAIN, batch={"x": 0}), device_keys=["d"])
    x = inputs_of(fn)
    for device_map in (MAP, {1: [1, 3, 5], 2: [2, 4]}, {7: [1], 8: [2, 4, 6]}):
        found = dist.execute(fn, x, device_map)
        np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-5)
    assert devices_of(dist.resolve(fn, {1: [1, 3, 5], 2: [2, 4]}, H=6)) == {0, 1, 2, 3, 4, 5}


def test_an_outer_gather_takes_the_copy_on_the_replicas_own_device():
    flat = dist.resolve(read("PROPOSAL_NESTED"))
    gather = next(eqn for eqn in flat.eqns if eqn.op == "gather")
    assert [v.type.device.base for v in gather.inputs] == [1, 2]


def test_sub_devices_are_children_in_the_map_and_arithmetic_is_on_numbers():
    fn = read("SUB_DEVICES")
    flat = dist.resolve(fn, {1: [1, 9], 2: [2, 8]})
    assert devices_of(flat) == {0, 1, 2, 8, 9}
    arithmetic = dist.resolve(read("DEVICE_ARITHMETIC"))
    assert [v.type.device.base for eqn in arithmetic.eqns if eqn.op == "gather" for v in eqn.inputs] == [
        1,
        2,
        3,
        4,
        1,
        3,
    ]


@listing
def test_a_listing_is_a_mesh_program_too(name):
    fn = read(name)
    device_map = {1: [1, 2], 3: [3, 4]} if name == "DEVICE_ARITHMETIC" else None if fn.device_map else MAP
    x = inputs_of(fn)
    program = dist.to_mesh(fn, device_map)
    assert program.mesh.shape == {"d": 2, "dd": 2}
    np.testing.assert_allclose(program(**x), dist.execute(fn, x, device_map), rtol=1e-5, atol=1e-6)


def test_data_and_horizontal_parallelism_is_a_mesh_of_two_axes_and_one_sum():
    fn = read("PROPOSAL_NESTED")
    program = dist.to_mesh(fn, **SIZES)
    assert str(program.mesh) == '<["d"=2, "dd"=2], device_ids=[0, 2, 1, 3]>'
    assert [tuple(s.spec) for s in program.in_shardings] == [(None, "dd"), ("dd",), ("d",)]
    assert [tuple(s.spec) for s in program.out_shardings] == [("d",)]
    (eqn,) = program.program.eqns
    ops = [inner.op.name for inner in eqn.params["body"].eqns if inner.op.name != "pbroadcast"]
    assert ops == ["dot_general", "dot_general", "psum"]
