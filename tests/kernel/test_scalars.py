"""Integers of rank 0 in kernels give what arrays give."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.arrays import scalars

OPS: list[Any] = [
    operator.add, operator.sub, operator.mul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge, lax.rem, mnp.maximum, lax.min,
]  # fmt: skip
NUMBERS = [-(2**31), -7, -1, 0, 1, 3, 128, 70000, 2**31 - 1]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_they_agree_with_arrays_also_where_they_wrap(op):
    for a in NUMBERS:
        for b in NUMBERS:
            x, y = mnp.asarray(a, mnp.int32), mnp.asarray(b, mnp.int32)
            expected = op(x, y)
            scalars.state.active = True
            try:
                found = [op(x, y), op(x, b), op(a, y)]
            finally:
                scalars.state.active = False
            for one in found:
                assert one.type is expected.type and int(one) == int(expected), (a, b)


def test_memory_is_used_again_only_when_nobody_has_it():
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + 1

    call = mw.jit(pl.pallas_call(kernel, mw.ShapeDtypeStruct((256, 256), mnp.float32)))
    kept = [call(mnp.full((256, 256), float(n))) for n in range(4)]
    views = [np.asarray(call(mnp.full((256, 256), float(n))))[3:5, 7] for n in range(4)]
    for n in range(8):
        call(mnp.full((256, 256), 100.0 + n))
    assert [float(one.max()) for one in kept] == [1.0, 2.0, 3.0, 4.0] == [float(one.min()) for one in kept]
    assert [one.tolist() for one in views] == [[n + 1.0] * 2 for n in range(4)]
