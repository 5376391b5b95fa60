"""``compiled.explain_sharding(value)``: which value is meant, and why it is sharded as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from meshwright.core import tree
from meshwright.core.program import Var
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.propagate.reasons import Explained, Reasons, equations

if TYPE_CHECKING:
    from meshwright.compile.executable import Executable


class ShardingReasons(tuple[Explained, ...]):
    """The values that were meant, each with its reasons; as text, they are explained line by line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def argument_paths(in_tree: tree.TreeDef, parameters: Sequence[str]) -> list[str]:
    """What a user calls each leaf of the arguments: ``params['w']``.

    >>> argument_paths(tree.flatten((({"w": 1.0}, 2.0), {"rate": 3.0}))[1], ["params"])
    ["params['w']", 'argument 1', 'rate']
    """
    args, kwargs = tree.unflatten(in_tree, range(in_tree.num_leaves))
    named = [(parameters[n] if n < len(parameters) else f"argument {n}", arg) for n, arg in enumerate(args)]
    return [name + path for name, arg in [*named, *sorted(kwargs.items())] for path in tree.path_names(arg)]


def result_paths(out_tree: tree.TreeDef) -> list[str]:
    """What a user calls each leaf of the results: ``result[0]['w']``.

    >>> result_paths(tree.flatten((1.0, {"w": 2.0}))[1])
    ['result[0]', "result[1]['w']"]
    """
    return [f"result{path}" for path in tree.path_names(tree.unflatten(out_tree, range(out_tree.num_leaves)))]


def reasons_of(executable: Executable, in_tree: tree.TreeDef, parameters: Sequence[str]) -> Reasons:
    """The reasons of a program on a mesh."""
    placed = executable.placed
    if placed is None:
        raise MeshwrightError(
            "There is no sharding to explain.",
            where=here(),
            why="the program runs on one device: no argument is on a mesh, and nothing in it says where values go",
            fix="mw.device_put(x, mw.NamedSharding(mesh, mw.P(...)))",
        )
    return Reasons(placed.propagated, argument_paths(in_tree, parameters), result_paths(executable.out_tree))


def explain_sharding(
    executable: Executable, in_tree: tree.TreeDef, parameters: Sequence[str], value: Any
) -> ShardingReasons:
    """Why what ``value`` says is sharded as it is."""
    reasons = reasons_of(executable, in_tree, parameters)
    return ShardingReasons(_meant(executable.placed, reasons, value))


def _meant(placed: Any, reasons: Reasons, value: Any) -> Iterable[Explained]:
    """The explanations of the values that a user names."""
    program = reasons.program
    if isinstance(value, Var):
        var = placed.vars.get(value, value)
        if var in reasons.propagated.numbers:
            return [reasons.of(var)]
        raise _unknown("That variable", reasons, "it is none of compiled.global_program")
    if isinstance(value, int) and not isinstance(value, bool):
        if -len(program.outputs) <= value < len(program.outputs):
            return reasons.of_result(value % len(program.outputs))
        raise _unknown(f"result {value}", reasons, f"there are {len(program.outputs)} results")
    if not isinstance(value, str):
        raise _unknown(repr(value), reasons, "a value is a name, the number of a result, a variable, or a line")
    for var, name in reasons.names.items():
        if name == value:
            return [reasons.of(var)]
    if value in reasons.out_names:
        return reasons.of_result(reasons.out_names.index(value))
    lines = list(dict.fromkeys(v for e in equations(program) if str(e.source or "") == value for v in e.outputs))
    if lines:
        return map(reasons.of, lines)
    raise _unknown(repr(value), reasons, "no argument and no result is called so, and no value is made on such a line")


def _unknown(what: str, reasons: Reasons, why: str) -> MeshwrightError:
    lines = dict.fromkeys(str(e.source) for e in equations(reasons.program) if e.source)
    known = [*reasons.names.values(), *reasons.out_names, *lines]
    close = get_close_matches(what.strip("'\""), known, 1) or known[:1]
    return MeshwrightError(
        f"{what} is no value of the program.",
        where=here(),
        why=why,
        fix="".join(f"compiled.explain_sharding({name!r})" for name in close),
    )
