"""Products that are computed while their operands or results are on the way."""
