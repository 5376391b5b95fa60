"""``meshwright.jax`` has the public names of the installed JAX, and takes the parameters that those take."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from tests.jax_names.public import MODULES, missing

AT_LEAST = 0.60


def test_the_share_of_names_and_parameters_that_are_here():
    found = [missing(name) for name in MODULES]
    absent, count = sum(len(names) for names, _ in found), sum(n for _, n in found)
    assert 1 - absent / count >= AT_LEAST
