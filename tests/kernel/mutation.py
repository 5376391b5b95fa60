"""Kernels without one of their synchronizations: modules are read, one statement is taken out, and the rest is run."""

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


class _Change(ast.NodeTransformer):
    """Replaces each synchronizing statement by what ``change`` makes of it and its number."""

    def __init__(self, change: Callable[[int, ast.Expr], Any]) -> None:
        self.change = change
        self.number = -1

    def visit_Expr(self, node: ast.Expr) -> Any:
        if not synchronizes(node):
            return node
        self.number += 1
        return self.change(self.number, node)


def sites(module: ModuleType) -> list[str]:
    """The synchronizing statements of a module, with their lines."""
    found: list[str] = []

    def note(number: int, node: ast.Expr) -> ast.AST:
        found.append(f"{node.lineno}: {ast.unparse(node)}")
        return node

    _Change(note).visit(ast.parse(inspect.getsource(module)))
    return found


def changed(module: ModuleType, change: Callable[[int, ast.Expr], Any], **names: Any) -> ModuleType:
    """A module whose synchronizing statements were changed; its functions find ``names`` beside their own."""
    tree = ast.fix_missing_locations(_Change(change).visit(ast.parse(inspect.getsource(module))))
    made = ModuleType(module.__name__ + "_changed")
    made.__dict__.update(names)
    sys.modules[made.__name__] = made  # dataclasses look for the module of their annotations
    exec(compile(tree, "mutant.py", "exec"), made.__dict__)
    return made


def without(module: ModuleType, number: int) -> ModuleType:
    """A module without one of its synchronizing statements."""
    return changed(module, lambda n, node: ast.copy_location(ast.Pass(), node) if n == number else node)


def watched(module: ModuleType, reached: set[int]) -> ModuleType:
    """A module that notes the number of every synchronizing statement it comes to."""

    def note(number: int, node: ast.Expr) -> list[ast.stmt]:
        call = ast.parse(f"_reached.add({number})").body[0]
        return [ast.copy_location(call, node), node]

    return changed(module, note, _reached=reached)
