"""Engines run programs."""

from meshwright.engine.compile import compile_program

__all__ = ["compile_program"]
