"""Constraints on values inside of a step as a user writes them: around expressions of the step's own functions.

A layout of values inside is given to equations. Which expression of the user's code a value is, the step traced again
with expressions says; the functions with constraints around these are then traced and simulated in their turn, so that
what is printed is what was simulated.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.core import tree
from meshwright.core.program import Program, Var
from meshwright.core.source import ExpressionSource, with_expressions
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.search.layout.texts import heading, spec_text
from meshwright.sharding.spec import PartitionSpec

if TYPE_CHECKING:
    from meshwright.search.layout.found import FoundLayout
    from meshwright.search.layout.step import Step

PAYS = 0.99  # of the time without constraints: what saves less is not worth writing
SAME = 1.002  # of the time with a constraint: one without which it takes no longer is left out
MOST = 16  # constraints of which those are left out that are not needed


class WrittenConstraint(NamedTuple):
    """A constraint around an expression of the user's code."""

    source: ExpressionSource
    type: TensorType
    spec: PartitionSpec

    def __str__(self) -> str:
        return f"{self.source}  {self.type.short()}  {self.spec}"


def written(layout: FoundLayout, plain_seconds: float) -> FoundLayout | None:
    """A layout with constraints, these as expressions of the step's functions; None if they cannot be written so, or do
    not pay."""
    step = layout.step
    assert step is not None
    if step.microbatches > 1:  # constraints are on values of parts, which no line of the step makes
        return None
    try:
        found = _simulated(layout, step, tuple(_expressions(step, layout.specs)))
    except (MeshwrightError, OSError, SyntaxError, TypeError):  # no source, or none that can be run by itself
        return None
    if found is None or not found.fits or found.seconds > PAYS * plain_seconds:
        return None
    size = len(found.written) // 2 if len(found.written) <= MOST else 0
    while size:  # half of them at once, then fewer: most are not needed
        known = found.written
        for first in range(0, len(known), size):
            out = known[first : first + size]
            fewer = _simulated(layout, step, tuple(one for one in found.written if one not in out))
            if fewer is not None and fewer.fits and fewer.seconds <= SAME * found.seconds:
                found = fewer
        size = min(size, len(found.written)) // 2
    return found


def _simulated(layout: FoundLayout, step: Step, constraints: Sequence[WrittenConstraint]) -> FoundLayout | None:
    """The layout of the step with constraints around expressions."""
    if not constraints:
        return None
    namespace = dict(_plain(step.function).__globals__)
    exec("\n".join([*heading(layout.mesh, "meshwright"), functions(step.function, constraints)]), namespace)
    other = step.with_function(_again(step.function, namespace))
    given = [s.to_tensor_sharding(t.ndim) for s, t in zip(tree.leaves(layout.in_shardings), step.types, strict=True)]
    now = layout.simulation
    found = other.laid_out(given, now.topology, layout.name, {}, layout.memory, now.machine.mode)
    return replace(found, constraints=tuple(constraints), written=tuple(constraints))


def to_paste(found: Sequence[FoundLayout]) -> list[FoundLayout]:
    """Layouts with one first that can be pasted: without constraints if that is hardly slower, else with constraints as
    they are written."""
    best = found[0]
    plain = next((one for one in found if not one.constraints and one.fits and _is_simulated(one) and one.fits), None)
    if not best.constraints or not best.fits:
        return list(found)
    if plain is not None and PAYS * plain.seconds <= best.seconds:
        return [plain, *(one for one in found if one is not plain)]
    code = written(best, plain.seconds if plain is not None else inf)
    return list(found) if code is None else [code, *found[1:]]


def _is_simulated(one: FoundLayout) -> bool:
    """Whether a layout was simulated, or is now, with all of its layers."""
    return one.kind == "simulated" or (one.kind == "extrapolated" and bool(one.simulation))


def jax_imports(function: Callable[..., Any]) -> list[str]:
    """JAX's modules under the names that a file has for ours."""
    names = _plain(function).__globals__.items()
    found = [(name, value.__name__) for name, value in names if isinstance(value, ModuleType)]
    known = [(name, "jax" + module.removeprefix("meshwright")) for name, module in found if module in _IN_JAX]
    return ["", "", "# modules under the names that the step has for them"] + [
        f"import {module} as {name}" for name, module in known
    ]


_IN_JAX = ("meshwright", "meshwright.numpy", "meshwright.lax", "meshwright.nn", "meshwright.random", "meshwright.tree")


def _plain(function: Callable[..., Any]) -> FunctionType:
    """The function itself, without arguments that it was given beforehand."""
    found = function.func if isinstance(function, partial) else function
    if not isinstance(found, FunctionType) or "." in found.__qualname__:
        raise TypeError(f"{found!r} is not a function of a module")
    return found


def _again(function: Callable[..., Any], namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of the same name, with the same arguments given beforehand."""
    found: Callable[..., Any] = namespace[_plain(function).__name__]
    return partial(found, *function.args, **function.keywords) if isinstance(function, partial) else found


def _expressions(step: Step, specs: Mapping[Var, PartitionSpec]) -> Iterator[WrittenConstraint]:
    """The expressions whose values have specs, each once: where it is first evaluated, in the forward pass."""
    file = inspect.getsourcefile(_plain(step.function))
    with with_expressions():
        again = step.with_function(step.function)
    found: dict[tuple[int, int, int, int], WrittenConstraint] = {}
    seen: set[tuple[int, int, int, int]] = set()
    for run in _runs(step.program, again.program):
        source, last = run[-1][0], run[-1][1]
        if source.file != file or source.span in seen:
            continue
        seen.add(source.span)
        laid = [specs[var] for _, var in run if var in specs and var.type.shape == last.type.shape]
        if laid:
            found[source.span] = WrittenConstraint(source, last.type, laid[-1])
    yield from found.values()


def _runs(program: Program, again: Program) -> Iterator[list[tuple[ExpressionSource, Var]]]:
    """Equations one after another that one expression made, with their results."""
    if [e.op.name for e in program.eqns] != [e.op.name for e in again.eqns]:
        raise TypeError("the step is made of other equations when it is traced again")
    run: list[tuple[ExpressionSource, Var]] = []
    for eqn, same in zip(program.eqns, again.eqns, strict=True):
        for (_, region), (_, other) in zip(eqn.regions(), same.regions(), strict=True):
            yield from _runs(region, other)
        source = same.source
        if run and (not isinstance(source, ExpressionSource) or source.span != run[-1][0].span):
            yield run
            run = []
        if isinstance(source, ExpressionSource) and len(eqn.outputs) == 1:
            run.append((source, eqn.outputs[0]))
    if run:
        yield run


def functions(function: Callable[..., Any], constraints: Sequence[WrittenConstraint], call: str = "constrained") -> str:
    """The functions of the step's file that have these expressions, with constraints around them, and the step."""
    plain = _plain(function)
    lines = [line.encode() for line in inspect.findsource(plain)[0]]
    parts = []
    left = {one.source.span: one for one in constraints}
    for node in ast.parse(b"".join(lines)).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        mine = {s: one for s, one in left.items() if first <= s[0] and s[2] <= (node.end_lineno or 0)}
        if mine or node.name == plain.__name__:
            parts.append(_with_constraints(lines, first, node.end_lineno or first, list(mine.values()), call))
        left = {s: one for s, one in left.items() if s not in mine}
    if left:
        raise TypeError("an expression is outside of functions")
    return "\n\n".join(["", *parts])


def _with_constraints(
    lines: Sequence[bytes], first: int, last: int, constraints: Sequence[WrittenConstraint], call: str
) -> str:
    """Lines of a function with a call around each expression."""
    pieces: list[tuple[tuple[int, int], int, bytes]] = []
    for one in constraints:
        line, column, end_line, end_column = one.source.span
        size = 10_000 * (end_line - line) + end_column - column  # of two that begin or end together, one is inside
        pieces.append(((line, column), -size, f"{call}(".encode()))
        pieces.append(((end_line, end_column), size - 10_000_000, f", {spec_text(one.spec)})".encode()))
    text = {n: lines[n - 1] for n in range(first, last + 1)}
    for (line, column), _, piece in sorted(pieces, key=lambda p: (p[0], p[1]), reverse=True):
        text[line] = text[line][:column] + piece + text[line][column:]
    return b"".join(text.values()).decode().rstrip()
