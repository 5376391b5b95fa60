"""Types as text: ``f32[8,4]``, ``~i32[]``, ``f32[8@x,4]{y}``; and the meshes of the axes they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.core import dtypes
from meshwright.core.text.tokens import TextReader, brief, following, read_list, read_string
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError

if TYPE_CHECKING:
    from meshwright.sharding.axes import AxisRef
    from meshwright.sharding.mesh import AbstractMesh
    from meshwright.sharding.named import TensorSharding

_MOST_DIGITS = 100  # of an integer; Python itself refuses to read some thousands
_LARGEST_SIZE = 2**63 - 1


def parse_type(text: str) -> TensorType:
    """Read a type such as ``f32[8,4]``."""
    reader = TextReader(text, "a type")
    result = read_type(reader)
    reader.finish()
    return result


def parse_types(text: str) -> list[TensorType]:
    """Read types with white space or commas between them.

    >>> parse_types("f32[8, 4] bf16[4]")
    [ShapedArray(float32[8,4]), ShapedArray(bfloat16[4])]
    """
    reader = TextReader(text, "a list of types")
    found = []
    while reader.peek_full()[0] != "end":
        found.append(read_type(reader))
        reader.accept(",")
    return found


def read_mesh(reader: TextReader) -> AbstractMesh:
    from meshwright.sharding.explicit import explicit_mesh  # few programs have one

    position = reader.peek_full()[2]
    reader.take("(")

    def axis() -> tuple[str, int]:
        name = _word_or_string(reader)
        reader.take("=")
        return name, read_size(reader)

    axes = tuple(read_list(reader, ")", axis))
    try:
        return explicit_mesh(axes)
    except MeshwrightError as error:
        raise reader.error_at(position, error.what) from None


def read_split(reader: TextReader) -> tuple[AxisRef, ...]:
    """The axes that split a dim: ``@x``, ``@(x,y)``, or nothing."""
    if not reader.accept("@"):
        return ()
    if not reader.meshes:
        raise reader.error("a dim is split over an axis, and no mesh is given: mesh(x=2, y=4) before the program")
    several = reader.accept("(")
    return tuple(read_list(reader, ")", lambda: read_ref(reader))) if several else (read_ref(reader),)


def read_ref(reader: TextReader) -> AxisRef:
    from meshwright.sharding.check import resolve
    from meshwright.sharding.spec import read_axis  # few programs have one

    position = reader.peek_full()[2]
    text = read_axis_name(reader)
    named = [mesh for mesh in reader.meshes if text.partition(":(")[0] in mesh.axis_by_name]
    try:
        return resolve((named or reader.meshes)[0], [read_axis(text)])[0]
    except KeyError:
        axes = ", ".join(name for mesh in reader.meshes for name in mesh.axis_names)
        why = f"the mesh has the axes {axes}, and not {brief(text)}"
    except (MeshwrightError, ValueError, ZeroDivisionError):
        why = f"{brief(text)} is no part of the axis"
    raise reader.error_at(position, why)


def read_sharding(reader: TextReader, position: int, dims: list[tuple[AxisRef, ...]]) -> TensorSharding | None:
    if not any(dims):
        return None
    from meshwright.sharding.named import type_sharding  # few programs have one

    axes = [axis for dim in dims for axis in dim]
    for n, axis in enumerate(axes):
        if any(axis.overlaps(other) for other in axes[:n]):
            raise reader.error_at(position, f"{axis.name} splits two dims")
    names = {axis.name for axis in axes}
    mesh = next((mesh for mesh in reader.meshes if names <= set(mesh.axis_names)), None)
    if mesh is None:
        raise reader.error_at(position, "its dims are split over axes of different meshes")
    return type_sharding(mesh, tuple(dims))


def read_type(reader: TextReader) -> TensorType:
    weak = reader.accept("~")
    position = reader.peek_full()[2]
    name = read_dtype_name(reader)
    shape: list[int] = []
    dims: list[tuple[AxisRef, ...]] = []
    reader.take("[")
    while not reader.accept("]"):
        shape.append(read_size(reader))
        dims.append(read_split(reader))
        if reader.peek() != "]":
            reader.take(",")
    varying: list[str] = []
    unreduced: list[str] = []
    if reader.peek() == "{":
        reader.take()
        while not reader.accept("}"):
            if reader.peek() == "U" and following(reader, 2)[1:] == [":"]:
                reader.take()
                reader.take()
                unreduced.append(read_axis_name(reader))
            else:
                varying.append(read_axis_name(reader))
            reader.accept(",")
    sharding = read_sharding(reader, position, dims)
    return TensorType(tuple(shape), dtypes.SHORT_NAMES[name], weak, sharding, tuple(varying), tuple(unreduced))


def read_axis_name(reader: TextReader) -> str:
    """A mesh axis, ``x``, or a part of one, ``x:(1)2``."""
    name = _word_or_string(reader)
    if not reader.accept(":"):
        return name
    reader.take("(")
    before = read_size(reader)
    reader.take(")")
    return f"{name}:({before}){read_size(reader)}"


def _word_or_string(reader: TextReader) -> str:
    return read_string(reader) if reader.peek_full()[0] == "string" else reader.word("a mesh axis")


def read_dtype_name(reader: TextReader) -> str:
    name = reader.peek()
    if name not in dtypes.SHORT_NAMES:
        raise reader.expected(f"a dtype ({', '.join(dtypes.SHORT_NAMES)})")
    reader.take()
    return name


def read_size(reader: TextReader) -> int:
    kind, text, position = reader.peek_full()
    if kind != "number" or not text.isdigit():
        raise reader.expected("a size")
    size = read_int(reader)
    if size > _LARGEST_SIZE:
        raise reader.error_at(position, f"the size {brief(text)} is more than {_LARGEST_SIZE}")
    return size


def read_int(reader: TextReader) -> int:
    text = reader.peek()
    digits = len(text.lstrip("+-"))
    if digits > _MOST_DIGITS:
        raise reader.error(f"the integer has {digits} digits, and at most {_MOST_DIGITS} are read")
    reader.take()
    return int(text)
