"""Modules of kernels without one of their synchronizations or stores: it is taken out, and the rest is run."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

SYNCHRONIZES = {"semaphore_signal", "semaphore_wait", "start", "wait", "wait_send", "wait_recv", "barrier", "meet"}


def synchronizes(node: ast.AST) -> bool:
    """Whether a statement is a signal, a wait, the start of a copy or a barrier."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    function = node.value.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in SYNCHRONIZES


def stores(node: ast.AST) -> bool:
    """Whether a statement stores to memory."""
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return all(isinstance(part, ast.Subscript) for part in parts)


Which = Callable[[ast.AST], bool]


class _Change(ast.NodeTransformer):
    """Replaces each statement of a kind by what ``change`` makes of it and its number."""

    def __init__(self, change: Callable[[int, Any], Any], which: Which) -> None:
        self.change = change
        self.which = which
        self.number = -1

    def _visit(self, node: Any) -> Any:
        if not self.which(node):
            return node
        self.number += 1
        return self.change(self.number, node)

    visit_Expr = visit_Assign = visit_AugAssign = _visit


def sites(module: ModuleType, which: Which = synchronizes) -> list[str]:
    """The synchronizing statements of a module, or those of another kind, with their lines."""
    found: list[str] = []

    def note(number: int, node: ast.Expr) -> ast.AST:
        found.append(f"{node.lineno}: {ast.unparse(node)}")
        return node

    _Change(note, which).visit(ast.parse(inspect.getsource(module)))
    return found


def changed(
    module: ModuleType, change: Callable[[int, ast.Expr], Any], which: Which = synchronizes, **names: Any
) -> ModuleType:
    """A module whose statements of a kind were changed; its functions find ``names`` beside their own."""
    tree = ast.fix_missing_locations(_Change(change, which).visit(ast.parse(inspect.getsource(module))))
    made = ModuleType(module.__name__ + "_changed")
    made.__dict__.update(names)
    sys.modules[made.__name__] = made  # dataclasses look for the module of their annotations
    exec(compile(tree, "mutant.py", "exec"), made.__dict__)
    return made


def without(module: ModuleType, number: int, which: Which = synchronizes) -> ModuleType:
    """A module without one of its statements of a kind."""
    return changed(module, lambda n, node: ast.copy_location(ast.Pass(), node) if n == number else node, which)


def watched(module: ModuleType, reached: set[int]) -> ModuleType:
    """A module that notes the number of every synchronizing statement it comes to."""

    def note(number: int, node: ast.Expr) -> list[ast.stmt]:
        call = ast.parse(f"_reached.add({number})").body[0]
        return [ast.copy_location(call, node), node]

    return changed(module, note, _reached=reached)
