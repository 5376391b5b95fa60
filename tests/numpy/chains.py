"""Random chains of calls over the public functions, and how their results are compared with JAX's.

A chain is Python text over ``np_``, ``lax`` and ``nn``, drawn while JAX runs it: the values made so far say what the
next call may take. Every call is also run by itself on JAX's values, so that what differs is one call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwright as mw
from tests.numpy.calls.array_calls import ARRAY
from tests.numpy.calls.drawing import LARGEST, Calls, Drawer, Unfit, dtype_of, kind_of
from tests.numpy.calls.lax_calls import LAX, LAX_LINALG, NN
from tests.numpy.calls.numpy_calls import FFT, LINALG, NUMPY
from tests.numpy.closeness import (
    Difference,
    DifferentKind,
    compare,
    epsilon,
    floats,
    leaves,
    noisy,
    on_meshwright,
    plain,
    scale,
    widened,
)
from tests.numpy.differences import slopes
from tests.versions import CROSS, DIGAMMA, HYPOT, LOG2, NEXTAFTER, SIGN, SINC, TRI, older_than

# The tables by the prefix of a call, and how many of a hundred calls are drawn from each.
TABLES: dict[str, tuple[dict[str, Any], int]] = {
    "np_.": (NUMPY, 50),
    "lax.": (LAX, 23),
    "nn.": (NN, 6),
    "np_.linalg.": (LINALG, 4),
    "np_.fft.": (FFT, 4),
    "lax.linalg.": (LAX_LINALG, 1),
    "": (ARRAY, 12),
}


# What newer versions of JAX do otherwise, and ours with them: not compared with older ones.
CHANGED = {
    "np_.cross": CROSS, "np_.sinc": SINC, "np_.hypot": HYPOT, "np_.sign": SIGN, "lax.sign": SIGN, "np_.tri": TRI,
    "np_.log2": LOG2, "np_.nextafter": NEXTAFTER, "lax.nextafter": NEXTAFTER, "lax.digamma": DIGAMMA,
}  # fmt: skip


def _imaginary(operands: Sequence[Any]) -> bool:
    return any(bool(((x.real == 0) & (x.imag != 0)).any()) for x in operands if x.dtype.kind == "c")


def _truths_to_a_number(operands: Sequence[Any]) -> bool:
    return len(operands) == 2 and operands[0].dtype == bool and operands[1].ndim == 0


def _nothing_of_nothing(operands: Sequence[Any]) -> bool:
    return len(operands) == 2 and all(x.size == 0 for x in operands)


# Where JAX is known to be wrong, by the name of a call and its operands, and why; ours stays with NumPy.
WRONG: dict[str, tuple[Callable[[Sequence[Any]], bool], str]] = {
    "np_.all": (_imaginary, "imaginary numbers are not zero"),
    "np_.any": (_imaginary, "imaginary numbers are not zero"),
    "all": (_imaginary, "imaginary numbers are not zero"),
    "any": (_imaginary, "imaginary numbers are not zero"),
    "nn.log_sigmoid": (lambda xs: any(x.dtype.kind == "u" for x in xs), "-x of an unsigned x is not negative"),
    "np_.power": (_truths_to_a_number, "the dtype depends on whether the exponent is known"),
    "**": (_truths_to_a_number, "the dtype depends on whether the exponent is known"),
    "np_.take": (_nothing_of_nothing, "the dims of the indices are in the result, also if there is nothing to take"),
    "take": (_nothing_of_nothing, "the dims of the indices are in the result, also if there is nothing to take"),
    "np_.unique": (lambda xs: any(x.size == 0 for x in xs), "there are as many indices and counts as elements"),
}


Name = tuple[str, str]  # the prefix of a table, and a name in it


def drawn_names() -> list[Name]:
    """All names that calls are drawn of."""
    return [
        (p, name)
        for p, (table, _) in TABLES.items()
        for name, entry in table.items()
        if isinstance(entry, Calls) and not _changed(p + name)
    ]


def _changed(name: str) -> bool:
    return name in CHANGED and older_than(CHANGED[name])


@dataclass(frozen=True)
class Line:
    """One call: the name it is of, its text, the variables it binds, and what JAX made of it (or its error)."""

    name: str
    text: str
    targets: tuple[str, ...]
    result: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{', '.join(self.targets)}{',' * (len(self.targets) == 1 and self.unpacks)} = {self.text}"

    @property
    def unpacks(self) -> bool:
        return isinstance(self.result, tuple | list)

    def names(self, scope: Mapping[str, Any]) -> list[str]:
        """The variables the text uses."""
        return [name for name in dict.fromkeys(re.findall(r"\b[av]\d+\b", self.text)) if name in scope]


@dataclass
class Chain:
    """Arguments and lines; ``refused`` are calls that JAX does not take."""

    seed: Any
    wide: bool
    arguments: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    refused: list[Line] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def source(self, upto: Line | None = None) -> str:
        """The text, or the part of it that one line needs."""
        lines = self.lines if upto is None else [*self.lines[: self._before(upto)], upto]
        needed = set(upto.names(self.values)) if upto is not None else set()
        kept = []
        for line in reversed(lines):
            if upto is None or line is upto or needed & set(line.targets):
                needed.update(line.names(self.values))
                kept.append(str(line))
        arguments = [
            f"{name} = np.{np.asarray(x)!r}" for name, x in self.arguments.items() if upto is None or name in needed
        ]
        return "\n".join([*arguments, *reversed(kept)])

    def _before(self, line: Line) -> int:
        return next((n for n, other in enumerate(self.lines) if other is line), len(self.lines))


def namespace(package: Any) -> dict[str, Any]:
    """What the text of a chain means on ``mw`` or ``jax``."""
    return {"np_": package.numpy, "lax": package.lax, "nn": package.nn}


def draw_chain(seed: Any, length: int, wide: bool = False, concrete: bool = True, only: Sequence[Name] = ()) -> Chain:
    """A chain of ``length`` calls; without ``concrete``, one that may be traced. ``only``: calls of these names."""
    d = Drawer(seed, wide)
    chain = Chain(seed, wide, d.arguments)
    names = namespace(jax)
    for _ in range(30 * length):
        if len(chain.lines) >= length:
            break
        prefix, name, entry = _choose(d, concrete, only)
        try:
            drawn = d.choose(entry.draws)(d)
        except Unfit:
            continue
        for argument in d.arguments:
            if argument not in chain.values:
                chain.values[argument] = jnp.asarray(d.arguments[argument])
        text = f"{prefix}{name}({drawn})" if prefix else drawn
        line = Line(prefix + name, text, ())
        wrong = WRONG.get(prefix + name)
        if wrong is not None and wrong[0]([np.asarray(chain.values[x]) for x in line.names(chain.values)]):
            continue
        try:
            result = eval(text, names | chain.values)
        except Exception as error:
            chain.refused.append(Line(prefix + name, text, ("_",), None, error))
            continue
        leaves = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(x, jax.Array) and (prod(x.shape) > 2 * LARGEST or x.ndim > 4) for x in leaves):
            continue
        start = len(chain.values)
        targets = [f"v{start + n}" for n in range(len(leaves))]
        line = Line(prefix + name, text, tuple(targets), result)
        chain.lines.append(line)
        for target, x in zip(targets, leaves, strict=True):
            chain.values[target] = x
            if isinstance(x, jax.Array):
                d.add(target, x)
    return chain


def _choose(d: Drawer, concrete: bool, only: Sequence[Name]) -> tuple[str, str, Calls]:
    while True:
        if only:
            prefix, name = d.choose(only)
        else:
            weights = [weight for _, weight in TABLES.values()]
            prefix = str(d.random.choice(list(TABLES), p=np.array(weights) / sum(weights)))
            name = d.choose(list(TABLES[prefix][0]))
        entry = TABLES[prefix][0][name]
        if isinstance(entry, Calls) and (concrete or not entry.concrete) and not _changed(prefix + name):
            return prefix, name, entry


# One call by itself

# Functions whose terms cancel, and how large those are. Products of complex numbers are sums of such terms, too.
CANCELS = {"lax.lgamma": 2.0, "lax.digamma": 2.0}

# What JAX refuses and we take, by its message, and why.
TAKEN = {
    r"requires arguments to have the same dtypes": "a number that an array's dtype has is taken in that dtype",
    r"index arguments to dynamic_(update_)?slice must be integers of the same type": "any integers will do",
    r"does not accept dtype bool": "truth values count as 0 and 1, as in NumPy",
    r"data type (<class 'numpy.bool'>|dtype\('bool'\)) not (inexact|compatible)": "truth values count as 0 and 1",
    r"RFFT input must be float32 or float64": "narrow floats are converted",
    r"Python integer .* out of bounds for uint": "a negative float becomes 0, as in a conversion of arrays",
    r"preferred_element_type` must not be narrower": "a number has the dtype of the array beside it",
    r"logistic does not accept dtype u?int": "integers become floats, as in all of nn",
    r"8-bit floats do not support implicit promotion": "an update is converted to the dtype of what it updates",
    r"rev dimensions must have every element be nonnegative": "an axis may be counted from the end",
    r"data type (<class 'ml_dtypes.bfloat16'>|dtype\(bfloat16\)) not (inexact|compatible)": "bfloat16 is a float",
    r"in gather op is out of range, must be within \[0, 0 \+ 1\)": "the quantile of no numbers is NaN",
    r"integer np.round not implemented for decimals < 0": "integers can be rounded to tens",
    r"np_.pad.*(slice limit_indices must|zero-size array to reduction)": "nothing to add needs no numbers",
    r"lax.map.*integer modulo by zero": "rows without elements can be mapped over",
}


def cancelling(name: str, operands: Sequence[Any]) -> float:
    """How large terms are that cancel in a call."""
    size = scale(*floats(operands))
    return max(CANCELS.get(name, 0.0), size * size if any(x.dtype.kind == "c" for x in floats(operands)) else 0.0)


def coarseness(line: Line) -> float:
    """The rounding of the narrowest float that a call converts to."""
    named = [dtype_of(name) for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2") if name in line.text]
    return max((epsilon(dtype) for dtype in named), default=0.0)


def inner_coarseness(function: Callable[..., Any], operands: Sequence[Any]) -> float:
    """The rounding of the narrowest float that JAX calculates with, as its program says."""
    try:
        program = jax.make_jaxpr(function)(*operands).jaxpr
    except Exception:
        return 0.0
    return max((epsilon(dtype) for dtype in _dtypes(program) if kind_of(dtype) in "fc"), default=0.0)


def compare_inside(comparison: Callable[[float], str], coarse: Callable[[], float]) -> str:
    """A comparison, and if it fails once more with the rounding of what JAX calculates with inside."""
    try:
        return comparison(0.0)
    except DifferentKind:
        raise
    except Difference:
        inner = coarse()
        if not inner:
            raise
        return comparison(inner)


def _dtypes(program: Any) -> set[Any]:
    """The dtypes of all values of a jaxpr, also of those in it."""
    found = set()
    for eqn in program.eqns:
        found |= {v.aval.dtype for v in eqn.outvars if hasattr(v.aval, "dtype") and v.aval.dtype != jax.dtypes.float0}
        for inner in leaves(tuple(eqn.params.values())):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                found |= _dtypes(getattr(inner, "jaxpr", inner))
    return {dtype for dtype in found if isinstance(dtype, np.dtype)}


def check_step(chain: Chain, line: Line) -> str:
    """One call on JAX's operands."""
    used = {name: chain.values[name] for name in line.names(chain.values)}
    try:
        ours = eval(line.text, namespace(mw) | {name: on_meshwright(x) for name, x in used.items()})
    except mw.MeshwrightError as error:
        raise Difference(f"refused: {error}") from error
    except Exception as error:
        raise Difference(f"raw {type(error).__name__}: {error}") from error

    def again(random: np.random.Generator) -> Any:
        return eval(line.text, namespace(jax) | {name: noisy(x, random) for name, x in used.items()})

    def wider() -> Any:
        return eval(line.text, namespace(jax) | {name: widened(x) for name, x in used.items()})

    operands = list(used.values())
    cancels = cancelling(line.name, operands)
    inner = lambda: inner_coarseness(lambda *xs: eval(line.text, namespace(jax) | dict(zip(used, xs))), operands)
    return compare_inside(
        lambda coarse: compare(ours, line.result, again, operands, cancels, max(coarse, coarseness(line)), wider=wider),
        inner,
    )


def check_refused(chain: Chain, line: Line) -> str:
    """A call that JAX does not take is an error of ours."""
    used = {name: on_meshwright(chain.values[name]) for name in line.names(chain.values)}
    try:
        ours = eval(line.text, namespace(mw) | used)
    except mw.MeshwrightError:
        return "refused"
    except Exception as error:
        raise Difference(f"raw {type(error).__name__}: {error}") from error
    if not any(re.search(pattern, f"{line.name}: {line.error}") for pattern in TAKEN):
        raise Difference(f"accepted, giving {ours!r:.80}; JAX: {type(line.error).__name__}: {line.error!s:.200}")
    return "taken"


def check_derivatives(chain: Chain, line: Line) -> str:
    """The derivative of one call at JAX's operands, forward and backward in directions of our choice."""
    used = {name: chain.values[name] for name in line.names(chain.values)}
    active = [name for name, x in used.items() if isinstance(x, jax.Array) and kind_of(x.dtype) in "fc"]
    if not active or not floats(leaves(line.result)) or not finite(leaves(line.result)):
        return "no derivative"
    primals = [used[name] for name in active]
    random = np.random.default_rng(7)
    tangents = [direction(x, random) for x in primals]
    cotangents = [direction(x, random) for x in floats(leaves(line.result))]

    def both(package: Any, values: Sequence[Any], pushed: Sequence[Any], pulled: Sequence[Any], held: Any) -> Any:
        """jvp and vjp; ``held`` are the operands that are not floats."""

        def function(*xs: Any) -> list[Any]:
            found = leaves(eval(line.text, namespace(package) | held | dict(zip(active, xs, strict=True))))
            return [x for x in found if hasattr(x, "dtype") and kind_of(x.dtype) in "fc"]

        _, forward = package.jvp(function, tuple(values), tuple(pushed))
        _, pull = package.vjp(function, *values)
        return [*forward, *pull(list(pulled))]

    try:
        theirs = both(jax, primals, tangents, cotangents, used)
    except Exception:
        return "no derivative"  # of JAX's
    held = {name: on_meshwright(x) for name, x in used.items()}
    ours_of = [[on_meshwright(x) for x in group] for group in (primals, tangents, cotangents)]
    try:
        ours = both(mw, *ours_of, held)
    except mw.MeshwrightError as error:
        raise Difference(f"derivative refused: {error}") from error
    except Exception as error:
        raise Difference(f"derivative, raw {type(error).__name__}: {error}") from error

    def again(random: np.random.Generator) -> Any:
        return both(jax, [noisy(x, random) for x in primals], tangents, cotangents, used)

    try:
        given = [*primals, *tangents, *cotangents]
        coarse = max([coarseness(line), *(epsilon(x.dtype) for x in [*given, *floats(leaves(line.result))])])
        cancels = max(cancelling(line.name, primals), scale(*primals), 1.0)
        return compare(ours, theirs, again, given, cancels, coarse, poles=True)
    except DifferentKind as found:
        raise Difference(f"derivative: {found}") from found
    except Difference as found:
        function = lambda *xs: [
            x
            for x in leaves(eval(line.text, namespace(jax) | used | dict(zip(active, xs, strict=True))))
            if isinstance(x, jax.Array) and kind_of(x.dtype) in "fc"
        ]
        if agrees(ours, lambda: slopes(function, primals, tangents, cotangents), coarse):
            return "by differences"
        raise Difference(f"derivative: {found}") from found


def agrees(ours: Sequence[Any], expected: Callable[[], Sequence[Any]], coarse: float) -> bool:
    """Whether derivatives of ours are those that differences of JAX's own results give, where JAX's are not."""
    try:
        wanted = expected()
    except Exception:
        return False  # the text names a dtype that does not go with wider ones
    close = max(1e-4, 64 * coarse)
    return len(wanted) == len(ours) and all(
        np.shape(a) == np.shape(b) and bool(np.all(np.abs(plain(a) - b) <= close * max(1.0, scale(b))))
        for a, b in zip(ours, wanted, strict=True)
    )


def finite(values: Sequence[Any]) -> bool:
    """Whether no value is infinite or NaN: beyond, a derivative is what a formula happens to give."""
    return all(bool(np.isfinite(plain(x)).all()) for x in floats(values))


def direction(x: Any, random: np.random.Generator) -> Any:
    """A tangent or cotangent of JAX's, of the type of ``x``."""
    drawn = random.uniform(-1, 1, x.shape)
    drawn = drawn + 1j * random.uniform(-1, 1, x.shape) if x.dtype.kind == "c" else drawn
    made = jnp.asarray(np.asarray(drawn).astype(x.dtype))
    return jax.lax.convert_element_type_p.bind(made, new_dtype=x.dtype, weak_type=bool(x.weak_type), sharding=None)


def failures(
    chain: Chain, differentiated: Sequence[Line] = (), found: Counter[str] | None = None
) -> Iterator[tuple[Line, str]]:
    """The calls of a chain that differ from JAX, or whose derivatives do; ``found`` counts how the others agree."""
    checks: list[tuple[Callable[[Chain, Line], Any], Sequence[Line]]] = [
        (check_step, chain.lines),
        (check_refused, chain.refused),
        (check_derivatives, differentiated),
    ]
    for check, lines in checks:
        for line in lines:
            try:
                how = check(chain, line)
            except Difference as difference:
                yield line, str(difference)
            else:
                if found is not None:
                    found[how] += 1


# Whole chains


Disturb = Callable[[Any, float], Any]


def _as_it_is(x: Any, terms: float) -> Any:
    return x


def run_lines(chain: Chain, package: Any, arguments: Sequence[Any], disturb: Disturb = _as_it_is) -> Any:
    """All arrays that a chain makes of its arguments, on ``mw`` or ``jax``.

    ``disturb`` is applied to each, and told how large the terms are that may have cancelled in it.
    """
    scope: dict[str, Any] = dict(zip(chain.arguments, arguments, strict=True))
    outs = []
    for line in chain.lines:
        result = eval(line.text, namespace(package) | scope)
        parts = list(result) if line.unpacks else [result]
        terms = 0.0 if disturb is _as_it_is else cancelling(line.name, [chain.values[v] for v in line.names(scope)])
        for target, x, theirs in zip(line.targets, parts, leaves(line.result), strict=True):
            scope[target] = disturb(x, terms) if isinstance(theirs, jax.Array) else x
            if isinstance(theirs, jax.Array):
                outs.append(scope[target])
    return outs


def expected(chain: Chain) -> list[Any]:
    """What JAX made of all lines."""
    return [x for line in chain.lines for x in leaves(line.result) if isinstance(x, jax.Array)]


def on_jax(chain: Chain) -> list[Any]:
    return [jnp.asarray(x) for x in chain.arguments.values()]


def shaken(chain: Chain, random: np.random.Generator) -> list[Any]:
    """What JAX makes of all lines when every value is off by a rounding."""
    disturb = lambda x, terms: noisy(x, random, terms)
    return run_lines(chain, jax, [noisy(x, random) for x in on_jax(chain)], disturb)


def compare_whole(chain: Chain, ours: Any) -> str:
    """All results of a chain with those of JAX's calls."""
    return compare_inside(
        lambda coarse: compare(ours, expected(chain), lambda r: shaken(chain, r), coarse=coarse),
        lambda: inner_coarseness(lambda *xs: run_lines(chain, jax, xs), on_jax(chain)),
    )


def check_jitted(chain: Chain, random: np.random.Generator) -> str:
    """The chain as one compiled program."""
    return compare_whole(chain, _ours(lambda: mw.jit(lambda *xs: run_lines(chain, mw, xs))(*chain.arguments.values())))


def check_sharded(chain: Chain, random: np.random.Generator) -> str:
    """The chain as one program for the devices of a mesh, its arguments split over them at random."""
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    placed = []
    for x in chain.arguments.values():
        free = list(random.permutation(["x", "y"]))
        spec = [str(free.pop()) if free and n and n % 2 == 0 and random.random() < 0.7 else None for n in x.shape]
        placed.append(mw.device_put(mw.numpy.asarray(x), mw.NamedSharding(mesh, mw.P(*spec))))
    return compare_whole(chain, _ours(lambda: mw.jit(lambda *xs: run_lines(chain, mw, xs))(*placed)))


def check_batched(chain: Chain, random: np.random.Generator) -> str:
    """The chain for two examples: each argument, and the same with its elements in another order."""
    axes, stacked = [], []
    for x in chain.arguments.values():
        axis = None if random.random() < 0.25 else int(random.integers(0, x.ndim + 1))
        turned = np.asarray(x).reshape(-1)[::-1].reshape(x.shape)
        axes.append(axis)
        stacked.append(x if axis is None else np.stack([x, turned], axis))
    if all(axis is None for axis in axes):
        return "no batch"

    def batched(package: Any, values: Sequence[Any], disturb: Disturb = _as_it_is) -> Any:
        run = lambda *xs: run_lines(chain, package, xs, disturb)
        return package.vmap(run, in_axes=tuple(axes))(*values)

    try:
        theirs = batched(jax, [jnp.asarray(x) for x in stacked])
    except Exception:
        return "no batch"  # of JAX's
    ours = _ours(lambda: batched(mw, stacked))
    again = lambda r: batched(jax, [jnp.asarray(x) for x in stacked], lambda x, terms: noisy(x, r, terms))
    inner = lambda: inner_coarseness(lambda *xs: batched(jax, xs), [jnp.asarray(x) for x in stacked])
    return compare_inside(lambda coarse: compare(ours, theirs, again, coarse=coarse), inner)


def check_differentiated(chain: Chain, random: np.random.Generator, second: bool = False) -> str:
    """The derivative of the chain forward and backward, or its second derivative in two directions."""
    active = [n for n, x in enumerate(chain.arguments.values()) if kind_of(x.dtype) in "fc"]
    outs = floats(expected(chain))
    if not active or not outs or not finite(outs):
        return "no derivative"
    primals = [on_jax(chain)[n] for n in active]
    tangents = [direction(x, random) for x in primals]
    cotangents = [direction(x, random) for x in outs]

    def of_active(package: Any, disturb: Disturb = _as_it_is) -> Callable[..., list[Any]]:
        """The results that have derivatives, as a function of the arguments that have."""
        whole = [package.numpy.asarray(x) for x in chain.arguments.values()]

        def function(*xs: Any) -> list[Any]:
            given = [xs[active.index(n)] if n in active else x for n, x in enumerate(whole)]
            return [x for x in run_lines(chain, package, given, disturb) if kind_of(x.dtype) in "fc"]

        return function

    def both(package: Any, values: Any, ts: Any, cts: Any, disturb: Disturb = _as_it_is) -> Any:
        function = of_active(package, disturb)

        def back(*xs: Any) -> list[Any]:
            return list(package.vjp(function, *xs)[1](list(cts)))

        if second:
            return list(package.jvp(back, tuple(values), tuple(ts))[1])
        return [*package.jvp(function, tuple(values), tuple(ts))[1], *back(*values)]

    try:
        theirs = both(jax, primals, tangents, cotangents)
    except Exception:
        return "no derivative"  # of JAX's
    ours = _ours(lambda: both(mw, *([on_meshwright(x) for x in g] for g in (primals, tangents, cotangents))))

    def again(r: np.random.Generator) -> Any:
        disturb = lambda x, terms: noisy(x, r, terms)
        return both(jax, [noisy(x, r) for x in primals], tangents, cotangents, disturb)

    inner, size = lambda: inner_coarseness(of_active(jax), primals), scale(*primals, *outs)
    try:
        return compare_inside(lambda coarse: compare(ours, theirs, again, None, coarse and size, coarse, True), inner)
    except DifferentKind:
        raise
    except Difference:
        coarse = max(epsilon(x.dtype) for x in [*primals, *outs])
        if not second and agrees(ours, lambda: slopes(of_active(jax), primals, tangents, cotangents), coarse):
            return "by differences"
        raise


def check_second(chain: Chain, random: np.random.Generator) -> str:
    return check_differentiated(chain, random, second=True)


def _ours(compute: Callable[[], Any]) -> Any:
    """What Meshwright computes, or what it says instead."""
    try:
        return compute()
    except mw.MeshwrightError as error:
        raise Difference(f"refused: {error}") from error
    except Exception as error:
        raise Difference(f"raw {type(error).__name__}: {error}") from error


WHOLE: dict[str, Callable[[Chain, np.random.Generator], str]] = {
    "jitted": check_jitted,
    "sharded": check_sharded,
    "batched": check_batched,
    "differentiated": check_differentiated,
    "differentiated twice": check_second,
}
