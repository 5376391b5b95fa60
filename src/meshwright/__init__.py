"""Meshwright: programs that run on many devices."""

from meshwright import lax, nn, numpy, random, tree
from meshwright.core.dtypes import config
from meshwright.core.program import Program
from meshwright.core.text import parse_program
from meshwright.core.trace import Array
from meshwright.errors import MeshwrightError
from meshwright.frontend.batching import vmap
from meshwright.frontend.custom import checkpoint, custom_jvp, custom_vjp
from meshwright.frontend.derivatives import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from meshwright.frontend.jacobian import hessian, jacfwd, jacobian, jacrev
from meshwright.frontend.jit import jit
from meshwright.frontend.tracing import ShapeDtypeStruct, eval_shape, make_program, typeof

remat = checkpoint

__all__ = [
    "Array",
    "MeshwrightError",
    "Program",
    "ShapeDtypeStruct",
    "checkpoint",
    "config",
    "custom_jvp",
    "custom_vjp",
    "eval_shape",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "make_program",
    "nn",
    "numpy",
    "parse_program",
    "random",
    "remat",
    "tree",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
]
