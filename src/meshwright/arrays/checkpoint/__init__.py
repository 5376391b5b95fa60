"""Trees of arrays in files: saved whole or not at all, loaded onto any mesh."""
