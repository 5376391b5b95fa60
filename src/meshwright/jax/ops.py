"""``jax.ops``: sums and other reductions of the elements of segments."""

from __future__ import annotations

from typing import Any

from meshwright import numpy as mnp
from meshwright.arrays.static import placed
from meshwright.core import dtypes


def _segment(method: str, data: Any, ids: Any, count: int | None, start: Any, mode: Any, out_sharding: Any) -> Any:
    x, places = mnp.asarray(data), mnp.asarray(ids)
    size = int(mnp.max(places)) + 1 if count is None else count
    found = getattr(mnp.full((size, *x.shape[places.ndim :]), start, x.dtype).at[places], method)(x, mode=mode)
    return placed(found, None, out_sharding)


def segment_sum(
    data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
    unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The sum of the elements of each segment.

    >>> segment_sum(mnp.array([1.0, 2.0, 3.0]), mnp.array([0, 0, 1]), 2).tolist()
    [3.0, 3.0]
    """
    return _segment("add", data, segment_ids, num_segments, 0, mode, out_sharding)


def segment_prod(
    data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
    unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The product of the elements of each segment."""
    return _segment("multiply", data, segment_ids, num_segments, 1, mode, out_sharding)


def segment_max(
    data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
    unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The largest element of each segment; of one without elements, the least number there is."""
    return _segment("max", data, segment_ids, num_segments, _end(data, -1), mode, out_sharding)


def segment_min(
    data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
    unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The smallest element of each segment; of one without elements, the greatest number there is."""
    return _segment("min", data, segment_ids, num_segments, _end(data, 1), mode, out_sharding)


def _end(data: Any, sign: int) -> Any:
    dtype = mnp.asarray(data).dtype
    if dtypes.is_float(dtype):
        return sign * mnp.inf
    limits = dtypes.integer_limits(dtype)
    return limits.max if sign > 0 else limits.min


__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]
