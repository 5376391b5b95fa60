"""Programs of others: StableHLO and sdy as MLIR has them."""
