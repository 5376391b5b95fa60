"""Programs whose text was mutated, read, checked and, if they are accepted, run.

``python -m tests.engine.mutated_programs random COUNT SEED`` prints what became of COUNT mutations as JSON, and
``… numbers COUNT SEED`` what became of COUNT of those that put another number in one place of one param. It runs in a
process of its own, whose memory is limited.

What is mutated are programs of one equation for every op, with its samples and several dtypes; a program for each op
that has regions or works across devices; and random programs with their gradients.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.op import REGISTRY, Op
from meshwright.core.program import Eqn, Literal, Program, Var, operand_types
from meshwright.core.text.parse import parse_program
from meshwright.core.trace import trace
from meshwright.core.types import TensorType
from meshwright.engine.compile import compile_program
from meshwright.errors import CheckError, MeshwrightError, TextError
from meshwright.kernel import operation  # noqa: F401  (an op that is loaded late, as are the next two)
from meshwright.ops import placement  # noqa: F401
from meshwright.transform.regions import shard_map  # noqa: F401
from tests.transform.random_programs import EVERYTHING, write

MEMORY_BYTES = 1 << 30
LARGEST_INPUT = 1 << 20  # elements of an input that is still made to run a program on
SECONDS = 20  # of the CPU, for one mutation; loops may take longer, since a mutated condition may never be false

# What is mutated


def of_every_op() -> Iterator[str]:
    """A program for each sample of each op, at up to three dtypes."""
    for name, op in sorted(REGISTRY.items()):
        for number, sample in enumerate(op.samples()):
            plain = any(operand.dtype is None for operand in sample.operands)
            some = (op.dtypes[0], op.dtypes[-1], op.dtypes[number % len(op.dtypes)]) if plain else (None,)
            for dtype in dict.fromkeys(some):
                types = [TensorType(operand.shape, operand.dtype or dtype) for operand in sample.operands]
                try:
                    program = trace(partial(_results, op, sample.params), types)[0]
                except MeshwrightError:  # a param that does not go with this dtype
                    continue
                assert program.eqns[-1].op.name == name
                yield program.to_text(sources=False)


def _results(op: Op, params: Any, *xs: Any) -> Any:
    return _several(op(*xs, **params))


def _several(x: Any) -> Any:
    return x if isinstance(x, tuple) else (x,)


def of_regions() -> Iterator[Program]:
    """Loops, branches, custom rules, checkpoints, and code for each device with every collective."""
    x, n = mnp.ones((4, 3)), mnp.arange(4)

    @mw.custom_jvp
    def twice(x: Any) -> Any:
        return x * 2

    twice.defjvp(lambda primals, tangents: (twice(*primals), tangents[0] * 2))

    @mw.custom_vjp
    def thrice(x: Any) -> Any:
        return x * 3

    thrice.defvjp(lambda x: (x * 3, x), lambda x, ct: (ct * 3,))

    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, mnp.tanh(c[1]) + x.sum()), (0, x))

    def branch(x: Any, n: Any) -> Any:
        return lax.switch(n[0], [lambda x: x + 1, lambda x: mnp.sort(x), lambda x: x * n[1]], x)

    def scan(x: Any, n: Any) -> Any:
        return lax.scan(lambda c, row: (c + row * n[1], (c, row[::-1])), mnp.ones(3), x, reverse=True)

    for function, args in (
        (loop, (x,)),
        (branch, (x, n)),
        (scan, (x, n)),
        (mw.grad(lambda x: scan(x, n)[0].sum()), (x,)),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x), (x,)),
        (lambda x: twice(x) + thrice(x), (x,)),
        (lambda x: mw.jvp(twice, (x,), (x,)), (x,)),
        (mw.grad(lambda x: mw.checkpoint(lambda x: mnp.sin(mnp.sin(x)).sum())(x)), (x,)),
        (mw.vmap(lambda x: loop(x)[1]), (x,)),
    ):
        yield mw.make_program(function)(*args)
    mesh = mw.make_mesh((2, 2), ("i", "j"))

    def collectives(x: Any) -> Any:
        i = lax.axis_index("i")
        summed = lax.psum(x, "i") + lax.pmax(x, ("i", "j")) - lax.pmin(x, "j")
        gathered = lax.all_gather(x, "i", axis=0, tiled=True)
        scattered = lax.psum_scatter(gathered, "i", scatter_dimension=0, tiled=True)
        turned = lax.ppermute(x, "i", [(0, 1), (1, 0)]) + lax.all_to_all(x, "j", 0, 0, tiled=True)
        return summed + scattered + turned + i.astype(x.dtype)

    for spec in (mw.P(("i", "j")), mw.P("i", "j")):
        mapped = mw.shard_map(collectives, mesh=mesh, in_specs=spec, out_specs=mw.P(("i", "j")))
        yield mw.make_program(mapped)(mnp.ones((8, 4)))
        yield mw.make_program(mw.grad(lambda x: mapped(x).sum()))(mnp.ones((8, 4)))  # noqa: B023


# Ops that stand in few programs.
RARE = (
    "program(a: f32[3]{U:x}) {\n  b: f32[3] = finish_sum a axes=('x',)\n  return b\n}",
    "program(a: f32[3]{x}) {\n  b: f32[6] = all_gather_invariant a axes=('x',) dim=0 sizes=(2,)\n  return b\n}",
    "program(a: f32[3]{x}) {\n  b: f32[3] = pinvariant a axes=('x',) sizes=(2,)\n  return b\n}",
    "program(a: f32[6]) {\n  b: f32[3]{x} = pscatter a axes=('x',) dim=0 sizes=(2,)\n  return b\n}",
    "program(a: f32[3], b: f32[3]) {\n"
    "  c: f32[3] = custom_vjp_tangents a b backward=rule('f') residuals=1 types=(f32[3],)\n  return c\n}",
    "mesh(x=2, y=4)\nprogram(a: f32[8@x,4], b: f32[4,2]) {\n"
    "  c: f32[8@x,2] = dot_general a b batch=((), ()) contract=((1,), (0,)) dtype=None\n"
    "  d: f32[2@y,8@x] = dot_general b a batch=((), ()) contract=((0,), (1,)) dtype=None"
    " out_sharding=(P('y', 'x'), (('x', 2), ('y', 4)))\n"
    "  e: f32[8,2@x] = sharding_constraint c out_sharding=(P(None, 'x'), (('x', 2), ('y', 4))) spec=P(None, 'x')\n"
    "  f: f32[8@x] = reduce_sum c axes=(1,)\n  return c, d, e, f\n}",
    "program(a: f32[3]) {\n  b: f32[3] = pallas_call a kernel=rule('f') mesh=() out=(f32[3],) rows=()\n  return b\n}",
    *(
        f"program(a: f32[3]) {{\n  b: f32[3] = {name} a function=rule('f') out=(f32[3],) rows=() vectorized=False\n"
        "  return b\n}"
        for name in ("debug_callback", "io_callback", "pure_callback")
    ),
)


def of_random_programs(count: int) -> Iterator[Program]:
    """Random programs and their gradients."""
    for seed in range(count):
        drawn = write(random.Random(seed).randbytes(300), EVERYTHING, 1, 4)
        function, arrays = drawn.on(mw), [mnp.asarray(x) for x in drawn.arrays()]
        yield mw.make_program(function)(*arrays)
        if "while" not in drawn.source:
            floats = tuple(drawn.floats)

            def loss(*args: Any, function: Callable[..., Any] = function) -> Any:
                return sum(mnp.sum(x.astype(mnp.float32)) for x in function(*args))

            try:
                yield mw.make_program(mw.grad(loss, argnums=floats))(*arrays)
            except MeshwrightError:  # one that has no gradient
                continue


def texts(count: int) -> list[list[str]]:
    """All texts that are mutated, by kind: of one op, with regions and collectives, and at random."""

    def printed(programs: Iterator[Program]) -> list[str]:
        return [program.to_text(sources=False, constants=True) for program in programs]

    found = [[*of_every_op(), *RARE], printed(of_regions()), printed(of_random_programs(count))]
    for text in chain(*found):
        check(parse_program(text))
    return found


# Mutations

_TOKEN = re.compile(r"[A-Za-z_]\w*|-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|'[^'\n]*'|[^\S\n]+|\n|.")
_SIZES = ("0", "1", "2", "3", "4", "5", "7", "16", "64", "65", "1000", "70000", "4294967296", "1000000000000")
_VALUES = (
    *_SIZES, "-1", "-2", "-3", "-4294967297", "9" * 19, "9" * 90, "2.5", "-0.0", "nan", "inf", "1e400", "True", "False",
    "None", "f32", "i8", "bf16", "i8[2]", "~f32[]", "()", "(1,)", "(0, 1)", "(1, 0)", "(2, 3, 4)", "((0,), (1,))",
    "((), ())", "((0, 0), (1, 1))", "(-1,)", "(0.5,)", "'x'", "'clip'", "'max'", "('i',)", "('i', 'j')", "(('i', 2),)",
    "rule('f')", "P('i')", "P()", "(P('i'), P())", "program() { return }", "(1+2j)", "(True,)", "((1, 2), 3)",
)  # fmt: skip


class Mutation:
    """A text as lines of tokens, and ways to change it."""

    def __init__(self, text: str, draw: random.Random, names: list[str]) -> None:
        self.tokens = _TOKEN.findall(text)
        self.draw = draw
        self.ops = names

    def words(self) -> list[int]:
        return [n for n, token in enumerate(self.tokens) if token.strip()]

    def like(self, test: Callable[[str], Any]) -> list[int]:
        return [n for n, token in enumerate(self.tokens) if test(token)] or self.words()

    def one(self, among: list[int]) -> int:
        return self.draw.choice(among)

    def swap(self) -> None:
        a, b = self.one(self.words()), self.one(self.words())
        self.tokens[a], self.tokens[b] = self.tokens[b], self.tokens[a]

    def drop(self) -> None:
        del self.tokens[self.one(self.words())]

    def double(self) -> None:
        at = self.one(self.words())
        self.tokens[at:at] = [self.tokens[at], " "]

    def number(self) -> None:
        self.tokens[self.one(self.like(_is_number))] = self.draw.choice(_VALUES[:28])

    def near(self) -> None:
        at = self.one(self.like(str.isdigit))
        if self.tokens[at].isdigit():
            self.tokens[at] = str(max(0, int(self.tokens[at]) + self.draw.choice((-1, 1))))

    def size_everywhere(self) -> None:
        old, new = self.tokens[self.one(self.like(str.isdigit))], self.draw.choice(_SIZES)
        self.tokens = [new if token == old else token for token in self.tokens]

    def dtype(self) -> None:
        self.tokens[self.one(self.like(_is_dtype))] = self.draw.choice(list(dtypes.SHORT_NAMES))

    def dtype_everywhere(self) -> None:
        old, new = self.tokens[self.one(self.like(_is_dtype))], self.draw.choice(list(dtypes.SHORT_NAMES))
        self.tokens = [new if token == old else token for token in self.tokens]

    def op(self) -> None:
        self.tokens[self.one(self.like(REGISTRY.__contains__))] = self.draw.choice(self.ops)

    def operand(self) -> None:
        names = self.like(_is_name)
        self.tokens[self.one(names)] = self.tokens[self.one(names)]

    def operand_more(self) -> None:
        names = self.like(_is_name)
        at = self.one(names)
        self.tokens[at:at] = [self.tokens[self.one(names)], " "]

    def param(self) -> None:
        """Another value for a param, or a param more or less."""
        at = [n for n in range(len(self.tokens) - 1) if self.tokens[n + 1] == "=" and _is_word(self.tokens[n])]
        if not at:
            return
        start = self.one(at)
        end = self._after_value(start + 2)
        value = self.draw.choice(_VALUES)
        kind = self.draw.randrange(4)
        if kind == 0:
            del self.tokens[start:end]
        elif kind == 1:
            self.tokens[start:start] = [self.draw.choice(("lambda", "axes", "__debug__", "xp", "out")), "=", value, " "]
        else:
            self.tokens[start + 2 : end] = [value]

    def entries(self) -> list[int]:
        """Where numbers stand in the values of params."""
        found = []
        for n in range(len(self.tokens) - 1):
            if self.tokens[n + 1] == "=" and _is_word(self.tokens[n]) and self.tokens[n + 2] != "program":
                found += [m for m in range(n + 2, self._after_value(n + 2)) if _is_number(self.tokens[m])]
        return found

    def entry(self) -> None:
        """Another number in the value of a param."""
        among = self.entries()
        if among:
            self.tokens[self.one(among)] = str(self.draw.choice((-1, 0, 0, 1, 1, 2, 3, 4, 5, 6, 8, 70000, 10**12)))

    def entry_more(self) -> None:
        """An entry of a param more, or one less."""
        among = self.entries()
        if among and self.draw.random() < 0.5:
            at = self.one(among)
            self.tokens[at:at] = [self.tokens[at], ",", " "]
        elif among:
            at = self.one(among)
            self.tokens[at : at + 1 + (self.tokens[at + 1 : at + 2] == [","])] = []

    def _after_value(self, at: int) -> int:
        depth = 0
        while at < len(self.tokens):
            depth += (self.tokens[at] in "([{") - (self.tokens[at] in ")]}")
            at += 1
            if depth <= 0 and (at == len(self.tokens) or not self.tokens[at].strip()):
                break
        return at

    def line(self) -> None:
        lines = "".join(self.tokens).split("\n")
        at, to = self.draw.randrange(len(lines)), self.draw.randrange(len(lines))
        if self.draw.random() < 0.3:
            lines.insert(to, lines[at])
        else:
            lines.insert(to, lines.pop(at))
        self.tokens = _TOKEN.findall("\n".join(lines))

    def mutate(self) -> str:
        broken = (self.swap, self.drop, self.double, self.number, self.operand_more, self.line, self.dtype, self.param)
        likely = (self.near, self.size_everywhere, self.dtype_everywhere, self.op, self.operand, self.entry,
                  self.entry_more, self.entry)  # fmt: skip
        ways = broken if self.draw.random() < 0.3 else likely
        for _ in range(self.draw.choice((1, 1, 1, 2, 2, 4))):
            if self.words():
                self.draw.choice(ways)()
        return "".join(self.tokens)


def _is_number(token: str) -> bool:
    return token.lstrip("-")[:1].isdigit()


def _is_word(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _is_dtype(token: str) -> bool:
    return token in dtypes.SHORT_NAMES


def _is_name(token: str) -> bool:
    """Whether a token may be a variable: names of one or two letters."""
    return _is_word(token) and len(token) <= 2 and token not in REGISTRY


# What becomes of them


class Endless(BaseException):
    """A mutation that takes long; no ``except Exception`` stops it."""


def _stop(*args: object) -> None:
    raise Endless


def contents(t: TensorType, rng: np.random.Generator) -> Any:
    """An array of a type, with some special values."""
    if t.dtype == dtypes.BOOL:
        return rng.integers(0, 2, t.shape).astype(bool)
    if dtypes.is_integer(t.dtype):
        info = np.iinfo(t.dtype)
        return rng.choice(np.array([0, 1, 2, 3, 1, 2, info.min, info.max], t.dtype), t.shape)
    with np.errstate(all="ignore"):
        return np.asarray(rng.choice([0.5, -1.25, 2.0, 0.0, -0.0, np.inf, np.nan, 3.5, 1e30], t.shape)).astype(t.dtype)


def retyped(program: Program) -> Program:
    """The program with the types that its ops give, so that a mutation goes further than to a type that is not one."""
    types = {var: var.type for var in program.inputs} | {var: var.type for var, _ in program.constants}
    new: dict[Any, Var] = {var: var for var in types}
    eqns = []
    for eqn in program.eqns:
        inputs = tuple(a if isinstance(a, Literal) else new[a] for a in eqn.inputs)
        found = _several(eqn.op.type(*operand_types(eqn.op, inputs), **eqn.params))
        outputs = tuple(Var(t) for t in found)
        new.update(zip(eqn.outputs, outputs, strict=True))
        eqns.append(Eqn(eqn.op, inputs, eqn.params, outputs))
    outputs = tuple(a if isinstance(a, Literal) else new[a] for a in program.outputs)
    return Program(program.inputs, tuple(eqns), outputs, program.constants)


def run(text: str, rng: np.random.Generator, retype: bool) -> str:
    """What becomes of a text: how far it gets. Raises what is not one of our errors, and for results that are wrong."""
    try:
        program = parse_program(text)
    except TextError:
        return "not a program"
    if retype:
        with suppress(Exception):  # then the checker says what is wrong
            program = parse_program(retyped(program).to_text(constants=True))
    try:
        check(program)
    except CheckError:
        return "not well formed"
    if any(t.size > LARGEST_INPUT for t in program.in_types):
        return "too large to be given"
    inputs = [contents(t, rng) for t in program.in_types]
    before = [x.tobytes() for x in inputs]
    try:
        outputs = compile_program(program)(*inputs)
    except MeshwrightError as error:
        assert not isinstance(error, CheckError), "what was checked is not well formed"
        return f"cannot run: {error.what[:60]}"
    finally:
        assert [x.tobytes() for x in inputs] == before, "an input was written to"
    for x, t in zip(outputs, program.out_types, strict=True):
        assert (x.shape, x.dtype) == (t.shape, t.dtype), f"a result {x.dtype}{x.shape} for the type {t.short()}"
    return "ran"


def random_mutations(count: int, seed: int) -> Iterator[str]:
    """Programs mutated at random."""
    draw = random.Random(seed)
    kinds, ops = texts(count // 800 + 5), sorted(REGISTRY)
    for _ in range(count):
        (originals,) = draw.choices(kinds, (4, 2, 2))
        yield Mutation(draw.choice(originals), draw, ops).mutate()


NUMBERS = ("-1", "0", "1", "2", "3", "4", "7", "65", "1000000", "4294967296", "1000000000000", "9" * 19, "-" + "9" * 30)


def number_mutations(count: int, seed: int) -> Iterator[str]:
    """Programs of one op with another number in one place of one param, or one entry more or less there."""
    draw = random.Random(seed)
    places = []
    for text in of_every_op():
        mutation = Mutation(text, draw, [])
        places += [(text, at) for at in mutation.entries()]
    draw.shuffle(places)
    for text, at in places[: -(-count // (len(NUMBERS) + 2))]:
        before, number, after = (("".join(part)) for part in _cut(_TOKEN.findall(text), at))
        for other in (*NUMBERS, f"{number}, {number}", ""):
            yield f"{before}{other}{after}"


def _cut(tokens: list[str], at: int) -> tuple[list[str], list[str], list[str]]:
    return tokens[:at], tokens[at : at + 1], tokens[at + 1 :]


def main(kind: str, count: int, seed: int) -> None:
    mutations = {"random": random_mutations, "numbers": number_mutations}[kind](count, seed)
    first = next(mutations)  # the programs are traced before memory is limited
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES + used, MEMORY_BYTES + used))
    signal.signal(signal.SIGPROF, _stop)
    signal.signal(signal.SIGALRM, _stop)
    found: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest, number = 0.0, 0
    for number, text in enumerate(chain([first], mutations), 1):
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(20 * SECONDS)  # one that waits for something takes no time of the CPU
        try:
            found[run(text, np.random.default_rng(number), retype=kind == "numbers" or number % 2 == 1)] += 1
        except Endless:
            if "while" in text or "scan" in text:
                found["endless loop"] += 1
            else:
                failures.append({"number": number, "text": text, "error": f"took more than {SECONDS} s"})
        except BaseException as error:
            where = traceback.format_exc().splitlines()[-8:]
            failures.append({"number": number, "text": text, "error": repr(error)[:300], "where": where})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
        slowest = max(slowest, time.process_time() - start)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    facts = {"count": number, "slowest_s": slowest, "most_bytes": memory, "failures": failures}
    print(json.dumps({**facts, "found": dict(found.most_common())}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
