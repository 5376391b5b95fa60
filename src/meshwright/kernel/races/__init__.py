"""Who touched what, and in which order: races found."""
