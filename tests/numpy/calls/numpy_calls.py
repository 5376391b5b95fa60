"""How each name of ``meshwright.numpy`` may be called."""

from __future__ import annotations

import itertools

from tests.numpy.calls.drawing import (
    ANY,
    INEXACT,
    NUMBER,
    REAL,
    WHOLE,
    Calls,
    Draw,
    Drawer,
    NotDrawn,
    Operand,
    Unfit,
    calls,
)
from tests.numpy.calls.more_calls import MORE


def unary(kinds: str = ANY, within: tuple[float, float] | None = None, numbers: str = "bifc") -> Calls:
    """One array; now and then of any kind or contents, or a number."""

    def draw(d: Drawer) -> str:
        if d.flag(0.05):
            return d.number(numbers)
        return str(d.array(ANY) if d.flag(0.1) else d.array(kinds, within=within))

    return calls(draw)


def binary(kinds: str = ANY, numbers: bool = True) -> Calls:
    """Two arrays that broadcast, or an array and a number."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        pair = [str(x), d.beside(x, kinds, numbers)]
        return ", ".join(d.shuffled(pair))

    return calls(draw)


def reduction(
    kinds: str = ANY, extras: tuple[str, ...] = (), dtype: str = "", initial: bool = False, where: bool = False
) -> Calls:
    """``(x, axis=, keepdims=, …)``."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        text = f"{x}{d.over(x)}" + d.options(", keepdims=True", *extras)
        if dtype and d.flag(0.2):
            text += f", dtype={d.dtype(dtype)}"
        start = initial and d.flag(0.2)
        if start:
            text += f", initial={d.number('if' if x.kind == 'f' else 'i')}"
        if where and (start or not initial) and d.flag(0.3):
            text += f", where={d.fitting(x.shape, 'b')}"
        return text

    return calls(draw)


def along(kinds: str = ANY, none: bool = True, extras: tuple[str, ...] = (), dtype: str = "") -> Calls:
    """``(x, axis=)`` of something that goes along one axis."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        text = f"{x}{d.along(x, none=none)}" + d.options(*extras)
        return text + (f", dtype={d.dtype(dtype)}" if dtype and d.flag(0.2) else "")

    return calls(draw)


def several(d: Drawer, kinds: str = ANY, rank: tuple[int, int] = (0, 3), vary: int | None = None) -> list[Operand]:
    """Arrays of one shape, but for the dim ``vary``."""
    first = d.array(kinds, rank=rank)
    found = [first]
    for _ in range(d.integer(0, 2)):
        shape = list(first.shape)
        if vary is not None and first.ndim:
            shape[vary] = d.choose((1, 2, shape[vary]))
        found.append(d.array(kinds, tuple(shape)))
    return found


def listed(items: list[Operand]) -> str:
    return f"[{', '.join(map(str, items))}]" if len(items) != 1 else f"[{items[0]}]"


def joined(d: Drawer) -> str:
    first = d.array(rank=(1, 3))
    axis = d.axis(first)
    items = [first]
    for _ in range(d.integer(0, 2)):
        shape = list(first.shape)
        shape[axis] = d.choose((0, 1, 2, shape[axis]))
        items.append(d.array(ANY, tuple(shape)))
    dtype = f", dtype={d.dtype(ANY)}" if d.flag(0.15) else ""
    return f"{listed(items)}, axis={axis}{dtype}" if d.flag(0.9) else f"{listed(items)}, axis=None"


def stacked(d: Drawer) -> str:
    items = several(d)
    axis = d.integer(-items[0].ndim - 1, items[0].ndim)
    return f"{listed(items)}" + d.option(f", axis={axis}", chance=0.7)


def equals(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {x if d.flag(0.3) else d.fitting(x.shape)}"


def matrices(kinds: str = ANY) -> Draw:
    def draw(d: Drawer) -> str:
        x = d.array(kinds, rank=(1, 3))
        inner = x.shape[-1]
        shapes = [(inner,), (inner, d.integer(1, 3)), (*x.shape[:-2], inner, 2)]
        y = d.array(kinds, d.choose(shapes))
        return f"{x}, {y}{preferred(d, x, y)}"

    return draw


def preferred(d: Drawer, *operands: Operand) -> str:
    floats = all(x.kind == "f" for x in operands)
    return d.option(", preferred_element_type='float32'", chance=0.2) if floats else ""


def dotted(d: Drawer) -> str:
    if d.flag(0.15):
        x = d.array()
        return f"{x}, {d.array(ANY, ())}"
    x = d.array(ANY, rank=(1, 3))
    return f"{x}, {d.array(ANY, d.choose([x.shape[-1:], (x.shape[-1], 2), (2, x.shape[-1], 1)]))}"


def contracted(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3))
    count = d.integer(0, min(2, x.ndim))
    if d.flag():
        kept = x.shape[x.ndim - count :]
        return f"{x}, {d.array(ANY, (*kept, *d.shape(0, 1)))}, axes={count}"
    mine = [n % x.ndim for n in d.axes(x)][:2]
    y = d.array(ANY, (*(x.shape[n] for n in mine), *d.shape(0, 1)))
    return f"{x}, {y}, axes=({mine}, {list(range(len(mine)))})"


EINSUMS = (
    ("ij,jk->ik", "ij", "jk"),
    ("ij,jk", "ij", "jk"),
    ("ij->ji", "ij"),
    ("ii->i", "ii"),
    ("ii", "ii"),
    ("ij->", "ij"),
    ("i,j->ij", "i", "j"),
    ("bij,bjk->bik", "bij", "bjk"),
    ("i,i", "i", "i"),
    ("...i,...i->...", "bi", "bi"),
    ("ij,jk,kl->il", "ij", "jk", "kl"),
    ("ij,ij->j", "ij", "ij"),
    ("i,ij,j->", "i", "ij", "j"),
    ("iij->j", "iij"),
)


def einsums(d: Drawer) -> str:
    text, *labels = d.choose(EINSUMS)
    sizes = {label: d.choose((1, 2, 3, 3)) for label in "".join(labels)}
    operands = [d.array(ANY, tuple(sizes[label] for label in word)) for word in labels]
    return f"{text!r}, {', '.join(map(str, operands))}{preferred(d, *operands)}"


def creation(values: bool = False) -> Calls:
    def draw(d: Drawer) -> str:
        value = f", {d.choose((d.number('bifc'), str(d.array(ANY, ()))))}" if values else ""
        dtype = f", dtype={d.dtype()}" if d.flag(0.6) else ""
        return f"{d.shape()}{value}{dtype}"

    return calls(draw)


def like(values: bool = False) -> Calls:
    def draw(d: Drawer) -> str:
        value = f", {d.number('bifc')}" if values else ""
        return f"{d.array()}{value}" + d.options(f", dtype={d.dtype()}", f", shape={d.shape()}")

    return calls(draw)


def kth(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 3), test=lambda x: x.size > 0)
    axis = d.axis(x)
    return f"{x}, {d.integer(-x.shape[axis], x.shape[axis] - 1)}, axis={axis}"


def ordered(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3))
    return f"{x}{d.along(x, none=True)}" + d.options(", descending=True")


def sections(axis: int | None) -> Draw:
    """Of split and its kin: a number of sections, or where to cut."""

    def draw(d: Drawer) -> str:
        at = axis
        x = d.array(ANY, rank=((at or 0) + 1, 3))
        if at is None:
            at = d.axis(x)
        elif at == 1 and x.ndim == 1:
            at = 0
        size = x.shape[at]
        divisors = [n for n in range(1, size + 1) if size % n == 0] or [1, 2]
        cuts = sorted(d.integer(0, size) for _ in range(d.integer(0, 2)))
        text = f"{x}, {d.choose(divisors) if d.flag() else cuts}"
        return text + (f", axis={at}" if axis is None else "")

    return draw


def uneven(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3))
    return f"{x}, {d.integer(1, 4)}{d.along(x)}"


def padded(d: Drawer) -> str:
    x = d.array(ANY, rank=(0, 2))
    widths = [(d.integer(0, 2), d.integer(0, 2)) for _ in range(x.ndim)]
    width = d.choose((d.integer(0, 2), (d.integer(0, 2), d.integer(0, 2)), widths or 1))
    how = d.choose(("constant", "constant", "edge", "reflect", "symmetric", "wrap", "empty"))
    how = d.choose(("linear_ramp", "maximum", "mean", "median", "minimum")) if d.flag(0.3) else how
    if how == "empty" and d.flag(0.8):
        how = "edge"
    text = f"{x}, {width}" + (f", mode={how!r}" if how != "constant" or d.flag() else "")
    if how == "constant" and d.flag():
        text += f", constant_values={d.choose((d.number('if'), '(1, 2)'))}"
    if how in ("reflect", "symmetric") and d.flag():
        text += ", reflect_type='odd'"
    if how == "linear_ramp" and d.flag():
        text += f", end_values={d.choose((1, 2.5, (0, 1)))}"
    if how in ("maximum", "mean", "minimum", "median") and d.flag():
        text += f", stat_length={d.integer(1, 2)}"
    return text


def indices(d: Drawer, size: int, shape: tuple[int, ...] | None = None, beyond: int = 1) -> Operand:
    """Integers for a dim of ``size``, a few of them beyond its ends."""
    within = (-size - beyond, size + beyond) if d.flag(0.2) else (0, max(size - 1, 0))
    kinds = "iu" if within[0] >= 0 else "i"
    return d.array(kinds, shape, rank=(0, 2), within=within, fresh=d.flag())


def taken(d: Drawer) -> str:
    x = d.array()
    flat = not x.ndim or d.flag(0.25)
    axis = None if flat else d.axis(x)
    size = x.size if axis is None else x.shape[axis]
    text = f"{x}, {indices(d, size)}" + ("" if axis is None else f", axis={axis}")
    mode = d.choose(("clip", "wrap", "fill"))
    text += d.option(f", mode={mode!r}", chance=0.5)
    return text + (", fill_value=7" if "'fill'" in text and d.flag(0.3) and x.kind != "b" else "")


def taken_along(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3))
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = d.integer(1, 3)
    rows = indices(d, x.shape[axis], tuple(shape))
    return f"{x}, {rows}, axis={axis}" + d.option(", mode='clip'", ", mode='fill'")


def put_along(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 2), test=lambda x: x.size > 0)
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = 1
    rows = indices(d, x.shape[axis], tuple(shape))
    return f"{x}, {rows}, {d.choose((d.number('i'), str(d.array(x.kind, tuple(shape)))))}, {axis}, inplace=False"


def repeated(d: Drawer) -> str:
    x = d.array(rank=(1, 3)) if d.flag(0.9) else d.array()
    axis = None if not x.ndim or d.flag(0.2) else d.axis(x)
    size = x.size if axis is None else x.shape[axis]
    counts = [d.integer(0, 2) for _ in range(size)]
    if d.flag(0.3) and size:
        rows = d.array("i", (size,), within=(0, 2), fresh=True)
        return f"{x}, {rows}, axis={axis}, total_repeat_length={d.integer(1, 5)}"
    text = f"{x}, np_.array({counts})" if counts and d.flag() else f"{x}, {d.integer(0, 2)}"
    return f"{text}, axis={axis}" + d.option(f", total_repeat_length={d.integer(1, 5)}", chance=0.2)


def rolled(d: Drawer) -> str:
    x = d.array()
    if d.flag(0.3) and x.ndim:
        axes = d.axes(x, 1)
        return f"{x}, {tuple(d.integer(-4, 4) for _ in axes)}, axis={axes}"
    return f"{x}, {d.integer(-4, 4)}{d.along(x)}"


def moved(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3))
    if d.flag():
        return f"{x}, {d.axis(x)}, {d.axis(x)}"
    count = d.integer(0, x.ndim)
    source, target = d.shuffled(range(x.ndim))[:count], d.shuffled(range(x.ndim))[:count]
    return f"{x}, {source}, {target}"


def permuted(d: Drawer) -> str:
    x = d.array()
    return f"{x}" + d.option(f", {tuple(d.shuffled(range(x.ndim)))}", chance=0.7)


def permuted_by(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {tuple(d.shuffled(range(x.ndim)))}"


def two_axes(*, distinct: bool = True, extra: str = "") -> Draw:
    def draw(d: Drawer) -> str:
        x = d.array(ANY, rank=(2, 3))
        a, b = d.shuffled(range(x.ndim))[:2]
        return f"{x}{extra and f', {d.integer(-2, 2)}'}, {a}, {b - x.ndim if d.flag() else b}"

    return draw


def diagonals(rank: tuple[int, int]) -> Calls:
    return calls(lambda d: f"{d.array(ANY, rank=rank)}" + d.option(f", k={d.integer(-2, 2)}"))


def squeezed(d: Drawer) -> str:
    x = d.array(test=lambda x: 1 in x.shape)
    ones = [n for n, size in enumerate(x.shape) if size == 1]
    return f"{x}" + d.option(f", axis={d.choose(ones)}", f", axis={tuple(ones)}", chance=0.7)


def expanded(d: Drawer) -> str:
    x = d.array(rank=(0, 2))
    return f"{x}, {d.integer(-x.ndim - 1, x.ndim)}" if d.flag(0.7) else f"{x}, (0, {x.ndim + 1})"


def reshape(d: Drawer) -> str:
    x = d.array()
    shape = list(d.reshaped(x))
    if shape and x.size and d.flag(0.3):
        shape[d.integer(0, len(shape) - 1)] = -1
    return f"{x}, {tuple(shape)}" + d.option(", order='F'", chance=0.15)


def quantiles(scale: float) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(REAL if d.flag(0.2) else "f", test=lambda x: x.size > 0)
        q = d.choose((0.0, 0.25 * scale, 0.5 * scale, 0.9 * scale, f"np_.array([{0.1 * scale}, {0.6 * scale}])"))
        q = d.array("f", d.shape(0, 1), within=(0, scale)) if d.flag(0.2) else q
        methods = [f", method={m!r}" for m in ("linear", "lower", "higher", "nearest", "midpoint")]
        return f"{x}, {q}{d.over(x)}" + d.option(*methods) + d.option(", keepdims=True")

    return calls(draw)


def histograms(density: bool) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array("f", rank=(1, 2), test=lambda x: x.size > 0)
        bins = d.choose((3, 5, "np_.array([-2.0, 0.0, 0.5, 3.0])"))
        text = f"{x}, {bins}" + d.options(", range=(-1, 2)", f", weights={d.array('f', x.shape)}")
        return text + (d.option(", density=True") if density else "")

    return calls(draw)


def convolved(d: Drawer) -> str:
    a = d.array(NUMBER, rank=1, test=lambda x: x.size > 0)
    b = d.array(NUMBER, rank=1, test=lambda x: x.size > 0)
    return f"{a}, {b}" + d.option(*[f", mode={m!r}" for m in ("full", "same", "valid")], chance=0.8)


def interpolated(d: Drawer) -> str:
    count = d.integer(1, 4)
    steps = f"np_.cumsum({d.array('f', (count,), within=(0.1, 2.0))})"
    values = d.array(INEXACT, (count,))
    return f"{d.array('f')}, {steps}, {values}" + d.options(", left=-9.0", ", right=9.0")


def sorted_into(d: Drawer) -> str:
    bins = f"np_.sort({d.array('if', rank=1)})"
    return f"{bins}, {d.array('if')}" + d.options(", side='right'", ", method='sort'")


def masks(d: Drawer) -> str:
    x = d.array()
    return f"{d.fitting(x.shape, 'b')}, {x}, {d.beside(x)}"


def selected(d: Drawer) -> str:
    x = d.array(rank=(1, 2))
    count = d.integer(1, 3)
    conditions = [d.array("b", x.shape) for _ in range(count)]
    choices = [d.array(ANY, x.shape) for _ in range(count)]
    return f"{listed(conditions)}, {listed(choices)}" + d.option(f", default={d.number()}")


def chosen(d: Drawer) -> str:
    count = d.integer(1, 3)
    x = d.array("i", rank=(1, 2), within=(0, count - 1), fresh=True)
    options = [d.fitting(x.shape) for _ in range(count)]
    return f"{x}, {listed(options)}, mode={d.choose(('clip', 'wrap'))!r}"


def spaced(d: Drawer, *extras: str, positive: bool = False) -> str:
    within = (0.2, 3.0) if positive else None
    if d.flag():
        ends = "0.5, 4.0" if positive else f"{d.number()}, {d.number()}"
    else:
        x = d.array("f" if positive else NUMBER, rank=(0, 1), within=within)
        ends = f"{x}, {d.array('f' if positive else NUMBER, x.shape, within=within)}"
    text = f"{ends}, {d.integer(0, 5)}" + d.options(", endpoint=False", ", dtype='float32'", *extras)
    return text + ("" if "," in ends[:4] or not d.flag(0.2) else ", axis=-1")


def aranges(d: Drawer) -> str:
    start = d.choose(("", f"{d.integer(-3, 3)}, "))
    text = f"{start}{d.integer(0, 6)}" + (f", {d.choose((2, 0.5, -1))}" if start and d.flag() else "")
    return text + d.option(f", dtype={d.dtype('iuf')}")


def deleted(d: Drawer) -> str:
    x = d.array(rank=(1, 3), test=lambda x: x.size > 0)
    axis = d.choose((None, d.axis(x)))
    size = x.size if axis is None else x.shape[axis]
    what = d.choose((d.integer(-size, size - 1), f"np_.array([{size - 1}, 0])", "slice(0, 1)"))
    return f"{x}, {what}, axis={axis}"


def inserted(d: Drawer) -> str:
    x = d.array(rank=(1, 2), test=lambda x: x.size > 0)
    axis = d.choose((None, d.axis(x)))
    size = x.size if axis is None else x.shape[axis]
    return f"{x}, {d.integer(-size, size)}, {d.choose((d.number('i'), str(d.array(x.kind, ()))))}, axis={axis}"


def bins(d: Drawer) -> str:
    x = d.array("iu", rank=1, within=(0, 5))
    text = f"{x}, length={d.integer(1, 7)}"
    return text + (f", weights={d.array('if', x.shape)}" if d.flag(0.4) else "")


def unravelled(d: Drawer) -> str:
    shape = d.choose(((2, 3), (4,), (2, 1, 3)))
    return f"{d.array('iu', rank=(0, 2), within=(0, 8) if d.flag() else (-7, 8))}, {shape}"


def ravelled(d: Drawer) -> str:
    shape = d.choose(((2, 3), (4,), (2, 1, 3)))
    rows = d.array("i", rank=(0, 2), within=(0, 0) if 1 in shape else (0, 1), fresh=True)
    parts = [d.array("i", rows.shape, within=(0, n - 1), fresh=True) for n in shape]
    if d.flag():
        return f"({', '.join(map(str, parts))},), {shape}, mode={d.choose(('clip', 'wrap'))!r}" + d.option(
            ", order='F'"
        )
    constants = ", ".join(str(d.integer(0, n - 1)) for n in shape)
    return f"({constants},), {shape}"


def crossed(d: Drawer) -> str:
    x = d.array(NUMBER, d.choose(((3,), (2, 3), (3, 2), (1, 2))))
    return f"{x}, {d.array(NUMBER, x.shape)}" + (", axis=0" if x.shape[0] == 3 and d.flag() else "")


def kroned(d: Drawer) -> str:
    return f"{d.array(rank=(0, 2), test=lambda x: x.size < 10)}, {d.array(rank=(0, 2), test=lambda x: x.size < 10)}"


def gradients(d: Drawer) -> str:
    x = d.array("f", rank=(1, 2), test=lambda x: min(x.shape) > 1)
    axis = d.axis(x)
    spacing = d.choose(("", ", 2.0", f", {d.number('f')}"))
    return f"{x}{spacing}, axis={axis}" if d.flag(0.7) else f"{x}"


def trapezoids(d: Drawer) -> str:
    y = d.array(NUMBER, rank=(1, 3), test=lambda x: x.size > 0)
    how = d.integer(0, 4)
    axis = d.axis(y)
    if how == 0:
        return f"{y}, {d.array('f', (y.shape[axis],))}, axis={axis}"
    if how == 1:
        return f"{y}, {d.array('f', y.shape)}, axis={axis}"
    if how == 2 and y.shape[axis] > 1:
        widths = list(y.shape)
        widths[axis] -= 1
        return f"{y}, dx={d.array('f', d.thinner(tuple(widths)))}, axis={axis}"
    return f"{y}, dx={d.number('f')}{d.along(y)}"


def covariances(d: Drawer) -> str:
    x = d.array("f", rank=(1, 2), test=lambda x: x.size > 3)
    return f"{x}" + d.options(", rowvar=False", ", bias=True", ", ddof=0")


def correlations(d: Drawer) -> str:
    return f"{d.array('f', rank=2, test=lambda x: min(x.shape) > 1)}" + d.option(", rowvar=False")


def weighted(d: Drawer) -> str:
    x = d.array(NUMBER, test=lambda x: x.size > 0)
    if not x.ndim or d.flag(0.3):
        return f"{x}{d.over(x)}" + d.option(", keepdims=True")
    axis = d.axis(x)
    weights = d.array("f", d.choose((x.shape, (x.shape[axis],))), within=(0.2, 3.0))
    return f"{x}, axis={axis}, weights={weights}" + d.option(", keepdims=True", ", returned=True")


def meshes(d: Drawer) -> str:
    items = [d.array(rank=1) for _ in range(d.integer(1, 3))]
    return ", ".join(map(str, items)) + d.options(", indexing='ij'", ", sparse=True")


def blocks(d: Drawer) -> str:
    x = d.array(rank=2)
    return f"[[{x}, {d.array(ANY, x.shape)}], [{d.array(ANY, x.shape)}, {x}]]"


def shapes(d: Drawer) -> str:
    shape = d.shape()
    return f"{shape}, {d.thinner(shape)}"


def broadcast(d: Drawer) -> str:
    shape = d.shape()
    return f"{d.array(ANY, d.thinner(shape))}, {shape}"


def tiled(d: Drawer) -> str:
    x = d.array(rank=(0, 2))
    return f"{x}, {d.choose((d.integer(0, 2), tuple(d.integer(0, 2) for _ in range(d.integer(0, 3)))))}"


def resized(d: Drawer) -> str:
    return f"{d.array(test=lambda x: x.size > 0)}, {d.shape(0, 2)}"


def clipped(d: Drawer) -> str:
    x = d.array("biuf")
    low, high = d.beside(x, x.kind), d.beside(x, x.kind)
    return d.choose((f"{x}, {low}, {high}", f"{x}, {low}", f"{x}, max={high}", f"{x}, None, {high}"))


def rotated(d: Drawer) -> str:
    x = d.array(rank=(2, 3))
    return f"{x}, {d.integer(-1, 4)}" + d.option(f", axes={tuple(d.shuffled(range(x.ndim))[:2])}")


def flipped(d: Drawer) -> str:
    x = d.array()
    return f"{x}" + (d.over(x) if x.ndim else "")


def appended(d: Drawer) -> str:
    x = d.array(rank=(1, 2))
    return f"{x}, {d.array(ANY, x.shape)}{d.along(x, none=True)}"


def differences(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    return f"{x}" + d.option(f", n={d.integer(0, 3)}") + d.along(x)


def lex_keys(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 2))
    return f"({x}, {d.array(REAL, x.shape)})" + d.along(x)


def vanders(d: Drawer) -> str:
    return f"{d.array(rank=1)}" + d.options(f", N={d.integer(0, 4)}", ", increasing=True")


def closeness(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {d.beside(x)}" + d.options(", equal_nan=True", ", rtol=0.1", ", atol=0.5")


def rounded(d: Drawer) -> str:
    return f"{d.array(ANY)}" + d.option(f", {d.choose((0, 1, 2, -1, 5, 39))}", chance=0.6)


def scaled(d: Drawer) -> str:
    x = d.array("f")
    return f"{x}, {d.choose((str(d.array('i', x.shape)), str(d.integer(-4, 4)), '300', '-300'))}"


def powers(d: Drawer) -> str:
    x = d.array(within=(0.2, 3) if d.flag() else None)
    exponent = d.choose((d.beside(x), str(d.integer(-2, 4)), "0.5", "2.0", "0"))
    return f"{x}, {exponent}"


def shifts(d: Drawer) -> str:
    x = d.array("iu")
    within = (0, 7) if d.flag(0.8) else (0, 40)
    y = d.array(x.kind, x.shape, within=within, fresh=d.flag())
    return f"{x}, {y if d.flag(0.7) else d.integer(*within)}"


def known_size(d: Drawer) -> str:
    return f"{d.array(ANY, test=lambda x: x.size > 0)}, size={d.integer(1, 6)}" + d.option(", fill_value=-1")


def known_size_ranked(d: Drawer) -> str:
    x = d.array(ANY, rank=(1, 3), test=lambda x: x.size > 0)
    return f"{x}, size={d.integer(1, 6)}" + d.option(", fill_value=7")


def uniques(d: Drawer) -> str:
    x = d.array(REAL, rank=(0, 2))
    return f"{x}, size={d.integer(1, 5)}" + d.options(
        ", return_index=True", ", return_inverse=True", ", return_counts=True", f", fill_value={d.integer(0, 3)}"
    )


def triangles(d: Drawer) -> str:
    return f"{d.integer(0, 4)}" + d.options(f", k={d.integer(-2, 2)}", f", m={d.integer(0, 4)}")


def eyes(d: Drawer) -> str:
    return f"{d.integer(0, 4)}" + d.options(f", M={d.integer(0, 4)}", f", k={d.integer(-5, 5)}", f", dtype={d.dtype()}")


def applied(d: Drawer) -> str:
    x = d.array("f", rank=(1, 3))
    return f"{d.choose(('np_.cumsum', 'np_.sum', 'lambda v: v[:1]'))}, {d.axis(x)}, {x}"


def polynomials(d: Drawer) -> str:
    return f"{d.array(NUMBER, rank=1)}, {d.array(NUMBER)}"


def casts(d: Drawer) -> str:
    return f"{d.array()}, {d.dtype()}"


def filled_diagonal(d: Drawer) -> str:
    x = d.array(d.choose("iuf"), rank=2)
    return f"{x}, {d.choose((d.number('i'), str(d.array(x.kind, ()))))}, inplace=False"


def array_of(d: Drawer) -> str:
    what = d.choose(
        (
            str(d.array()),
            d.number("bifc"),
            f"[{d.number()}, {d.number()}]",
            f"[{d.array(ANY, (2,))}, {d.array(ANY, (2,))}]",
            "[[1, 2], [3, 4]]",
        )
    )
    return what + d.option(f", dtype={d.dtype()}")


def compressed(d: Drawer) -> str:
    x = d.array(rank=(1, 2))
    axis = d.axis(x)
    mask = [d.flag() for _ in range(x.shape[axis])]
    return f"np_.array({mask}, dtype=bool), {x}, axis={axis}"


def vector_pairs(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    return f"{x}, {d.array(ANY, x.shape)}"


NAME_FAMILIES: dict[str, tuple[str, Calls]] = {
    "of one array": (
        "abs absolute conj conjugate negative positive real imag square isfinite isinf isnan iscomplex isreal"
        " logical_not nan_to_num sign copy angle exp sin cos tanh arcsinh asinh arctan atan sinc sinh cosh tan expm1"
        " exp2 ravel shape ndim iscomplexobj isrealobj ones_like zeros_like atleast_1d atleast_2d atleast_3d",
        unary(),
    ),
    "of one real array": (
        "cbrt ceil floor deg2rad rad2deg degrees radians fabs trunc rint isneginf isposinf signbit modf",
        unary(REAL),
    ),
    "near one": ("arccos acos arcsin asin arctanh atanh", unary(INEXACT, (-0.95, 0.95))),
    "above one": ("arccosh acosh", unary(INEXACT, (1.05, 3.0))),
    "above zero": ("log log1p log2 log10 sqrt reciprocal", unary(INEXACT, (0.1, 3.0))),
    "of bits": ("bitwise_not invert bitwise_invert bitwise_count", unary(WHOLE)),
    "of two arrays": (
        "add subtract multiply divide true_divide equal not_equal logical_and logical_or logical_xor maximum minimum"
        " fmax fmin less less_equal greater greater_equal",
        binary(),
    ),
    "of two real arrays": (
        "arctan2 atan2 copysign heaviside hypot nextafter mod remainder floor_divide divmod logaddexp2",
        binary(REAL),
    ),
    "of two real numbers": ("fmod", binary("iuf")),
    "of the bits of two arrays": ("bitwise_and bitwise_or bitwise_xor", binary(WHOLE)),
    "of shifts": ("left_shift right_shift bitwise_left_shift bitwise_right_shift", calls(shifts)),
    "of powers": ("power pow float_power", calls(powers)),
    "of whole numbers": ("gcd lcm", binary("iu")),
    "logs of sums": ("logaddexp", binary("fc")),
    "sums": ("sum prod", reduction(dtype="ifc", initial=True, where=True)),
    "extremes": ("max min amax amin", reduction(REAL, initial=True, where=True)),
    "truths": ("all any", reduction(where=True)),
    "means": ("mean", reduction(NUMBER, dtype="f", where=True)),
    "spreads": ("std var", reduction(NUMBER, extras=(", ddof=1",), where=True)),
    "counts": ("count_nonzero", reduction()),
    "nan sums": ("nansum nanprod nanmean", reduction(NUMBER, dtype="f")),
    "nan extremes": ("nanmax nanmin nanmedian median ptp", reduction("if")),
    "nan spreads": ("nanstd nanvar", reduction(INEXACT, extras=(", ddof=1",))),
    "where extremes are": ("argmax argmin nanargmax nanargmin", along(REAL, extras=(", keepdims=True",))),
    "running": ("cumsum cumprod nancumsum nancumprod", along(ANY, dtype="if")),
    "running of the array API": (
        "cumulative_sum cumulative_prod",
        calls(
            lambda d: (
                f"{d.array(rank=1)}" + d.options(", include_initial=True", f", dtype={d.dtype('if')}")
                if d.flag()
                else (lambda x: f"{x}, axis={d.axis(x)}")(d.array(rank=(1, 3)))
            )
        ),
    ),
    "of an order": ("sort argsort", calls(ordered)),
    "joining": ("concatenate", calls(joined)),
    "stacking": ("stack", calls(stacked)),
    "stacking by name": ("hstack vstack dstack", calls(lambda d: listed(several(d, rank=(0, 2))))),
    "columns": ("column_stack", calls(lambda d: listed(several(d, rank=(1, 2))))),
    "together": ("broadcast_arrays", calls(lambda d: (lambda x: f"{x}, {d.fitting(x.shape)}")(d.array()))),
    "new arrays": ("zeros ones empty", creation()),
    "new arrays of a value": ("full", creation(values=True)),
    "arrays like others": ("empty_like", like()),
    "arrays of a value like others": ("full_like", like(values=True)),
    "cutting": ("split", calls(sections(None))),
    "cutting unevenly": ("array_split", calls(uneven, sections(None))),
    "triangles of a matrix": ("tril triu", diagonals((2, 3))),
    "diagonals": ("diag", diagonals((1, 2))),
    "indices of triangles": ("tril_indices triu_indices", calls(triangles)),
    "indices of triangles from": ("tril_indices_from triu_indices_from", calls(lambda d: f"{d.array(rank=2)}")),
    "quantiles": ("quantile nanquantile", quantiles(1.0)),
    "percentiles": ("percentile nanpercentile", quantiles(100.0)),
    "scalars": (
        "bfloat16 bool bool_ cdouble complex64 complex128 complex_ csingle double float8_e4m3fn float8_e5m2 float16"
        " float32 float64 float_ int8 int16 int32 int64 int_ single uint uint8 uint16 uint32 uint64",
        calls(lambda d: d.choose((str(d.array(REAL)), d.number("bif")))),
    ),
    "permutations": ("transpose", calls(permuted)),
    "permutations that are given": ("permute_dims", calls(permuted_by)),
    "closeness": ("isclose allclose", calls(closeness)),
    "roundings": ("round around", calls(rounded)),
    "matmuls": ("matmul", calls(matrices())),
}

BY_NAME: dict[str, Calls | NotDrawn] = {
    "append": calls(appended),
    "apply_along_axis": calls(applied),
    "arange": calls(aranges),
    "argpartition": NotDrawn("any order within the parts is right; compared by what it promises"),
    "argwhere": calls(known_size),
    "array": calls(array_of),
    "array_equal": calls(equals),
    "array_equiv": calls(equals),
    "asarray": calls(array_of),
    "astype": calls(casts),
    "average": calls(weighted),
    "bincount": calls(bins),
    "block": calls(blocks),
    "broadcast_shapes": calls(shapes),
    "broadcast_to": calls(broadcast),
    "can_cast": calls(lambda d: f"{d.dtype()}, {d.dtype()}"),
    "choose": calls(chosen),
    "clip": calls(clipped),
    "compress": calls(compressed),
    "concat": calls(lambda d: joined(d).split(", dtype")[0].split(", axis=None")[0]),
    "convolve": calls(convolved),
    "corrcoef": calls(correlations),
    "correlate": calls(convolved),
    "cov": calls(covariances),
    "cross": calls(crossed),
    "delete": calls(deleted),
    "diag_indices": calls(lambda d: f"{d.integer(0, 4)}, {d.integer(1, 3)}"),
    "diagflat": calls(
        lambda d: f"{d.array(rank=(0, 2), test=lambda x: x.size < 8)}" + d.option(f", k={d.integer(-2, 2)}")
    ),
    "diagonal": calls(two_axes(extra="k")),
    "diff": calls(differences),
    "digitize": calls(lambda d: f"{d.array('if')}, np_.sort({d.array('if', rank=1)})" + d.option(", right=True")),
    "dot": calls(dotted),
    "dsplit": calls(sections(2)),
    "ediff1d": calls(lambda d: f"{d.array(NUMBER)}" + d.options(", to_end=2", ", to_begin=3")),
    "einsum": calls(einsums),
    "expand_dims": calls(expanded),
    "extract": calls(lambda d: (lambda x: f"{d.array('b', x.shape)}, {x}")(d.array()), concrete=True),
    "eye": calls(eyes),
    "fill_diagonal": calls(filled_diagonal),
    "finfo": NotDrawn("of a dtype; its attributes are compared by name"),
    "fix": NotDrawn("jax.numpy no longer has it; it is trunc"),
    "flatnonzero": calls(known_size),
    "flip": calls(flipped),
    "fliplr": calls(lambda d: f"{d.array(rank=(2, 3))}"),
    "flipud": calls(lambda d: f"{d.array(rank=(1, 3))}"),
    "from_dlpack": NotDrawn("of an object of another library"),
    "fromfunction": calls(lambda d: f"lambda *i: sum(i) * 2, {d.shape(1, 3)}" + d.option(", dtype=int")),
    "geomspace": calls(lambda d: spaced(d, positive=True)),
    "gradient": calls(gradients),
    "histogram": histograms(True),
    "histogram_bin_edges": histograms(False),
    "hsplit": calls(sections(1)),
    "identity": calls(lambda d: f"{d.integer(0, 4)}" + d.option(f", dtype={d.dtype()}")),
    "iinfo": NotDrawn("of a dtype; its attributes are compared by name"),
    "indices": calls(lambda d: f"{d.shape(0, 2)}" + d.options(f", dtype={d.dtype('if')}", ", sparse=True")),
    "inner": calls(lambda d: (lambda x: f"{x}, {d.array(ANY, (2, x.shape[-1]))}")(d.array(rank=(1, 2)))),
    "insert": calls(inserted),
    "interp": calls(interpolated),
    "isdtype": calls(
        lambda d: f"np_.dtype({d.dtype(ANY.replace('f', ''))}), {d.choose(('bool', 'integral', 'numeric'))!r}"
    ),
    "isin": calls(lambda d: f"{d.array(REAL)}, {d.array(REAL)}" + d.option(", invert=True")),
    "isscalar": calls(lambda d: d.choose((str(d.array()), d.number()))),
    "issubdtype": calls(lambda d: f"{d.dtype()}, np_.{d.choose(('inexact', 'integer', 'number', 'floating'))}"),
    "iterable": calls(lambda d: d.choose((str(d.array()), "3"))),
    "ix_": calls(lambda d: f"{d.array('i', rank=1)}, {d.array('i', rank=1)}"),
    "kron": calls(kroned),
    "ldexp": calls(scaled),
    "lexsort": calls(lex_keys),
    "linspace": calls(lambda d: spaced(d, ", retstep=True")),
    "logspace": calls(lambda d: spaced(d, ", base=2.0")),
    "matrix_transpose": calls(lambda d: f"{d.array(rank=(2, 3))}"),
    "meshgrid": calls(meshes),
    "moveaxis": calls(moved),
    "nonzero": calls(known_size_ranked),
    "outer": calls(lambda d: f"{d.array(rank=(0, 2))}, {d.array(rank=(0, 1))}"),
    "pad": calls(padded),
    "partition": NotDrawn("any order within the parts is right; compared by what it promises"),
    "polyval": calls(polynomials),
    "promote_types": calls(lambda d: f"{d.dtype()}, {d.dtype()}"),
    "put_along_axis": calls(put_along),
    "ravel_multi_index": calls(ravelled),
    "repeat": calls(repeated),
    "reshape": calls(reshape),
    "resize": calls(resized),
    "result_type": calls(lambda d: f"{d.array()}, {d.choose((str(d.array()), d.number('bifc'), d.dtype()))}"),
    "roll": calls(rolled),
    "rollaxis": calls(lambda d: (lambda x: f"{x}, {d.axis(x)}, {d.integer(-x.ndim, x.ndim)}")(d.array(rank=(1, 3)))),
    "rot90": calls(rotated),
    "searchsorted": calls(sorted_into),
    "select": calls(selected),
    "size": calls(lambda d: (lambda x: f"{x}{d.over(x)}")(d.array())),
    "squeeze": calls(squeezed),
    "swapaxes": calls(two_axes()),
    "take": calls(taken),
    "take_along_axis": calls(taken_along),
    "tensordot": calls(contracted),
    "tile": calls(tiled),
    "trace": calls(two_axes(extra="k")),
    "trapezoid": calls(trapezoids),
    "tri": calls(
        lambda d: (
            f"{d.integer(0, 4)}"
            + d.options(f", M={d.integer(0, 4)}", f", k={d.integer(-2, 2)}", f", dtype={d.dtype()}")
        )
    ),
    "unique": calls(uniques),
    "unravel_index": calls(unravelled),
    "unstack": calls(lambda d: (lambda x: f"{x}, axis={d.axis(x)}")(d.array(rank=(1, 3)))),
    "vander": calls(vanders),
    "vdot": calls(vector_pairs),
    "vecdot": calls(lambda d: (lambda x: f"{x}, {d.array(ANY, x.shape)}{d.along(x)}")(d.array(rank=(1, 3)))),
    "vectorize": NotDrawn("returns a function; tested with vmap"),
    "vsplit": calls(sections(0)),
    "where": calls(masks, masks, lambda d: f"{d.array(ANY, rank=(1, 2))}, size={d.integer(1, 5)}"),
}

LINALG: dict[str, Calls | NotDrawn] = {}
FFT: dict[str, Calls | NotDrawn] = {}


def table() -> dict[str, Calls | NotDrawn]:
    """Every name of a family and every name of its own."""
    found: dict[str, Calls | NotDrawn] = {}
    for names, family in NAME_FAMILIES.values():
        for name in names.split():
            if name in found or name in BY_NAME:
                raise ValueError(f"{name} is entered twice")
            found[name] = family
    return found | BY_NAME


NUMPY = table()

# Not functions: constants, types and modules.
for _name in [
    "complexfloating",
    "dtype",
    "e",
    "euler_gamma",
    "fft",
    "floating",
    "generic",
    "inexact",
    "inf",
    "integer",
    "linalg",
    "nan",
    "ndarray",
    "newaxis",
    "number",
    "pi",
    "signedinteger",
    "unsignedinteger",
]:
    NUMPY[_name] = NotDrawn("not a function")
NUMPY["array_repr"] = NUMPY["array_str"] = NotDrawn("text; compared where arrays are printed")


def _square(d: Drawer, kinds: str = INEXACT) -> Operand:
    n = d.integer(1, 3)
    return d.array(kinds, (*d.shape(0, 1), n, n))


def _positive(d: Drawer) -> str:
    x = _square(d)
    return f"{x} @ np_.conj({x}.mT) + 4 * np_.eye({x.shape[-1]}, dtype={x}.dtype)"


def _triangular(d: Drawer) -> str:
    x = _square(d)
    return f"{x} * 0.3 + 2 * np_.eye({x.shape[-1]}, dtype={x}.dtype)"


def norms(d: Drawer) -> str:
    x = d.array(NUMBER, rank=(0, 3))
    if not x.ndim or d.flag(0.3):
        return f"{x}" + d.option(", keepdims=True")
    if d.flag(0.6) or x.ndim < 2:
        ord_ = d.choose((None, 1, 2, 3, "np_.inf", "-np_.inf", 0, 0.5))
        return f"{x}, ord={ord_}, axis={d.axis(x)}" + d.option(", keepdims=True")
    ord_ = d.choose((None, "'fro'", 1, "np_.inf", -1, "-np_.inf"))
    return f"{x}, ord={ord_}, axis={tuple(d.shuffled(range(x.ndim))[:2])}" + d.option(", keepdims=True")


def vector_norms(d: Drawer) -> str:
    x = d.array(INEXACT)
    return f"{x}{d.over(x)}, ord={d.choose((1, 2, 3, 'np_.inf'))}" + d.option(", keepdims=True")


def matrix_norms(d: Drawer) -> str:
    ord_ = d.choose(("'fro'", 1, "np_.inf", -1))
    return f"{d.array(NUMBER, rank=(2, 3))}, ord={ord_}" + d.option(", keepdims=True")


def chained(d: Drawer) -> str:
    sizes = [d.integer(1, 3) for _ in range(d.integer(3, 5))]
    return listed([d.array("f", pair) for pair in itertools.pairwise(sizes)])


LINALG.update(
    cholesky=calls(lambda d: _positive(d) + d.option(", upper=True")),
    cho_solve=NotDrawn("of jax.scipy; compared by name"),
    solve_triangular=NotDrawn("of jax.scipy; compared by name"),
    matrix_norm=calls(matrix_norms),
    matrix_power=calls(lambda d: f"{_square(d, NUMBER)}, {d.integer(0, 4)}"),
    multi_dot=calls(chained),
    norm=calls(norms),
    vector_norm=calls(vector_norms),
    **{name: NUMPY[name] for name in ("diagonal", "matmul", "matrix_transpose", "tensordot", "vecdot")},
    cross=calls(lambda d: f"{d.array(NUMBER, (2, 3))}, {d.array(NUMBER, (2, 3))}"),
    outer=calls(lambda d: f"{d.array(rank=1)}, {d.array(rank=1)}"),
    trace=calls(lambda d: f"{d.array(rank=(2, 3))}" + d.option(", offset=1", ", offset=-1")),
)
LINALG["diagonal"] = calls(lambda d: f"{d.array(rank=(2, 3))}" + d.option(", offset=1", ", offset=-1"))


def transforms(kinds: str, one: bool) -> Calls:
    """Of a Fourier transform along one axis or several."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds, rank=(1 if one else 2, 3), test=lambda x: x.size > 0)
        norm = d.option(", norm='ortho'", ", norm='forward'", chance=0.3)
        always = 1.0 if 1 in x.shape else 0.4  # an inverse of half a transform of one has no length
        if one:
            return f"{x}" + d.option(f", n={d.integer(1, 5)}", chance=always) + d.along(x) + norm
        axes = tuple(d.shuffled(range(x.ndim))[:2])
        return f"{x}" + d.option(f", s=({d.integer(1, 4)}, {d.integer(2, 4)}), axes={axes}", chance=always) + norm

    return calls(draw)


def shifted(d: Drawer) -> str:
    x = d.array()
    return f"{x}" + d.over(x, "axes").replace("axes=None", "axes=None")


FFT.update(
    fft=transforms(NUMBER, True),
    ifft=transforms(NUMBER, True),
    rfft=transforms("iuf", True),
    irfft=transforms(NUMBER, True),
    fft2=transforms(NUMBER, False),
    ifft2=transforms(NUMBER, False),
    rfft2=transforms("iuf", False),
    irfft2=transforms(NUMBER, False),
    fftn=transforms(NUMBER, False),
    ifftn=transforms(NUMBER, False),
    rfftn=transforms("iuf", False),
    irfftn=transforms(NUMBER, False),
    hfft=transforms(NUMBER, True),
    ihfft=transforms("iuf", True),
    fftfreq=calls(lambda d: f"{d.integer(1, 6)}" + d.options(", d=0.5", ", dtype='float32'")),
    rfftfreq=calls(lambda d: f"{d.integer(1, 6)}" + d.options(", d=0.5", ", dtype='float32'")),
    fftshift=calls(shifted),
    ifftshift=calls(shifted),
)

__all__ = ["FFT", "LINALG", "NUMPY", "Unfit"]

_BY_NAME = NotDrawn("compared by name: their vectors have signs of their own, or their operands must be special")
LINALG.update(
    dict.fromkeys(
        [
            "cond",
            "det",
            "eig",
            "eigh",
            "eigvals",
            "eigvalsh",
            "inv",
            "lstsq",
            "matrix_rank",
            "pinv",
            "qr",
            "slogdet",
            "solve",
            "svd",
            "svdvals",
            "tensorinv",
        ],
        _BY_NAME,
    ),
    tensorsolve=_BY_NAME,
)
NUMPY.update(
    dict.fromkeys(
        [
            "bartlett",
            "blackman",
            "hamming",
            "hanning",
            "kaiser",
            "matvec",
            "poly",
            "polyadd",
            "polyder",
            "polyfit",
            "polyint",
            "polymul",
            "polysub",
        ],
        NotDrawn("compared by name in test_polynomials"),
    ),
    vecmat=NotDrawn("compared by name in test_polynomials"),
)
NUMPY.update(MORE)
