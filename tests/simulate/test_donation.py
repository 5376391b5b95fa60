"""Memory of functions that are given arguments to write over: beside arrays that are counted one by one, and XLA."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.cli import main
from meshwright.core.factors import pointwise
from meshwright.core.program import Eqn, Literal, Program, Var
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError
from meshwright.simulate import memory, simulate
from meshwright.simulate.fusion import Kernel, fuse
from meshwright.transform.simplify import cse, dce
from tests.simulate.models import load, struct

A = 256 * 256 * 4


def square() -> mw.ShapeDtypeStruct:
    return struct(256, 256, dtype="float32")


def peaks(function: Any, *args: Any, **options: Any) -> set[int]:
    """What a compiled function says of its peak, in the three ways in which it does, in arrays of ``A`` bytes."""
    compiled = mw.jit(function, **options).lower(*args).compile()
    run = compiled.simulate("tpu v5e")
    assert str(run.memory) == str(compiled.memory())
    found = {compiled.memory().peak_bytes, run.peak_bytes_per_device, run.memory.peak_bytes}
    assert all(n % A < 64 for n in found)  # a loop counts
    return {n // A for n in found}


def test_a_compiled_function_says_what_it_needs_with_what_is_donated_to_it() -> None:
    assert peaks(lambda w: w * 2, square()) == {2}
    assert peaks(lambda w: w * 2, square(), donate_argnums=0) == {1}
    assert peaks(lambda w, g: (w - 0.1 * g, g @ g), square(), square(), donate_argnums=(0, 1)) == {3}
    assert peaks(lambda w, g: (w - 0.1 * g, g @ g), square(), square()) == {4}
    assert peaks(lambda w: (w @ w) @ (w @ w), square(), donate_argnums=0) == {2}
    assert peaks(lambda w: lax.fori_loop(0, 9, lambda _, w: w + 1, w), square(), donate_argnums=0) == {1}
    assert peaks(lambda w: lax.fori_loop(0, 9, lambda _, w: w @ w, w), square(), donate_argnums=0) == {2}


def test_an_argument_donated_by_name_or_passed_by_keyword_is_donated() -> None:
    def double(w: Any) -> Any:
        return w * 2

    for options in ({"donate_argnums": 0}, {"donate_argnames": "w"}):
        compiled = mw.jit(double, **options).lower(w=square()).compile()
        assert compiled.donated == (True,) and compiled.memory().peak_bytes == A
        w = mnp.arange(4.0) * 2
        mw.jit(double, **options)(w=w)
        with pytest.raises(MeshwrightError, match="was donated to a jitted function"):
            w.data  # noqa: B018


def test_devices_of_a_mesh_write_over_their_blocks() -> None:
    mesh = mw.make_mesh((4,), ("x",))
    over = mw.NamedSharding(mesh, P("x"))
    whole = mw.ShapeDtypeStruct((4 * 256, 256), "float32", sharding=over)
    assert peaks(lambda w: w * 2, whole, donate_argnums=0) == {1}
    assert peaks(lambda w: w * 2, whole) == {2}


def test_one_device_is_counted_whoever_wrote_the_shard_map() -> None:
    for mesh in (mw.make_mesh((4,), ("x",)), mw.AbstractMesh((4,), ("x",))):
        double = mw.shard_map(lambda w: w * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        assert peaks(double, struct(4 * 256, 256, dtype="float32")) == {2}


def test_a_donated_argument_that_nobody_reads_is_gone_before_the_first_kernel() -> None:
    found = memory(mw.make_program(lambda w, u: (w @ w) @ w)(square(), square()), donated=[False, True])
    assert (found.peak_bytes, found.curve) == (3 * A, (2 * A, 3 * A))
    assert "of them in donated arguments" in str(found) and found.alias_bytes == A


def test_the_commands_compile_a_jitted_function_with_what_is_donated_to_it_and_its_shardings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import meshwright as mw\n"
        "mesh = mw.make_mesh((4,), ('x',))\n"
        "over = mw.jit(lambda w: w * 2, donate_argnums=0)\n"
        "split = mw.jit(lambda w: w.sum(0), in_shardings=(mw.NamedSharding(mesh, mw.P('x')),))\n"
    )
    found = {}
    for name in ("over", "split"):
        assert main(["cost", f"{file}:{name}", "--args", "f32[256,256]", "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert (found["over"]["memory"]["peak_bytes_per_device"], found["over"]["memory"]["alias_bytes"]) == (A, A)
    assert (found["split"]["mesh"], found["split"]["memory"]["argument_bytes"]) == ({"x": 4}, A // 4)


def test_donated_says_something_of_every_input() -> None:
    program = mw.make_program(lambda x, y: x + y)(square(), square())
    for ask in (lambda: memory(program, donated=[True]), lambda: simulate(program, "h100", donated=[True])):
        with pytest.raises(MeshwrightError) as error:
            ask()
        assert error.value.what == "donated has 1 entries, and the program 2 inputs."
        assert error.value.why == "it says of each input whether its memory may be written over"
        assert error.value.fix == "donated=[True, False]"


# Brute force: an interpreter that runs kernel after kernel, drops every array that nobody will read, writes results
# over those it may, and adds up the memory of the arrays it has.


def owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Interpreter:
    def __init__(self, program: Program, fused: bool, donated: list[bool]) -> None:
        self.program, self.kernels = program, fuse(program, fused)
        self.viewing = {v: eqn for eqn in program.eqns for v in eqn.outputs if v in self.kernels.views}
        inputs = {v: np.zeros(v.type.shape, v.type.dtype) for v in program.inputs}
        self.arrays = {**inputs, **{v: np.array(value) for v, value in program.constants}}
        flags = dict(zip(program.inputs, donated, strict=True))
        self.pinned = {v for v in self.arrays if not flags.get(v, False)}
        self.given = {id(owner(array)): v.type for v, array in inputs.items() if v not in self.pinned}
        self.fused = fused

    def value(self, atom: Any, inside: dict[Var, Any]) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.value, atom.type.dtype)
        for found in (inside, self.arrays):
            if atom in found:
                return found[atom]
        eqn = self.viewing[atom]
        made = eqn.op.evaluate(NUMPY, *[self.value(a, inside) for a in eqn.inputs], **eqn.params)
        assert owner(made) is owner(self.value(eqn.inputs[0], inside))
        return made

    def needed(self, kernels: list[Kernel]) -> set[Var]:
        """What these kernels, or whoever called the program, will read."""
        atoms = [*self.program.outputs, *(a for kernel in kernels for eqn in kernel.eqns for a in eqn.inputs)]
        while any(a in self.viewing for a in atoms):
            atoms = [b for a in atoms for b in (self.viewing[a].inputs if a in self.viewing else [a])]
        return {*atoms, *self.pinned}

    def bytes(self) -> int:
        return sum({id(owner(array)): owner(array).nbytes for array in self.arrays.values()}.values())

    def peak(self) -> int:
        most, todo = self.bytes(), list(self.kernels.kernels)
        self.keep(self.needed(todo))
        while todo:
            kernel = todo.pop(0)
            inside: dict[Var, Any] = {}
            for eqn in kernel.eqns:
                found = eqn.op.evaluate(NUMPY, *[self.value(a, inside) for a in eqn.inputs], **eqn.params)
                arrays = [np.array(x, order="C") for x in (found if isinstance(found, tuple) else [found])]
                inside.update(zip(eqn.outputs, arrays, strict=True))
            later = self.needed(todo)
            free = [v for v in self.arrays if v not in later and v in kernel.reads] if in_place(kernel) else []
            for var in kernel.writes:
                old = next((v for v in free if self.same(v, var)), None)
                if old is None:
                    self.arrays[var] = inside[var]
                else:  # in the memory of an operand
                    free.remove(old)
                    flat = owner(self.arrays.pop(old)).reshape(-1).view(var.type.dtype)
                    self.arrays[var] = flat.reshape(var.type.shape)
            most = max(most, self.bytes())
            self.keep(later)
        return most

    def same(self, one: Var, other: Var) -> bool:
        if self.fused:
            return one.type.nbytes == other.type.nbytes
        return one.type.shape == other.type.shape and one.type.dtype == other.type.dtype

    def keep(self, wanted: set[Var]) -> None:
        self.arrays = {v: array for v, array in self.arrays.items() if v in wanted}


def in_place(kernel: Kernel) -> bool:
    eqn: Eqn = kernel.eqns[0]
    return not kernel.alone or eqn.op.factors is pointwise


def random_function(rng: random.Random) -> tuple[Any, int]:
    """A function of several square matrices, some of which it may not read, and how many these are."""
    count, steps, seed = rng.randrange(1, 5), rng.randrange(1, 12), rng.random()

    def function(*args: Any) -> Any:
        pick = random.Random(seed)
        values = list(args)
        for _ in range(steps):
            x, y = pick.choice(values), pick.choice(values)
            values.append(
                pick.choice(
                    [
                        lambda x=x: mnp.tanh(x),
                        lambda x=x, y=y: x + 2 * y,
                        lambda x=x, y=y: x @ y.T,
                        lambda x=x: mnp.exp(x) - mnp.sum(x),
                        lambda x=x: x.reshape(-1)[::-1].reshape(x.shape),
                        lambda x=x: (x * 2).T,
                        lambda x=x: mnp.concatenate([x[4:], x[:4]]),
                        lambda x=x: mnp.max(x, axis=1, keepdims=True) + x,
                        lambda x=x, y=y: mnp.where(x > y, x, 0.0),
                        lambda x=x: x.reshape(64).reshape(8, 8),
                    ]
                )()
            )
        return [pick.choice(values) for _ in range(pick.randrange(1, 4))]

    return function, count


def check_random(seed: int) -> None:
    rng = random.Random(seed)
    function, count = random_function(rng)
    donated = [rng.random() < 0.6 for _ in range(count)]
    program = cse(dce(mw.make_program(function)(*[struct(8, 8, dtype="float32")] * count)))
    for fused in (True, False):
        found = memory(program, fused=fused, donated=donated, flash=False)
        brute = Interpreter(program, fused, donated)
        assert found.peak_bytes == brute.peak(), (seed, fused)
        returned = {id(owner(brute.value(a, {}))): a.type for a in program.outputs if a.__class__ is Var}
        over = sum(t.nbytes for where, t in returned.items() if brute.given.get(where) is t)
        assert found.alias_bytes >= over, (seed, fused)
        assert 0 <= found.alias_bytes <= min(found.argument_bytes, found.output_bytes)
        assert found.reserved_bytes >= found.peak_bytes or found.alias_bytes


def test_random_functions_hold_what_an_interpreter_holds_that_counts_its_arrays() -> None:
    for seed in range(60):
        check_random(seed)


@pytest.mark.slow
def test_many_random_functions_hold_what_an_interpreter_holds_that_counts_its_arrays() -> None:
    for seed in range(60, 1500):
        check_random(seed)


# XLA: which results lie in donated arguments, and how much memory it reserves then.


STEPS = [(name, scan) for name in ("mlp", "moe", "transformer") for scan in (False, True)] + [("convnet", False)]


@pytest.mark.parametrize(
    ("name", "scan"), [pytest.param(*case, marks=[pytest.mark.slow] * (n > 0)) for n, case in enumerate(STEPS)]
)
def test_a_train_step_on_donated_parameters_beside_xla(name: str, scan: bool) -> None:
    found: dict[str, Any] = {}
    for library, key in (("jax", jax.random.key), ("meshwright", mw.random.key)):
        module = load(name, library)
        config = module.Config(scan=scan)
        params, batch = module.init(key(0), config), module.make_batch(key(1), config)
        jit = jax.jit if library == "jax" else mw.jit
        step = jit(lambda p, b, m=module, c=config: m.train_step(p, b, c), donate_argnums=0)
        found[library] = step.lower(params, batch).compile()
    theirs = found["jax"].memory_analysis()
    compiled = found["meshwright"]  # XLA keeps the scores of attention
    ours = memory(compiled.program, donated=compiled.donated, positions=True, flash=False)
    assert ours.alias_bytes == theirs.alias_size_in_bytes
    assert ours.alias_bytes == found["meshwright"].memory().alias_bytes
    used = theirs.argument_size_in_bytes + theirs.output_size_in_bytes + theirs.temp_size_in_bytes
    assert ours.reserved_bytes == pytest.approx(used - theirs.alias_size_in_bytes, rel=0.25)


FUNCTIONS: list[tuple[str, Any, int]] = [
    ("elementwise", lambda np_, lax_, w, g: w - 0.1 * g, 1),
    ("both", lambda np_, lax_, w, g: (w * 0.9, np_.tanh(g)), 2),
    ("a loop", lambda np_, lax_, w, g: lax_.fori_loop(0, 5, lambda _, w: w * g + 1, w), 1),
    ("a loop of products", lambda np_, lax_, w, g: lax_.fori_loop(0, 5, lambda _, w: w @ w, w), 1),
    ("a product after the last use", lambda np_, lax_, w, g: np_.sum(w) * (g @ g), 1),
    ("another shape", lambda np_, lax_, w, g: w[:4] + g[:4], 0),
]


@pytest.mark.parametrize(("function", "aliased"), [case[1:] for case in FUNCTIONS], ids=[case[0] for case in FUNCTIONS])
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_results_are_in_donated_arguments_where_xla_puts_them(function: Any, aliased: int) -> None:
    shape = (64, 64)
    ours = mw.jit(lambda w, g: function(mnp, lax, w, g), donate_argnums=(0, 1))
    theirs = jax.jit(lambda w, g: function(jax.numpy, jax.lax, w, g), donate_argnums=(0, 1), keep_unused=True)
    one = struct(*shape, dtype="float32")
    found = ours.lower(one, one).compile().memory()
    two = jax.ShapeDtypeStruct(shape, "float32")
    expected = theirs.lower(two, two).compile().memory_analysis()
    assert found.alias_bytes == expected.alias_size_in_bytes == aliased * 64 * 64 * 4
    used = expected.argument_size_in_bytes + expected.output_size_in_bytes + expected.temp_size_in_bytes
    # XLA counts a table of several results, and what it is called with.
    assert found.reserved_bytes == pytest.approx(used - expected.alias_size_in_bytes, abs=300)
