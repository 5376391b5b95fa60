"""Overlap: rings of permutes and partial products compute what gathers, matmuls and reduce-scatters do."""

from __future__ import annotations

import pathlib
import random
import sys
from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.check import check
from meshwright.hardware import Topology, get
from meshwright.hardware.roofline import collective_matmul_threshold
from meshwright.pallas import ops
from meshwright.sharding import enumerate_shardings
from tests.interop import hlo_by_xla

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import load

MESH = mw.make_mesh((2, 4), ("d", "m"))
LINE = mw.make_mesh((4,), ("x",))
V5E = get("tpu v5e")


def on(*spec: Any, mesh: mw.Mesh = MESH) -> mw.NamedSharding:
    return mw.NamedSharding(mesh, P(*spec))


def numbers(shape: tuple[int, ...], seed: int = 0, dtype: Any = "float32") -> Any:
    values = np.random.default_rng(seed).integers(-4, 5, shape)
    return mnp.array(values.astype(np.float32) / 4).astype(dtype) if dtype != "int32" else mnp.array(values, "int32")


def placed(shape: tuple[int, ...], *spec: Any, mesh: mw.Mesh = MESH, seed: int = 0, dtype: Any = "float32") -> Any:
    return mw.device_put(numbers(shape, seed, dtype), on(*spec, mesh=mesh))


def received(compiled: Any) -> int:
    return sum(c.bytes_received_per_device * c.times for c in compiled.collectives)


def rings(compiled: Any) -> list[str]:
    """What became rings: kind, permutes, matmuls."""
    found = [c.overlap for c in compiled.collectives if c.overlap is not None and not c.overlap.why_not]
    return [f"{b.kind} {b.permutes} {b.matmuls}" for b in found]


def refusals(compiled: Any) -> list[str]:
    return [c.overlap.why_not for c in compiled.collectives if c.overlap is not None and c.overlap.why_not]


def assert_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        wide = np.complex128 if np.asarray(x).dtype.kind == "c" else np.float64
        a, b = (np.asarray(v).astype(wide) for v in (x, y))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(b).max(initial=0))))


def both(f: Any, *args: Any, overlap: Any = True, tolerance: float = 2e-5, **options: Any) -> Any:
    """A function compiled with overlap, once it was compared with itself without: numbers, types and bytes."""
    plain = mw.jit(f, **options).lower(*args).compile()
    ring = mw.jit(f, overlap=overlap, **options).lower(*args).compile()
    check(ring.program)
    assert received(ring) == received(plain), (ring.explain(), plain.explain())
    assert ring.out_shardings == plain.out_shardings
    assert_close(ring(*args), plain(*args), tolerance)
    return ring


# Products


def pairs(mesh: mw.Mesh) -> list[Any]:
    layouts = [mw.NamedSharding(mesh, s.spec) for s in enumerate_shardings(mesh, 2, compound=True)]
    return list(product(layouts, repeat=3))


def check_pairs(mesh: mw.Mesh, count: int | None, f: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    every = pairs(mesh)
    x, w = numbers((16, 24)), numbers((24, 32), 1)
    for left, right, out in every if count is None else random.Random(0).sample(every, count):
        compiled = both(f, mw.device_put(x, left), mw.device_put(w, right), out_shardings=out)
        found.update(kind.split()[0] for kind in rings(compiled))
    return found


@pytest.mark.parametrize("size", [4, 8])
def test_matmuls_in_all_layouts_on_one_axis(size):
    assert check_pairs(mw.make_mesh((size,), ("x",)), None, lambda x, w: x @ w).keys() == {
        "all_gather",
        "reduce_scatter",
    }


@pytest.mark.parametrize("count", [10, pytest.param(None, marks=pytest.mark.slow)])
def test_matmuls_in_layouts_on_two_axes(count):
    assert sum(check_pairs(MESH, count, lambda x, w: x @ w).values()) >= 5


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_gradients_of_matmuls_in_layouts(count):
    def loss(x: Any, w: Any) -> Any:
        return mnp.sum(mnp.tanh(x @ w))

    def slopes(x: Any, w: Any) -> Any:
        return mw.grad(loss, argnums=(0, 1))(x, w)[1]

    assert sum(check_pairs(MESH, count, slopes).values()) >= 5


DTYPES = {"float32": 2e-5, "bfloat16": 4e-2, "int32": 0.0, "complex64": 2e-5, "float8_e4m3fn": 0.4}


@st.composite
def contractions(draw: Any) -> tuple[Any, ...]:
    """An einsum of two operands with batch, free and contracted dims, and layouts for all."""
    names = {"free x": 1, "free y": 1, "sum": draw(st.integers(1, 2)), "batch": draw(st.integers(0, 1))}
    letters = iter("abcdefgh")
    dims = {role: "".join(next(letters) for _ in range(count)) for role, count in names.items()}
    every = "".join(dims.values())
    sizes = {letter: draw(st.sampled_from([4, 8])) for letter in every}
    operands = ["".join(draw(st.permutations(dims[own] + dims["sum"] + dims["batch"]))) for own in ("free x", "free y")]
    out = "".join(draw(st.permutations(dims["free x"] + dims["free y"] + dims["batch"])))

    def spec(letters: str) -> P:
        axes = draw(st.permutations(["d", "m", *[None] * (len(letters) - 1)]))
        return P(*axes[: len(letters)])

    specs = [spec(text) for text in (*operands, out)]
    return f"{operands[0]},{operands[1]}->{out}", [tuple(sizes[c] for c in o) for o in operands], specs


def check_contraction(contraction: tuple[Any, ...], dtype: str) -> None:
    text, shapes, specs = contraction
    x, y = (placed(shape, *spec, seed=n, dtype=dtype) for n, (shape, spec) in enumerate(zip(shapes, specs)))
    both(lambda x, y: mnp.einsum(text, x, y), x, y, out_shardings=on(*specs[2]), tolerance=DTYPES[dtype])


@settings(max_examples=8, deadline=None, derandomize=True)
@given(contractions(), st.sampled_from(sorted(DTYPES)))
def test_any_contraction(contraction, dtype):
    check_contraction(contraction, dtype)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(contractions(), st.sampled_from(sorted(DTYPES)))
def test_many_contractions(contraction, dtype):
    check_contraction(contraction, dtype)


def test_a_gather_of_short_floats_that_is_summed_over_is_rounded_once():
    x, w = placed((2048, 256), ("d", "m"), dtype="bfloat16"), placed((256, 16), "m", seed=1, dtype="bfloat16")
    f = mw.jit(lambda x, w: x @ w, overlap=True, out_shardings=on(("d", "m")))
    assert rings(f.lower(x, w).compile()) == ["all_gather 3 1"]
    exact = np.asarray(x).astype(np.float32) @ np.asarray(w).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(f(x, w)), exact.astype(np.asarray(x).dtype))


def random_matmuls(seed: int, mesh: mw.Mesh = MESH) -> Counter[str]:
    """A random program of matmuls, sums, transposes and tanh, and its gradient, in random layouts."""
    draw = random.Random(seed)
    layouts = enumerate_shardings(mesh, 2, compound=True)
    steps = [
        (draw.choice(["dot", "dot", "dot", "add", "tanh", "turn"]), draw.random(), draw.random()) for _ in range(9)
    ]

    def f(*values: Any) -> Any:
        found = list(values)
        for kind, left, right in steps:
            x, y = (found[-1 - int(place * min(5, len(found)))] for place in (left, right))
            found.append({"dot": x @ y * 0.25, "add": x + y, "tanh": mnp.tanh(x), "turn": x.T}[kind])
        return found[-3:]

    args = [mw.device_put(numbers((16, 16), n), draw.choice(layouts)) for n in range(3)]
    outs = [draw.choice(layouts) for _ in range(3)]
    made = Counter(rings(both(f, *args, out_shardings=outs, tolerance=2e-4)))

    def slopes(*values: Any) -> Any:
        return mw.grad(lambda *values: sum(mnp.sum(x * x) for x in f(*values)), argnums=(0, 1, 2))(*values)

    return made + Counter(rings(both(slopes, *args, out_shardings=tuple(outs), tolerance=2e-3)))


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 300), marks=pytest.mark.slow)], ids=["few", "many"])
def test_random_programs_of_matmuls(seeds):
    found = sum((random_matmuls(seed) for seed in seeds), Counter[str]())
    assert {ring.split()[0] for ring in found} == {"all_gather", "reduce_scatter"}


# What stands next to a collective


def test_one_ring_feeds_all_matmuls_of_what_it_gathers():
    x = placed((8, 16, 8), "d", "m")
    weights = [placed((8, 256), None, "m", seed=n) for n in range(3)]
    compiled = both(lambda x, *ws: [x @ w for w in ws], x, *weights, out_shardings=on("d", None, "m"))
    assert rings(compiled) == ["all_gather 3 3"]
    assert [(c.kind, c.times) for c in compiled.collectives] == [("permute", 3)]


def test_what_is_needed_again_is_collected_by_the_ring():
    """The backward pass multiplies by the same weights, which are sent once."""

    def loss(w: Any, v: Any, x: Any) -> Any:
        return mnp.sum(mnp.tanh(mnp.tanh(x @ w) @ v))

    w, v, x = (placed(shape, "x", mesh=LINE, seed=n) for n, shape in enumerate([(16, 32), (32, 16), (2048, 16)]))
    compiled = both(mw.grad(loss, argnums=(0, 1)), w, v, x, out_shardings=on("x", mesh=LINE), tolerance=2e-4)
    assert rings(compiled) == ["all_gather 3 1", "all_gather 3 1", "reduce_scatter 3 1", "reduce_scatter 3 1"]


def test_sums_of_matmuls_go_round_together():
    x, y = placed((64, 32), "d", "m"), placed((64, 64), "d", "m", seed=1)
    w, v = placed((32, 16), "m", seed=2), placed((64, 16), "m", seed=3)
    compiled = both(lambda x, y, w, v: x @ w + y @ v, x, y, w, v, out_shardings=on(("d", "m")))
    assert rings(compiled) == ["reduce_scatter 3 2"]


def test_axes_taken_together_are_one_ring():
    x, w = placed((64, 16), ("d", "m")), placed((16, 32), None, ("m", "d"), seed=1)
    compiled = both(lambda x, w: x @ w, x, w, out_shardings=on(("d", "m")))
    assert rings(compiled) == ["all_gather 7 1"]


def test_a_part_of_an_axis_is_a_ring():
    mesh = mw.make_mesh((8,), ("x",))
    x, w = placed((64, 16), "x", mesh=mesh), placed((16, 32), "x:(1)2", mesh=mesh, seed=1)
    compiled = both(lambda x, w: x @ w, x, w)
    assert rings(compiled) == ["all_gather 1 1"]
    assert [c.axes for c in compiled.collectives] == [("x:(1)2",)]
    assert why_not(lambda x, w: x @ w, x, w, overlap="tpu v5e") == [
        "n = 16 < 3078125, by which 2 chips compute as long as they send"
    ]


def test_loops_and_branches_have_rings_inside():
    ws, x = placed((3, 16, 16), None, "m"), placed((64, 16), ("d", "m"), seed=1)

    def scanned(ws: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (mnp.tanh(x @ w), None), x, ws)[0]

    compiled = both(scanned, ws, x)
    assert [(c.kind, c.times) for c in compiled.collectives if c.overlap] == [("permute", 9)]

    def repeated(ws: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 1, mnp.tanh(state[1] @ ws[state[0]])

        return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    assert rings(both(repeated, ws, x, in_shardings=(on(None, "m"), on(("d", "m")))))

    def either(ws: Any, x: Any) -> Any:
        return lax.cond(x[0, 0] > 0, lambda: x @ ws[0], lambda: x @ ws[1] * 2)

    both(either, ws, x)
    ws, x = placed((3, 64, 64), None, "x", mesh=LINE), placed((1024, 64), "x", mesh=LINE, seed=1)
    outs = on(None, "x", mesh=LINE)
    gradient = both(mw.grad(lambda ws, x: mnp.sum(scanned(ws, x))), ws, x, out_shardings=outs, tolerance=2e-4)
    assert {ring.split()[0] for ring in rings(gradient)} == {"all_gather", "reduce_scatter"}


def why_not(f: Any, *args: Any, overlap: Any = True, **options: Any) -> list[str]:
    compiled = both(f, *args, overlap=overlap, **options)
    assert not rings(compiled)
    return refusals(compiled)


def test_what_stays_says_why():
    x, w = placed((64, 16), ("d", "m")), placed((16, 32), "m", seed=1)
    assert why_not(lambda x: x * 2, x, out_shardings=on()) == ["no matmul reads it"]
    assert why_not(lambda w: mnp.tanh(w) * 2, w, out_shardings=on("d")) == ["no matmul reads it"]
    shared = placed((64, 16), "d")
    assert why_not(lambda x, w: x @ w, shared, w, out_shardings=on("d")) == [
        "all devices along m compute the same matmul of it"
    ]
    assert why_not(lambda x: x.sum(0), x, out_shardings=on(("d", "m"))) == [
        "what it sums is not a matmul, nor a sum of matmuls"
    ]
    rows = placed((8, 64), "x", mesh=LINE)
    assert why_not(lambda a: mnp.fft.fft(a, axis=0), rows, out_shardings=on(mesh=LINE)) == ["no matmul reads it"]


def by_hand(body: Any, *args: Any) -> Any:
    """A body for the devices of a line, on rows of its first argument and columns of the second."""
    f = mw.shard_map(body, mesh=LINE, in_specs=(P("x"), P(None, "x")), out_specs=P(None, "x"))
    return both(f, *args)


def test_gathers_written_by_hand():
    x, w = placed((16, 8), "x", mesh=LINE), placed((8, 32), None, "x", mesh=LINE, seed=1)

    def gathered(x: Any) -> Any:
        return lax.all_gather(x, "x", tiled=True)

    assert rings(by_hand(lambda x, w: gathered(x) @ w, x, w)) == ["all_gather 3 1"]

    def used_later(x: Any, w: Any) -> Any:
        whole = gathered(x)
        return mnp.tanh(whole @ w) + whole.sum() + mnp.tanh(whole @ (w * 2)) + (whole @ w) ** 2

    # The second matmul needs an operand that is not there yet, and reads what the first one collected.
    assert rings(by_hand(used_later, x, w)) == ["all_gather 3 1"]

    def used_before(x: Any, w: Any) -> Any:
        whole = gathered(x)
        return mnp.tanh(whole) @ w + whole @ w

    compiled = by_hand(used_before, x, w)
    assert refusals(compiled) == ["tanh reads it first, and no matmul"]
    assert [c.why for c in compiled.collectives] == ["the program asks for it"]

    def with_itself(x: Any, w: Any) -> Any:
        whole = gathered(x)
        return mnp.einsum("ab,ac->bc", whole, whole) @ w

    assert refusals(by_hand(with_itself, x, w)) == ["a matmul of it with itself reads it first"]


def test_of_two_collectives_next_to_a_matmul_the_larger_is_hidden():
    x, w = placed((64, 64), "d", "m"), placed((64, 64), "m", "d", seed=1)
    compiled = both(lambda x, w: x @ w, x, w, out_shardings=on("d", "m"))
    assert rings(compiled) == ["reduce_scatter 3 1"]
    assert refusals(compiled) == ["the matmul that reads it hides another collective"]


def test_the_program_is_as_long_on_many_devices():
    lengths = []
    for size in (4, 64, 1024):
        mesh = mw.make_mesh((size,), ("x",))
        x, w = (mw.ShapeDtypeStruct((4096, 4096), mnp.float32, sharding=on("x", mesh=mesh)) for _ in range(2))
        compiled = mw.jit(lambda x, w: x @ w, overlap=True, out_shardings=on("x", mesh=mesh)).lower(x, w).compile()
        assert rings(compiled) == [f"all_gather {size - 1} 1"]
        lengths.append(len(compiled.program.eqns))
    assert len(set(lengths)) == 1


# When it pays


def struct(shape: tuple[int, ...], *spec: Any, mesh: mw.Mesh = LINE, dtype: Any = "bfloat16") -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype, sharding=on(*spec, mesh=mesh))


def gathered(chips: int, n: int, overlap: Any = None, m: int = 8192, k: int = 8192, dim: int = 0) -> Any:
    """``[m, k] @ [k, n]``: the left side is gathered along a dim, of the right side each device has columns."""
    mesh = mw.make_mesh((chips,), ("x",))
    f = mw.jit(lambda x, w: x @ w, overlap=overlap, out_shardings=on(None, "x", mesh=mesh))
    x = struct((m, k), *([None] * dim), "x", mesh=mesh)
    return f.lower(x, struct((k, n), None, "x", mesh=mesh)).compile()


def scattered(chips: int, k: int, overlap: Any = None, m: int = 8192, n: int = 8192) -> Any:
    """``[m, k] @ [k, n]``, whose inner dim the devices share; each keeps rows of the sum."""
    mesh = mw.make_mesh((chips,), ("x",))
    f = mw.jit(lambda x, w: x @ w, overlap=overlap, out_shardings=on("x", mesh=mesh))
    return f.lower(struct((m, k), None, "x", mesh=mesh), struct((k, n), "x", mesh=mesh)).compile()


@pytest.mark.parametrize("chips", [2, 4, 8])
@pytest.mark.parametrize("example", [gathered, scattered])
def test_it_is_done_from_the_size_that_the_formula_says(example, chips):
    """Hidden if n > chips · flops/bw, of one link one way."""
    chip = V5E.replace(hop_seconds=0.0)
    formula = chips * chip.bf16_flops_per_s / chip.link_bytes_per_s
    assert collective_matmul_threshold(chips, chip, both_ways=False) == pytest.approx(formula)
    below = int(formula // chips) * chips
    for hardware in (Topology(chip, (chips,)), chip):
        small, large = example(chips, below, hardware), example(chips, below + chips, hardware)
        assert refusals(small) == [f"n = {below} < {formula:.0f}, by which {chips} chips compute as long as they send"]
        assert rings(large) == [f"{'all_gather' if example is gathered else 'reduce_scatter'} {chips - 1} 1"]


@pytest.mark.parametrize("example", [gathered, scattered])
def test_the_simulator_finds_the_same_crossover(example):
    """Devices wait for links until the size that the formula says, not beyond."""
    free = Topology(V5E.replace(link_bytes_per_s=1e18, hop_seconds=0.0), 4)
    formula = 4 * V5E.bf16_flops_per_s / V5E.link_bytes_per_s
    send = 8192 * 8192 * 2 / 4 / V5E.link_bytes_per_s
    for share in (0.6, 0.8, 0.93, 1.02, 1.2, 1.5):
        ring = example(4, int(share * formula) // 512 * 512, True)
        wait = ring.simulate("tpu v5e").seconds - ring.simulate(free).seconds
        assert wait > 0.02 * send if share < 1 else wait < 1e-3 * send


@pytest.mark.parametrize("example", [gathered, scattered])
@pytest.mark.parametrize("n", [20480, 65536])
def test_where_it_is_done_the_simulator_says_what_it_saves(example, n):
    apart, beside = example(4, n), example(4, n, "tpu v5e")
    saved = apart.simulate("tpu v5e").seconds - beside.simulate("tpu v5e").seconds
    assert saved > 0
    assert [c.overlap.saved_seconds for c in beside.collectives] == [pytest.approx(saved, rel=1e-3)]


def test_sums_in_memory_may_cost_more_than_is_hidden():
    compiled = gathered(4, 32768, "tpu v5e", dim=1)
    assert refusals(compiled) == [
        "n = 32768 hides it, but partial products need more of the memory's time than is saved"
    ]
    ring = gathered(4, 32768, True, dim=1)
    assert ring.simulate("tpu v5e").seconds > compiled.simulate("tpu v5e").seconds


def test_a_chip_without_a_rate_for_the_dtype_is_not_guessed_about():
    f = mw.jit(lambda x, w: x @ w, overlap="tpu v5e", out_shardings=on(None, "x", mesh=LINE))
    compiled = f.lower(struct((64, 64), "x", dtype="int32"), struct((64, 64), None, "x", dtype="int32")).compile()
    assert refusals(compiled) == ["tpu v5e has no rate for int32"]


# What is said


def test_explain_shows_a_ring_as_one_row():
    text = gathered(4, 24576, "tpu v5e").explain().splitlines()
    assert text[0] == "3 collectives: permute 3; 100663296 bytes received per device"
    assert text[1].startswith("a step takes ") and text[1].endswith(" 0 ns of that exposed")
    assert text[2].split() == ["time", "share", "kind", "axes", "bytes", "times", "line", "value"]
    where = text[3].split()[-3]
    assert where.startswith("test_overlap.py:")
    assert text[3].endswith(f"  all_gather as 3 permutes  x     101 MB  1      {where}  x bf16[8192,8192]")
    assert text[4] == "    it comes sharded as [8192@x, 8192]; the matmul needs operand 0 replicated"
    assert "    100% of it overlapped by compute, 0 ns exposed" in text
    assert "    under the matmul, saves 1.86 ms" in text


def test_explain_says_why_a_collective_stays():
    text = gathered(4, 8192, Topology("tpu v5e", 4)).explain().splitlines()
    assert "    not overlapped: n = 8192 < 17511, by which 4 chips compute as long as they send" in text


def test_nothing_is_done_or_said_unless_asked():
    for overlap in (None, False):
        compiled = gathered(4, 24576, overlap)
        assert [(c.kind, c.overlap) for c in compiled.collectives] == [("all_gather", None)]
        assert "overlapped" not in compiled.explain()


def message(call: Any) -> str:
    """An error's text but for its line."""
    with pytest.raises(mw.MeshwrightError) as error:
        call()
    return "\n".join(line for line in str(error.value).splitlines() if not line.startswith("  at:"))


def test_what_overlap_cannot_be():
    assert message(lambda: mw.jit(lambda x: x, overlap=7)) == (
        "Collectives cannot be overlapped for 7.\n"
        "  why:  they are put beside matmuls always (True), or where it pays: on a chip of that name, or a Topology\n"
        '  fix:  mw.jit(f, overlap="tpu v5e")'
    )
    assert message(lambda: mw.jit(lambda x: x, overlap="tpu v99")).startswith("No chip is called 'tpu v99'.")
    with pytest.raises(mw.MeshwrightError, match=r"at:   test_overlap\.py:\d+   mw\.jit\("):
        mw.jit(lambda x: x, overlap="tpu v99")
    assert message(lambda: mw.Overlap(product=3)) == (
        "Overlap is given product=3.\n"
        "  why:  a product is a function of a left side to gather, a right side and the name of an axis\n"
        "  fix:  product=pallas.ops.all_gather_matmul"
    )
    assert message(lambda: gathered(4, 64, Topology("tpu v5e", 4, mesh={"y": 4}))).startswith(
        "The program's mesh is x=4, the machine's y=4."
    )


# Kernels


PRODUCT = partial(ops.all_gather_matmul, tiles=(16, 16, 16))


def test_a_kernel_takes_the_place_of_a_ring():
    kernel = mw.Overlap(product=PRODUCT)
    x, w = placed((16, 16), "d", "m"), placed((16, 32), None, "m", seed=1)
    compiled = both(lambda x, w: x @ w, x, w, overlap=kernel, out_shardings=on("d", "m"))
    assert "pallas_call" in [eqn.op.name for eqn in compiled.program.eqns]
    assert [(c.kind, c.implicit) for c in compiled.collectives] == [("all_gather", True)]
    assert "    in one kernel with the matmul" in compiled.explain().splitlines()
    tall = placed((64, 16), ("d", "m"))
    compiled = both(lambda x, w: x @ w, tall, placed((16, 32), "m", seed=1), overlap=kernel)
    assert "pallas_call" in [eqn.op.name for eqn in compiled.program.eqns]
    four, three = placed((16, 2, 4, 4), ("d", "m")), placed((4, 4, 8), "m", seed=1)
    compiled = both(lambda x, w: mnp.einsum("abij,jik->kab", x, w), four, three, overlap=kernel)
    assert "pallas_call" in [eqn.op.name for eqn in compiled.program.eqns]


def test_where_a_kernel_cannot_a_ring_does():
    kernel = mw.Overlap(product=PRODUCT)
    x, w = placed((64, 16), ("d", "m")), placed((16, 32), None, ("m", "d"), seed=1)
    assert rings(both(lambda x, w: x @ w, x, w, overlap=kernel, out_shardings=on(("d", "m")))) == ["all_gather 7 1"]


def test_a_kernel_pays_where_sums_in_memory_do_not():
    product = partial(ops.all_gather_matmul, tiles=(1024, 512, 1024), fused=True)
    apart = gathered(4, 24576, m=2048, dim=1)
    kernel = gathered(4, 24576, mw.Overlap("tpu v5e", product), m=2048, dim=1)
    saved = apart.simulate("tpu v5e").seconds - mw.simulate(kernel, "tpu v5e").seconds
    assert kernel.collectives[0].overlap.saved_seconds == pytest.approx(saved, rel=0.1)
    assert rings(gathered(4, 24576, "tpu v5e", m=2048, dim=1)) == []


# Models and text


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"scan": True}, marks=pytest.mark.slow), {"scan": True, "checkpoint": True}],
    ids=["unrolled", "scanned", "recomputed"],
)
def test_a_transformer_whose_sequence_is_split_too(monkeypatch, options):
    module = load("transformer")
    block = module.block

    def split(x: Any, layer: Any, config: Any) -> Any:
        x = lax.with_sharding_constraint(x, on("d", "m"))
        return lax.with_sharding_constraint(block(x, layer, config), on("d", "m"))

    monkeypatch.setattr(module, "block", split)
    config = module.Config(dim=32, hidden=256, heads=8, kv_heads=4, **options)
    params = module.init(mw.random.key(0), config)
    specs = {name: P(None, None, "m") for name in ("wq", "wk", "wv", "gate", "up")}
    specs |= {"wo": P(None, "m"), "down": P(None, "m")}
    layers = {name: mw.device_put(w, on(*specs.get(name, P()))) for name, w in params["layers"].items()}
    params = {name: mw.device_put(w, on()) for name, w in params.items() if name != "layers"} | {"layers": layers}
    batch = mw.device_put(module.make_batch(mw.random.key(1), config, length=17), on("d"))
    shardings = mw.tree.map(lambda x: x.sharding, params)
    step = partial(module.train_step, config=config)
    compiled = both(step, params, batch, out_shardings=(None, shardings), tolerance=2e-4)
    found = Counter(ring.split()[0] for ring in rings(compiled))
    assert found["all_gather"] >= 5
    assert found["reduce_scatter"] >= 3


def blocks(x: mw.Array) -> list[Any]:
    return [np.asarray(shard.data) for shard in x.addressable_shards]


def test_xla_runs_rings_as_text():
    def loss(w: Any, x: Any) -> Any:
        return mnp.sum(mnp.tanh(x @ w))

    w, x = placed((64, 64), "x", mesh=LINE), placed((1024, 64), "x", mesh=LINE, seed=1)
    compiled = mw.jit(mw.grad(loss), overlap=True, out_shardings=on("x", mesh=LINE)).lower(w, x).compile()
    assert {ring.split()[0] for ring in rings(compiled)} == {"all_gather", "reduce_scatter"}
    text = compiled.as_text()
    assert hlo_by_xla.count_collectives(text)["collective-permute"] == len(rings(compiled))
    (found,) = hlo_by_xla.run(text, [blocks(w), blocks(x)])
    for part, other in zip(found, blocks(compiled(w, x)), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-4)
