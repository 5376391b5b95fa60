"""Meshes and shardings of a module: sdy's attributes as ours, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.interop.stablehlo.context import string
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding

PREFIX = "#sdy.sharding"


def meshes_of(module: Any) -> dict[str, Mesh]:
    """The meshes a module declares, by name."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            name = string(op.attributes["sym_name"])
            text = str(op.attributes["mesh"]).removeprefix("#sdy.mesh")
            found[name] = Mesh.parse(text).with_(name=name)
    return found


class Shardings:
    """The shardings of a module, each read once.

    ``lifted``: meshes that are equal become one, and meshes written inside a sharding are declared. ``meshes`` are then
    those that remain, ``dropped`` the names that are gone, ``added`` the names that are new. ``single_device`` is what
    a mesh of one device is called, before its number.
    """

    single_device = "maximal_mesh"

    def __init__(self, meshes: dict[str, Mesh], declared_meshes: bool = False) -> None:
        self._names: dict[str, Mesh] = dict(meshes)
        self._read: dict[Any, Any] = {}
        self._declared_meshes = declared_meshes
        self.added: list[str] = []
        if declared_meshes:
            first: dict[str, Mesh] = {}
            self._names = {name: first.setdefault(str(mesh), mesh) for name, mesh in meshes.items()}

    @property
    def meshes(self) -> dict[str, Mesh]:
        return {name: mesh for name, mesh in self._names.items() if mesh.name == name}

    @property
    def dropped(self) -> set[str]:
        return {name for name, mesh in self._names.items() if mesh.name != name}

    def kept(self, name: str) -> str | None:
        """The name that a mesh goes by now."""
        return self._names[name].name

    def one(self, attribute: Any) -> TensorSharding:
        """``#sdy.sharding<…>``."""
        found = self._read.get(attribute)
        if found is None:
            found = TensorSharding.parse(str(attribute), self._names)
            if self._declared_meshes:
                mesh = self._declared(found.mesh) if not found.mesh.name else self._names[found.mesh.name]
                parts = found.dims, found.replicated, found.unreduced, found.reduction
                found = TensorSharding.unchecked(mesh, *parts)
            self._read[attribute] = found
        return found  # type: ignore[no-any-return]

    def _declared(self, mesh: Any) -> Mesh:
        """The mesh of these axes that has a name; a new one is called after its kind, with a number if need be."""
        for known in self._names.values():
            if str(known) == str(mesh):
                return known
        kind = "empty_mesh" if mesh.empty else f"{self.single_device}_{mesh.order[0]}" if mesh.is_maximal else "mesh"
        name, number = kind, 0
        while name in self._names:
            name, number = f"{kind}_{number}", number + 1
        self._names[name] = mesh.with_(name=name)
        self.added.append(name)
        return self._names[name]

    def several(self, attribute: Any) -> tuple[TensorSharding, ...]:
        """``#sdy.sharding_per_value<[<…>, <…>]>``."""
        from jaxlib.mlir.dialects import sdy

        found = self._read.get(attribute)
        if found is None:
            found = tuple(self.one(part) for part in sdy.TensorShardingPerValueAttr(attribute).shardings)
            self._read[attribute] = found
        return found  # type: ignore[no-any-return]

    def of_dictionaries(self, attribute: Any, count: int) -> list[TensorSharding | None]:
        """The shardings in ``arg_attrs`` or ``res_attrs``."""
        from jaxlib.mlir import ir

        if attribute is None:
            return [None] * count
        found: list[TensorSharding | None] = []
        for part in ir.ArrayAttr(attribute):
            entries = ir.DictAttr(part)
            found.append(self.one(entries["sdy.sharding"]) if "sdy.sharding" in entries else None)
        return found


def per_value_text(shardings: Iterable[TensorSharding]) -> str:
    """Shardings of the results of an op, as sdy writes them."""
    return f"#sdy.sharding_per_value<[{', '.join(str(s).removeprefix(PREFIX) for s in shardings)}]>"


def open_sharding(like: TensorSharding, rank: int) -> str:
    """The text of a sharding on the same mesh that says nothing."""
    mesh = str(like).removeprefix(f"{PREFIX}<").split(", [", 1)[0]
    return f"{PREFIX}<{mesh}, [{', '.join(['{?}'] * rank)}]>"


def filled_text(shardings: Sequence[TensorSharding | None], ranks: Sequence[int]) -> str | None:
    """The same for results of which some have none: those are open; None if none of them has one."""
    known = next((sharding for sharding in shardings if sharding is not None), None)
    if known is None:
        return None
    texts = [str(s) if s is not None else open_sharding(known, rank) for s, rank in zip(shardings, ranks, strict=True)]
    return f"#sdy.sharding_per_value<[{', '.join(text.removeprefix(PREFIX) for text in texts)}]>"
