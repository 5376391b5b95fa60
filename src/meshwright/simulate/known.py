"""Values of a program that follow from its constants: what a kernel is given before it starts, where that is one."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.program import Atom, Literal, Program
from meshwright.core.trace import computed

MOST_ELEMENTS = 1 << 16  # of a value that is computed: metadata of kernels, not weights


def known_values(program: Program) -> dict[Atom, Any]:
    """The values that constants alone decide, where they are small.

    program(a: f32[8]) {                                   b: [3 5]
      b: i32[2] = constant [3 5]                    ==>    c: [3 8]
      c: i32[2] = cumsum b
      d: f32[8] = pallas_call c a
    }
    """
    found: dict[Atom, Any] = {var: np.asarray(data) for var, data in program.constants if _is_wanted(var)}
    for eqn in program.eqns:
        plain = eqn.op.structure is None and not eqn.op.effects and not list(eqn.regions())
        if not plain or not all(isinstance(a, Literal) or a in found for a in eqn.inputs):
            continue
        if not all(map(_is_wanted, eqn.outputs)):
            continue
        data = [np.asarray(a.value, a.type.dtype) if isinstance(a, Literal) else found[a] for a in eqn.inputs]
        outs = computed(eqn.op, *data, **eqn.params)
        outs = outs if isinstance(outs, tuple) else (outs,)
        found.update({var: np.asarray(out) for var, out in zip(eqn.outputs, outs, strict=True)})
    return found


def _is_wanted(atom: Atom) -> bool:
    """Whether a value is small, and the same on all devices."""
    return atom.type.size <= MOST_ELEMENTS and not atom.type.unreduced and not atom.type.varying
