"""Passes on all shardings of a module at once: meshes written into them, or everything of sdy taken off."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from meshwright.interop.shardy.module_shardings import Shardings, meshes_of, per_value_text
from meshwright.interop.shardy.module_walk import SHARDING, walk
from meshwright.interop.stablehlo.context import context, string
from meshwright.sharding.named import TensorSharding

_ON_FUNCTIONS = ("arg_attrs", "res_attrs")
_ON_OPS = (SHARDING, "sharding", "out_sharding", "in_shardings", "out_shardings")


def inline_meshes(module: Any) -> None:
    """Write into every sharding the mesh that it names; the meshes are then gone."""
    with context():
        _change(module, inlined)
        _erase_meshes(module)


def inlined(sharding: TensorSharding) -> TensorSharding:
    """A sharding with its mesh written into it."""
    mesh = sharding.mesh.with_(name="")
    return TensorSharding.unchecked(mesh, sharding.dims, sharding.replicated, sharding.unreduced, sharding.reduction)


# How the arguments and results of main were laid out, on a module that was made local.
PARAMETERS, OUTPUTS = "sdy.parameters_shardings", "sdy.output_shardings"


def drop_shardings_and_meshes(module: Any, keep_metadata: bool = False) -> None:
    """Take the shardings off functions and ops, and the meshes that nobody names any more out of a module.

    ``keep_metadata``: a local module goes on saying how main was laid out.
    """
    from jaxlib.mlir import ir

    with context():
        for key in () if keep_metadata else (PARAMETERS, OUTPUTS):
            if key in module.operation.attributes:
                del module.operation.attributes[key]
        for op in walk(module.operation):
            if op.name == "func.func":
                for key in _ON_FUNCTIONS:
                    _change_dictionaries(op, key, ir, None)
            elif SHARDING in op.attributes:
                del op.attributes[SHARDING]
        text = str(module)
        _erase_meshes(module, lambda name: not re.search(rf"<@{re.escape(name)}[,>]", text))


_DEBUG_INFO = ("sdy.sharding_origins", "sdy.sharding_origin_name", "sdy.propagation_edges")


def remove_debug_info(module: Any) -> None:
    """Take off what propagation wrote for those who look for where shardings came from."""
    from jaxlib.mlir import ir

    with context():
        for op in walk(module.operation):
            for name in _DEBUG_INFO:
                if name in op.attributes:
                    del op.attributes[name]
            for key in _ON_FUNCTIONS if op.name == "func.func" else ():
                for name in _DEBUG_INFO:
                    _change_dictionaries(op, key, ir, None, name)


def _erase_meshes(module: Any, is_gone: Callable[[str], bool] = lambda name: True) -> None:
    for op in [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]:
        if is_gone(string(op.attributes["sym_name"])):
            op.erase()


def _change(module: Any, change: Callable[[TensorSharding], TensorSharding]) -> None:
    """Change every sharding of a module."""
    from jaxlib.mlir import ir

    shardings = Shardings(meshes_of(module))
    made: dict[Any, Any] = {}

    def changed(attribute: Any) -> Any:
        if attribute not in made:
            if str(attribute).startswith("#sdy.sharding_per_value"):
                text = per_value_text(map(change, shardings.several(attribute)))
            else:
                text = str(change(shardings.one(attribute)))
            made[attribute] = ir.Attribute.parse(text)
        return made[attribute]

    for op in walk(module.operation):
        if op.name == "func.func":
            for key in _ON_FUNCTIONS:
                _change_dictionaries(op, key, ir, changed)
            continue
        for key in _ON_OPS:
            attribute = op.attributes.get(key)
            if attribute is not None and str(attribute).startswith("#sdy.sharding"):
                op.attributes[key] = changed(attribute)


def _change_dictionaries(op: Any, key: str, ir: Any, change: Callable[[Any], Any] | None, name: str = SHARDING) -> None:
    """Change an attribute of the arguments or results of a function, or take it off."""
    attribute = op.attributes.get(key)
    if attribute is None:
        return
    new = []
    for part in ir.ArrayAttr(attribute):
        entries = {item.name: item.attr for item in ir.DictAttr(part)}
        found = entries.pop(name, None)
        if found is not None and change is not None:
            entries[name] = change(found)
        new.append(ir.DictAttr.get(entries))
    if any(len(entry) for entry in new):
        op.attributes[key] = ir.ArrayAttr.get(new)
    else:
        del op.attributes[key]
