"""Device programs written in Python: a function on handles leaves behind the program of what it did.

@dist.function
def matmul(wA: dist.Tensor(("F", "H"), 0), x: dist.Tensor(("B", "F"), 0)):
    xs = dist.scatter(x, dim=0, devices=[1, 2])
    …
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.core.dtypes import FLOAT32, INT32
from meshwright.core.source import here
from meshwright.device.device_map import DeviceMap, Lookup
from meshwright.device.dims import Dim, Size, Sizes, substitute
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number, Operand
from meshwright.device.ops import DeviceOp, spelled, tensor_op
from meshwright.device.types import Device, Tensor, Tuple, Type, elements
from meshwright.device.typing import typed
from meshwright.errors import DeviceError, ShapeError

_BUILDERS: list[_Builder] = []


def _operators(op: str) -> tuple[Callable[[Handle, Any], Handle], Callable[[Handle, Any], Handle]]:
    """An elementwise op as an operator, and as that of what stands on its left."""
    return lambda x, y: _binary(op, x, y), lambda x, y: _binary(op, y, x)


class Handle:
    """A value of the program being written."""

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __pow__ = _operators("pow")[0]

    def __init__(self, value: DeviceValue, builder: _Builder) -> None:
        self.value, self.builder = value, builder

    @property
    def type(self) -> Type | None:
        return self.value.type

    def __repr__(self) -> str:
        return repr(self.value)

    def __neg__(self) -> Handle:
        return _only(emit("neg", (self,)))

    def __matmul__(self, other: Any) -> Handle:
        return _only(emit("MatMul", (self, other)))

    @property
    def T(self) -> Handle:
        """The transposed tensor."""
        return _only(emit("transpose", (self,), permutation=tuple(reversed(range(len(_shape(self)))))))

    def __getitem__(self, index: int) -> Handle:
        return _only(emit("item", (self,), index=index))


def _shape(x: Any) -> Sizes:
    return elements(x.type).shape if isinstance(x, Handle) and x.type is not None else ()


def _binary(op: str, x: Any, y: Any) -> Handle:
    """An elementwise op of two values; the smaller is repeated along the first dims of the larger, as in NumPy."""
    shapes = [_shape(x), _shape(y)]
    whole = max(shapes, key=len)

    def fitted(value: Any, shape: Sizes) -> Any:
        if not isinstance(value, Handle) or len(shape) == len(whole) or whole[len(whole) - len(shape) :] != shape:
            return value
        dims = tuple(range(len(whole) - len(shape), len(whole)))
        return _only(emit("broadcast_in_dim", (value,), shape=whole, dims=dims))

    return _only(emit(op, (fitted(x, shapes[0]), fitted(y, shapes[1]))))


class _Builder:
    def __init__(self, depth: int, device_map: DeviceMap | None = None) -> None:
        self.depth, self.device_map = depth, device_map
        self.eqns: list[DeviceEqn] = []
        self.count = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"


def function(build: Callable[..., Any]) -> Function:
    """The program of a Python function whose parameters are annotated with types.

    >>> from meshwright import dist
    >>> @dist.function
    ... def matmul(wA: dist.Tensor(("F", "H"), 0), x: dist.Tensor(("B", "F"), 0)):
    ...     xs = dist.scatter(x, dim=0, devices=[1, 2])
    ...     ws = dist.broadcast(wA, devices=[1, 2])
    ...     ys = dist.pmap(lambda d: lambda x, w: dist.MatMul(x, w), (xs, ws))
    ...     return dist.gather(ys, dim=0, to_device=0)
    >>> [eqn.op.name for eqn in matmul.eqns], str(matmul.outputs[0].type)
    (['scatter', 'broadcast', 'pmap', 'gather'], 'Tensor[(B, H), 0]')
    """
    inputs: list[DeviceValue] = []
    map_input: tuple[str, int] | None = None
    for name, parameter in inspect.signature(build, eval_str=True).parameters.items():
        if parameter.annotation is DeviceMap and map_input is None:
            map_input = (name, len(inputs))
            continue
        if not isinstance(parameter.annotation, Tensor | Tuple):
            raise DeviceError(
                f"The input {name} of {build.__name__} has no type.",
                where=here(),
                why="a device program knows the shape and device of its inputs",
                fix=f"def {build.__name__}({name}: dist.Tensor((8, 4), 0), …)",
            )
        inputs.append(DeviceValue(name, parameter.annotation))
    if map_input is None:
        return _trace(build, inputs, build.__name__, None, 0)
    at = map_input[1]

    def with_map(*values: Any) -> Any:
        return build(*values[:at], Lookup(None), *values[at:])

    return _trace(with_map, inputs, build.__name__, None, 0).with_(map_input=map_input)


def _trace(
    build: Callable[..., Any], inputs: Sequence[DeviceValue], name: str, variable: str | None, depth: int
) -> Function:
    builder = _Builder(depth)
    _BUILDERS.append(builder)
    try:
        returned = build(*(Handle(v, builder) for v in inputs))
    finally:
        _BUILDERS.pop()
    outs = returned if isinstance(returned, tuple | list) else (returned,)
    for out in outs:
        _check(out, builder, "a result")
    if _BUILDERS and builder.device_map is not None:
        _use_map(builder.device_map)
    outputs = tuple(out.value for out in outs)
    own = builder.device_map if not _BUILDERS else None
    return Function(name, tuple(inputs), tuple(builder.eqns), outputs, own, variable)


def _use_map(device_map: DeviceMap) -> None:
    """Remember the map of the program being built."""
    builder = _BUILDERS[-1]
    if builder.device_map is not None and builder.device_map != device_map:
        raise DeviceError(
            "There are two device maps.",
            where=here(),
            why=f"{builder.device_map} and {device_map}",
            fix="dist.pmap(body, operands, device_map=m) for a map of one pmap",
        )
    builder.device_map = device_map


def _check(x: Any, builder: _Builder, what: str) -> None:
    if not isinstance(x, Handle):
        raise DeviceError(
            f"{x!r} is not a value of the program.",
            where=here(),
            why=f"{what} of a device program is a value it was given or made",
            fix="pass arrays to dist.execute; in the function, use its parameters",
        )
    if x.builder is not builder:
        raise DeviceError(
            f"{x.value.name} is used where it is not defined.",
            where=here(),
            why="the body of a pmap sees its own inputs only",
            fix=f"pass {x.value.name} to the pmap, as a tuple with one element per device",
        )


def emit(
    op: str, operands: Sequence[Any], results: int = 1, body: Function | None = None, **attributes: Any
) -> list[Handle]:
    """Write an equation into the function being built."""
    if not _BUILDERS:
        raise DeviceError(
            f"dist.{op} is used outside of a device program.",
            where=here(),
            why="it writes an equation into the function being built",
            fix="@dist.function\ndef f(x: dist.Tensor((8, 4), 0)): …",
        )
    builder = _BUILDERS[-1]
    inputs: list[Operand] = []
    for x in operands:
        if isinstance(x, bool | int | float) and not isinstance(x, Handle):
            inputs.append(_number(x, operands))
            continue
        _check(x, builder, "an operand")
        inputs.append(x.value)
    outputs = [DeviceValue(builder.fresh(op.lower()[0])) for _ in range(results)]
    eqn = DeviceEqn(op, tuple(inputs), tuple(outputs), attributes, body)
    made = _with_types(eqn)
    builder.eqns.append(made)
    return [Handle(v, builder) for v in made.outputs]


def _number(x: bool | int | float, operands: Sequence[Any]) -> Number:
    """A number of the dtype it meets."""
    met = next((y.type for y in operands if isinstance(y, Handle) and y.type is not None), None)
    if met is None:
        return Number(x, INT32 if isinstance(x, int) else FLOAT32)
    dtype = elements(met).dtype
    return Number(float(x) if dtype.kind not in "biu" else x, dtype)


def _with_types(eqn: DeviceEqn) -> DeviceEqn:
    """Types that follow from the operands; where a device map decides, resolution will tell."""
    inputs = tuple(dict.fromkeys(eqn.values))
    if any(v.type is None for v in inputs):
        return eqn
    try:
        return typed(Function("", inputs, (eqn,), eqn.outputs)).eqns[0]
    except DeviceError:
        return eqn


def _only(handles: Sequence[Handle]) -> Handle:
    return handles[0]


def _targets(devices: Any, device_keys: Any) -> dict[str, Any]:
    if (devices is None) == (device_keys is None):
        raise ShapeError(
            "The devices are given once.", where=here(), why="either devices or device_keys", fix="device_keys=[]"
        )
    if isinstance(devices, Lookup):
        if devices.device_map is not None:
            _use_map(devices.device_map)
        device_keys = devices.keys_
    elif devices is not None:
        found = [_device(d) for d in devices]
        return {"devices": Keys([d.plain if d.is_concrete else d for d in found])}
    return {"device_keys": Keys([_device(d).plain for d in device_keys])}


def scatter(x: Handle, dim: int, devices: Any = None, device_keys: Any = None) -> Handle:
    """A part of ``x`` on each device."""
    return _only(emit("scatter", (x,), dim=dim, **_targets(devices, device_keys)))


def broadcast(x: Handle, devices: Any = None, device_keys: Any = None) -> Handle:
    """A copy of ``x`` on each device."""
    return _only(emit("broadcast", (x,), **_targets(devices, device_keys)))


def gather(xs: Handle, dim: int, to_device: Any) -> Handle:
    """The parts of a tuple joined on one device."""
    return _only(emit("gather", (xs,), dim=dim, to_device=_device(to_device)))


def allreduce(xs: Handle, reduce: str = "sum") -> Handle:
    """The sum (or mean, max, min, prod, or, and) of a tuple on each of its devices."""
    return _only(emit("allreduce", (xs,)) if reduce == "sum" else emit("allreduce", (xs,), reduce=reduce))


def allgather(xs: Handle, dim: int) -> Handle:
    """The parts of a tuple joined on each of its devices."""
    return _only(emit("allgather", (xs,), dim=dim))


def reduce_scatter(xs: Handle, dim: int) -> Handle:
    """A part of the sum of a tuple on each of its devices."""
    return _only(emit("reduce_scatter", (xs,), dim=dim))


def send(x: Handle, to_device: Any) -> Handle:
    """``x`` on another device."""
    return _only(emit("send", (x,), to_device=_device(to_device)))


def _device(given: Any) -> Device:
    return given if isinstance(given, Device) else Device(given)


def get_sub_device(device: Device, index: int = 1) -> Device:
    """A device below another in the device map: ``d.1``, which resolution finds.

    >>> from meshwright import dist
    >>> str(dist.get_sub_device(dist.Device("d")))
    'd.1'
    """
    return _device(device).child(index)


def pmap(body: Callable[[Device], Callable[..., Any]], operands: Sequence[Handle], device_map: Any = None) -> Any:
    """Run a body once per device: ``pmap(lambda d: lambda x, w: …, (xs, ws))``; d stands for the device.

    With a ``device_map`` of its own, the body looks devices up in that one instead of the program's.
    """
    if not _BUILDERS:
        emit("pmap", ())
    builder = _BUILDERS[-1]
    variable = "d" * (builder.depth + 1)
    inner = body(Device(variable))
    names = list(inspect.signature(inner).parameters)
    if len(names) != len(operands):
        raise ShapeError(
            f"The body of a pmap takes {len(names)} values, not {len(operands)}.",
            where=here(),
            why=f"its parameters are {', '.join(names)}",
            fix="one tuple per parameter",
        )
    inputs = []
    for name, x in zip(names, operands, strict=True):
        _check(x, builder, "an operand")
        type = elements(x.type).on(Device(variable)) if x.type is not None else None
        inputs.append(DeviceValue(name, type))
    made = _trace(inner, inputs, "", variable, builder.depth + 1)
    own = {} if device_map is None else {"device_map": DeviceMap(device_map)}
    outs = emit("pmap", operands, len(made.outputs), made, **own)
    return outs[0] if len(outs) == 1 else tuple(outs)


def tensor(name: str) -> Callable[..., Any]:
    """A tensor op as a function of handles and params."""
    op = tensor_op(name)
    if op is None:
        raise AttributeError(f"meshwright.dist has no op {name!r}")

    def call(*operands: Any, **params: Any) -> Any:
        renamed = spelled(name, params)[1]
        made = emit(op.name, operands, op.results_of(len(operands)) if isinstance(op, DeviceOp) else 1, **renamed)
        return made[0] if len(made) == 1 else tuple(made)

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"The tensor op {op}, in a device program."
    return call


def inline(fn: Function, given: Sequence[Any], device_map: Any = None) -> Any:
    """The equations of a function in the one being built, on handles for its inputs, with its device map."""
    if not _BUILDERS:
        emit(fn.name, given)
    builder = _BUILDERS[-1]
    own = fn.device_map if device_map is None or isinstance(device_map, Lookup) else DeviceMap(device_map)
    if own is not None:
        _use_map(own)
    if len(given) != len(fn.inputs):
        raise ShapeError(
            f"{fn.name} takes {len(fn.inputs)} inputs, not {len(given)}.",
            where=here(),
            why=f"they are {', '.join(v.name for v in fn.inputs)}",
            fix=f"{fn.name}({', '.join(v.name for v in fn.inputs)})",
        )
    sizes: dict[str, Size] = {}
    for v, x in zip(fn.inputs, given, strict=True):
        _check(x, builder, f"the input {v.name}")
        if v.type is not None and x.type is not None:
            for size, real in zip(elements(v.type).shape, elements(x.type).shape, strict=False):
                if isinstance(size, Dim) and size == Dim.symbol(size.powers[0][0]):
                    sizes.setdefault(size.powers[0][0], real)
    fn = _resized(fn, sizes)
    names: dict[Operand, DeviceValue] = dict(zip(fn.inputs, (x.value for x in given), strict=True))
    for eqn in fn.eqns:
        # Devices and sizes are those of the values given here.
        outputs = tuple(DeviceValue(builder.fresh(v.name)) for v in eqn.outputs)
        made = _with_types(eqn.with_(inputs=tuple(names.get(x, x) for x in eqn.inputs), outputs=outputs))
        builder.eqns.append(made)
        names.update(zip(eqn.outputs, made.outputs, strict=True))
    outs = [Handle(names[v], builder) for v in fn.outputs]
    return outs[0] if len(outs) == 1 else tuple(outs)


def _resized(fn: Function, sizes: Mapping[str, Size]) -> Function:
    """A function with other sizes for its symbols, in types and attributes."""

    def sized(x: Any) -> Any:
        if isinstance(x, Tuple):
            return Tuple(tuple(map(sized, x.items)), x.more)
        if isinstance(x, Tensor):
            return x.shaped(sized(x.shape))
        if isinstance(x, Function):
            return _resized(x, sizes)
        return tuple(map(sized, x)) if type(x) is tuple else substitute(x, sizes)

    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    new: dict[Operand, Any] = {v: DeviceValue(v.name, sized(v.type)) for v in values}
    inputs, outputs = (tuple(new[v] for v in found) for found in (fn.inputs, fn.outputs))
    eqns = [
        eqn.with_(
            inputs=tuple(new.get(x, x) for x in eqn.inputs),
            outputs=tuple(new[v] for v in eqn.outputs),
            attributes={key: sized(value) for key, value in eqn.attributes.items()},
            body=sized(eqn.body),
        )
        for eqn in fn.eqns
    ]
    return fn.with_(inputs=inputs, eqns=tuple(eqns), outputs=outputs)
