"""The nodes of a problem in an order that does not depend on the one in which they were written.

Propagation visits nodes in the order of the program, and where two shardings conflict the first visit may decide. A
program that was written in another order, with every value after those it is made of, then comes out differently. Here
nodes are ordered by what they are: each has a colour, made of its own facts and of the colours of what it uses and of
what uses it, refined until no more nodes can be told apart. Nodes of one colour are alike in all that propagation sees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from meshwright.propagate.problem import Problem, ProblemBlock, ProblemNode

_ROUNDS = 8  # of refinement: how far nodes look


def canonical_order(problem: Problem, last_first: bool = False) -> Problem:
    """The same problem, the nodes of each block in an order of its own; values keep their numbers.

    ``last_first``: of the nodes that may come next, the one that would come last.
    """
    colours = _Colours(problem)
    sign = -1 if last_first else 1

    def ordered(block: ProblemBlock) -> ProblemBlock:
        nodes = [node._replace(regions=tuple(map(ordered, node.regions))) for node in block.nodes]
        keys = [sign * colours.of_node[id(node)] for node in block.nodes]
        return block._replace(nodes=tuple(_sorted_by(nodes, keys)))

    functions = tuple(function._replace(block=ordered(function.block)) for function in problem.functions)
    return problem._replace(functions=functions)


def _sorted_by(nodes: list[ProblemNode], keys: list[int]) -> Iterator[ProblemNode]:
    """Nodes after those that they use, of those that may come next the one with the least key first."""
    makers = {number: n for n, node in enumerate(nodes) for number in node.results}
    uses = [{makers[number] for number in _used(node) if number in makers} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for n, before in enumerate(uses):
        for maker in before:
            users[maker].append(n)
    waiting = [len(before) for before in uses]
    ready = [(keys[n], n) for n, count in enumerate(waiting) if not count]
    heapify(ready)
    while ready:
        _, n = heappop(ready)
        yield nodes[n]
        for user in users[n]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (keys[user], user))


def _used(node: ProblemNode) -> Iterator[int]:
    """The values that a node uses, those from outside that its regions use among them."""
    yield from node.operands
    for block in node.regions:
        for inner in block.nodes:
            yield from _used(inner)
        yield from block.returns


class _Colours:
    """Colours of the nodes of a problem, as numbers that are equal for equal problems."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes: list[ProblemNode] = []
        self._users: dict[int, list[tuple[int, int]]] = {}  # of a value: nodes, and which operand it is
        self._makers: dict[int, tuple[int, int]] = {}
        self._fixed: dict[int, Any] = {}  # what is known of a value that is an argument, or is returned
        self._returned: dict[int, list[Any]] = {}
        for place, function in enumerate(problem.functions):
            self._enter(function.block, ("function", place, str(function.result_shardings)))
        colours = self._numbered(self._own)
        for _ in range(_ROUNDS):
            refined = self._numbered(lambda n, known=colours: self._seen(n, known))  # type: ignore[misc]
            if len(set(refined)) == len(set(colours)):
                break
            colours = refined
        self.of_node = {id(node): colour for node, colour in zip(self._nodes, colours, strict=True)}

    def _enter(self, block: ProblemBlock, where: Hashable) -> None:
        for index, number in enumerate(block.arguments):
            self._fixed[number] = (where, index, self._value(number))
        for node in block.nodes:
            at = len(self._nodes)
            self._nodes.append(node)
            for index, number in enumerate(node.operands):
                self._users.setdefault(number, []).append((at, index))
            for index, number in enumerate(node.results):
                self._makers[number] = (at, index)
            for region, inner in enumerate(node.regions):
                self._enter(inner, (where, self._facts(node), region))
        for index, number in enumerate(block.returns):
            self._returned.setdefault(number, []).append((str(where), index))

    def _value(self, number: int) -> str:
        value = self._problem.values[number]
        return f"{value.shape} {value.sharding}"

    def _facts(self, node: ProblemNode) -> str:
        """What a node is by itself."""
        rule = node.rule
        factors = "" if rule is None else f"{rule.operands} {rule.results} {rule.sizes} {sorted(rule.passing)}"
        made = [self._value(number) for number in node.results]
        sides = f"{node.in_shardings} {node.out_shardings} {node.manual_axes} {node.callee} {node.group}"
        return f"{node.kind} {node.name} {node.direction} {factors} {made} {sides}"

    def _own(self, n: int) -> Any:
        return self._facts(self._nodes[n])

    def _seen(self, n: int, colours: list[int]) -> Any:
        """A node with the colours around it."""
        node = self._nodes[n]
        used = []
        for number in node.operands:
            maker = self._makers.get(number)
            used.append(str(self._fixed.get(number)) if maker is None else (colours[maker[0]], maker[1]))
        seen = []
        for number in node.results:
            users = sorted((colours[user], index) for user, index in self._users.get(number, ()))
            seen.append((users, sorted(map(str, self._returned.get(number, ())))))
        inside = [sorted(map(str, (colours_of(block, self._makers, colours)))) for block in node.regions]
        return colours[n], used, seen, inside

    def _numbered(self, signature: Callable[[int], Any]) -> list[int]:
        """For each node the place of its signature among all of them."""
        texts = [str(signature(n)) for n in range(len(self._nodes))]
        places = {text: place for place, text in enumerate(sorted(set(texts)))}
        return [places[text] for text in texts]


def colours_of(block: ProblemBlock, makers: dict[int, tuple[int, int]], colours: list[int]) -> list[int]:
    """The colours of the nodes of a block that make something."""
    return [colours[makers[node.results[0]][0]] for node in block.nodes if node.results]
