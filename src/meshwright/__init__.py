"""Meshwright: programs that run on many devices."""
