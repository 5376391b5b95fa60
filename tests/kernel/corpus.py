"""Kernels to be run with mistakes looked for: wrong ones and right ones register here.

A line that the error of a wrong kernel must name ends in ``# here``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import neighbors, struct
from tests.kernel.driver import on_devices

F32 = mnp.float32
VMEM = pltpu.VMEM((8, 16), F32)
TWO = pltpu.VMEM((2, 8, 16), F32)
SEVERAL = pl.Debug(schedules=12)
CLEAN = pl.Debug(schedules=16)


@dataclass(frozen=True)
class Case:
    """A kernel of an operand and a result of shape (8, 16) on each of some devices."""

    kernel: Callable[..., Any]
    devices: int
    scratch: Any
    debug: pl.Debug | None
    options: dict[str, Any]
    error: Any = None
    expected: Callable[[np.ndarray], Any] | None = None

    def run(self) -> np.ndarray:
        """The results of all devices."""
        options = dict(self.options)
        given = options.pop("params", {})
        params = pltpu.CompilerParams(**{"collective_id": 0} | given)
        scratch = self.scratch if isinstance(self.scratch, dict) else list(self.scratch)
        call = pl.pallas_call(
            self.kernel, struct((8, 16)), scratch_shapes=scratch, compiler_params=params, debug=self.debug, **options
        )
        x = self.operands()
        return np.stack([out for (out,) in on_devices(call, {"x": self.devices}, [[row] for row in x])])

    def operands(self) -> np.ndarray:
        return np.arange(self.devices * 8 * 16, dtype=np.float32).reshape(self.devices, 8, 16)


WRONG: dict[str, Case] = {}
RIGHT: dict[str, Case] = {}


def wrong(error: type, devices: int = 1, scratch: Any = (), debug: Any = SEVERAL, **options: Any) -> Any:
    def keep(kernel: Any) -> Any:
        WRONG[kernel.__name__] = Case(kernel, devices, scratch, debug, options, error)
        return kernel

    return keep


def right(expected: Callable[[np.ndarray], Any], devices: int = 1, scratch: Any = (), **options: Any) -> Any:
    """``expected`` says from the operands of all devices what the results are."""

    def keep(kernel: Any) -> Any:
        if "barrier" not in inspect.getsource(kernel):  # an id of its own is for kernels that make a barrier
            options.setdefault("params", {}).setdefault("collective_id", None)
        RIGHT[kernel.__name__] = Case(kernel, devices, scratch, CLEAN, options, None, expected)
        return kernel

    return keep


def around() -> tuple[Any, Any]:
    """The devices to the left and to the right."""
    _, left, right, _ = neighbors()
    return left, right
