"""Modules run by XLA: as they are on one device, and after ``-sdy-convert-global-to-local`` on eight.

A local module runs as eight replicas, so its partitions are replicas here and its groups are groups of those.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.lib import xla_client
from jaxlib.mlir import ir

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context, parse_module, string
from meshwright.sharding.named import TensorSharding
from tests.oracle.interpreter import interpreted
from tests.oracle.random_modules import Recipe, random_module
from tests.oracle.random_ops import Settings

DEVICES = 8
CONVERT = "sdy-convert-global-to-local{enable-rgv3=false}"
FULL = "sdy-insert-explicit-reshards{enable-full-version=true}"
# Straight from propagation, and as Shardy's own passes prepare a module.
CHAINS = (
    ("sdy-propagation-pipeline", CONVERT),
    ("sdy-propagation-pipeline", FULL, "sdy-reshard-to-collectives", CONVERT),
)
# What only says, or changes, how a value is laid out.
MOVES = (
    "sdy.reshard", "sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.all_gather", "sdy.all_slice",
    "sdy.all_to_all", "sdy.collective_permute",
)  # fmt: skip
SOLVERS = ("stablehlo.triangular_solve", "stablehlo.cholesky", "stablehlo.batch_norm_inference")
RECIPE = Recipe(
    ops=10,
    features=("group", "call", "while", "case", "barrier", "reshard", "stop", "meshes"),
    settings=Settings(unreduced=False),
    meshes=('<["x"=8]>', '<["x"=2, "y"=4]>', '<["x"=4, "y"=2]>', '<["x"=2, "y"=2, "z"=2]>', '<["y"=4, "x"=1, "z"=2]>'),
)


class Main(NamedTuple):
    """The types of the arguments and results of main, and how they are laid out."""

    inputs: list[Any]
    outputs: list[Any]
    in_shardings: list[TensorSharding | None]
    out_shardings: list[TensorSharding | None]


def main_of(module: Any) -> Main:
    with context():
        known = ValueShardings(module)
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        op = next(op for op in functions if string(op.attributes["sym_name"]) == "main")
        types = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        return Main(
            list(types.inputs),
            list(types.results),
            known.of_function(op, "arg_attrs", len(types.inputs)),
            known.of_function(op, "res_attrs", len(types.results)),
        )


DTYPES = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "complex<f32>": "complex64", "i1": "bool",
    "i8": "int8", "i32": "int32", "i64": "int64", "ui8": "uint8", "ui32": "uint32", "ui64": "uint64",
}  # fmt: skip


def random_values(types: Sequence[Any], seed: int) -> list[np.ndarray]:
    """Small numbers, of which few sums are rounded."""
    rng = np.random.default_rng(seed)
    found = []
    for t in types:
        dtype = DTYPES[str(t.element_type)]
        low = 0 if dtype.startswith(("u", "bool")) else -2
        found.append(rng.integers(low, 3, tuple(t.shape)).astype(jax.numpy.dtype(dtype)))
    return found


def without_sdy(text: str) -> Any:
    """The module without shardings, and without calls that nobody can run."""
    module = parse_module(text)
    with context():
        for key in ("sdy.output_shardings", "sdy.parameters_shardings"):
            if key in module.operation.attributes:
                del module.operation.attributes[key]
        for op in list(walk(module.operation)):
            for key in ("sdy.sharding", "sdy.sharding_rule"):
                if key in op.attributes:
                    del op.attributes[key]
            if op.name == "func.func":
                for key in ("arg_attrs", "res_attrs"):
                    if key in op.attributes:
                        del op.attributes[key]
            elif op.name in MOVES:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
            elif op.name in ("sdy.sharding_group", "sdy.mesh"):
                op.erase()
    return module


def kept_out(text: str) -> str:
    """The module without the calls that keep values alive."""
    return re.sub(r'\n[^\n]*call_target_name = "keep"[^\n]*', "", text)


def executable(text: str, replicas: int, plain: bool = False) -> Any:
    client = jax.devices()[0].client
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, 1
    options.executable_build_options.num_replicas = replicas
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(replicas).reshape(replicas, 1))
    if plain:
        options.env_option_overrides = [("xla_disable_hlo_passes", "algsimp"), ("xla_backend_optimization_level", "0")]
    devices = xla_client.DeviceList(tuple(jax.devices()[:replicas]))
    with context():
        module = ir.Module.parse(text)
        code = str(module).encode()
    return client.compile_and_load(code, devices, options)


def executed(text: str, values: Sequence[Sequence[np.ndarray]], plain: bool = False) -> list[list[np.ndarray]]:
    """What a module gives on some devices, for each argument and then each result its value on each of them.

    ``plain``: XLA compiles it without simplifying it first.
    """
    count = max([1, *(len(value) for value in values)])
    run = executable(text, count, plain)
    devices = jax.devices()[:count]
    mesh = jax.sharding.Mesh(np.array(devices), ("i",))
    arrays = []
    for parts in values:
        shape = (count * parts[0].shape[0], *parts[0].shape[1:]) if parts[0].ndim else ()
        spec = jax.sharding.PartitionSpec("i") if parts[0].ndim else jax.sharding.PartitionSpec()
        with jax.enable_x64(True):
            placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        arrays.append(jax.make_array_from_single_device_arrays(shape, jax.sharding.NamedSharding(mesh, spec), placed))
    found = run.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [[np.asarray(part) for part in parts] for parts in found]


def part_of(value: np.ndarray, sharding: TensorSharding | None, device: int) -> np.ndarray:
    """What a device holds of a value: worked out digit by digit."""
    if sharding is None or not any(dim.axes for dim in sharding.dims):
        return value
    mesh = sharding.mesh
    position = device if mesh.order is None else mesh.order.index(device)
    digits = dict(zip(mesh.shape, np.unravel_index(position, tuple(mesh.shape.values())), strict=True))
    for dim, split in enumerate(sharding.dims):
        for axis in split.axes:
            rest = axis.whole // (axis.pre * axis.size)
            number = int(digits[axis.name]) // rest % axis.size
            value = np.split(value, axis.size, axis=dim)[number]
    return value


def of_solvers(text: str) -> str | None:
    """A module that returns what is divided by in main, and made; None if there is some in loops, branches or calls."""
    module = without_sdy(text)
    with context():
        main = next(op.operation for op in module.body.operations if string(op.attributes["sym_name"]) == "main")
        *ops, end = [op.operation for op in main.regions[0].blocks[0].operations]
        made = [value for op in ops if op.name in SOLVERS for value in op.results]
        if len(made) < sum(op.name in SOLVERS for op in walk(module.operation)):
            return None
        kind = ir.FunctionType.get(
            [value.type for value in main.regions[0].blocks[0].arguments], [v.type for v in made]
        )
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        ir.Operation.create("func.return", operands=made, ip=ir.InsertionPoint(end), loc=end.location)
        end.erase()
    return str(module)


def local_text(text: str, chain: Sequence[str]) -> tuple[str, Main]:
    """A module as each device runs it, in a form that runs as replicas; and its main before."""
    module = apply_passes(parse_module(text), chain[:-1]).module
    main = main_of(module)
    local = str(apply_passes(module, chain[-1:]).module)
    local = local.replace("stablehlo.partition_id", "stablehlo.replica_id")
    local = re.sub(r"channel_handle = #stablehlo.channel_handle<[^>]*>, ", "", local)
    local = re.sub(r", channel_handle = #stablehlo.channel_handle<[^>]*>", "", local)
    local = local.replace(", use_global_device_ids", "")
    return str(without_sdy(local)), main


def differs(text: str, seed: int, chain: Sequence[str]) -> str | None:
    """How the partitioned module differs from the whole one: "" if it does not, None if the whole one does not run."""
    text = kept_out(text)
    try:
        whole = main_of(parse_module(text))
    except MeshwrightError:
        return None
    values = random_values(whole.inputs, seed)
    whole_text = str(without_sdy(text))
    try:
        expected = executed(whole_text, [[value] for value in values])
    except jax.errors.JaxRuntimeError:
        return None
    try:
        local, main = local_text(text, chain)
    except MeshwrightError as error:
        return f"refused: {error}"
    parts = [
        [part_of(value, sharding, device) for device in range(DEVICES)]
        for value, sharding in zip(values, main.in_shardings, strict=True)
    ]
    try:
        found = executed(local, parts or [[np.zeros(1, "float32")] * DEVICES][:0])
    except jax.errors.JaxRuntimeError as error:
        return f"does not run: {error}"[:500]
    wrong = _first_difference(expected, found, main.out_shardings)
    solved = of_solvers(text) if wrong and any(name in text for name in SOLVERS) else ""
    if solved is None or (solved and not all(map(_is_finite, executed(solved, [[value] for value in values])))):
        return None  # of a matrix that is singular, XLA makes infinities and NaNs, and reduces them, as it pleases
    right = interpreted(whole_text, values) if wrong else None
    if right is not None and not _first_difference([[one] for one in right], found, main.out_shardings):
        return ""  # XLA computed the whole module wrongly
    for code, given, before in ((whole_text, [[v] for v in values], expected), (local, parts, found)):
        if wrong and not _same(executed(code, given, plain=True), before):
            return None  # XLA contradicts itself
    return wrong


def _same(one: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> bool:
    return all(_close(a, b) for some, others in zip(one, other, strict=True) for a, b in zip(some, others, strict=True))


def _first_difference(
    whole: list[list[np.ndarray]], local: list[list[np.ndarray]], shardings: Sequence[TensorSharding | None]
) -> str:
    """Where devices hold something else than their parts of the whole; "" if they do not."""
    for number, ((want,), got, sharding) in enumerate(zip(whole, local, shardings, strict=True)):
        for device, part in itertools.islice(enumerate(got), DEVICES):
            right = part_of(want, sharding, device)
            if part.shape != right.shape:
                return f"result {number} has the shape {part.shape} on device {device}, not {right.shape}"
            if not _close(part, right):
                return f"result {number} on device {device}"
    return ""


def _is_finite(values: list[np.ndarray]) -> bool:
    return values[0].dtype.kind not in "fc" or bool(np.isfinite(values[0]).all())


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind in "biu":
        return bool((one == other).all())
    with np.errstate(all="ignore"):
        scale = float(np.nanmax(np.abs(np.where(np.isfinite(other), other, 0)), initial=1.0))
    wide = "complex128" if one.dtype.kind == "c" else "float64"
    return np.allclose(one.astype(wide), other.astype(wide), rtol=2e-3, atol=1e-4 * scale, equal_nan=True)


def run(seed: int) -> str | None:
    """Whether a random module runs on parts as it runs whole."""
    text = random_module(seed, RECIPE)
    return differs(text, seed, random.Random(seed).choice(CHAINS))
