"""From a traced program to one that runs: jit, and what it can say of what it did."""
