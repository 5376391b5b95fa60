"""The machine that kernels run on: tasks, memories, copies on the way, and what can go wrong."""
