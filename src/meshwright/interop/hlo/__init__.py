"""The program of one device as a module of HLO text, which XLA reads. It is written without XLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from meshwright.core.program import Program, Var
from meshwright.core.types import TensorType
from meshwright.interop.hlo.ops import writer_of
from meshwright.interop.hlo.writer import Computation, Module
from meshwright.sharding.named import NamedSharding


def hlo_text(
    program: Program,
    *,
    name: str = "main",
    axes: Sequence[tuple[str, int]] = (),
    in_shardings: Sequence[NamedSharding | None] | None = None,
    arguments: Sequence[str] | None = None,
    iota: bool = True,
    written: Mapping[Var, str] | None = None,
) -> str:
    """The module of a program whose collectives are over ``axes`` of a mesh, from major to minor.

    Partition ``k`` is the device at position ``k`` of the mesh. ``in_shardings`` are those of the whole arguments and
    ``arguments`` their names, which are noted beside the parameters; ``iota=False`` lists the devices of each group.
    ``written`` has, by their results, the ops that collectives are noted to be for.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> print(hlo_text(mw.make_program(lambda x: -x)(mnp.ones(3))).replace("negate(%param),", "negate(%param) "))
    ... # doctest: +ELLIPSIS
    HloModule main, entry_computation_layout={(f32[3]{0})->f32[3]{0}}
    <BLANKLINE>
    ENTRY %main (param: f32[3]) -> f32[3] {
      %param = f32[3]{0} parameter(0)
      ROOT %negate = f32[3]{0} negate(%param)  metadata={op_name="neg" ...}
    }
    """
    module = Module(name, axes, writer_of, iota, written or {})
    types = [TensorType(t.shape, t.dtype) for t in program.in_types]
    notes = []
    for index, t in enumerate(types):
        sharding = in_shardings[index] if in_shardings is not None else None
        note = f", sharding={sharding.to_hlo(t.ndim)}" if sharding is not None else ""
        if arguments is not None:
            quoted = arguments[index].replace("\\", "\\\\").replace('"', '\\"')
            note += f', metadata={{op_name="{quoted}"}}'
        notes.append(note)
    main = Computation(module, types, attributes=notes)
    outs = main.program(program, main.parameters)
    entry = main.finish("main", outs, entry=True)
    return module.text(entry, types, [x.type for x in outs], prod(size for _, size in axes))
