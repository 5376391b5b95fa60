"""Transformers: their layers by formula, and as programs."""
