"""Programs of others: StableHLO and sdy as MLIR has them (``interop.mlir``), HLO (``interop.hlo``), functions of JAX
(``interop.jax``), kernels by JAX's Pallas (``interop.pallas``).

>>> import meshwright as mw
>>> text = '''func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
...   %0 = stablehlo.tanh %x : tensor<3xf32>
...   return %0 : tensor<3xf32>
... }'''
>>> [eqn.op.name for eqn in mw.interop.mlir.load(text).eqns]
['tanh']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.interop import hlo, jax, mlir, pallas

__all__ = ["hlo", "jax", "mlir", "pallas"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'meshwright.interop' has no attribute {name!r}")
    return import_module(f"meshwright.interop.{name}")
