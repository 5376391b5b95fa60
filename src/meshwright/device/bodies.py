"""Equations on parts as the body of a pmap, or of a stage's call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.device.classes import signatures
from meshwright.device.function import DeviceEqn, DeviceValue, Number, Operand
from meshwright.device.spread import COPY, SpreadStep, Version
from meshwright.device.tensor_ops import localize, params_of
from meshwright.device.types import Device, Tensor


class DeviceBody:
    """The equations of some steps on a device; ``local`` says what a version is there."""

    def __init__(self, steps: Sequence[SpreadStep], local: Callable[[Version, Device], Tensor], device: Device) -> None:
        self.local, self.device = local, device
        self.values: dict[Version, DeviceValue] = {}
        self.inputs: dict[Version, DeviceValue] = {}
        self.eqns = tuple(self.equation(step) for step in steps)

    def take(self, version: Version) -> DeviceValue:
        """A version as an input, unless it is made here."""
        if version not in self.values:
            self.values[version] = self.inputs[version] = DeviceValue(version[0].name, self.local(version, self.device))
        return self.values[version]

    def equation(self, step: SpreadStep) -> DeviceEqn:
        operands = tuple(v if isinstance(v, Number) else self.take(v) for v in step.operands)
        for v in step.results:
            self.values[v] = DeviceValue(v[0].name, self.local(v, self.device))
        results = tuple(self.values[v] for v in step.results)
        return DeviceEqn(step.eqn.op, operands, results, self.attributes(step, operands, results))

    def attributes(
        self, step: SpreadStep, operands: Sequence[Operand], results: Sequence[DeviceValue]
    ) -> dict[str, Any]:
        given = params_of(step.eqn)
        kept = {"device": self.device} if "device" in step.eqn.attributes else {}
        whole = all(layout == COPY for _, layout in versions(step))
        if whole:
            return {**given, **kept}
        return {**localize(step.eqn.op, given, signatures(operands), signatures(results)), **kept}


def versions(step: SpreadStep) -> list[Version]:
    """What a step takes and gives."""
    return [v for v in step.operands if not isinstance(v, Number)] + list(step.results)
