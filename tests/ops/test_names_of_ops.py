"""What a stage must know of an op is a fact of the op: few modules ask which one it is.

A module names an op where it compares something with one, or has one as a key of a dict or an element of a set, tuple
or list: the op itself, or its name as text.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Iterator
from importlib import import_module

from meshwright.core.factors import COMBINATIONS
from meshwright.core.op import REGISTRY, Op
from meshwright.core.signature import signature_of
from meshwright.device.ops import OPS, DeviceOp
from meshwright.hardware.collectives import KINDS
from meshwright.kernel import operation as _operation  # noqa: F401  (pallas_call)
from meshwright.transform import every_op as _every_op  # noqa: F401
from tests.test_layering import MODULES, imports

MOST = 15

# Where users find ops, and where programs are written in the words of others.
PUBLIC = (
    "numpy", "lax", "nn", "random", "tree", "pallas", "dist", "jax", "report", "commands", "interop", "meshwright",
    "__main__",
)  # fmt: skip

# A module that imports none of these has no op in hand, and its words are about something else.
PROGRAMS = ("core.op", "core.program", "core.trace", "device.function", "ops", "transform")

NAMES = frozenset({*REGISTRY, *REGISTRY.LATE})

# Names of ops that mean something else, too: Python's functions and operators, kinds of collectives, how parts combine,
# params of ops. They count where they are compared with the name of an op, or held beside one that means nothing else.
AMBIGUOUS = NAMES & {
    *dir(builtins),
    *(word.strip("_") for word in dir(operator)),
    *KINDS,
    *COMBINATIONS,
    "sign",  # a kind of token, too
    *(param for op in REGISTRY.values() for param in signature_of(op.type).params),
}


def defines_ops(module: str) -> bool:
    """Whether a module is where an op lives, as those with regions do outside of ``ops``."""
    return ": Op = define_op(" in MODULES[module].read_text(encoding="utf-8")


def counted(module: str) -> bool:
    """Whether a module should do without names of ops."""
    if module.split(".")[0] in ("ops", *PUBLIC) or defines_ops(module):
        return False
    found = [one.target.removeprefix("meshwright.") for one in imports(module)]
    return module in PROGRAMS or any(f"{target}.".startswith(f"{seen}.") for target in found for seen in PROGRAMS)


def named(module: str) -> set[tuple[int, str]]:
    """The names of ops in a module, with their lines."""
    values = vars(import_module(f"meshwright.{module}"))
    ops = {name for name, value in values.items() if isinstance(value, Op) and not isinstance(value, DeviceOp)}
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = {(node.lineno, name) for node in ast.walk(tree) for name in _held(node, ops)}
    # In a device program some names of ops are those of what devices do together.
    return {(line, name) for line, name in found if not (module.startswith("device.") and name in OPS)}


def _held(node: ast.AST, ops: set[str]) -> Iterator[str]:
    compared = isinstance(node, ast.Compare)
    if isinstance(node, ast.Compare):
        held = [one for side in (node.left, *node.comparators) for one in _elements(side)]
    elif isinstance(node, ast.Dict):
        held = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Set | ast.Tuple | ast.List):
        held = node.elts
    else:
        return
    if not any(isinstance(one, ast.Constant) and one.value is None for one in held):
        objects = [one.id for one in held if isinstance(one, ast.Name) and one.id in ops]
        yield from objects if compared or len(objects) == len(held) or isinstance(node, ast.Dict | ast.Set) else ()
    texts = [one.value for one in held if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    names = [text for text in texts if text in NAMES]
    asked = compared and (".op" in ast.unparse(node) or "op.name" in ast.unparse(node))
    certain = asked or any(name not in AMBIGUOUS for name in names)
    yield from names if certain and len(names) * 2 >= len(texts) else ()


def _elements(side: ast.expr) -> list[ast.expr]:
    return side.elts if isinstance(side, ast.Set | ast.Tuple | ast.List) else [side]


def test_few_modules_name_ops() -> None:
    found = {module: named(module) for module in MODULES if counted(module)}
    shown = [
        f"{module}: {', '.join(f'{name} ({line})' for line, name in sorted(names))}"
        for module, names in found.items()
        if names
    ]
    assert len(shown) <= MOST, "\n".join([f"{len(shown)} modules name ops:", *shown])


def test_what_names_an_op_is_found() -> None:
    cases = {
        "eqn.op.name == 'add'": {"add"},
        "eqn.op.name in ('scan', 'while')": {"scan", "while"},
        "{'cumsum': 1}": {"cumsum"},
        "eqn.op is psum": {"psum"},
        "(psum, psum)": {"psum"},
        "kind == 'all_gather'": set(),
        "('add', 'sub', 'mul')": set(),
        "{'add': 1, 'rem': 2}": {"add", "rem"},
        "psum is None": set(),
    }
    for text, expected in cases.items():
        nodes = ast.walk(ast.parse(text))
        assert {name for node in nodes for name in _held(node, {"psum"})} == expected, text
