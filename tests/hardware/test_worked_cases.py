"""Every worked case is reproduced within its tolerance by asking the public API."""

import pytest

from tests.hardware.worked_cases import ANSWERS, BEGIN, CASES, END, PAGE, answer, table, within


@pytest.mark.parametrize("name", CASES)
def test_a_worked_case_is_reproduced(name):
    value = answer(name)
    case = CASES[name]
    assert within(value, case), f"{name}: {value} is not {case['expected']['value']}: {case['question']}"


def test_every_case_is_asked():
    assert len(CASES) == 134
    assert set(ANSWERS) == set(CASES)


def test_the_documentation_lists_every_case():
    """`python -m tests.hardware.worked_cases` writes the table."""
    assert BEGIN + table() + END in PAGE.read_text(encoding="utf-8")
