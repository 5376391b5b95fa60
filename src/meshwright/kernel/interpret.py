"""JAX's interpreter for TPUs by its parameters: what of them our machine has, as settings of ``pl.Debug``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshwright.core.source import here
from meshwright.kernel.call import Debug
from meshwright.kernel.run.faults import KernelError


@dataclass(frozen=True, kw_only=True)
class InterpretParams:
    """How JAX's interpreter runs a kernel. ``detect_races`` looks for all mistakes that ``pl.Debug()`` finds.

    >>> InterpretParams(detect_races=True, random_seed=3).debug()
    Debug(races=True, seed=3, schedules=1, order=None, replay=None, tiles=False)
    """

    detect_races: bool = False
    on_race: str = "raise"
    out_of_bounds_reads: str = "raise"
    skip_floating_point_ops: bool = False
    uninitialized_memory: str = "nan"
    num_cores_or_threads: int = 1
    vector_clock_size: int | None = None
    logging_mode: Any = None
    dma_execution_mode: str = "on_wait"
    random_seed: int | None = None
    grid_point_recorder: Callable[..., Any] | None = None
    allow_hbm_allocation_in_run_scoped: bool = False
    buffer_bounds: str = "logical"

    def __post_init__(self) -> None:
        only = {
            "on_race": "raise",
            "out_of_bounds_reads": "raise",
            "skip_floating_point_ops": False,
            "uninitialized_memory": "nan",
            "grid_point_recorder": None,
            "allow_hbm_allocation_in_run_scoped": False,
            "buffer_bounds": "logical",
        }
        for name, value in only.items():
            if getattr(self, name) != value:
                raise KernelError(
                    f"InterpretParams is given {name}={getattr(self, name)!r}.",
                    where=here(),
                    why=f"on this machine it is {value!r}: a read of what nobody wrote, or of what is not there, is a "
                    "mistake",
                    fix=f"{name}={value!r}",
                )

    def debug(self) -> Debug | None:
        """The settings that find what these parameters ask for."""
        return Debug(seed=self.random_seed or 0) if self.detect_races else None


class _Mode(threading.local):
    params: InterpretParams | None = None


_mode = _Mode()


@contextmanager
def force_tpu_interpret_mode(params: InterpretParams | None = None) -> Iterator[None]:
    """Run the kernels that are called inside with these parameters, unless they say otherwise."""
    before, _mode.params = _mode.params, params or InterpretParams()
    try:
        yield
    finally:
        _mode.params = before


def set_tpu_interpret_mode(params: InterpretParams | None = None) -> None:
    """Run all kernels from now on with these parameters, unless they say otherwise."""
    _mode.params = params or InterpretParams()


def reset_tpu_interpret_mode_state() -> None:
    """Nothing: a kernel that has failed leaves nothing behind."""


def wanted(interpret: Any) -> InterpretParams | None:
    """The parameters of a call: its own, or those that are set for all."""
    return interpret if isinstance(interpret, InterpretParams) else _mode.params
