"""Equations that do not run on blocks as they stand: what is sent before, and what is computed instead."""
