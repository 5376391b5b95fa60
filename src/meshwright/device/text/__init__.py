"""Reading device programs."""
