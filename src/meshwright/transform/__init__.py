"""Programs to programs: derivatives, transposes, batching, simplification."""
