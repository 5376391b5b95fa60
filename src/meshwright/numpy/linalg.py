"""``meshwright.numpy.linalg``: norms, factorizations and products of matrices, as ``jax.numpy.linalg`` has them."""

from meshwright.frontend.numpy_linalg import matmul, matrix_power, tensordot, vecdot
from meshwright.frontend.numpy_norms import (
    cho_solve,
    cholesky,
    cross,
    diagonal,
    matrix_norm,
    multi_dot,
    norm,
    outer,
    solve_triangular,
    trace,
    vector_norm,
)
from meshwright.frontend.numpy_shape import matrix_transpose

__all__ = [
    "cho_solve",
    "cholesky",
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "solve_triangular",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
