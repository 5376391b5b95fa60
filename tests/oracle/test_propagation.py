"""Propagation beside Shardy's own passes: the same shardings on the same values."""

from __future__ import annotations

import pytest

pytest.importorskip("jaxlib.mlir")

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.problem_reader import ModuleReader
from meshwright.interop.stablehlo.context import parse_module
from meshwright.propagate.problem import Problem
from meshwright.propagate.run import PIPELINES, STRATEGIES, run
from tests.oracle.random_modules import random_module
from tests.oracle.shardy import LEFT_OUT, newest_rules
from tests.propagate.random_problems import Features, Maker
from tests.propagate.shardy import show_graph, shown_apart

_WHOLE = tuple(name for name in PIPELINES["sdy-propagation-pipeline"] if name not in LEFT_OUT)
_IMPORTED = _WHOLE[: _WHOLE.index("sdy-user-priority-propagate")]
CHAINS = {name: (*_IMPORTED, name) for name in STRATEGIES} | {"pipeline": _WHOLE}
# Import adds edges to named computations that are in the program from the beginning a second time, and Shardy refuses.
IMPORTED = Features(named=False)
# Without import, values may be in several groups, which Shardy does not survive.
BARE = Features(groups=False)


def found_by_us(problem: Problem, passes: tuple[str, ...], conservative: bool = False) -> list[str] | None:
    """The lines of the answer, or of the error; None where Shardy would use memory that it freed."""
    try:
        answer = run(problem, passes, conservative=conservative)
    except MeshwrightError as error:
        return str(error).splitlines()
    return None if any("is used by nobody" in line for line in answer.told) else show_graph(answer.graph)


def disagreements(seeds: range, passes: tuple[str, ...], features: Features | None) -> tuple[list[int], int]:
    """The seeds whose programs come out differently, and how many were compared."""
    ours: dict[int, list[str]] = {}
    texts: list[str] = []
    for seed in seeds:
        if features is None:
            text = newest_rules(random_module(seed))
            problem = ModuleReader(parse_module(text), declared_meshes=passes[:2] == _IMPORTED[:2]).read()
        else:
            problem, text = Maker(seed, features).program()
        found = found_by_us(problem, passes)
        if found is not None:
            ours[seed] = found
            texts.append(text)
    theirs = dict(zip(ours, shown_apart(texts, passes), strict=True))
    compared = [seed for seed in ours if theirs[seed] is not None]
    return [seed for seed in compared if ours[seed] != theirs[seed]], len(compared)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_alone(strategy: str) -> None:
    wrong, compared = disagreements(range(60), (strategy,), BARE)
    assert (wrong, compared > 50) == ([], True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_alone_that_never_cuts_an_axis(strategy: str) -> None:
    programs = [Maker(seed, BARE).program() for seed in range(60)]
    ours = [found_by_us(problem, (strategy,), conservative=True) for problem, _ in programs]
    theirs = shown_apart([text for _, text in programs], (f"{strategy}{{conservative-propagation=true}}",))
    compared = [(one, other) for one, other in zip(ours, theirs, strict=True) if one and other]
    assert len(compared) > 50 and all(one == other for one, other in compared)


@pytest.mark.parametrize("chain", CHAINS)
def test_random_programs(chain: str) -> None:
    wrong, compared = disagreements(range(60), CHAINS[chain], IMPORTED)
    assert (wrong, compared > 50) == ([], True)


@pytest.mark.parametrize("chain", CHAINS)
def test_random_modules_of_all_ops(chain: str) -> None:
    wrong, compared = disagreements(range(40), CHAINS[chain], None)
    assert (wrong, compared > 30) == ([], True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_alone_many_times(strategy: str) -> None:
    assert disagreements(range(1000, 6000), (strategy,), BARE)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int, chain: str) -> None:
    assert disagreements(range(1000 + 1000 * part, 2000 + 1000 * part), CHAINS[chain], IMPORTED)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("part", range(10))
def test_many_random_modules_of_all_ops(part: int, chain: str) -> None:
    assert disagreements(range(1000 + 1000 * part, 2000 + 1000 * part), CHAINS[chain], None)[0] == []
