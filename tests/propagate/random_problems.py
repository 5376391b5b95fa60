"""Random programs, as a problem for our propagation and as the text of a module for Shardy's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

from meshwright.propagate.problem import (
    Direction,
    FactorRule,
    Kind,
    Problem,
    ProblemBlock,
    ProblemFunction,
    ProblemNode,
    ProblemValue,
)
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding

MESHES = (
    (("a", 2),),
    (("a", 2), ("b", 2)),
    (("a", 2), ("b", 4)),
    (("a", 4), ("b", 2), ("c", 2)),
    (("a", 2), ("b", 3), ("c", 4)),
    (("a", 2), ("b", 2), ("c", 2), ("d", 2)),
    (("a", 8), ("b", 3)),
    (("a", 6), ("b", 4)),
    (("a", 12), ("b", 2)),
    (("a", 2), ("b", 1), ("c", 4)),
)
SIZES = (1, 2, 3, 4, 4, 6, 8, 8, 12, 16)


@dataclass
class Features:
    """What a random program may have."""

    ops: int = 8
    regions: bool = True
    named: bool = True
    groups: bool = True
    priorities: bool = True
    barriers: bool = True
    constants: bool = True
    calls: bool = True
    manual: bool = True
    rules: bool = True
    unreduced: bool = True


@dataclass
class Scope:
    """The values that may be used, and the lines and nodes written so far."""

    values: list[int]
    nodes: list[ProblemNode] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    bound: tuple[str, ...] = ()
    depth: int = 0
    is_main: bool = False
    returned: list[int] = field(default_factory=list)  # what must be returned


def tensor(shape: tuple[int, ...] | None, dtype: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape or ())}{dtype}>"


class Maker:
    def __init__(self, seed: int, features: Features | None = None) -> None:
        self.random = random.Random(seed)
        self.features = features or Features()
        axes = self.random.choice(MESHES)
        self.mesh = Mesh._of(tuple(s for _, s in axes), tuple(n for n, _ in axes), name="mesh")
        self.values: list[ProblemValue] = []
        self.names: list[str] = []
        self.count = 0
        self.functions: list[ProblemFunction] = []
        self.groups: dict[int, tuple[tuple[int, ...], tuple[str, ...]]] = {}  # shape and bound axes
        self.texts: list[str] = []
        self.callees: list[tuple[str, list[tuple[int, ...]], list[tuple[int, ...]]]] = []
        self.shapes = [self.shape() for _ in range(3)]

    # Values

    def shape(self) -> tuple[int, ...]:
        return tuple(self.random.choice(SIZES) for _ in range(self.random.choice((1, 2, 2, 2, 3))))

    def value(self, shape: tuple[int, ...] | None, name: str, sharding: TensorSharding | None = None) -> int:
        self.values.append(ProblemValue(shape, sharding, name))
        self.names.append(name)
        return len(self.values) - 1

    def shape_of(self, value: int) -> tuple[int, ...]:
        return self.values[value].shape or ()

    def type_of(self, value: int) -> str:
        return tensor(self.values[value].shape)

    # Shardings

    def sharding(
        self, rank: int, scope: Scope | None = None, chance: float = 0.5, priorities: bool = True, closed: float = 0.4
    ) -> TensorSharding:
        rng = self.random
        bound = scope.bound if scope else ()
        parts: list[str] = []
        for name, size in self.mesh.shape.items():
            if name in bound:
                continue
            if rng.random() < 0.2 and size in (4, 6, 8, 12):
                cut = rng.choice([d for d in range(2, size) if size % d == 0])
                pieces = [f"{name}:(1){cut}", f"{name}:({cut}){size // cut}"]
                parts.extend(piece for piece in pieces if rng.random() < 0.7)
            else:
                parts.append(name)
        rng.shuffle(parts)
        dims: list[list[str]] = [[] for _ in range(rank)]
        replicated: list[str] = []
        unreduced: list[str] = []
        for part in parts:
            if rank and rng.random() < chance:
                dims[rng.randrange(rank)].append(part)
            elif rng.random() < 0.15:
                replicated.append(part)
            elif rng.random() < 0.05 and self.features.unreduced:
                unreduced.append(part)
        texts = []
        for dim in dims:
            is_open = rng.random() >= closed
            priority = ""
            if priorities and self.features.priorities and (dim or is_open) and rng.random() < 0.25:
                priority = f"p{rng.choice((0, 1, 1, 2, 4))}"
            texts.append(
                "{" + ", ".join([*(_quote(part) for part in dim), *(["?"] if is_open else [])]) + "}" + priority
            )
        text = f"sharding<@mesh, [{', '.join(texts)}]"
        order = list(self.mesh.axis_names)
        for label, found in (("replicated", replicated), ("unreduced", unreduced)):
            if found:
                found.sort(key=lambda part: (order.index(part.split(":")[0]), part))
                text += f", {label}={{{', '.join(map(_quote, found))}}}"
        try:
            return TensorSharding.parse(text + ">", self.mesh)
        except Exception:
            return self.sharding(rank, scope, chance, priorities, closed)

    def maybe_sharding(self, rank: int, chance: float, scope: Scope | None = None) -> TensorSharding | None:
        return self.sharding(rank, scope) if self.random.random() < chance else None

    def result_shardings(self, shapes: list[tuple[int, ...]], scope: Scope) -> list[TensorSharding | None]:
        """Shardings for the results of an op. Shardy forgets that a dead op's priorities are gone, so only in main."""
        return [self.sharding(len(shape), scope, priorities=scope.is_main) for shape in shapes]

    # Ops

    def new(self) -> str:
        self.count += 1
        return f"%r{self.count}"

    def add(
        self,
        scope: Scope,
        kind: Kind,
        operands: list[int],
        shapes: list[tuple[int, ...]],
        text: str,
        shardings: list[TensorSharding | None] | None = None,
        write_sharding: bool = True,
        **facts: object,
    ) -> list[int]:
        """Write an op; ``§`` in the text stands for its attribute ``sdy.sharding``."""
        name = self.new()
        several = len(shapes) > 1
        if shardings is None:
            shardings = [None] * len(shapes)
            if self.random.random() < 0.12 and write_sharding:
                shardings = self.result_shardings(shapes, scope)
        results = [
            self.value(shape, f"{name}#{i}" if several else name, sharding)
            for i, (shape, sharding) in enumerate(zip(shapes, shardings, strict=True))
        ]
        if kind is not Kind.CONSTRAINT:
            for value, sharding in zip(results, shardings, strict=True):
                if sharding is not None and any(dim.priority for dim in sharding.dims):
                    scope.returned.append(value)
        attribute = ""
        if any(s is not None for s in shardings) and write_sharding:
            inside = ", ".join(str(s).removeprefix("#sdy.sharding") for s in shardings)
            attribute = f"sdy.sharding = #sdy.sharding_per_value<[{inside}]>"
        left = f"{name}:{len(shapes)} = " if several else f"{name} = " if shapes else ""
        scope.lines.append(left + text.replace("§", "{" + attribute + "}" if attribute else ""))
        scope.nodes.append(ProblemNode(kind, tuple(operands), tuple(results), **facts))  # type: ignore[arg-type]
        return results

    def uses(self, values: list[int]) -> str:
        return ", ".join(self.names[value] for value in values)

    def pick(self, scope: Scope, shape: tuple[int, ...] | None = None) -> int | None:
        found = [v for v in scope.values if shape is None or self.values[v].shape == shape]
        if not found:
            return None
        if self.random.random() < 0.5:
            return self.random.choice(found[-4:])
        return self.random.choice(found)

    def elementwise(self, scope: Scope) -> list[int]:
        first = self.pick(scope)
        assert first is not None
        shape = self.shape_of(first)
        count = self.random.choice((1, 2, 2, 2))
        operands = [first] + [self.pick(scope, shape) or first for _ in range(count - 1)]
        name = "negate" if count == 1 else "add"
        return self.add(
            scope,
            Kind.OP,
            operands,
            [shape],
            f"stablehlo.{name} {self.uses(operands)} § : {tensor(shape)}",
            rule=FactorRule.identity(shape, count),
            elementwise=True,
            passes=Direction.BOTH,
            folds=True,
        )

    def transpose(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        shape = self.shape_of(value)
        order = list(range(len(shape)))
        self.random.shuffle(order)
        new = tuple(shape[i] for i in order)
        inverse = [order.index(i) for i in range(len(shape))]
        rule = FactorRule(
            [tuple((i,) for i in inverse)], [tuple((i,) for i in range(len(shape)))], new, range(len(shape))
        )
        text = f"stablehlo.transpose {self.names[value]}, dims = {order} § : ({tensor(shape)}) -> {tensor(new)}"
        return self.add(scope, Kind.OP, [value], [new], text, rule=rule, passes=Direction.BOTH)

    def reshape(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        shape = self.shape_of(value)
        rng = self.random
        dim = rng.randrange(len(shape))
        if rng.random() < 0.5 and len(shape) > 1:  # merge
            dim = rng.randrange(len(shape) - 1)
            if 1 in shape[dim : dim + 2]:
                return []
            new = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
            wide, narrow = shape, new
        else:
            cuts = [d for d in range(2, shape[dim]) if shape[dim] % d == 0]
            if not cuts or len(shape) > 3:
                return []
            cut = rng.choice(cuts)
            new = (*shape[:dim], cut, shape[dim] // cut, *shape[dim + 1 :])
            wide, narrow = new, shape
        if prod(new) > 4096 or 1 in wide:
            return []
        del narrow
        flat = tuple((i,) for i in range(len(wide)))
        joined = (*flat[:dim], (dim, dim + 1), *flat[dim + 2 :])
        rule = FactorRule(
            [flat if wide is shape else joined], [joined if wide is shape else flat], wide, range(len(wide))
        )
        text = f"stablehlo.reshape {self.names[value]} § : ({tensor(shape)}) -> {tensor(new)}"
        return self.add(scope, Kind.OP, [value], [new], text, rule=rule, passes=Direction.BOTH, folds=True)

    def dot(self, scope: Scope) -> list[int]:
        lhs = self.pick(scope)
        assert lhs is not None
        shape = self.shape_of(lhs)
        for rhs in self.random.sample(scope.values, len(scope.values)):
            other = self.shape_of(rhs)
            pairs = [(i, j) for i, s in enumerate(shape) for j, t in enumerate(other) if s == t]
            if pairs and len(shape) + len(other) <= 5:
                break
        else:
            return []
        i, j = self.random.choice(pairs)
        left = [d for d in range(len(shape)) if d != i]
        right = [d for d in range(len(other)) if d != j]
        new = tuple([shape[d] for d in left] + [other[d] for d in right])
        if prod(new) > 4096 or not new:
            return []
        n = len(new)
        rule = FactorRule(
            [
                tuple((n,) if d == i else (left.index(d),) for d in range(len(shape))),
                tuple((n,) if d == j else (len(left) + right.index(d),) for d in range(len(other))),
            ],
            [tuple((d,) for d in range(n))],
            (*new, shape[i]),
            range(n),
        )
        text = (
            f"stablehlo.dot_general {self.uses([lhs, rhs])}, contracting_dims = [{i}] x [{j}] § : "
            f"({tensor(shape)}, {tensor(other)}) -> {tensor(new)}"
        )
        return self.add(scope, Kind.OP, [lhs, rhs], [new], text, rule=rule)

    def broadcast(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        shape = self.shape_of(value)
        if len(shape) > 3:
            return []
        place = self.random.randrange(len(shape) + 1)
        size = self.random.choice((2, 4, 8))
        new = (*shape[:place], size, *shape[place:])
        if prod(new) > 4096:
            return []
        dims = [d if d < place else d + 1 for d in range(len(shape))]
        rule = FactorRule([tuple((d,) for d in dims)], [tuple((d,) for d in range(len(new)))], new, range(len(new)))
        text = f"stablehlo.broadcast_in_dim {self.names[value]}, dims = {dims} § : ({tensor(shape)}) -> {tensor(new)}"
        return self.add(scope, Kind.OP, [value], [new], text, rule=rule, backward_only=True, folds=True)

    def custom(self, scope: Scope) -> list[int]:
        """A custom call with a random factor rule over existing operands."""
        rng = self.random
        operands = [v for v in (self.pick(scope) for _ in range(rng.choice((1, 1, 2, 2, 3)))) if v is not None]
        sizes: list[int] = []
        kinds: list[str] = []
        blocked: set[int] = set()

        def new_factor(size: int) -> int:
            sizes.append(size)
            kinds.append(rng.choice(("", "", "", "", "need_replication", "permutation")))
            if rng.random() < 0.08:
                blocked.add(len(sizes) - 1)
            return len(sizes) - 1

        tensors: list[list[list[int]]] = []
        for value in operands:
            used: set[int] = set()
            dims = []
            for size in self.shape_of(value):
                left, factors = size, []
                for _ in range(3):
                    known = [
                        f for f, s in enumerate(sizes) if f not in used and (s == left or (s > 1 and left % s == 0))
                    ]
                    if known and rng.random() < 0.6:
                        factor = rng.choice(known)
                    else:
                        cuts = [d for d in range(2, left) if left % d == 0]
                        factor = new_factor(rng.choice(cuts) if cuts and rng.random() < 0.3 else left)
                    if sizes[factor] == 1 and factors:
                        break
                    used.add(factor)
                    factors.append(factor)
                    left //= sizes[factor]
                    if left == 1:
                        break
                dims.append(factors)
            tensors.append(dims)
        results: list[list[list[int]]] = []
        shapes = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            chosen = rng.sample(range(len(sizes)), min(len(sizes), rng.choice((1, 2, 2, 3, 4))))
            if rng.random() < 0.2:
                chosen.append(new_factor(rng.choice((2, 4, 6, 8))))
            dims = []
            for factor in chosen:
                if dims and rng.random() < 0.3 and sizes[factor] > 1 and 1 not in [sizes[f] for f in dims[-1]]:
                    dims[-1].append(factor)
                else:
                    dims.append([factor])
            results.append(dims)
            shapes.append(tuple(prod(sizes[f] for f in dim) for dim in dims))
        if any(prod(shape) > 1 << 16 or len(shape) > 4 for shape in shapes):
            return []
        returned = {f for dims in results for dim in dims for f in dim}
        for factor in range(len(sizes)):
            if not kinds[factor] and factor not in returned and rng.random() < 0.8:
                kinds[factor] = "reduction"
        passing = [f for f, kind in enumerate(kinds) if not kind]

        def frozen(given: list[list[list[int]]]) -> list[tuple[tuple[int, ...], ...]]:
            return [tuple(tuple(dim) for dim in dims) for dims in given]

        rule = FactorRule(frozen(tensors), frozen(results), sizes, passing, blocked)
        text = (
            f"stablehlo.custom_call @foo({self.uses(operands)}) {{{{+}}sdy.sharding_rule = "
            f"{rule_text(rule, kinds)}}} : ({', '.join(map(self.type_of, operands))}) -> "
            + (tensor(shapes[0]) if len(shapes) == 1 else f"({', '.join(map(tensor, shapes))})")
        )
        mark = "{+}"
        shardings = None
        if rng.random() < 0.12:
            shardings = self.result_shardings(shapes, scope)
            inside = ", ".join(str(s).removeprefix("#sdy.sharding") for s in shardings)
            text = text.replace(mark, f"sdy.sharding = #sdy.sharding_per_value<[{inside}]>, ")
        else:
            text = text.replace(mark, "")
            shardings = [None] * len(shapes)
        return self.add(scope, Kind.OP, operands, shapes, text, list(shardings), write_sharding=False, rule=rule)

    def constant(self, scope: Scope) -> list[int]:
        shape = self.random.choice(self.shapes)
        number = self.random.choice((1, 2))
        return self.add(
            scope,
            Kind.OP,
            [],
            [shape],
            f"stablehlo.constant § dense<{number}.0> : {tensor(shape)}",
            constant=True,
            key=("constant", number, shape),
        )

    def constraint(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        rank = len(self.shape_of(value))
        sharding = self.sharding(rank, scope, closed=self.random.choice((0.4, 1.0)))
        if self.random.random() < 0.5:
            sharding = sharding.with_(unreduced=())
        body = str(sharding).removeprefix("#sdy.sharding")
        return self.add(
            scope,
            Kind.CONSTRAINT,
            [value],
            [self.shape_of(value)],
            f"sdy.sharding_constraint {self.names[value]} {body} : {self.type_of(value)}",
            [sharding],
            write_sharding=False,
        )

    def group(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        shape = self.shape_of(value)
        fitting = [number for number, found in self.groups.items() if found == (shape, scope.bound)]
        if fitting and self.random.random() < 0.8:
            number = self.random.choice(fitting)
        else:
            number = self.random.choice([n for n in range(9) if n not in self.groups] or [9])
            if self.groups.setdefault(number, (shape, scope.bound)) != (shape, scope.bound):
                return []
        self.add(
            scope,
            Kind.GROUP,
            [value],
            [],
            f"sdy.sharding_group {self.names[value]} group_id={number} : {self.type_of(value)}",
            group=number,
        )
        return []

    def barrier(self, scope: Scope) -> list[int]:
        value = self.pick(scope)
        assert value is not None
        direction = self.random.choice(list(Direction)[:3])
        return self.add(
            scope,
            Kind.BARRIER,
            [value],
            [self.shape_of(value)],
            f"sdy.propagation_barrier {self.names[value]} allowed_direction={direction.name} : {self.type_of(value)}",
            [None],
            direction=direction,
        )

    def fence(self, scope: Scope) -> list[int]:
        values = [v for v in (self.pick(scope) for _ in range(self.random.choice((1, 2, 3)))) if v is not None]
        shapes = [self.shape_of(value) for value in values]
        types = ", ".join(map(tensor, shapes))
        return self.add(
            scope,
            Kind.FENCE,
            values,
            shapes,
            f'"stablehlo.optimization_barrier"({self.uses(values)}) § : ({types}) -> ({types})',
        )

    # Regions

    def inner(
        self, scope: Scope, shapes: list[tuple[int, ...]], ops: int, outer: bool, **more: object
    ) -> tuple[Scope, list[int]]:
        arguments = [self.value(shape, f"{self.new()}") for shape in shapes]
        seen = [*(scope.values if outer else []), *arguments]
        found = Scope(seen, bound=scope.bound, depth=scope.depth + 1)
        for key, value in more.items():
            setattr(found, key, value)
        self.fill(found, ops)
        return found, arguments

    def returning(self, scope: Scope, shapes: list[tuple[int, ...]]) -> list[int] | None:
        found = [self.pick(scope, shape) for shape in shapes]
        return None if any(value is None for value in found) else found  # type: ignore[return-value]

    def loop(self, scope: Scope) -> list[int]:
        values = [v for v in (self.pick(scope) for _ in range(self.random.choice((1, 2, 3)))) if v is not None]
        shapes = [self.shape_of(value) for value in values]
        condition, arguments = self.inner(scope, shapes, 1, True)
        flag = self.value((), f"{self.new()}")
        condition.lines.append(f"{self.names[flag]} = stablehlo.constant dense<false> : tensor<i1>")
        condition.nodes.append(ProblemNode(Kind.OP, (), (flag,), constant=True, key=("constant", "false")))
        condition.lines.append(f"stablehlo.return {self.names[flag]} : tensor<i1>")
        body, inside = self.inner(scope, shapes, self.random.randint(1, 4), True)
        returned = self.returning(body, shapes)
        assert returned is not None
        types = ", ".join(map(tensor, shapes))
        body.lines.append(f"stablehlo.return {self.uses(returned)} : {types}")
        regions = (
            ProblemBlock(tuple(arguments), tuple(condition.nodes), (flag,)),
            ProblemBlock(tuple(inside), tuple(body.nodes), tuple(returned)),
        )

        def region(scope: Scope, arguments: list[int]) -> str:
            header = ", ".join(f"{self.names[a]}: {self.type_of(a)}" for a in arguments)
            return "({\n^bb0(" + header + "):\n" + "\n".join(scope.lines) + "\n}"

        text = (
            f'"stablehlo.while"({self.uses(values)}) '
            + region(condition, arguments)
            + ", "
            + region(body, inside)[1:]
            + f") § : ({types}) -> ({types})"
        )
        return self.add(scope, Kind.WHILE, values, shapes, text, regions=regions)

    def case(self, scope: Scope) -> list[int]:
        picks = [v for v in (self.pick(scope) for _ in range(self.random.choice((1, 2)))) if v is not None]
        shapes = [self.shape_of(value) for value in picks]
        index = self.value((), self.new())
        scope.lines.append(f"{self.names[index]} = stablehlo.constant dense<0> : tensor<i32>")
        scope.nodes.append(ProblemNode(Kind.OP, (), (index,), constant=True, key=("constant", "int")))
        regions, texts = [], []
        types = ", ".join(map(tensor, shapes))
        for _ in range(self.random.choice((1, 2))):
            branch, _ = self.inner(scope, [], self.random.randint(0, 3), True)
            returned = self.returning(branch, shapes)
            assert returned is not None
            branch.lines.append(f"stablehlo.return {self.uses(returned)} : {types}")
            regions.append(ProblemBlock((), tuple(branch.nodes), tuple(returned)))
            texts.append("{\n" + "\n".join(branch.lines) + "\n}")
        text = f'"stablehlo.case"({self.names[index]}) ({", ".join(texts)}) § : (tensor<i32>) -> ({types})'
        return self.add(scope, Kind.CASE, [index], shapes, text, regions=tuple(regions))

    def named(self, scope: Scope) -> list[int]:
        values = [v for v in (self.pick(scope) for _ in range(self.random.choice((1, 2, 3)))) if v is not None]
        shapes = [self.shape_of(value) for value in values]
        body, arguments = self.inner(scope, shapes, self.random.randint(1, 4), False)
        returned = [v for v in (self.pick(body) for _ in range(self.random.choice((1, 2)))) if v is not None]
        results = [self.shape_of(value) for value in returned]
        text = f'sdy.named_computation<"f{self.count}">({self.uses(values)})'
        facts: dict[str, object] = {"callee": f"f{self.count}"}
        for label, given in (("in_shardings", shapes), ("out_shardings", results)):
            if self.random.random() < 0.3:
                shardings = tuple(self.sharding(len(shape), scope, priorities=False) for shape in given)
                facts[label] = shardings
                text += f" {label}=[{', '.join(str(s).removeprefix('#sdy.sharding') for s in shardings)}]"
        header = ", ".join(f"{self.names[a]}: {self.type_of(a)}" for a in arguments)
        types = ", ".join(map(tensor, results))
        body.lines.append(f"sdy.return {self.uses(returned)} : {types}")
        text += f" ({header}) {{\n" + "\n".join(body.lines) + "\n} : "
        text += f"({', '.join(map(tensor, shapes))}) -> ({types})"
        region = ProblemBlock(tuple(arguments), tuple(body.nodes), tuple(returned))
        return self.add(
            scope, Kind.NAMED, values, results, text, [None] * len(results), False, regions=(region,), **facts
        )

    def manual(self, scope: Scope) -> list[int]:
        rng = self.random
        free = [name for name in self.mesh.axis_names if name not in scope.bound]
        if not free or scope.bound:
            return []
        axes = sorted(rng.sample(free, rng.randint(1, len(free))), key=self.mesh.axis_names.index)
        values = [v for v in (self.pick(scope) for _ in range(rng.choice((1, 2)))) if v is not None]
        outer = [self.shape_of(value) for value in values]

        def spread(shape: tuple[int, ...]) -> tuple[TensorSharding, tuple[int, ...]] | None:
            for _ in range(30):
                sharding = self.sharding(len(shape), scope, priorities=False)
                used = [axis for dim in sharding.dims for axis in dim.axes]
                used += [*sharding.replicated, *sharding.unreduced]
                if any(axis.name in axes and not axis.is_full for axis in used) or sharding.unreduced:
                    continue
                local = []
                for size, dim in zip(shape, sharding.dims, strict=True):
                    manual = [axis.name in axes for axis in dim.axes]
                    shards = prod(axis.size for axis in dim.axes if axis.name in axes)
                    if manual != sorted(manual, reverse=True) or size % shards:
                        break
                    local.append(size // shards)
                else:
                    return sharding, tuple(local)
            return None

        into = [spread(shape) for shape in outer]
        if any(found is None for found in into):
            return []
        local = [found[1] for found in into if found]
        body, arguments = self.inner(scope, local, rng.randint(1, 4), False, bound=(*scope.bound, *axes))
        returned = [v for v in (self.pick(body) for _ in range(rng.choice((1, 2)))) if v is not None]
        out = []
        for value in returned:
            shape = self.shape_of(value)
            sharding = self.sharding(len(shape), body, priorities=False).with_(unreduced=())
            left = list(axes)
            rng.shuffle(left)
            dims = list(sharding.dims)
            sizes = list(shape)
            for name in left[: rng.randint(0, len(left))]:
                if sizes:
                    dim = rng.randrange(len(sizes))
                    axis = self.mesh.axis_by_name[name]
                    dims[dim] = dims[dim].with_(axes=(axis, *dims[dim].axes))
                    sizes[dim] *= axis.size
            out.append((sharding.with_(dims=dims), tuple(sizes)))
        results = [sizes for _, sizes in out]
        if any(prod(shape) > 1 << 16 for shape in results):
            return []
        in_shardings = tuple(found[0] for found in into if found)
        out_shardings = tuple(sharding for sharding, _ in out)

        def listed(shardings: tuple[TensorSharding, ...]) -> str:
            return f"[{', '.join(str(s).removeprefix('#sdy.sharding') for s in shardings)}]"

        header = ", ".join(f"{self.names[a]}: {self.type_of(a)}" for a in arguments)
        body.lines.append(f"sdy.return {self.uses(returned)} : {', '.join(map(self.type_of, returned))}")
        text = (
            f"sdy.manual_computation({self.uses(values)}) in_shardings={listed(in_shardings)} "
            f"out_shardings={listed(out_shardings)} manual_axes={{{', '.join(map(_quote, axes))}}} ({header}) {{\n"
            + "\n".join(body.lines)
            + f"\n}} : ({', '.join(map(tensor, outer))}) -> ({', '.join(map(tensor, results))})"
        )
        region = ProblemBlock(tuple(arguments), tuple(body.nodes), tuple(returned))
        return self.add(
            scope,
            Kind.MANUAL,
            values,
            results,
            text,
            [None] * len(results),
            False,
            regions=(region,),
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            manual_axes=tuple(axes),
        )

    def call(self, scope: Scope) -> list[int]:
        if not self.callees or scope.bound:
            return []
        name, given, results = self.random.choice(self.callees)
        values = [self.pick(scope, shape) for shape in given]
        if any(value is None for value in values):
            return []
        operands = [v for v in values if v is not None]
        types = f"({', '.join(map(tensor, given))}) -> ({', '.join(map(tensor, results))})"
        text = f"func.call @{name}({self.uses(operands)}) § : {types}"
        return self.add(scope, Kind.CALL, operands, results, text, callee=name, pure=False)

    # Programs

    def fill(self, scope: Scope, ops: int) -> None:
        features = self.features
        choices = [self.elementwise] * 4 + [self.transpose, self.reshape, self.reshape, self.dot, self.dot]
        choices += [self.broadcast, self.constraint, self.constraint]
        if features.rules:
            choices += [self.custom] * 3
        if features.constants:
            choices += [self.constant] * 2
        if features.groups:
            choices += [self.group] * 2
        if features.barriers:
            choices += [self.barrier, self.fence]
        if features.regions and scope.depth < 2:
            choices += [self.loop, self.case]
            if features.named:
                choices.append(self.named)
        if features.manual and scope.depth < 2:
            choices += [self.manual]
        if features.calls:
            choices += [self.call] * 2
        for _ in range(ops):
            if not scope.values:
                scope.values.extend(self.constant(scope))
                continue
            scope.values.extend(self.random.choice(choices)(scope))

    def function(self, name: str, ops: int, private: bool) -> None:
        rng = self.random
        shapes = [rng.choice(self.shapes) for _ in range(rng.randint(1, 3))]
        arguments = [self.value(shape, f"{self.new()}", self.maybe_sharding(len(shape), 0.6)) for shape in shapes]
        scope = Scope(list(arguments), is_main=not private)
        self.fill(scope, ops)
        pool = scope.values[-3:]
        returned = [rng.choice(pool) for _ in range(rng.randint(1, 2))]
        returned += scope.returned
        results = [self.shape_of(value) for value in returned]
        shardings = tuple(self.maybe_sharding(len(shape), 0.25) for shape in results)

        def attribute(sharding: TensorSharding | None) -> str:
            return "" if sharding is None else f" {{sdy.sharding = {sharding}}}"

        header = ", ".join(f"{self.names[a]}: {self.type_of(a)}{attribute(self.values[a].sharding)}" for a in arguments)
        out = ", ".join(f"{tensor(s)}{attribute(t)}" for s, t in zip(results, shardings, strict=True))
        scope.lines.append(f"return {self.uses(returned)} : {', '.join(map(tensor, results))}")
        visibility = "private " if private else ""
        self.texts.append(f"func.func {visibility}@{name}({header}) -> ({out}) {{\n" + "\n".join(scope.lines) + "\n}")
        block = ProblemBlock(tuple(arguments), tuple(scope.nodes), tuple(returned))
        self.functions.append(ProblemFunction(name, block, shardings, private))
        if private:
            self.callees.append((name, shapes, results))

    def program(self) -> tuple[Problem, str]:
        if self.features.calls and self.random.random() < 0.4:
            for number in range(self.random.choice((1, 1, 2))):
                self.function(f"g{number}", self.random.randint(1, 4), True)
        self.function("main", self.random.randint(2, self.features.ops), False)
        functions = [self.functions[-1], *self.functions[:-1]]
        texts = [self.texts[-1], *self.texts[:-1]]
        problem = Problem(tuple(self.values), tuple(functions), (self.mesh,))
        return problem, self.mesh.declaration() + "\n" + "\n".join(texts)


def _quote(part: str) -> str:
    name, colon, rest = part.partition(":")
    return f'"{name}"{colon}{rest}'


def rule_text(rule: FactorRule, kinds: list[str]) -> str:
    letters = [chr(ord("i") + n) if n < 18 else f"z_{n - 17}" for n in range(len(rule.sizes))]

    def show(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> str:
        return ", ".join("[" + ", ".join("".join(letters[f] for f in dim) for dim in dims) + "]" for dims in tensors)

    text = f"#sdy.op_sharding_rule<({show(rule.operands)})->({show(rule.results)}) "
    text += "{" + ", ".join(f"{letters[f]}={size}" for f, size in enumerate(rule.sizes)) + "}"
    for label in ("reduction", "need_replication", "permutation"):
        found = [letters[f] for f, kind in enumerate(kinds) if kind == label]
        if found:
            text += f" {label}={{{', '.join(found)}}}"
    if rule.blocked:
        text += f" blocked_propagation={{{', '.join(letters[f] for f in sorted(rule.blocked))}}}"
    return text + ", custom>"
