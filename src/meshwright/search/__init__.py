"""Search over ways to spread a training step over devices."""
