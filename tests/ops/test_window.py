"""Windows beyond the samples: long ones, and what is selected among NaN, infinities, ties and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.errors import ShapeError
from meshwright.ops.window import (
    reduce_window_max,
    reduce_window_min,
    reduce_window_sum,
    select_and_gather_add,
    select_and_scatter_add,
)


def line(window: int, stride: int = 1, padding: tuple[int, int] = (0, 0), step: int = 1) -> dict[str, Any]:
    """The params of windows along one dim."""
    return {
        "window": (window,),
        "strides": (stride,),
        "padding": (padding,),
        "base_dilation": (1,),
        "window_dilation": (step,),
    }


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("window", [11, 32, 57])
def test_long_overlapping_windows_are_whole(window: int, stride: int, step: int) -> None:
    x = np.random.default_rng(0).integers(-9, 10, 300).astype(np.int32)
    views = np.lib.stride_tricks.sliding_window_view(x, (window - 1) * step + 1)[::stride, ::step]
    params = line(window, stride, step=step)
    np.testing.assert_array_equal(reduce_window_sum(x, **params).data, views.sum(1))
    np.testing.assert_array_equal(reduce_window_max(x, **params).data, views.max(1))
    np.testing.assert_array_equal(reduce_window_min(x, **params).data, views.min(1))


@pytest.mark.parametrize(
    ("x", "chosen"),
    [
        ([1.0, 3.0, 3.0, 2.0], 1),  # of equal ones the first
        ([1.0, np.nan, 3.0, np.nan], 1),  # NaN above all
        ([-np.inf, -np.inf, -np.inf, -np.inf], 0),  # an element that equals the padding, not the padding
    ],
)
def test_the_derivative_goes_to_one_element(x: list[float], chosen: int) -> None:
    values = np.array(x, np.float32)
    params = line(5, padding=(1, 0))
    back = select_and_scatter_add(np.array([7.0], np.float32), values, select="max", **params).data
    np.testing.assert_array_equal(back, np.where(np.arange(4) == chosen, 7.0, 0.0))
    forward = select_and_gather_add(np.arange(4, dtype=np.float32), values, select="max", **params).data
    np.testing.assert_array_equal(forward, [float(chosen)])


def test_a_window_of_nothing_but_padding_gets_nothing() -> None:
    x = np.array([0, 1], np.uint8)
    params = line(2, stride=2, padding=(0, 2))
    np.testing.assert_array_equal(reduce_window_max(x, **params).data, [1, 0])
    np.testing.assert_array_equal(select_and_gather_add(x, x, select="max", **params).data, [1, 0])
    sent = select_and_scatter_add(np.array([5, 6], np.uint8), x, select="max", **params)
    np.testing.assert_array_equal(sent.data, [0, 5])


def test_no_window_fits() -> None:
    x = np.ones(2, np.float32)
    assert reduce_window_sum(x, **line(3)).shape == (0,)
    assert select_and_gather_add(x, x, select="min", **line(3)).shape == (0,)
    none = np.ones(0, np.float32)
    np.testing.assert_array_equal(select_and_scatter_add(none, x, select="min", **line(3)).data, [0.0, 0.0])


def test_a_bad_window_is_refused() -> None:
    x = np.ones((2, 2), np.float32)
    with pytest.raises(ShapeError) as error:
        reduce_window_sum(x, **line(2))
    assert error.value.why == "a rank-2 operand needs 2 entries in each param"
    with pytest.raises(ShapeError) as error:
        reduce_window_sum(x[0], **line(0))
    assert error.value.why == "window=(0,) has an entry below 1"
