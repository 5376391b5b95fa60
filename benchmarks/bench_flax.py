"""A training loop of flax and optax, under jax.jit and with that one word changed to mw.interop.jax.jit.

python benchmarks/bench_flax.py [--steps 10] [--repeats 5] [--json]

Losses must be equal; bytes are those that all devices receive in a step. It needs flax and optax (`make flax`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

DEVICES = 8
BAR = 1.05
SPLIT = ("query", "key", "value", "Dense_1")  # layers whose results are split over "model": heads and hidden units
LEADS_BACK = ("out", "Dense_0")  # layers whose operands are


def model(vocab: int, width: int, layers: int) -> Any:
    """A small decoder, as one writes it in flax."""
    import flax.linen as nn
    import jax.numpy as jnp

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + nn.MultiHeadDotProductAttention(num_heads=8)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(vocab, width)(tokens)
            for n in range(layers):
                x = Block(name=f"block{n}")(x)
            return nn.Dense(vocab, name="logits")(nn.LayerNorm()(x))

    return Decoder()


def spec(path: Any, x: Any) -> tuple[str | None, ...]:
    """How a weight is split, by the layer it is in."""
    names = [str(getattr(step, "key", "")) for step in path]
    if any(name in LEADS_BACK for name in names):
        return ("model",) if names[-1] == "kernel" else ()
    if any(name in SPLIT for name in names):
        return (None, "model") if names[-1] == "kernel" else ("model",)
    return ()


def placed(on: Any, tokens: Any) -> tuple[Any, Any]:
    """The state of the training and the batch, on a mesh."""
    import jax
    import optax
    from flax.training.train_state import TrainState

    net = model(vocab=512, width=128, layers=2)
    params = net.init(jax.random.key(0), tokens[:, :-1])
    params = jax.tree_util.tree_map_with_path(lambda path, x: jax.device_put(x, on(*spec(path, x))), params)
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(3e-3))
    is_placed = lambda x: isinstance(getattr(x, "sharding", None), jax.sharding.NamedSharding)
    return jax.tree.map(lambda x: x if is_placed(x) else jax.device_put(x, on()), state), jax.device_put(
        tokens, on("data")
    )


def train_step(state: Any, tokens: Any) -> tuple[Any, Any]:
    import jax
    import optax

    def loss(params: Any) -> Any:
        logits = state.apply_fn(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, gradient = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradient), value


def losses(step: Callable[..., Any], state: Any, tokens: Any, count: int) -> Iterator[float]:
    for _ in range(count):
        state, value = step(state, tokens)
        yield float(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if find_spec("flax") is None or find_spec("optax") is None:
        print("flax and optax are not installed: make flax", file=sys.stderr)
        return 0
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import flax
    import jax
    import numpy as np
    from hlo_bytes import moved_by_kind
    from timing import compare, report, row

    import meshwright as mw

    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    state, tokens = placed(on, np.random.default_rng(0).integers(0, 512, (16, 65)))
    keep = jax.tree.map(lambda x: x.sharding, state), on()
    theirs = jax.jit(train_step, out_shardings=keep)
    ours = mw.interop.jax.jit(train_step, out_shardings=keep)
    found, expected = (list(losses(step, state, tokens, args.steps)) for step in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    listed = ours.lower(state, tokens).compile().collectives
    moved = sum(c.total_bytes * c.times for c in listed)
    of_jax = moved_by_kind(theirs.lower(state, tokens).compile().as_text(), DEVICES)
    by_xla = sum(nbytes for nbytes, _ in of_jax.values())
    if not args.json:
        apart = np.ptp([found, expected], axis=0).max()
        print(f"losses of {args.steps} steps: {found[0]:.4f} to {found[-1]:.4f}, at most {apart:.0e} apart")
        print(f"bytes that all devices receive in a step: {moved:,}, under jax.jit {by_xla:,} ({moved / by_xla:.2f})")
        here: dict[str, tuple[int, int]] = {}
        for c in listed:
            nbytes, count = here.get(c.kind.replace("_", "-"), (0, 0))
            here[c.kind.replace("_", "-")] = nbytes + c.total_bytes * c.times, count + c.times
        for word, found_there in (("jax.jit", of_jax), ("mw.interop.jax.jit", here)):
            for kind, (nbytes, count) in sorted(found_there.items()):
                print(f"  {word:<20} {kind:<16} {count:>3} of {nbytes:>11,} bytes")
    jobs = [lambda step=step: jax.block_until_ready(step(state, tokens)) for step in (ours, theirs)]
    rows = [row("step of flax and optax", compare(*jobs, repeats=args.repeats), BAR)]
    facts = {"bytes": moved, "bytes_under_jax": by_xla, "flax": flax.__version__}
    return report(rows, as_json=args.json, peer="jax", version=jax.__version__, **facts)


if __name__ == "__main__":
    sys.exit(main())
