"""Memory by liveness: what a device holds from when it is made until the last op that reads it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from meshwright.device.function import DeviceEqn, DeviceValue, Function

Places = list[tuple[int, int]]  # devices, and the bytes there


class MemoryFacts(Protocol):
    """What memory needs to know of an equation."""

    @property
    def seconds(self) -> float: ...
    @property
    def allocated(self) -> Places: ...
    @property
    def elementwise(self) -> bool: ...


class DeviceMemory:
    """The memory of each device, in program order."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.peaks: dict[int, int] = {}

    def base(self) -> dict[int, int]:
        self.peaks = dict(self.live)
        return dict(self.live)

    def take(self, places: Places, at: float) -> None:
        live, peaks = self.live, self.peaks
        for device, nbytes in places:
            live[device] = now = live.get(device, 0) + nbytes
            if now > peaks.get(device, 0):
                peaks[device] = now

    def free(self, places: Places, at: float) -> None:
        for device, nbytes in places:
            self.live[device] -= nbytes

    def peak(self) -> dict[int, int]:
        return self.peaks


class TimedMemory(DeviceMemory):
    """The memory of each device by the clock: what is freed at a time can be taken again at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[int, list[tuple[float, int]]] = {}

    def base(self) -> dict[int, int]:
        found = super().base()
        self.changes = {device: [] for device in found}
        return found

    def take(self, places: Places, at: float) -> None:
        for device, nbytes in places:
            self.changes.setdefault(device, []).append((at, nbytes))

    def free(self, places: Places, at: float) -> None:
        for device, nbytes in places:
            self.changes.setdefault(device, []).append((at, -nbytes))

    def peak(self) -> dict[int, int]:
        found = {}
        for device, changes in self.changes.items():
            now = most = self.peaks.get(device, 0)
            for _, change in sorted(changes):
                now += change
                most = max(most, now)
            found[device] = most
        return found


def _last_of_group(eqn: DeviceEqn, uses: dict[DeviceValue, int]) -> DeviceValue | None:
    """An operand like the result that is read for the last time."""
    result = eqn.outputs[0].type
    return next((v for v in eqn.values if uses[v] == 1 and v.type == result), None)


def _uses(fn: Function) -> dict[DeviceValue, int]:
    """How often each value is read; what is returned stays, and inputs are never released."""
    uses: dict[DeviceValue, int] = {}
    for eqn in fn.eqns:
        for x in eqn.inputs:
            if x.__class__ is DeviceValue:
                uses[x] = uses.get(x, 0) + 1  # type: ignore[index, arg-type]
    for v in fn.outputs:
        uses[v] = uses.get(v, 0) + 1
    uses.update(dict.fromkeys(fn.inputs, -1))
    return uses


def remember(
    fn: Function,
    facts: Sequence[MemoryFacts],
    starts: Sequence[float],
    places: Callable[[DeviceValue], Places],
    memory: DeviceMemory,
    reuses: bool,
) -> None:
    """Take memory when an op starts, and give it back when the last that reads it ends."""
    uses = _uses(fn)
    read: dict[object, float] = {}  # when the last op that reads a value so far ends
    for eqn, fact, start in zip(fn.eqns, facts, starts, strict=True):
        end = start + fact.seconds
        # An elementwise op may write into an operand of the same size that nobody reads again.
        over = _last_of_group(eqn, uses) if fact.elementwise else None
        if over is not None and read.get(over, 0.0) > start:  # a message that carries it is still under way
            over = None
        if over is not None:
            memory.free(places(over), start)
        if fact.allocated:
            memory.take(fact.allocated, start)
            if reuses:
                for v in eqn.outputs:
                    if v not in uses:
                        memory.free(places(v), end)
        for x in eqn.inputs:
            if x.__class__ is DeviceValue:
                uses[x] -= 1  # type: ignore[index]
                last = read.get(x, 0.0)
                if end > last:
                    read[x] = last = end
                if not uses[x] and x is not over:  # type: ignore[index]
                    memory.free(places(x), last)  # type: ignore[arg-type]
