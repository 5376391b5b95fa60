"""How long a kernel takes: the clock of a chip, and the timeline."""
