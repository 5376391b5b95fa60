"""Random array programs, drawn as Python text that runs on Meshwright and on JAX alike.

A drawn program is the source of a function. It names ``np_``, ``lax``, ``nn`` and ``p`` (the package), which ``on``
binds to either library, so what a failing test prints can be pasted and run:

    def program(a, b):
        v0 = np_.tanh(a)
        def f1(v2, v3):
            v4 = v2 * v3 + v0
            return (v4,)
        (v5,) = p.checkpoint(f1)(v0, b)
        return (v5,)

Every value has a known shape and a bound on its size (what may grow too large goes through tanh), and is smooth almost
everywhere. Decisions (comparisons, indices, numbers of steps) are never taken on values that were rounded to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

Shape = tuple[int, ...]
FLOAT, NARROW, INT, BOOL = "float", "bfloat16", "int", "bool"
NUMERIC = (FLOAT, NARROW)

# What a program may contain besides the rest. Each is at odds with some property.
WHILE = "while"  # loops of unknown length: no reverse mode
CUSTOM_VJP = "custom_vjp"  # no forward mode
ROUNDED = "rounded"  # bfloat16: equal only roughly
UNTRUE = "untrue"  # stop_gradient and custom rules that are not the derivative: differs from finite differences
OUTSIDE = "outside"  # x[i] with i beyond the end, which is clamped: JAX's gradient leaves such elements out
EVERYTHING = frozenset({WHILE, CUSTOM_VJP, ROUNDED, UNTRUE, OUTSIDE})

LARGEST_SIZE, LARGEST_RANK, LARGEST_BOUND = 96, 4, 8.0


@dataclass(frozen=True)
class Slot:
    """A variable of the text: its type, a bound on its absolute value, whether decisions may depend on it,
    and whether its derivative may be other than zero."""

    name: str
    shape: Shape
    kind: str = FLOAT
    bound: float = 1.5
    exact: bool = True
    active: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, repr=False)
class Drawn:
    """A drawn program: its text, the types of its arguments and results, and the seed of its contents."""

    source: str
    arguments: tuple[Slot, ...]
    results: tuple[Slot, ...]
    seed: int

    def on(self, package: Any, dtype: Any = np.float32) -> Callable[..., tuple[Any, ...]]:
        """The program as a function on ``mw`` or ``jax``, with ``dtype`` as its float type."""
        names = {
            "p": package,
            "np_": package.numpy,
            "lax": package.lax,
            "nn": package.nn,
            "FLOAT": dtype,
            "constant": lambda *shape: np.cos(np.arange(prod(shape)) + 0.5).reshape(shape).astype(dtype),
        }
        exec(compile(self.source, "<random program>", "exec"), names)
        return names["program"]

    def arrays(self, dtype: Any = np.float32, seed: int = 0, batch: Sequence[int | None] | None = None) -> list[Any]:
        """Contents for the arguments; ``batch`` gives those that have one a leading dim."""
        random = np.random.default_rng([self.seed, seed])
        found = []
        for n, slot in enumerate(self.arguments):
            size = batch[n] if batch is not None else None
            shape = slot.shape if size is None else (size, *slot.shape)
            if slot.kind == INT:
                found.append(random.integers(-2, 6, shape).astype(np.int32))
            else:
                found.append(random.uniform(-1.5, 1.5, shape).astype(np.float32).astype(dtype))
        return found

    @property
    def floats(self) -> list[int]:
        """The arguments that have derivatives."""
        return [n for n, slot in enumerate(self.arguments) if slot.kind == FLOAT]

    @property
    def rounded(self) -> bool:
        """Whether something is rounded to bfloat16."""
        return "bfloat16" in self.source

    @property
    def symmetric(self) -> bool:
        """Whether its derivative is the true one, so that second derivatives do not depend on their order."""
        return "stop_gradient" not in self.source and "2 * t" not in self.source

    def __repr__(self) -> str:
        types = ", ".join(f"{s.name}: {s.kind}{list(s.shape)}" for s in self.arguments)
        return f"<program of ({types}), seed {self.seed}>\n{self.source}"


class Writer:
    """Writes the text of one program. Each choice takes a byte of ``choices``, and the first option when none is left.

    Zeros do not count, so that Hypothesis, which shrinks towards zeros, shrinks by leaving choices out.
    """

    def __init__(self, choices: bytes, features: frozenset[str]) -> None:
        self.choices = iter(choices.replace(b"\0", b""))
        self.features = features
        self.lines: list[str] = []
        self.scope: list[Slot] = []
        self.used: set[str] = set()
        self.depth = 0
        self.count = 0

    # Choices. The simplest option comes first.

    def integer(self, low: int, high: int) -> int:
        return low + (next(self.choices, 1) - 1) % (high - low + 1) if high > low else low

    def flag(self) -> bool:
        return self.integer(0, 1) == 1

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def shuffled(self, items: Sequence[int]) -> list[int]:
        rest = list(items)
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in items]

    def pick(self, test: Callable[[Slot], bool], recent: bool = False) -> Slot | None:
        """A variable that fits: more often than not (always, if ``recent``) one of the last ones that nothing uses yet
        and that has a derivative."""
        found = [slot for slot in reversed(self.scope) if test(slot)]
        if not found:
            return None
        how = 0 if recent else self.integer(0, 3)
        if how < 3:
            found = [slot for slot in found if slot.active] or found
        if how < 2:
            found = sorted(found, key=lambda slot: slot.name in self.used)[:2]
        chosen = self.choose(found)
        self.used.add(chosen.name)
        return chosen

    def pick_float(self, test: Callable[[Slot], bool] = lambda s: True) -> Slot | None:
        return self.pick(lambda s: s.kind in NUMERIC and test(s))

    def decisive(self, test: Callable[[Slot], bool] = lambda s: True) -> Slot | None:
        """A float that decisions may depend on."""
        return self.pick(lambda s: s.kind == FLOAT and s.exact and test(s))

    # Text

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def emit(self, text: str, shape: Shape, *parents: Slot, kind: str = FLOAT, bound: float = 1.0) -> bool:
        """``v = text``, unless that is too large an array."""
        if prod(shape) > LARGEST_SIZE or len(shape) > LARGEST_RANK or 0 in shape:
            return False
        if kind in NUMERIC and bound > LARGEST_BOUND:
            text, bound = f"np_.tanh({text})", 1.0
        exact = kind != NARROW and all(s.exact for s in parents)
        active = kind in NUMERIC and any(s.active for s in parents if s.kind in NUMERIC)
        slot = Slot(self.fresh(), tuple(shape), kind, bound, exact, active)
        self.line(f"{slot.name} = {text}")
        self.scope.append(slot)
        return True

    def fit(self, slot: Slot, like: Slot) -> tuple[str, float]:
        """Text that makes ``slot`` of the type of ``like``, and its bound."""
        text, bound = slot.name, slot.bound
        if slot.kind != like.kind or like.kind == INT:
            text = f"{text}.astype({like.name}.dtype)"
        if slot.shape == like.shape:
            return text, bound
        try:
            if np.broadcast_shapes(slot.shape, like.shape) == like.shape:
                return f"np_.broadcast_to({text}, {like.shape})", bound
        except ValueError:
            pass
        scale = "" if like.kind in (INT, BOOL) else " * 0.1"
        reduce = "any" if like.kind == BOOL else "max" if like.kind == INT else "sum"
        return f"np_.broadcast_to(np_.{reduce}({text}){scale}, {like.shape})", 0.1 * bound * slot.size

    def pick_for(self, like: Slot) -> Slot:
        """A variable that can be made of the type of ``like``."""
        kinds = NUMERIC if like.kind in NUMERIC else (like.kind,)
        return self.pick(lambda s: s.kind in kinds, True) or like

    # Functions inside the program

    @contextmanager
    def function(self, signature: str, parameters: Sequence[Slot], closed: bool = False) -> Iterator[str]:
        """Write ``def f(signature):`` ; the caller writes its body. A closed function sees nothing outside."""
        name = self.fresh("f")
        self.line(f"def {name}({signature}):")
        outside, features = self.scope, self.features
        self.scope = [*([] if closed else outside), *parameters]
        self.depth += 1
        yield name
        self.depth -= 1
        self.scope, self.features = outside, features

    def results(self, texts: Sequence[str]) -> None:
        self.line(f"return ({', '.join(texts)},)")

    def bind(self, slots: Sequence[Slot], text: str) -> bool:
        self.line(f"({_names(slots)},) = {text}")
        self.scope.extend(slots)
        return True

    def parameter(self, shape: Shape, like: Slot) -> Slot:
        return replace(like, name=self.fresh(), shape=shape)

    def returned(self, most: int, test: Callable[[Slot], bool] = lambda s: True) -> list[Slot]:
        """One or more variables of the function being written, to be its results."""
        return [s for _ in range(self.integer(1, most)) if (s := self.pick(test, True)) is not None]

    def body(self, most: int = 3) -> None:
        self.steps(self.integer(1, most))

    def steps(self, count: int) -> None:
        for _ in range(count):
            options = RULES if self.depth < 2 else SIMPLE_RULES
            if not self.choose(options)(self):
                x = self.pick_float()
                if x is not None:
                    self.emit(f"np_.sin({x.name})", x.shape, x, kind=x.kind)


Rule = Callable[[Writer], bool]

# Elementwise. A bound is a number, or a function of the operand's.

_UNARY: list[tuple[str, Any]] = [
    ("np_.sin({})", 1.0),
    ("-{}", lambda b: b),
    ("{} * 0.7 + 0.2", lambda b: 0.7 * b + 0.2),
    ("np_.tanh({})", 1.0),
    ("np_.square({})", lambda b: b**2),
    ("{} ** 3", lambda b: b**3),
    ("lax.integer_pow({}, 4)", lambda b: b**4),
    ("np_.exp(-{0} * {0})", 1.0),
    ("np_.expm1(np_.cos({}))", 2.0),
    ("np_.log1p({0} * {0})", 5.0),
    ("np_.log({0} * {0} + 0.4)", 5.0),
    ("np_.sqrt({0} * {0} + 0.3)", lambda b: b + 1),
    ("lax.rsqrt({0} * {0} + 0.5)", 1.5),
    ("1.3 / ({0} * {0} + 0.8)", 1.7),
    ("np_.power(1.5 + np_.tanh({0}), {0})", 16.0),
    ("np_.arctan({})", 1.6),
    ("np_.arcsinh({})", 3.0),
    ("lax.erf({})", 1.0),
    ("lax.lgamma({0} * {0} + 1.5)", 200.0),
    ("lax.digamma({0} * {0} + 1.5)", 5.0),
    ("lax.erf_inv(0.8 * np_.sin({}))", 1.0),
    ("np_.arcsin(0.8 * np_.sin({}))", 1.0),
    ("np_.arctanh(0.8 * np_.cos({}))", 1.2),
    ("np_.arccosh(1.4 + {0} * {0})", 5.0),
    ("np_.sinh(np_.tan(0.5 * np_.tanh({})))", 1.0),
    ("np_.exp2(np_.sin({}))", 2.0),
    ("np_.cbrt({0} * {0} + 0.5)", 5.0),
    ("nn.sigmoid({})", 1.0),
    ("nn.softplus({})", lambda b: b + 1),
    ("nn.gelu({})", lambda b: b),
    ("nn.silu({})", lambda b: b),
    ("nn.elu({})", lambda b: b),
    ("nn.relu({})", lambda b: b),
    ("np_.abs({})", lambda b: b),
    ("np_.clip({}, -0.7, 0.9)", 0.9),
    ("lax.optimization_barrier({})", lambda b: b),
]


def unary(w: Writer) -> bool:
    x = w.pick_float()
    if x is None:
        return False
    text, bound = w.choose(_UNARY)
    limit = bound(x.bound) if callable(bound) else bound
    return w.emit(text.format(x.name), x.shape, x, kind=x.kind, bound=limit)


_BINARY: list[tuple[str, Callable[[float, float], float]]] = [
    ("{} + {}", lambda a, b: a + b),
    ("{} * {}", lambda a, b: a * b),
    ("{} - {}", lambda a, b: a + b),
    ("{} / ({} ** 2 + 1.2)", lambda a, b: a),
    ("np_.maximum({}, {})", max),
    ("np_.minimum({}, {})", max),
    ("np_.arctan2({}, 1.5 + np_.square({}))", lambda a, b: 1.6),
    ("np_.logaddexp({}, {})", lambda a, b: a + b + 1),
    ("np_.hypot({} + 0.01, {} - 3.3)", lambda a, b: a + b + 4),
    ("np_.power(1.2 + nn.sigmoid({}), {})", lambda a, b: 2.2**b),
    ("np_.where({0} > {1} + 0.137, {0}, np_.sin({1}))", lambda a, b: max(a, 1.0)),
]


def binary(w: Writer) -> bool:
    x = w.pick_float()
    if x is None:
        return False
    y = w.pick(lambda s: s.kind == x.kind and _broadcast(s.shape, x.shape) is not None)
    assert y is not None
    n = w.integer(0, len(_BINARY) - 1)
    if n == len(_BINARY) - 1 and not (x.exact and y.exact):
        n = 0
    text, bound = _BINARY[n]
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    return w.emit(text.format(x.name, y.name), shape, x, y, kind=x.kind, bound=bound(x.bound, y.bound))


def _broadcast(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def with_constant(w: Writer) -> bool:
    x = w.pick(lambda s: s.kind == FLOAT)
    if x is None:
        return False
    text = w.choose(["{} * {}", "np_.maximum({}, {})", "np_.where({1} > 0.1, {0}, 0.5)"])
    return w.emit(text.format(x.name, f"constant(*{x.shape})"), x.shape, x, bound=x.bound + 1)


def round_trip(w: Writer) -> bool:
    """To bfloat16 and back, or to stay."""
    if ROUNDED not in w.features:
        return unary(w)
    x = w.pick_float()
    if x is None:
        return False
    kind = FLOAT if x.kind == NARROW else NARROW
    dtype = "FLOAT" if kind == FLOAT else "np_.bfloat16"
    return w.emit(f"{x.name}.astype({dtype})", x.shape, x, kind=kind, bound=x.bound)


def stopped(w: Writer) -> bool:
    x = w.pick_float()
    if x is None or UNTRUE not in w.features:
        return False
    return w.emit(f"lax.stop_gradient({x.name})", x.shape, x, kind=x.kind, bound=x.bound)


# Integers and bools


def discrete(w: Writer) -> bool:
    """An int or a bool made of a float."""
    x = w.decisive()
    if x is None:
        return False
    axis = w.integer(-x.rank, x.rank - 1)
    along = x.shape[:axis] + x.shape[axis:][1:] if x.rank else ()
    text, shape, kind = w.choose(
        [
            (f"np_.floor({x.name} * 2 + 0.37).astype(np_.int32)", x.shape, INT),
            (f"{x.name} > 0.137", x.shape, BOOL),
            (f"np_.argmax({x.name}, axis={axis})", along, INT),
            (f"np_.argsort({x.name}, axis={axis})", x.shape, INT),
            (f"np_.arange({x.rank + 2})", (x.rank + 2,), INT),
            (f"np_.sum({x.name} > 0.137)", (), INT),
            (f"np_.isfinite({x.name}) & ({x.name} < 0.4)", x.shape, BOOL),
        ][: None if x.rank else 2]
    )
    return w.emit(text, shape, x, kind=kind)


def integers(w: Writer) -> bool:
    """Ints of ints, or a float of ints or bools."""
    i = w.pick(lambda s: s.kind == INT)
    if i is None:
        return discrete(w)
    j = w.pick(lambda s: s.kind == INT and _broadcast(s.shape, i.shape) is not None)
    assert j is not None
    shape = _broadcast(i.shape, j.shape)
    assert shape is not None
    text, shape, kind = w.choose(
        [
            (f"({i.name} + {j.name}) % 5", shape, INT),
            (f"{i.name} // 2 - {j.name} % 3", shape, INT),
            (f"np_.maximum({i.name}, {j.name}) & 3", shape, INT),
            (f"{i.name} % 3 == 1", i.shape, BOOL),
            (f"np_.sum({i.name}) % 4", (), INT),
            (f"np_.sin({i.name}.astype(FLOAT))", i.shape, FLOAT),
            (f"({i.name} % 2).astype(bool).astype(FLOAT)", i.shape, FLOAT),
            (f"nn.one_hot({i.name}, 3, dtype=FLOAT)", (*i.shape, 3), FLOAT),
        ]
    )
    return w.emit(text, shape, i, j, kind=kind)


def choice(w: Writer) -> bool:
    """where, select and masks."""
    mask = w.pick(lambda s: s.kind == BOOL)
    if mask is None:
        return discrete(w)
    x = w.pick_float(lambda s: _broadcast(s.shape, mask.shape) is not None)
    if x is None:
        return False
    y = w.pick(lambda s: s.kind == x.kind and s.shape == x.shape)
    assert y is not None
    shape = _broadcast(x.shape, mask.shape)
    assert shape is not None
    if mask.shape == x.shape and w.flag():
        text = f"lax.select({mask.name}, {x.name}, {y.name})"
    else:
        text = f"np_.where({mask.name}, {x.name}, {w.choose([y.name, '0.25', f'{y.name} * 0.5'])})"
    return w.emit(text, shape, mask, x, y, kind=x.kind, bound=max(x.bound, y.bound))


# Contractions and reductions


def einsum(w: Writer) -> bool:
    """Any einsum of one or two operands: dims of equal size share a letter or do not."""
    operands = [x for _ in range(w.integer(1, 2)) if (x := w.pick(lambda s: s.kind == FLOAT and 1 <= s.rank <= 3))]
    if not operands:
        return False
    sizes: list[int] = []
    terms = []
    for x in operands:
        letters: list[int] = []
        for size in x.shape:
            known = [n for n, s in enumerate(sizes) if s == size and (n not in letters or w.flag())]
            fresh = w.integer(0, len(known))  # the last choice is a new letter
            if fresh == len(known):
                sizes.append(size)
            letters.append(known[fresh] if fresh < len(known) else len(sizes) - 1)
        terms.append(letters)
    kept = w.shuffled([n for n in range(len(sizes)) if w.flag()])
    spelled = ",".join("".join("abcdefgh"[n] for n in letters) for letters in terms)
    text = f"np_.einsum('{spelled}->{''.join('abcdefgh'[n] for n in kept)}', {_names(operands)})"
    summed = prod(sizes[n] for n in range(len(sizes)) if n not in kept)
    bound = summed * prod(x.bound for x in operands)
    return w.emit(text, tuple(sizes[n] for n in kept), *operands, bound=bound)


def matmul(w: Writer) -> bool:
    x = w.pick_float(lambda s: 1 <= s.rank <= 3)
    if x is None:
        return False
    y = w.pick(lambda s: s.kind == x.kind and 1 <= s.rank <= 3 and s.shape[-2:][0] == x.shape[-1])
    name = y.name if y is not None else f"{x.name}.swapaxes(-1, -2)" if x.rank > 1 else x.name
    other = y.shape if y is not None else (*x.shape[:-2], x.shape[-1], x.shape[-2]) if x.rank > 1 else x.shape
    try:
        shape = np.matmul(np.zeros(x.shape), np.zeros(other)).shape
    except ValueError:
        return False
    bound = x.shape[-1] * x.bound * (y or x).bound
    return w.emit(f"{x.name} @ {name}", shape, x, y or x, kind=x.kind, bound=bound)


_REDUCTIONS: list[tuple[str, Callable[[float, int], float]]] = [
    ("np_.sum({}, axis={}, keepdims={})", lambda b, n: b * n),
    ("np_.mean({}, axis={}, keepdims={})", lambda b, n: b),
    ("np_.max({}, axis={}, keepdims={})", lambda b, n: b),
    ("np_.min({}, axis={}, keepdims={})", lambda b, n: b),
    ("np_.prod({}, axis={}, keepdims={})", lambda b, n: b**n),
    ("np_.var({}, axis={}, keepdims={})", lambda b, n: b * b),
    ("nn.logsumexp({}, axis={}, keepdims={})", lambda b, n: b + n),
]


def reduction(w: Writer) -> bool:
    x = w.pick_float()
    if x is None:
        return False
    text, bound = w.choose(_REDUCTIONS)
    axes = tuple(a for a in range(x.rank) if w.flag())
    keep = w.flag()
    if len(axes) == x.rank:
        axis: Any = None
    else:
        axis = axes if len(axes) != 1 or w.flag() else axes[0] - w.choose([0, x.rank])
    shape = tuple(1 if n in axes else s for n, s in enumerate(x.shape) if keep or n not in axes)
    count = prod(x.shape[a] for a in axes)
    return w.emit(text.format(x.name, axis, keep), shape, x, kind=x.kind, bound=bound(x.bound, count))


_ALONG: list[tuple[str, Callable[[float, int], float]]] = [
    ("np_.cumsum({}, axis={})", lambda b, n: b * n),
    ("lax.cumsum({}, axis={}, reverse=True)", lambda b, n: b * n),
    ("nn.softmax({}, axis={})", lambda b, n: 1.0),
    ("nn.log_softmax({}, axis={})", lambda b, n: 2 * b + n),
    ("np_.sort({}, axis={})", lambda b, n: b),
    ("np_.flip({}, axis={})", lambda b, n: b),
    ("np_.roll({}, 1, axis={})", lambda b, n: b),
    ("np_.cumprod({}, axis={})", lambda b, n: max(b, b**n)),
    ("lax.cummax({}, axis={})", lambda b, n: b),
    ("lax.cumlogsumexp({}, axis={})", lambda b, n: b + n),
]


def along(w: Writer) -> bool:
    x = w.pick_float(lambda s: s.rank > 0)
    if x is None:
        return False
    text, bound = w.choose(_ALONG)
    axis = w.integer(0, x.rank - 1)
    return w.emit(text.format(x.name, axis), x.shape, x, kind=x.kind, bound=bound(x.bound, x.shape[axis]))


def ordering(w: Writer) -> bool:
    """Sorting by a key, the largest k, and taking by order."""
    x = w.decisive(lambda s: s.rank > 0)
    if x is None:
        return False
    y = w.pick(lambda s: s.kind == FLOAT and s.shape == x.shape)
    assert y is not None
    k = w.integer(1, x.shape[-1])
    text, shape = w.choose(
        [
            (f"lax.top_k({x.name}, {k})[0]", (*x.shape[:-1], k)),
            (f"lax.sort(({x.name}, {y.name}), dimension=0, num_keys=1)[1]", x.shape),
            (f"np_.take_along_axis({y.name}, np_.argsort({x.name}, axis=-1), axis=-1)", x.shape),
            (f"np_.median({x.name}, axis=-1)", x.shape[:-1]),
        ]
    )
    return w.emit(text, shape, x, y, bound=max(x.bound, y.bound))


def windows(w: Writer) -> bool:
    """Sums and maxima over windows, and convolutions."""
    x = w.pick(lambda s: s.kind == FLOAT and 1 <= s.rank <= 2 and min(s.shape) > 1)
    if x is None:
        return False
    kernel = w.pick(lambda s: s.kind == FLOAT and s.rank == x.rank and all(a <= b for a, b in zip(s.shape, x.shape)))
    step = w.integer(1, 2)
    ones = (2,) * x.rank
    shape = tuple((s - 2) // step + 1 for s in x.shape)
    options = [
        (f"lax.reduce_window({x.name}, 0.0, lax.add, {ones}, {(step,) * x.rank}, 'VALID')", shape, 2**x.rank * x.bound),
        (f"lax.reduce_window({x.name}, -np_.inf, lax.max, {ones}, {(step,) * x.rank}, 'VALID')", shape, x.bound),
    ]
    if kernel is not None:
        padding = w.choose(["VALID", "SAME"])
        full = x.shape if padding == "SAME" else tuple(a - b + 1 for a, b in zip(x.shape, kernel.shape))
        arrays = f"{x.name}[None, None], {kernel.name}[None, None], {(1,) * x.rank}"
        text = f"lax.conv_general_dilated({arrays}, '{padding}')[0, 0]"
        options.append((text, full, kernel.size * kernel.bound * x.bound))
    text, shape, bound = w.choose(options)
    return w.emit(text, shape, x, *([] if kernel is None else [kernel]), bound=bound)


def linear_algebra(w: Writer) -> bool:
    """Of a positive definite matrix, so that all is smooth."""
    x = w.pick(lambda s: s.kind == FLOAT and s.rank in (2, 3))
    if x is None:
        return False
    n = x.shape[-2]
    matrix = f"({x.name} @ {x.name}.mT * 0.1 + 2 * np_.eye({n}, dtype=FLOAT))"
    square = (*x.shape[:-2], n, n)
    limit = 2 + 0.1 * x.bound**2 * x.shape[-1]
    text, shape, bound = w.choose(
        [
            (f"np_.linalg.cholesky({matrix})", square, limit),
            (f"lax.linalg.triangular_solve({matrix}, {x.name}, left_side=True, lower=True)", x.shape, 16.0),
            (f"np_.log(np_.diagonal(np_.linalg.cholesky({matrix}), axis1=-1, axis2=-2))", square[:-1], limit),
            (f"np_.real(np_.fft.ifft(np_.fft.fft({x.name}) * 0.5))", x.shape, x.bound),
            (f"np_.abs(np_.fft.rfft({x.name}) + 9)", (*x.shape[:-1], x.shape[-1] // 2 + 1), x.bound * x.shape[-1] + 9),
        ]
    )
    return w.emit(text, shape, x, bound=bound)


# Shapes


def reshaping(w: Writer) -> bool:
    x = w.pick(lambda s: s.rank > 0)
    if x is None:
        return False
    order = w.shuffled(range(x.rank))
    front = tuple(x.shape[n] for n in order)
    halves = [(x.size // d, d) for d in (1, 2, 3, 4) if x.size % d == 0]
    text, shape = w.choose(
        [
            (f"{x.name}.T", x.shape[::-1]),
            (f"np_.transpose({x.name}, {tuple(order)})", front),
            (f"{x.name}.reshape(-1)", (x.size,)),
            *((f"{x.name}.reshape{pair}", pair) for pair in halves),
            (f"{x.name}[None]", (1, *x.shape)),
            (f"{x.name}[..., None]", (*x.shape, 1)),
            (f"np_.squeeze({x.name})", tuple(s for s in x.shape if s != 1)),
            (f"np_.broadcast_to({x.name}, {(2, *x.shape)})", (2, *x.shape)),
            (f"np_.repeat({x.name}, 2, axis=0)", (2 * x.shape[0], *x.shape[1:])),
            (f"np_.tile({x.name}, 2)", (*x.shape[:-1], 2 * x.shape[-1])),
        ]
    )
    return w.emit(text, shape, x, kind=x.kind, bound=x.bound)


def slicing(w: Writer) -> bool:
    x = w.pick(lambda s: s.rank > 0)
    if x is None:
        return False
    index = _index(w, x)
    return w.emit(f"{x.name}[{index}]", _indexed(x, index), x, kind=x.kind, bound=x.bound)


def _index(w: Writer, x: Slot) -> str:
    parts = [w.choose([":", "0", "-1", "::-1", "::2", *(["1:", ":-1", "-1:0:-1"] if s > 1 else [])]) for s in x.shape]
    if w.flag():
        parts.insert(w.integer(0, len(parts)), "None")
    return ", ".join(parts)


def _indexed(x: Slot, index: str) -> Shape:
    return np.empty(x.shape)[eval(f"np.s_[{index}]")].shape


def joining(w: Writer) -> bool:
    x = w.pick(lambda s: s.rank > 0 and s.kind != BOOL)
    if x is None:
        return False
    axis = w.integer(0, x.rank - 1)
    y = w.pick(
        lambda s: (
            s.kind == x.kind != INT
            and s.rank == x.rank
            and all(a == b or n == axis for n, (a, b) in enumerate(zip(s.shape, x.shape)))
        )
    )
    y = y or x
    low, high, inner = (w.integer(least, 2) for least in (-1, -1, 0))
    padded = (x.shape[axis] - 1) * (inner + 1) + 1 + low + high
    config = tuple((low, high, inner) if n == axis else (0, 0, 0) for n in range(x.rank))
    widths = tuple((1, 0) if n == axis else (0, 1) for n in range(x.rank))
    options: list[tuple[str, Shape]] = [
        (
            f"np_.concatenate([{x.name}, {y.name}], axis={axis})",
            _with(x.shape, axis, x.shape[axis] + y.shape[axis]),
        ),
        (f"np_.stack([{x.name}, {x.name}], axis={axis})", (*x.shape[:axis], 2, *x.shape[axis:])),
        (f"np_.pad({x.name}, {widths})", tuple(s + 1 for s in x.shape)),
    ]
    if x.kind != INT and padded > 0:
        value = "np_.bfloat16(0.3)" if x.kind == NARROW else "np_.asarray(0.3, FLOAT)"
        options.append((f"lax.pad({x.name}, {value}, {config})", _with(x.shape, axis, padded)))
    text, shape = w.choose(options)
    return w.emit(text, shape, x, y, kind=x.kind, bound=max(x.bound, y.bound, 0.3))


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


# Indices from data


def gathering(w: Writer) -> bool:
    i = w.pick(lambda s: s.kind == INT and s.rank <= 2)
    x = w.pick_float(lambda s: 1 <= s.rank <= 3)
    if i is None or x is None:
        return discrete(w)
    axis = w.integer(0, x.rank - 1)
    n = x.shape[axis]
    colons = ":, " * axis
    taken = (*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])
    options = [
        (f"{x.name}[{colons}{i.name} % {n}]", taken),
        (f"{x.name}[{colons}{i.name}{'' if OUTSIDE in w.features else f' % {n} - {n}'}]", taken),
        (f"np_.take({x.name}, {i.name}, axis={axis}, mode='clip')", taken),
        (f"np_.take({x.name}, {i.name}, axis={axis}, mode='wrap')", taken),
    ]
    if x.rank > 1:
        j = w.pick(lambda s: s.kind == INT and _broadcast(s.shape, i.shape) is not None)
        assert j is not None
        both = _broadcast(i.shape, j.shape)
        assert both is not None
        pair = f"{i.name} % {x.shape[0]}, {j.name} % {x.shape[1]}"
        options.append((f"{x.name}[{pair}]", (*both, *x.shape[2:])))
    if i.rank == 0:
        size = w.integer(1, n)
        options.append(
            (f"lax.dynamic_slice_in_dim({x.name}, {i.name}, {size}, axis={axis})", _with(x.shape, axis, size))
        )
        options.append((f"lax.dynamic_index_in_dim({x.name}, {i.name}, {axis})", _with(x.shape, axis, 1)))
    text, shape = w.choose(options)
    return w.emit(text, shape, i, x, kind=x.kind, bound=x.bound)


def scattering(w: Writer) -> bool:
    """``.at[…]``: added at indices that may repeat, or set where they cannot."""
    x = w.pick_float(lambda s: 1 <= s.rank <= 3)
    if x is None:
        return False
    i = w.pick(lambda s: s.kind == INT and s.rank <= 2)
    if i is None or w.flag():
        index = _index(w, x)
        shape = _indexed(x, index)
        method = w.choose(["set", "add"])
    elif i.rank == 0:
        window = (1, *x.shape[1:])
        y = w.pick_for(like := Slot(x.name, window, x.kind, x.bound))
        text, bound = w.fit(y, like)
        update = f"lax.dynamic_update_slice_in_dim({x.name}, {text}, {i.name}, axis=0)"
        return w.emit(update, x.shape, x, y, i, kind=x.kind, bound=max(x.bound, bound))
    else:
        index, shape, method = f"{i.name}{w.choose([f' % {x.shape[0]}', ''])}", (*i.shape, *x.shape[1:]), "add"
    if 0 in shape:
        return False
    y = w.pick_for(like := Slot(x.name, shape, x.kind, x.bound))
    text, bound = w.fit(y, like)
    repeats = 1 if i is None else i.size
    parents = (x, y) if i is None else (x, y, i)
    return w.emit(
        f"{x.name}.at[{index}].{method}({text})", x.shape, *parents, kind=x.kind, bound=x.bound + repeats * bound
    )


# Functions of functions


def _arguments(w: Writer, most: int, test: Callable[[Slot], bool]) -> list[Slot]:
    return [x for _ in range(w.integer(1, most)) if (x := w.pick(test)) is not None]


def call(w: Writer) -> bool:
    """jit or checkpoint of a function that also uses what is around it."""
    arguments = _arguments(w, 2, lambda s: True)
    parameters = [w.parameter(x.shape, x) for x in arguments]
    with w.function(_names(parameters), parameters) as name:
        w.body()
        outs = w.returned(2)
        w.results([s.name for s in outs])
    wrapper = w.choose(["p.checkpoint({})", "p.jit({})", "p.jit(p.checkpoint({}))"]).format(name)
    found = [w.parameter(s.shape, s) for s in outs]
    return w.bind(found, f"{wrapper}({_names(arguments)})")


def mapped(w: Writer) -> bool:
    """vmap over some dims of some arguments."""
    arguments = _arguments(w, 2, lambda s: s.rank > 0)
    if not arguments:
        return False
    size = w.choose(sorted(set(arguments[0].shape)))
    axes: list[int | None] = []
    for n, x in enumerate(arguments):
        places: list[int | None] = [k for k, s in enumerate(x.shape) if s == size]
        places += [k - x.rank for k in places if k is not None]
        axes.append(w.choose(places if n == 0 else [*places, None]))
    shapes = [
        x.shape if axis is None else tuple(np.delete(x.shape, axis).tolist())
        for x, axis in zip(arguments, axes, strict=True)
    ]
    parameters = [w.parameter(shape, x) for shape, x in zip(shapes, arguments, strict=True)]
    with w.function(_names(parameters), parameters) as name:
        w.body()
        outs = [s for s in w.returned(2) if s.size * size <= LARGEST_SIZE] or [parameters[0]]
        w.results([s.name for s in outs])
    out_axes = [w.integer(0, s.rank) for s in outs]
    found = [w.parameter((*s.shape[:a], size, *s.shape[a:]), s) for s, a in zip(outs, out_axes, strict=True)]
    spec = f"in_axes={_tuple(axes)}, out_axes={_tuple(out_axes)}"
    return w.bind(found, f"p.vmap({name}, {spec})({_names(arguments)})")


def _tuple(items: Sequence[Any]) -> str:
    """The text of a tuple of numbers, or of variables."""
    return f"({_names(items)},)"


def _names(items: Sequence[Any]) -> str:
    return ", ".join(s.name if isinstance(s, Slot) else str(s) for s in items)


def scan(w: Writer) -> bool:
    """A loop over rows (or a number of steps) with a carry; fori_loop and map are special cases."""
    starts = _arguments(w, 2, lambda s: s.kind != BOOL)
    rows = _arguments(w, 2, lambda s: 1 <= s.rank <= 3 and s.shape[0] <= 4) if w.flag() else []
    rows = [x for x in rows if x.shape[0] == rows[0].shape[0]]
    length = rows[0].shape[0] if rows else w.integer(1, 3)
    carry = [_carried(w, x) for x in starts]
    row = [w.parameter(x.shape[1:], x) for x in rows]
    with w.function("carry, row", [*carry, *row]) as name:
        w.line(f"({_names(carry)},) = carry")
        if row:
            w.line(f"({_names(row)},) = row")
        w.body()
        outs = [s for s in w.returned(2) if s.size * length <= LARGEST_SIZE] if w.flag() else []
        stacked = f"({_names(outs)},)" if outs else "None"
        w.line(f"return ({', '.join(_next(w, s) for s in carry)},), {stacked}")
    last = [Slot(w.fresh(), s.shape, s.kind, s.bound, s.exact) for s in carry]
    ys = [w.parameter((length, *s.shape), s) for s in outs]
    w.line(
        f"{_tuple(last)}, {_tuple(ys) if ys else '_'} = lax.scan({name}, {_tuple(starts)}, "
        f"{_tuple(rows) if rows else None}, length={length}, reverse={w.flag()})"
    )
    w.scope.extend([*last, *ys])
    return True


def _carried(w: Writer, start: Slot) -> Slot:
    """The carry inside a loop: what comes round again is at most 1."""
    return Slot(w.fresh(), start.shape, start.kind, max(start.bound, 1.0), start.exact and ROUNDED not in w.features)


def _next(w: Writer, carry: Slot) -> str:
    """Text for the carry of the next step."""
    text, _ = w.fit(w.pick_for(carry), carry)
    if carry.kind == INT:
        return f"(({carry.name} + {text}) % 5).astype({carry.name}.dtype)"
    return f"np_.tanh({carry.name} * 0.6 + {text})"


def fori(w: Writer) -> bool:
    start = w.pick(lambda s: s.kind in NUMERIC)
    if start is None:
        return False
    carry = _carried(w, start)
    counter = Slot(w.fresh(), (), INT)
    with w.function(f"{counter.name}, {carry.name}", [counter, carry]) as name:
        w.body()
        w.line(f"return {_next(w, carry)}")
    low = w.integer(-1, 1)
    text = f"lax.fori_loop({low}, {low + w.integer(0, 3)}, {name}, {start.name})"
    return w.emit(text, carry.shape, start, kind=carry.kind, bound=carry.bound)


def loop(w: Writer) -> bool:
    """A while loop whose number of steps depends on data; without forward mode alone, on integers only."""
    limit = w.pick(lambda s: s.kind == INT and s.exact and s.rank == 0)
    test = w.decisive()
    if test is None:
        return False
    active = WHILE in w.features
    start = w.pick(lambda s: s.kind in ((FLOAT, INT) if active else (INT,)) and s.exact)
    if start is None:
        return discrete(w)
    count, carry = Slot(w.fresh(), (), INT), _carried(w, start)
    with w.function("carry", [count, carry], closed=not active) as name:
        w.line(f"{count.name}, {carry.name} = carry")
        w.body(2)
        w.line(f"return {count.name} + 1, {_next(w, carry)}")
    going = w.choose(
        [
            "carry[0] < 3",
            f"(carry[0] < 4) & (np_.sum(carry[1]) < {0.737 if start.kind == FLOAT else 6})",
            f"(carry[0] < 4) & (np_.sum({test.name}) > 0.2 * carry[0] - 0.53)" if active else "carry[0] < 2",
            f"carry[0] < {limit.name} % 4" if limit else "carry[0] < 1",
        ]
    )
    text = f"lax.while_loop(lambda carry: {going}, {name}, (0, {start.name}))[1]"
    return w.emit(text, carry.shape, start, test, kind=carry.kind, bound=carry.bound)


def branch(w: Writer) -> bool:
    """cond or switch; every branch returns values of the same types."""
    test = w.decisive()
    index = w.pick(lambda s: s.kind == INT and s.exact and s.rank == 0)
    likes = _arguments(w, 2, lambda s: s.kind != BOOL)
    if test is None or not likes:
        return False
    arguments = _arguments(w, 2, lambda s: True)
    names, bounds = [], [0.0] * len(likes)
    for _ in range(2 if index is None else w.integer(1, 3)):
        parameters = [w.parameter(x.shape, x) for x in arguments]
        with w.function(_names(parameters), parameters) as name:
            w.body(2)
            outs = [w.fit(w.pick_for(like), like) for like in likes]
            w.results([f"np_.tanh({t})" if like.kind in NUMERIC and b > LARGEST_BOUND else t
                       for (t, b), like in zip(outs, likes, strict=True)])  # fmt: skip
            bounds = [max(b, min(c, LARGEST_BOUND)) for b, (_, c) in zip(bounds, outs, strict=True)]
        names.append(name)
    given = _names(arguments)
    if index is None or (len(names) == 2 and w.flag()):
        while len(names) < 2:
            names.append(names[0])
        text = f"lax.cond(np_.sum({test.name}) > 0.137, {names[0]}, {names[1]}, {given})"
    else:
        text = f"lax.switch({index.name} - 1, [{', '.join(names)}], {given})"
    exact = ROUNDED not in w.features
    found = [Slot(w.fresh(), like.shape, like.kind, b, exact) for like, b in zip(likes, bounds, strict=True)]
    return w.bind(found, text)


def custom(w: Writer) -> bool:
    """A function with a rule of its own, which is the derivative or (where that is allowed) twice the derivative."""
    arguments = _arguments(w, 2, lambda s: s.kind == FLOAT)
    if not arguments:
        return False
    forward = CUSTOM_VJP not in w.features or w.flag()
    untrue = UNTRUE in w.features and w.flag()
    parameters = [w.parameter(x.shape, x) for x in arguments]
    with w.function(_names(parameters), parameters, closed=True) as name:
        w.features = w.features - {CUSTOM_VJP, ROUNDED, *(() if forward else (WHILE,))}
        w.body()
        outs = w.returned(2, lambda s: s.kind == FLOAT)
        w.results([s.name for s in outs])
    own, rule, other = (w.fresh("f") for _ in range(3))
    if forward:
        w.line(f"{own} = p.custom_jvp({name})")
        w.line(f"def {rule}(xs, ts):")
        w.line(f"    out, tangents = p.jvp({name}, xs, ts)")
        w.line(f"    return out, {'tuple(2 * t for t in tangents)' if untrue else 'tangents'}")
        w.line(f"{own}.defjvp({rule})")
    else:
        w.line(f"{own} = p.custom_vjp({name})")
        w.line(f"def {rule}(*xs):")
        w.line(f"    return {name}(*xs), xs")
        w.line(f"def {other}(xs, cts):")
        w.line(f"    found = p.vjp({name}, *xs)[1](cts)")
        w.line(f"    return {'tuple(2 * t for t in found)' if untrue else 'found'}")
        w.line(f"{own}.defvjp({rule}, {other})")
    found = [w.parameter(s.shape, s) for s in outs]
    return w.bind(found, f"{own}({_names(arguments)})")


def derivative(w: Writer) -> bool:
    """A derivative taken inside the program, with respect to a value that the function does not see otherwise."""
    x = w.pick(lambda s: s.kind == FLOAT)
    if x is None:
        return False
    parameter = w.parameter(x.shape, x)
    reverse = w.flag()
    with w.function(parameter.name, [parameter]) as name:
        w.features = w.features - {WHILE if reverse else CUSTOM_VJP, ROUNDED}
        w.body(2)
        out = w.pick(lambda s: s.kind == FLOAT, True)
        assert out is not None
        w.line(f"return np_.sum({out.name})")
    if reverse:
        text = w.choose([f"p.grad({name})({x.name})", f"p.vjp({name}, {x.name})[1](np_.ones((), FLOAT))[0]"])
        return w.emit(f"np_.tanh({text})", x.shape, x)
    text = w.choose(["p.jvp({0}, ({1},), ({1},))[1]", "p.linearize({0}, {1})[1]({1})"]).format(name, x.name)
    return w.emit(f"np_.tanh({text})", (), x)


SIMPLE_RULES: list[Rule] = [
    unary, binary, unary, binary, reduction, matmul, einsum, along, reshaping, slicing, joining, with_constant,
    discrete, integers, choice, gathering, scattering, ordering, round_trip, stopped, windows, linear_algebra,
]  # fmt: skip
RULES: list[Rule] = [*SIMPLE_RULES, call, scan, branch, mapped, custom, fori, loop, derivative, call, scan, branch]


@st.composite
def programs(draw: Any, features: frozenset[str] = frozenset(), least: int = 1, most: int = 8) -> Drawn:
    """Programs of one to three arrays and some ints, with ``least`` to ``most`` steps outside of their functions."""
    return write(draw(st.binary(min_size=300, max_size=300)), features, least, most)


def write(choices: bytes, features: frozenset[str], least: int, most: int) -> Drawn:
    """The program that the choices make."""
    w = Writer(choices, features)
    dims = [w.integer(1, 4) for _ in range(3)]
    for name in "abc"[: w.integer(1, 3)]:
        w.scope.append(Slot(name, tuple(w.choose(dims) for _ in range(w.integer(0, 3)))))
    if w.flag():
        w.scope.append(Slot("n", (dims[0],) if w.flag() else (), INT, 6.0, active=False))
    arguments, seed = tuple(w.scope), w.integer(0, 250)
    w.steps(w.integer(least, most))
    results = w.returned(1, lambda s: s.kind == FLOAT) + (w.returned(2) if w.flag() else [])
    w.results([s.name for s in results])
    source = f"def program({_names(arguments)}):\n" + "\n".join(w.lines) + "\n"
    return Drawn(source, arguments, tuple(results), seed)
