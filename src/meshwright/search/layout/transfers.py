"""What devices must receive, however a step is laid out: from where a value is made to the matmul that reads it, or to
the argument that it becomes.

Between the two lie ops that make each element of their result from one element of an operand (views, transposes,
slices, elementwise ops). A device that multiplies with an element has it because it made it, or because it received it
somewhere on that path. So what it received along the path is no less than what it reads and did not make itself, in the
smallest dtype of the path. Paths that share a value may share what is received of it: each counts for a part.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from meshwright.core.facts import Across, Fusion
from meshwright.core.op import No, fusion_of, is_elementwise
from meshwright.core.types import TensorType
from meshwright.partition.choose import groups_of
from meshwright.partition.layouts import layout
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutStep, is_product
from meshwright.search.layout.ways import followed, types_of
from meshwright.sharding.named import TensorSharding

FAR = 48  # values that are looked at on the way back to a maker
INJECTIVE = (Fusion.VIEW, Fusion.PERMUTATION)

Link = tuple[LayoutStep, int]  # a step of a path, and the operand by which the path enters it
Lead = tuple[tuple[str, ...], ...]  # the axes of the dims whose rows a scan takes


class ValueTransfer(NamedTuple):
    """What ``reader`` needs of what ``maker`` makes: operand ``number`` of a matmul, or the result that an argument
    becomes (None). ``links`` are the steps between them, in order; ``nbytes`` is the least that all of the value takes,
    at each of ``times``, and ``share`` how much of that is not also counted for another reader. On a ``linear`` path
    partial sums may stay what they are."""

    maker: LayoutStep
    reader: LayoutStep
    number: int | None
    links: tuple[Link, ...]
    nbytes: float
    times: float
    share: float
    linear: bool

    @property
    def read(self) -> TensorType:
        """The type of what the reader needs."""
        of = self.reader.outputs[0] if self.number is None else self.reader.inputs[self.number]
        return of.type


class _Path(NamedTuple):
    maker: LayoutStep
    reader: LayoutStep
    number: int | None
    links: tuple[Link, ...]
    values: tuple[LaidValue, ...]  # from the maker's to the reader's
    needed: frozenset[LaidValue]  # of which one is needed whole, if there are any: no partial sum will do


def read_transfers(graph: LayoutGraph, returned: Sequence[tuple[LaidValue, LaidValue]]) -> list[ValueTransfer]:
    """The transfers of a step; ``returned`` are results that are arguments anew, each with its argument."""
    paths = list(_paths(graph, returned))
    counted = [path.needed.union(path.values) for path in paths]
    readers = Counter(value for values in counted for value in values)
    found = [_transfer(path, 1 / max(readers[v] for v in values)) for path, values in zip(paths, counted, strict=True)]
    return [one for one in found if one.times > 0]


def is_split_by_factors(step: LayoutStep) -> bool:
    """Whether a step is a matmul that devices can split in no other way than by the factors of its rule."""
    eqn = step.eqn
    return eqn is not None and is_product(eqn) and eqn.op.split.across is Across.NOT and len(eqn.outputs) == 1


def _paths(graph: LayoutGraph, returned: Iterable[tuple[LaidValue, LaidValue]]) -> Iterator[_Path]:
    for step in graph.steps:
        if is_split_by_factors(step):
            for number, value in enumerate(step.inputs):
                found = _back(value, step, number)
                if found is not None:
                    yield found
    for value, argument in returned:
        assert argument.step is not None
        found = _back(value, argument.step, None)
        if found is not None:
            yield found


def _back(value: LaidValue, reader: LayoutStep, number: int | None) -> _Path | None:
    """The shortest path back from a value to a matmul or an argument; from a result, to a matmul alone."""
    todo: deque[tuple[LaidValue, tuple[Link, ...], tuple[LaidValue, ...]]] = deque([(value, (), (value,))])
    known = {value}
    while todo and len(known) < FAR:
        at, links, values = todo.popleft()
        step = at.step
        if step is None or at.free:
            continue
        if is_split_by_factors(step) or (step.kind == "input" and number is not None):
            if step.weight != reader.weight:  # between a layer that stands for many, and what is outside of it
                return None
            return _Path(step, reader, number, links, values, _needed_whole(values[0], value))
        for n, before in _elements_from(step, at):
            if before not in known:
                known.add(before)
                todo.append((before, ((step, n), *links), (before, *values)))
    return None


def read_elementwise(value: LaidValue) -> Iterator[tuple[LaidValue, float]]:
    """What kernels of elementwise ops read to make a value: each matmul and argument from which it follows, and the
    bytes of the smallest value on the way."""
    todo, known = deque([(value, value.type.nbytes)]), {value}
    while todo and len(known) < FAR:
        at, least = todo.popleft()
        step = at.step
        if step is None or at.free:
            continue
        if step.kind == "input" or (step.eqn is not None and is_product(step.eqn)):
            yield at, least
        elif step.eqn is not None and is_elementwise(step.eqn):
            for _, before in _elements_from(step, at):
                if before not in known:
                    known.add(before)
                    todo.append((before, min(least, before.type.nbytes)))


def _elements_from(step: LayoutStep, made: LaidValue) -> Iterator[tuple[int, LaidValue]]:
    """The operands of a step from elements of which, one each, those of its result are made."""
    if step.kind in ("row", "stack"):
        yield 0, step.inputs[0]
    elif step.kind == "carry":
        if step.again is not None:
            yield 0, step.again
    elif step.eqn is not None and not isinstance(step.eqn.op.factors, No) and len(step.outputs) == 1:
        if is_elementwise(step.eqn):
            for n, value in enumerate(step.inputs):
                if value.type.shape == made.type.shape:
                    yield n, value
        elif len(step.inputs) == 1:
            value = step.inputs[0]
            same = fusion_of(step.eqn) in INJECTIVE and value.type.size == made.type.size
            if same or step.eqn.op.split.across is Across.CUT:
                yield 0, value


def _transfer(path: _Path, share: float) -> ValueTransfer:
    *_, read = path.values
    item = min(value.type.nbytes / max(1, value.type.size) for value in path.values)
    length, times = 1.0, float(path.reader.times)
    for step, _ in path.links:
        if step.kind == "row":
            rows = step.inputs[0].type.shape[0]
            length, times = length * rows, times / rows
        elif step.kind == "carry" and times > step.times:  # from one iteration to the next
            times -= step.times
    times = min(float(path.maker.times), times) * path.reader.weight
    nbytes = item * read.type.size * length
    return ValueTransfer(*path[:4], nbytes, times, share, not path.needed)


def _needed_whole(made: LaidValue, read: LaidValue) -> frozenset[LaidValue]:
    """Values, made of the elements of one, of which a value that follows from them needs one whole: an op that is not
    linear in them reads it. None if partial sums may stay what they are."""
    before, todo = {read}, deque([read])
    while todo and len(before) < FAR:
        value = todo.popleft()
        if value is not made and value.step is not None and value.step.eqn is not None:
            new = [x for x in value.step.inputs if x not in before and not x.free and not is_product(value.step.eqn)]
            before.update(new)
            todo.extend(new)
    found, todo = {made}, deque([made])
    steps = dict.fromkeys(v.step for v in before if v.step is not None and v.step.eqn is not None and v is not made)
    while todo:
        value = todo.popleft()
        for step in steps:
            if value not in step.inputs:
                continue
            whole = frozenset(n for n, x in enumerate(step.inputs) if x in found)
            if not any(whole <= set(group.operands) for group in groups_of(step.eqn.op, *types_of(step))):  # type: ignore[union-attr]
                return frozenset(found)
            for result in step.outputs:
                if result not in found and value in [x for _, x in _elements_from(step, result)]:
                    found.add(result)
                    todo.append(result)
    return frozenset()


def followed_to(transfer: ValueTransfer, made: TensorSharding) -> tuple[Lead, TensorSharding] | None:
    """Where a device has what it makes, when that comes to the reader, with the axes of the dims whose rows are taken;
    where a rule cannot say, of more than it has. None for a path on which rows of rows are put together again."""
    at, lead = layout(made.mesh, tuple(dim.axes for dim in made.dims)), list[tuple[str, ...]]()
    for step, n in transfer.links:
        if step.kind == "row":
            lead.append(tuple(axis.name for axis in at.dims[0].axes))
            at = layout(at.mesh, tuple(dim.axes for dim in at.dims[1:]))
        elif step.kind == "stack":
            if lead:
                return None
            at = layout(at.mesh, ((), *(dim.axes for dim in at.dims)))
        elif step.kind == "eqn" and not is_elementwise(step.eqn):  # type: ignore[arg-type]
            operands, results, params = types_of(step)
            assert step.eqn is not None
            at = followed(step.eqn.op, operands, results, params, n, at).results[0]
    return tuple(lead), at
