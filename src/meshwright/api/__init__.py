"""Functions of functions: derivatives, batches, loops, shard_map, reshard."""
