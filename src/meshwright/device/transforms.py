"""Transforms of device programs: pure functions that apply to the whole program or to the body of a pmap.

``device_keys`` says both: ``[]`` spreads the program itself over the keys of the device map, ``["d"]`` the bodies of
the pmaps whose variable is d over ``device_map[d]``, ``["d", "dd"]`` those inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from meshwright.device.choose import choose_classes
from meshwright.device.classes import Classes, Place, divides, places
from meshwright.device.device_map import Members
from meshwright.device.dims import Dim, Size
from meshwright.device.from_program import takes_program
from meshwright.device.function import Function
from meshwright.device.spread import Planner, SpreadLevel
from meshwright.device.tensor_ops import is_tensor_eqn, tensor_of
from meshwright.device.types import Device
from meshwright.device.typing import in_steps
from meshwright.device.writer import SpreadWriter
from meshwright.errors import DeviceError, ShapeError

MOST_PARTS = 1 << 14
Keys = Sequence[int | str | Device]
Batch = Mapping[str, int]


@takes_program
def data_parallel(fn: Function, batch: Batch, device_keys: Keys = (), *, parts: int | None = None) -> Function:
    """Each device computes on a part of the batch; what is summed over the batch is reduced over the devices.

    ``batch`` names the inputs of ``fn`` that have a batch dim, and the dim.

    >>> from meshwright import dist
    >>> fn = dist.parse("def f(w: Tensor[(F, H), 0], x: Tensor[(B, F), 0]): y = MatMul(x, w) return y")
    >>> print(dist.data_parallel(fn.with_(device_map=dist.DeviceMap([1, 2])), batch={"x": 0}))
    def f(w: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
        device_map: DeviceMap = [1, 2]
        xs_dp: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 2]] = scatter(x, dim=0, device_keys=[])
        ws_dp: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(w, device_keys=[])
        ys_dp: Tuple[Tensor[(B/2, H), 1], Tensor[(B/2, H), 2]] = pmap(
            lambda d:
            lambda (x: Tensor[(B/2, F), d], w: Tensor[(F, H), d]): {
                y: Tensor[(B/2, H), d] = MatMul(x, w)
                return y
            },
            (xs_dp, ws_dp)
        )
        y_dp: Tensor[(B, H), 0] = gather(ys_dp, dim=0, to_device=0)
        return y_dp
    """
    fn = in_steps(fn)
    return _spread(fn, device_keys, parts, "dp", partial(named_classes, fn, batch))


@takes_program
def zero(fn: Function, batch: Batch, stage: int = 2, device_keys: Keys = (), *, parts: int | None = None) -> Function:
    """Data parallelism whose updates are split over the devices as well.

    Stage 1: each device updates a part of every parameter, from gradients all devices hold; a step begins by gathering
    the parts that the last one updated. Stage 2: gradients are reduce-scattered as they are made: a device keeps
    the part it needs. Stage 3: parameters are split as well; each is gathered where the forward pass uses it, and again
    where the backward pass does, so that about one is whole at a time.

    >>> from meshwright import dist
    >>> inputs = "w: Tensor[(8,), 0], x: Tensor[(4, 8), 0]"
    >>> fn = dist.parse(f"def f({inputs}): g = reduce_sum(x, axes=(0,)) v = sub(w, g) return v")
    >>> spread = dist.zero(fn.with_(device_map=dist.DeviceMap([1, 2])), batch={"x": 0})
    >>> [eqn.op.name for eqn in spread.eqns]
    ['scatter', 'scatter', 'pmap', 'reduce_scatter', 'pmap', 'gather']
    """
    if stage not in (1, 2, 3):
        raise ShapeError("The stage of zero is 1, 2 or 3.", why=f"it is {stage!r}", fix="stage=2")
    fn = in_steps(fn)
    return _spread(fn, device_keys, parts, "zero", partial(named_classes, fn, batch), sharded=stage)


@takes_program
def horizontal_parallel(
    fn: Function,
    batch: Batch | None = None,
    device_keys: Keys = (),
    *,
    split: Mapping[str, int] | None = None,
    parts: int | None = None,
) -> Function:
    """Each device computes with a part of the weights: columns of one, the matching rows of the next, then one sum.

    Which dims are split follows from factor rules: those that parallelize most for the least communication, none of
    them a batch dim. ``batch`` names those; a dim that an enclosing level splits is left alone as well. ``split`` says
    which dims of inputs to split instead.

    >>> from meshwright import dist
    >>> inputs = "a: Tensor[(F, H), 0], b: Tensor[(H, C), 0], x: Tensor[(B, F), 0]"
    >>> fn = dist.parse(f"def f({inputs}): h = MatMul(x, a) y = MatMul(h, b) return y")
    >>> spread = dist.horizontal_parallel(fn.with_(device_map=dist.DeviceMap([1, 2])))
    >>> [(eqn.op.name, eqn.attributes.get("dim")) for eqn in spread.eqns]
    [('broadcast', None), ('scatter', 1), ('scatter', 0), ('pmap', None), ('allreduce', None), ('send', None)]
    """

    def choose(bodies: Sequence[Function], classes: Classes, size: Size) -> frozenset[Place]:
        if split is not None:
            return named_classes(fn, split, bodies, classes, size)
        kept = named_classes(fn, batch, bodies, classes, None) if batch is not None else frozenset()
        taken = kept | scattered_classes(fn, classes)
        return choose_classes(bodies, classes, size, taken, known=bool(taken))

    fn = in_steps(fn)
    return _spread(fn, device_keys, parts, "hp", choose)


Choose = Callable[[Sequence[Function], Classes, Size], frozenset[Place]]


def _spread(fn: Function, keys: Keys, parts: int | None, tag: str, choose: Choose, *, sharded: int = 0) -> Function:
    keys = plain_keys(keys)
    classes = Classes(fn)
    bodies: list[Function] = []

    def look(body: Function, depth: int) -> Function:
        bodies.append(body)
        return body

    # The bodies of one level share their classes: what one of them splits, all of them hold in parts.
    at_level(fn, keys, look)
    level = level_of(fn, keys, parts, tag)
    split = choose(bodies, classes, level.parts)
    if not split:
        raise ShapeError(
            "There is no dim to split on this level.",
            why="no product has a dim that divides by the number of devices and is neither the batch nor split already",
            fix="data_parallel(fn, batch=…), or sizes that divide",
        )

    def spread(body: Function, depth: int) -> Function:
        return SpreadWriter(Planner(body, classes, split, level.parts, sharded=sharded), level).write()

    return at_level(fn, keys, spread)


def plain_keys(keys: Keys) -> tuple[int | str, ...]:
    """Keys as numbers and names of variables."""
    if isinstance(keys, str | Device):
        raise DeviceError(f"device_keys is {keys!r}.", why="it is a list of keys", fix=f"device_keys=[{keys!r}]")
    found: list[int | str] = []
    for key in keys:
        plain = key.base if isinstance(key, Device) and key.sub is None and not key.offset else key
        if isinstance(plain, bool) or not isinstance(plain, int | str):
            raise DeviceError(
                f"{key!s} is not a key of a device map.",
                why="a key is a device with a number, or the device variable of a pmap",
                fix='device_keys=["d"]',
            )
        found.append(plain)
    return tuple(found)


def at_level(fn: Function, keys: Sequence[int | str], change: Callable[[Function, int], Function]) -> Function:
    """Apply a change to the program (no variables among the keys), or to the bodies that the variables name."""
    variables = [key for key in keys if isinstance(key, str)]
    done: dict[int, Function] = {}

    def descend(body: Function, left: Sequence[str], depth: int) -> Function:
        known = sorted({inner.variable or "" for inner in body.bodies()})
        spread = next((eqn for eqn in body.eqns if not is_tensor_eqn(eqn)), None)
        if not left and spread is not None:
            raise DeviceError(
                "The program is already spread on this level.",
                where=repr(spread),
                why=f"device_keys={list(keys)} names a level that has {spread.op}",
                fix=f"device_keys={[*keys, *known[:1]]}" if known else "transform the program before it is resolved",
            )
        if not left:
            return change(body, depth)
        if left[0] not in known:
            raise DeviceError(
                f"No pmap here binds the device variable {left[0]}.",
                why=f"the variables on this level are: {', '.join(known) or 'none'}",
                fix=f"device_keys={[*variables[:depth], *known[:1]]}",
            )

        def deeper(inner: Function) -> Function:
            if inner.variable != left[0]:
                return inner
            if id(inner) not in done:
                done[id(inner)] = descend(inner, left[1:], depth + 1)
            return done[id(inner)]

        return body.with_bodies(deeper)

    return descend(fn, variables, 0)


def level_of(fn: Function, keys: tuple[int | str, ...], parts: int | None, tag: str) -> SpreadLevel:
    """What is known of the devices that the bodies of a level are spread over."""
    size: Size | None = parts
    devices: Members = ()
    if parts is not None and (not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS):
        raise DeviceError(
            f"A program is not written for {parts!r} devices.",
            why=f"parts is how many there are, from 1 to {MOST_PARTS}: each has its place in the types",
            fix="leave parts out: the number of devices is then a symbol",
        )
    if fn.device_map is not None:
        if all(isinstance(key, int) for key in keys):
            devices = fn.device_map.group([key for key in keys if isinstance(key, int)])
            size = len(devices)
        else:
            size = fn.device_map.fan_out(len(keys)) or size
        if parts is not None and size is not None and size != parts:
            raise DeviceError(
                f"parts={parts} is not the number of devices.",
                why=f"the device map {fn.device_map} has {size} on this level",
                fix=f"parts={size}",
            )
    depth = sum(isinstance(key, str) for key in keys)
    return SpreadLevel(size or Dim.symbol("N" * (depth + 1)), keys, fresh_variable(keys, depth), tag, devices)


def fresh_variable(keys: Sequence[int | str], depth: int) -> str:
    """A name for the devices of a level: ``d``, ``dd``, …, that no enclosing pmap has."""
    return next(name for n in count(depth + 1) if (name := "d" * n) not in keys)


def named_classes(
    fn: Function,
    batch: Batch | None,
    bodies: Sequence[Function],
    classes: Classes,
    parts: Size | None,
    into: str = "devices",
) -> frozenset[Place]:
    """The classes of named dims; names are those of the program's inputs, or of a body's."""
    found = set()
    if not isinstance(batch or {}, Mapping):
        raise ShapeError(
            f"batch is {batch!r}.",
            why="it names inputs and their batch dims",
            fix=f"batch={{{fn.inputs[-1].name!r}: 0}}",
        )
    for name, dim in (batch or {}).items():
        value = next((v for f in (fn, *bodies) for v in [f.input(name)] if v is not None), None)
        if value is None:
            known = ", ".join(v.name for v in fn.inputs)
            raise ShapeError(
                f"{fn.name} has no input {name}.",
                why=f"its inputs are {known}",
                fix=f"batch={{{fn.inputs[-1].name!r}: 0}}",
            )
        type = tensor_of(value)
        if not isinstance(dim, int) or not 0 <= dim < len(type.shape):
            raise ShapeError(f"The input {name} has no dim {dim}.", why=f"it is {type}", fix=f"batch={{{name!r}: 0}}")
        root = classes.root((value, dim))
        found.add(root)
        here = [
            tensor_of(v).shape[d] for body in bodies for v, d in places(body.inputs) if classes.root((v, d)) == root
        ]
        for size in here:
            if parts is not None and not divides(size, parts):
                raise ShapeError(
                    f"A dim of size {size} does not divide into {parts} equal parts.",
                    why=f"dim {dim} of {name} is split over {parts} {into}",
                    fix=f"a size that is a multiple of {parts}, or another number of {into}",
                )
    if not found and parts is not None:
        raise ShapeError(
            "There is nothing to split.", why="no batch dim is named", fix=f"batch={{{fn.inputs[-1].name!r}: 0}}"
        )
    return frozenset(found)


def scattered_classes(fn: Function, classes: Classes) -> frozenset[Place]:
    """The classes that a level of the program splits already; parts that are gathered to be used are whole there."""
    found: set[Place] = set()
    gathered = {v for eqn in fn.eqns if eqn.op == "allgather" for v in eqn.values}
    for eqn in fn.eqns:
        if eqn.op in ("scatter", "split") and eqn.outputs[0] not in gathered:
            found.add(classes.root((eqn.outputs[0], eqn.attributes["dim"])))
        if eqn.body is not None:
            found |= scattered_classes(eqn.body, classes)
    return frozenset(found)
