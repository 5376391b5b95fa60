"""StableHLO with sdy: ``load`` reads a module as a program, ``dump`` writes a program as a module."""

from meshwright.interop.dumping import dump
from meshwright.interop.loading import load

__all__ = ["dump", "load"]
