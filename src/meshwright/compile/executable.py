"""What a jitted function calls: a program with its code, and how arrays go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from sys import getrefcount
from typing import Any

import numpy as np

from meshwright.compile.direct import DirectResults, DirectSignature, WrittenCall, direct_call
from meshwright.compile.stages import CODE, PARTITION, Compilation, StageRecord, run_stages
from meshwright.core import dtypes, tree
from meshwright.core.collection import no_collection
from meshwright.core.current import current_processes
from meshwright.core.trace import Array, building, on_host
from meshwright.core.types import TensorType


def _count_one() -> int:
    only = [object()]
    return getrefcount(only[0])


_ONE_REFERENCE = _count_one()  # what getrefcount says of an object that nothing but a list refers to


class Executable:
    """A program ready to run on arrays of fixed types. With ``later``, its code for NumPy is written when it is first
    asked for: of arguments without contents, what a program does and costs is asked most often."""

    __slots__ = (
        "_code",
        "_stages",
        "_unwritten",
        "donated",
        "engine",
        "out_shardings",
        "out_tree",
        "out_types",
        "placed",
        "program",
        "single",
    )

    @no_collection()
    def __init__(self, start: Compilation, stages: Sequence[StageRecord], device: Any, later: bool = False) -> None:
        self._stages = list(stages)
        self.program = start.program
        self.placed: Any = None  # what is known about a program on a mesh
        self.out_types = self.program.out_types
        self.out_shardings: Sequence[Any] = (device,) * len(self.program.outputs)
        done = run_stages(PARTITION, start, self._stages)
        if done.placement is not None:
            from meshwright.compile.partial_sums import summed_shardings
            from meshwright.compile.partitioning import placed

            self.placed = placed(done)
            self.placed.refuse_implicit()
            self.out_types = self.placed.out_types
            self.out_shardings = summed_shardings(self.placed.out_shardings, self.out_types)
        self.engine = start.engine
        self.donated = [n for n, given in enumerate(start.donated) if given]
        self.out_tree = start.out_tree
        self.single = start.out_tree.is_leaf()
        self._code: Compilation | None = None
        self._unwritten: Any = (done, copy_context(), dtypes.config._enable_x64)
        if not later or start.engine != "numpy":  # what XLA refuses is said when it is compiled
            self._write()

    @no_collection()
    def _write(self) -> Compilation:
        """Run the last stages, as if it were still when the others ran."""
        done, context, wide = self._unwritten

        def written() -> Compilation:
            before, dtypes.config._enable_x64 = dtypes.config._enable_x64, wide
            try:
                with building(None):
                    return run_stages(CODE, done, self._stages)
            finally:
                dtypes.config._enable_x64 = before

        self._code = context.run(written)
        self._unwritten = None
        return self._code

    @property
    def stages(self) -> list[StageRecord]:
        """What each stage made."""
        if self._code is None:
            self._write()
        return self._stages

    @property
    def call(self) -> Callable[..., Any]:
        """The code, which takes the contents of the arguments."""
        code = self._code or self._write()
        assert code.function is not None
        return code.function

    @property
    def direct(self) -> Callable[..., Any] | None:
        """The same for arrays that are where it wants them, or None."""
        return (self._code or self._write()).direct

    @property
    def from_host(self) -> Callable[[], Callable[..., Any]] | None:
        """Makes what is as ``direct`` for arrays of JAX and of NumPy together, or None."""
        return (self._code or self._write()).from_host

    def take(self, leaves: Sequence[Any], data: list[Any]) -> None:
        """Take the contents of donated arrays away from them. What anybody else still refers to (another array, a view,
        a program's constant, a second argument) is passed on as read-only, or as a copy."""
        for n in self.donated:
            if leaves[n].__class__ is Array:
                leaves[n]._data = None
        for n in self.donated:
            if getrefcount(data[n]) <= _ONE_REFERENCE:
                continue
            if data[n].__class__ is np.ndarray:
                data[n] = data[n].view()
                data[n].flags.writeable = False
            elif self.engine != "numpy":  # an array of JAX, whose memory would be gone
                data[n] = data[n].copy()

    def written_for(
        self,
        in_tree: tree.TreeDef,
        leaves: Sequence[Any],
        data: Sequence[Any],
        statics: dict[int, Any],
        engine: str | None,
    ) -> WrittenCall | None:
        """A direct call for arguments like these, whose contents the engine takes as they are; None for containers that
        it is not written for."""
        kinds = [x.__class__ for x in data]
        here = np.ndarray in kinds
        on_devices = self.engine != "numpy"
        mine = [x.__class__ is Array for x in leaves]
        given = DirectSignature(
            in_tree,
            [x.type if own else TensorType(x.shape, x.dtype) for x, own in zip(leaves, mine, strict=True)],
            [x._sharding if own else None for x, own in zip(leaves, mine, strict=True)],
            [kind if own else None for kind, own in zip(kinds, mine, strict=True)],
            self.donated,
            statics,
        )
        bare = on_devices and len(self.out_types) == 1
        results = DirectResults(self.out_tree, self.out_types, self.out_shardings, bare)
        allowed = None if self.placed is None else self.placed.refuse_implicit
        function = self.from_host() if on_devices and here and self.from_host is not None else self.direct
        assert function is not None
        return direct_call(function, given, results, engine, on_devices, allowed)

    def may_be_direct(self, leaves: Sequence[Any], data: Sequence[Any]) -> bool:
        """Whether all arguments are arrays, with contents that the engine takes as they are."""
        kinds = {*map(type, data)}
        if self.direct is None or len(kinds - {np.ndarray}) > 1:
            return False
        if self.engine == "numpy":
            return kinds <= {np.ndarray} and {Array}.issuperset(map(type, leaves)) and not self.donated
        if np.ndarray not in kinds:
            return len(kinds) == 1 and {Array}.issuperset(map(type, leaves))
        return self.from_host is not None and all(
            x.__class__ is Array or (x.__class__ is np.ndarray and x.dtype == held.dtype)
            for x, held in zip(leaves, data, strict=True)
        )

    def run(self, data: Sequence[Any]) -> Any:
        """The outputs for the contents of the arguments, in the containers the function returned them in."""
        if self.placed is not None:
            self.placed.refuse_implicit()
        if self.engine == "numpy" and not {np.ndarray}.issuperset(map(type, data)):
            types = (self.program if self.placed is None else self.placed.program).in_types
            data = [x if isinstance(x, np.ndarray) else on_host(x, t.shape) for x, t in zip(data, types, strict=True)]
        try:
            outs = self.call(*data)
        except RuntimeError as error:
            raise current_processes.all.lost(error) from None
        if self.single:
            return Array(outs[0], self.out_types[0], self.out_shardings[0])
        return tree.unflatten(self.out_tree, map(Array, outs, self.out_types, self.out_shardings))


def keep_on_devices(leaves: Sequence[Any], data: list[Any], places: Sequence[Any]) -> None:
    """Put arrays that are on a mesh, and here, onto its real devices, where they stay for the next call."""
    for n, x in enumerate(data):
        if x.__class__ is np.ndarray and places[n] is not None and leaves[n].__class__ is Array:
            from meshwright.arrays.device_put import held_on_devices

            held = held_on_devices(places[n], x.shape, x.dtype, on_some=not leaves[n].type.unreduced)
            if held is not None:
                leaves[n]._data = data[n] = held.put(x)
