"""Every signal, wait, start and barrier of the collectives is needed: without any one of them a mistake is found."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel import collectives
from tests.kernel.driver import on_devices

SYNCHRONIZES = {"semaphore_signal", "semaphore_wait", "start", "wait", "wait_send", "wait_recv", "barrier"}
SHAPE = (4, 8)
# The arguments that a collective is made with, and the shape of what each device has.
KERNELS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "right_permute": ((SHAPE,), SHAPE),
    "asymmetric_send": ((SHAPE,), SHAPE),
    "ring_all_gather": ((4, SHAPE), SHAPE),
    "ring_all_reduce": ((4, SHAPE), SHAPE),
    "reduce_scatter": ((4, SHAPE), (4, *SHAPE)),
    "all_to_all": ((4, SHAPE), (4, *SHAPE)),
}


def synchronizes(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    function = node.value.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in SYNCHRONIZES


def tree_of(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(getattr(collectives, name)))


class Without(ast.NodeTransformer):
    """Takes one statement out."""

    def __init__(self, number: int) -> None:
        self.left = number

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if synchronizes(node):
            self.left -= 1
            if self.left == -1:
                return ast.copy_location(ast.Pass(), node)
        return node


def statements(name: str) -> list[str]:
    found: list[str] = []

    class Find(ast.NodeVisitor):
        def visit_Expr(self, node: ast.Expr) -> None:
            if synchronizes(node):
                found.append(ast.unparse(node))

    Find().visit(tree_of(name))
    return found


def run(make: Any, name: str, debug: pl.Debug) -> None:
    arguments, shape = KERNELS[name]
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    on_devices(make(*arguments, debug=debug), {"x": 4}, [[row] for row in x])


MUTANTS = [(name, number) for name in KERNELS for number in range(len(statements(name)))]


@pytest.mark.parametrize(("name", "number"), MUTANTS, ids=[f"{name}: {statements(name)[n]}" for name, n in MUTANTS])
def test_a_kernel_without_one_of_its_synchronizations_is_found_out(name, number):
    mutant = ast.fix_missing_locations(Without(number).visit(tree_of(name)))
    names = dict(vars(collectives))
    exec(compile(mutant, "mutant.py", "exec"), names)
    with pytest.raises(pltpu.KernelError):
        run(names[name], name, pl.Debug(schedules=32))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_themselves_are_clean_over_many_schedules(name):
    run(getattr(collectives, name), name, pl.Debug(schedules=128, seed=1))
