"""Ops with programs of their own: loops, branches, functions with rules of their own, shard_map."""
