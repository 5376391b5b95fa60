"""Sharding propagation: from a few annotations to a sharding on every value, with the reasons kept."""
