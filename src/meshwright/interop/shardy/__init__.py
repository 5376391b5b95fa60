"""The passes of Shardy, on modules of StableHLO with sdy."""
