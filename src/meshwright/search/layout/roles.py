"""Groups that play the same role: those of equal layers, which are laid out alike."""

from __future__ import annotations

from collections.abc import Hashable

from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutGroup

ROUNDS = 1  # how far around a group one looks


def assign_roles(graph: LayoutGraph) -> list[LayoutGroup]:
    """Number the roles of groups, and return one group of each role."""
    known: dict[Hashable, int] = {}
    roles = [known.setdefault(_signature(group), len(known)) for group in graph.groups]
    before: list[list[int]] = [[] for _ in graph.groups]
    after: list[list[tuple[int, int, int]]] = [
        [] for _ in graph.groups
    ]  # who reads it, in which step, as which operand
    for group in graph.groups:
        for place, step in enumerate(group.steps):
            for number, value in enumerate(step.inputs):
                maker = _maker(value)
                if maker is not None and maker is not group:
                    before[group.number].append(maker.number)
                    after[maker.number].append((group.number, place, number))
    for _ in range(ROUNDS):
        known = {}
        roles = [
            known.setdefault(
                (
                    role,
                    tuple(roles[n] for n in before[number]),
                    frozenset((roles[n], *place) for n, *place in after[number]),
                ),
                len(known),
            )
            for number, role in enumerate(roles)
        ]
    members: dict[int, list[LayoutGroup]] = {}
    for group, role in zip(graph.groups, roles, strict=True):
        group.role = role
        members.setdefault(role, []).append(group)
    found = []
    for _, alike in sorted(members.items()):
        chosen = alike[len(alike) // 2]  # one that stands among its like
        chosen.count = sum(group.first.weight for group in alike)
        found.append(chosen)
    return found


def _maker(value: LaidValue) -> LayoutGroup | None:
    while value.step is not None and value.step.group is None and value.step.inputs:
        value = max(value.step.inputs, key=lambda x: x.type.nbytes)
    return None if value.step is None else value.step.group


def _signature(group: LayoutGroup) -> Hashable:
    place: dict[LaidValue, int] = {}
    found = []
    for step in group.steps:
        for value in step.outputs:
            place[value] = len(place)
        op = None if step.eqn is None else (step.eqn.op.name, repr(sorted(step.eqn.params.items(), key=lambda p: p[0])))
        types = tuple((x.type.shape, x.type.dtype) for x in (*step.inputs, *step.outputs))
        found.append((step.kind, op, types, step.main, step.times, tuple(place.get(x) for x in step.inputs)))
    return tuple(found)
