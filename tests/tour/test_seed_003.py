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
