"""The NumPy engine: a program becomes one straight Python function.

    program(a: f32[8], b: f32[8]) {            def run(a0, a1):
      c: f32[8] = mul a b                          r0 = multiply(a0, a1)
      d: f32[8] = add c 1.0                        r0 = add(r0, c0, r0)
      e: f32[8] = tanh d                 ==>       r0 = tanh(r0, r0)
      return e                                     return (r0,)
    }

Each equation is one line. Values are dropped where they are last read, and a ufunc writes into a buffer that is no
longer needed where ``engine.memory`` can tell that nobody will miss it. No name in the text comes from a user.

On another namespace the same function is written without ``out`` arguments and without what only NumPy knows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import signature
from keyword import iskeyword
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.check import check
from meshwright.core.dtypes import BOOL, DType, is_float, is_inexact
from meshwright.core.limits import out_of_memory, refuse_large
from meshwright.core.program import Atom, Eqn, Missing, Program, Var, operand_types
from meshwright.core.types import TensorType
from meshwright.engine.chunks import LARGE_BYTES, reduce_from_nothing, repeated, reshaped, sum_rows
from meshwright.engine.memory import Lifetimes, ResultMemory, result_of
from meshwright.engine.namespace import ERROR_STATE, NUMPY, QUIET, SMALL_BYTES, NumpyNamespace, fill
from meshwright.errors import MeshwrightError
from meshwright.ops.rules import Ufunc
from meshwright.transform.simplify import dce
from meshwright.transform.stack import inline_calls

Function = Callable[..., tuple[Any, ...]]

_IDENTITIES = frozenset({"checkpoint_name", "offload", "reload", "stop_gradient"})


def compile_program(program: Program, namespace: Any = NUMPY, donated: Sequence[bool] = ()) -> Function:
    """A function from raw arrays, one per input, to the tuple of raw outputs.

    Inputs marked ``donated`` may be overwritten and are dropped at their last use: nobody else may hold such an array
    or a view of its memory. No other input is ever written to. A program that is not well formed is refused, and so is
    one whose results the memory of this machine cannot hold.

    >>> from meshwright.core.text.parse import parse_program
    >>> run = compile_program(parse_program("program(a: f32[2]) { b: f32[2] = mul a 2.0  return b }"))
    >>> run(np.ones(2, np.float32))
    (array([2., 2.], dtype=float32),)
    """
    return _CodeWriter(_without_calls(check(program)), namespace, donated).function(outermost=True)


class PythonCode(NamedTuple):
    """Python text for a program, and the function that it defines."""

    text: str
    function: Function


def emit(program: Program, donated: Sequence[bool] = ()) -> PythonCode:
    """What `compile_program` compiles for NumPy, of a program without calls that passed the checker. A large result
    that is the same several times over is a `Repeated`, which NumPy reads as an array.

    A program that is too large for the memory of this machine has a text, too; its function says so when it is called.

    >>> from meshwright.core.text.parse import parse_program
    >>> text, run = emit(parse_program("program(a: f32[2]) { b: f32[2] = mul a 2.0  return b }"))
    >>> text.splitlines()[0], run(np.ones(2, np.float32))
    ('def run(a0):', (array([2., 2.], dtype=float32),))
    """
    writer = _CodeWriter(program, NUMPY, donated, repeats=True)
    text = writer.text(outermost=True)
    try:
        return PythonCode(text, writer.built(text))
    except MeshwrightError:
        return PythonCode(text, lambda *data: compile_program(program, donated=donated)(*data))


def region_functions(namespace: Any) -> Callable[[Program], Function]:
    """What a namespace offers as ``function``: regions compiled once, for as long as their program lives."""
    compiled: dict[int, tuple[weakref.ref[Program], Function]] = {}

    def function(program: Program) -> Function:
        found = compiled.get(id(program))
        if found is not None:
            return found[1]
        key = id(program)
        made = _CodeWriter(_without_calls(program), namespace, ()).function(outermost=False)
        compiled[key] = weakref.ref(program, lambda _: compiled.pop(key, None)), made
        return made

    return function


NUMPY.function = region_functions(NUMPY)


def _without_calls(program: Program) -> Program:
    return dce(inline_calls(program))


def _writable(x: Any) -> Any:
    """A donated array if its memory is its own and can be written to, else None, which lets NumPy allocate."""
    return x if x.__class__ is np.ndarray and x.base is None and x.flags.writeable else None


class _CodeWriter:
    """Writes the text of one function, and holds the objects its names stand for."""

    def __init__(self, program: Program, namespace: Any, donated: Sequence[bool], repeats: bool = False) -> None:
        self.program = program  # without calls
        # The results that may be returned without being written out.
        self.unread = {*program.outputs} - {a for eqn in program.eqns for a in eqn.inputs} if repeats else set()
        self.namespace = namespace
        self.numpy = isinstance(namespace, NumpyNamespace)
        self.convert = None if self.numpy else getattr(namespace, "constant", None)
        self.bound: dict[str, Any] = {"xp": namespace}
        self.lines: list[str] = []
        self.names: dict[Var, str] = {}
        self.registers = 0
        self.free: list[str] = []  # names that hold nothing
        # Buffers that hold nothing of interest, by type, until the next equation that allocates: (name, out argument).
        self.idle: dict[TensorType, list[tuple[str, str]]] = {}
        self.ufuncs: dict[str, tuple[str, str | None]] = {}
        self.rules: dict[Callable[..., Any], str] = {}
        self.numbers: dict[tuple[str, DType], str] = {}
        inputs = self.program.inputs
        self.donated = tuple(donated) or (False,) * len(inputs)
        for n, var in enumerate(inputs):
            self.names[var] = f"a{n}"
        self.parameters = ", ".join(self.names[v] for v in inputs)
        self.permanent = {self.names[v] for v, given in zip(inputs, self.donated, strict=True) if not given}
        for var, data in self.program.constants:
            self.names[var] = self.constant(data)

    def text(self, outermost: bool) -> str:
        """Every equation written. The outermost function keeps NumPy from warning."""
        eqns = self.program.eqns
        lazy = self.lazy_broadcasts() if self.numpy else frozenset()
        self.results = results = [self.result(eqn, not lazy.isdisjoint(eqn.outputs)) for eqn in eqns]
        self.memory = Lifetimes(self.program, results, self.donated if self.numpy else ())
        for index, eqn in enumerate(eqns):
            ufunc = self.ufunc(eqn)
            if ufunc is not None:
                self.write_ufunc(index, eqn, *ufunc)
            elif not self.numpy:
                self.write_call(index, eqn)
            elif (reduction := _reduction(eqn)) is not None:
                self.write_reduction(index, eqn, reduction)
            elif eqn.op.name in _IDENTITIES or _same_dtype(eqn):
                self.write_alias(index, eqn)
            elif eqn.op.name == "broadcast_in_dim":
                self.write_broadcast(index, eqn, eqn.outputs[0] in lazy)
            elif eqn.op.name == "reshape" and eqn.outputs[0].type.nbytes >= LARGE_BYTES and eqn.inputs[0].type.ndim:
                function = repeated if eqn.outputs[0] in self.unread else reshaped
                self.bound[function.__name__] = function
                shape = self.bind("k", eqn.params["shape"])
                self.write(index, eqn, f"{function.__name__}({self.atom(eqn.inputs[0])}, {shape})")
            elif eqn.op.name == "reshape":
                self.write(index, eqn, f"{self.atom(eqn.inputs[0])}.reshape({self.bind('k', eqn.params['shape'])})")
            else:
                self.write_call(index, eqn)
        outputs = "".join(f"{self.output(a, outermost)}, " for a in self.program.outputs)
        body = [*self.lines, f"return ({outputs})"]
        if outermost and self.numpy:
            self.bound.update(enter=ERROR_STATE.set, leave=ERROR_STATE.reset, quiet=QUIET, full=out_of_memory)
            full = ["except MemoryError as error:", " full(error)"]
            body = ["token = enter(quiet)", "try:", *(f" {line}" for line in body), *full, "finally:", " leave(token)"]
        return f"def run({self.parameters}):\n " + "\n ".join(body)

    def function(self, outermost: bool) -> Function:
        """The text, compiled."""
        return self.built(self.text(outermost))

    def built(self, text: str) -> Function:
        """The function of a text, and those of the regions in it; an error if the memory cannot hold their results."""
        refuse_large(
            self.program.eqns, [one is ResultMemory.WHOLE or one is ResultMemory.SHARED for one in self.results]
        )
        if self.numpy:
            for eqn in self.program.eqns:
                for _, region in eqn.regions():
                    self.namespace.function(region)
        return _build(text, self.bound)

    # Names

    def bind(self, stem: str, value: Any) -> str:
        """A new global name for an object."""
        name = f"{stem}{len(self.bound)}"
        self.bound[name] = value
        return name

    def constant(self, data: Any) -> str:
        if isinstance(data, Missing):
            raise MeshwrightError(
                "A program with a constant that is only known by its digest cannot run.",
                why=f"the text it was read from leaves out the array {data.digest}",
                fix="print the program with its arrays: program.to_text(constants=True)",
            )
        name = self.bind("c", data if self.convert is None else self.convert(data))
        self.permanent.add(name)
        return name

    def atom(self, atom: Atom) -> str:
        if atom.__class__ is Var:
            return self.names[atom]
        # An array of rank 0 is the fastest operand a ufunc can have, and its dtype is exact.
        key = (repr(atom.value), atom.type.dtype)  # type: ignore[union-attr]
        found = self.numbers.get(key)
        if found is None:
            number = np.asarray(atom.value, atom.type.dtype)  # type: ignore[union-attr]
            number.flags.writeable = False
            found = self.numbers[key] = self.constant(number)
        return found

    def output(self, atom: Atom, outermost: bool) -> str:
        name = self.atom(atom)
        if not self.numpy or not outermost or atom.type.ndim or atom in self.memory.owned or name in self.permanent:
            return name
        self.bound["asarray"] = np.asarray
        return f"asarray({name})"

    # What is known of an equation

    def ufunc(self, eqn: Eqn) -> tuple[str, str | None] | None:
        """The name of the function that an elementwise equation calls, and how it takes ``out``, if it does."""
        known = _ufunc_name(eqn)
        if known is None:
            return None
        found = self.ufuncs.get(known)
        if found is None:
            function = getattr(self.namespace, known)
            out = _out_keyword(function) if self.numpy else None
            name = function.__name__ if isinstance(function, np.ufunc) else ""
            if getattr(np, name, None) is function:
                self.bound[name] = function
            else:
                name = self.bind("u", function)
            found = self.ufuncs[known] = (name, out)
        return found

    def takes_out(self, eqn: Eqn) -> bool:
        found = self.ufunc(eqn)
        return found is not None and found[1] is not None

    def result(self, eqn: Eqn, lazy: bool) -> ResultMemory:
        if not self.numpy or lazy:
            return ResultMemory.SHARED
        if self.takes_out(eqn) or _reduction(eqn) is not None:
            return ResultMemory.FRESH
        name = eqn.op.name
        if name == "reshape" or name in _IDENTITIES or _same_dtype(eqn):
            return ResultMemory.WHOLE
        if name == "broadcast_in_dim" and eqn.outputs[0].type.nbytes <= SMALL_BYTES:
            return ResultMemory.FRESH
        return result_of(eqn)

    def lazy_broadcasts(self) -> frozenset[Var]:
        """The broadcasts that are only read by ufuncs beside an array of full shape, which broadcast by themselves."""
        made = {eqn.outputs[0] for eqn in self.program.eqns if eqn.op.name == "broadcast_in_dim"}
        if not made:
            return frozenset()
        needed: set[Atom] = set(self.program.outputs)
        for eqn in self.program.eqns:
            name = _ufunc_name(eqn)
            broadcasts = name is not None and isinstance(getattr(self.namespace, name), np.ufunc)
            if not broadcasts or not any(
                a.type.shape == eqn.outputs[0].type.shape and a not in made for a in eqn.inputs
            ):
                needed.update(eqn.inputs)
        return frozenset(made - needed)

    # Lines

    def write(
        self, index: int, eqn: Eqn, expression: str, out: tuple[str, str] | None = None, unpack: bool = False
    ) -> None:
        """``outputs = expression``, after which the operands read for the last time are gone.

        ``out`` is the name whose buffer the expression writes to; it becomes the name of the result.
        """
        names, memory = self.names, self.memory
        idle: list[Var] = []
        dead: list[str] = []
        for atom in dict.fromkeys(eqn.inputs):
            if atom.__class__ is not Var or memory.last[atom] != index:
                continue
            name = names[atom]
            if name in self.permanent or (out is not None and name == out[0]):
                continue
            if memory.may_overwrite(atom, index):
                idle.append(atom)
            else:
                dead.append(name)
        targets = []
        for var in eqn.outputs:
            names[var] = target = out[0] if out is not None else dead.pop() if dead else self.register()
            targets.append(target)
        dead.extend(names[var] for var in eqn.outputs if var not in memory.last)
        self.lines.append(f"{', '.join(targets)}{',' if unpack else ''} = {expression}" if targets else expression)
        self.drop(dead)
        for var in idle:
            self.idle.setdefault(_buffer_type(var), []).append((names[var], self.out_argument(var)))

    def register(self) -> str:
        """A name that holds nothing."""
        if self.free:
            return self.free.pop()
        self.registers += 1
        return f"r{self.registers - 1}"

    def drop(self, names: Sequence[str]) -> None:
        if names:
            self.lines.append(f"del {', '.join(names)}")
            self.free.extend(names)

    def release_idle(self) -> None:
        """Give memory back before more is taken."""
        if self.idle:
            self.drop([name for buffers in self.idle.values() for name, _ in buffers])
            self.idle.clear()

    def write_ufunc(self, index: int, eqn: Eqn, name: str, keyword: str | None) -> None:
        call = f"{name}({', '.join([self.atom(a) for a in eqn.inputs])}"
        if keyword is None:
            self.release_idle()
            self.write(index, eqn, f"{call})")
        else:
            self.write_into_buffer(index, eqn, call, keyword)

    def write_reduction(self, index: int, eqn: Eqn, ufunc: np.ufunc) -> None:
        operand = eqn.inputs[0].type
        rows = eqn.params["axes"] == (0,) and operand.ndim > 1 and operand.nbytes >= LARGE_BYTES
        bare = eqn.params.get("bare", False)
        name = f"{'bare_' if bare else ''}{ufunc.__name__}_{'rows' if rows else 'reduce'}"
        self.bound[name] = sum_rows(ufunc, bare) if rows else reduce_from_nothing if bare else ufunc.reduce
        params = f"{self.bind('k', eqn.params['axes'])}, {self.bind('k', eqn.outputs[0].type.dtype)}"
        self.write_into_buffer(index, eqn, f"{name}({self.atom(eqn.inputs[0])}, {params}", "")

    def write_into_buffer(self, index: int, eqn: Eqn, call: str, keyword: str) -> None:
        """``call``, which still lacks where to write."""
        out = self.buffer(index, eqn)
        if out is not None:
            self.write(index, eqn, f"{call}, {keyword}{out[1]})", out)
            return
        self.release_idle()
        if eqn.outputs[0].type.ndim == 0:
            # Without an array to write to, NumPy returns a scalar, which is a slow operand later on.
            self.bound["empty"] = np.empty
            call += f", {keyword}empty((), {self.bind('k', eqn.outputs[0].type.dtype)})"
        self.write(index, eqn, f"{call})")

    def buffer(self, index: int, eqn: Eqn) -> tuple[str, str] | None:
        """Memory of the result's type to write to: an operand's, else an idle one."""
        wanted = _buffer_type(eqn.outputs[0])
        for atom in eqn.inputs:
            if atom.__class__ is Var and _buffer_type(atom) is wanted and self.memory.may_overwrite(atom, index):
                return self.names[atom], self.out_argument(atom)
        found = self.idle.get(wanted)
        return found.pop() if found else None

    def out_argument(self, var: Var) -> str:
        if var not in self.memory.donated:
            return self.names[var]
        self.bound["writable"] = _writable
        return f"writable({self.names[var]})"

    def write_alias(self, index: int, eqn: Eqn) -> None:
        """The result is the operand."""
        operand, (result,) = eqn.inputs[0], eqn.outputs
        name = self.atom(operand)
        if name in self.permanent or self.memory.last[operand] == index:  # type: ignore[index]
            self.names[result] = name
        else:
            self.write(index, eqn, name)

    def write_broadcast(self, index: int, eqn: Eqn, lazy: bool) -> None:
        operand, result = eqn.inputs[0].type, eqn.outputs[0].type
        dims = eqn.params["dims"]
        expression = self.atom(eqn.inputs[0])
        if dims != tuple(range(result.ndim - operand.ndim, result.ndim)):  # else NumPy adds the leading dims itself
            size = dict(zip(dims, operand.shape, strict=True))
            spread = tuple(size.get(dim, 1) for dim in range(result.ndim))
            expression += f".reshape({self.bind('k', spread)})"
        elif lazy:
            self.write_alias(index, eqn)
            return
        if not lazy:
            shape, dtype = self.bind("k", result.shape), self.bind("k", result.dtype)
            if result.nbytes <= SMALL_BYTES:
                self.release_idle()
                self.bound["fill"] = fill
                expression = f"fill({expression}, {shape}, {dtype})"
            else:
                self.bound["broadcast_to"] = np.broadcast_to
                expression = f"broadcast_to({expression}, {shape})"
        self.write(index, eqn, expression)

    def write_call(self, index: int, eqn: Eqn) -> None:
        """A call of the op's own rule, with its params as keywords."""
        self.release_idle()
        arguments = ["xp", *[self.atom(a) for a in eqn.inputs]]
        rule: Any = eqn.op.evaluate
        if all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in eqn.params):
            arguments += [f"{name}={self.bind('k', value)}" for name, value in eqn.params.items()]
        else:
            rule = partial(rule, **eqn.params)
        name = self.rules.get(rule)
        if name is None:
            name = self.rules[rule] = self.bind("e", rule)
        single = len(eqn.outputs) == 1
        unpack = single and isinstance(eqn.op.type(*operand_types(eqn.op, eqn.inputs), **eqn.params), tuple)
        self.write(index, eqn, f"{name}({', '.join(arguments)})", unpack=unpack)


def _buffer_type(var: Var) -> TensorType:
    """The type as far as memory goes."""
    t = var.type
    plain = not t.weak and t.sharding is None and not t.varying and not t.unreduced
    return t if plain else TensorType(t.shape, t.dtype)


def _ufunc_name(eqn: Eqn) -> str | None:
    """The namespace's elementwise function that an equation is one call of."""
    rule = eqn.op.evaluate
    if isinstance(rule, Ufunc):
        return rule.name
    name, dtype = eqn.op.name, eqn.inputs[0].type.dtype if eqn.inputs else BOOL
    if name == "div" and is_inexact(dtype):
        return "divide"
    if name == "integer_pow" and eqn.params["exponent"] == 2 and dtype.itemsize >= 4:
        return "square"
    return None


_REDUCTIONS = {"reduce_sum": np.add, "reduce_prod": np.multiply, "reduce_max": np.maximum, "reduce_min": np.minimum}


def _reduction(eqn: Eqn) -> np.ufunc | None:
    """The ufunc whose ``reduce`` an equation is one call of; narrow floats and empty dims need the op's own rule."""
    ufunc = _REDUCTIONS.get(eqn.op.name)
    if ufunc is None or not eqn.params["axes"]:
        return None
    operand = eqn.inputs[0].type
    return None if operand.size == 0 or (is_float(operand.dtype) and operand.dtype.itemsize < 4) else ufunc


@lru_cache(maxsize=256)
def _out_keyword(function: Any) -> str | None:
    """How an elementwise function is told where to write: ``""`` by position, ``"out="``, or None if it cannot be."""
    if isinstance(function, np.ufunc):
        if function.signature is not None or function.nout != 1:
            return None
        return "out=" if function in (np.maximum, np.minimum) else ""  # which warn about three positional arguments
    try:
        return "out=" if "out" in signature(function).parameters else None
    except (TypeError, ValueError):
        return None


def _same_dtype(eqn: Eqn) -> bool:
    return eqn.op.name == "convert" and eqn.inputs[0].type.dtype == eqn.params["dtype"]


def _build(text: str, names: dict[str, Any]) -> Function:
    """The function that ``text`` defines, with ``names`` as its globals."""
    module = compile(text, "<meshwright program>", "exec")
    (code,) = [item for item in module.co_consts if isinstance(item, CodeType)]
    return FunctionType(code, names)
