"""HLO text read, compiled and run by XLA."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jax.extend.backend import get_backend
from jaxlib import _hlo, _jax, xla_client
from jaxlib.mlir import ir

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def parsed(text: str) -> Any:
    """The module that XLA reads."""
    return _hlo.hlo_module_from_text(text)


def count_collectives(text: str) -> dict[str, int]:
    """How many instructions of each kind there are, in the module as XLA prints it."""
    printed = parsed(text).to_string()
    found = Counter(kind for kind in COLLECTIVES for _ in re.findall(rf"\) {kind}\(|[\]}}] {kind}\(", printed))
    return dict(found)


def as_replicas(text: str) -> str:
    """The module with the partitions of a mesh as replicas: XLA partitions modules for several partitions itself, and
    one whose instructions are those of one device is run by replicas as it stands."""
    text = re.sub(r"channel_id=\d+, ", "", text)
    text = text.replace("use_global_device_ids=true, ", "").replace(", use_global_device_ids=true", "")
    text = re.sub(r", sharding=\{[^}]*(\{[^}]*\})?[^}]*\}", "", text)
    return text.replace("partition-id(", "replica-id(").replace("num_partitions=", "replica_count=")


def run(text: str, shards: Sequence[Sequence[Any]]) -> list[list[np.ndarray[Any, Any]]]:
    """The results of each device, given the arguments of each; indexed by result, then by device."""
    count = len(shards[0]) if shards else 1
    module = parsed(as_replicas(text))
    mlir = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(module.as_serialized_hlo_module_proto()))
    options = xla_client.CompileOptions()
    options.num_replicas = count
    backend = get_backend("cpu")
    devices = backend.local_devices()[:count]
    loaded = backend.compile_and_load(mlir, xla_client.DeviceList(tuple(devices)), options)
    given = [
        jax.make_array_from_single_device_arrays(
            (count * np.shape(parts[0])[0], *np.shape(parts[0])[1:]) if np.ndim(parts[0]) else (),
            _sharding(devices, np.ndim(parts[0])),
            [jax.device_put(np.asarray(part), device) for part, device in zip(parts, devices, strict=True)],
        )
        for parts in shards
    ]
    outs = loaded.execute_sharded(given)
    return [[np.asarray(x) for x in parts] for parts in outs.disassemble_into_single_device_arrays()]


def _sharding(devices: Sequence[Any], rank: int) -> Any:
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(["d"] if rank else [])))


def run_partitioned(
    text: str, mesh: Any, shardings: Sequence[Any], arrays: Sequence[Any]
) -> list[list[np.ndarray[Any, Any]]]:
    """The results of a StableHLO module that XLA partitions by its sdy shardings; indexed by result, then by device."""
    count = mesh.devices.size
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_partitions = build.num_partitions = count
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    backend = get_backend("cpu")
    devices = backend.local_devices()[:count]
    with make_ir_context():
        module = ir.Module.parse(text)
        loaded = backend.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
    given = [jax.device_put(x, s) for x, s in zip(arrays, shardings, strict=True)]
    outs = loaded.execute_sharded(given).disassemble_into_single_device_arrays()
    return [[np.asarray(x) for x in parts] for parts in outs]
