"""What is simulated of a step: layouts of least cost, those that are usually written, and what is better than these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, product
from math import inf, prod

import numpy as np

from meshwright.core import tree
from meshwright.search.layout.found import FoundLayout
from meshwright.search.layout.searching import SIMULATED, Candidate, LayoutSearch, correct, mesh_of
from meshwright.search.layout.usual import Layouts, fsdp, split_batch, usual_layouts
from meshwright.search.layout.ways import blocks
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding

CANDIDATES = 6  # layouts of least cost that are simulated
NEAR = 1.2  # times the seconds that were expected: other layouts of a large step are tried only if it takes more
GAP = 1.02  # times the work of kernels that are split evenly: to come nearer is not worth looking for
OTHERS = 8  # candidates of such a step that are returned with what is expected of them
USUAL = 6_000  # equations of usual layouts that are simulated,
MOST_USUAL = 24  # and layouts,
FAR = 1.6  # times the seconds of the best: a usual layout that is estimated to take more is not
TRIED = 2_000  # equations of layouts that are simulated to improve on the best,
MOST_TRIED = 48  # and layouts
ENUMERATED = 256  # layouts of the arguments of a step: if there are no more, each is simulated,
MOST_ENUMERATED = 8_000  # and that many equations of them
SOME_ENUMERATED = 4_000  # where other meshes have more, this many
ESTIMATED = 50_000  # equations of layouts of the arguments that are estimated, if that is all of them
LIKELY = 2_000  # equations of these that are simulated,
MOST_LIKELY = 96  # and layouts
AS_FAST = 2  # of layouts for which the same is estimated, that are simulated: most are the same on other axes
ROUND = 8  # of them, before estimates are corrected by what these take
TINY = 1e-12  # seconds, of steps that take none
ORDERED = 16  # tries, for fewer of which it does not pay to estimate them first
MESHES = 3  # on which that is done


def simulate_best(search: LayoutSearch, candidates: Sequence[Candidate], meshes: Sequence[Mapping[str, int]]) -> None:
    """Simulate the layout of least cost. If a large step takes as long as was expected, or hardly more than the bound,
    that is it; otherwise those that are usually written, and others as far as there is time."""
    tried = set[tuple[TensorSharding, ...]]()
    for n, one in enumerate(candidates):
        fits = any(found.fits for found in search.made.values())
        if fits and (len(tried) >= CANDIDATES or (len(search.made) + 1) * search.equations > SIMULATED):
            break
        given = search.inputs(one)
        if given not in tried:
            tried.add(given)
            first = _simulate(search, one, given, whole=n == 0 and search.is_large)
            expected = search.is_large and first.fits and first.seconds <= NEAR * one.seconds
            if n == 0 and (expected or near_bound(search)):
                best, held = _fastest(search), search.held(one)
                ratio = best.seconds / one.seconds if one.seconds else 1.0
                if not search.is_large:
                    _simulate_split_batch(search, meshes[0])
                for other in candidates[1:OTHERS]:
                    search.estimated(other)
                correct(search.made.values(), ratio, best.peak_bytes_per_device / held if held else 1.0)
                return
        if n == 0:
            _simulate_split_batch(search, meshes[0])
    if not candidates:
        _simulate_split_batch(search, meshes[0])
    if not search.is_large:
        _simulate_usual(search, meshes)


def near_bound(search: LayoutSearch) -> bool:
    """Whether a layout was simulated that takes hardly longer than the step's kernels do if nothing is sent."""
    best = _fastest(search)
    return best.fits and best.kind == "simulated" and best.seconds <= GAP * search.evenly


def _fastest(search: LayoutSearch) -> FoundLayout:
    return min(search.made.values(), key=_rank)


def _simulate(search: LayoutSearch, one: Candidate, given: Sequence[TensorSharding], whole: bool) -> FoundLayout:
    """Simulate a candidate: by its arguments alone, and with its constraints."""
    machine = search.machine(one.model.mesh.shape)
    plain = search.simulated(given, machine, {}, whole)
    if plain.seconds > one.seconds * (NEAR if search.is_large else 1.0) or not plain.fits:
        search.simulated(given, machine, search.specs(one))
    return plain


def _simulate_split_batch(search: LayoutSearch, sizes: Mapping[str, int]) -> None:
    """Simulate a batch in parts, with parameters whole, unless these do not fit, and in parts: along the first dim that
    can be, and along the largest."""
    whole = split_batch(search, sizes, False)
    split = [split_batch(search, sizes, True), fsdp(search, whole, mesh_of(sizes).axes, largest=True)]
    held = sum(t.nbytes / blocks(s, t) for t, s in zip(search.step.types, whole, strict=True))
    for given in dict.fromkeys([*[whole] * (held <= search.memory), *split]):
        search.simulated(given, search.machine(sizes), {})
    last = search.step.last_of_batch  # where nothing says which argument is the batch, it is rather the last
    if held <= search.memory and 0 < len(last) < len(search.step.batch):
        search.simulated(split_batch(search, sizes, False, last), search.machine(sizes), {})


def _simulate_usual(search: LayoutSearch, meshes: Sequence[Mapping[str, int]]) -> None:
    """Simulate other layouts that are usually written, unless they are estimated to be far from the best, even if as
    much too high as for one that was simulated."""
    most = min(MOST_USUAL, USUAL // max(1, search.equations))
    usual = usual_layouts(search, meshes) if most else []
    taken = [(one, search.made.get((*one.given, frozenset()))) for one in usual]
    over = max([1.0, *(one.seconds / found.seconds for one, found in taken if found is not None and found.seconds)])
    for one in [one for one, found in taken if found is None][:most]:
        best = _fastest(search)
        if not best.fits or one.seconds <= FAR * over * best.seconds:
            found = search.simulated(one.given, search.machine(one.sizes), {})
            over = max(over, one.seconds / found.seconds if found.seconds else 1.0)


def simulate_all(search: LayoutSearch, meshes: Sequence[Mapping[str, int]]) -> bool:
    """Simulate every layout of arguments on those meshes of one or two axes on which there are few; whether these are
    all such meshes."""
    meshes = [sizes for sizes in meshes if len(sizes) < 3]
    spaces = [[search.layouts(t, mesh_of(sizes)) for t in search.step.types] for sizes in meshes]
    counts = [prod(map(len, space)) for space in spaces]
    most = min(ENUMERATED, MOST_ENUMERATED // max(1, search.equations)) if search.short is None else 0
    if sum(counts) > most:
        most = min(most, SOME_ENUMERATED // max(1, search.equations))
    order = sorted(range(len(meshes)), key=lambda n: counts[n])
    few = [n for n, known in zip(order, accumulate(counts[n] for n in order), strict=True) if known <= most]
    for n in few:
        for given in product(*spaces[n]):
            search.simulated(given, search.machine(meshes[n]), {})
    return len(few) == len(meshes)


def simulate_likely(search: LayoutSearch, meshes: Sequence[Mapping[str, int]]) -> None:
    """Estimate every layout of arguments on meshes of one or two axes, if there are not too many, and simulate those
    that are estimated to be the fastest: the best may differ in many arguments from every layout at hand. What was
    simulated corrects the estimates of the others."""
    meshes = [sizes for sizes in meshes if len(sizes) < 3]
    spaces = [[search.layouts(t, mesh_of(sizes)) for t in search.step.types] for sizes in meshes]
    if search.short is not None or sum(prod(map(len, space)) for space in spaces) * search.equations > ESTIMATED:
        return
    changes = Changes(search, ordered=True)
    likely = [given for space in spaces for given in product(*space) if changes.seconds(given) < inf]
    if not likely:
        return
    estimates = np.log([max(changes.seconds(given), TINY) for given in likely])
    same, features = [f"{seconds:.6g}" for seconds in estimates], _features(likely)
    counts = Counter[str]()
    most = len(search.made) + min(MOST_LIKELY, LIKELY // max(1, search.equations))
    left = [n for n, given in enumerate(likely) if (*given, frozenset()) not in search.made]
    while left and len(search.made) < most:
        expected = estimates + _errors(search, likely, estimates, features)
        left.sort(key=lambda n: expected[n])
        tried = list(islice((n for n in left if counts[same[n]] < AS_FAST), ROUND))
        for n in tried:
            counts[same[n]] += 1
            search.simulated(likely[n], search.machine(likely[n][0].mesh.shape), {})
        left = [n for n in left if n not in tried and counts[same[n]] < AS_FAST]


def _features(likely: Sequence[Layouts]) -> np.ndarray:
    """For each layout which sharding each argument has on which mesh, as ones among zeros."""
    numbers: dict[tuple[int, TensorSharding], int] = {}
    rows = [[numbers.setdefault((n, s), len(numbers)) for n, s in enumerate(given)] for given in likely]
    found = np.zeros((len(likely), len(numbers)))
    np.put_along_axis(found, np.array(rows), 1.0, axis=1)
    return found


def _errors(search: LayoutSearch, likely: Sequence[Layouts], estimates: np.ndarray, features: np.ndarray) -> np.ndarray:
    """By how much the logarithms of estimates are expected to be wrong: the sum of a number for each sharding of each
    argument, by least squares from layouts that were simulated."""
    made = [(n, search.made.get((*given, frozenset()))) for n, given in enumerate(likely)]
    known = {n: np.log(max(one.seconds, TINY)) - estimates[n] for n, one in made if one is not None}
    if not known:
        return np.zeros(len(likely))
    rows, wrong = features[list(known)], np.array(list(known.values()))
    mean = wrong.mean()
    found: np.ndarray = mean + features @ (rows.T @ np.linalg.solve(rows @ rows.T + np.eye(len(rows)), wrong - mean))
    return found


def _tries(search: LayoutSearch) -> int:
    """How many layouts of a step are simulated to improve on the best."""
    return min(MOST_TRIED, TRIED // max(1, search.equations))


def climb(search: LayoutSearch) -> None:
    """Change the shardings of few arguments at a time while that is better: of the best layouts on a few meshes, in
    turn, as far as a step is small enough to be simulated often."""
    tries = _tries(search)
    most = len(search.made) + (0 if near_bound(search) else tries)
    first: dict[Mesh, FoundLayout] = {}
    for one in sorted(search.made.values(), key=_rank):
        if not one.constraints:
            first.setdefault(one.mesh, one)
    changes = Changes(search, ordered=tries >= ORDERED)
    climbing = [_climbed(search, best, changes) for best in list(first.values())[:MESHES]]
    while climbing and len(search.made) < most:
        climbing = [one for one in climbing if next(one, None) is not None]


def _climbed(search: LayoutSearch, best: FoundLayout, changes: Changes) -> Iterator[FoundLayout]:
    """Layouts that are simulated on the way from one to the best from which no change is better."""
    machine = search.machine(best.mesh.shape)
    improved = True
    while improved:
        improved = False
        for tried in changes.of(best):
            known = len(search.made)
            found = search.simulated(tried, machine, {})
            if len(search.made) > known:
                yield found
            if _rank(found) < (_rank(best)[0], _rank(best)[1] * (1 - 1e-9)):
                best, improved = found, True
                break


def _rank(one: FoundLayout) -> tuple[bool, float]:
    """What is better is less: seconds of what fits, and bytes of what does not."""
    return not one.fits, one.seconds if one.fits else one.peak_bytes_per_device


class Changes:
    """The layouts that differ from one in the shardings of few arguments; if they are to be ordered, those first that
    are estimated to be the fastest (on three axes there are too many to estimate)."""

    def __init__(self, search: LayoutSearch, ordered: bool) -> None:
        self.search, self.ordered = search, ordered
        self.together = _changed_together(search)
        self.known: dict[Layouts, float] = {}

    def of(self, one: FoundLayout) -> list[Layouts]:
        """Layouts with another sharding of one argument, or of those that are changed together."""
        given = self.given(one)
        found = list(dict.fromkeys(tried for numbers in self.together for tried in self.changed(given, numbers)))
        return sorted(found, key=self.seconds) if self.is_ordered(one) else found

    def is_ordered(self, one: FoundLayout) -> bool:
        return self.ordered and len(one.mesh.shape) < 3

    def given(self, one: FoundLayout) -> Layouts:
        pairs = zip(tree.leaves(one.in_shardings), self.search.step.types, strict=True)
        return tuple(s.to_tensor_sharding(t.ndim) for s, t in pairs)

    def changed(self, given: Layouts, numbers: Sequence[int]) -> Iterator[Layouts]:
        """Layouts with another sharding of these arguments."""
        for other in self.search.layouts(self.search.step.types[numbers[0]], given[0].mesh):
            if other != given[numbers[0]]:
                yield tuple(other if n in numbers else s for n, s in enumerate(given))

    def seconds(self, given: Layouts) -> float:
        if given not in self.known:
            one = self.search.restricted(given[0].mesh.shape, lambda n, s: s == given[n])
            self.known[given] = inf if one is None else one.seconds
        return self.known[given]


def _changed_together(search: LayoutSearch) -> list[list[int]]:
    """The arguments whose shardings are changed together: those of equal ones in equal layers, the largest first, and
    the arrays of a batch that have one shape."""
    roles: dict[int, list[int]] = {}
    for n, value in enumerate(search.of_all(search.graph.inputs)):
        assert value.step is not None and value.step.group is not None
        roles.setdefault(value.step.group.role, []).append(n)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for n in sorted(search.step.batch):
        shapes.setdefault(search.step.types[n].shape, []).append(n)
    found = [*roles.values(), *(numbers for numbers in shapes.values() if len(numbers) > 1)]
    return sorted(found, key=lambda numbers: -sum(search.step.types[n].nbytes for n in numbers))
