"""Programs of others: StableHLO and sdy as MLIR has them (``interop.mlir``)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.interop import mlir

__all__ = ["mlir"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'meshwright.interop' has no attribute {name!r}")
    return import_module(f"meshwright.interop.{name}")
