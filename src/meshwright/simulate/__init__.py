"""How long programs take on machines that need not be at hand. The module is itself the function `simulate`.

>>> import meshwright as mw
>>> program = mw.make_program(lambda x: x @ x)(mw.ShapeDtypeStruct((8192, 8192), "bfloat16"))
>>> result = mw.simulate(program, "h100")
>>> print(result.bound, f"{result.seconds * 1e3:.2f} ms")
compute-bound, without communication 1.11 ms
"""

import sys
from types import ModuleType
from typing import Any

from meshwright.hardware.arguments import checked
from meshwright.simulate.machine import Machine
from meshwright.simulate.memory import Alive, MemoryUse, memory
from meshwright.simulate.schedule import Event
from meshwright.simulate.simulation import Share, Simulation
from meshwright.simulate.spmd import simulate
from meshwright.simulate.tasks import Task

__all__ = ["Alive", "Event", "Machine", "MemoryUse", "Share", "Simulation", "Task", "memory", "simulate"]


class _Callable(ModuleType):
    """A module that can be called: ``mw.simulate`` is a function and the place of what it is made of."""

    def __call__(self, *args: Any, **options: Any) -> Simulation:
        return simulate(*args, **options)


memory = checked("a simulation")(memory)
sys.modules[__name__].__class__ = _Callable
