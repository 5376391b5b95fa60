"""Random programs in JAX's words, run by JAX and by ``meshwright.jax``: each call by itself, and then all as one
function that is jitted, differentiated, mapped, scanned, recomputed and read by ``from_jax``. Inputs lie on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import meshwright.jax as ours
from meshwright.errors import ShardingError
from meshwright.interop.jax import from_jax

DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool")
SHAPES = ((8, 8), (8, 8), (8, 4), (4, 8), (8,), (8, 1), ())
SPECS: dict[int, Sequence[tuple[Any, ...]]] = {
    0: [()],
    1: [(), ("x",), ("y",), (("x", "y"),)],
    2: [(), ("x",), (None, "y"), ("x", "y"), ("y", "x"), (None, ("x", "y"))],
    3: [()],
}
NUMBERS = (2, -1, 0.5, 3.0, True)

Call = Callable[..., Any]  # of a library and arrays
ONE: dict[str, Call] = {
    "sin": lambda j, x: j.numpy.sin(x),
    "exp": lambda j, x: j.numpy.exp(-abs(x)),
    "square": lambda j, x: x**2,
    "negative": lambda j, x: -x,
    "relu": lambda j, x: j.nn.relu(x),
    "gelu": lambda j, x: j.nn.gelu(x),
    "softmax": lambda j, x: j.nn.softmax(x),
    "sigmoid": lambda j, x: j.nn.sigmoid(x),
    "one_hot": lambda j, x: j.nn.one_hot(x.astype("int32") % 4, 4),
    "transpose": lambda j, x: x.T,
    "sum": lambda j, x: x.sum(),
    "sum of rows": lambda j, x: x.sum(0),
    "sum of columns": lambda j, x: x.sum(-1, keepdims=True),
    "mean": lambda j, x: x.mean(-1),
    "max": lambda j, x: x.max(-1),
    "argmax": lambda j, x: j.numpy.argmax(x, -1),
    "any": lambda j, x: x.any(0),
    "cumsum": lambda j, x: j.numpy.cumsum(x, -1),
    "sort": lambda j, x: j.numpy.sort(x, -1),
    "top_k": lambda j, x: j.lax.top_k(x, 2)[0],
    "float32": lambda j, x: x.astype(j.numpy.float32),
    "int32": lambda j, x: x.astype("int32"),
    "bfloat16": lambda j, x: x.astype(j.numpy.bfloat16),
    "first column": lambda j, x: x[:, 0],
    "first row": lambda j, x: x[0],
    "last columns": lambda j, x: x[..., -2:],
    "new dim": lambda j, x: x[None],
    "new last dim": lambda j, x: x[..., None],
    "squeezed": lambda j, x: j.numpy.squeeze(x),
    "more rows": lambda j, x: x.reshape(2, -1, *x.shape[1:]),
    "flat": lambda j, x: x.reshape(-1),
    "broadcast": lambda j, x: j.numpy.broadcast_to(x, (8, 8)),
    "set": lambda j, x: x.at[..., 0].set(1),
    "added to": lambda j, x: (x + 0).at[..., 0].add(2),
    "rolled": lambda j, x: j.numpy.roll(x, 1, -1),
    "padded": lambda j, x: j.numpy.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 1)]),
    "flipped": lambda j, x: j.numpy.flip(x, -1),
    "halves": lambda j, x: j.numpy.split(x, 2, axis=-1)[1],
    "lower": lambda j, x: j.numpy.tril(x),
    "taken": lambda j, x: j.numpy.take(x, np.array([2, 0, 1]), axis=-1),
    "clipped": lambda j, x: j.numpy.clip(x, 0, 2),
    "where": lambda j, x: j.numpy.where(x > 1, x, 0),
    "isnan": lambda j, x: j.numpy.isnan(x),
    "normal": lambda j, x: x + j.random.normal(j.random.key(3), x.shape),
    "dropped": lambda j, x: x * j.random.bernoulli(j.random.key(4), 0.5, x.shape),
    "logsumexp": lambda j, x: j.nn.logsumexp(x, axis=-1),
    "norm": lambda j, x: j.numpy.linalg.norm(x),
    "variance": lambda j, x: x.var(-1),
    "scanned": lambda j, x: j.lax.scan(lambda c, _: (c * 2 + 1, None), x + 0, None, length=3)[0],
    "looped": lambda j, x: j.lax.fori_loop(0, 3, lambda i, c: c + i, x),
    "chosen": lambda j, x: j.lax.cond(True, lambda x: x * 2, lambda x: x, x),
    "mapped": lambda j, x: j.vmap(lambda row: row * row.sum())(x),
    "mapped columns": lambda j, x: j.vmap(lambda c: c - c.max(), in_axes=-1, out_axes=-1)(x),
    "recomputed": lambda j, x: j.checkpoint(lambda x: j.numpy.sin(j.numpy.sin(x)))(x),
    "gradient": lambda j, x: j.grad(lambda x: (j.numpy.sin(x) * x).sum())(x),
    "pushed": lambda j, x: j.jvp(lambda x: x * x, (x,), (x,))[1],
    "stopped": lambda j, x: j.lax.stop_gradient(x) * 2,
    "jitted": lambda j, x: j.jit(lambda x: x + 1)(x),
}
TWO: dict[str, Call] = {
    "add": lambda j, x, y: x + y,
    "subtract": lambda j, x, y: x - y,
    "multiply": lambda j, x, y: x * y,
    "divide": lambda j, x, y: x / y,
    "maximum": lambda j, x, y: j.numpy.maximum(x, y),
    "floor_divide": lambda j, x, y: x // y,
    "remainder": lambda j, x, y: x % y,
    "less": lambda j, x, y: x < y,
    "equal": lambda j, x, y: x == y,
    "select": lambda j, x, y: j.numpy.where(x > 0, x, y),
    "matmul": lambda j, x, y: x @ y,
    "dot": lambda j, x, y: j.numpy.dot(x, y),
    "outer": lambda j, x, y: j.numpy.einsum("i,j->ij", x, y),
    "einsum": lambda j, x, y: j.numpy.einsum("ij,ij->i", x, y),
    "einsum of columns": lambda j, x, y: j.numpy.einsum("ki,kj->ij", x, y),
    "concatenate": lambda j, x, y: j.numpy.concatenate([x, y], -1),
    "stack": lambda j, x, y: j.numpy.stack([x, y]),
    "arctan2": lambda j, x, y: j.numpy.arctan2(x, y),
    "power": lambda j, x, y: j.numpy.power(abs(x), y),
}
NAMES = [*ONE, *TWO, *TWO]


class Difference(AssertionError):
    """Where the two libraries differ."""


def mesh_of(j: Any, kind: str) -> Any:
    return j.make_mesh((2, 4), ("x", "y"), axis_types=(getattr(j.sharding.AxisType, kind),) * 2)


def attempt(f: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return f(), None
    except Exception as error:
        return None, error


def spec_of(x: Any) -> Any:
    entries = [None if e == () else e[0] if isinstance(e, tuple) and len(e) == 1 else e
               for e in getattr(x.sharding, "spec", ())]  # fmt: skip
    while entries and entries[-1] is None:
        entries.pop()
    return entries


def compare(actual: Any, expected: Any, what: str, typed: bool, slack: float = 1.0) -> None:
    """Dtype, shape, weak type, values, and over Explicit axes the layout."""
    if isinstance(expected, tuple | list):
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, what, typed, slack)
        return
    seen, wanted = (_kind(x) for x in (actual, expected))
    if seen != wanted:
        raise Difference(f"{what}: {seen}, JAX {wanted}")
    if typed and spec_of(actual) != spec_of(expected):
        raise Difference(f"{what} is laid out as {spec_of(actual)}, JAX {spec_of(expected)}")
    a, b = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    # The narrowest dtype that a value went through: an elementary function may be off by one of its last places.
    narrow = (0.03 if "bfloat16" in what else 0.004 if "float16" in what else 2e-5) * slack
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(
        a, b, rtol=narrow, atol=narrow * float(np.max(finite, initial=1.0)), err_msg=what, equal_nan=True
    )


def _kind(x: Any) -> tuple[str, tuple[int, ...], bool]:
    weak = bool(getattr(x, "weak_type", False)) and x.dtype != bool  # there is one type of booleans
    return str(x.dtype), x.shape, weak


class Chain:
    """A random program: its inputs, and its calls of functions on earlier values and Python's numbers."""

    def __init__(self, seed: int, explicit: bool, length: int) -> None:
        self.random = np.random.default_rng([seed, explicit])
        self.explicit = explicit
        self.kind = "Explicit" if explicit else "Auto"
        self.inputs: list[tuple[np.ndarray[Any, Any], tuple[Any, ...]]] = []
        for _ in range(3):
            shape = SHAPES[self.random.integers(len(SHAPES))]
            dtype = DTYPES[self.random.integers(len(DTYPES))]
            data = self.random.normal(size=shape) * 2
            specs = [s for s in SPECS[len(shape)] if all(n == 8 or e is None for n, e in zip(shape, s, strict=False))]
            self.inputs.append((np.asarray(data > 0 if dtype == "bool" else data).astype(jax.numpy.dtype(dtype)),
                                specs[self.random.integers(len(specs))]))  # fmt: skip
        self.steps: list[tuple[str, list[Any]]] = []  # a name, and places of earlier values, or numbers
        self.grow(length)

    def given(self, j: Any) -> list[Any]:
        return [j.device_put(x, j.P(*spec)) for x, spec in self.inputs]

    def call(self, j: Any, name: str, args: Sequence[Any], values: Sequence[Any]) -> Any:
        given = [values[a[0]] if isinstance(a, tuple) else a for a in args]
        return (ONE.get(name) or TWO[name])(j, *given)

    def grow(self, length: int) -> None:
        """Draw calls, and keep those that both libraries take; what one alone refuses is a difference."""
        with ours.set_mesh(mesh_of(ours, self.kind)), jax.set_mesh(mesh_of(jax, self.kind)):
            mine, theirs = self.given(ours), self.given(jax)
            for _ in range(4 * length):
                if len(self.steps) == length:
                    break
                name = NAMES[self.random.integers(len(NAMES))]
                args: list[Any] = [(int(self.random.integers(len(mine))),) for _ in range(1 if name in ONE else 2)]
                if name in TWO and self.random.random() < 0.3:
                    args[int(self.random.integers(2))] = NUMBERS[self.random.integers(len(NUMBERS))]
                expected, refused = attempt(lambda name=name, args=args: self.call(jax, name, args, theirs))
                actual, also = attempt(lambda name=name, args=args: self.call(ours, name, args, mine))
                what = self.show([*self.steps, (name, args)])
                if refused is not None:
                    self.check_refused(refused, actual, also, what)
                    continue
                if also is not None:
                    if self.explicit and isinstance(also, ShardingError):  # asks for a layout where JAX moves data
                        continue
                    raise Difference(f"{what}\nrefused: {also}")
                # Where an axis splits what is summed over in one operand and a dim of the result in the other, JAX
                # gives a whole result, and here it is split.
                compare(actual, expected, what, self.explicit and "einsum" not in name)
                if not np.isfinite(np.asarray(expected).astype(np.float64)).all():
                    continue
                self.steps.append((name, args))
                mine.append(actual)
                theirs.append(expected)

    def check_refused(self, refused: Exception, actual: Any, also: Exception | None, what: str) -> None:
        if also is None:
            if not self.explicit and not isinstance(refused, TypeError):
                raise Difference(f"{what}\ntaken, giving {actual}; JAX: {type(refused).__name__}: {refused}")
            return
        kinds = [kind for kind in (TypeError, ValueError) if isinstance(refused, kind)]
        if kinds and not isinstance(also, tuple(kinds)):
            raise Difference(f"{what}\nrefused with {type(also).__name__}: {also}; JAX: {refused!r}")

    def show(self, steps: Sequence[tuple[str, list[Any]]]) -> str:
        lines = [f"{n}: {x.dtype}{list(x.shape)} {spec} {self.kind}" for n, (x, spec) in enumerate(self.inputs)]
        lines += [f"{n + len(lines)}: {name} {args}" for n, (name, args) in enumerate(steps)]
        return "\n".join(lines)

    def function(self, j: Any) -> Callable[..., Any]:
        """All calls as one function, which returns the last values."""

        def f(*inputs: Any) -> Any:
            values = list(inputs)
            for name, args in self.steps:
                values.append(self.call(j, name, args, values))
            return tuple(values[-3:])

        return f

    def loss(self, j: Any) -> Callable[..., Any]:
        f = self.function(j)
        return lambda *inputs: sum(
            (x.astype("float32") ** 2 * 0.01).sum() for x in f(*inputs) if j.numpy.issubdtype(x.dtype, j.numpy.floating)
        )

    def ways(self) -> dict[str, Callable[[Any], Any]]:
        """What is made of the whole: from a library, a function of the inputs."""
        floats = [n for n, (x, _) in enumerate(self.inputs) if x.dtype in (np.float32, jax.numpy.bfloat16, np.float16)]
        found: dict[str, Callable[[Any], Any]] = {"jit": lambda j: j.jit(self.function(j))}
        if floats:
            found["grad"] = lambda j: j.jit(j.grad(self.loss(j), argnums=tuple(floats)))
            found["grad of checkpoint"] = lambda j: j.jit(j.grad(j.checkpoint(self.loss(j)), argnums=tuple(floats)))
        if not self.explicit:
            found["vmap"] = lambda j: (
                lambda *xs: j.jit(j.vmap(self.function(j)))(
                    *(j.numpy.stack([x, x + x if x.dtype != bool else x]) for x in xs)
                )
            )
            found["scan"] = lambda j: (
                lambda *xs: j.jit(
                    lambda *xs: j.lax.scan(lambda c, _: (c, self.function(j)(*c)), xs, None, length=2)[1]
                )(*xs)
            )
        return found

    def check_whole(self) -> int:
        """Run the whole in each way; how many were run by both."""
        count = 0
        with ours.set_mesh(mesh_of(ours, self.kind)), jax.set_mesh(mesh_of(jax, self.kind)):
            mine, theirs = self.given(ours), self.given(jax)
            for name, way in self.ways().items():
                expected, refused = attempt(lambda way=way: way(jax)(*theirs))
                if refused is not None:
                    continue
                what = f"{name} of\n{self.show(self.steps)}"
                actual, also = attempt(lambda way=way: way(ours)(*mine))
                if also is not None:
                    if self.explicit and isinstance(also, ShardingError):
                        continue
                    raise Difference(f"{what}\nrefused: {type(also).__name__}: {also}")
                compare(actual, expected, what, False, 4.0)
                count += 1
            expected, refused = attempt(lambda: jax.jit(self.function(jax))(*theirs))
        if refused is None and not self.explicit:
            actual = from_jax(self.function(jax))(*(x for x, _ in self.inputs))
            for one, other in zip(actual, expected, strict=True):
                assert str(one.dtype) == str(other.dtype)
            compare([ours.numpy.asarray(np.asarray(x)) for x in actual],
                    [jax.numpy.asarray(np.asarray(x)) for x in expected], f"from_jax of\n{self.show(self.steps)}",
                    False, 4.0)  # fmt: skip
            count += 1
        return count


def check(seed: int, explicit: bool, length: int = 6) -> int:
    chain = Chain(seed, explicit, length)
    return chain.check_whole() if chain.steps else 0
