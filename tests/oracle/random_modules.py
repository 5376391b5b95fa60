"""Random modules of StableHLO and sdy: everything that propagation can meet.

``random_module(seed)`` is the text of a module that Shardy accepts. It has up to four mesh axes (sizes need not be
powers of two), sub-axes, open and closed dims, priorities, replicated and unreduced axes, constraints, groups, manual
computations, calls, loops and branches; ``Recipe.features`` chooses among the last. Named computations come only when
asked for: Shardy's pipeline makes its own and refuses those of a user.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from meshwright.sharding.mesh import Mesh
from tests.oracle.random_ops import FAMILIES, Body, Settings, Value

EVERYTHING = ("group", "manual", "call", "while", "case", "barrier", "collective", "inline")
AXIS_SIZES = (1, 2, 2, 2, 3, 4, 4, 5, 6, 8)


class Recipe(NamedTuple):
    """How to make a module: how many ops, which features, what shardings may have."""

    ops: int = 12
    features: tuple[str, ...] = EVERYTHING
    settings: Settings = Settings()
    meshes: tuple[str, ...] = ()  # to choose from; any if there are none


USUAL = Recipe()


def random_mesh(rng: random.Random) -> Mesh:
    names = rng.sample(["x", "y", "z", "w"], rng.choice([1, 2, 2, 3, 3, 4]))
    text = "[" + ", ".join(f'"{name}"={rng.choice(AXIS_SIZES)}' for name in names) + "]"
    count = prod(axis.size for axis in Mesh.parse(f"<{text}>").axes)
    ids = list(range(count))
    if rng.random() < 0.05 and 1 < count <= 64:
        rng.shuffle(ids)
        if ids != list(range(count)):
            text += f", device_ids={ids}"
    return Mesh.parse(f"<{text}>")


def random_module(seed: int, recipe: Recipe = USUAL) -> str:
    """The text of a random module."""
    rng = random.Random(seed)
    module = _Module(rng, recipe)
    return module.text()


def types_of(values: Sequence[Value]) -> str:
    return ", ".join(v.type for v in values)


def names_of(values: Sequence[Value]) -> str:
    return ", ".join(v.name for v in values)


class _Module:
    def __init__(self, rng: random.Random, recipe: Recipe) -> None:
        self.rng, self.recipe = rng, recipe
        self.mesh = Mesh.parse(rng.choice(recipe.meshes)) if recipe.meshes else random_mesh(rng)
        self.functions: list[str] = []
        self.groups = 0
        self.budget = rng.randint(max(2, recipe.ops // 2), recipe.ops)
        self.density = rng.choice([0.0, 0.05, 0.1, 0.3])

    def text(self) -> str:
        body = Body(self.rng, self.mesh, self.recipe.settings)
        body.density = self.density
        main = self.function("main", body, [body.shape() for _ in range(self.rng.randint(1, 4))], self.budget, True)
        functions = [*self.functions, main] if self.rng.random() < 0.5 else [main, *self.functions]
        text = f"sdy.mesh @mesh = {self.mesh}\n" + "\n".join(functions)
        if "meshes" in self.recipe.features and self.rng.random() < 0.4:
            text = self.with_meshes(text)
        if "inline" in self.recipe.features and self.rng.random() < 0.03:
            return text.replace("<@mesh,", f"<mesh{self.mesh},")
        return text

    def with_meshes(self, text: str) -> str:
        """The same module on several meshes: others of the same axes, one without axes, one of a single device."""
        rng = self.rng
        ids = list(range(prod(axis.size for axis in self.mesh.axes)))
        meshes = [f"sdy.mesh @copy = {self.mesh}", "sdy.mesh @empty = <[]>", "sdy.mesh @one = <[], device_ids=[0]>"]
        names = ["mesh"] * 4 + ["copy"]
        if 1 < len(ids) <= 64 and self.mesh.order is None:
            meshes.append(f"sdy.mesh @other = {str(self.mesh).removesuffix('>')}, device_ids={ids[::-1]}>")
            names.append("other")

        def elsewhere(found: re.Match[str]) -> str:
            if '"' not in found[0] + found.string[found.end() : found.end() + 9] and rng.random() < 0.1:
                return f"<@empty,{found[2]}"
            return f"<@{rng.choice(names)},{found[2]}"

        lines = []
        for line in text.split("\n")[1:]:
            if "manual_axes" in line:  # has one mesh for all of its shardings
                lines.append(line.replace("<@mesh,", f"<@{rng.choice(names)},"))
            else:
                lines.append(re.sub(r"<@(mesh),(.*?\])(?=[,>])", elsewhere, line))
        return "\n".join([text.split("\n")[0], *rng.sample(meshes, len(meshes)), *lines])

    def reshard(self, body: Body, depth: int) -> None:
        v = body.any()
        name = body.name()
        body.lines.append(
            f"{name} = sdy.reshard {v.name} {body.sharding(len(v.shape)).removeprefix('#sdy.sharding')} : {v.type}"
        )
        body.values.append(Value(name, v.shape, v.dtype))

    def stop(self, body: Body, depth: int) -> None:
        v = body.any()
        name = body.name()
        direction = self.rng.choice(["NONE", "FORWARD", "BACKWARD"])
        body.lines.append(f"{name} = sdy.propagation_barrier {v.name} allowed_direction={direction} : {v.type}")
        body.values.append(Value(name, v.shape, v.dtype))

    def function(
        self, name: str, body: Body, shapes: Sequence[tuple[int, ...]], count: int, public: bool, depth: int = 0
    ) -> str:
        rng = self.rng
        body.arguments = [Value(f"%a{i}", shape) for i, shape in enumerate(shapes)]
        body.values += body.arguments
        self.fill(body, count, depth)
        outputs = self.outputs(body, rng.randint(1, 3))
        arguments, results = [], []
        for v in body.arguments:
            marked = rng.random() < (0.45 if public else 0.15)
            attribute = f" {{sdy.sharding = {body.sharding(len(v.shape))}}}" if marked else ""
            arguments.append(f"{v.name}: {v.type}{attribute}")
        for v in outputs:
            marked = rng.random() < (0.25 if public else 0.1)
            attribute = f" {{sdy.sharding = {body.sharding(len(v.shape), plain=not public)}}}" if marked else ""
            results.append(f"{v.type}{attribute}")
        head = f"func.func {'' if public else 'private '}@{name}({', '.join(arguments)}) -> ({', '.join(results)})"
        end = f'"func.return"({names_of(outputs)}) : ({types_of(outputs)}) -> ()'
        return "\n".join([f"{head} {{", *(f"  {line}" for line in (*body.lines, end)), "}"])

    def outputs(self, body: Body, count: int) -> list[Value]:
        """Values to return: recent ones, so that little is dead."""
        fitting = [v for v in body.values if v.dtype in ("f32", "i32")] or [body.constant((2,))]
        recent = fitting[-3:]
        return [self.rng.choice(recent if self.rng.random() < 0.8 else fitting) for _ in range(count)]

    def fill(self, body: Body, count: int, depth: int = 0) -> None:
        """Write about ``count`` operations."""
        for _ in range(count):
            kind = self.rng.choice(self.recipe.features) if self.recipe.features else ""
            if kind in STRUCTURES and self.rng.random() < (0.25 if depth == 0 else 0.1) and depth < 3:
                STRUCTURES[kind](self, body, depth)
            else:
                self.rng.choice(FAMILIES)(body)

    # Operations with regions

    def some(self, body: Body, most: int = 3) -> list[Value]:
        return [body.any() for _ in range(self.rng.randint(1, most))]

    def block(self, body: Body, captured: bool, types: Sequence[Value], count: int, depth: int) -> tuple[Body, str]:
        """A block with arguments of those types, and its head."""
        inner = body.inner(body.values if captured else ())
        arguments = [Value(inner.name(), v.shape, v.dtype) for v in types]
        inner.values += arguments
        self.fill(inner, count, depth + 1)
        return inner, "^bb0(" + ", ".join(f"{v.name}: {v.type}" for v in arguments) + "):" if types else ""

    def loop(self, body: Body, depth: int) -> None:
        counter = body.constant((), "i32")
        carried = [counter, *self.some(body)]
        condition = body.inner(body.values)
        arguments = [Value(condition.name(), v.shape, v.dtype) for v in carried]
        limit = condition.constant((), "i32")
        (test,) = condition.op(
            "compare", [arguments[0], limit], [((), "i1")], "comparison_direction = #stablehlo<comparison_direction LT>"
        )
        head = "^bb0(" + ", ".join(f"{v.name}: {v.type}" for v in arguments) + "):"
        inner, inner_head = self.block(body, True, carried, self.rng.randint(1, 3), depth)
        returned = [inner.of(v.shape, v.dtype) for v in carried]
        regions = (
            f'({{ {head}\n{lines(condition)}\n"stablehlo.return"({test.name}) : (tensor<i1>) -> () }}, '
            f'{{ {inner_head}\n{lines(inner)}\n"stablehlo.return"({names_of(returned)}) : '
            f"({types_of(returned)}) -> () }})"
        )
        body.op("while", carried, [(v.shape, v.dtype) for v in carried], "", regions)

    def branches(self, body: Body, depth: int) -> None:
        index = body.of((), "i32")
        shapes = [body.shape() for _ in range(self.rng.randint(1, 2))]
        regions = []
        for _ in range(self.rng.randint(1, 3)):
            inner, _ = self.block(body, True, (), self.rng.randint(0, 2), depth)
            returned = [inner.of(shape) for shape in shapes]
            end = f'"stablehlo.return"({names_of(returned)}) : ({types_of(returned)}) -> ()'
            regions.append(f"{{\n{lines(inner)}\n{end} }}")
        body.op("case", [index], [(shape, "f32") for shape in shapes], "", f"({', '.join(regions)})")

    def barrier(self, body: Body, depth: int) -> None:
        values = self.some(body)
        body.op("optimization_barrier", values, [(v.shape, v.dtype) for v in values])

    def named(self, body: Body, depth: int) -> None:
        values = self.some(body)
        inner, head = self.block(body, False, values, self.rng.randint(1, 3), depth)
        returned = self.outputs(inner, self.rng.randint(1, 2))
        self.computation(
            body, f'sdy.named_computation<"part{self.rng.randrange(3)}">', values, returned, "", head, inner
        )

    def computation(
        self, body: Body, name: str, values: list[Value], returned: list[Value], middle: str, head: str, inner: Body,
        results: list[Value] | None = None,
    ) -> None:  # fmt: skip
        if not middle and self.rng.random() < 0.5:
            sides = [
                ", ".join(body.sharding(len(v.shape), plain=True).removeprefix("#sdy.sharding") for v in side)
                for side in (values, returned)
            ]
            middle = f"in_shardings=[{sides[0]}] out_shardings=[{sides[1]}]"
        base, results = body.name(), results or returned
        count = len(returned)
        body.lines.append(
            f"{base}{f':{count}' if count > 1 else ''} = {name}({names_of(values)}) {middle} "
            f"{head.removeprefix('^bb0').removesuffix(':') or '()'} {{\n{lines(inner)}\n"
            f"sdy.return {names_of(returned)} : {types_of(returned)}\n}} : "
            f"({types_of(values)}) -> ({types_of(results)})"
        )
        made = [Value(base if count == 1 else f"{base}#{i}", v.shape, v.dtype) for i, v in enumerate(results)]
        body.values += made
        body.keep(made)

    def manual(self, body: Body, depth: int) -> None:
        """A computation over some whole axes; each dim is split by those that divide it."""
        free = [axis for axis in self.mesh.axes if axis.name not in body.taken]
        if not free:
            return
        manual = self.rng.sample(free, self.rng.randint(1, len(free)))

        def place(shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
            dims: list[list[str]] = [[] for _ in shape]
            local = list(shape)
            for axis in self.rng.sample(manual, len(manual)):
                fitting = [d for d, n in enumerate(local) if n % axis.size == 0]
                if fitting and self.rng.random() < 0.7:
                    d = self.rng.choice(fitting)
                    dims[d].append(str(axis))
                    local[d] //= axis.size
            for axis in free:
                if axis not in manual and dims and self.rng.random() < 0.2:
                    self.rng.choice(dims).append(str(axis))
            marks = [["?"] if self.rng.random() < 0.4 else [] for _ in dims]
            text = ", ".join("{" + ", ".join(d + m) + "}" for d, m in zip(dims, marks, strict=True))
            return f"<@mesh, [{text}]>", tuple(local)

        values = self.some(body)
        places = [place(v.shape) for v in values]
        outer = body.taken
        locals_ = [Value("", shape, v.dtype) for v, (_, shape) in zip(values, places, strict=True)]
        body.taken = outer | {axis.name for axis in manual}
        inner, head = self.block(body, False, locals_, self.rng.randint(1, 3), depth)
        body.taken = outer
        returned = self.outputs(inner, self.rng.randint(1, 2))
        outs, results = [], []
        for v in returned:
            dims: list[list[str]] = [[] for _ in v.shape]
            whole = list(v.shape)
            for axis in self.rng.sample(manual, len(manual)):
                if dims and self.rng.random() < 0.7:
                    d = self.rng.randrange(len(dims))
                    dims[d].append(str(axis))
                    whole[d] *= axis.size
            outs.append(f"<@mesh, [{', '.join('{' + ', '.join(d) + '}' for d in dims)}]>")
            results.append(Value("", tuple(whole), v.dtype))
        ordered = ", ".join(str(axis) for axis in self.mesh.axes if axis in manual)
        middle = (
            f"in_shardings=[{', '.join(text for text, _ in places)}] out_shardings=[{', '.join(outs)}] "
            f"manual_axes={{{ordered}}}"
        )
        self.computation(body, "sdy.manual_computation", values, returned, middle, head, inner, results)

    def call(self, body: Body, depth: int) -> None:
        """A call of a function made for it, once or twice."""
        if body.arguments is None:
            return
        name = f"f{len(self.functions)}"
        self.functions.append("")  # keeps the place: functions inside come later
        at = len(self.functions) - 1
        inner = Body(self.rng, self.mesh, self.recipe.settings)
        inner.density = self.density
        shapes = [body.any().shape for _ in range(self.rng.randint(1, 2))]
        self.functions[at] = text = self.function(name, inner, shapes, self.rng.randint(1, 3), False, depth + 1)
        assert inner.arguments is not None
        arguments = inner.arguments
        returned = text.rsplit(") -> ()", 1)[0].rsplit(": (", 1)[1].split(", ")
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            operands = [body.of(v.shape, v.dtype) for v in arguments]
            base, count = body.name(), len(returned)
            body.lines.append(
                f"{base}{f':{count}' if count > 1 else ''} = func.call @{name}({names_of(operands)}) : "
                f"({types_of(operands)}) -> ({', '.join(returned)})"
            )
            made = []
            for i, t in enumerate(returned):
                *dims, dtype = t.removeprefix("tensor<").removesuffix(">").split("x")
                made.append(Value(base if count == 1 else f"{base}#{i}", tuple(map(int, dims)), dtype))
            body.values += made
            body.keep(made)

    def group(self, body: Body, depth: int) -> None:
        if depth:  # a group may not cross the border of a manual computation
            return
        first = body.any()
        others = [body.of(first.shape) for _ in range(self.rng.randint(1, 2))]
        number = self.groups
        if "overlap" in self.recipe.features and self.rng.random() < 0.5:
            number = self.rng.randrange(20)
        for v in (first, *others):
            body.lines.append(f"sdy.sharding_group {v.name} group_id={number} : {v.type}")
        self.groups += 1

    def collective(self, body: Body, depth: int) -> None:
        """StableHLO's own collectives, on one group of two devices."""
        x = body.any(1)
        dim = self.rng.randrange(len(x.shape))
        groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"

        def scaled(up: int, down: int = 1, at: int = dim) -> tuple[int, ...]:
            return tuple(n * up // down if d == at else n for d, n in enumerate(x.shape))

        kind = self.rng.choice(["all_gather", "reduce_scatter", "all_to_all", "all_reduce", "collective_permute"])
        if kind == "all_gather":
            body.op(kind, [x], [(scaled(2), "f32")], f"all_gather_dim = {dim} : i64, {groups}")
        elif kind == "reduce_scatter" and x.shape[dim] % 2 == 0:
            properties = f"scatter_dimension = {dim} : i64, {groups}"
            body.op(kind, [x], [(scaled(1, 2), "f32")], properties, body.scalar_region("add"))
        elif kind == "all_to_all" and x.shape[dim] % 2 == 0:
            to = self.rng.randrange(len(x.shape))
            shape = list(x.shape)
            shape[dim] //= 2
            shape[to] *= 2
            properties = (
                f"split_dimension = {dim} : i64, concat_dimension = {to} : i64, split_count = 2 : i64, {groups}"
            )
            body.op(kind, [x], [(tuple(shape), "f32")], properties)
        elif kind == "all_reduce":
            body.op(kind, [x], [(x.shape, "f32")], groups, body.scalar_region("add"))
        else:
            pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
            body.op("collective_permute", [x], [(x.shape, "f32")], pairs)


def lines(body: Body) -> str:
    return "\n".join(f"  {line}" for line in body.lines)


STRUCTURES: dict[str, Callable[[_Module, Body, int], None]] = {
    "group": _Module.group,
    "manual": _Module.manual,
    "named": _Module.named,
    "call": _Module.call,
    "while": _Module.loop,
    "case": _Module.branches,
    "barrier": _Module.barrier,
    "collective": _Module.collective,
    "reshard": _Module.reshard,
    "stop": _Module.stop,
}
