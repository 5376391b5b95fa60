"""A train step of 336M parameters and calls of a small function on the first GPU, beside the same source under jax.jit.

python benchmarks/bench_gpu.py [--repeats 7] [--json] [--small] [--dump FOLDER] [--check SECONDS] [--loops] [--offline]

Each row is printed when it is measured. ``--dump`` writes into a folder what XLA made of each step (kernels, bytes,
memory), and how long its kernels took. ``--check`` measures nothing: for so many seconds it runs the partitioner's
suite of ops, in random layouts of four and six devices stacked on the GPU, and train steps of models on eight.
``--small`` takes a small model of the same form, on whatever JAX has. ``--loops`` needs no GPU, either: what the loops
of both steps keep for their derivatives and read and write slice by slice, in that model, as the XLA of this machine
compiles them. ``--offline`` needs JAX's plugin for CUDA, and no GPU: the kernels that XLA makes of the large steps for
an H200, and their bytes; matmuls are cuBLAS's, since nothing can be tuned.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from bench_xla import Case, calls, measuring, steps
from gpu_hlo import parts, summary
from timing import Row, report, show_time

ROOT = pathlib.Path(__file__).resolve().parent.parent

LARGE = {"vocab": 32000, "dim": 1024, "layers": 24, "heads": 16, "kv_heads": 16, "hidden": 2816, "scan": True}
SMALL = {"vocab": 512, "dim": 128, "layers": 6, "heads": 4, "kv_heads": 4, "hidden": 352, "scan": True}
ROWS = {"batch": 8, "length": 513}
FEW_ROWS = {"batch": 4, "length": 65}


NOT_TUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
H200 = """
platform_name: "CUDA" device_description_str: "NVIDIA H200"
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 device_memory_size: 150000000000
}
dnn_version_info { major: 9 minor: 10 patch: 0 } runtime_version { major: 12 minor: 9 }
"""
STEP = 7  # every so many ops are checked at first, then those beside them


def cases(name: str, config: dict[str, Any], rows: dict[str, int], made: list[Case]) -> Iterator[Case]:
    """The steps, which are noted in ``made``, and the small calls."""
    for checkpoint in (True, False):
        both = steps({**config, "checkpoint": checkpoint}, rows, "dp", 1)
        made.append((f"{name} step, checkpoint={checkpoint}", "gpu", both[0], both[1]))
        yield made[-1]
    yield from calls()


def kernel_times(job: Callable[[], Any], runs: int = 3) -> Counter[str]:
    """Seconds of one run in each of the GPU's kernels, by their names; empty where JAX's profiler does not see them."""
    import jax

    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(runs):
                job()
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                if plane.name.startswith("/device:GPU"):
                    for line in plane.lines:
                        if line.name.startswith("Stream"):
                            for event in line.events:
                                found[event.name] += event.duration_ns * 1e-9 / runs
    return found


def dump(folder: pathlib.Path, texts: pathlib.Path, made: Sequence[Case]) -> None:
    """What XLA made of the steps, whole and in short, and the times of their kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    found = sorted(texts.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_mtime)
    for path in found:
        text, start = path.read_text(), path.name.removesuffix("after_optimizations.txt")
        if len(parts(text)) < 3 or not re.search(r"matmul|gemm| dot\(", text):  # not a step
            continue
        (folder / path.name).write_text(text)
        moved = sum(part.runs * part.moved for part in parts(text)) / 1e9
        runs = ", ".join(f"{part.runs} x {len(part.kernels)}" for part in parts(text))
        print(f"# {path.name}: {moved:.1f} GB, kernels {runs}", flush=True)
        used = [one.read_text()[:300] for one in texts.glob(f"{start}after_optimizations-memory-usage-report.txt")]
        lines += [path.name, *used, summary(text, 60), ""]
    for name, _, ours, theirs in made:
        for side, job in (("meshwright", ours), ("jax", theirs)):
            times = kernel_times(job)
            slow = [f"{1e3 * seconds:9.3f} ms  {kernel}" for kernel, seconds in times.most_common(60)]
            head = f"{name}, {side}: {1e3 * sum(times.values()):.1f} ms in {len(times)} kernels"
            lines += [head, *slow, ""]
            print("\n# ".join([f"# {head}", *(line[:110] for line in slow[:8])]), flush=True)
    (folder / "steps.txt").write_text("\n".join(lines) + "\n")


def checked(seconds: float) -> int:
    """Run what there is time for of the partitioner's suite on engine ``xla-stacked``, and unpartitioned on ``xla``."""
    import jax
    import numpy as np

    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    from tests.partition import test_every_op as suite
    from tests.partition.models import setting
    from tests.partition.partitioning import assert_equal, partitioned, tolerance_of

    import meshwright as mw
    from meshwright.core.trace import on_host
    from meshwright.engine.compile import compile_program
    from meshwright.engine.xla import emit_xla
    from meshwright.transform.stack import stack

    start, done, wrong = perf_counter(), Counter[str](), list[str]()

    def on_gpu(program: Any, arrays: Any, mesh: Any, ins: Any, outs: Any, what: str, tolerance: float = 2e-4) -> None:
        expected = compile_program(program)(*arrays)
        text = f"{what} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
        local = partitioned(program, mesh, ins, outs)
        codes = {"xla-stacked": emit_xla(stack(local.whole), False), "xla": emit_xla(program, False)}
        for engine, code in codes.items():
            found = [on_host(x, y.shape) for x, y in zip(code.function(*arrays), expected, strict=True)]
            assert_equal(found, expected, max(tolerance, tolerance_of(program)), f"{text} on {engine}")
            done[engine] += 1

    def tried(what: str, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            wrong.append(what)
            print(f"# differs: {what}: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)

    def steps_of(model: str, layout: str) -> None:
        one = setting(model, layout)
        losses = {}
        for engine in ("numpy", "xla-stacked"):
            step, params = mw.jit(one.module.train_step, static_argnames="config", engine=engine), one.placed
            losses[engine] = []
            for _ in range(5):
                value, params = step(params, one.split, config=one.config)
                losses[engine].append(float(value))
        np.testing.assert_allclose(losses["xla-stacked"], losses["numpy"], rtol=1e-4)
        done["train steps"] += 5

    suite.assert_same = on_gpu
    names = list(suite.MESHES)
    for op in [op for first in range(STEP) for op in suite.OPS[first::STEP]]:
        for index, sample in enumerate(op.samples()[:2]):
            if perf_counter() - start > seconds:
                break
            arrays, what = suite.drawn(op, sample, index), f"{op.name} {dict(sample.params)}"
            program = suite.program_of(op, sample, arrays)
            done["ops"] += index == 0
            mesh = names[index % len(names)]
            tried(what, lambda p=program, a=arrays, m=mesh, w=what: suite.in_random_layouts(p, a, m, 1, w))
    for model, layout in (("transformer", "tensor parallel"), ("moe", "fully sharded"), ("mlp", "tensor parallel")):
        tried(f"{model}, {layout}", lambda model=model, layout=layout: steps_of(model, layout))
    print(f"# checked on {jax.devices()[0]}: {dict(done)} of {len(suite.OPS)} ops; {len(wrong)} differ", flush=True)
    return 1 if wrong else 0


def compiled(config: dict[str, Any], rows: dict[str, int], device: Any = None) -> tuple[Any, Any]:
    """The step of both sides as XLA has optimized it, for a device that need not be there."""
    import jax
    from twins import load

    import meshwright as mw

    ours, theirs = load("transformer"), load("transformer", "jax")
    mine, yours = ours.Config(**config), theirs.Config(**config)
    where = device or jax.devices()[0]
    on = jax.sharding.SingleDeviceSharding(where)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on)
    shapes = jax.tree.map(shape, jax.eval_shape(lambda key: theirs.init(key, yours), jax.random.key(0)))
    tokens = shape(jax.ShapeDtypeStruct((rows["batch"], rows["length"]), "int32"))
    like = lambda x: mw.ShapeDtypeStruct(x.shape, str(x.dtype))
    step = mw.jit(lambda p, b: ours.train_step(p, b, mine)).lower(jax.tree.map(like, shapes), like(tokens)).compile()
    functions = mw.interop.jax.to_jax(step, [where]), lambda p, b: theirs.train_step(p, b, yours)
    options = None if device is None else NOT_TUNED
    mine, yours = (jax.jit(f).lower(shapes, tokens).compile(compiler_options=options) for f in functions)
    return mine, yours


def offline() -> None:
    """The kernels of both steps on an H200 that is not there."""
    from jax.experimental import topologies

    target = topologies.get_topology_desc("h200", "cuda", target_config=H200, topology="1x1x1")
    for checkpoint in (True, False):
        both = compiled({**LARGE, "checkpoint": checkpoint}, ROWS, target.devices[0])
        for name, found in zip(("meshwright", "jax"), both, strict=True):
            made = parts(found.as_text())
            runs = ", ".join(f"{part.runs} x {len(part.kernels)} kernels" for part in made)
            moved, room = sum(part.runs * part.moved for part in made), found.memory_analysis().temp_size_in_bytes
            print(f"checkpoint={checkpoint!s:5}  {name:10}  {moved / 1e9:6.1f} GB  {runs}; room {room / 1e9:.1f} GB")


def loops(text: str) -> list[dict[str, Any]]:
    """Of each loop: the arrays with a row per layer that it carries, their bytes, and its slices."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    found = []
    for carried, body in re.findall(r" = \((.*?)\) while\(.*?body=%?([\w.\-]+)", text):
        stacks = re.findall(rf"f32\[{SMALL['layers']},([\d,]+)\]", carried)
        whole = bodies[body] + "".join(bodies.get(name, "") for name in re.findall(r"calls=%?([\w.\-]+)", bodies[body]))
        size = 0
        for dims in stacks:
            count = SMALL["layers"] * 4
            for dim in dims.split(","):
                count *= int(dim)
            size += count
        reads, writes = (len(re.findall(rf" {op}\(", whole)) for op in ("dynamic-slice", "dynamic-update-slice"))
        found.append({"stacks": len(stacks), "bytes": size, "slices read": reads, "slices written": writes})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true", help="a small model, on whatever JAX has")
    parser.add_argument("--dump", type=pathlib.Path, help="a folder for what XLA made of the steps")
    parser.add_argument("--check", type=float, metavar="SECONDS", help="run the partitioner's suite instead")
    parser.add_argument("--loops", action="store_true", help="what loops keep and move, without a GPU")
    parser.add_argument("--offline", action="store_true", help="the kernels of the large steps, without a GPU")
    args = parser.parse_args()
    if args.dump:
        texts = pathlib.Path(tempfile.mkdtemp())
        flags = f"--xla_dump_to={texts} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*(bind|lambda|step).*"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    if args.check:  # matmuls in all digits of float32
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_triton_gemm=false"
    import jax

    if args.loops:
        for checkpoint in (True, False):
            both = compiled({**SMALL, "checkpoint": checkpoint}, FEW_ROWS)
            for name, step in zip(("meshwright", "jax"), both, strict=True):
                for which, found in zip(("forward", "backward"), loops(step.as_text()), strict=True):
                    shown = ", ".join(f"{key} {value:,}" for key, value in found.items())
                    print(f"checkpoint={checkpoint!s:5}  {name:10}  {which:8}  {shown}")
        return 0
    if args.offline:
        offline()
        return 0
    if jax.default_backend() != "gpu" and not args.small:
        print(f"not measured: JAX has no GPU here, but {jax.devices()[0]}; --small and --loops need none")
        return 0
    print(f"# jax {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    if args.check:
        return checked(args.check)
    made: list[Case] = []
    rows: list[Row] = []
    start = perf_counter()
    chosen = cases("small", SMALL, FEW_ROWS, made) if args.small else cases("336M", LARGE, ROWS, made)
    for one in measuring(chosen, args.repeats):
        rows.append(one)
        times = f"{show_time(one.ours_seconds)}, jax {show_time(one.theirs_seconds)}, ratio {one.ratio:.3f}"
        print(f"# {one.name}: {times}; at {perf_counter() - start:.0f} s", flush=True)
    for name, _, ours, theirs in made:
        print(f"# {name}: loss {float(ours()):.6f}, jax {float(theirs()[0]):.6f}", flush=True)
    if args.dump:
        dump(args.dump, texts, made)
    return report(rows, as_json=args.json, peer="jax", version=jax.__version__, device=str(jax.devices()[0]))


if __name__ == "__main__":
    sys.exit(main())
