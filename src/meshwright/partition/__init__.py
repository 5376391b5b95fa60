"""Partitioning: from global programs to local ones with explicit collectives."""
