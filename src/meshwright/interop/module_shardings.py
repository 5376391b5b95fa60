"""Meshes and shardings of a module: sdy's attributes as ours, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.core.mesh import Mesh
from meshwright.core.sharding import TensorSharding
from meshwright.interop.mlir_context import string

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
    """The shardings of a module, each read once."""

    def __init__(self, meshes: dict[str, Mesh]) -> None:
        self.meshes = meshes
        self._read: dict[Any, Any] = {}

    def one(self, attribute: Any) -> TensorSharding:
        """``#sdy.sharding<…>``."""
        found = self._read.get(attribute)
        if found is None:
            found = self._read[attribute] = TensorSharding.parse(str(attribute), self.meshes)
        return found  # type: ignore[no-any-return]

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
