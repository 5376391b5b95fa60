"""``-sdy-convert-global-to-local``: a module of what all devices compute together as what each of them computes.

First every op is made to run on parts, as far as it is not yet (``explicit_reshards``): along factors that are not
separable, of which the parts of the operands do not make the parts of the results, its operands are whole, and so are
dims that the axes do not divide. Then each value has the shape of its part, and collectives are StableHLO's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.communication import resharded, reshards_to_collectives
from meshwright.interop.shardy.explicit_reshards import insert_reshards, same_placement
from meshwright.interop.shardy.local_collectives import COLLECTIVES, LocalCollectives
from meshwright.interop.shardy.made_ops import constant_of, zeros
from meshwright.interop.shardy.mesh_passes import OUTPUTS, PARAMETERS, inlined
from meshwright.interop.shardy.module_shardings import filled_text, per_value_text
from meshwright.interop.shardy.module_walk import RULE, SHARDING, walk
from meshwright.interop.shardy.problem_reader import place_of
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context, integer, integers, string
from meshwright.interop.stablehlo.ops import body_operation
from meshwright.propagate.after import dividing
from meshwright.propagate.problem import Refusal
from meshwright.sharding.axes import total_size
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

_COMPUTATIONS = ("sdy.manual_computation", "sdy.named_computation")
_IDENTITIES = (
    "sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.data_flow_edge", "sdy.func_data_flow_edge",
)  # fmt: skip
_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_GONE = ("sdy.sharding_group",)
_MOVES = ("sdy.all_gather", "sdy.all_slice", "sdy.all_to_all", "sdy.collective_permute")


@cache
def groups_can_be_axes() -> bool:
    """Whether the installed StableHLO can write the groups of a collective as axes of a mesh."""
    from jaxlib.mlir import ir

    text = '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#stablehlo.axis_ref<name = "x">]>'
    with context():
        try:
            ir.Attribute.parse(text)
        except (ir.MLIRError, ValueError):
            return False
    return True


def convert_to_local(module: Any, collectives: LocalCollectives) -> None:
    """Make of a global module the one that each device runs.

    %0 = stablehlo.negate %a {[{"x"}]} : tensor<8xf32>     ==>   %0 = stablehlo.negate %a : tensor<4xf32>
    %1 = sdy.all_gather [{"x"}] %0 out_sharding=[{}]              %1 = stablehlo.all_gather(%0) [[0], [1]] dim 0
    """
    from jaxlib.mlir import ir

    with context(), ir.Location.unknown():
        _check_functions(module)
        _without_constraints(module)
        _make_divisible(module)
        _reshard_calls(module)
        insert_reshards(module, full=True, separable=True)
        reshards_to_collectives(module)
        _note_shardings(module)
        _Converter(module, collectives).run()


def _note_shardings(module: Any) -> None:
    """Write on the module how the arguments and results of main are laid out: their shapes say so no more."""
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    main = next((op for op in _functions(module) if string(op.attributes["sym_name"]) == "main"), None)
    if main is None:
        return
    types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    sides = [
        (key, kinds, known.of_function(main, side, len(kinds)))
        for key, side, kinds in ((PARAMETERS, "arg_attrs", types.inputs), (OUTPUTS, "res_attrs", types.results))
    ]
    written = [sharding.mesh for _, _, shardings in sides for sharding in shardings if sharding is not None]
    meshes = [mesh for mesh in (*known.shardings.meshes.values(), *written) if not mesh.is_maximal]
    if not meshes:
        return
    for key, kinds, shardings in sides:
        found = []
        for kind, sharding in zip(kinds, shardings, strict=True):
            rank = len(kind.shape) if isinstance(kind, ir.RankedTensorType) else 0
            found.append(inlined(sharding or TensorSharding(meshes[0], [None] * rank)))
        module.operation.attributes[key] = ir.Attribute.parse(per_value_text(found))


def _check_functions(module: Any) -> None:
    """Refuse functions whose arguments or results are not split evenly: who calls them has to know their shapes."""
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    for op in _functions(module):
        types: Any = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        for side, word, kinds in (("arg_attrs", "argument", types.inputs), ("res_attrs", "result", types.results)):
            for number, sharding in enumerate(known.of_function(op, side, len(kinds))):
                if sharding is None or _divides(sharding, kinds[number].shape):
                    continue
                message = f"{word} #{number} has a non-divisible sharding. Shardy expects function IO to be divisible."
                raise Refusal(
                    f"The {word} {number} of a function is not split evenly.",
                    message=f"'func.func' op {message}",
                    where=place_of(op),
                    why=f"its type is {kinds[number]}, its sharding {sharding}",
                    fix="-sdy-update-non-divisible-input-output-shardings -sdy-convert-global-to-local",
                )


def _functions(module: Any) -> list[Any]:
    return [op.operation for op in module.body.operations if op.operation.name == "func.func"]


def _divides(sharding: TensorSharding, shape: Sequence[int]) -> bool:
    if sharding.mesh.is_maximal:
        return False
    return all(size % total_size(dim.axes) == 0 for size, dim in zip(shape, sharding.dims, strict=True))


def _without_constraints(module: Any) -> None:
    """Constraints as reshards, and nothing that was for propagation only."""
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    for op in list(walk(module.operation)):
        if op.name in _IDENTITIES:
            says = op.name == "sdy.sharding_constraint" or SHARDING in op.attributes or "sharding" in op.attributes
            target = known.of_results(op)[0] if says else None
            value = op.operands[0]
            op.results[0].replace_all_uses_with(
                value if target is None else resharded(ir.InsertionPoint(op), value, target)
            )
            op.erase()
        elif op.name in _GONE:
            op.erase()


def _make_divisible(module: Any) -> None:
    """Split each dim over as many axes as divide it. What is on a single device is on all."""
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    mesh = next((mesh for mesh in known.shardings.meshes.values() if not mesh.is_maximal), None)

    def divided(sharding: TensorSharding | None, value: Any) -> TensorSharding:
        assert sharding is not None
        shape = value.type.shape if isinstance(value.type, ir.RankedTensorType) else ()
        if sharding.mesh.is_maximal and mesh is not None:
            return TensorSharding(mesh, [None] * len(shape))
        if len(shape) != len(sharding.dims) or _divides(sharding, shape):
            return sharding
        parts = zip(shape, sharding.dims, strict=True)
        dims = tuple(DimensionSharding(dividing(size, dim.axes), dim.is_open) for size, dim in parts)
        return TensorSharding.unchecked(
            sharding.mesh, dims, sharding.replicated, sharding.unreduced, sharding.reduction
        )

    uneven = any(
        not _divides(sharding, value.type.shape)
        for op in walk(module.operation)
        for value in op.results
        if isinstance(value.type, ir.RankedTensorType) and (sharding := known(value)) is not None
    )
    for op in walk(module.operation):
        for key, values in (
            (SHARDING, op.results), ("out_shardings", op.results), ("in_shardings", op.operands),
        ):  # fmt: skip
            if key in op.attributes and op.name != "func.func" and len(values):
                found = known.shardings.several(op.attributes[key])
                new = [divided(sharding, value) for sharding, value in zip(found, values, strict=True)]
                if new != list(found):
                    op.attributes[key] = ir.Attribute.parse(per_value_text(new))
    for op in list(walk(module.operation)):
        if op.name == "sdy.reshard":
            op.attributes["sharding"] = ir.Attribute.parse(str(divided(known.of_results(op)[0], op.results[0])))
        elif op.name in _MOVES and uneven:  # its axes may be gone: the moves between what is left are planned anew
            target = divided(known.of_results(op)[0], op.results[0])
            op.results[0].replace_all_uses_with(resharded(ir.InsertionPoint(op), op.operands[0], target))
            op.erase()
        elif "out_sharding" in op.attributes:
            op.attributes["out_sharding"] = ir.Attribute.parse(str(divided(known.of_results(op)[0], op.results[0])))


def _reshard_calls(module: Any) -> None:
    """Let the results of calls be laid out as their functions return them."""
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    functions = {string(op.attributes["sym_name"]): op for op in _functions(module)}
    for op in list(walk(module.operation)):
        if op.name != "func.call":
            continue
        callee = functions[str(op.attributes["callee"]).removeprefix("@").strip('"')]
        made = known.of_function(callee, "res_attrs", len(op.results))
        wanted = known.of_results(op)
        pairs = [
            (one or _whole(other), other or _whole(one)) if one is not None or other is not None else None
            for one, other in zip(made, wanted, strict=True)
        ]
        if all(pair is None or same_placement(*pair) for pair in pairs):
            continue
        told = made if any(made) else [pair and pair[0] for pair in pairs]
        op.attributes[SHARDING] = ir.Attribute.parse(
            str(filled_text(told, [len(value.type.shape) for value in op.results]))
        )
        for value, pair in zip(op.results, pairs, strict=True):
            if pair is not None and not same_placement(*pair):
                uses = list(value.uses)
                new = resharded(ir.InsertionPoint.after(op), value, pair[1])
                for use in uses:
                    use.owner.operands[use.operand_number] = new


def _whole(like: TensorSharding | None) -> TensorSharding:
    assert like is not None
    return TensorSharding(like.mesh, [None] * like.rank)


class _Converter:
    def __init__(self, module: Any, collectives: LocalCollectives) -> None:
        self._module = module
        self._known = ValueShardings(module)
        self._collectives = collectives
        self._values: dict[Any, str] = {}  # of constants

    def run(self) -> None:
        from jaxlib.mlir import ir

        ops = list(walk(self._module.operation))
        shardings: dict[Any, TensorSharding | None] = {}
        locals_: list[tuple[Any, Any]] = []
        for op in ops:
            if op.name in _CONSTANTS:
                self._values[op.results[0]] = _value_text(op)
            blocks = [block for region in op.regions for block in region.blocks]
            for value in (*op.results, *(argument for block in blocks for argument in block.arguments)):
                if not isinstance(value.type, ir.RankedTensorType):
                    continue
                sharding = shardings[value] = self._known(value)
                if sharding is not None and any(dim.axes for dim in sharding.dims):
                    shape = [n // total_size(d.axes) for n, d in zip(value.type.shape, sharding.dims, strict=True)]
                    locals_.append((value, ir.RankedTensorType.get(shape, value.type.element_type)))
        for value, kind in locals_:
            value.set_type(kind)
        for op in ops:
            self._convert(op, shardings)
        for function in _functions(self._module):
            self._retype(function)

    def _retype(self, function: Any) -> None:
        from jaxlib.mlir import ir

        if not len(function.regions[0].blocks):
            return
        block = function.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1]
        kind = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in end.operands])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)

    def _convert(self, op: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        attributes = op.attributes
        if RULE in attributes:
            del attributes[RULE]
        if op.name in COLLECTIVES:
            source, target = shardings[op.operands[0]], shardings[op.results[0]]
            assert target is not None
            source = source or _whole(target)
            self._replace(op, self._collectives.lower(op, source, target), shardings)
        elif op.name == "sdy.reshard":
            self._reshard(op, shardings)
        elif op.name in _CONSTANTS:
            self._constant(op, shardings)
        elif op.name == "stablehlo.iota":
            self._iota(op, shardings)
        elif op.name in _COMPUTATIONS:
            _inline(op)
        elif op.name == "stablehlo.reduce":
            self._reduce(op, shardings)
        elif op.name in _SIZES:
            _SIZES[op.name](op)

    def _reshard(self, op: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        """A reshard that is no collective: between meshes of different axes, of what is whole on one of them."""
        from jaxlib.mlir import ir

        value, result = op.operands[0], op.results[0]
        source, target = shardings[value], shardings[result]
        assert target is not None
        if source is not None and any(dim.axes for dim in source.dims):
            raise MeshwrightError(
                f"The reshard at {place_of(op)} is between meshes of different axes.",
                why=f"its operand is {source}, its result {target}",
                fix=f"sdy.reshard to a sharding on @{source.mesh.name} that is replicated, and from there",
            )
        with ir.InsertionPoint(op), op.location:
            axes = [dim.axes for dim in target.dims]
            new = self._collectives.part(value, target.mesh, axes, result.type.shape) if any(axes) else value
        self._replace(op, new, shardings)

    def _replace(self, op: Any, value: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        assert value.type == op.results[0].type, f"{op.name}: {value.type}, not {op.results[0].type}"
        shardings[value] = shardings[op.results[0]]  # there may be a value of before, now gone, in the same memory
        op.results[0].replace_all_uses_with(value)
        op.erase()

    def _constant(self, op: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        from jaxlib.mlir import ir

        result, text = op.results[0], self._values[op.results[0]]
        local, sharding = result.type, shardings[result]
        value, whole = text.rsplit(" : ", 1)
        if op.name == "stablehlo.constant" and whole == str(local):
            return
        with ir.InsertionPoint(op), op.location:
            if whole == str(local) or not value.startswith(("dense<[", 'dense<"')):
                new = constant_of(f"{value} : {local}", str(local))
            else:
                assert sharding is not None
                axes = [dim.axes for dim in sharding.dims]
                new = self._collectives.part(constant_of(text, whole), sharding.mesh, axes, local.shape)
        self._replace(op, new, shardings)

    def _reduce(self, op: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        """What a sum over parts begins with is added once, on the first of them."""
        from jaxlib.mlir import ir

        value, *starts = op.operands
        sharding = shardings[value]
        dims = integers(op.attributes["dimensions"])
        axes = tuple(axis for dim in dims for axis in sharding.dims[dim].axes) if sharding is not None else ()
        if sharding is None or total_size(axes) == 1 or body_operation(op.regions[0]) != "add" or _is_zero(starts[0]):
            return
        with ir.InsertionPoint(op), op.location:
            op.operands[1] = zeros(starts[0].type)
        with ir.InsertionPoint.after(op), op.location:
            result = op.results[0]
            uses = list(result.uses)
            start = _broadcast(self._collectives.on_first(starts[0], sharding, axes), result.type)
            new = ir.Operation.create("stablehlo.add", results=[result.type], operands=[result, start]).result
        shardings[new] = shardings[result]
        for use in uses:
            use.owner.operands[use.operand_number] = new

    def _iota(self, op: Any, shardings: dict[Any, TensorSharding | None]) -> None:
        """Numbers from where the part of this device begins."""
        from jaxlib.mlir import ir

        result, dim = op.results[0], integer(op.attributes["iota_dimension"])
        sharding, local = shardings[result], result.type
        if SHARDING in op.attributes:
            del op.attributes[SHARDING]
        axes = sharding.dims[dim].axes if sharding is not None else ()
        if sharding is None or total_size(axes) == 1:
            return
        with ir.InsertionPoint.after(op), op.location:
            offset = self._collectives.offset(sharding.mesh, axes, local.shape[dim])
            scalar = ir.RankedTensorType.get([], local.element_type)
            if offset.type != scalar:
                offset = ir.Operation.create("stablehlo.convert", results=[scalar], operands=[offset]).result
            start = _broadcast(offset, local)
            uses = list(result.uses)
            new = ir.Operation.create("stablehlo.add", results=[local], operands=[result, start]).result
        shardings[new] = sharding
        for use in uses:
            use.owner.operands[use.operand_number] = new


def _broadcast(scalar: Any, type: Any) -> Any:
    from jaxlib.mlir import ir

    dims: dict[str, Any] = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}
    return ir.Operation.create("stablehlo.broadcast_in_dim", results=[type], operands=[scalar], attributes=dims).result


def _is_zero(value: Any) -> bool:
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block) or value.owner.operation.name not in _CONSTANTS:
        return False
    return _value_text(value.owner.operation).startswith(
        ("dense<0.000000e+00>", "dense<0>", "dense<-0.000000e+00>", "dense<false>")
    )


def _value_text(op: Any) -> str:
    """The value of a constant, as MLIR prints it: the bindings cannot say what one of complex numbers is."""
    try:
        return str(op.attributes["value"])
    except TypeError:
        printed = str(op)
        return printed[printed.rindex("dense<") :].strip()


def _inline(op: Any) -> None:
    """Put what a computation computes in its place."""
    block = op.regions[0].blocks[0]
    for argument, value in zip(block.arguments, op.operands, strict=True):
        argument.replace_all_uses_with(value)
    *inner, end = [one.operation for one in block.operations]
    for one in inner:
        one.move_before(op)
    for result, value in zip(op.results, end.operands, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


# Attributes that are sizes: along split dims, an op takes all of the part


def _slice(op: Any) -> None:
    from jaxlib.mlir import ir

    sizes = op.operands[0].type.shape
    starts, limits = (integers(op.attributes[key]) for key in ("start_indices", "limit_indices"))
    made = [min(limit, size) for limit, size in zip(limits, sizes, strict=True)]
    if made != list(limits):
        assert all(start == 0 for start, a, b in zip(starts, made, limits, strict=True) if a != b)
        op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(made)
        if SHARDING in op.attributes:
            del op.attributes[SHARDING]


def _slice_sizes(op: Any) -> None:
    from jaxlib.mlir import ir

    sizes = integers(op.attributes["slice_sizes"])
    made = [min(pair) for pair in zip(sizes, op.operands[0].type.shape, strict=True)]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(made)
    if op.name == "stablehlo.gather" and "indices_are_sorted" not in op.attributes:
        op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


_SIZES: dict[str, Callable[[Any], None]] = {
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _slice_sizes,
    "stablehlo.gather": _slice_sizes,
}
