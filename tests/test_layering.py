"""Architecture is a test: who may import whom, and where imports stand."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent

# From the bottom up, a folder a line, or modules of the root. A module may import what stands on its line or before.
# Interop stands twice: StableHLO and HLO are written by `compile`; what reads them uses all there is.
LAYERS = (
    "errors",
    "core",
    "sharding",
    "hardware",
    "ops",
    "transform",
    "propagate",
    "partition",
    "chart",
    "simulate",
    "engine",
    "interop.decompositions interop.groups interop.hlo interop.stablehlo",
    "engine.device_arrays engine.xla engine.processes",
    "arrays",
    "compile",
    "api",
    "ad_checkpoint tree",
    "numpy",
    "lax",
    "random",
    "nn",
    "image scipy",
    "kernel",
    "report",
    "device",
    "simulate.devices",
    "simulate.transformer",
    "search",
    "interop",
    "debug dist distributed pallas testing",
    "pytest_plugin",
    "jax",
    "meshwright",
    "tour",
    "commands",
    "cli __main__",
)

REQUIRED = frozenset({"greenlet", "numpy", "ml_dtypes", "optree", "rich"})
EXTRAS = frozenset({"jax", "jaxlib", "torch"})
MAY_USE_EXTRAS = ("engine", "interop")

# Imports inside functions: hashlib loads OpenSSL, and few programs have a partition spec.
# Shardings are loaded when an array is first put onto devices.
LATE = {
    "core.dtypes": {"meshwright.sharding.single_device"},
    "core.op": {"meshwright.sharding.explicit"},
    "core.program": {"hashlib", "meshwright.report.notebook"},  # the latter here and below when a notebook asks
    "core.text.parse": {"meshwright.sharding.spec"},
    "core.text.tokens": {"meshwright.sharding.mesh"},
    "core.trace": {
        "meshwright.arrays.placement",  # these for type checkers alone
        "meshwright.numpy.methods",
        "meshwright.numpy.operators",
    },
    "core.text.types": {
        "meshwright.sharding.axes",
        "meshwright.sharding.mesh",
        "meshwright.sharding.explicit",
        "meshwright.sharding.spec",
        "meshwright.sharding.named",
        "meshwright.sharding.check",
    },
    "arrays.placement": {"meshwright.arrays.shards", "meshwright.report.notebook"},
    "api.control": {"meshwright.sharding.explicit"},
    "compile.compiled": {
        "meshwright.compile.explain",
        "meshwright.compile.report",
        "meshwright.compile.partial_sums",
        "meshwright.compile.partitioning",
        "meshwright.compile.sharding_reasons",
        "meshwright.compile.texts",
        "meshwright.report.notebook",
        "meshwright.simulate.memory",
        "meshwright.simulate.spmd",
    },
    "compile.executable": {
        "meshwright.arrays.device_put",
        "meshwright.compile.partial_sums",
        "meshwright.compile.partitioning",
    },
    "compile.jit": {
        "meshwright.arrays.device_put",
        "meshwright.arrays.explicit",
        "meshwright.compile.partitioning",
        "meshwright.hardware.machines",
        "meshwright.interop.jaxpr.arguments",  # when an array of JAX is an argument
        "meshwright.partition.overlap.matmuls",
        "meshwright.propagate.eager",
    },
    "numpy.creation": {"meshwright.sharding.explicit"},
    "compile.stages": {"meshwright.engine.xla"},
    "arrays.static": {"meshwright.arrays.explicit", "meshwright.arrays.device_put"},
    "arrays.tracing": {"meshwright.arrays.device_put", "meshwright.interop.jaxpr.arguments"},
    "hardware.train_step": {"meshwright.simulate.transformer"},
    "ops.collective": {"meshwright.sharding.spec"},
    "ops.layout": {"meshwright.sharding.explicit"},
    "sharding.mesh": {"meshwright.report.notebook"},
    "sharding.named": {"meshwright.report.notebook"},
    "chart.views": {"rich.console", "rich.text"},
    "report.visualize": {"rich.console", "rich.text"},
}


@dataclass(frozen=True)
class Import:
    """One imported module: absolute name, line, and where the statement stands."""

    target: str
    line: int
    at_top: bool
    for_types: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "meshwright"


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def layer_of(module: str) -> int | None:
    """The index of the line that names ``module``, or most of it."""
    found = [
        (len(name), index)
        for index, line in enumerate(LAYERS)
        for name in line.split()
        if module == name or module.startswith(name + ".")
    ]
    return max(found)[1] if found else None


@cache
def imports(module: str) -> tuple[Import, ...]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return tuple(_walk(tree, at_top=True, for_types=False))


def _walk(node: ast.AST, at_top: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, at_top, for_types)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield Import(_resolve(child, alias.name), child.lineno, at_top, for_types)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            yield from _walk(child, at_top and not inside, for_types or typing)


def _resolve(node: ast.ImportFrom, name: str) -> str:
    """``from meshwright.core import dtypes`` imports a module, ``from meshwright.errors import TextError`` a name."""
    assert node.level == 0, f"line {node.lineno}: imports are absolute"
    inner = f"{node.module}.{name}"
    return inner if inner.removeprefix("meshwright.") in MODULES else str(node.module)


def own(found: Import) -> str | None:
    """The imported module of this package, named from the package's root."""
    if found.target == "meshwright":
        return "meshwright"
    return found.target.removeprefix("meshwright.") if found.target.startswith("meshwright.") else None


def _on_first_use(module: str, found: Import) -> bool:
    """What is named in ``LATE`` may stand above: types say where values are, so that core asks shardings. So may what a
    package loads when it is first asked for."""
    return found.target in LATE.get(module, ()) or (found.for_types and MODULES[module].name == "__init__.py")


def test_all_that_is_required_is_imported() -> None:
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for name in extras if name not in ("dev", "docs") for one in extras[name])]
    names = {one.split(">=")[0] for one in asked}
    assert names <= {found.target.split(".")[0] for module in MODULES for found in imports(module)}
    assert names | {"jaxlib"} == REQUIRED | EXTRAS


every_module = pytest.mark.parametrize("module", MODULES)


@every_module
def test_a_module_has_a_place_in_the_layers(module: str) -> None:
    assert layer_of(module) is not None, f"name {module} in LAYERS"


@every_module
def test_a_module_imports_only_its_own_layer_and_those_below(module: str) -> None:
    layer = layer_of(module)
    assert layer is not None
    wrong = []
    for found in imports(module):
        target = own(found)
        if target is None or _on_first_use(module, found):
            continue
        if layer_of(target) is None or layer_of(target) > layer:  # type: ignore[operator]
            wrong.append(f"{MODULES[module]}:{found.line} imports {found.target}, which stands above it")
    assert wrong == []


@every_module
def test_imports_stand_at_the_top_of_the_file(module: str) -> None:
    wrong = [
        f"{MODULES[module]}:{found.line} imports {found.target} inside a function"
        for found in imports(module)
        if not found.at_top and found.target.split(".")[0] not in EXTRAS and found.target not in LATE.get(module, ())
    ]
    assert wrong == []


@every_module
def test_optional_extras_are_imported_only_when_asked_for_and_only_by_engines_and_interop(module: str) -> None:
    wrong = []
    for found in imports(module):
        package = found.target.split(".")[0]
        if package in EXTRAS and not found.for_types:
            if module.split(".")[0] not in MAY_USE_EXTRAS:
                wrong.append(f"{MODULES[module]}:{found.line} imports {package}, which {MAY_USE_EXTRAS} alone may")
            elif found.at_top:
                wrong.append(f"{MODULES[module]}:{found.line} imports {package} before it is asked for")
    assert wrong == []


@every_module
def test_nothing_else_is_imported_than_what_the_package_requires(module: str) -> None:
    known = REQUIRED | EXTRAS | {"meshwright"} | sys.stdlib_module_names
    assert {found.target.split(".")[0] for found in imports(module)} - known == set()


def _with_packages(target: str | None, module: str) -> Iterator[str]:
    """What is loaded for an imported module: itself, and the packages it is in that ``module`` is not."""
    parts = (target or "").split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if count == len(parts) or not f"{module}.".startswith(f"{name}."):
            yield name


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        module: {
            loaded
            for found in imports(module)
            if found.at_top and not found.for_types
            for loaded in _with_packages(own(found), module)
        }
        & MODULES.keys()
        for module in MODULES
    }
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, [*path, module])
            done.add(module)

    for module in graph:
        visit(module, [])


def test_the_layers_are_read_as_meant() -> None:
    order = ["errors", "core.types", "sharding.mesh", "hardware.chips", "ops.basic", "transform.regions.scan"]
    assert [layer_of(module) for module in order] == list(range(len(order)))
    assert layer_of("interop.hlo.ops") < layer_of("compile.jit") < layer_of("interop.mlir")  # type: ignore[operator]
    assert layer_of("lax.elementwise") == layer_of("lax")
    assert layer_of("somewhere") is None


# Two classes may share a name where both are public under it.
SAME_CLASS_NAMES = {
    "Device": "mw.sharding.Device is a device of a mesh, dist.Device one of a device program",
    "Layout": "that of JAX is the order of dims in memory, hardware.Layout how an array is split, by its indices",
}


def test_no_class_name_is_used_twice():
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1 and name not in SAME_CLASS_NAMES} == {}
    assert all(len(found[name]) == 2 for name in SAME_CLASS_NAMES)
