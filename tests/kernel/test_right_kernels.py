"""Kernels that are right though they look otherwise: no false alarm over many schedules, and the right numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel import right_devices, right_memory
from tests.kernel.corpus import RIGHT


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_and_the_numbers_are_right(name):
    case = RIGHT[name]
    assert case.expected is not None
    np.testing.assert_array_equal(case.run(), case.expected(case.operands()))


def test_there_are_many():
    assert {case.kernel.__module__ for case in RIGHT.values()} == {right_devices.__name__, right_memory.__name__}
    assert len(RIGHT) >= 45
