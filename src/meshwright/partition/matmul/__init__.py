"""Products of two split arrays, in the index notation of seed 001: the cases, the steps, and which way is fastest."""
