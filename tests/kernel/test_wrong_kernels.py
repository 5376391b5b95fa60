"""Program 37 of the conformance suite: kernels with one mistake each, found by the right class with the right lines."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.kernel import wrong_races, wrong_uses, wrong_values, wrong_waits
from tests.kernel.corpus import WRONG


@pytest.mark.parametrize("name", WRONG)
def test_37_the_mistake_is_found_and_its_lines_are_named(name):
    case = WRONG[name]
    with pytest.raises(case.error) as caught:
        case.run()
    error = caught.value
    assert type(error) is case.error
    text, first = inspect.getsourcelines(case.kernel)
    marked = {first + n for n, line in enumerate(text) if line.rstrip().endswith("# here")}
    file = re.escape(case.kernel.__module__.rpartition(".")[2])
    in_full, at = ({int(n) for n in re.findall(rf"{file}\.py:(\d+)", text)} for text in (str(error), error.where))
    assert at <= marked <= in_full and at, f"lines {sorted(marked)} in\n{error}"
    assert error.why and error.fix
    if case.devices > 1:
        assert "device" in str(error).lower() or "in the kernel on device" in error.__notes__[0]


def test_there_are_many():
    assert {case.kernel.__module__ for case in WRONG.values()} == {
        module.__name__ for module in (wrong_races, wrong_uses, wrong_values, wrong_waits)
    }
    assert len(WRONG) >= 150
