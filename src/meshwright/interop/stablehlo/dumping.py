"""A program as a module of StableHLO: op by op in MLIR's generic form, which jaxlib reads, checks and prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.core.op import No
from meshwright.core.program import Atom, Eqn, Literal, Missing, Params, Program, Var
from meshwright.core.text.printing import print_params
from meshwright.core.trace import close, trace
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.decompositions import custom_target, in_parts
from meshwright.interop.stablehlo import by_jax as _by_jax  # noqa: F401  (ops that JAX lowers)
from meshwright.interop.stablehlo.collectives import COLLECTIVES
from meshwright.interop.stablehlo.context import parse_module, type_text
from meshwright.interop.stablehlo.text import constrained, dense, writer_of
from meshwright.ops.placement import constraint_sharding
from meshwright.sharding.mesh import AbstractMesh, BaseMesh, Mesh, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.placement import order_between
from meshwright.sharding.text_sdy import symbol

Sharding = TensorSharding | NamedSharding | None
_NOTHING: Mapping[Var, TensorSharding] = MappingProxyType({})


def dump(
    program: Program,
    *,
    mesh: BaseMesh | None = None,
    in_shardings: Sequence[Sharding] | None = None,
    out_shardings: Sequence[Sharding] | None = None,
    fixed: Mapping[Var, TensorSharding] | None = None,
    name: str | None = None,
    result_names: Sequence[str] | None = None,
) -> str:
    """The module of a program, as MLIR text: StableHLO, chlo for functions StableHLO lacks, and sdy's shardings.

    ``mesh`` is the one that constraints in the program are about; by default the current one. ``fixed`` are shardings
    that values of the program are held to. A module with a ``name`` is one for as many partitions as the mesh has
    devices, numbered by their position, and ``result_names`` are noted beside its results.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright.interop import mlir
    >>> print(mlir.dump(mw.make_program(lambda x: mnp.tanh(x) * 2)(mnp.ones(3))))
    module {
      func.func @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.tanh %arg0 : tensor<3xf32>
        %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
        %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3xf32>
        %2 = stablehlo.multiply %0, %1 : tensor<3xf32>
        return %2 : tensor<3xf32>
      }
    }
    """
    if program.names_devices:
        raise MeshwrightError(
            "A device program is not written as StableHLO.",
            why="StableHLO has no values on several devices, and no sizes that are symbols",
            fix="mlir.dump(dist.to_mesh(fn, device_map, B=8).program), the code of one device of a mesh",
        )
    writer = BodyWriter(mesh, fixed or {}, by_position=name is not None)
    names = [f"%a{index}" for index in range(len(program.inputs))]
    writer.values.update(zip(program.inputs, names, strict=True))
    returned = writer.program(program)
    arguments = ", ".join(
        f"{name}: {type_text(var.type)}{writer.placed(sharding, var.type)}"
        for name, var, sharding in zip(names, program.inputs, in_shardings or [None] * len(names), strict=True)
    )
    results = ", ".join(
        f"{type_text(atom.type)}{writer.placed(sharding, atom.type, note)}"
        for atom, sharding, note in zip(
            program.outputs, out_shardings or [None] * len(returned), result_names or [""] * len(returned), strict=True
        )
    )
    types = ", ".join(type_text(atom.type) for atom in program.outputs)
    body = "\n".join(writer.lines)
    meshes = "\n".join(f"sdy.mesh @{name} = {text}" for name, text in writer.meshes.items())
    end = f'"func.return"({", ".join(returned)}) : ({types}) -> ()'
    others = "\n".join([meshes, *writer.functions])
    text = (
        f"{others}\nfunc.func {'public ' * (name is not None)}@main({arguments}) -> ({results}) {{\n{body}\n{end}\n}}"
    )
    if name is not None:
        count = mesh.size if mesh is not None else 1
        text = (
            f"module {symbol(name)} attributes {{mhlo.num_partitions = {count} : i32, mhlo.num_replicas = 1 : i32}} "
            f"{{\n{text}\n}}"
        )
    return str(parse_module(text)).rstrip("\n")


class BodyWriter:
    """Lines of a function body being written, and the names of the values in it."""

    def __init__(
        self, mesh: BaseMesh | None = None, fixed: Mapping[Var, TensorSharding] = _NOTHING, by_position: bool = False
    ) -> None:
        self.lines: list[str] = []
        self.values: dict[Var, str] = {}
        self.meshes: dict[str, str] = {}
        self.count = 0
        self.channels = 0
        self.functions: list[str] = []
        self.axes: Sequence[tuple[str, int]] = ()
        self._mesh = mesh
        self._fixed = fixed
        self._by_position = by_position

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def op(
        self,
        name: str,
        operands: Sequence[tuple[str, TensorType]],
        results: Sequence[TensorType],
        properties: str = "",
        regions: str = "",
    ) -> list[str]:
        """Write one op; the names of its results."""
        base = self.name()
        name = name if "." in name else f"stablehlo.{name}"
        count = len(results)
        left = f"{base}{f':{count}' if count != 1 else ''} = " if count else ""
        given, made = (", ".join(map(type_text, types)) for types in ([t for _, t in operands], results))
        middle = (f" <{{{properties}}}>" if properties else "") + (f" ({regions})" if regions else "")
        self.lines.append(f'{left}"{name}"({", ".join(n for n, _ in operands)}){middle} : ({given}) -> ({made})')
        return [base] if count == 1 else [f"{base}#{index}" for index in range(count)]

    def constant(self, value: Any, t: TensorType) -> str:
        text = dense(np.asarray(value), t)
        return self.op("constant", [], [TensorType(t.shape, t.dtype)], f"value = {text} : {type_text(t)}")[0]

    def broadcast(self, operand: tuple[str, TensorType], t: TensorType, dims: Sequence[int] = ()) -> str:
        """An operand spread over the shape of ``t``."""
        if operand[1].shape == t.shape:
            return operand[0]
        listed = ", ".join(map(str, dims))
        made = TensorType(t.shape, operand[1].dtype)
        properties = f"broadcast_dimensions = array<i64{': ' if dims else ''}{listed}>"
        return self.op("broadcast_in_dim", [operand], [made], properties)[0]

    def atom(self, atom: Atom) -> tuple[str, TensorType]:
        if isinstance(atom, Literal):
            return self.constant(atom.value, atom.type), atom.type
        return self.values[atom], atom.type

    def program(self, program: Program, inputs: Sequence[str] | None = None) -> list[str]:
        """Write the equations of a program; the names of its outputs."""
        if inputs is not None:
            self.values.update(zip(program.inputs, inputs, strict=True))
        for var, value in program.constants:
            if isinstance(value, Missing):
                raise MeshwrightError(
                    "A constant of this program is not known.",
                    why="it was read from text, which keeps large arrays by digest alone",
                    fix="trace the function again with mw.make_program(f)(…)",
                )
            self.values[var] = self.constant(value, var.type)
        repeated = _computed_twice(program)
        for eqn in program.eqns:
            operands = [self.atom(a) for a in eqn.inputs]
            if id(eqn) in repeated:
                apart = self.op("optimization_barrier", operands, [t for _, t in operands])
                operands = [(name, t) for name, (_, t) in zip(apart, operands, strict=True)]
            if eqn.op.name == "sharding_constraint" and eqn.outputs[0] in self._fixed:
                outs = [operands[0][0]]
            else:
                outs = self.equation(eqn, operands)
            for var, out in zip(eqn.outputs, outs, strict=True):
                held = self._fixed.get(var)
                if held is not None:
                    out = constrained(self, out, var.type, self.declared(held).removeprefix("#sdy.sharding"))
                self.values[var] = out
        return [self.atom(a)[0] for a in program.outputs]

    def equation(self, eqn: Eqn, operands: list[tuple[str, TensorType]]) -> list[str]:
        """Write one equation; the names of its results."""
        parts = in_parts(eqn, self.axes)
        write = writer_of(eqn.op) or COLLECTIVES.get(eqn.op.name)
        if parts is None and write is not None:
            return write(self, eqn, operands, [var.type for var in eqn.outputs])
        if parts is None and not isinstance(eqn.op.factors, No):  # an op of a user
            target = (
                f"call_target_name = {dumps(custom_target(eqn))}, backend_config = {dumps(print_params(eqn.params))}"
            )
            return self.op("custom_call", operands, [var.type for var in eqn.outputs], target)
        if parts is None:
            raise MeshwrightError(
                f"{eqn.op.name} cannot be written as StableHLO.",
                where=str(eqn.source) if eqn.source is not None else "",
                why="no StableHLO ops are known that do the same",
                fix="program.to_text() writes every op",
            )
        return self.decomposed(parts, eqn.params, operands)

    def decomposed(
        self, parts: Callable[..., list[Any]], params: Params, operands: Sequence[tuple[str, TensorType]]
    ) -> list[str]:
        """Write an op in terms of others."""
        types = [TensorType(t.shape, t.dtype) for _, t in operands]
        small, captured = trace(lambda *xs: parts(*xs, **params), types)
        return self.program(close(small, captured), [name for name, _ in operands])

    def region(self, program: Program, names: Sequence[str], own: Sequence[TensorType] = ()) -> str:
        """A region that runs a program: its first inputs are ``names`` from outside, the others its own arguments."""
        arguments = [self.name() for _ in own]
        before, self.lines = self.lines, []
        returned = self.program(program, [*names, *arguments])
        return self.close_region(before, list(zip(arguments, own, strict=True)), returned, program.out_types)

    def close_region(
        self,
        before: list[str],
        arguments: Sequence[tuple[str, TensorType]],
        returned: Sequence[str],
        types: Sequence[TensorType],
    ) -> str:
        """The lines written since ``before`` as a region."""
        lines, self.lines = self.lines, before
        head = "^bb0(" + ", ".join(f"{name}: {type_text(t)}" for name, t in arguments) + "):\n" if arguments else ""
        end = f'"stablehlo.return"({", ".join(returned)}) : ({", ".join(map(type_text, types))}) -> ()'
        return "{ " + head + "\n".join([*lines, end]) + " }"

    def scalar_region(self, name: str, dtype: Any) -> str:
        """``(a, b) -> a OP b``."""
        t = TensorType((), dtype)
        before, self.lines = self.lines, []
        a, b = self.name(), self.name()
        out = self.op(name, [(a, t), (b, t)], [t])
        return self.close_region(before, [(a, t), (b, t)], out, [t])

    # Shardings

    def placed(self, sharding: Sharding, t: TensorType, note: str = "") -> str:
        notes = [f"jax.result_info = {dumps(note)}"] if note else []
        if sharding is not None:
            found = sharding.to_tensor_sharding(t.ndim) if isinstance(sharding, NamedSharding) else sharding
            notes.append(f"sdy.sharding = {self.declared(found)}")
        return f" {{{', '.join(notes)}}}" if notes else ""

    def declared(self, sharding: TensorSharding) -> str:
        """The text of a sharding, whose mesh the module will declare."""
        mesh = sharding.mesh
        text = self._mesh_text(mesh)
        name = mesh.name or self._free_name(text)
        if self.meshes.setdefault(name, text) != text:
            raise MeshwrightError(
                f"A module cannot have two meshes called {name}.",
                why=f"one is {self.meshes[name]}, the other {text}",
                fix="shardings and shard_maps of one mesh, or meshes with different names",
            )
        return str(TensorSharding.unchecked(mesh.with_(name=name), *sharding._key()[1:]))

    def _mesh_text(self, mesh: BaseMesh) -> str:
        """A mesh as the module declares it; by position, devices are numbered along the mesh of the program."""
        main = self._mesh
        if not self._by_position:
            return str(mesh)
        if not isinstance(mesh, Mesh) or main is None or mesh.order == main.order:
            return str(mesh.abstract_mesh)
        return str(Mesh._of(mesh.axis_sizes, mesh.axis_names, None, order_between(mesh, main)))

    def _free_name(self, text: str) -> str:
        """The name of a mesh that nobody named: mesh, or mesh_0, mesh_1, … if that of the program is another one."""
        main = text if self._mesh is None else self._mesh_text(self._mesh)
        taken = {"mesh": main, **self.meshes}
        name, number = "mesh", 0
        while taken.get(name, text) != text:
            name, number = f"mesh_{number}", number + 1
        return name

    def mesh_of(self, axes: Sequence[tuple[str, int]]) -> BaseMesh:
        """The mesh of a shard_map."""
        mesh = self._mesh or get_mesh()
        if mesh is None or tuple(mesh.shape.items()) != tuple(axes):
            return AbstractMesh.of_parts(axes)
        if getattr(mesh, "order", None) is not None and not self._by_position:
            raise MeshwrightError(
                f"A shard_map over {mesh} cannot be written as StableHLO.",
                why="the groups of its collectives are by positions on the mesh, and the module names devices",
                fix="mlir.dump(program, mesh=mesh.abstract_mesh)",
            )
        return mesh

    def constraint(self, params: Params, t: TensorType) -> str:
        mesh = self._mesh or get_mesh()
        if mesh is None or not mesh.axis_names:
            raise MeshwrightError(
                f"The program constrains a value to {params['spec']}, and there is no mesh.",
                why="a constraint names axes of a mesh",
                fix="mlir.dump(program, mesh=mesh)",
            )
        return self.declared(constraint_sharding(params, t.ndim, mesh)).removeprefix("#sdy.sharding")


def _computed_twice(program: Program) -> set[int]:
    """Which equations compute for the backward pass, from the same operands, what another one has computed: XLA would
    join the two, and keep all that a checkpoint does not."""
    again = [eqn for eqn in program.eqns if eqn.inputs and eqn.source is not None and eqn.source.again]
    if not again:
        return set()
    among = {id(eqn) for eqn in again}
    first = {_operands(eqn) for eqn in program.eqns if id(eqn) not in among}
    return {id(eqn) for eqn in again if _operands(eqn) in first and any(isinstance(a, Var) for a in eqn.inputs)}


def _operands(eqn: Eqn) -> tuple[Any, ...]:
    return eqn.op.name, *(a if isinstance(a, Var) else str(a) for a in eqn.inputs)
