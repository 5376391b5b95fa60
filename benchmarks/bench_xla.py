"""Train steps on engine `xla` beside the same source under jax.jit, and calls of a small function, on CPU devices.

python benchmarks/bench_xla.py [--repeats 7] [--json]

The CPU is made to be eight devices; ``bench_gpu.py`` takes a GPU.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from timing import Measured, Row, compare, report, row

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
DEVICES = 8
Case = tuple[str, str, Callable[[], Any], Callable[[], Any]]  # a name, which bar, and the jobs of both sides
NAMES = {"one": 1.02, "many": 1.05, "gpu": 1.0, "call": 1.1, "compile": 1.0}  # bars


def steps(config: dict[str, Any], rows: dict[str, int], specs: str, devices: int) -> tuple[Callable[[], Any], ...]:
    """The step of both sides on the same arrays, where they belong."""
    import jax
    import numpy as np
    from twins import load

    import meshwright as mw

    ours, theirs = load("transformer"), load("transformer", "jax")
    settings, other = ours.Config(**config), theirs.Config(**config)
    axis = ("data",)
    mesh = mw.make_mesh((devices,), axis)
    their_mesh = jax.make_mesh((devices,), axis, axis_types=(jax.sharding.AxisType.Auto,))

    def placed(package: Any, tree: Any, on: Any, kind: str) -> Any:
        def spec(x: Any) -> Any:
            spread = specs == "fsdp" or kind == "rows"
            dim = next((d for d, n in enumerate(x.shape) if n % devices == 0), None) if spread else None
            return package.P(*("data" if d == dim else None for d in range(x.ndim)))

        named = package.NamedSharding if package is mw else package.sharding.NamedSharding
        return package.tree.map(lambda x: package.device_put(x, named(on, spec(x))), tree)

    theirs_made = jax.jit(theirs.init, static_argnums=1)(jax.random.key(0), other)
    batch_made = theirs.make_batch(jax.random.key(1), other, **rows)
    params, batch = jax.tree.map(np.asarray, theirs_made), np.asarray(batch_made)
    params, batch = placed(mw, params, mesh, "params"), placed(mw, batch, mesh, "rows")
    jparams, jbatch = placed(jax, theirs_made, their_mesh, "params"), placed(jax, batch_made, their_mesh, "rows")
    keep = mw.tree.map(lambda x: x.sharding, params)
    jkeep = jax.tree.map(lambda x: x.sharding, jparams)
    mine = mw.jit(lambda p, b: ours.train_step(p, b, settings), engine="xla", out_shardings=(None, keep))
    yours = jax.jit(lambda p, b: theirs.train_step(p, b, other), out_shardings=(None, jkeep))

    def run_ours() -> Any:
        value, new = mine(params, batch)
        mw.tree.map(lambda x: x._data.block_until_ready(), new)
        return value

    def run_theirs() -> Any:
        return jax.block_until_ready(yours(jparams, jbatch))

    return run_ours, run_theirs


def compiled(job: Callable[[], Any]) -> float:
    start = perf_counter()
    job()
    return perf_counter() - start


def small_with_numpy() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A call on an array that is on the device and one of NumPy, as a batch is."""
    import jax
    import numpy as np

    import meshwright as mw

    f, g = mw.jit(lambda x, y: x + y, engine="xla"), jax.jit(lambda x, y: x + y)
    x, y, rows = f(mw.numpy.ones(8), mw.numpy.ones(8)), jax.numpy.ones(8), np.ones(8, np.float32)
    return lambda: f(x, rows), lambda: g(y, rows)


def small(ahead: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A call of a small function on two arrays, of either side; or (``ahead``) of one that was compiled before."""
    import jax

    import meshwright as mw

    f, g = mw.jit(lambda x, y: x + y, engine="xla"), jax.jit(lambda x, y: x + y)
    x, y = f(mw.numpy.ones(8), mw.numpy.ones(8)), jax.numpy.ones(8)
    if ahead:
        compiled, theirs = f.lower(x, x).compile(), g.lower(y, y).compile()
        return lambda: compiled(x, x), lambda: theirs(y, y)
    return lambda: f(x, x), lambda: g(y, y)


def calls() -> Iterator[Case]:
    yield "call of a small jitted function", "call", *small(ahead=False)
    yield "call of a small compiled function", "call", *small(ahead=True)
    yield "call of a small jitted function on a NumPy array", "call", *small_with_numpy()


def cases() -> Iterator[Case]:
    model = {"vocab": 1024, "dim": 256, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 688}
    yield "one device", "one", *steps(model, {"batch": 8, "length": 129}, "dp", 1)
    yield "one device, scanned", "one", *steps({**model, "scan": True}, {"batch": 8, "length": 129}, "dp", 1)
    yield "8 devices, rows", "many", *steps(model, {"batch": 16, "length": 65}, "dp", DEVICES)
    yield "8 devices, rows and parameters", "many", *steps(model, {"batch": 16, "length": 65}, "fsdp", DEVICES)
    yield from calls()


def small_step(devices: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A step with a derivative on a mesh, of either side, which loads what is loaded once for any such."""
    import jax

    import meshwright as mw

    def step(package: Any, mesh: Any, named: Any) -> Callable[[], Any]:
        np_ = package.numpy
        w = package.device_put(np_.ones((8, 8)), named(mesh, package.P()))
        x = package.device_put(np_.ones((8, 8)), named(mesh, package.P("data")))
        f = package.value_and_grad(lambda w, x: np_.mean(np_.tanh(x @ w)))
        jitted = mw.jit(f, engine="xla") if package is mw else jax.jit(f)
        return lambda: jitted(w, x)

    their_mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return step(mw, mw.make_mesh((devices,), ("data",)), mw.NamedSharding), step(jax, their_mesh, jax.NamedSharding)


def measured(cases: Iterable[Case], repeats: int) -> list[Row]:
    """A row for each case, and one for the first call of both sides, which compiles; what is loaded when anything is
    compiled for the first time has been, on one device and on a mesh."""
    return list(measuring(cases, repeats))


def measuring(cases: Iterable[Case], repeats: int) -> Iterator[Row]:
    """These rows, each as soon as it is measured."""
    for job in (*small(ahead=False), *small_step(1)):
        job()
    for name, kind, ours, theirs in cases:
        if kind == "call":
            ours(), theirs()
        else:
            yield row(f"{name}: first call", Measured(compiled(ours), compiled(theirs)), NAMES["compile"])
        yield row(name, compare(ours, theirs, repeats=repeats), NAMES[kind])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    rows = measured(cases(), args.repeats)
    return report(rows, as_json=args.json, peer="jax", version=jax.__version__, device=str(jax.devices()[0]))


if __name__ == "__main__":
    sys.exit(main())
