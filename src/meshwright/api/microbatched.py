"""``microbatched``: a step that takes its batch in parts, one after the other, and sums what they give.

Parts of a batch one after the other are as parts on several devices: the step is partitioned over a mesh of one axis
along which the batch is split. Where devices would sum what each of them has, the parts of the batch are summed:

    devices: y = psum(f(params, rows))        parts: y = scan(sum + f(params, rows))
             update(params, y)                       update(params, y)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from meshwright.api.control import scan
from meshwright.api.row_order import BetweenParts, rows_in_any_order
from meshwright.arrays.tracing import check_function, leaf_type, trace_flat
from meshwright.compile.placement import Placement
from meshwright.compile.stages import PARTITION, SIMPLIFY, Compilation, run_stages
from meshwright.core import tree
from meshwright.core.dtypes import INT32
from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import Op, Value, fusion_of
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import Array, run
from meshwright.core.trace import read as read_atom
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops.basic import add, broadcast_in_dim, move_dim, reshape, scalar_like, zeros
from meshwright.ops.choice import eq
from meshwright.ops.collective import axis_index, pbroadcast, pinvariant, pmax, pmin, pscatter, psum
from meshwright.ops.indexing import dynamic_slice
from meshwright.partition.cost import Planning
from meshwright.partition.layouts import layout, replicated
from meshwright.partition.partition import LocalProgram, partition
from meshwright.sharding.mesh import Mesh
from meshwright.transform.regions.region import region
from meshwright.transform.simplify import dce

AXIS = "microbatch"
BETWEEN = BetweenParts((pbroadcast, pinvariant), pscatter, {psum: "sum", pmax: "max", pmin: "min"})


def microbatched(f: Callable[..., Any], microbatches: int, *, batch_args: int | Sequence[int]) -> Callable[..., Any]:
    """A step that gives what ``f`` gives, but takes its batch in parts, one after the other.

    ``batch_args`` are the positions of the arguments whose first dim is the batch. Each of ``microbatches`` parts of
    it is every so many-th row, or consecutive rows where their order counts; what ``f`` sums over the batch (losses,
    gradients) is summed over the parts, in a scan, and what follows from these sums (an update of parameters) is done
    once. So memory holds the activations of one part at a time. What rows need of the whole batch (how many of a mask
    are set) is summed before, if that takes no products; a step that needs more of it at once, as a normalization of
    activations over the batch does, is refused.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> def step(w, x):
    ...     loss, gradient = mw.value_and_grad(lambda w: mnp.mean((x @ w) ** 2))(w)
    ...     return loss, w - 0.1 * gradient
    >>> w, x = mnp.ones((2, 2)), mnp.arange(16.0).reshape(8, 2)
    >>> step(w, x)[1].tolist() == mw.microbatched(step, 4, batch_args=1)(w, x)[1].tolist()
    True
    """
    check_function(f, "microbatched", "mw.microbatched(step, 4, batch_args=1)")
    count = _checked_count(microbatches)
    known: dict[Any, tuple[Program, tree.TreeDef]] = {}

    @wraps(f)
    def step(*args: Any) -> Any:
        leaves, in_tree = tree.flatten((args, {}))
        types = tuple(leaf_type(x) for x in leaves)
        if (in_tree, types) not in known:
            numbers = checked_arguments(batch_args, len(args), getattr(f, "__name__", "the step"))
            batch = [n for n, arg in enumerate(_argument_of(args)) if arg in numbers and types[n].ndim]
            traced = trace_flat(f, in_tree, types)
            done = run_stages(SIMPLIFY, Compilation(traced.closed, traced.out_tree))
            known[in_tree, types] = in_parts(done.program, traced.out_tree, batch, count), traced.out_tree
        program, out_tree = known[in_tree, types]
        return tree.unflatten(out_tree, run(program, leaves))

    return step


def _checked_count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ShapeError(
            f"The number of microbatches is {count!r}.",
            where=here(),
            why="it is a number from 1 on",
            fix="microbatches=4",
        )
    return int(count)


def _argument_of(args: Sequence[Any]) -> list[int]:
    """The argument that each leaf is of."""
    return [n for n, arg in enumerate(args) for _ in tree.leaves(arg)]


def checked_arguments(given: Any, count: int, name: str) -> Collection[int]:
    """Positions of arguments, of which there are so many; one number is one of them."""
    numbers: Collection[Any] = given if isinstance(given, tuple | list | set | range) else (given,)
    for n in numbers:
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < count:
            raise ShapeError(
                f"There is no argument {n!r}.",
                where=here(),
                why=f"batch_args are positions of the {count} arguments of {name}",
                fix=f"batch_args={count - 1}",
            )
    return numbers


def in_parts(program: Program, out_tree: tree.TreeDef, batch: Collection[int], count: int) -> Program:
    """A program whose inputs with these numbers come in ``count`` parts of their first dim, one after the other."""
    for n in sorted(batch):
        rows = program.in_types[n].shape[0]
        if rows % count:
            fits = next(m for m in range(min(count, rows), 0, -1) if rows % m == 0)
            raise ShapeError(
                f"A batch of {rows} does not come in {count} microbatches.",
                where=here(),
                why=f"{count} equal parts of its rows are needed",
                fix=f"microbatches={fits}",
            )
    if count == 1:
        return program
    return _Parts(_on_devices(program, out_tree, batch, count), count).program


def _on_devices(program: Program, out_tree: tree.TreeDef, batch: Collection[int], count: int) -> LocalProgram:
    """The program of one of ``count`` devices that each have a part of the batch, and all else whole."""
    mesh = Mesh(np.arange(count), (AXIS,))
    given = [
        layout(mesh, (mesh.axes, *[()] * (t.ndim - 1))) if n in batch else replicated(mesh, t.ndim)
        for n, t in enumerate(program.in_types)
    ]
    results = tree.unflatten(out_tree, [None] * out_tree.num_leaves)
    placement = Placement(mesh, tuple(s.to_named() for s in given), results, groups=(0,) * len(given))
    laid = run_stages(PARTITION[:2], Compilation(program, out_tree, placement=placement))
    assert laid.layouts is not None
    wanted, how = laid.layouts.propagated.shardings, Planning(typed=True)
    return partition(laid.program, mesh, given, [None] * len(program.outputs), wanted, how)


class _Parts:
    """The program of one of several devices as that of parts one after the other.

    What does not depend on the batch is done before (but for what is made of numbers alone, which is made wherever it
    is read), what follows from sums after. Where parts themselves need a sum over the batch (a loss that is divided by
    how many of a mask are set), that sum is taken in a pass of its own before, if no product is needed for it. A part
    is every ``count``-th row, so that rows that devices have in parts are so in each microbatch, too; where a step asks
    for the places of rows, or works on several rows together, it is consecutive rows.
    """

    def __init__(self, local: LocalProgram, count: int) -> None:
        self.count, self.local = count, local
        self.whole = program = _sums_outside(local.program)
        self.numbers: list[Eqn] = []
        self.before: list[Eqn] = []
        self.within: list[Eqn] = []
        self.placed: list[Eqn] = []  # what depends on which part it is
        self.after: list[Eqn] = []
        self.passes: list[list[Eqn]] = []  # sums and extremes that parts need, by the pass in which they are taken
        self.sort()
        asked = any(not _asks_for_first(e, program) for e in self.placed if e.op is axis_index)
        batch = [AXIS in v.type.varying for v in program.inputs]
        joined = [AXIS in a.type.varying for a in program.outputs]
        self.consecutive = asked or not rows_in_any_order(program, batch, joined, BETWEEN)

    def sort(self) -> None:
        """Say of each equation when it is done."""
        free: set[Atom] = {var for var, _ in self.whole.constants}
        late: set[Atom] = set()  # what follows from a sum
        for eqn in self.whole.eqns:
            of_parts = any(AXIS in v.type.varying for v in eqn.outputs)
            if of_parts:
                _check_apart(eqn)
            if eqn.op in BETWEEN.combined:
                late.update(eqn.outputs)
            elif eqn.op in (axis_index, pscatter):
                self.placed.append(eqn)
            elif eqn.op.collective is not None:
                raise _not_in_parts(eqn)
            elif of_parts:
                self.within.append(eqn)
            elif any(a in late for a in eqn.inputs):
                self.after.append(eqn)
                late.update(eqn.outputs)
            elif all(isinstance(a, Literal) or a in free for a in eqn.inputs) and not eqn.op.effects:
                self.numbers.append(eqn)
                free.update(eqn.outputs)
            else:
                self.before.append(eqn)
        self.sort_passes()

    def sort_passes(self) -> None:
        """Say which sums over the batch its parts need, and in which pass over the batch each is taken."""
        number: dict[Atom, int] = {}  # of the first pass that has a value
        for eqn in self.whole.eqns:
            at = max((number.get(a, 0) for a in eqn.inputs), default=0)
            number.update(dict.fromkeys(eqn.outputs, at + (eqn.op in BETWEEN.combined)))
        early = set[Atom]()  # what parts need that follows from sums
        needed = list[Eqn]()
        for eqn in reversed(self.whole.eqns):
            is_needed = any(v in early for v in eqn.outputs)
            if eqn.op in BETWEEN.combined:
                if is_needed:
                    needed.append(eqn)
            elif is_needed or any(AXIS in v.type.varying for v in eqn.outputs):
                early.update(a for a in eqn.inputs if number.get(a) and AXIS not in a.type.varying)
        self.passes = [[] for _ in range(max((number[eqn.outputs[0]] for eqn in needed), default=0))]
        for eqn in reversed(needed):
            self.passes[number[eqn.outputs[0]] - 1].append(eqn)
            of_rows = self.phase(self.within, eqn.inputs).program.eqns
            if any(fusion_of(e) is Fusion.CONTRACTION or e.regions() for e in of_rows):
                raise _not_in_parts(eqn)

    @property
    def program(self) -> Program:
        """The program of the whole batch."""
        types = []
        for t in self.whole.in_types:
            whole = t.with_(shape=(t.shape[0] * self.count, *t.shape[1:])) if AXIS in t.varying else t
            types.append(_invariant(whole))
        return region(self.run, types)

    def run(self, *values: Value) -> list[Value]:
        """The step on whole arrays."""
        known: dict[Atom, Value] = dict(zip(self.whole.inputs, values, strict=True))
        known.update((var, Array(data, _invariant(var.type))) for var, data in self.whole.constants)
        rows = {v: self.split(known.pop(v), 0) for v in self.whole.inputs if AXIS in v.type.varying}
        outputs = list(dict.fromkeys(a for a in self.whole.outputs if isinstance(a, Var)))
        joined = [v for v in outputs if AXIS in v.type.varying]
        early = {eqn for taken in self.passes for eqn in taken}
        last = [eqn for eqn in self.whole.eqns if eqn.op in BETWEEN.combined and eqn not in early]
        passes = [_FirstPass(taken, self.phase(self.within, [eqn.inputs[0] for eqn in taken])) for taken in self.passes]
        of_last = [*(eqn.inputs[0] for eqn in last), *joined]
        passes.append(_FirstPass(last, self.phase(self.within, of_last, effects=True)))
        of_after = [v for v in outputs if v not in joined]
        after = [self.phase(self.after, list(self.read_by(one, self.after))) for one in passes[1:]]
        after.append(self.phase(self.after, of_after, effects=True))
        before = [*self.before, *self.numbers]
        read = [v for one in passes for v in self.read_by(one, before)]
        made = {v for eqn in before for v in eqn.outputs}
        read += [v for one in after for v in one.inputs if v in made]
        self.phase(self.before, list(dict.fromkeys(read)), effects=True).run(known)
        for one, then in zip(passes, after, strict=True):
            stacked = self.run_pass(one, rows, joined if one is passes[-1] else [], known)
            then.run(known)
        dims = dict(zip(self.whole.outputs, self.local.out_shardings, strict=True))
        for v in joined:
            known[v] = self.join(stacked[v], next(d for d, dim in enumerate(dims[v].dims) if dim.axes))
        return [read_atom(known, a) for a in self.whole.outputs]

    def read_by(self, one: _FirstPass, made: Sequence[Eqn]) -> dict[Var, None]:
        """What a pass reads of what some equations make."""
        those = {v for eqn in made for v in eqn.outputs}
        inputs = dict.fromkeys(one.phase.inputs)
        rows = [eqn.inputs[0] for eqn in self.placed if eqn.op is pscatter and eqn.outputs[0] in inputs]
        return dict.fromkeys(v for v in (*inputs, *rows) if isinstance(v, Var) and v in those)

    def run_pass(
        self, one: _FirstPass, rows: Mapping[Var, Value], joined: Sequence[Var], known: dict[Atom, Value]
    ) -> dict[Atom, Value]:
        """The sums and extremes of a pass over the parts of the batch, as known values; and values of the parts."""
        sums = {eqn.outputs[0]: eqn.inputs[0] for eqn in one.taken if eqn.op is psum}
        extremes = [eqn for eqn in one.taken if eqn.op is not psum]
        stacked = list(dict.fromkeys([*joined, *(eqn.inputs[0] for eqn in extremes)]))
        placed = [eqn for eqn in self.placed if eqn.outputs[0] in {*one.phase.inputs, *stacked, *sums.values()}]
        read = {v: x for v, x in rows.items() if v in {*one.phase.inputs, *stacked, *sums.values()}}

        def part(carry: Any, x: Any) -> Any:
            number, totals = carry
            mine: dict[Atom, Value] = {**known, **dict(zip(read, x, strict=True))}
            for eqn in placed:
                mine[eqn.outputs[0]] = number if eqn.op is axis_index else self.row(mine, eqn, number)
            one.phase.run(mine)
            totals = [add(total, mine[a]) for total, a in zip(totals, sums.values(), strict=True)]
            return (add(number, scalar_like(number, 1)), totals), [mine[v] for v in stacked]

        start = [zeros(_invariant(a.type)) for a in sums.values()]
        first = zeros(TensorType((), INT32))
        (_, totals), parts = scan(part, (first, start), list(read.values()), length=self.count)
        known.update(zip(sums, totals, strict=True))
        of_parts: dict[Atom, Value] = dict(zip(stacked, parts, strict=True))
        for eqn in extremes:
            assert eqn.op.stack is not None
            known[eqn.outputs[0]] = eqn.op.stack(AXIS, self.count, of_parts[eqn.inputs[0]], True, eqn.params)[0]
        return of_parts

    def phase(self, eqns: Sequence[Eqn], outputs: Sequence[Atom], effects: bool = False) -> _Phase:
        """Those of the equations, and of numbers, that make these values, as a program of its own; with those that
        have effects, or without."""
        wanted, kept = dict.fromkeys(outputs), list[Eqn]()
        mine = {id(eqn) for eqn in (*eqns, *self.numbers)}
        for eqn in reversed([eqn for eqn in self.whole.eqns if id(eqn) in mine]):
            if (effects and eqn.effects) or any(v in wanted for v in eqn.outputs):
                kept.append(eqn)
                wanted.update(dict.fromkeys(eqn.inputs))
        made = {*(v for eqn in kept for v in eqn.outputs), *(v for v, _ in self.whole.constants)}
        inputs = tuple(a for a in wanted if isinstance(a, Var) and a not in made)
        return _Phase(Program(inputs, tuple(reversed(kept)), tuple(outputs), self.whole.constants))

    def split(self, x: Value, dim: int) -> Value:
        """Parts of a dim as rows."""
        n, parts = x.shape[dim] // self.count, self.count
        cut = (parts, n) if self.consecutive else (n, parts)
        x = reshape(x, shape=(*x.shape[:dim], *cut, *x.shape[dim + 1 :]))
        return move_dim(x, dim if self.consecutive else dim + 1, 0)

    def join(self, x: Value, dim: int) -> Value:
        """Rows as parts of a dim."""
        x = move_dim(x, 0, dim if self.consecutive else dim + 1)
        return reshape(x, shape=(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :]))

    def row(self, known: dict[Atom, Value], eqn: Eqn, number: Value) -> Value:
        """The part with a number of a value that is whole."""
        x = self.split(read_atom(known, eqn.inputs[0]), eqn.params["dim"])
        none = zeros(TensorType((), INT32))
        found = dynamic_slice(x, number, *[none] * (x.ndim - 1), sizes=(1, *x.shape[1:]))
        return reshape(found, shape=x.shape[1:])


class _Phase:
    """A part of a program, without variance: it takes what it reads from known values, and adds what it makes."""

    def __init__(self, program: Program) -> None:
        self.inputs, self.outputs = program.inputs, program.outputs
        self.program = _without_devices(program)

    def run(self, known: dict[Atom, Value]) -> None:
        known.update(zip(self.outputs, run(self.program, [known[v] for v in self.inputs]), strict=True))


class _FirstPass(NamedTuple):
    """A pass over the parts of a batch: the sums and extremes that are taken in it, and what makes them of a part."""

    taken: Sequence[Eqn]
    phase: _Phase


def _without_devices(program: Program) -> Program:
    """A program of one device whose types say nothing of others; of collectives there are none."""
    env: dict[Atom, Atom] = {}

    def renamed(var: Var) -> Var:
        env[var] = new = Var(_invariant(var.type))
        return new

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return _without_devices(value) if isinstance(value, Program) else value

    inputs = tuple(map(renamed, program.inputs))
    constants = tuple((renamed(var), data) for var, data in program.constants)
    eqns = []
    for eqn in program.eqns:
        if eqn.op in (pbroadcast, pinvariant):
            env[eqn.outputs[0]] = env.get(eqn.inputs[0], eqn.inputs[0])
        elif eqn.op.stack is not None:
            raise _not_in_parts(eqn)
        else:
            given = [env.get(a, a) for a in eqn.inputs]
            params = {name: plain(value) for name, value in eqn.params.items()}
            eqns.append(Eqn(eqn.op, given, params, tuple(map(renamed, eqn.outputs)), eqn.source))
    return Program(inputs, tuple(eqns), tuple(env.get(a, a) for a in program.outputs), constants)


def _check_apart(eqn: Eqn) -> None:
    """Raise where devices meet inside of loops and branches."""
    for _, inner in eqn.regions():
        for one in inner.eqns:
            if one.op.stack is not None and one.op not in (pbroadcast, pinvariant):
                raise _not_in_parts(one)
            _check_apart(one)


def _invariant(t: TensorType) -> TensorType:
    return t.with_(varying=())


def _sums_outside(program: Program) -> Program:
    """The program with sums over devices that loops only stack (gradients of layers, say), or add to what they carry
    (those of weights that each step of a loop shares), taken after the loop."""
    eqns: list[Eqn] = []
    for eqn in program.eqns:
        eqns += _loop_without_sums(eqn) if eqn.op.structure is Structure.ROWS else [eqn]
    return Program(program.inputs, tuple(eqns), program.outputs, program.constants)


def _loop_without_sums(eqn: Eqn) -> list[Eqn]:
    body = _sums_outside(eqn.params["body"])
    consts, carried = eqn.params["consts"], eqn.params["carry"]
    made = {v: inner for inner in body.eqns for v in inner.outputs}
    read = Counter([*(a for inner in body.eqns for a in inner.inputs), *body.outputs])

    def maker(atom: Atom, op: Op) -> Eqn | None:
        """The equation of an op that makes a value which is read once."""
        found = made.get(atom) if isinstance(atom, Var) and read[atom] == 1 else None
        return found if found is not None and found.op is op and len(found.outputs) == 1 else None

    inputs, inside, outs, results = list(eqn.inputs), list(body.inputs), list(body.outputs), list(eqn.outputs)
    before, after, added = list[Eqn](), list[Eqn](), dict[Var, Eqn]()
    for n, (out, result) in enumerate(zip(body.outputs, eqn.outputs, strict=True)):
        part = Var(result.type.with_(varying=(AXIS,)))
        if n >= carried:
            total = maker(out, psum)
            if total is not None:
                outs[n], results[n] = total.inputs[0], part
                after.append(Eqn(psum, (part,), {"axes": (AXIS,)}, (result,), eqn.source))
            continue
        at, sum_ = consts + n, maker(out, add)
        if sum_ is None or read[body.inputs[at]] != 1 or body.inputs[at] not in sum_.inputs:
            continue
        total = maker(next(a for a in sum_.inputs if a is not body.inputs[at]), psum)
        if total is not None:  # it starts at zero, and what it started at is added in the end
            zero, start, all_, new = Var(result.type), Var(part.type), Var(result.type), Var(part.type)
            number = Literal(0, result.type.with_(shape=()))
            before.append(Eqn(broadcast_in_dim, (number,), {"shape": zero.type.shape, "dims": ()}, (zero,)))
            before.append(Eqn(pbroadcast, (zero,), {"axes": (AXIS,)}, (start,)))
            after.append(Eqn(psum, (part,), {"axes": (AXIS,)}, (all_,), eqn.source))
            after.append(Eqn(add, (inputs[at], all_), {}, (result,), eqn.source))
            inputs[at], inside[at], outs[n], results[n] = start, Var(part.type), new, part
            added[sum_.outputs[0]] = Eqn(add, (inside[at], total.inputs[0]), {}, (new,), sum_.source)
    kept = [added.get(inner.outputs[0], inner) if inner.outputs else inner for inner in body.eqns]
    rest = dce(Program(tuple(inside), tuple(kept), tuple(outs), body.constants))
    return [*before, Eqn(eqn.op, inputs, {**eqn.params, "body": rest}, tuple(results), eqn.source), *after]


def _asks_for_first(eqn: Eqn, program: Program) -> bool:
    """Whether the number of a part is only compared with that of the first: which rows that has does not matter."""
    readers = [e for e in program.eqns if eqn.outputs[0] in e.inputs]
    return all(e.op is eq and any(isinstance(a, Literal) and not a.value for a in e.inputs) for e in readers)


def _not_in_parts(eqn: Eqn) -> MeshwrightError:
    return MeshwrightError(
        "The step does not come apart into microbatches.",
        where=eqn.source.show() if eqn.source else here(),
        why="this takes the whole batch at once, and what is done with its rows depends on it",
        fix="microbatches=1, or a step whose results are sums or means over its batch, "
        "or have a row for each of its rows",
    )
