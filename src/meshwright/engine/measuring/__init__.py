"""Measures how long ops take on the machine at hand and keeps every repetition's time.

These modules need Python, NumPy and whichever of jax or torch is there, and of the rest of this package only what
writes a file whole, so that ``benchmarks/measure.py`` runs where nothing can be installed.

A case is one op at one size. It carries its work: the list of kernels that are expected to run, each with its sizes or
bytes. Cases of the part "calibration" are for fitting a model of the machine, "held out" and "step" (whole train steps)
for testing it, "check" repeats a few cases at the end to see whether the machine has changed meanwhile.
"""
