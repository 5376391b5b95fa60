"""Passes that prepare a module for a partitioner: Shardy's text where it is right, and the same numbers everywhere."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jaxlib.mlir")

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import context, parse_module
from tests.oracle.each_pass import COLLECTIVES, FULL, OPTIMIZE, Step, as_given, by_shardy, by_us, is_installed, reason
from tests.oracle.local_runs import CONVERT, RECIPE, differs, executed, kept_out, main_of, random_values, without_sdy
from tests.oracle.partitioner_modules import (
    BATCHED,
    MATMULS,
    MOVING,
    NOT_PADDED,
    NOT_ROWS,
    OPTIMIZED,
    PADDED,
    PADDED_RIGHT,
    SINGLE,
    STAYS,
    function,
    single,
)
from tests.oracle.random_modules import random_module
from tests.versions import PADDING, RESOLVING, older_than

PAD, RESOLVE = "sdy-pad-for-divisibility", "sdy-resolve-permutation-factors"
BATCH, MERGE = "sdy-explicit-gather-scatter-batching", "sdy-remove-all-gather-reduce-scatter-for-cmv1"
ON_ONE = "sdy-resolve-single-device-sharding"
CASES = [
    *((PAD, name, text) for name, text in PADDED.items()),
    *((BATCH, name, text) for name, text in BATCHED.items()),
    *((MERGE, name, text) for name, text in MATMULS.items()),
    *((OPTIMIZE, name, text) for name, text in OPTIMIZED.items()),
    *((ON_ONE, name, text) for name, text in SINGLE.items()),
    *((f"{RESOLVE}{{enable-halo-exchange=false}}", name, text) for name, text in MOVING.items()),
]


SINCE_RESOLVING = [
    what for what in MOVING if what.startswith(("an update", "a convolution of groups", "a reshape of dims"))
]


@pytest.mark.parametrize(("name", "what", "text"), CASES, ids=[f"{name} {what}" for name, what, _ in CASES])
def test_a_module_comes_out_as_from_shardy(name: str, what: str, text: str) -> None:
    if not is_installed(name):
        pytest.skip("the installed Shardy does not have this pass")
    if name == PAD and older_than(PADDING):
        pytest.skip(PADDING.what)
    if what in SINCE_RESOLVING and older_than(RESOLVING):
        pytest.skip(RESOLVING.what)
    assert by_us(text, name) == by_shardy(text, name)


def whole(text: str) -> str:
    """A module without anything of sdy: all of it is on one device."""
    module = without_sdy(text)
    with context():
        for op in list(walk(module.operation)):
            if op.name.startswith("sdy.") and len(op.operands) == len(op.results) == 1:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
    return str(module)


def computed(text: str, seed: int = 0) -> list[np.ndarray]:
    values = random_values(main_of(parse_module(text)).inputs, seed)
    return [parts[0] for parts in executed(whole(text), [[value] for value in values])]


@pytest.mark.skipif(older_than(RESOLVING), reason=RESOLVING.what)
@pytest.mark.parametrize("why", STAYS)
def test_an_op_that_needs_nothing_of_its_neighbours_stays(why: str) -> None:
    name, text = f"{RESOLVE}{{enable-halo-exchange=false}}", as_given(STAYS[why])
    ours, theirs = by_us(text, name), by_shardy(text, name)
    assert ours.text == text != theirs.text
    assert reason(Step(name, text, theirs), ours) == why


RUN = {
    **{name: (PAD, text) for name, text in {**PADDED, **PADDED_RIGHT}.items() if name != "a loop"},
    **{name: (BATCH, text) for name, text in {**BATCHED, **NOT_ROWS}.items()},
    **{name: (RESOLVE, text) for name, text in MOVING.items()},
}


@pytest.mark.parametrize("what", RUN)
def test_a_module_computes_the_same_behind_a_pass(what: str) -> None:
    name, text = RUN[what]
    after = by_us(text, name)
    assert not after.error
    for before, now in zip(computed(text), computed(after.text), strict=True):
        np.testing.assert_allclose(before, now, rtol=1e-6)


@pytest.mark.parametrize("what", [what for what in OPTIMIZED if not what.startswith(("used", "a size"))])
def test_devices_hold_the_same_behind_optimized_collectives(what: str) -> None:
    assert differs(OPTIMIZED[what], 0, (OPTIMIZE, CONVERT)) == ""


@pytest.mark.parametrize("what", NOT_ROWS)
def test_columns_that_do_not_count_rows_stay(what: str) -> None:
    assert "operand_batching_dims" not in by_us(NOT_ROWS[what], BATCH).text


REFUSED = {
    "a reversal": ("stablehlo.reverse at line 5:8", "along a padded dim its parts are not parts of the whole"),
    "a call that nothing is known of": (
        "stablehlo.custom_call at line 5:8",
        "it has no sharding rule, and may do anything with what is behind the end",
    ),
    "a dim that is merged": ("stablehlo.reshape at line 5:8", "its operands and results are padded differently"),
    "random bits": ("stablehlo.rng_bit_generator at line 5:12", "what it draws depends on the shape"),
}


@pytest.mark.parametrize("what", NOT_PADDED)
def test_what_would_notice_the_padding_is_refused(what: str) -> None:
    op, why = REFUSED[what]
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(NOT_PADDED[what]), [PAD])
    assert str(error.value) == (
        f"{op} cannot be run on dims that are padded to be divisible.\n"
        f"  why:  {why}\n"
        "  fix:  -sdy-resolve-permutation-factors -sdy-insert-explicit-reshards=enable-full-version=true "
        "-sdy-reshard-to-collectives before, or a sharding that divides its dims"
    )


def test_arguments_of_public_functions_must_be_divisible() -> None:
    split = '%a: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
    text = function(split, "  %r = stablehlo.negate %a : tensor<6xf32>", "tensor<6xf32>")
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(text), [PAD])
    assert str(error.value) == (
        "The argument 0 of the function at line 3:1 has a non-divisible sharding.\n"
        '  why:  it is tensor<6xf32>, split as #sdy.sharding<@mesh, [{"x"}]>: '
        "who calls the function has to know its shapes\n"
        "  fix:  -sdy-update-non-divisible-input-output-shardings"
    )


def test_an_op_on_two_devices_is_refused() -> None:
    kind = "tensor<8xf32>"
    both = single(2).replace("<@single, []>]", "<@other, []>]")
    call = f"  %r, %s = stablehlo.custom_call @f(%a) {both} : ({kind}) -> ({kind}, {kind})"
    text = "sdy.mesh @other = <[], device_ids=[2]>\n" + function(f"%a: {kind}", call, kind)
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(text), [ON_ONE])
    assert str(error.value) == (
        "stablehlo.custom_call at line 5:12 has conflicting single-device result shardings.\n"
        "  why:  its results are on the devices 2 and 3\n"
        "  fix:  an op for each device"
    )


def test_a_device_that_the_mesh_does_not_have_is_refused() -> None:
    text = function("%a: tensor<8xf32>", f"  %r = stablehlo.negate %a {single()} : tensor<8xf32>", "tensor<8xf32>")
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(text.replace("device_ids=[3]", "device_ids=[9]")), [ON_ONE])
    assert str(error.value) == (
        "stablehlo.negate at line 4:8 is on a device that @mesh does not have.\n"
        "  why:  it is on device 9, and the mesh has 8 devices; nobody would compute it\n"
        "  fix:  a device of the mesh"
    )


def test_devices_are_replicas_or_partitions() -> None:
    text = SINGLE["one result"]
    assert "replica_id" in by_us(text, f"{ON_ONE}{{replica-count=8}}").text
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(text), [f"{ON_ONE}{{replica-count=2 partition-count=4}}"])
    assert str(error.value) == (
        f"The pass {ON_ONE} does not run on 2 replicas of 4 partitions.\n"
        "  why:  a device is a replica or a partition, not both\n"
        f"  fix:  -{ON_ONE}=partition-count=8"
    )
    with pytest.raises(MeshwrightError, match="it is a whole number"):
        apply_passes(parse_module(text), [f"{ON_ONE}{{replica-count=many}}"])


PREPARED = ("sdy-propagation-pipeline", FULL, RESOLVE, COLLECTIVES, PAD)


def same_when_padded(seed: int) -> str:
    """How a random module computes something else behind all of this; what has no answer is left out."""
    text = kept_out(random_module(seed, RECIPE))
    try:
        before = computed(text, seed)
        padded = str(apply_passes(parse_module(text), PREPARED).module)
    except (MeshwrightError, RuntimeError):
        return "no answer"
    for number, (one, other) in enumerate(zip(before, computed(padded, seed), strict=True)):
        wide = "complex128" if one.dtype.kind == "c" else "float64"
        if one.shape != other.shape or not (
            np.allclose(one.astype(wide), other.astype(wide), rtol=2e-3, atol=1e-3, equal_nan=True)
        ):
            return f"result {number}"
    return "padded" if padded.count("stablehlo.pad") > text.count("stablehlo.pad") else "same"


def test_padded_modules_compute_the_same() -> None:
    found = {seed: same_when_padded(seed) for seed in range(30)}
    assert {seed: wrong for seed, wrong in found.items() if wrong.startswith("result")} == {}
    assert list(found.values()).count("padded") > 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_padded_modules_compute_the_same(first: int) -> None:
    found = {seed: same_when_padded(seed) for seed in range(first, first + 100)}
    assert {seed: wrong for seed, wrong in found.items() if wrong.startswith("result")} == {}
