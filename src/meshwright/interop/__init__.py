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

from typing import TYPE_CHECKING

from meshwright.core.first_use import on_first_use

if TYPE_CHECKING:
    from meshwright.interop import hlo, jax, mlir, pallas

__all__ = ["hlo", "jax", "mlir", "pallas"]

__getattr__ = on_first_use("meshwright.interop", {f"meshwright.interop.{name}": [] for name in __all__})
