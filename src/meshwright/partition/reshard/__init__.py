"""From one layout of a value to another: the cheapest collectives, found, bounded from below, and written down."""
