"""``-sdy-explicit-gather-scatter-batching``: gathers and scatters that take row i of one thing for row i of another.

Which row is often written as a column of indices that counts the rows. Then it is a batching dim, along which parts of
the operand and of the indices fit together.
"""

from __future__ import annotations

from typing import Any

from meshwright.interop.shardy.made_ops import int_array, int_attribute, made_op, tensor
from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.stablehlo.context import context, integer, integers, keyword, run_mlir


def make_batching_explicit(module: Any) -> None:
    """Make dim 0 a batching dim of each gather and scatter whose indices along it count the rows of the indices.

    gather(%x, concatenate(iota dim = 0, %i)) start_index_map = [0, 1]
    ==>  gather(%x, %i) operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1]
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with context(), ir.Location.unknown():
        for op in walk(module.operation):
            if op.name == "stablehlo.gather":
                _batch(op, 1, "dimension_numbers", _Gather(stablehlo.GatherDimensionNumbers))
            elif op.name == "stablehlo.scatter":
                _batch(op, len(op.results), "scatter_dimension_numbers", _Scatter(stablehlo.ScatterDimensionNumbers))
    folding = "canonicalize{enable-patterns=none region-simplify=disabled}"
    run_mlir(folding, module, "after sdy-explicit-gather-scatter-batching")


class _Gather:
    flags: tuple[str, ...] = ("indices_are_sorted",)

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def read(self, attribute: Any) -> tuple[list[int], list[int], list[int], int]:
        """The dims that are collapsed, batched and indexed, and the dim of index vectors."""
        dims = self._kind(attribute)
        batched = [*dims.operand_batching_dims]
        return [*dims.collapsed_slice_dims], batched, [*dims.start_index_map], dims.index_vector_dim

    def batched(self, attribute: Any, collapsed: list[int], indexed: list[int]) -> Any:
        """The same with dim 0 batched."""
        dims = self._kind(attribute)
        return self._kind.get([*dims.offset_dims], collapsed, [0], [0], indexed, dims.index_vector_dim)


class _Scatter(_Gather):
    flags = ("indices_are_sorted", "unique_indices")

    def read(self, attribute: Any) -> tuple[list[int], list[int], list[int], int]:
        dims = self._kind(attribute)
        inserted, batched = [*dims.inserted_window_dims], [*dims.input_batching_dims]
        return inserted, batched, [*dims.scattered_dims_to_operand_dims], dims.index_vector_dim

    def batched(self, attribute: Any, collapsed: list[int], indexed: list[int]) -> Any:
        dims = self._kind(attribute)
        return self._kind.get([*dims.update_window_dims], collapsed, [0], [0], indexed, dims.index_vector_dim)


def _batch(op: Any, number: int, key: str, dims: _Gather) -> None:
    from jaxlib.mlir import ir

    operand, indices = op.operands[0], op.operands[number]
    collapsed, batched, indexed, vector_dim = dims.read(op.attributes[key])
    shape = indices.type.shape
    fits = vector_dim not in (0, len(shape)) and len(indexed) > 1 and not batched
    if not fits or 0 not in collapsed or 0 not in indexed or operand.type.shape[0] != shape[0]:
        return
    column = indexed.index(0)
    counted = _column(indices, column, vector_dim)
    if counted is None or not _counts_rows(counted):
        return
    with ir.InsertionPoint(op), op.location:
        op.operands[number] = _without(indices, column, vector_dim)
    for flag in dims.flags:
        if flag not in op.attributes:
            op.attributes[flag] = ir.BoolAttr.get(False)
    op.attributes[key] = dims.batched(op.attributes[key], [d for d in collapsed if d], [d for d in indexed if d])


def _made_by(value: Any, name: str) -> Any | None:
    """The op that made a value, if it is one of this name."""
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block) or value.owner.operation.name != name:
        return None
    return value.owner.operation


def _columns(indices: Any, vector_dim: int) -> list[Any] | None:
    """The operands of a concatenation of columns."""
    op = _made_by(indices, "stablehlo.concatenate")
    if op is None or integer(op.attributes["dimension"]) != vector_dim:
        return None
    return list(op.operands)


def _column(indices: Any, column: int, vector_dim: int) -> Any | None:
    """The value that has a column as its first, if all columns before it stand alone: Shardy looks no further."""
    parts = _columns(indices, vector_dim)
    if parts is None:
        return indices
    alone = all(part.type.shape[vector_dim] == 1 for part in parts[:column])
    return parts[column] if column < len(parts) and alone else None


def _counts_rows(value: Any) -> bool:
    """Whether each number is its own index along dim 0."""
    if iota := _made_by(value, "stablehlo.iota"):
        return integer(iota.attributes["iota_dimension"]) == 0
    if spread := _made_by(value, "stablehlo.broadcast_in_dim"):
        inner, dims = spread.operands[0], integers(spread.attributes["broadcast_dimensions"])
        return dims[:1] == (0,) and inner.type.shape[0] == value.type.shape[0] and _counts_rows(inner)
    if reshape := _made_by(value, "stablehlo.reshape"):
        inner = reshape.operands[0]
        return inner.type.rank > 0 and inner.type.shape[0] == value.type.shape[0] and _counts_rows(inner)
    if select := _made_by(value, "stablehlo.select"):  # negative indices count from the end; there are none
        negative, _, kept = select.operands
        return _is_negative(negative, kept) and _counts_rows(kept)
    return False


def _is_negative(condition: Any, value: Any) -> bool:
    compare = _made_by(condition, "stablehlo.compare")
    if compare is None or keyword(compare.attributes["comparison_direction"]) != "LT" or compare.operands[0] != value:
        return False
    zero = compare.operands[1]
    if spread := _made_by(zero, "stablehlo.broadcast_in_dim"):
        zero = spread.operands[0]
    constant = _made_by(zero, "stablehlo.constant")
    return constant is not None and str(constant.attributes["value"]).startswith("dense<0>")


def _without(indices: Any, column: int, vector_dim: int) -> Any:
    """The indices without a column."""
    parts = _columns(indices, vector_dim)
    if parts is not None and all(part.type.shape[vector_dim] == 1 for part in parts):
        return _beside([part for n, part in enumerate(parts) if n != column], vector_dim)
    count = indices.type.shape[vector_dim]
    ranges = [(start, end) for start, end in ((0, column), (column + 1, count)) if start < end]
    return _beside([_sliced(indices, start, end, vector_dim) for start, end in ranges], vector_dim)


def _beside(parts: list[Any], dim: int) -> Any:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].type.shape)
    shape[dim] = sum(part.type.shape[dim] for part in parts)
    made = tensor(shape, parts[0].type.element_type)
    return made_op("stablehlo.concatenate", parts, [made], dimension=int_attribute(dim))


def _sliced(value: Any, start: int, end: int, dim: int) -> Any:
    shape = list(value.type.shape)
    starts = [start if d == dim else 0 for d in range(len(shape))]
    limits = [end if d == dim else n for d, n in enumerate(shape)]
    made = tensor([limit - begin for begin, limit in zip(starts, limits, strict=True)], value.type.element_type)
    strides = int_array([1] * len(shape))
    places = {"start_indices": int_array(starts), "limit_indices": int_array(limits), "strides": strides}
    return made_op("stablehlo.slice", [value], [made], **places)
