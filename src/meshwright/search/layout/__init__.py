"""The fastest layout of a step: a mesh, and a sharding for every argument."""
