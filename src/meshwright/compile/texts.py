"""What was traced and what was compiled, as texts that others read: StableHLO with sdy, and HLO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshwright.arrays.device_put import sharding_for, spread
from meshwright.arrays.explicit import untyped, with_sums_taken
from meshwright.compile.compiled import Compiled, JitCall
from meshwright.compile.partial_sums import finished_sums, with_rows
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.program import Program
from meshwright.core.types import TensorType
from meshwright.interop.hlo import hlo_text
from meshwright.interop.stablehlo.dumping import dump
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.simulate.spmd import read_program
from meshwright.transform.stack import inline_calls
from meshwright.transform.summands import sums_as_rows


def _module(call: JitCall) -> str:
    """The name of the module: that of the function, in letters that a name may have."""
    return "jit_" + re.sub(r"\W", "_", call.name)


def _arguments(call: JitCall) -> list[str]:
    """What to call each leaf of the arguments: ``params['w'][0]``."""
    args, kwargs = tree.unflatten(call.in_tree, range(call.in_tree.num_leaves))
    names = list(call.parameters)[: len(args)]
    names += [f"args[{n}]" for n in range(len(names), len(args))]
    named = [*zip(names, args, strict=True), *sorted(kwargs.items())]
    return [f"{name}{path}" for name, arg in named for path in tree.path_names(arg)]


def _results(call: JitCall) -> list[str]:
    """What to call each leaf of the results."""
    found = tree.unflatten(call.out_tree, range(call.out_tree.num_leaves))
    return [f"result{path}" for path in tree.path_names(found)]


def lowered_text(program: Program, call: JitCall) -> str:
    """The module of a traced function, with the shardings that were asked for."""
    placement = call.placement
    if placement is None:
        return dump(sums_as_rows(program), name=_module(call), result_names=_results(call))
    mesh = placement.mesh
    written: Sequence[Any] = spread(
        placement.out_shardings, tree.unflatten(call.out_tree, range(call.out_tree.num_leaves)), "jit"
    )
    program = finished_sums(inline_calls(program, shard_maps=False), written)
    program, in_shardings, written = with_rows(program, mesh, placement.in_shardings, written)
    found = untyped(program, mesh, placement.others)
    outs = [
        _tensor_sharding(place, t) if place is not None else with_sums_taken(found.fixed.get(atom), t)  # type: ignore[arg-type]
        for place, atom, t in zip(written, found.program.outputs, program.out_types, strict=True)
    ]
    ins = [
        given if given is not None else found.fixed.get(var)
        for given, var in zip(in_shardings, found.program.inputs, strict=True)
    ]
    return dump(
        found.program, mesh=mesh, in_shardings=ins, out_shardings=outs, fixed=found.fixed, name=_module(call),
        result_names=_results(call),
    )  # fmt: skip


def _tensor_sharding(place: Any, t: TensorType) -> TensorSharding:
    found = sharding_for(place, t.shape)
    assert isinstance(found, NamedSharding)
    return found.to_tensor_sharding(t.ndim)


def compiled_text(compiled: Compiled, call: JitCall, placed: Any, iota: bool) -> str:
    """The module of one device."""
    if placed is None:
        program, sizes = read_program(compiled)
        return hlo_text(program, name=_module(call), axes=list(sizes.items()), arguments=_arguments(call), iota=iota)
    axes = next(eqn.params["mesh"] for eqn in placed.program.eqns if eqn.op.structure is Structure.DEVICE)
    return hlo_text(
        placed.local, name=_module(call), axes=axes, in_shardings=placed.in_shardings, arguments=_arguments(call),
        iota=iota, written=placed.written,
    )  # fmt: skip
