"""Random programs whose sizes, meshes and arguments can be rewritten, and what they send.

A case is a program of symbolic sizes, a mesh, and a layout of each argument and result in terms of the mesh's axes. A
relation rewrites it (an axis of 4 becomes two of 2 that are used together, say), and what devices send is compared. In
rewritten cases axes are read back in terms of the first mesh, so that the comparison is between equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.sharding.axes import AxisRef, merged
from meshwright.sharding.check import resolve
from meshwright.sharding.spec import read_axis
from tests.ops.drawing import rng
from tests.partition.models import LAYOUTS, by_name, load

Value = Any
Spec = tuple[tuple[str, ...], ...]  # the axes of each dim
Sizes = dict[str, int]
Function = Callable[..., Any]  # of a function that lays a value out as a spec says, and the arguments

SIZES = (512, 768, 1280, 1792)
UNEVEN = (6, 10, 7, 24)
MESHES: tuple[Sizes, ...] = ({"x": 4}, {"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 8, "y": 2}, {"x": 4, "y": 4})
HEADS = 4
LAYERS = {"layers": 2}
CONFIGS: dict[str, dict[str, int]] = {
    "mlp": {"inputs": 64, "dim": 256, "outputs": 64},
    "convnet": {"channels": 32, "classes": 8, "size": 16},
    "moe": {"dim": 64, "hidden": 256, "experts": 8, "capacity": 64},
    "transformer": {"vocab": 512, "dim": 256, "heads": 8, "kv_heads": 8, "hidden": 1024},
}
BATCHES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 64},
    "convnet": {"batch": 32},
    "moe": {"batch": 128},
    "transformer": {"batch": 32},
}


@dataclass(frozen=True)
class Sent:
    """A collective; its axes as parts of those of the first mesh, but for permutes, which name all that take part."""

    kind: str
    axes: tuple[AxisRef, ...]
    received: int
    total: int
    times: int


@dataclass(frozen=True)
class Argument:
    """An array in a layout."""

    shape: tuple[int, ...]
    spec: Spec
    dtype: Any = "float32"


@dataclass(frozen=True)
class Case:
    """A program on a mesh. ``parts`` says which axes or parts of axes of the first mesh those of this one are."""

    function: Function
    arguments: tuple[Any, ...]  # trees of them
    mesh: Sizes
    outs: Any | None  # a tree of arrays in the layouts of the results
    parts: Mapping[str, AxisRef]
    order: tuple[int, ...]  # in which the function takes the arguments

    @cached_property
    def on(self) -> Any:
        """The mesh."""
        return mw.make_mesh(tuple(self.mesh.values()), tuple(self.mesh))

    def place(self, spec: Spec) -> mw.NamedSharding:
        """A spec in terms of the first mesh's axes as a sharding of this one."""
        return mw.NamedSharding(self.on, mw.P(*(tuple(map(str, self.axes(names))) or None for names in spec)))

    def axes(self, names: Sequence[str]) -> list[str]:
        """The axes of this mesh that stand for some of the first one, major to minor."""
        found = []
        for name in names:
            found += sorted((ref.pre, axis) for axis, ref in self.parts.items() if ref.name == name)
        return [axis for _, axis in found]

    def lowered(self, hardware: str | None = None) -> Any:
        """The program traced for its arguments, to be laid out for a machine."""

        def constrained(x: Value, spec: Spec) -> Value:
            return lax.with_sharding_constraint(x, self.place(spec))

        def function(*args: Value) -> Any:
            given = dict(zip(self.order, args, strict=True))
            return self.function(constrained, *(given[n] for n in range(len(args))))

        def struct(x: Argument) -> mw.ShapeDtypeStruct:
            return mw.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.place(x.spec))

        structs = [mw.tree.map(struct, self.arguments[n]) for n in self.order]
        outs = self.outs and mw.tree.map(lambda x: self.place(x.spec), self.outs)
        return mw.jit(function, out_shardings=outs, hardware=hardware).lower(*structs)

    def compiled(self, hardware: str | None = None) -> Any:
        """The program of one device."""
        return self.lowered(hardware).compile()

    def read(self, axes: Sequence[str]) -> tuple[AxisRef, ...]:
        """Axes of this mesh in terms of the first one's, those that follow one another as one."""
        found = []
        for ref in resolve(self.on, [read_axis(axis) for axis in axes]):
            whole = self.parts[ref.name]
            found.append(whole.part(whole.pre * ref.pre, whole.pre * ref.next))
        return merged(tuple(sorted(found, key=lambda axis: (axis.name, axis.pre))))

    def sent(self) -> Counter[Sent]:
        """What devices send."""
        return Counter(
            Sent(
                one.kind,
                () if one.kind == "permute" else self.read(one.axes),
                one.bytes_received_per_device,
                one.total_bytes,
                one.times,
            )
            for one in self.compiled().collectives
            if one.total_bytes
        )


# Relations


def split(case: Case, axis: str, count: int) -> Case:
    """An axis becomes ``count`` axes, which are used together."""
    mesh: Sizes = {}
    parts = dict(case.parts)
    for name, size in case.mesh.items():
        if name != axis:
            mesh[name] = size
            continue
        whole = parts.pop(name)
        sizes = [2] * (count - 1)
        pre = whole.pre
        for n, part in enumerate([*sizes, size // 2 ** (count - 1)]):
            mesh[f"{name}{n}"] = part
            parts[f"{name}{n}"] = whole.part(pre, pre * part)
            pre *= part
    return replace(case, mesh=mesh, parts=parts)


def renamed(case: Case) -> Case:
    """Axes get names that sort in another order."""
    names = dict(zip(case.mesh, reversed(["alpha", "model", "zeta"][: len(case.mesh)]), strict=True))
    mesh = {names[name]: size for name, size in case.mesh.items()}
    return replace(case, mesh=mesh, parts={names[name]: ref for name, ref in case.parts.items()})


def permuted_mesh(case: Case) -> Case:
    """The axes of the mesh stand in another order."""
    return replace(case, mesh=dict(reversed(case.mesh.items())))


def permuted_arguments(case: Case, seed: int) -> Case:
    """The function takes its arguments in another order."""
    order = rng("order of arguments", seed).permutation(len(case.arguments))
    if list(order) == list(case.order):
        order = order[::-1]
    return replace(case, order=tuple(map(int, order)))


def doubled(case: Case) -> Case:
    """Every size is twice what it was."""
    twice = lambda x: replace(x, shape=tuple(2 * n for n in x.shape))
    return replace(case, arguments=mw.tree.map(twice, case.arguments))


def with_axes_of_one(case: Case) -> Case:
    """Before, between and after the axes of the mesh there are some of one device."""
    mesh: Sizes = {"one": 1}
    for name, size in case.mesh.items():
        mesh |= {name: size, f"one_after_{name}": 1}
    return replace(case, mesh=mesh)


# Programs


class Writer:
    """Applies steps drawn at random to values drawn at random; decisions depend on ranks and equal sizes alone, so that
    the same seed writes the same program for larger arrays."""

    def __init__(self, seed: int, values: list[Value], place: Callable[[Value, Spec], Value], mesh: Sizes) -> None:
        self.draw, self.values, self.place, self.mesh = rng("metamorphic programs", seed), values, place, mesh
        self.used: list[Value] = list(values)

    def pick(self, fits: Callable[[Value], bool] = lambda x: True) -> Value | None:
        found = [x for x in self.values if fits(x)] or [x for x in self.used if fits(x)]
        if not found:
            return None
        x = found[-1 - min(int(self.draw.geometric(0.5)) - 1, len(found) - 1)]
        if self.draw.integers(3):
            self.used.append(x)
            self.values = [y for y in self.values if y is not x]
        return x

    def array(self, rank: int = 1) -> Value:
        found = self.pick(lambda x: x.ndim >= rank)
        return self.used[0] if found is None else found

    def axis(self, x: Value) -> int:
        return int(self.draw.integers(x.ndim))

    def step(self) -> None:
        steps = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        x = steps[self.draw.integers(len(steps))]()
        if x is not None and x.ndim <= 4:
            self.values.append(x)

    def do_matmul(self) -> Value | None:
        x = self.array()
        y = self.pick(lambda y: y.ndim > 0 and y is not x and y.shape[0] == x.shape[-1])
        y = mnp.moveaxis(x, -1, 0) if y is None else y
        return mnp.tensordot(x, y, 1) if x.ndim + y.ndim <= 5 else None

    do_another_matmul = do_a_third_matmul = do_matmul

    def do_batched(self) -> Value | None:
        x = self.array(3)
        y = self.pick(lambda y: y.ndim == x.ndim == 3 and y.shape[0] == x.shape[0] and y.shape[2] == x.shape[2])
        return mnp.einsum("bij,bkj->bik", x, x if y is None else y) if x.ndim == 3 else None

    def do_unary(self) -> Value:
        x = self.array()
        return [mnp.tanh, lambda x: x * 0.5 + 1.0, mnp.exp, mw.nn.relu, mw.nn.gelu][self.draw.integers(5)](x)

    def do_binary(self) -> Value:
        x = self.array()
        y = self.pick(lambda y: y.shape == x.shape)
        return [mnp.add, mnp.multiply, mnp.maximum][self.draw.integers(3)](x, x if y is None else y)

    do_another_binary = do_binary

    def do_bias(self) -> Value | None:
        x = self.array()
        y = self.pick(lambda y: y.ndim == 1 and y.shape == x.shape[-1:])
        return None if y is None else x + y

    def do_reduced(self) -> Value:
        x = self.array()
        return [mnp.sum, mnp.max, mnp.mean][self.draw.integers(3)](x, axis=self.axis(x))

    def do_normalized(self) -> Value:
        x = self.array()
        return [mw.nn.softmax, lambda x: x - mnp.mean(x, -1, keepdims=True)][self.draw.integers(2)](x)

    def do_turned(self) -> Value:
        x = self.array(2)
        return mnp.transpose(x, tuple(map(int, self.draw.permutation(x.ndim))))

    def do_merged(self) -> Value:
        x = self.array(2)
        n = int(self.draw.integers(max(x.ndim - 1, 1)))
        return x.reshape(*x.shape[:n], -1, *x.shape[n + 2 :])

    def do_cut_up(self) -> Value:
        x = self.array()
        n = self.axis(x)
        heads = (HEADS, x.shape[n] // HEADS) if self.draw.integers(2) else (x.shape[n] // HEADS, HEADS)
        return x.reshape(*x.shape[:n], *heads, *x.shape[n + 1 :]) if x.shape[n] % HEADS == 0 else None

    def do_joined(self) -> Value:
        x = self.array()
        y = self.pick(lambda y: y.shape == x.shape)
        return mnp.concatenate([x, mnp.tanh(x) if y is None else y], self.axis(x))

    def do_halved(self) -> Value:
        x = self.array()
        n = self.axis(x)
        half = x.shape[n] // 2
        return lax.slice_in_dim(x, half, 2 * half, axis=n)

    def do_spread(self) -> Value:
        x = self.array()
        return mnp.broadcast_to(x[:, None], (x.shape[0], HEADS, *x.shape[1:]))

    def do_running_sum(self) -> Value:
        x = self.array()
        return mnp.cumsum(x, axis=self.axis(x))

    def do_constrained(self) -> Value:
        x = self.array()
        return self.place(x, layout(self.mesh, x.ndim, self.draw))


def layout(mesh: Sizes, rank: int, generator: np.random.Generator) -> Spec:
    """Each axis on some dim, or on none."""
    dims: list[tuple[str, ...]] = [()] * rank
    for name in generator.permutation(list(mesh)):
        dim = int(generator.integers(rank + 1))
        if dim < rank:
            dims[dim] = (*dims[dim], str(name))
    return tuple(dims)


def random_case(seed: int, uneven: bool = False) -> Case:
    """A program, its gradient if the seed is odd, on a mesh."""
    generator = rng("metamorphic cases", seed)
    mesh = dict(MESHES[generator.integers(len(MESHES))])
    sizes = UNEVEN if uneven else SIZES
    letters = generator.permutation(len(sizes))
    shapes = []
    for _ in range(generator.integers(2, 5)):
        rank = int(generator.integers(1, 4))
        shapes.append(tuple(int(sizes[letters[generator.integers(3)]]) for _ in range(rank)))
    steps = int(generator.integers(3, 9))

    def forward(place: Any, *values: Value) -> tuple[Value, ...]:
        writer = Writer(seed, list(values), place, mesh)
        for _ in range(steps):
            writer.step()
        made = [x for x in writer.values if not any(x is y for y in values)] or [writer.used[-1]]
        return tuple(made[-2:])

    def loss(place: Any, *values: Value) -> Value:
        return sum(((x * x).sum() for x in forward(place, *values)), 0.0)

    def gradients(place: Any, *values: Value) -> Any:
        return mw.grad(lambda *args: loss(place, *args), argnums=tuple(range(len(values))))(*values)

    arguments = tuple(Argument(shape, layout(mesh, len(shape), generator)) for shape in shapes)
    backward = seed % 2 == 1
    outs = arguments if backward and generator.integers(2) else None
    return first_case(gradients if backward else forward, arguments, mesh, outs)


def first_case(function: Function, arguments: tuple[Any, ...], mesh: Sizes, outs: Any | None) -> Case:
    """A case on a mesh in terms of whose axes others are read."""
    parts = {name: AxisRef.full(name, size) for name, size in mesh.items()}
    return Case(function, arguments, mesh, outs, parts, tuple(range(len(arguments))))


# The example models


def model_case(model: str, layout: str, mesh: Sizes, scale: int = 1) -> Case:
    """A train step of an example model in one of its usual layouts."""
    chosen, module = LAYOUTS[layout], load(model)
    config = module.Config(**{name: scale * n for name, n in CONFIGS[model].items()}, **LAYERS)
    batch = {name: scale * n for name, n in BATCHES[model].items()}
    params = mw.eval_shape(lambda key: module.init(key, config), mw.random.key(0))
    data = mw.eval_shape(lambda key: module.make_batch(key, config, **batch), mw.random.key(0))

    def argument(name: str, x: Any) -> Argument:
        spec = chosen.spec(model, name, x.shape, mesh["data"])
        return Argument(x.shape, tuple(_entry(entry) for entry in spec), x.dtype)

    placed = by_name(argument, params)
    split_batch = mw.tree.map(lambda x: Argument(x.shape, (_entry(chosen.batch),), x.dtype), data)

    def step(place: Any, params: Any, batch: Any) -> Any:
        return module.train_step(params, batch, config)

    return first_case(step, (placed, split_batch), mesh, (Argument((), ()), placed))


def _entry(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
