"""The text of programs and of types: read and printed."""
