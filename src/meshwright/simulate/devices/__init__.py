"""Device programs on machines: what their devices do when, and what they hold."""
