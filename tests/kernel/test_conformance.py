"""The conformance suite has 37 programs, each a test or several whose names begin with its number.

``python -m tests.kernel.test_conformance`` lists them; 37 is one test per wrong kernel.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tests.kernel import (
    test_conformance_devices,
    test_conformance_grids,
    test_conformance_pipelines,
    test_wrong_kernels,
)
from tests.kernel.corpus import WRONG

MODULES = test_conformance_grids, test_conformance_pipelines, test_conformance_devices, test_wrong_kernels


def programs() -> dict[int, list[str]]:
    """By number, the tests of each program."""
    found = defaultdict(list)
    for module in MODULES:
        for name in vars(module):
            numbered = re.match(r"test_(\d\d)_", name)
            if numbered is not None:
                found[int(numbered[1])].append(f"{module.__name__.rpartition('.')[2]}.py::{name}")
    return dict(sorted(found.items()))


def test_all_programs_are_there():
    assert list(programs()) == list(range(1, 38))


if __name__ == "__main__":
    for number, names in programs().items():
        print(f"{number:2}", *names)
    print(f"{len(WRONG)} wrong kernels")
