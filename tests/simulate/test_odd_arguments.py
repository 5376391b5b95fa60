"""Whatever is given for any argument of a public function about costs, the answer is a result or one error of ours.

Every argument in turn is replaced by what it cannot be. The error has a fix; of functions about transformers and
searches the fix is pasted, and so on until there is a result.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import math
import random
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright import hardware as hw
from meshwright.hardware import Topology, TransformerShape
from meshwright.simulate import transformer
from meshwright.simulate.transformer import StepDtypes, Strategy

ODD = [None, 0, -1, 1.5, "x", "", [], {}, math.nan, math.inf, 10**30, 10**400, 2**62, 1e-300, True, b"x", object]
ODD += [object(), [None], ["x"], [-1], {"x": None}]
SECONDS = 10  # that any of these may take
TORUS = Topology("tpu v5e", (4, 4), mesh={"x": 4, "y": 4})
NODE = Topology("h100", 8)
SMALL = TransformerShape(layers=2, width=64, hidden=128, heads=4, head_dim=16, vocab=64)
PROGRAM = mw.make_program(lambda x: mnp.tanh(x @ x))(mw.ShapeDtypeStruct((8, 8), "float32"))
STEP = {"shape": SMALL, "batch": 8, "sequence": 8}
TWO = {"strategy": Strategy(data=2)}
LAYOUT = {
    "data": 2, "tensor": 2, "pipeline": 2, "microbatches": 2, "schedule": "1f1b", "chunks": 1, "zero": 0,
    "recompute": "none", "sequence_parallel": False, "context": 1, "expert": 1, "flash": True,
}  # fmt: skip
SPACE = {
    "microbatches": [1], "schedules": ["1f1b"], "chunks": [2], "zero": [0], "recompute": [False], "context": [1],
    "expert": [1], "sequence_parallel": [False],
}  # fmt: skip
MODEL = {"layers": 2, "width": 64, "hidden": 128, "heads": 4, "head_dim": 16, "vocab": 64, "kv_heads": 2, "gated": True}
MLP = dist.MLP(4, 8, 8)

# Of each function a call with every argument.
OF_STEPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Strategy": (Strategy, {**LAYOUT, "fsdp": False}),
    "StepDtypes": (StepDtypes, {"parameters": "bfloat16", "master": "float32", "moments": None, "gradients": None}),
    "TransformerShape": (TransformerShape, {**MODEL, "tied": False, "experts": 2, "experts_per_token": 1}),
    "train_step": (hw.train_step, {**STEP, **LAYOUT, "machine": NODE, "dtype": "bf16", "mode": "exact"}),
    "train": (
        transformer.train,
        {**STEP, **TWO, "hardware": NODE, "dtype": "bf16", "dtypes": None, "mode": "exact", "overlap": "loops"},
    ),
    "train_memory": (transformer.train_memory, {**STEP, **TWO, "hardware": NODE, "dtype": "bf16", "dtypes": None}),
    "train_program": (transformer.train_program, {**STEP, **TWO, "dtype": "bf16", "optimizer": True, "dtypes": None}),
    "forward_program": (transformer.forward_program, {**STEP, **TWO, "dtype": "bf16"}),
    "decode_program": (
        transformer.decode_program,
        {"shape": SMALL, "tensor": 2, "batch": 8, "context": 8, "dtype": "bf16", "cache_dtype": "int8"},
    ),
    "decode": (
        transformer.decode,
        {
            "shape": SMALL, "hardware": NODE, "batch": 8, "context": 8, "tensor": 2, "dtype": "bf16",
            "cache_dtype": "int8", "mode": "exact", "overlap": "loops",
        },
    ),
    "prefill_program": (
        transformer.prefill_program,
        {"shape": SMALL, "tensor": 2, "batch": 8, "sequence": 8, "dtype": "bf16", "cache_dtype": "int8"},
    ),
    "prefill": (
        transformer.prefill,
        {
            "shape": SMALL, "hardware": NODE, "batch": 8, "sequence": 8, "tensor": 2, "dtype": "bf16",
            "cache_dtype": "int8", "mode": "exact", "overlap": "loops",
        },
    ),
    "serving_search": (
        dist.serving_search,
        {
            "shape": SMALL, "topology": NODE, "step": "decode", "batch": 8, "context": [8], "tensor": 2,
            "seconds_per_token": 1.0, "seconds_to_first_token": 1.0, "memory_bytes": 1e9, "dtype": "bf16",
            "cache_dtype": "int8", "mode": "exact",
        },
    ),
    "compare": (transformer.compare, {**STEP, "hardware": NODE, "strategies": [Strategy(data=2)], "mode": "exact"}),
    "parameter_count": (transformer.parameter_count, {"shape": SMALL}),
    "flops_per_token": (transformer.flops_per_token, {"shape": SMALL, "sequence": 8, "train": True, "remat": False}),
    "kv_cache_bytes": (transformer.kv_cache_bytes, {"shape": SMALL, "context": 8, "batch": 2, "dtype": "int8"}),
    "tokens": (
        transformer.data_parallel_tokens,
        {"shape": SMALL, "hardware": "h100", "data": 2, "fsdp": True, "tensor": 1, "sequence": 512},
    ),
    "tensor_parallel_ways": (transformer.tensor_parallel_ways, {**STEP, "hardware": "h100", "most": 2}),
    "microbatches_for": (
        transformer.microbatches_for,
        {"shape": SMALL, "hardware": "h100", "pipeline": 2, "sequence": 8, "idle": 0.5},
    ),
    "estimate": (
        dist.estimate,
        {
            "model": SMALL, **TWO, "batch": 8, "costs": dist.OnTopology(NODE), "itemsize": 2, "state_bytes": 12,
            "memory_bytes": 1e9, "sequence": 8,
        },
    ),
    "estimate of layers": (
        dist.estimate,
        {"model": MLP, **TWO, "batch": 8, "costs": dist.DistIR(), "itemsize": 4, "state_bytes": 0, "memory_bytes": 1e9},
    ),
    "strategies": (
        lambda **given: list(dist.strategies(**given)),
        {"model": MLP, "devices": 4, "batch": 8, "sequence": None, **SPACE},
    ),
    "grid_search": (
        dist.grid_search,
        {
            "model": MLP, "topology": NODE, "batch": 8, "devices": 4, "costs": None, "itemsize": 2, "mode": "exact",
            "sequence": None, "state_bytes": None, "memory_bytes": None, "executor": None, "workers": None,
            "prune": False, "progress": None, **SPACE,
        },
    ),
    "GPT": (dist.GPT, {"layers": 2, "dim": 8, "heads": 2, "hidden": 16, "vocab": 8, "length": 8}),
    "MLP": (dist.MLP, {"layers": 2, "dim": 8, "batch": 8}),
}  # fmt: skip
GROUP = {"topology": TORUS, "axes": "x", "mode": "exact"}
ON = {"machine": TORUS, "dtype": "bf16"}
BIG = 1000.0
OF_HARDWARE: dict[str, dict[str, Any]] = {
    "activation_bytes": {"tokens": BIG, "layers": 2, "width": 8, "saved": 2, "dtype": "bf16"},
    "attention": {
        "queries": 8, "keys": 8, **ON, "heads": 2, "kv_heads": 1, "head_dim": 16, "batch": 2, "causal": True,
        "fused": False, "mode": "exact",
    },
    "attention_critical_tokens": {**ON, "intensity": 1.0},
    "best_data_parallelism": {"batch": BIG, "hidden": 64, "chips": 8, "data_axes": 2, "tensor_axes": 1},
    "bus_bytes_per_s": {"kind": "all_reduce", "bytes": BIG, "group": 8, "seconds": 1.0},
    "calibrate": {"raw": {}},
    "collective_bytes_per_s": {"kind": "all_reduce", **GROUP, "model": "links"},
    "collective_cost": {
        "kind": "all_reduce", "bytes": BIG, "topology": TORUS, "mode": "exact", "model": "links", "members": (0, 1),
        "concurrent": (),
    },
    "collective_matmul_threshold": {"chips": 4, **ON, "axes": 1, "both_ways": True},
    "collective_seconds": {"kind": "all_reduce", "bytes": BIG, **GROUP, "model": "links"},
    "compute_seconds": {"flops": BIG, **ON, "utilization": 1.0},
    "copies": {"spec": ("x", None), "mesh": {"x": 4, "y": 4}},
    "critical_batch": {**ON, "weight_dtype": "int8", "memory": "hbm", "experts": 4, "active": 2},
    "crossover": {"first": lambda x: x, "second": lambda x: 2 * x - 1, "low": 1.0, "high": 10.0},
    "data_parallel_batch": {**GROUP, "dtype": "bf16"},
    "data_parallel_chips": {"batch": BIG, **ON, "axes": "x", "mode": "exact"},
    "data_parallel_tokens": {**ON, "axes": "x", "experts": 4, "active": 2, "mode": "exact"},
    "decode_seconds": {**ON, "parameter_bytes": BIG, "kv_bytes": BIG, "batch": 1, "parameters": BIG},
    "decode_tensor_parallel_limit": {"hidden": 64, "batch": 8, "chip": "tpu v5e"},
    "decode_tokens_per_s": {"machine": TORUS, "parameter_bytes": BIG, "kv_bytes": BIG, "batch": 1, "parameters": BIG},
    "dtype_name": {"dtype": "bf16"},
    "einsum_flops": {"expression": "ij,jk->ik", "sizes": {"i": 2, "j": 2, "k": 2}},
    "elementwise": {"shape": (8, 8), **ON, "inputs": 2, "outputs": 1, "flops": 0.0, "mode": "exact"},
    "elementwise_seconds": {"shape": (8, 8), **ON, "inputs": 2},
    "enumerate_layouts": {"mesh": {"x": 2}, "rank": 2},
    "evicted_tokens_per_step": {"batch": 2, "prompt": 8, "generated": 4},
    "exchange_cost": {"sent": [[0, 1], [1, 0]], "topology": Topology("h100", 2), "members": None},
    "for_mesh": {"chip": "h100", "mesh": {"x": 2}},
    "get": {"name": "h100", "prefer": "", "hbm_bytes_per_s": 1e9},
    "hidden_fraction": {"compute": 1.0, "communication": 1.0, "steps": 4},
    "inference_bytes": {"parameter_bytes": BIG, "kv_bytes_per_token": BIG, "context": 8, "batch": 2},
    "inference_flops": {"parameters": BIG, "tokens": BIG},
    "is_hidden": {"n": 8, "chips": 4, **ON, "both_ways": True},
    "item_bytes": {"dtype": "bf16"},
    "latency_bound_bytes": {"kind": "all_gather", **GROUP, "model": "links"},
    "latency_bound_hop_bytes": {"chip": "tpu v5e"},
    "link_intensity": {**ON, "axes": "x", "mode": "exact"},
    "matmul": {"m": 8, "k": 8, "n": 8, **ON, "weight_dtype": "int8", "out_dtype": "f32", "batch": 2, "mode": "exact"},
    "matmul_critical_batch": {"k": 8, "n": 8, **ON, "weight_dtype": "int8", "out_dtype": None},
    "matmul_seconds": {"m": 8, "k": 8, "n": 8, **ON, "batch": 2, "mode": "exact"},
    "max_parameters": ON,
    "memory_seconds": {"bytes": BIG, "machine": TORUS, "memory": "hbm"},
    "missing_bytes": {
        "shape": (8, 8), "source": ("x", None), "target": (None, "x"), "mesh": {"x": 2}, "dtype": "bf16", "total": True,
    },
    "mixed_forward_seconds": {
        "batch": BIG, "width": 8, "hidden": 32, "chip": "tpu v5e", "data": 2, "tensor": 2, "data_axes": 1,
        "tensor_axes": 1, "overlap": True, "dtype": "bf16",
    },
    "mixed_tokens": {
        "hidden": 32, "chip": "tpu v5e", "data_axes": 2, "tensor_axes": 1, "overlap": True, "dtype": "bf16",
    },
    "models": {},
    "names": {},
    "overlapped_seconds": {"compute": 1.0, "communication": 1.0, "steps": 4},
    "parse_layout": {"text": "A[I_x,J]", "mesh": {"x": 2}, "position": 0},
    "pipeline_send_seconds": {
        "batch": BIG, "width": 8, "stages": 2, "microbatches": 2, "machine": NODE, "stride": 1, "dtype": "bf16",
    },
    "point_to_point": {"bytes": BIG, "topology": TORUS, "source": (0, 0), "target": (1, 1)},
    "prefill_seconds": {"parameters": BIG, "tokens": BIG, "machine": TORUS, "utilization": 0.5},
    "ragged_all_to_all": {"bytes": BIG, "topology": TORUS, "axes": "x", "active": 2, "experts": 8},
    "read_measurements": {"path": "no such file"},
    "reduction": {"shape": (8, 8), "axes": 0, **ON, "mode": "exact"},
    "sequences_that_fit": {"machine": TORUS, "parameter_bytes": BIG, "kv_bytes_per_token": BIG, "context": 8},
    "shard_bytes": {"shape": (8, 8), "spec": ("x", None), "mesh": {"x": 2}, "dtype": "bf16"},
    "shard_shape": {"shape": (8, 8), "spec": ("x", None), "mesh": {"x": 2}},
    "slice_tokens": {"chip": "tpu v5e", "dtype": "bf16", "slices": 2},
    "smallest_slice": {"bytes": BIG, "chip": "h100"},
    "state_bytes": {"parameters": BIG, "dtype": "bf16", "moment_dtype": "f32", "moments": 2, "master_dtype": None},
    "tensor_parallel_limit": {"hidden": 64, **ON, "axes": "x", "mode": "exact"},
    "tile_expansion": {"shape": (8, 8), "tile": (8, 128)},
    "tokens_per_chip": {"batch": BIG, "topology": TORUS},
    "train_days": {"flops": BIG, **ON, "utilization": 0.5},
    "train_flops": {"parameters": BIG, "tokens": BIG, "remat": "block"},
    "utilization": {"flops": BIG, "seconds": 1.0, **ON},
    "weight_stationary_chips": {"hidden_ratio": 4.0, "axes": 3},
    "weight_stationary_seconds": {
        "batch": 8, "width": 8, "chips": 4, "chip": "tpu v5e", "hidden_ratio": 4.0, "dtype": "bf16",
    },
    "work": {"flops": BIG, "bytes": BIG, **ON, "mode": "exact"},
}  # fmt: skip
NEEDS_A_FILE = {"calibrate", "read_measurements"}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **OF_STEPS,
    **{f"hardware.{name}": (getattr(hw, name), given) for name, given in OF_HARDWARE.items()},
    "Topology": (
        Topology,
        {"chip": "tpu v5e", "shape": (4, 4), "mesh": {"x": 4, "y": 4}, "mapping": None, "wrap": None, "slices": 1},
    ),
    "simulate": (
        mw.simulate,
        {
            "program": PROGRAM, "topology": "h100", "mesh_axes": None, "mode": "exact", "overlap": "loops",
            "while_steps": 2, "donated": [False], "flash": True,
        },
    ),
    "simulate.memory": (mw.simulate.memory, {"program": PROGRAM, "donated": [False], "flash": True}),
    "product_flops": (transformer.product_flops, {"program": PROGRAM}),
    "plan_matmul": (
        mw.plan_matmul,
        {
            "text": "A[I_x,J] @ B[J,K] -> C[I,K]", "mesh": {"x": 2}, "sizes": {"I": 8, "J": 8, "K": 8}, "dtype": "bf16",
            "topology": "tpu v5e", "mode": "exact", "overlap": False,
        },
    ),
    "OnTopology": (dist.OnTopology, {"topology": NODE, "overlap": True, "mode": "exact"}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What hangs fails; what is written is written elsewhere."""
    monkeypatch.chdir(tmp_path)

    def late(*_: object) -> None:
        raise AssertionError("it takes too long")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def answer(function: Callable[..., Any], given: dict[str, Any]) -> mw.MeshwrightError | None:
    """The error of a call, if it has one of ours; any other is the test's."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        function(**given)
    except mw.MeshwrightError as error:
        assert error.fix, error
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def odd_calls(name: str, count: int | None = None) -> list[tuple[str, object]]:
    """An argument and what it is replaced by: all of them, or some that are the same each time."""
    given = CALLS[name][1]
    every = [(argument, odd) for argument in given for odd in ODD]
    return every if count is None else random.Random(name).sample(every, min(count, len(every)))


def test_every_public_function_is_called() -> None:
    public = {name for name in hw.__all__ if inspect.isfunction(getattr(hw, name))}
    assert public == {*OF_HARDWARE, "train_step"}
    callables = {name for name in transformer.__all__ if callable(getattr(transformer, name))}
    assert callables - {"data_parallel_tokens", "StepSimulation"} <= CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_the_call_itself_has_a_result(name: str) -> None:
    error = answer(*CALLS[name])
    assert (error is None) != (name.removeprefix("hardware.") in NEEDS_A_FILE), error


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_cannot_be_is_one_error_with_a_fix(name: str) -> None:
    function, given = CALLS[name]
    for argument, odd in odd_calls(name, 40):
        answer(function, {**given, argument: odd})


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_argument_that_cannot_be_is_one_error_with_a_fix(name: str) -> None:
    function, given = CALLS[name]
    for argument, odd in odd_calls(name):
        answer(function, {**given, argument: odd})


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_there_is_not_is_one_error_with_a_fix(name: str) -> None:
    function, given = CALLS[name]
    if inspect.isfunction(function) and function.__name__ == "<lambda>":
        return
    error = answer(function, {**given, "tensr": 2})
    assert error is not None and "tensr" in error.what + error.fix


NAMES = {
    "mw": mw, "mnp": mnp, "dist": dist, "hardware": hw, "Topology": Topology, "TransformerShape": TransformerShape,
    "Strategy": Strategy, "StepDtypes": StepDtypes, "concurrent": concurrent,
}  # fmt: skip


def pasted(given: dict[str, Any], argument: str, fix: str) -> dict[str, Any]:
    """A call's arguments as a fix says: ``name=value``, or the value of the argument that is wrong."""
    if re.match(r"\w+=(?!=)", fix):
        return {**given, **eval(f"dict({fix})", dict(NAMES))}
    return {**given, argument: eval(fix.partition(", or ")[0], dict(NAMES))}


@pytest.mark.parametrize("name", OF_STEPS)
def test_the_fix_is_pasted_until_there_is_a_result(name: str) -> None:
    function, given = CALLS[name]
    for argument, odd in odd_calls(name, 3 if name == "tokens" else 8):
        now = {**given, argument: odd}
        for _ in range(8):
            error = answer(function, now)
            if error is None:
                break
            if error.fix.startswith(("fewer devices", "another")):
                return
            now = pasted(now, argument, error.fix)
        else:
            raise AssertionError((argument, odd, error))
