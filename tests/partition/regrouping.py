"""Random programs that regroup dims: of an array of 6 x 4 elements, 2 x 3 x 4, 3 x 8, 4 x 6, …, with work in between.

They are drawn as text, like those of `tests.transform.random_programs`, whose rules they use.
"""

from __future__ import annotations

from tests.transform.random_programs import (
    FLOAT,
    Drawn,
    Rule,
    Slot,
    Writer,
    _names,
    along,
    binary,
    gathering,
    joining,
    matmul,
    reduction,
    scan,
    slicing,
    unary,
)

SIZES = (1, 2, 3, 4, 6, 12)


def regroup(w: Writer) -> bool:
    """An array in any shape with as many elements."""
    x = w.pick(lambda s: s.rank > 0 and s.kind == FLOAT)
    if x is None:
        return False
    shape, rest = [], x.size
    while rest > 1 and len(shape) < 3:
        factor = w.choose([n for n in range(2, rest + 1) if rest % n == 0])
        shape.append(factor)
        rest //= factor
    shape += [rest] if rest > 1 else []
    if w.flag():
        shape.insert(w.integer(0, len(shape)), 1)
    return w.emit(f"{x.name}.reshape({tuple(shape)})", tuple(shape), x, kind=x.kind, bound=x.bound)


def turn(w: Writer) -> bool:
    """An array with its dims in another order."""
    x = w.pick(lambda s: s.rank > 1 and s.kind == FLOAT)
    if x is None:
        return False
    order = w.shuffled(range(x.rank))
    return w.emit(f"np_.transpose({x.name}, {tuple(order)})", tuple(x.shape[n] for n in order), x, bound=x.bound)


def total(w: Writer) -> bool:
    """A sum over some dims."""
    x = w.pick(lambda s: s.rank > 0 and s.kind == FLOAT)
    if x is None:
        return False
    dims = tuple(d for d in range(x.rank) if w.flag()) or (0,)
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    return w.emit(f"np_.tanh({x.name}.sum({dims}))", shape, x)


RULES: list[Rule] = [regroup, regroup, regroup, turn, total, total, unary, binary, matmul, slicing, along, joining,
                     reduction, gathering, scan]  # fmt: skip


def write(choices: bytes, most: int) -> Drawn:
    """The program that the choices make."""
    w = Writer(choices, frozenset())
    for name in "abc"[: w.integer(1, 3)]:
        shape = tuple(w.choose(SIZES) for _ in range(w.integer(1, 3)))
        w.scope.append(Slot(name, shape if Slot("", shape).size <= 144 else shape[:1]))
    arguments, seed = tuple(w.scope), w.integer(0, 250)
    for _ in range(w.integer(2, most)):
        w.choose(RULES)(w)
    results = [s for _ in range(3) if (s := w.pick(lambda s: s.kind == FLOAT, True)) is not None]
    w.results([s.name for s in results])
    source = f"def program({_names(arguments)}):\n" + "\n".join(w.lines) + "\n"
    return Drawn(source, arguments, tuple(results), seed)
