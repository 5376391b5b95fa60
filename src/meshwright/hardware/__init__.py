"""Hardware that nobody here owns: chips, how they are joined, and what programs on them cost.

>>> from meshwright import hardware
>>> v5e = hardware.Topology("tpu v5e", (8, 4), mesh={"x": 8, "y": 4})
>>> hardware.collective_seconds("all_gather", 2048 * 8192 * 2, v5e, "y")
0.0005592405333333334
>>> hardware.matmul(64, 4096, 8192, "b200").bound
'memory'
"""

from collections.abc import Callable
from functools import partial
from inspect import isfunction
from typing import Any

from meshwright.errors import HardwareError
from meshwright.hardware.arguments import (
    Check,
    amount,
    checked,
    checked_fields,
    dims,
    given,
    matrix,
    measured,
    named,
    one_of,
    physical,
    rings,
)
from meshwright.hardware.calibration import Calibration, Compared, calibrate
from meshwright.hardware.chips import Chip, Fact, dtype_name, get, item_bytes, names
from meshwright.hardware.collectives import (
    bus_bytes_per_s,
    collective_bytes_per_s,
    collective_cost,
    collective_seconds,
    crossover,
    latency_bound_bytes,
    latency_bound_hop_bytes,
    point_to_point,
)
from meshwright.hardware.kernels import Kernels
from meshwright.hardware.layouts import (
    Layout,
    copies,
    enumerate_layouts,
    missing_bytes,
    parse_layout,
    shard_bytes,
    shard_shape,
)
from meshwright.hardware.links import CollectiveCost
from meshwright.hardware.machines import for_mesh
from meshwright.hardware.measurements import read_measurements
from meshwright.hardware.models import models
from meshwright.hardware.parallelism import (
    best_data_parallelism,
    data_parallel_batch,
    data_parallel_chips,
    data_parallel_tokens,
    decode_tensor_parallel_limit,
    link_intensity,
    mixed_forward_seconds,
    mixed_tokens,
    pipeline_send_seconds,
    slice_tokens,
    tensor_parallel_limit,
    tokens_per_chip,
    weight_stationary_chips,
    weight_stationary_seconds,
)
from meshwright.hardware.placement import Span
from meshwright.hardware.ragged import exchange_cost, ragged_all_to_all
from meshwright.hardware.roofline import (
    Roofline,
    attention,
    attention_critical_tokens,
    collective_matmul_threshold,
    compute_seconds,
    critical_batch,
    einsum_flops,
    elementwise,
    elementwise_seconds,
    hidden_fraction,
    is_hidden,
    matmul,
    matmul_critical_batch,
    matmul_seconds,
    memory_seconds,
    overlapped_seconds,
    reduction,
    tile_expansion,
    utilization,
    work,
)
from meshwright.hardware.topology import Topology
from meshwright.hardware.train_step import TrainStep, train_step
from meshwright.hardware.transformer import (
    TransformerShape,
    activation_bytes,
    decode_seconds,
    decode_tokens_per_s,
    evicted_tokens_per_step,
    inference_bytes,
    inference_flops,
    max_parameters,
    prefill_seconds,
    sequences_that_fit,
    smallest_slice,
    state_bytes,
    train_days,
    train_flops,
)

__all__ = [
    "Calibration",
    "Chip",
    "CollectiveCost",
    "Compared",
    "Fact",
    "HardwareError",
    "Kernels",
    "Layout",
    "Roofline",
    "Span",
    "Topology",
    "TrainStep",
    "TransformerShape",
    "activation_bytes",
    "attention",
    "attention_critical_tokens",
    "best_data_parallelism",
    "bus_bytes_per_s",
    "calibrate",
    "collective_bytes_per_s",
    "collective_cost",
    "collective_matmul_threshold",
    "collective_seconds",
    "compute_seconds",
    "copies",
    "critical_batch",
    "crossover",
    "data_parallel_batch",
    "data_parallel_chips",
    "data_parallel_tokens",
    "decode_seconds",
    "decode_tensor_parallel_limit",
    "decode_tokens_per_s",
    "dtype_name",
    "einsum_flops",
    "elementwise",
    "elementwise_seconds",
    "enumerate_layouts",
    "evicted_tokens_per_step",
    "exchange_cost",
    "for_mesh",
    "get",
    "hidden_fraction",
    "inference_bytes",
    "inference_flops",
    "is_hidden",
    "item_bytes",
    "latency_bound_bytes",
    "latency_bound_hop_bytes",
    "link_intensity",
    "matmul",
    "matmul_critical_batch",
    "matmul_seconds",
    "max_parameters",
    "memory_seconds",
    "missing_bytes",
    "mixed_forward_seconds",
    "mixed_tokens",
    "models",
    "names",
    "overlapped_seconds",
    "parse_layout",
    "pipeline_send_seconds",
    "point_to_point",
    "prefill_seconds",
    "ragged_all_to_all",
    "read_measurements",
    "reduction",
    "sequences_that_fit",
    "shard_bytes",
    "shard_shape",
    "slice_tokens",
    "smallest_slice",
    "state_bytes",
    "tensor_parallel_limit",
    "tile_expansion",
    "tokens_per_chip",
    "train_days",
    "train_flops",
    "train_step",
    "utilization",
    "weight_stationary_chips",
    "weight_stationary_seconds",
    "work",
]

# What users call is behind a check of its arguments; modules of the package call each other's functions as they are.
_OPTIONS: dict[str, Callable[..., Any]] = {
    "collective_bytes_per_s": collective_cost,
    "decode_tokens_per_s": decode_seconds,
    "elementwise_seconds": elementwise,
    "latency_bound_bytes": collective_cost,
    "matmul_seconds": matmul,
}
_KINDS: dict[str, dict[str, Check]] = {
    "calibrate": {"raw": measured},
    "collective_cost": dict.fromkeys(("kind", "bytes", "topology"), given),
    "collective_seconds": dict.fromkeys(("kind", "bytes", "topology"), given),
    "einsum_flops": {"sizes": partial(named, amount)},
    "hidden_fraction": {"communication": partial(amount, least=1e-12)},
    "exchange_cost": {"sent": matrix},
    "mixed_forward_seconds": dict.fromkeys(("data", "tensor"), partial(amount, least=1e-12)),
    "reduction": {"axes": dims},
    "smallest_slice": {"bytes": partial(amount, least=1)},
    "train_flops": {"remat": partial(one_of, ("none", "block"))},
}
for _name in __all__:
    if isfunction(globals()[_name]) and not hasattr(globals()[_name], "__wrapped__"):
        globals()[_name] = checked("", _OPTIONS.get(_name), **_KINDS.get(_name, {}))(globals()[_name])
checked_fields("a topology", chip=given, slices=given, wrap=rings, mapping=partial(named, physical))(Topology)
