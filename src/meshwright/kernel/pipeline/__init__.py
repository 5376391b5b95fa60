"""Grids: bodies that are run block by block while the blocks come and go."""
