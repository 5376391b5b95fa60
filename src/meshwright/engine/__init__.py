"""Engines run programs."""
