"""Arrays: what users pass, where it lies, and how it is put there, read and saved."""
