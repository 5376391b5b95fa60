"""The ops, each defined once with all its rules. First-order ops stand below ``transform``; ``scan``, ``control`` and
``custom``, whose rules transform their regions, stand above it."""
