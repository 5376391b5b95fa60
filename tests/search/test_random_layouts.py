"""`find_layout` of random small steps, of chains of many kinds of ops, against layouts of all their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax, nn
from meshwright.core import tree
from meshwright.search.layout.find import mesh_sizes
from tests.search.test_every_layout import every_spec, shape

MACHINES = ["h100 4", "tpu v5e 4", "h100 2", "a100 4", "tpu v5p 4", "b200 4", "h100 6", "tpu v5e 8"]
MANY = 200  # layouts on each mesh

Layer = Callable[[Any, Any], Any]


class RandomStep(NamedTuple):
    """A step, its arguments, and what the first of them has beside parameters."""

    function: Callable[..., Any]
    args: tuple[Any, Any]
    kind: str  # train, momentum, forward, or reduce


class Chain:
    """Random layers, whose weights are made as they are added."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = self.pick("bfloat16", "float32")
        self.weights: list[Any] = []
        self.layers: list[Layer] = []
        kinds = (
            self.vectors,
            self.vectors,
            self.images,
            self.tokens,
            self.sequences,
            self.scan,
            self.recurrent,
            self.experts,
        )
        self.batch = kinds[int(self.rng.integers(len(kinds)))]()

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def weight(self, *dims: int) -> int:
        self.weights.append(shape(*dims, dtype=self.dtype))
        return len(self.weights) - 1

    def vectors(self) -> Any:
        widths = (16, 48, 64, 96, 128, 256, 512, 1024, 2048)
        width = first = self.pick(*widths)
        for _ in range(self.rng.integers(1, 4)):
            what = self.pick("matmul", "matmul", "transposed", "residual", "bias", "norm", "softmax")
            if what in ("matmul", "transposed"):
                out = self.pick(*widths)
                n = self.weight(*((width, out) if what == "matmul" else (out, width)))
                self.layers.append(
                    (lambda p, x, n=n: nn.relu(x @ p[n])) if what == "matmul" else lambda p, x, n=n: (p[n] @ x.T).T
                )
                width = out
            elif what == "residual":
                a, b = self.weight(width, 4 * width), self.weight(4 * width, width)
                self.layers.append(lambda p, x, a=a, b=b: x + nn.relu(x @ p[a]) @ p[b])
            elif what == "softmax":
                self.layers.append(lambda p, x: nn.softmax(x))
            else:
                n = self.weight(width)
                self.layers.append(
                    (lambda p, x, n=n: x + p[n])
                    if what == "bias"
                    else lambda p, x, n=n: p[n] * x / mnp.sqrt(mnp.mean(x * x, -1, keepdims=True) + 1e-6)
                )
        n = self.weight(width, 64)
        self.layers.append(lambda p, x: x @ p[n])
        return shape(self.pick(8, 32, 60, 64, 512, 4096, 16384), first, dtype=self.dtype)

    def images(self) -> Any:
        rows, side, c = self.pick(2, 4, 8, 32, 64), self.pick(8, 16, 28, 32), self.pick(3, 4, 16, 32, 64, 128)
        batch = shape(rows, side, side, c, dtype=self.dtype)
        for _ in range(self.rng.integers(1, 3)):
            k, out, stride = self.pick(1, 3, 5), self.pick(8, 16, 64, 256), self.pick(1, 1, 2)
            n, c = self.weight(k, k, c, out), out

            def convolved(p: Any, x: Any, n: int = n, stride: int = stride) -> Any:
                names = ("NHWC", "HWIO", "NHWC")
                return nn.relu(lax.conv_general_dilated(x, p[n], (stride, stride), "SAME", dimension_numbers=names))

            self.layers.append(convolved)
        if self.rng.integers(2):
            n = self.weight(c, self.pick(10, 64, 1000))
            self.layers.append(lambda p, x: mnp.mean(x, (1, 2)) @ p[n])
        return batch

    def tokens(self) -> Any:
        words, width = self.pick(1000, 4096, 16384), self.pick(64, 128, 512)
        embed, inner = self.weight(words, width), self.weight(width, width)
        self.layers += [lambda p, x: p[embed][x], lambda p, x: nn.relu(x @ p[inner])]
        if self.rng.integers(2):
            self.layers.append(lambda p, x: nn.log_softmax((x @ p[embed].T).astype("float32")))
        return shape(self.pick(4, 16, 64), self.pick(16, 128), dtype="int32")

    def sequences(self) -> Any:
        rows, length, width = self.pick(2, 8, 32), self.pick(64, 256, 1024), self.pick(128, 256, 512)
        heads, dim = self.pick(2, 8), self.pick(16, 64)
        qkv, out = self.weight(width, 3, heads, dim), self.weight(heads, dim, width)

        def attention(p: Any, x: Any) -> Any:
            q, k, v = (mnp.einsum("bsd,dhk->bshk", x, p[qkv][:, n]) for n in range(3))
            weights = nn.softmax(mnp.einsum("bqhk,bshk->bhqs", q, k) * dim**-0.5)
            return x + mnp.einsum("bqhk,hkd->bqd", mnp.einsum("bhqs,bshk->bqhk", weights, v), p[out])

        self.layers.append(attention)
        return shape(rows, length, width, dtype=self.dtype)

    def scan(self) -> Any:
        width, act = self.pick(64, 256, 1024), self.pick(mnp.tanh, nn.relu)
        n = self.weight(self.pick(2, 4, 6), width, width)
        self.layers.append(lambda p, x: lax.scan(lambda h, w: (act(h @ w), None), x, p[n])[0])
        return shape(self.pick(64, 512, 4096), width, dtype=self.dtype)

    def recurrent(self) -> Any:
        width = self.pick(64, 256, 1024)
        n = self.weight(width, width)

        def run(p: Any, x: Any) -> Any:
            start = mnp.zeros(x.shape[1:], x.dtype)
            return lax.scan(lambda h, row: (mnp.tanh(h @ p[n] + row),) * 2, start, x)[1]

        self.layers.append(run)
        return shape(self.pick(4, 16), self.pick(8, 64, 512), width, dtype=self.dtype)

    def experts(self) -> Any:
        width, count, hidden = self.pick(64, 256, 512), self.pick(4, 8), self.pick(128, 512, 2048)
        gate, up, down = self.weight(width, count), self.weight(count, width, hidden), self.weight(count, hidden, width)
        one = bool(self.rng.integers(2))

        def mixture(p: Any, x: Any) -> Any:
            scores = x @ p[gate]
            gates = nn.softmax(scores) * (scores >= mnp.max(scores, -1, keepdims=True) if one else 1)
            return mnp.einsum("eth,ehd,te->td", nn.relu(mnp.einsum("td,edh->eth", x, p[up])), p[down], gates)

        self.layers.append(mixture)
        return shape(self.pick(64, 512, 4096), width, dtype=self.dtype)


def random_step(seed: int) -> RandomStep:
    chain = Chain(seed)

    def forward(ws: Any, x: Any) -> Any:
        for layer in chain.layers:
            x = layer(ws, x)
        return x

    def loss(ws: Any, x: Any) -> Any:
        return mnp.mean(forward(ws, x).astype("float32") ** 2)

    def train(ws: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(ws, x)
        return value, mw.tree.map(lambda w, g: w - 0.1 * g, ws, gradient)

    def momentum(state: Any, x: Any) -> Any:
        ws, means = state
        value, gradient = mw.value_and_grad(loss)(ws, x)
        means = mw.tree.map(lambda m, g: 0.9 * m + g, means, gradient)
        return value, (mw.tree.map(lambda w, m: w - 0.1 * m, ws, means), means)

    axis = chain.pick(0, -1)
    functions = {
        "train": train,
        "momentum": momentum,
        "forward": forward,
        "reduce": lambda ws, x: mnp.sum(forward(ws, x).astype("float32"), axis),
    }
    kind = chain.pick(*functions)
    first = (chain.weights, chain.weights) if kind == "momentum" else chain.weights
    return RandomStep(functions[kind], (first, chain.batch), kind)


def topology_of(machine: str, sizes: dict[str, int]) -> mw.hardware.Topology:
    name, _, count = machine.rpartition(" ")
    return mw.hardware.Topology(name, int(count), mesh=sizes)


def seconds_of(step: RandomStep, sizes: dict[str, int], specs: list[P], machine: str) -> float:
    """What a layout takes when it is written by hand: the state that the step returns anew is where it was."""
    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    given = tree.unflatten(tree.flatten(step.args)[1], [NamedSharding(mesh, spec) for spec in specs])
    anew = step.kind in ("train", "momentum")
    options: dict[str, Any] = {"out_shardings": (None, given[0]), "donate_argnums": (0,)} if anew else {}
    compiled = mw.jit(step.function, in_shardings=given, **options).lower(*step.args).compile()
    found = mw.simulate(compiled, topology_of(machine, sizes))
    return found.seconds if found.fits else float("inf")


def layouts_of(step: RandomStep, machine: str, seed: int) -> Iterator[tuple[dict[str, int], list[P]]]:
    """Meshes and specs of all arguments: all, or many of them; the means of weights are laid out as these are."""
    rng, leaves = np.random.default_rng(seed), tree.leaves(step.args)
    apart = len(leaves) // 2 if step.kind == "momentum" else len(leaves) - 1
    for sizes in mesh_sizes(int(machine.rpartition(" ")[2])):
        choices = [every_spec(x.shape, sizes) for x in (*leaves[:apart], leaves[-1])]
        counts = [len(c) for c in choices]
        total = int(np.prod(counts))
        for number in sorted(rng.choice(total, min(total, MANY), replace=False)):
            *ws, x = (c[int(n)] for c, n in zip(choices, np.unravel_index(number, counts), strict=True))
            yield sizes, [*ws * (2 if step.kind == "momentum" else 1), x]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_within_two_percent_of_many_layouts_of_a_random_step(seed: int) -> None:
    step, machine = random_step(seed), MACHINES[seed % len(MACHINES)]
    found = mw.find_layout(step.function, *step.args, topology=machine)
    best, *at = min((seconds_of(step, *one, machine), *map(str, one)) for one in layouts_of(step, machine, seed))
    assert found.best.seconds <= best * 1.02, f"{at}\n{found.table()}"
    assert found.bound_seconds <= best * 1.001


def test_a_layout_that_differs_in_several_arguments_from_all_usual_ones_is_found() -> None:
    """A convolution and a matmul that are split together, along the channels between them, and nothing else."""

    def loss(ws: Any, x: Any) -> Any:
        h = nn.relu(lax.conv_general_dilated(x, ws[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return mnp.mean((mnp.mean(h, (1, 2)) @ ws[1]) ** 2)

    def train(ws: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(ws, x)
        return value, mw.tree.map(lambda w, g: w - 0.1 * g, ws, gradient)

    step = RandomStep(train, ([shape(3, 3, 64, 256, dtype="float32"), shape(256, 10, dtype="float32")],
                              shape(2, 8, 8, 64, dtype="float32")), "train")  # fmt: skip
    found = mw.find_layout(step.function, *step.args, topology="tpu v5e 4")
    by_hand = [P(None, None, None, "model"), P("model"), P()]
    assert found.best.seconds <= seconds_of(step, {"data": 2, "model": 2}, by_hand, "tpu v5e 4") * (1 + 1e-9)


def looked_up(ws: Any, x: Any) -> Any:
    return nn.relu(mnp.mean(ws[0][x], 1) @ ws[1]) @ ws[2]


def twice_split(ws: Any, x: Any) -> Any:
    return mnp.einsum("bkh,ho->bko", mnp.einsum("bd,dkh->bkh", x, ws[0]), ws[1])


@pytest.mark.parametrize(
    ("forward", "ws", "x", "machine", "sizes", "specs"),
    [
        (
            looked_up,
            [shape(32768, 512, dtype="float32"), shape(512, 1024, dtype="float32"), shape(1024, 4096, dtype="float32")],
            shape(8192, 16, dtype="int32"),
            "h100 4",
            {"data": 4},
            [P(None, "data"), P(None, "data"), P(), P()],
        ),
        pytest.param(
            twice_split,
            [shape(1024, 8, 128), shape(128, 4096)],
            shape(16, 1024),
            "tpu v5e 8",
            {"data": 2, "model": 4},
            [P(None, ("data", "model")), P(None, "data"), P()],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_layout_whose_estimate_is_far_too_high_is_found(
    forward: Any, ws: Any, x: Any, machine: str, sizes: dict[str, int], specs: list[P]
) -> None:
    def train(ws: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(lambda ws: mnp.mean(forward(ws, x).astype("float32") ** 2))(ws)
        return value, mw.tree.map(lambda w, g: (w - 0.1 * g).astype(w.dtype), ws, gradient)

    found = mw.find_layout(train, ws, x, topology=machine)
    by_hand = seconds_of(RandomStep(train, (ws, x), "train"), sizes, specs, machine)
    assert found.best.seconds <= by_hand * 1.02
