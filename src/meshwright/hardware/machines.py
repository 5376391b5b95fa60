"""Machines for meshes: made for one, or given and one laid on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import lcm, prod

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, get, names
from meshwright.hardware.placement import place
from meshwright.hardware.topology import Topology, joining, mesh_sizes

_COUNTED_IN_CHIPS = ("v5e", "v6e")


def machine_for(hardware: object, mesh: Mapping[str, int], what: str) -> Topology:
    """The machine on which the mesh of ``what`` lies: as given, laid on the one given, or made of the chip named.

    >>> machine_for("tpu v5e", {"x": 2, "y": 4}, "program")
    Topology('tpu v5e', 2x4, mesh x=2 y=4)
    >>> machine_for("tpu v5e 4x4", {"x": 2, "y": 4}, "program")
    Topology('tpu v5e', 4x4, mesh x=2 y=4)
    """
    if isinstance(hardware, str):
        hardware = named_machine(hardware)
    check_machine(hardware, what, "hardware")
    if isinstance(hardware, Chip):
        return for_mesh(hardware, mesh)
    assert isinstance(hardware, Topology)
    if not hardware.mesh:
        try:
            return Topology(hardware.chip, hardware.shape, mesh=mesh, wrap=hardware.wrap, slices=hardware.slices)
        except HardwareError as error:
            other = for_mesh(hardware.chip, mesh)
            shape = other.shape if len(other.shape) > 1 else other.shape[0]
            slices = f", slices={other.slices}" if other.slices > 1 else ""
            error.fix = f"Topology({hardware.chip.name!r}, {shape}{slices})"
            raise
    if any(hardware.mesh.get(name) != size for name, size in mesh.items()):
        raise HardwareError(
            f"The {what}'s mesh is {sizes_text(mesh)}, the machine's {sizes_text(hardware.mesh)}.",
            where=here(),
            why=f"collectives work along the axes of the {what}'s mesh",
            fix=f"Topology({hardware.chip.name!r}, {hardware.shape}, mesh={dict(mesh)})",
        )
    return hardware


def named_machine(text: str) -> Chip | Topology:
    """A chip by its name or a file that ``meshwright calibrate`` wrote, or chips in a shape.

    >>> named_machine("tpu v5e"), named_machine("tpu v5e 4x8"), named_machine("h100 16")
    (Chip('tpu v5e'), Topology('tpu v5e', 4x8), Topology('h100', 16))
    """
    match = re.fullmatch(r"(.*\S)\s+([0-9]+(?:x[0-9]+)*)", text.strip(), re.ASCII)
    if match is None:
        _check_cloud_name(text.strip())
    return Topology(get(match[1]), match[2]) if match else get(text)


def _check_cloud_name(text: str) -> None:
    """Refuse the name that a cloud has for a slice: of some chips it counts chips, of others their cores, two each."""
    match = re.fullmatch(r"(?:tpu\s*)?(v[0-9]+[a-z]*)-([0-9]+)", text.lower(), re.ASCII)
    if match is None or f"tpu {match[1]}" not in names():
        return
    chips = int(match[2]) if match[1] in _COUNTED_IN_CHIPS else max(1, int(match[2]) // 2)
    raise HardwareError(
        f"{text!r} is not how a machine is named here.",
        where=here(),
        why=f"a chip and a number or a shape are: {match[1]}-{match[2]} has {chips} chips",
        fix=f"'tpu {match[1]} {chips}'",
    )


def check_machine(hardware: object, what: str, argument: str) -> None:
    """Raise if it is neither a machine nor the name of one; the fix is what to give as ``argument``.

    >>> check_machine("tpu v5e", "program", "hardware")
    """
    if isinstance(hardware, str):
        try:
            named_machine(hardware)  # an error that lists the chips
        except HardwareError as error:
            error.fix = re.sub(r"hardware\.get\(('[^']*')\)", rf"{argument}=\1", error.fix)
            raise
    elif not isinstance(hardware, Chip | Topology):
        raise HardwareError(
            f"{hardware!r} is not a machine.",
            where=here(),
            why=f"what a {what} costs depends on the chips and how they are joined",
            fix='mw.hardware.Topology("tpu v5e", (4, 4)), or the name of a chip',
        )


def sizes_text(mesh: Mapping[str, int]) -> str:
    """``x=2, y=4``."""
    return ", ".join(f"{name}={size}" for name, size in mesh.items())


def for_mesh(chip: str | Chip, mesh: object) -> Topology:
    """A machine for a mesh: of the mesh's own shape if there is one, else the most wrapped and most even that holds
    it.

    Mesh axes beyond a chip's dimensions are folded together; what is larger than a pod becomes slices. GPUs that a mesh
    does not fill nodes with are in as many nodes as share them evenly.

    >>> for_mesh("tpu v5e", {"x": 2, "y": 4})
    Topology('tpu v5e', 2x4, mesh x=2 y=4)
    >>> for_mesh("tpu v5e", {"data": 32, "model": 16})
    Topology('tpu v5e', 16x16, wrap=0,1, slices=2, mesh data=32 model=16)
    >>> for_mesh("h100", {"x": 3, "y": 4})
    Topology('h100', 24, mesh x=3 y=4)
    """
    sizes, found = mesh_sizes(mesh), get(chip)
    lengths = [size for size in sizes.values() if size > 1] or [1]
    total = prod(lengths)
    if joining(found) is None:
        return Topology(found, total, mesh=sizes)
    if found.kind == "gpu":
        node = int(found.nvlink_domain)
        return Topology(found, total if total <= node else lcm(total, node), mesh=sizes)
    dims = int(found.torus_dims)
    folded = lengths if len(lengths) <= dims else [*lengths[: dims - 1], prod(lengths[dims - 1 :])]
    fact = found.facts.get("pod_shape")
    pod = sorted(fact.value if fact else [], reverse=True)
    if all(a <= b for a, b in zip(sorted(folded, reverse=True), pod)):
        return Topology(found, tuple(folded), mesh=sizes)
    for chips in (n for n in range(min(total, prod(pod)), 0, -1) if total % n == 0):  # of a slice: few large ones
        shapes = [
            shape
            for shape in _factorings(chips, dims, pod[0])
            if all(a <= b for a, b in zip(sorted(shape, reverse=True), pod))
            and place(sizes, shape, total // chips) is not None
        ]
        if shapes:
            machines = [Topology(found, shape, mesh=sizes, slices=total // chips) for shape in shapes]
            return max(machines, key=lambda machine: (sum(machine.wrap), -max(machine.shape), machine.shape))
    return Topology(found, tuple(folded), mesh=sizes)


def _factorings(number: int, count: int, most: int) -> Iterable[tuple[int, ...]]:
    """Every way to write a number as a product of ``count`` factors up to ``most``, in order.

    >>> list(_factorings(8, 2, 4))
    [(2, 4), (4, 2)]
    """
    if count == 1:
        return [(number,)] if number <= most else []
    return [
        (first, *rest)
        for first in range(1, min(number, most) + 1)
        if number % first == 0
        for rest in _factorings(number // first, count - 1, most)
    ]
