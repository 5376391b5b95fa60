"""Models as layers: the work of each layer on one device of a data × horizontal × pipeline grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from meshwright.errors import ShapeError
from meshwright.search.unrolled import MLP, check_sizes


class LayerMatmul(NamedTuple):
    """``batch`` products ``[m, k] @ [k, n]``."""

    m: int
    k: int
    n: int
    batch: int = 1


class Pointwise(NamedTuple):
    """An elementwise op."""

    size: int
    operands: int


class Reduce(NamedTuple):
    """A sum over the horizontal group of this many elements."""

    size: int


Work = LayerMatmul | Pointwise | Reduce


class Layer(NamedTuple):
    """What one device does for one layer and one microbatch, and what it holds.

    ``backward`` is what the layer before waits for, ``weights`` what it does not.
    """

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    weights: tuple[Work, ...]
    parameters: tuple[int, ...]
    kept: int


class Layered(Protocol):
    """A model that a search can cost."""

    @property
    def layers(self) -> int: ...
    def layer(self, number: int, rows: int, horizontal: int) -> Layer: ...
    def head(self, rows: int, horizontal: int) -> Layer: ...
    def boundary(self, rows: int) -> int: ...
    def divides(self, horizontal: int) -> bool: ...
    def kind(self, number: int) -> int:
        """Layers of one kind do the same work."""
        ...


@dataclass(frozen=True)
class LayeredMLP:
    """An MLP: column, then row; the sum after every second layer, and back before it."""

    mlp: MLP

    @property
    def layers(self) -> int:
        return self.mlp.layers

    def kind(self, number: int) -> int:
        return number % 2

    def divides(self, horizontal: int) -> bool:
        return self.mlp.dim % horizontal == 0

    def layer(self, number: int, rows: int, horizontal: int) -> Layer:
        part = self.mlp.dim // horizontal
        k, n = (self.mlp.dim, part) if number % 2 == 0 else (part, self.mlp.dim)
        shared = horizontal > 1
        after = (Reduce(rows * n),) if shared and number % 2 else ()
        before = (Reduce(rows * k),) if shared and number % 2 == 0 else ()
        return Layer(
            (LayerMatmul(rows, k, n), *after, Pointwise(rows * n, 1)),
            (Pointwise(rows * n, 2), LayerMatmul(rows, n, k), *before),
            (LayerMatmul(k, rows, n),),
            (k * n,),
            2 * rows * n,
        )

    def head(self, rows: int, horizontal: int) -> Layer:
        return Layer((Pointwise(rows * self.mlp.dim, 1),) * 2, (), (), (), rows * self.mlp.dim)

    def boundary(self, rows: int) -> int:
        return rows * self.mlp.dim


@dataclass(frozen=True)
class GPT:
    """A decoder-only transformer: attention over ``heads``, a hidden layer of ``hidden``, tied embeddings.

    ``rows`` are sequences of ``length`` tokens.

    >>> GPT(layers=12, dim=768, heads=12).parameters
    123532032
    """

    layers: int
    dim: int
    heads: int
    hidden: int = 0
    vocab: int = 50257
    length: int = 1024

    def __post_init__(self) -> None:
        if not self.hidden:
            object.__setattr__(self, "hidden", 4 * self.dim)
        check_sizes(self)
        if self.dim % self.heads:
            raise ShapeError(
                f"{self.dim} does not divide among {self.heads} heads.",
                why="each head has the same width",
                fix=f"dim={self.heads * -(-self.dim // self.heads)}",
            )

    @property
    def parameters(self) -> int:
        """The number of weights in products."""
        return self.layers * (4 * self.dim**2 + 2 * self.dim * self.hidden) + self.vocab * self.dim

    def kind(self, number: int) -> int:
        return 0

    def divides(self, horizontal: int) -> bool:
        return self.heads % horizontal == 0 and self.hidden % horizontal == 0

    def layer(self, number: int, rows: int, horizontal: int) -> Layer:
        tokens, heads, width = rows * self.length, self.heads // horizontal, self.dim // self.heads
        part, hidden, dim = heads * width, self.hidden // horizontal, self.dim
        scores = rows * heads * self.length**2
        norm = Pointwise(tokens * dim, 2)
        reduce = (Reduce(tokens * dim),) if horizontal > 1 else ()
        attention = (
            LayerMatmul(self.length, width, self.length, rows * heads),
            Pointwise(scores, 3),
            LayerMatmul(self.length, self.length, width, rows * heads),
        )
        shapes = ((dim, 3 * part), (part, dim), (dim, hidden), (hidden, dim))
        products = tuple(LayerMatmul(tokens, k, n) for k, n in shapes)
        first, out, up, down = products
        forward = (norm, first, *attention, out, *reduce, norm, up, Pointwise(tokens * hidden, 1), down, *reduce, norm)
        back = tuple(LayerMatmul(p.m, p.n, p.k) for p in reversed(products))
        # Each product of activations has two gradients, both of which the layer before waits for.
        backward = (*back, *attention, *attention, Pointwise(tokens * hidden, 2), *reduce, *reduce, norm, norm, norm)
        weights = tuple(LayerMatmul(p.k, p.m, p.n) for p in reversed(products))
        kept = tokens * (4 * dim + 3 * part + part + 2 * hidden) + scores
        return Layer(forward, backward, weights, tuple(k * n for k, n in shapes), kept)

    def head(self, rows: int, horizontal: int) -> Layer:
        tokens = rows * self.length
        vocab = -(-self.vocab // horizontal)
        product = LayerMatmul(tokens, self.dim, vocab)
        return Layer(
            (product, Pointwise(tokens * vocab, 2)),
            (Pointwise(tokens * vocab, 2), LayerMatmul(tokens, vocab, self.dim)),
            (LayerMatmul(self.dim, tokens, vocab),),
            (self.dim * vocab,),
            tokens * (self.dim + vocab),
        )

    def boundary(self, rows: int) -> int:
        return rows * self.length * self.dim


def layered(model: MLP | Layered) -> Layered:
    """A model as layers."""
    if not isinstance(model, MLP) and not all(map(partial(hasattr, model), ("layers", "layer", "head", "boundary"))):
        raise ShapeError(
            f"{model!r} is not a model.",
            why="a search costs a model made of layers, or a training step that is traced",
            fix="dist.GPT(layers=12, dim=768, heads=12), or dist.traced(step, params, batch)",
        )
    return LayeredMLP(model) if isinstance(model, MLP) else model
