"""From a global program to the program of one device.

Each value is kept as the versions of it that devices hold: at first as the equation that made it left it, later also
as others needed it. An equation is run on the layouts that `choose` finds for it; a partial sum is handed on by
what is linear, and reduced where something else needs it, into the sharding that is needed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, product
from typing import Any, NamedTuple

from meshwright.core.dtypes import BOOL, is_inexact
from meshwright.core.factors import Factors
from meshwright.core.facts import Across, Structure, params_for
from meshwright.core.linearity import (
    UNBOUNDED,
    LinearGroup,
    Magnitude,
    declared_groups,
    magnitude_of_moved,
    stays_finite,
)
from meshwright.core.op import No, Op, Value
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.signature import signature_of
from meshwright.core.source import Source, here
from meshwright.core.trace import Array, at_source, read, state
from meshwright.core.types import TensorType, union
from meshwright.errors import ShapeError
from meshwright.ops.basic import add, convert, zeros
from meshwright.partition.across import counterpart, is_on, plan_across, seconds_across
from meshwright.partition.blocks import identity, without_padding
from meshwright.partition.choose import Choice, choose, groups_of, numbered, question, rule_of
from meshwright.partition.combine import CollectiveReason
from meshwright.partition.cost import PLAINLY, Planning, reshard_plan
from meshwright.partition.cuts import Cuts
from meshwright.partition.layouts import MANY, READ, axes_used, finished, layout, local_type, replicated, seen
from meshwright.partition.reshard.emit import emit_plan
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.check import resolve
from meshwright.sharding.mesh import AbstractMesh, BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import read_axis

MOST_VERSIONS = 8  # combinations of operands' versions that an equation is tried on


class Version(NamedTuple):
    """A value as devices hold it."""

    layout: TensorSharding
    value: Value


Special = Callable[["Localizer", Eqn], list[Version]]
RULES: dict[Across | Structure, Special] = {}  # where the factor rule is not all
Make = Callable[["Localizer", Eqn, TensorSharding], Value]
MAKES: dict[Across, Make] = {}  # for what makes a block out of nothing


def _special(op: Op) -> Special | None:
    """The rule by which an op is partitioned, if its factor rule is not all."""
    found = RULES.get(op.structure or op.split.across)
    if found is not None and op.structure is None:
        _check_params(op)
    return found


@lru_cache(maxsize=1024)
def _check_params(op: Op) -> None:
    """Raise if an op says that it looks across blocks in a way that its params do not tell of."""
    have = signature_of(op.type).params
    missing = [name for name in params_for(op.split.across) if name not in have]
    if missing:
        raise ShapeError(
            f"{op.name} has no {', '.join(missing)} among its params, and split=Split(Across.{op.split.across.name}).",
            where=here(),
            why=f"by that, {op.split.across.value}",
            fix=f"params of these names in the type rule of define_op({op.name!r}, …), or no split=",
        )


def _made_by(op: Op) -> Make | None:
    """How a device makes a block of what an op makes out of nothing."""
    return MAKES.get(op.split.across)


@dataclass
class Localizer:
    """The state of one partitioning: the mesh, what propagation wants, why each collective was put in."""

    mesh: BaseMesh
    wanted: Mapping[Var, TensorSharding]
    cuts: Cuts
    whys: dict[Var, CollectiveReason] = field(default_factory=dict)
    addends: dict[Var, Addends] = field(default_factory=dict)
    how: Planning = PLAINLY
    returned: Set[Atom] = frozenset()  # the program's results
    moved: dict[Atom, TensorSharding] = field(default_factory=dict)  # the layout each value was first brought into
    uses: Counter[Atom] = field(default_factory=Counter)
    made: dict[Atom, Eqn] = field(default_factory=dict)  # the equation that each value comes from
    windows: dict[Any, tuple[Value, Value]] = field(default_factory=dict)  # of blocks, which come first, as fetched
    free: dict[Atom, Eqn | None] = field(default_factory=dict)  # what depends on no argument, and the equations of it
    magnitudes: dict[Atom, Magnitude] = field(default_factory=dict)  # of what depends on no argument
    operands_of: dict[Var, tuple[tuple[Atom, TensorSharding], ...]] = field(default_factory=dict)  # as they were read
    subject: tuple[Atom | None, Source | None] = (None, None)  # the value that is being resharded, and who left it so
    around: BaseMesh | None = None  # in a part that is written for some axes: the mesh with those, too
    _versions: dict[Atom, list[Version]] = field(default_factory=dict)

    # Axes

    def names(self, axis: AxisRef) -> tuple[tuple[str, int], ...]:
        """The axes of the local program that make up an axis or a part of one."""
        return self.cuts.names(axis)

    def part(self, name: str) -> AxisRef:
        """The axis of the mesh, or the part of one, that a name of a hand-written program stands for."""
        return resolve(self.around or self.mesh, (read_axis(name),))[0]

    def renamed(self, names: Sequence[str]) -> tuple[str, ...]:
        """The axes of the local program for names of a hand-written one."""
        return tuple(found for name in names for found, _ in self.names(self.part(name)))

    def renamed_type(self, t: TensorType) -> TensorType:
        """A type of a hand-written program, with the axes of the local one."""
        return t.with_(varying=union((self.renamed(t.varying),))) if t.varying else t

    def renamed_params(self, eqn: Eqn) -> dict[str, Any]:
        """What an equation of a hand-written program is given, with the axes of the local one: a collective's axes, and
        types."""
        params = {name: self._with_renamed_types(value) for name, value in eqn.params.items()}
        if eqn.op.stack is None:
            return params
        axes = self.renamed(params["axes"])
        return {**params, "axes": axes, **({"sizes": tuple(map(self.size, axes))} if "sizes" in params else {})}

    def _with_renamed_types(self, value: Any) -> Any:
        if isinstance(value, TensorType):
            return self.renamed_type(value)
        return tuple(map(self._with_renamed_types, value)) if value.__class__ is tuple else value

    def size(self, name: str) -> int:
        """The size of an axis of the local program."""
        return dict(self.cuts.axes)[name]

    def constant(self, var: Var, data: Any) -> Array:
        """A constant of the program."""
        return Array(data, var.type)

    # Values

    def versions(self, atom: Atom) -> list[Version]:
        """A value as devices hold it, in every layout it has been needed in."""
        if atom.__class__ is Literal:
            return [Version(replicated(self.mesh, 0), read({}, atom))]
        return self._versions[atom]

    def define(self, var: Var, version: Version) -> None:
        """Enter a value."""
        self._versions[var] = [version]

    def best(self, atom: Atom, unreduced: bool) -> TensorSharding:
        """The sharding that costs take a value to have: one without partial sums, unless ``unreduced`` admits them. For
        a value on another mesh, its counterpart on this one."""
        found = self.as_it_is(atom, unreduced)
        return found if is_on(found, self.mesh) else self.cuts.fitted(counterpart(found, self.mesh))

    def as_it_is(self, atom: Atom, unreduced: bool = False) -> TensorSharding:
        """The sharding of a value, on this mesh if it is on several: without partial sums, unless ``unreduced``."""
        versions = self.versions(atom)
        here = [v.layout for v in versions if is_on(v.layout, self.mesh)] or [v.layout for v in versions]
        return here[0] if unreduced else next((found for found in here if not found.unreduced), here[0])

    def get(self, atom: Atom, need: TensorSharding, why: str | Callable[[], str], asked: bool = False) -> Value:
        """A value in a layout, resharded from the version that is nearest to it."""
        versions = self.versions(atom)
        for version in versions:
            if version.layout == need and version.value is not None:
                return version.value
        made = self.free.get(atom)
        if made is not None:
            if not is_on(need, self.mesh):
                whole = replicated(self.mesh, atom.type.ndim)
                versions = [Version(whole, self.get(atom, whole, why, asked))]
            elif not need.unreduced:
                versions.append(Version(need, self.make(made, need)))
                return versions[-1].value
            else:
                versions = [Version(finished(need), self.get(atom, finished(need), why, asked))]
        cost = self.how.cost
        nearest = min(versions, key=lambda v: seconds_across(self.mesh, atom.type, v.layout, need, cost))
        made = self.made.get(atom)
        with at_source(state.source or (made.source if made is not None else None)):
            left = self.summed_by(made, nearest.layout) if made is not None else None
            reason = f"{_had(left, nearest.layout, atom.type, state.source)}; {why if isinstance(why, str) else why()}"
            self.subject = atom, left.source if left is not None else None
            value = self.reshard(nearest, need, atom.type, reason, asked)
            self.subject = None, None
        if atom.__class__ is not Literal:
            versions.append(Version(need, value))
            self.moved.setdefault(atom, need)
        return value

    def summed_by(self, made: Eqn, have: TensorSharding) -> Eqn:
        """The equation that left partial sums which others, linear ones, only passed on."""
        while have.unreduced:
            read = self.operands_of.get(made.outputs[0])
            if read is None:  # a rule of its own
                read = tuple((a, self._versions[a][0].layout) for a in made.inputs if a in self.made)
            passed = [a for a, s in read if a in self.made and set(have.unreduced) <= set(s.unreduced)]
            if not passed:
                break
            made = self.made[passed[0]]
        return made

    def is_free(self, eqn: Eqn) -> bool:
        """Whether devices can make any block of the result by themselves, so that nobody needs to send it."""
        if _made_by(eqn.op) is not None:
            return True
        if len(eqn.outputs) > 1 or not all(atom.__class__ is Literal or atom in self.free for atom in eqn.inputs):
            return False
        return _dims_above(eqn) is not None

    def make(self, eqn: Eqn, need: TensorSharding) -> Value:
        """The result of an equation that depends on no argument, in a layout."""
        with at_source(eqn.source):
            made = _made_by(eqn.op)
            if made is not None:
                return made(self, eqn, need)
            if eqn.op.structure is Structure.CONSTRAINT:
                return self.get(eqn.inputs[0], need, "devices make it")
            places = _dims_above(eqn)
            assert places is not None
            operands = [
                layout(self.mesh, tuple(() if d is None else need.dims[d].axes for d in dims)) for dims in places
            ]
            values = [self.get(a, s, "devices make it") for a, s in zip(eqn.inputs, operands, strict=True)]
            return self.apply(eqn, values, operands, [need])[0].value

    def reduce_once(self, atom: Atom) -> None:
        """Reduce a partial sum that several equations read, once, before they read it."""
        have = self.best(atom, unreduced=False)
        if have.unreduced and self.uses[atom] > 1:
            wanted = self.want(atom) if isinstance(atom, Var) else None
            need = finished(have) if wanted is None or wanted.unreduced else wanted
            self.get(atom, need, f"{self.uses[atom]} equations read it {sharded_as(need, atom.type)}")

    def reshard(self, version: Version, need: TensorSharding, t: TensorType, why: str, asked: bool = False) -> Value:
        """A version in another layout; why there are collectives is remembered."""
        if version.layout == need:
            return version.value
        if t.size == 0:
            return zeros(local_type(t, need))
        if not axes_used(version.layout) and not axes_used(need):
            return version.value
        if not (is_on(version.layout, self.mesh) and is_on(need, self.mesh)):
            return self.across(version, need, t, why, asked)
        plan = reshard_plan(t.shape, t.dtype, version.layout, need, self.how.cost)
        if self.cuts.fixed and not all(map(self.cuts.fits, plan.atoms)):
            # It goes through parts that do not nest with those of the mesh: by way of the whole it need not.
            whole = replicated(self.mesh, t.ndim)
            return self.reshard(Version(whole, self.reshard(version, whole, t, why, asked)), need, t, why, asked)
        with self.because(why, t, asked):
            return emit_plan(plan, version.value, self.names)

    def across(self, version: Version, need: TensorSharding, t: TensorType, why: str, asked: bool) -> Value:
        """A version in another layout, of which one or both are on another mesh than this."""
        have = version.layout
        plan = None if have.unreduced else plan_across(self.mesh, t.shape, t.dtype, have, need)
        between = self.cuts.fitted(counterpart(need if is_on(have, self.mesh) else have, self.mesh))
        if plan is None or (plan.num_collectives > MANY and between not in (have, need)):
            # A sum is taken, and what would take many rounds is done, by collectives of this mesh.
            return self.reshard(Version(between, self.reshard(version, between, t, why, asked)), need, t, why, asked)
        with self.because(why, t, asked):
            return emit_plan(plan, version.value, self.names)

    @contextmanager
    def because(self, why: str, t: TensorType, asked: bool = False) -> Iterator[None]:
        """Remember for the collectives that are put in here why they are, and for which global value."""
        builder = state.builder
        assert builder is not None
        before = len(builder.eqns)
        yield
        for eqn in builder.eqns[before:]:
            if eqn.op.stack is not None:
                self.whys.update(dict.fromkeys(eqn.outputs, CollectiveReason(why, t, asked, *self.subject)))

    # Equations

    def run(self, program: Program) -> None:
        """Localize every equation; inputs must be defined."""
        self.addends.update(_addends(program))
        self.uses.update(program.outputs)
        for eqn in program.eqns:
            self.uses.update(eqn.inputs)
        for var, data in program.constants:
            self.define(var, Version(replicated(self.mesh, var.type.ndim), Array(data, var.type)))
            self.free[var] = None
        for eqn in program.eqns:
            if self.is_free(eqn):
                var = eqn.outputs[0]
                self.define(var, Version(replicated(self.mesh, var.type.ndim), None))
                self.free[var] = eqn
                continue
            with at_source(eqn.source):
                special = _special(eqn.op)
                results = special(self, eqn) if special is not None else self.equation(eqn)
            for var, version in zip(eqn.outputs, results, strict=True):
                self.define(var, version)
                self.made[var] = eqn

    def equation(self, eqn: Eqn) -> list[Version]:
        """An equation run on blocks, by its factor rule."""
        return self.chosen(eqn, self.elsewhere(eqn) or self.choice(eqn))

    def elsewhere(self, eqn: Eqn) -> Choice | None:
        """The layouts of another mesh that the operands are in and the equation runs on; None if something moves."""
        have = {n: self.as_it_is(atom, unreduced=True) for n, atom in enumerate(eqn.inputs) if atom not in self.free}
        split = {n: found for n, found in have.items() if axes_used(found)}
        meshes = {found.mesh for found in split.values()}
        if len(meshes) != 1 or self.mesh in meshes or isinstance(eqn.op.factors, No):
            return None
        (other,) = meshes
        types, results = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
        rule = rule_of(eqn.op, tuple(types), tuple(results), tuple(eqn.params.items()))
        layouts = [split.get(n) or replicated(other, t.ndim) for n, t in enumerate(types)]
        wanted = [found if found and is_on(found, other) else None for found in map(self.wanted.get, eqn.outputs)]
        addends = [self.addends.get(v, ALONE).number for v in eqn.outputs]
        found = choose(question(other, rule, [], types, results, layouts, wanted, addends, self.how))
        moves = any(found.operands[n] != layouts[n] for n in split) or any(s.unreduced for s in found.results)
        return None if moves or found.padded else found

    def want(self, var: Var) -> TensorSharding | None:
        """The layout of this mesh that propagation found for a value."""
        found = self.wanted.get(var)
        return found if found is not None and is_on(found, self.mesh) else None

    def sum_beside(self, var: Var) -> TensorSharding | None:
        """The layout of the partial sum that a value is added to, if that is there already and used once."""
        other = self.addends.get(var, ALONE).other
        if other is None or other not in self._versions or self.uses[other] != 1:
            return None
        found = self.as_it_is(other, unreduced=True)
        return found if found.unreduced and is_on(found, self.mesh) else None

    def operands(self, eqn: Eqn, choice: Choice) -> list[Value]:
        """The operands of an equation in the layouts of a choice."""
        return [
            self.get(atom, need, partial(_why, eqn, n, need))
            for n, (atom, need) in enumerate(zip(eqn.inputs, choice.operands, strict=True))
        ]

    def chosen(self, eqn: Eqn, choice: Choice) -> list[Version]:
        """An equation run on the blocks of a choice."""
        values = self.operands(eqn, choice)
        for n, dim in choice.padded:
            place = (dim, choice.operands[n].dims[dim].axes, eqn.inputs[n].type.shape[dim])
            values[n] = without_padding(self.names, values[n], [place], identity(values[n].dtype, choice.combine))
        return self.apply(eqn, values, choice.operands, choice.results)

    def choice(self, eqn: Eqn, factors: Factors | None = None) -> Choice:
        """The layouts that an equation is run on, by its factor rule or another."""
        operand_types = [a.type for a in eqn.inputs]
        result_types = [v.type for v in eqn.outputs]
        if isinstance(eqn.op.factors, No):
            whole = tuple(replicated(self.mesh, t.ndim) for t in operand_types)
            return Choice(whole, tuple(replicated(self.mesh, t.ndim) for t in result_types), 0.0)
        if factors is None:
            rule = rule_of(eqn.op, tuple(operand_types), tuple(result_types), tuple(eqn.params.items()))
        else:
            rule = numbered(factors, operand_types[0].dtype)
        for atom in eqn.inputs:
            self.reduce_once(atom)
        have = [self.best(a, unreduced=self.uses[a] == 1) for a in eqn.inputs]
        want = [self.want(v) for v in eqn.outputs]
        addends = [self.addends.get(v, ALONE).number for v in eqn.outputs]
        groups = self.groups(eqn) if any(s.unreduced for s in have) else []
        returned = all(v in self.returned and self.uses[v] == 1 for v in eqn.outputs)
        beside = [self.sum_beside(v) for v in eqn.outputs]

        def ask(layouts: Sequence[TensorSharding]) -> Choice:
            types = operand_types, result_types
            asked = question(
                self.mesh, rule, groups, *types, layouts, want, addends, self.how, self.cuts.fixed, returned, beside
            )
            found = choose(asked)
            if factors is None and found.padded and not _may_be_filled(eqn, found):
                found = choose(asked._replace(separable=asked.separable - asked.reduced))
            return found

        # What others needed an operand in is there for nothing.
        known = [
            [v.layout for v in self.versions(a) if is_on(v.layout, self.mesh) and not v.layout.unreduced]
            for a in eqn.inputs
        ]
        tried = [[s, *(other for other in found if other != s)] for s, found in zip(have, known, strict=True)]
        return min(map(ask, islice(product(*tried), MOST_VERSIONS)), key=lambda choice: choice.preference(self.how))

    def groups(self, eqn: Eqn) -> list[LinearGroup]:
        """The groups of operands that may be partial sums together.

        Those that a number known by now could make infinite wait for their sum, unless a partial sum was asked for.
        """
        types, results = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
        found = groups_of(eqn.op, tuple(types), tuple(results), tuple(eqn.params.items()))
        wanted = [self.wanted.get(v) for v in eqn.outputs]
        if any(want is not None and want.unreduced for want in wanted):
            return list(found)
        return [group for group in found if stays_finite(group, types, lambda n: self.magnitude_of(eqn.inputs[n]))]

    def magnitude_of(self, atom: Atom) -> Magnitude | None:
        """Bounds on the numbers in a value that depends on no argument; None if it does."""
        if atom.__class__ is Literal:
            return Magnitude.of(read({}, atom).data)
        if atom in self.free and atom not in self.magnitudes:
            made = self.free[atom]
            data = self.versions(atom)[0].value.data if made is None else None
            self.magnitudes[atom] = Magnitude.of(data) if made is None else self._magnitude_after(made)
        return self.magnitudes.get(atom)

    def _magnitude_after(self, eqn: Eqn) -> Magnitude:
        """Bounds on the result of an equation of values that depend on no argument, where it makes no new numbers."""
        types, result = [a.type for a in eqn.inputs], eqn.outputs[0].type
        if result.dtype == BOOL:
            return Magnitude(0.0, 1.0)
        found = [self.magnitude_of(atom) for atom in eqn.inputs]
        if eqn.op is convert and is_inexact(result.dtype) and not is_inexact(types[0].dtype):
            return found[0] or UNBOUNDED
        return magnitude_of_moved(eqn.op.groups(types, [result], eqn.params), types, result, found) or UNBOUNDED

    def apply(
        self, eqn: Eqn, values: Sequence[Value], operands: Sequence[TensorSharding], results: Sequence[TensorSharding]
    ) -> list[Version]:
        """An equation on blocks in the given layouts."""
        operand_types = [local_type(a.type, s) for a, s in zip(eqn.inputs, operands, strict=True)]
        result_types = [local_type(v.type, s) for v, s in zip(eqn.outputs, results, strict=True)]
        params = eqn.params if self.around is None else self.renamed_params(eqn)
        params = eqn.op.localize(params, operand_types, result_types)
        outs = eqn.op(*values, **params)
        outs = list(outs) if isinstance(outs, tuple) else [outs]
        for x, t in zip(outs, result_types, strict=True):
            if x.shape != t.shape:
                raise _not_local(eqn, x.type, t)
        self.operands_of.update(dict.fromkeys(eqn.outputs, tuple(zip(eqn.inputs, operands, strict=True))))
        return [Version(s, x) for s, x in zip(results, outs, strict=True)]

    def inside(self) -> Localizer:
        """A localizer for a region."""
        return Localizer(self.mesh, self.wanted, self.cuts, self.whys, how=self.how, around=self.around)

    def along(self, names: Sequence[str]) -> Localizer:
        """A localizer for a part that is written by hand for all axes but these."""
        mesh = AbstractMesh([self.mesh.shape[name] for name in names], names)
        around = self.around or self.mesh
        return Localizer(mesh, self.wanted, self.cuts, self.whys, how=self.how, around=around)


def _not_local(eqn: Eqn, found: TensorType, part: TensorType) -> ShapeError:
    """The error of an op that makes something else of parts of its operands than parts of its results."""
    return ShapeError(
        f"{eqn.op.name} on parts of its operands gives {found.with_(varying=()).short()}, and the part of its result "
        f"is {part.short()}.",
        where=eqn.source.show() if eqn.source else here(),
        why="by its factor rule it gives parts of results; a param that is a size must become that of a part",
        fix=f"localize=lambda params, operands, results: {{**params, 'n': results[0].shape[0]}}, in "
        f"define_op({eqn.op.name!r}, …)\nor name the factor among those that must be whole: replicated=['k']",
    )


def _may_be_filled(eqn: Eqn, choice: Choice) -> bool:
    """Whether what changes nothing in a combination may stand in the padding of operands."""
    types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
    return {n for n, _ in choice.padded} <= _fillable(eqn.op, *types, tuple(eqn.params.items()))


@lru_cache(maxsize=4096)
def _fillable(
    op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...]
) -> frozenset[int]:
    """The operands, by number, of which this is known."""
    rule = op.factors(operands, results, dict(params))  # type: ignore[operator]
    if rule.fillable:
        return frozenset(range(len(operands)))
    linear = declared_groups(op.linear, operands, results, dict(params)) if rule.combine in ("sum", "or") else ()
    return frozenset(n for group in linear for n in group.operands)


DimsAbove = tuple[tuple[int | None, ...], ...]


def _dims_above(eqn: Eqn) -> DimsAbove | None:
    """For each dim of each operand the dim of the result that it is, by the factor rule; None for a dim of size 1.

    None if blocks of the result are not made of such blocks of the operands.
    """
    if isinstance(eqn.op.factors, No) or eqn.op.split.across is not Across.NOT or eqn.op.effects:
        return None
    types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
    return _dims_by_rule(eqn.op, *types, tuple(eqn.params.items()))


@lru_cache(maxsize=4096)
def _dims_by_rule(
    op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...]
) -> DimsAbove | None:
    rule = op.factors(operands, results, dict(params))  # type: ignore[operator]
    long = {name for name, size in rule.sizes.items() if size > 1}
    above: dict[str, int] = {}
    for number, dim in enumerate(rule.results[0]):
        names = [name for name in dim if name in long]
        if len(names) > 1 or (names and names[0] in above):
            return None
        above.update(dict.fromkeys(names, number))
    if not long <= rule.separable & rule.passing:
        return None
    found = []
    for t, dims in zip(operands, rule.operands, strict=True):
        places: list[int | None] = []
        for n, dim in zip(t.shape, dims, strict=True):
            names = [name for name in dim if name in long]
            if n > 1 and (len(names) != 1 or names[0] not in above or rule.sizes[names[0]] != n):
                return None
            places.append(above[names[0]] if n > 1 else None)
        found.append(tuple(places))
    return tuple(found)


class Addends(NamedTuple):
    """How many values are added up where one of them is used, and the one that it is added to first."""

    number: int
    other: Atom | None


ALONE = Addends(1, None)


def _addends(program: Program) -> dict[Var, Addends]:
    """The sum that each value is part of which is only added to others."""
    uses: dict[Atom, list[Eqn]] = {}
    for eqn in program.eqns:
        for atom in eqn.inputs:
            uses.setdefault(atom, []).append(eqn)
    kept = set(program.outputs)

    def adds(var: Var) -> Eqn | None:
        found = uses.get(var, [])
        return found[0] if len(found) == 1 and found[0].op is add and var not in kept else None

    totals: dict[Var, Addends] = {}
    for eqn in reversed(program.eqns):
        for var in eqn.outputs:
            sum_ = adds(var)
            if sum_ is not None:
                one, other = sum_.inputs
                totals[var] = Addends(totals.get(sum_.outputs[0], ALONE).number + 1, other if one is var else one)
    return totals


def _why(eqn: Eqn, number: int, need: TensorSharding) -> str:
    place = "it" if len(eqn.inputs) == 1 else f"operand {number}"
    return f"the {eqn.op.word} needs {place} {sharded_as(need, eqn.inputs[number].type)}"


def sharded_as(need: TensorSharding, t: TensorType) -> str:
    """How a value is laid out, for a reason: ``sharded as [8@data, 16]``, or ``replicated``."""
    need = seen(need)
    split = any(dim.axes for dim in need.dims)
    return f"sharded as [{', '.join(need.type_dims(t.shape))}]" if split else "replicated"


_PARTIAL = {"sum": "partial sums", READ: "parts that add up"}


def _had(made: Eqn | None, have: TensorSharding, t: TensorType, needed_at: Source | None) -> str:
    """The beginning of a reason: how a value is laid out that is needed otherwise, and which op left it so, on which
    line if that is another one."""
    unreduced = seen(have).unreduced
    maker = ""
    if made is not None:
        maker = f"the {made.op.word}{f' at {made.source}' if made.source and made.source != needed_at else ''}"
    if unreduced:
        axes = ", ".join(axis.short() for axis in unreduced)
        results = _PARTIAL.get(have.reduction, f"partial results of {have.reduction}")
        return f"{maker} leaves {results} over {axes}" if made is not None else f"it comes as a partial sum over {axes}"
    return f"{maker} gives it {sharded_as(have, t)}" if made is not None else f"it comes {sharded_as(have, t)}"
