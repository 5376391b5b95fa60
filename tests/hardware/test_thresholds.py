"""Thresholds of parallelism are where the seconds of matmuls and of collectives cross, in every precision."""

from itertools import product

import pytest

from meshwright import hardware as hw
from meshwright.errors import HardwareError
from meshwright.hardware import Topology

DTYPES = ("bf16", "int8", "fp8", "f32")
WIDTH, HIDDEN = 8192, 32768
WITHOUT = [("tpu v2", "int8"), ("tpu 7x", "int8")]
CHIPS = [(chip, dtype) for chip in hw.names() for dtype in DTYPES if (chip, dtype) not in WITHOUT]


def matmuls(tokens, topology, dtype, hidden=HIDDEN):
    """Seconds of both matmuls of the MLP on one chip: nothing else counts."""
    return 2 * hw.compute_seconds(2.0 * tokens * WIDTH * hidden, topology.chip, dtype)


def gather(kind, items, topology, axes, dtype, mode):
    bytes = items * hw.item_bytes(dtype)
    return hw.collective_cost(kind, bytes, topology, axes, mode).bandwidth_seconds


def machines(chip):
    if hw.get(chip).kind == "tpu":
        ring = Topology(chip, 8, wrap=True, mesh={"x": 8})
        return [(ring, "x")] + ([(Topology(chip, (4, 4, 4)), None)] if hw.get(chip).torus_dims == 3 else [])
    node = int(hw.get(chip).nvlink_domain)
    two = Topology(chip, 2 * node, mesh={"data": 2, "model": node})
    return [(Topology(chip, node, mesh={"x": node}), "x"), (two, "data"), (two, ("data", "model"))]


@pytest.mark.parametrize(("chip", "dtype"), CHIPS)
@pytest.mark.parametrize("mode", ["exact", "asymptotic"])
def test_data_parallel_tokens_are_where_weights_take_as_long_as_matmuls(chip, dtype, mode):
    for topology, axes in machines(chip):
        weights = gather("all_gather", 2 * WIDTH * HIDDEN, topology, axes, dtype, mode)
        crossing = hw.crossover(lambda b, t=topology: matmuls(b, t, dtype), lambda b, w=weights: w, 1, 1e9)
        assert hw.data_parallel_tokens(topology, axes, dtype, mode=mode) == pytest.approx(crossing, rel=1e-9)
        batch = hw.data_parallel_batch(topology, axes, dtype, mode=mode)
        assert batch == pytest.approx(topology.size * crossing)
        assert hw.data_parallel_chips(batch, topology, axes, dtype, mode=mode) == pytest.approx(topology.size)
        experts = hw.data_parallel_tokens(topology, axes, dtype, experts=64, active=4, mode=mode)
        assert experts == pytest.approx(16 * crossing)


@pytest.mark.parametrize(("chip", "dtype"), CHIPS)
@pytest.mark.parametrize("mode", ["exact", "asymptotic"])
def test_the_limit_of_tensor_parallelism_is_where_activations_take_as_long_as_matmuls(chip, dtype, mode):
    tokens = 4096
    for topology, axes in machines(chip):
        kinds = ("all_gather", "reduce_scatter")
        moved = sum(gather(kind, tokens * WIDTH, topology, axes, dtype, mode) for kind in kinds)
        # Over Y chips the matmuls take 1/Y of the time: at Y ways both take as long.
        crossing = hw.crossover(lambda y, t=topology: matmuls(tokens / y, t, dtype), lambda y, m=moved: m, 1e-3, 1e9)
        limit = hw.tensor_parallel_limit(HIDDEN, topology, axes, dtype, mode)
        assert limit == pytest.approx(crossing, rel=1e-9)


def test_a_mesh_axis_is_compute_bound_if_the_exact_limit_is_above_its_size():
    for nodes, model in product((1, 2, 4), (2, 4, 8, 16, 32)):
        count = 8 * nodes
        if count % model:
            continue
        t = Topology("h100", count, mesh={"data": count // model, "model": model})
        for hidden in (1024, 4096, 16384, 65536):
            compute = matmuls(1024 / model, t, "bf16", hidden)
            moved = sum(
                gather(kind, 1024 * WIDTH, t, "model", "bf16", "exact") for kind in ("all_gather", "reduce_scatter")
            )
            limit = hw.tensor_parallel_limit(hidden, t, "model", mode="exact")
            assert (limit > model) == (compute > moved)


def test_two_nodes_halve_what_many_need():
    """Data parallelism between two nodes gathers half of the weights: (X-1)/X."""
    for nodes in (2, 4, 32):
        t = Topology("h100", 8 * nodes, mesh={"data": nodes, "model": 8})
        exact, many = (hw.data_parallel_tokens(t, "data", mode=mode) for mode in ("exact", "asymptotic"))
        assert exact == pytest.approx(many * (nodes - 1) / nodes)
    assert hw.slice_tokens("tpu v5p", slices=4) == pytest.approx(0.75 * 73440)
    for slices in (2, 4):
        t = Topology("tpu v5p", (4, 4, 4), slices=slices)
        over = gather("all_gather", 2 * WIDTH * HIDDEN / 64, t, "dcn", "bf16", "exact")
        tokens = hw.crossover(lambda b, t=t: matmuls(b / 64, t, "bf16"), lambda b, o=over: o, 1, 1e9)
        assert hw.slice_tokens("tpu v5p", slices=slices) == pytest.approx(tokens)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("overlap", [True, False])
def test_mixed_tokens_are_where_the_best_split_crosses(dtype, overlap):
    chips, chip = 4096, hw.get("tpu v5p")

    def communication(batch):
        at_best = hw.best_data_parallelism(batch, HIDDEN, chips, 2, 1)
        around = [at_best * (1 + step / 1000) for step in range(-500, 501)]
        times = [
            hw.mixed_forward_seconds(batch, WIDTH, HIDDEN, chip, data=x, tensor=chips / x, overlap=overlap, dtype=dtype)
            for x in around
        ]
        assert min(times) == pytest.approx(times[500])
        return times[500]

    def compute(batch):
        return 4 * batch * WIDTH * HIDDEN / chips / chip.flops_per_s(dtype)

    crossing = hw.crossover(compute, communication, chips, chips * 1e6)
    assert hw.mixed_tokens(HIDDEN, chip, overlap=overlap, dtype=dtype) == pytest.approx(crossing / chips)


@pytest.mark.parametrize("chip", ["tpu v5e", "tpu v5p", "tpu v6e", "a100", "h100"])
def test_where_int8_doubles_the_rate_thresholds_are_those_of_bf16(chip):
    for threshold in (
        lambda dtype: hw.data_parallel_tokens(chip, dtype=dtype),
        lambda dtype: hw.tensor_parallel_limit(HIDDEN, chip, dtype=dtype),
        lambda dtype: hw.mixed_tokens(HIDDEN, chip, dtype=dtype),
    ):
        assert threshold("int8") == pytest.approx(threshold("bf16"), rel=2e-3)


@pytest.mark.parametrize(
    ("machine", "stride"),
    [(Topology("h100", 64), 8), (Topology("h100", 8), 1), (Topology("tpu v5e", 32), 1), (Topology("tpu v5e", 32), 8)],
)
def test_a_pipeline_waits_for_its_messages(machine, stride):
    """Played: a stage sends a microbatch on when it has come and the one before it is sent; nothing else takes time."""
    for stages, microbatches in product((2, 3, 7), (1, 2, 16)):
        ends = [divmod(chip, machine.shape[1]) if len(machine.shape) == 2 else (chip,) for chip in (0, stride)]
        one = hw.point_to_point(2 * 65536 * WIDTH / microbatches, machine, *ends).seconds
        here = [0.0] * microbatches
        for _ in range(stages - 1):
            free = 0.0
            for n, ready in enumerate(here):
                here[n] = free = max(ready, free) + one
        found = hw.pipeline_send_seconds(65536, WIDTH, stages, microbatches, machine, stride=stride)
        assert found == pytest.approx(here[-1])
    assert hw.pipeline_send_seconds(65536, WIDTH, 1, 4, machine) == 0


def test_thresholds_that_are_none():
    with pytest.raises(HardwareError) as error:
        hw.tensor_parallel_limit(HIDDEN, "h100", mode="exact")
    assert (error.value.what, error.value.why, error.value.fix) == (
        "An exact threshold of h100 needs the number of chips.",
        "a chip of N gathers (N-1)/N of the bytes",
        "Topology('h100', 16)",
    )
    with pytest.raises(HardwareError) as error:
        hw.data_parallel_tokens("h100", mode="calibrated")
    assert (error.value.what, error.value.why, error.value.fix) == (
        "A threshold has no mode 'calibrated'.",
        "peak rates are compared: in an asymptotic or in an exact count of bytes",
        "mode='asymptotic'",
    )
