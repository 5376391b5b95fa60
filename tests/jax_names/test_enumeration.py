"""``meshwright.jax`` has the public names of the installed JAX, and takes the parameters that those take.

``missing.json`` lists, module by module and with a reason, the names and parameters of jax 0.10 that are not here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from tests.jax_names.public import MODULES, missing  # noqa: E402

AT_LEAST = 0.94
LISTED = json.loads((Path(__file__).parent / "missing.json").read_text())


def test_the_share_of_names_and_parameters_that_are_here():
    found = [missing(name) for name in MODULES]
    absent, count = sum(len(names) for names, _ in found), sum(n for _, n in found)
    assert 1 - absent / count >= AT_LEAST


@pytest.mark.skipif(jax.__version_info__[:2] != (0, 10), reason="the list is of jax 0.10")
@pytest.mark.parametrize("module", MODULES)
def test_what_is_missing_is_listed_with_a_reason(module: str):
    entry = LISTED.get(module, {"reason": "nothing is missing", "names": [], "parameters": []})
    absent = missing(module)[0]
    names = {one for one in absent if "(" not in one}
    parameters = {one for one in absent if "(" in one and one.split("(")[0] not in names}
    assert entry["reason"]
    assert names == set(entry["names"])
    assert parameters == set(entry["parameters"])
