"""``jax.errors``: the errors that programs catch by name, which here are Meshwright's own."""

from meshwright.errors import MeshwrightError as JaxRuntimeError
from meshwright.errors import MeshwrightError as KeyReuseError
from meshwright.errors import TracedMaskError as NonConcreteBooleanIndexError
from meshwright.errors import TracerError as ConcretizationTypeError
from meshwright.errors import TracerError as TracerArrayConversionError
from meshwright.errors import TracerError as TracerBoolConversionError
from meshwright.errors import TracerError as TracerIntegerConversionError
from meshwright.errors import TracerError as UnexpectedTracerError

__all__ = [
    "ConcretizationTypeError",
    "JaxRuntimeError",
    "KeyReuseError",
    "NonConcreteBooleanIndexError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "UnexpectedTracerError",
]
