"""Random meshes and shardings, valid ones and broken ones."""

from __future__ import annotations

import random
import re
from math import prod
from typing import NamedTuple

from meshwright.sharding.axes import Axes, AxisRef, merged
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding

NAMES = ("x", "y", "z", "w", "a b", "é", 'q"', "x.0", "\\")
SIZES = (1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16)
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|\w+|\s+|.', re.DOTALL)
SPARE = (
    '"x"',
    '"y"',
    '"nope"',
    ":(1)2",
    ":(2)2",
    ":(1)4",
    "?",
    "p1",
    "p0",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    ",",
)
SPARE += (
    " ",
    ", ",
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "-",
    "replicated={",
    "unreduced={",
    "@mesh",
    "{}",
    "{?}",
    "0x2",
    "//\n",
)


class Case(NamedTuple):
    mesh: str
    sharding: str
    rank: int


def quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def mesh_text(rng: random.Random, most: int = 4, sizes: tuple[int, ...] = SIZES) -> str:
    """A valid mesh, perhaps with a device order, rarely empty or of one device."""
    if rng.random() < 0.04:
        return rng.choice(["<[]>", f"<[], device_ids=[{rng.randrange(9)}]>"])
    names = rng.sample(NAMES[:4] if rng.random() < 0.8 else NAMES, rng.randint(1, most))
    axes = [(name, rng.choice(sizes)) for name in names]
    text = "[" + rng.choice([", ", ","]).join(f"{quoted(name)}={size}" for name, size in axes) + "]"
    count = prod(size for _, size in axes)
    if count <= 48 and rng.random() < 0.4:
        text += f", device_ids={rng.sample(range(count), count)}"
    return f"<{text}>"


def divisors(n: int) -> list[int]:
    return [k for k in range(2, n + 1) if n % k == 0]


def pieces(rng: random.Random, axis: AxisRef) -> Axes:
    """The axis, or a random cut of it."""
    sizes, left = [], axis.size
    while left > 1 and rng.random() < 0.75:
        sizes.append(rng.choice(divisors(left)))
        left //= sizes[-1]
    return axis.split(*sizes, left)[: len(sizes) + (left > 1)] if sizes else (axis,)


def random_sharding(rng: random.Random, mesh: Mesh, rank: int, cut: float = 0.4) -> TensorSharding:
    """A valid sharding: each axis, or each piece of a cut one, shards a dim, is replicated, unreduced or unused."""
    if mesh.is_maximal:
        return TensorSharding(mesh, [])
    parts = [p for axis in mesh.axes for p in (pieces(rng, axis) if rng.random() < cut else (axis,))]
    rng.shuffle(parts)
    lists: list[list[AxisRef]] = [[] for _ in range(rank + 3)]
    for part in parts:
        lists[rng.randrange(len(lists))].append(part)
    sets = [merged(a for axis in mesh.axes for a in sorted(part, key=lambda a: a.pre) if a.name == axis.name)
            for part in lists[rank : rank + 2]]  # fmt: skip
    dims = []
    for part in lists[:rank]:
        is_open = rng.random() < 0.3
        priority = rng.choice([0, 1, 2, 10]) if (part or is_open) and rng.random() < 0.3 else None
        dims.append(DimensionSharding(merged(part), is_open, priority))
    return TensorSharding(mesh, dims, *sets)


def spaced(rng: random.Random, text: str) -> str:
    """The text with spaces where MLIR allows them."""
    head, body = text[: text.index("<")], text[text.index("<") :]
    parts = TOKENS.findall(body)
    return head + "".join(rng.choice(["", "", " ", "\n", "\t"]) + p if p in ",{}[]<>=" else p for p in parts)


def mutated(rng: random.Random, text: str) -> str:
    """The text with one to three tokens left out, doubled, swapped or replaced, between the outermost < and >."""
    start, end = text.index("<") + 1, len(text) - 1
    tokens = TOKENS.findall(text[start:end])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, kind = rng.randrange(len(tokens) + 1), rng.randrange(6)
        if kind == 0:
            tokens[at : at + 1] = []
        elif kind == 1:
            tokens[at:at] = tokens[at : at + rng.randint(1, 3)]
        elif kind == 2 and tokens:
            other = rng.randrange(len(tokens))
            at = min(at, len(tokens) - 1)
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == 3:
            tokens[at : at + 1] = [rng.choice(SPARE)]
        elif kind == 4:
            tokens[at:at] = [rng.choice(SPARE)]
        elif tokens:
            numbers = [i for i, token in enumerate(tokens) if token.isdecimal()] or [min(at, len(tokens) - 1)]
            tokens[rng.choice(numbers)] = str(rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, 99]))
    return text[:start] + "".join(tokens) + text[end:]


def random_case(rng: random.Random) -> Case:
    """A mesh and the text of a sharding on it; one in two is broken in some way, most of them invisibly to a parser."""
    mesh = mesh_text(rng)
    found = Mesh.parse(mesh)
    rank = rng.randrange(4)
    text = str(random_sharding(rng, found, rank))
    if rng.random() < 0.1:
        text = text.replace("@mesh", f"mesh{mesh}")
    if rng.random() < 0.2:
        text = spaced(rng, text)
    if rng.random() < 0.55:
        text = mutated(rng, text) if rng.random() < 0.6 else misused(rng, found, text)
    if rng.random() < 0.05:
        rank += rng.choice([-1, 1]) if rank else 1
    return Case(mesh, text, rank)


def misused(rng: random.Random, mesh: Mesh, text: str) -> str:
    """The text with one thing that is well formed where it should not be."""
    start = text.index("[")
    if mesh.is_maximal:
        return rng.choice([text.replace("[]", "[{}]"), text.replace("[]", '[], replicated={"x"}')])
    if not mesh.axes:
        return text.replace("{", '{"x", ' if rng.random() < 0.5 else "{", 1)
    kind = rng.randrange(8)
    if kind == 0 and "{}" in text:
        return text.replace("{}", f"{{}}p{rng.randrange(3)}", 1)
    axis = rng.choice(mesh.axes)
    written = str(axis)
    if kind == 1:
        written = '"nope"'
    elif kind == 2 and len(divisors(axis.size)) > 1:
        size = divisors(axis.size)[0]
        written = f"{axis}:(1){size}, {axis}:({size}){divisors(axis.size // size)[0]}"
    elif kind < 6:
        bounds = [1, *divisors(axis.size), 2, 3]
        written += f":({rng.choice(bounds)}){rng.choice(bounds)}"
    places = [m.span() for m in re.finditer(r'"(?:[^"\\]|\\.)*"(?::\(\d+\)\d+)?', text[start:])]
    if places and rng.random() < 0.6:
        first, last = rng.choice(places)
        return text[: start + first] + written + text[start + last :]
    holes = [start + m.end() for m in re.finditer(r"\{", text[start:])]
    if not holes:
        return text
    at = rng.choice(holes)
    return text[:at] + written + (", " if text[at] != "}" else "") + text[at:]
