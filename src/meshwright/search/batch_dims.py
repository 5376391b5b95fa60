"""Which dim of each value of a step is the batch, and what is summed over it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshwright.core.op import No
from meshwright.partition.choose import Numbered, groups_of, rule_of
from meshwright.propagate.project import Shape, shapes_of
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutStep, is_product
from meshwright.search.layout.ways import split_rule, types_of

WHOLE, SUM = -1, -2  # places of a value beside its dims: whole on each device, a summand on each
ROUNDS = 6  # through the steps of a program; loops and what is broadcast need a few


class BatchDims:
    """The places of values where devices have parts of the batch: a dim, `WHOLE` or `SUM`.

    ``needs`` is, for each step, the places in which it reads its operands; ``whole`` a step that needs the whole batch
    on one device. A step is ``separable`` if parts of the batch can be computed one after the other: nothing in their
    midst needs a sum over all, or one that takes no products (of a mask, say), which can be had before.
    """

    def __init__(self, graph: LayoutGraph, batch: Collection[int]) -> None:
        self.places: dict[LaidValue, int] = {}
        self.needs: dict[LayoutStep, list[int]] = {}
        self.late: set[LaidValue] = set()  # what comes after a sum over the batch
        self.products: set[LaidValue] = set()  # what products, or loops, are needed for
        self.of_batch: set[LaidValue] = set()
        self.whole: LayoutStep | None = None
        self.separable = True
        self.batch = {graph.inputs[n] for n in batch}
        for _ in range(ROUNDS):
            before = dict(self.places), len(self.late), len(self.of_batch), len(self.products)
            self.needs.clear()
            for step in graph.steps:
                self.visit(step)
            if (self.places, len(self.late), len(self.of_batch), len(self.products)) == before:
                break
        self.separable &= self.whole is None

    def place(self, value: LaidValue) -> int:
        return self.places.get(value, WHOLE)

    def put(self, step: LayoutStep, places: Sequence[int], needs: Sequence[int], late: bool) -> None:
        """Enter the places of a step's results, and in which it needs its operands."""
        self.needs[step] = list(needs)
        of_batch = any(x in self.of_batch for x in step.inputs) or any(p != WHOLE for p in places)
        summed = [x for x, need in zip(step.inputs, needs, strict=True) if self.place(x) == SUM != need]
        taken = any(x in self.products for x in summed)
        if is_product(step.eqn) or step.kind == "carry" or any(x in self.products for x in step.inputs):
            self.products.update(step.outputs)
        late = late or taken or any(x in self.late for x in step.inputs)
        for value, place in zip(step.outputs, places, strict=True):
            self.places[value] = place
            if late:
                self.late.add(value)
            if of_batch:
                self.of_batch.add(value)
            if late and place != WHOLE:
                self.separable = False

    def visit(self, step: LayoutStep) -> None:
        if step.kind == "input":
            self.put(step, [0 if step.outputs[0] in self.batch else WHOLE], [], False)
            self.of_batch.update(self.batch & {*step.outputs})
        elif step.kind == "carry":
            self.carry(step)
        elif step.kind in ("row", "stack"):
            have = self.place(step.inputs[0])
            if step.kind == "row" and have == 0:  # a loop over parts of the batch
                self.refuse(step)
                self.put(step, [WHOLE], [WHOLE], True)
            else:
                shift, own = -1 if step.kind == "row" else 1, self.place(step.outputs[0])
                if have == WHOLE and own >= 0:  # what is broadcast
                    have = own - shift
                self.put(step, [have + shift if have >= 0 else have], [have], False)
        else:
            self.equation(step)

    def carry(self, step: LayoutStep) -> None:
        """What goes around a loop has one place: that of what it becomes, if it begins as something that has none."""
        first, again = step.inputs[0], step.again
        have = self.place(first)
        if again is not None and again in self.places and (have == WHOLE or have == self.place(again)):
            have = self.place(again)
        if have >= 0 and self.place(first) == WHOLE:
            self.mark(first, have)
        if have == SUM and self.place(first) == WHOLE and first not in self.of_batch:
            self.put(step, [SUM], [WHOLE], False)  # a sum that begins at zero
            return
        self.put(step, [have], [have], again in self.late)

    def refuse(self, step: LayoutStep) -> None:
        if self.whole is None:
            self.whole = step

    def equation(self, step: LayoutStep) -> None:
        assert step.eqn is not None
        given = [self.place(x) for x in step.inputs]
        whole = [WHOLE] * len(given)
        if isinstance(step.eqn.op.factors, No):
            if any(place >= 0 for place in given):
                self.refuse(step)
            self.put(step, [WHOLE] * len(step.outputs), whole, any(place >= 0 for place in given))
            return
        if all(place == WHOLE for place in given):
            self.put(step, [self.place(x) for x in step.outputs], self.kept_needs(step), False)
            return
        rule = split_rule(step)
        shapes, count = shapes_of(rule.rule)
        split = {leading(shapes[n], place) for n, place in enumerate(given) if place >= 0}
        if not split:
            self.sums(step, given)
            return
        factor = next(iter(split))
        results = [None if factor is None else _place_of(shape, factor) for shape in shapes[count:]]
        if len(split) > 1 or factor is None or factor not in rule.separable or None in results:
            self.refuse(step)
            self.put(step, [WHOLE] * len(step.outputs), whole, True)
            return
        needs = []
        for n, value in enumerate(step.inputs):
            need = _place_of(shapes[n], factor)
            if need is None:
                self.refuse(step)
                need = WHOLE
            if need >= 0 and given[n] == WHOLE:
                self.mark(value, need)
            needs.append(need)
        summed = [SUM if place == WHOLE and factor in rule.reduced else place or 0 for place in results]
        self.put(step, summed, needs, False)

    def sums(self, step: LayoutStep, given: Sequence[int]) -> None:
        """A step that reads sums: it is linear in them and makes nothing larger, or they are taken first."""
        read = tuple(n for n, place in enumerate(given) if place == SUM)
        assert step.eqn is not None
        linear = any(group.operands == read for group in groups_of(step.eqn.op, *types_of(step)))
        before = sum(step.inputs[n].type.nbytes for n in read)
        if linear and sum(x.type.nbytes for x in step.outputs) <= before:
            self.put(step, [SUM] * len(step.outputs), given, False)
        else:
            self.put(step, [WHOLE] * len(step.outputs), [WHOLE] * len(given), False)

    # What is broadcast along the batch

    def kept_needs(self, step: LayoutStep) -> list[int]:
        """The places of operands of what was found to be broadcast along the batch, or is whole."""
        place = next((self.place(x) for x in step.outputs if self.place(x) >= 0), WHOLE)
        return asked_places(step, place) or [WHOLE] * len(step.inputs)

    def mark(self, value: LaidValue, place: int) -> bool:
        """Have a value that does not depend on the batch in parts, if it is broadcast along that dim; whether it is."""
        if value.free or self.place(value) == place:
            return True
        step = value.step
        if value in self.of_batch or step is None or step.kind in ("input", "carry"):
            return False
        shift = {"row": 1, "stack": -1}.get(step.kind)
        needs = [place + shift] if shift is not None else asked_places(step, place)
        if step.kind == "stack" and place == 0:  # along the loop
            return False
        if needs is None or not all(n < 0 or self.mark(x, n) for x, n in zip(step.inputs, needs, strict=True)):
            return False
        self.places[value] = place
        return True


def asked_places(step: LayoutStep, place: int) -> list[int] | None:
    """The places of a step's operands from which its result comes out in a place; None where it cannot."""
    assert step.eqn is not None
    if isinstance(step.eqn.op.factors, No) or place < 0:
        return [WHOLE] * len(step.inputs) if place < 0 else None
    rule = split_rule(step)
    shapes, count = shapes_of(rule.rule)
    factor = leading(shapes[count], place)
    if factor is None:
        return None
    found = [_place_of(shape, factor) for shape in shapes[:count]]
    return None if None in found else [p for p in found if p is not None]


def leading(shape: Shape, dim: int) -> int | None:
    """The outermost factor of a dim: the one that blocks of the dim are blocks of."""
    return next((f for f in shape.dims[dim] if shape.sizes[f] > 1), None)


def _place_of(shape: Shape, factor: int) -> int | None:
    """The dim whose blocks are those of a factor, `WHOLE` if there is none, None where it stands behind another."""
    for dim, factors in enumerate(shape.dims):
        if factor in factors:
            return dim if leading(shape, dim) == factor else None
    return WHOLE


def splits(step: LayoutStep, parts: int, batch: int | None) -> bool:
    """Whether an op has a factor, other than that of the batch, that devices can have in so many equal parts."""
    rule: Numbered = rule_of(step.eqn.op, *types_of(step))  # type: ignore[union-attr]
    return any(f != batch and rule.rule.sizes[f] % parts == 0 and rule.rule.sizes[f] > 1 for f in rule.separable)
