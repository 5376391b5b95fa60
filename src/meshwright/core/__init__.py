"""Programs, their types and the shape of an op. Names no op."""
