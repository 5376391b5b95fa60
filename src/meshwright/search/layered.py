"""Models as layers: the work of each layer on one device of a data × horizontal × pipeline grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from meshwright.errors import ShapeError
from meshwright.hardware.arguments import checked_fields, whole
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.unrolled import MLP


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


@checked_fields("a model", hidden=partial(whole, least=0))
@dataclass(frozen=True)
class GPT:
    """A decoder-only transformer: attention over ``heads``, a hidden layer of ``hidden``, tied embeddings.

    A batch has sequences of ``length`` tokens.

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
        if self.dim % self.heads:
            raise ShapeError(
                f"{self.dim} does not divide among {self.heads} heads.",
                why="each head has the same width",
                fix=f"dim={self.heads * -(-self.dim // self.heads)}",
            )

    @property
    def parameters(self) -> int:
        """The number of weights in matmuls."""
        return self.layers * (4 * self.dim**2 + 2 * self.dim * self.hidden) + self.vocab * self.dim

    @property
    def shape(self) -> TransformerShape:
        """The sizes as `simulate.transformer` has them."""
        head_dim = self.dim // self.heads
        return TransformerShape(
            self.layers, self.dim, self.hidden, self.heads, head_dim, self.vocab, gated=False, tied=True
        )


def layered(model: MLP | Layered) -> Layered:
    """A model as layers."""
    if not isinstance(model, MLP) and not all(map(partial(hasattr, model), ("layers", "layer", "head", "boundary"))):
        raise ShapeError(
            f"{model!r} is not a model.",
            why="a search costs a model made of layers, or a training step that is traced",
            fix="dist.GPT(layers=12, dim=768, heads=12), or dist.traced(step, params, batch)",
        )
    return LayeredMLP(model) if isinstance(model, MLP) else model
