"""Every signal, wait, start and barrier of the collectives is needed: without any one of them a mistake is found."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright.pallas import ops
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops import ring
from tests.kernel import collectives
from tests.kernel.driver import on_devices
from tests.kernel.test_library import check

SYNCHRONIZES = {"semaphore_signal", "semaphore_wait", "start", "wait", "wait_send", "wait_recv", "barrier", "meet"}
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


def tree_of(function: Any) -> ast.Module:
    return ast.parse(inspect.getsource(function))


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


def statements(function: Any) -> list[str]:
    found: list[str] = []

    class Find(ast.NodeVisitor):
        def visit_Expr(self, node: ast.Expr) -> None:
            if synchronizes(node):
                found.append(ast.unparse(node))

    Find().visit(tree_of(function))
    return found


def run(make: Any, name: str, debug: pl.Debug) -> None:
    arguments, shape = KERNELS[name]
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    on_devices(make(*arguments, debug=debug), {"x": 4}, [[row] for row in x])


def mutated(function: Any, number: int) -> Any:
    """A function without one of its synchronizing statements."""
    mutant = ast.fix_missing_locations(Without(number).visit(tree_of(function)))
    names = dict(function.__globals__)
    exec(compile(mutant, "mutant.py", "exec"), names)
    return names[function.__name__]


MUTANTS = [(name, number) for name in KERNELS for number in range(len(statements(getattr(collectives, name))))]
NAMES = [f"{name}: {statements(getattr(collectives, name))[number]}" for name, number in MUTANTS]


@pytest.mark.parametrize(("name", "number"), MUTANTS, ids=NAMES)
def test_a_kernel_without_one_of_its_synchronizations_is_found_out(name, number):
    with pytest.raises(pltpu.KernelError):
        run(mutated(getattr(collectives, name), number), name, pl.Debug(schedules=32))


# Cases of the library, the function each is of, and which of its statements the case never comes to.
LIBRARY: dict[str, tuple[Any, set[int]]] = {
    "right permute": (ops.right_permute, set()),
    "all-gather": (ops.all_gather, set()),
    "all-gather both ways": (ops.all_gather, set()),
    "reduce-scatter": (ops.reduce_scatter, set()),
    "reduce-scatter both ways": (ops.reduce_scatter, set()),
    "all-to-all": (ops.all_to_all, set()),
    "all-gather matmul": (ops.all_gather_matmul, {8}),
    "all-gather matmul both ways": (ops.all_gather_matmul, {8}),
    "all-gather matmul fused": (ops.all_gather_matmul, {3}),
    "all-gather matmul both ways fused": (ops.all_gather_matmul, {3}),
    "matmul reduce-scatter": (ops.matmul_reduce_scatter, set()),
    "matmul reduce-scatter both ways": (ops.matmul_reduce_scatter, set()),
    "ring attention": (ops.ring_attention, set()),
}
LIBRARY_MUTANTS = [
    (name, number)
    for name, (function, never) in LIBRARY.items()
    for number in range(len(statements(function)))
    if number not in never
]
LIBRARY_NAMES = [f"{name}: {statements(LIBRARY[name][0])[number]}" for name, number in LIBRARY_MUTANTS]


@pytest.mark.parametrize(("name", "number"), LIBRARY_MUTANTS, ids=LIBRARY_NAMES)
def test_so_is_a_kernel_of_the_library(name, number, monkeypatch):
    function = LIBRARY[name][0]
    monkeypatch.setattr(ops, function.__name__, mutated(function, number))
    with pytest.raises(pltpu.KernelError):
        check(name, 4, pl.Debug(schedules=16))


@pytest.mark.parametrize("name", ["right permute", "all-gather", "reduce-scatter", "all-to-all", "ring attention"])
@pytest.mark.parametrize("number", range(len(statements(ring.meet))), ids=statements(ring.meet))
def test_and_one_whose_devices_do_not_meet(name, number, monkeypatch):
    module = import_module(LIBRARY[name][0].__module__)
    monkeypatch.setattr(module, "meet", mutated(ring.meet, number))
    with pytest.raises(pltpu.KernelError):
        check(name, 4, pl.Debug(schedules=16))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_themselves_are_clean_over_many_schedules(name):
    run(getattr(collectives, name), name, pl.Debug(schedules=128, seed=1))
