"""The conformance suite has 37 programs, each a test or several whose names begin with its number.

``pytest tests/kernel -k conformance --collect-only`` lists programs 1 to 36; 37 is ``test_wrong_kernels``.
"""

from __future__ import annotations

import re

from tests.kernel import test_conformance_devices, test_conformance_pipelines, test_wrong_kernels


def test_all_programs_are_there():
    modules = test_conformance_pipelines, test_conformance_devices, test_wrong_kernels
    numbered = (re.match(r"test_(\d\d)_", name) for module in modules for name in vars(module))
    assert {int(found[1]) for found in numbered if found} == set(range(1, 38))
