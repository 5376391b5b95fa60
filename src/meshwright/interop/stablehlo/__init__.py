"""Programs as modules of StableHLO, and modules as programs."""
