"""What the body of a kernel is written in: refs, copies, semaphores, and where it runs."""
