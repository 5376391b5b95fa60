"""Errors a user can meet: what happened, where in their code, why, and what to write instead."""

from __future__ import annotations

WITH_JAX = "pip install --editable '.[jax]' in the folder of Meshwright"  # the fix where JAX is missing


class MeshwrightError(Exception):
    """One clear error: ``what``, then ``at``, ``why`` and ``fix`` on lines of their own.

    >>> print(MeshwrightError("Shapes differ.", why="3 is not 4", fix="x[:3]"))
    Shapes differ.
      why:  3 is not 4
      fix:  x[:3]
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("at:", self.where), ("why:", self.why), ("fix:", self.fix)):
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {label:<5} {first}")
                lines.extend(f"        {line}" for line in rest)
        return "\n".join(lines)


class ShapeError(MeshwrightError, TypeError, ValueError):
    """Shapes or dtypes that an operation cannot take: for some of them JAX raises the one, for some the other."""


class VarianceError(ShapeError):
    """A value that differs between devices where it must not, or the reverse; or a partial sum."""


class IndexingError(MeshwrightError, IndexError):
    """An index that an array does not have."""


class TreeError(MeshwrightError, TypeError, ValueError):
    """A pytree of the wrong structure."""


class TracerError(MeshwrightError, TypeError):
    """A traced value used where only a concrete one can be."""


class TracedMaskError(TracerError, IndexError):
    """A traced mask used as an index, whose result would have a shape that nobody knows."""


class StaticError(MeshwrightError, ValueError):
    """A static argument that cannot be one."""


class DonatedError(MeshwrightError, RuntimeError, ValueError):
    """An array used after its memory was given away: JAX raises the one where an op is given it, and the other where a
    jitted function is."""


class DifferentiationError(MeshwrightError, TypeError):
    """A derivative that does not exist or is not defined."""


class CheckError(MeshwrightError):
    """A program that breaks a rule of the language: a defect of the stage that produced it."""


class MeshError(MeshwrightError, ValueError):
    """A mesh that cannot be, or one that is missing."""


class AxisNameError(MeshError, NameError):
    """A mesh axis that is named where there is none of that name."""


class ShardingError(MeshwrightError, TypeError, ValueError):
    """A sharding that breaks a rule of the representation, or does not fit what it is used for: for some of these JAX
    raises the one, for some the other."""


class CommunicationError(MeshwrightError):
    """A collective where none is allowed."""


class TextError(MeshwrightError, ValueError):
    """Text that is not a program (or a type, or a factor rule); the message points at the character."""


class HardwareError(MeshwrightError, ValueError):
    """A chip, a topology or a layout on it that cannot be."""


class StorageError(MeshwrightError, ValueError):
    """What is on disk is not, or no longer, what was saved."""


class DeviceError(MeshwrightError, ValueError):
    """Devices of a device program that cannot be: shared, missing, on the wrong level, or not known."""
