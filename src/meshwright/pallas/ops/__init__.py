"""``meshwright.pallas.ops``: collectives, products and attention written as kernels, to use and to learn from.

>>> import meshwright.numpy as mnp
>>> from meshwright.pallas import ops
>>> ops.matmul(mnp.ones((256, 64)), mnp.ones((64, 128))).shape
(256, 128)
"""

from __future__ import annotations

from meshwright.pallas.ops.attention import ring_attention
from meshwright.pallas.ops.collectives import all_gather, all_reduce, all_to_all, reduce_scatter, right_permute
from meshwright.pallas.ops.flash import flash_attention
from meshwright.pallas.ops.grouped import grouped_matmul, ragged_all_to_all
from meshwright.pallas.ops.matmuls import all_gather_matmul, matmul, matmul_reduce_scatter

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_to_all",
    "flash_attention",
    "grouped_matmul",
    "matmul",
    "matmul_reduce_scatter",
    "ragged_all_to_all",
    "reduce_scatter",
    "right_permute",
    "ring_attention",
]
